"""Folders with a data set that is already split into train, valid and test.

Each split is either one table, `train.tsv` and `valid.tsv`, or one file of lines for each column, `train.de` and
`train.en`. For text it is one or several files, such as `wiki.train.tokens`. Each file may be compressed.

Labeled texts may also be folders, one for each label, with a file for each text: `train/pos/1.txt`, `train/neg/2.txt`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from regard.data.formats.files import AnyPath, format_suffix, uncompressed_name
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
UNLABELED_NAMES = ("unsup", "unsupervised", "unlabeled", "unlabelled", "unlab")
"""Names of a folder beside those of labels whose texts have no label."""
_TEXT_SUFFIXES = (".txt", ".text", ".eml")
_FEWEST_TEXTS, _NEARLY_ALL, _SEARCHED_FILES = 10, 0.9, 1_000
"""The fewest texts of folders of labels, and their share of the first files of each: folders of programs and of
documentation have few files that are texts by their names."""
_START_BYTES = 1 << 10


def files_by_split(folder: AnyPath, columns: Sequence[str] | None = None) -> dict[str, tuple[Path, ...]]:
    """The files of each split in a folder, under `train`, `valid` and `test`.

    The validation split may be called `valid`, `val`, `dev` or `validation`. The test split is `test`, or else the
    first name that begins with it, such as `test_2016_flickr`. A part between stem and suffix makes it another file:
    `val.lc.norm.tok.de` is not the `de` of `val`. A file takes precedence over its compressed copy.

    Args:
        folder: The folder; folders in it are searched for labeled texts only, and are then the only path of a split.
        columns: For aligned files, their suffixes, in the order wanted. By default, two suffixes of `train` are taken
            in alphabetical order.

    Raises:
        DataError: If there are no training files, or if they are ambiguous.
    """
    folder = Path(folder)
    if labeled := label_folders_by_split(folder):
        return {split: (path,) for split, path in labeled.items()}
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


def label_folders_by_split(folder: Path) -> dict[str, Path]:
    """The folders under `train`, `valid` and `test` that contain a folder of texts for each label; none in others.

    A split is a folder that has its name, alone or as a part, such as `news-train`; without one, the labels are those
    of the folder itself, or of the only folder in it. Files beside the folders of labels, such as a list of addresses,
    are not used; if one of them is named as training data, or if they are the larger part, they are the data set.
    """
    if not os.path.isdir(folder):
        return {}
    files, folders = _files_by_name(folder), _folders(folder)
    if any("train" in _parts(name) for name in files):
        return {}
    splits: dict[str, Path] = {}
    for inner in folders:
        if (split := next((_SPLIT_OF[part] for part in _parts(inner.name) if part in _SPLIT_OF), None)) is not None:
            splits.setdefault(split, inner)
    if "train" in splits:
        found = {split: inner for split, inner in splits.items() if _has_label_folders(inner)}
        return found if "train" in found else {}
    if len(folders) == 1 and not any(map(_is_text_name, files)):
        return label_folders_by_split(folders[0])
    return {"train": folder} if _has_label_folders(folder) else {}


def label_folders(folder: Path) -> list[Path]:
    """The folders of labels in a folder: all but hidden ones and those whose texts have no label."""
    return [inner for inner in _folders(folder) if inner.name.lower() not in UNLABELED_NAMES]


def text_paths(folder: Path) -> Iterator[Path]:
    """The files of texts in a folder, at any depth and in a fixed order."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place) / name for name in sorted(names) if _is_text_name(name))


def _has_label_folders(folder: Path) -> bool:
    """Whether a folder contains at least two folders of labels, with nothing but texts in them."""
    texts = [list(islice(text_paths(inner), _SEARCHED_FILES)) for inner in label_folders(folder)]
    num_texts, num_beside = sum(map(len, texts)), sum(map(_is_text_name, _files_by_name(folder)))
    if len(texts) < 2 or not all(texts) or num_texts < max(_FEWEST_TEXTS, 2 * len(texts), num_beside):
        return False
    num_files = sum(
        sum(1 for _ in islice((name for _, _, names in os.walk(inner) for name in names), _SEARCHED_FILES))
        for inner in label_folders(folder)
    )
    return num_texts >= _NEARLY_ALL * num_files and all(_begins_as_text(some[0]) for some in texts)


def _is_text_name(name: str) -> bool:
    """Whether a file is a text by its name: with the suffix of one, or without letters as a suffix, as `54321`."""
    suffix = format_suffix(name)
    return not _NOT_DATA.match(name) and (suffix in _TEXT_SUFFIXES or not suffix[1:].isalpha())


def _begins_as_text(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return b"\0" not in file.read(_START_BYTES)
    except OSError:
        return False


def _folders(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))


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
        "or a folder of images or of texts for each label"
    )
    raise DataError(f"{folder} has nothing to train on: it needs {needed}")


def _train_files(suffixes: Sequence[str]) -> str:
    return format_names([f"train.{suffix}" for suffix in suffixes])
