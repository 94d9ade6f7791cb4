"""Folders with a data set that is already split into train, valid and test.

Each split is either one table, `train.tsv` and `valid.tsv`, or one file of lines for each column, `train.de` and
`train.en`. For text it is one or several files, such as `wiki.train.tokens`. Each file may be compressed.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from regard.data.formats.files import AnyPath, uncompressed_name
from regard.data.formats.layouts import FORMAT_OF_SUFFIX
from regard.data.formats.messages import format_names
from regard.errors import DataError
from regard.files import require_inside

TABLE_SUFFIXES = tuple(suffix.removeprefix(".") for suffix in FORMAT_OF_SUFFIX if suffix != ".xml")
"""Suffixes of tables, before that of a compression."""

VALID_NAMES = ("valid", "val", "dev", "validation")
"""Names of the validation split."""
_SPLIT_OF = {"train": "train", **dict.fromkeys(VALID_NAMES, "valid"), "test": "test"}
_NOT_DATA = re.compile(r"\.|readme|licen[cs]e", re.IGNORECASE)


def files_by_split(folder: AnyPath, columns: Sequence[str] | None = None) -> dict[str, tuple[Path, ...]]:
    """The files of each split in a folder, under `train`, `valid` and `test`.

    The validation split may be called `valid`, `val`, `dev` or `validation`. The test split is `test`, or else the
    first name that begins with it, such as `test_2016_flickr`. A part between stem and suffix makes it another file:
    `val.lc.norm.tok.de` is not the `de` of `val`. A file takes precedence over its compressed copy.

    Args:
        folder: The folder; folders in it are not searched.
        columns: For aligned files, their suffixes, in the order wanted. By default, two suffixes of `train` are taken
            in alphabetical order.

    Raises:
        DataError: If there are no training files, or if they are ambiguous.
    """
    folder = Path(folder)
    files = _files_by_name(folder)
    suffixes = _suffixes(folder, files, columns)
    stems = [name.removesuffix(f".{suffixes[0]}") for name in files if name.endswith(f".{suffixes[0]}")]
    stems = sorted(
        stem for stem in stems if "." not in stem and all(f"{stem}.{suffix}" in files for suffix in suffixes)
    )
    candidates = {
        "train": ["train"],
        "valid": [stem for stem in VALID_NAMES if stem in stems],
        "test": [stem for stem in stems if stem.startswith("test")],
    }
    return {
        split: tuple(files[f"{found[0]}.{suffix}"] for suffix in suffixes)
        for split, found in candidates.items()
        if found
    }


def text_files_by_split(folder: AnyPath) -> dict[str, tuple[Path, ...]]:
    """The files of each split in a folder of text, under `train`, `valid` and `test`.

    A split is named by a part of the file name between dots, hyphens and underscores, as in `ptb.train.txt` and
    `wiki.valid.tokens`, and may consist of several files, such as `train-1.txt` and `train-2.txt`. Without a file named
    so, all files that belong to no other split are for training, such as those in a folder of essays. Hidden files and
    those called README or LICENSE are ignored.

    Raises:
        DataError: If there are no training files, or if they are ambiguous.
    """
    folder = Path(folder)
    by_split: dict[str, dict[str, Path]] = {"train": {}, "valid": {}, "test": {}}
    others: dict[str, Path] = {}
    for name, path in _files_by_name(folder).items():
        if not _NOT_DATA.match(name):
            split = next((_SPLIT_OF[part] for part in _parts(name) if part in _SPLIT_OF), None)
            (others if split is None else by_split[split])[name] = path
    if not by_split["train"]:
        if not others:
            raise DataError(
                f"{folder} has nothing to train on: it needs files of text, such as train.txt and valid.txt"
            )
        by_split["train"] = others
    elif len({_kind(name) for name in by_split["train"]}) > 1:
        raise DataError(f"{folder} has more than one text to train on: {format_names(list(by_split['train']))}")
    kind = _kind(next(iter(by_split["train"])))
    alike = {split: [found[name] for name in found if _kind(name) == kind] for split, found in by_split.items()}
    return {
        split: tuple((split != "train" and alike[split]) or found.values())
        for split, found in by_split.items()
        if found
    }


def _parts(name: str) -> list[str]:
    return re.split(r"[._-]", name.lower())


def _kind(name: str) -> tuple[str, ...]:
    """The parts of a name other than the split and numbers, which are equal for files of one data set."""
    return tuple(part for part in _parts(name) if part not in _SPLIT_OF and not part.isdigit())


def _files_by_name(folder: Path) -> dict[str, Path]:
    try:
        paths = sorted(require_inside(path, folder) for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror or error}") from error
    files: dict[str, Path] = {}
    for path in paths:  # sorted, so that a file comes before its compressed copy
        files.setdefault(uncompressed_name(path), path)
    return files


def _suffixes(folder: Path, files: dict[str, Path], columns: Sequence[str] | None) -> tuple[str, ...]:
    if columns is not None and all(f"train.{column}" in files for column in columns):
        return tuple(columns)
    there = sorted(name.removeprefix("train.") for name in files if name.startswith("train."))
    tables = [suffix for suffix in there if suffix in TABLE_SUFFIXES]
    texts = [suffix for suffix in there if "." not in suffix and suffix not in (*TABLE_SUFFIXES, "txt")]
    if len(tables) > 1:
        raise DataError(f"{folder} has more than one table to train on: {_train_files(tables)}")
    if tables:
        return (tables[0],)
    if columns is not None and texts:
        missing = [column for column in columns if column not in texts]
        raise DataError(f"{folder} has no {_train_files(missing)}; it has {_train_files(texts)}")
    if len(texts) > 2:
        raise DataError(
            f"{folder} has {len(texts)} files to train on and the columns are not specified: {format_names(texts)}"
        )
    if texts:
        return tuple(texts)
    if "txt" in there:
        return ("txt",)
    needed = (
        "train.tsv, .csv, .jsonl, .parquet or .txt, one file for each column, such as train.de and train.en, "
        "or a folder of images for each label"
    )
    raise DataError(f"{folder} has nothing to train on: it needs {needed}")


def _train_files(suffixes: Sequence[str]) -> str:
    return format_names([f"train.{suffix}" for suffix in suffixes])
