"""The `[data]` settings: where the rows are, how they are read and how they are split."""

from typing import Literal, Self

from pydantic import Field, model_validator

from regard.data.formats.encodings import check_encoding
from regard.errors import ConfigError
from regard.settings import Settings


class DataConfig(Settings):
    """Which rows are used for training, validation and test."""

    train: list[str] = Field(default_factory=list)
    """The training data: a file, two aligned files, a folder, or the name of a built-in data set."""
    valid: list[str] = Field(default_factory=list)
    """A file (or two aligned files) of validation rows. Unset: part of the training rows."""
    test: list[str] = Field(default_factory=list)
    """A file (or two aligned files) of test rows. Unset: part of the training rows, unless a validation file is
    given."""
    columns: list[str] = Field(default_factory=list)
    """The columns to use, by name or by position from 1, in the order in which the task needs them. Unset: inferred
    and reported."""
    format: str | None = None
    """tsv, csv, jsonl, parquet, xlsx, fasta, aligned, semeval or semeval-terms. Unset: inferred from the file's name
    and first lines."""
    encoding: str | None = None
    """The encoding of text files, such as utf-16 or windows-1252. Unset: detected, and reported if it is not UTF-8."""
    header: bool | None = None
    """Whether the first row of a TSV, CSV or Excel file has the names of the columns. Unset: inferred and reported."""
    outside_images: bool = False
    """Read images whose paths in a table lead out of its folder. Only for a table that you trust: it could name any
    image of this machine."""
    skip_bad: bool | None = None
    """Skip rows that cannot be read, or whose text or label is empty, and report how many; false: stop at them.
    Unset: skip them, with a warning, if they are at most 5 % of the rows."""
    num_rows: int | None = Field(default=None, ge=1)
    """The number of rows to generate of a built-in data set."""
    train_rows: int | None = Field(default=None, ge=1)
    """Train on this many of the training rows only, chosen by hash, or the last ones with `order`: a smaller number
    is always a subset of a larger one."""
    shots: int | None = Field(default=None, ge=1)
    """Train on this many rows of each label only; on this many rows in all where rows have no labels."""
    shot_seed: int = Field(default=0, ge=0)
    """With `shots`: another seed draws other rows. For one seed, fewer are a subset of more."""
    splits: list[float] = Field(default_factory=list)
    """Shares of training, validation and test rows. Unset: 5 % each for the last two, at most 2,000 rows or 1,000,000
    characters of running text; of fewer than 4,000 rows, 200 or a tenth, whichever is less. With `shots`, 40 % for the
    test."""
    split: Literal["random", "scaffold", "similarity"] | None = None
    """How rows are split: random, by a hash of the first text; scaffold, molecules with one ring system in one set, the
    largest groups for training (MoleculeNet); similarity, clusters of similar molecules or biological sequences. Unset:
    scaffold for properties of molecules, otherwise random."""
    split_seed: int = 0
    """Another seed gives another split, and other rows of a built-in data set."""
    group: str | int | None = None
    """A column, by name or by position from 1: rows with the same value in it are in the same set, such as those of
    one author; `title` for SQuAD questions, `document` for tagged sentences. Unset: rows with the same first text
    are in the same set."""
    stratify: bool = False
    """Split within each label, so that its share is the same in every set; for rows with one label each."""
    order: str | int | None = None
    """Split by time: the first rows are for training, the next for validation, the last for the test. A column of
    numbers or of dates such as 2024-05-31 or 2024-05-31T12:00; or `rows` for the order of the file."""

    @model_validator(mode="after")
    def _splits_are_shares(self) -> Self:
        if self.splits and (len(self.splits) != 3 or min(self.splits) < 0 or abs(sum(self.splits) - 1) > 1e-6):
            raise ConfigError(f"data.splits must be three shares that sum to 1, got {self.splits}")
        if self.splits and self.splits[0] <= 0:
            raise ConfigError(f"data.splits must have a positive share of training rows, got {self.splits}")
        return self

    @model_validator(mode="after")
    def _encoding_is_known(self) -> Self:
        if self.encoding is not None:
            check_encoding(self.encoding)
        return self

    @model_validator(mode="after")
    def _ways_to_split_are_compatible(self) -> Self:
        if self.order is not None and (self.group is not None or self.stratify):
            other = f"data.group = {self.group!r}" if self.group is not None else "data.stratify"
            raise ConfigError(
                f"a split by time cannot also be by group or label, got data.order = {self.order!r} and {other}"
            )
        return self

    @model_validator(mode="after")
    def _structure_is_the_only_way_to_split(self) -> Self:
        others = {"group": self.group, "order": self.order, "stratify": self.stratify or None, "shots": self.shots}
        used = [f"data.{name}" for name, value in others.items() if value is not None]
        if self.split in ("scaffold", "similarity") and used:
            raise ConfigError(f"data.split = {self.split!r} cannot be combined with {' and '.join(used)}")
        return self

    @model_validator(mode="after")
    def _shot_seed_needs_shots(self) -> Self:
        if self.shot_seed and self.shots is None:
            raise ConfigError(f"data.shot_seed selects the rows of data.shots, which is unset, got {self.shot_seed}")
        return self
