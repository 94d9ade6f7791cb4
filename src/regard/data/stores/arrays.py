"""Arrays in files, read by memory mapping, and folders that are either complete or absent."""

import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray


def map_array(path: Path, dtype: np.dtype) -> NDArray:
    """Return the array stored in a file; pages are read from disk when they are accessed."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):  # rows are read in shuffled order: readahead would fill memory in vain
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=dtype)


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` at the end, or removed if an error is raised."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
        os.replace(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def flush_to_disk(file: IO[bytes]) -> None:
    """Flush a file and wait until its content is on disk."""
    file.flush()
    os.fsync(file.fileno())


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned type, of two or four bytes, for ids below `vocab_size`."""
    return np.dtype(np.uint16 if vocab_size <= np.iinfo(np.uint16).max + 1 else np.uint32)
