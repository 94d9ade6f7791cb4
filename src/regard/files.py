"""Atomic file writes, JSON, and suffixes of output files."""

import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from regard.errors import ConfigError, DataError, RunError, WriteError

MOST_LEVELS = 100
"""Levels of lists and objects in a JSON text; the stack of Python has room for about ten times as many."""
_FREE_BYTES, MAX_EXPANSION = 64 << 20, 500
"""A compressed file may expand to so many bytes, and to so many times its size beside them: text compresses to a tenth,
tables of repeated values to a hundredth, and an archive that was made to fill a machine to a thousandth or less."""
_SNAPSHOTS = "snapshots"
"""The folder of revisions in the cache of Hugging Face."""
_NO_BRACKETS = re.compile(r"[^][{}]+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write `data`, whole or in parts, to `path`; after a crash the file is either complete or unchanged."""
    part, parts = partial_path(path), [data] if isinstance(data, bytes) else list(data)
    try:
        with open_part(part) as file:
            for each in parts:
                file.write(each)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        if isinstance(error, OSError):
            _remove(part)
            size = sum(map(len, parts))
            raise WriteError(
                f"cannot write {path} ({size:,} bytes): {error.strerror or error}; the existing file is unchanged"
            ) from None
        part.unlink(missing_ok=True)
        raise


def open_part(part: Path) -> BinaryIO:
    """Open a new partial file; what is there, such as a link to another file, is removed and not followed."""
    part.unlink(missing_ok=True)
    return open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def require_inside(path: Path, folder: Path) -> Path:
    """Return `path`, a file of a stranger's folder, if it is one of that folder.

    A link that leads out of the folder could be to any file of this machine. Folders in the cache of Hugging Face have
    their files in a folder beside them, where links may lead.
    """
    if "\0" in str(path):
        raise DataError(f"no file has the name {str(path)!r}")
    root = Path(os.path.realpath(folder))
    root = next((each.parent.parent for each in (root, *root.parents) if each.parent.name == _SNAPSHOTS), root)
    place = Path(os.path.realpath(path))
    try:
        status = place.lstat()
    except FileNotFoundError:  # reported by what reads it
        status = None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if not place.is_relative_to(root):
        raise DataError(f"{path} leads out of {folder}, to {place}: put the file itself into the folder")
    if status is not None and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise DataError(f"{path} is neither a file nor a folder, but a device or a pipe")
    return path


def require_own_files(folder: Path) -> None:
    """Raise if a folder has links that lead out of it, or other than files and folders, on two levels."""
    inner = [Path(entry) for entry in _entries(folder) if entry.is_dir(follow_symlinks=False)]
    for level in (folder, *inner):
        for entry in _entries(level):
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                try:
                    require_inside(Path(entry), folder)
                except DataError as error:
                    raise RunError(str(error)) from None


def _entries(folder: Path) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:  # reported by what reads it
        return []


def require_writable(folder: Path) -> None:
    """Raise if a folder, which need not exist yet, cannot be written to; nothing is left there."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    try:
        if existing != folder:
            with suppress(FileNotFoundError):
                folder.stat()  # for a name that is too long
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


def most_expanded(size: int) -> int:
    """The most bytes that a compressed file of this size may expand to.

    Example:
        >>> most_expanded(1_000_000) // 2**20
        540
    """
    return _FREE_BYTES + MAX_EXPANSION * size


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
