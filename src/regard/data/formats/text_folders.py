"""Folders of texts: one folder for each label, with a file for each text.

A row is the content of a file, and the name of the folder that it is in.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from regard.data.formats.files import iter_blocks
from regard.data.formats.folders import label_folders, text_paths
from regard.data.formats.layouts import TABLE_FORMATS, Layout, ReadOptions, Record
from regard.errors import DataError
from regard.files import require_inside

TEXT_FOLDER_COLUMNS = ("text", "label")
_BLOCK = 1 << 16


def text_folder_layout(folder: Path, options: ReadOptions) -> Layout:
    """The layout of a folder that contains one folder of texts for each label."""
    read = partial(_read, folder, options.encoding)
    return Layout(format="folders", label=TABLE_FORMATS["folders"], names=TEXT_FOLDER_COLUMNS, read=read)


def labeled_paths(folder: Path) -> Iterator[tuple[Path, str]]:
    """The file of each text, and its label."""
    for inner in label_folders(folder):
        is_link = inner.is_symlink()
        for path in text_paths(inner):  # which resolves no links itself
            yield require_inside(path, folder) if is_link or path.is_symlink() else path, inner.name


def sample_texts(folder: Path, number: int, encoding: str | None) -> tuple[list[tuple[str, str]], bool]:
    """At most so many texts and their labels, spread over all labels, and whether these are all of them."""
    paths = list(labeled_paths(folder))
    every = max(1, -(-len(paths) // number))
    found: list[tuple[str, str]] = []
    for path, label in paths[::every]:
        with suppress(DataError):  # which is reported when the rows are read
            found.append((_text_of(path, encoding), label))
    return found, every == 1


def _read(folder: Path, encoding: str | None, picks: Sequence[int]) -> Iterator[Record]:
    for number, (path, label) in enumerate(labeled_paths(folder), 1):
        try:
            values = _text_of(path, encoding), label
            yield number, tuple(values[pick] for pick in picks), ""
        except DataError:
            yield number, (), f"a file that is not text ({path.relative_to(folder)})"


def _text_of(path: Path, encoding: str | None) -> str:
    if not path.stat().st_size:
        return ""  # which the table reports
    return "".join(iter_blocks(path, block_length=_BLOCK, encoding=encoding)).strip()
