"""Atomic file writes, and suffixes of output files."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from regard.errors import ConfigError, RunError, WriteError


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write `data`, whole or in parts, to `path`; after a crash the file is either complete or unchanged."""
    part, parts = partial_path(path), [data] if isinstance(data, bytes) else list(data)
    try:
        with open(part, "wb") as file:
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


def check_suffix(path: str | os.PathLike[str], suffixes: Sequence[str]) -> Path:
    """Returns `path`; a suffix that is not among `suffixes`, in any case, is an error."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"the file name must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}, got {path.name!r}")
    return path
