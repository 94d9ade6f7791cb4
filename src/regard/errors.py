"""The exceptions of the package.

Every error a user can cause is a `RegardError`, and also the builtin error a
caller would expect, so both `except RegardError` and `except ValueError` work.
"""

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What would end a line, move the cursor of a terminal, reverse a text, or cannot be written."""
_LONGEST, _END = 1_500, 300
"""Characters of a message, and those of its end that are kept where it is longer."""


def one_line(text: str) -> str:
    """A text as one line that can be printed: files, whose parts messages repeat, may be anyone's.

    Line ends and tabs become spaces, other control characters are escaped, and a long text loses its middle.

    Example:
        >>> one_line("a name\\nwith \\x1b[31mcolor")
        'a name with \\\\x1b[31mcolor'
    """
    for _ in range(2):  # an escaped character is longer
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST - _END]}…{text[-_END:]}"
        text = _CONTROL.sub(
            lambda found: " " if found[0].isspace() else found[0].encode("unicode_escape").decode(), text
        )
    return text


class RegardError(Exception):
    """The base class: the command line prints it as one line and exits with code 2."""

    def __str__(self) -> str:
        """The message in one line, whatever the names and values in it are."""
        return one_line(super().__str__())


class ConfigError(RegardError, ValueError):
    """A setting that is unknown, of the wrong type, or outside its range."""


class PluginError(RegardError, ImportError):
    """A plug-in that cannot be imported, lacks a member, or has the name of another."""


class DataError(RegardError, ValueError):
    """Data that cannot be read in the expected format."""


class EncodingError(DataError):
    """Text in another encoding than the one that was given or detected."""


class UnknownTaskError(DataError):
    """Data that no task recognizes."""


class BadRowsError(DataError):
    """Some rows of a table are invalid, others are valid."""


class RunError(RegardError, ValueError):
    """A run folder that is missing, invalid, or already exists."""


class RunExistsError(RunError):
    """The output folder already contains a run."""


class BaseMissingError(RunError):
    """The base model of an adapter is missing."""


class StoppedError(RunError):
    """Training was stopped by a signal after its state was saved."""

    def __init__(self, message: str, *, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal
        """The exit code that a shell reports for a program ended by that signal."""


class DivergedError(RunError):
    """Training whose loss or weights are not finite, or whose loss has exploded."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}: {advice}")
        self.reason, self.advice = reason, advice


class CheckpointError(RunError):
    """A checkpoint that is damaged or belongs to another run."""


class ProcessError(RegardError, RuntimeError):
    """Another process that trains the same model has ended."""


class DeviceError(RegardError, RuntimeError):
    """A device that is unavailable or out of memory, or a full disk."""


class WriteError(DeviceError):
    """A file that cannot be written, such as on a full disk; what was there before is unchanged."""
