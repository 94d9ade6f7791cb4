"""What can go wrong, by name.

Every error a user can cause is a `RegardError`, and also the builtin error a
caller would expect, so both `except RegardError` and `except ValueError` work.
"""


class RegardError(Exception):
    """The root: the command line prints it as one line and exits with 2."""


class ConfigError(RegardError, ValueError):
    """A setting that is unknown, of the wrong type, or outside its range."""


class DataError(RegardError, ValueError):
    """A file of data that cannot be read as what it was said to be."""


class BadRowsError(DataError):
    """Rows of a table that cannot be used, while others of it can."""


class RunError(RegardError, ValueError):
    """A run folder that is missing, foreign, or already there."""


class RunExistsError(RunError):
    """A run that stands where another was to be made."""


class BaseMissingError(RunError):
    """An adapter without the run that it is for."""


class StoppedError(RunError):
    """Training was stopped by a signal, and everything is saved."""

    def __init__(self, message: str, *, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal
        """What a shell reports of a program that the signal ended."""


class CheckpointError(RunError):
    """A checkpoint that is damaged or does not belong to its run."""


class DeviceError(RegardError, RuntimeError):
    """A device that is not there, or that ran out of memory or disk."""
