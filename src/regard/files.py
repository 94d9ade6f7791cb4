"""Atomic file writes, JSON, and suffixes of output files."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from regard.errors import ConfigError, DeviceError, RunError

MOST_LEVELS = 100
"""Levels of lists and objects in a JSON text; the stack of Python has room for about ten times as many."""
_NO_BRACKETS = re.compile(r"[^][{}]+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`; after a crash the file is either complete or unchanged."""
    part = partial_path(path)
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        if isinstance(error, OSError):
            _remove(part)
            raise DeviceError(
                f"cannot write {path} ({len(data):,} bytes): {error.strerror or error}; the existing file is unchanged"
            ) from None
        part.unlink(missing_ok=True)
        raise


def require_writable(folder: Path) -> None:
    """Raise if a folder, which need not exist yet, cannot be written to; nothing is left there."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None


def partial_path(path: Path) -> Path:
    """The name a file has until it is complete."""
    return path.with_name(f"{path.name}.part")


def _remove(part: Path) -> None:
    """Remove a partial file; if its folder is not writable there is none."""
    try:
        part.unlink(missing_ok=True)
    except OSError:
        return


def load_json(text: str | bytes) -> Any:
    """The value of a JSON text; what is no JSON, or is nested too deeply to be walked through, is a ValueError."""
    require_shallow(text if isinstance(text, str) else text.decode("utf-8", "replace"))
    return json.loads(text)


def require_shallow(text: str) -> None:
    """Raise a ValueError where a JSON text is nested so deeply that reading or writing it may exceed the stack."""
    if text.count("[") + text.count("{") <= MOST_LEVELS:
        return
    if _depth(_NO_BRACKETS.sub("", text)) > MOST_LEVELS:  # brackets in strings are counted; most texts end here
        depth = _depth(_NO_BRACKETS.sub("", _STRING.sub("", text)))
        if depth > MOST_LEVELS:
            raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")


def _depth(brackets: str) -> int:
    level = deepest = 0
    for bracket in brackets:
        if bracket in "[{":
            level += 1
            deepest = max(deepest, level)
        else:
            level -= 1
    return deepest


def check_suffix(path: str | os.PathLike[str], suffixes: Sequence[str]) -> Path:
    """Returns `path`; a suffix that is not among `suffixes`, in any case, is an error."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"the file name must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}, got {path.name!r}")
    return path
