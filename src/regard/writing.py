"""Files that are written whole or not at all."""

import os
from pathlib import Path

from regard.errors import DeviceError


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`, all of it or none."""
    part = part_of(path)
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        if isinstance(error, OSError):
            _forget(part)
            raise DeviceError(
                f"cannot write {path} ({len(data):,} bytes): {error.strerror or error}; what was there stays"
            ) from None
        part.unlink(missing_ok=True)
        raise


def part_of(path: Path) -> Path:
    """Where a file stands until it is whole."""
    return path.with_name(f"{path.name}.part")


def _forget(part: Path) -> None:
    """Take away what was begun; where its folder cannot be written to, nothing was."""
    try:
        part.unlink(missing_ok=True)
    except OSError:
        return
