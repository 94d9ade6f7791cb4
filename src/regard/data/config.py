"""Settings of the data: where it is, how it is read, split and cut into tokens."""

from typing import Self

from pydantic import Field, model_validator

from regard.config import Settings
from regard.errors import ConfigError


class DataConfig(Settings):
    """Where the rows come from and how they become tokens."""

    train: list[str] = Field(default_factory=list)
    """The file, two aligned files or folder of rows to learn from, or the name of a built-in data set."""
    valid: list[str] = Field(default_factory=list)
    """A file (or two aligned ones) of rows to choose the model by; unset, part of the training rows."""
    test: list[str] = Field(default_factory=list)
    """A file (or two aligned ones) of rows to judge the chosen model by; unset, part of the training rows,
    unless a validation file is given."""
    columns: list[str] = Field(default_factory=list)
    """Source and target columns, by name or by position from 1; unset, they are guessed and said."""
    format: str | None = None
    """tsv, csv, jsonl, parquet or aligned; unset, told by the file's name and first lines."""
    header: bool | None = None
    """Whether the first row names the columns; unset, guessed and said."""
    skip_bad: bool = False
    """Go on without the rows that cannot be read, and say how many there were."""
    num_rows: int | None = Field(default=None, ge=1)
    """Rows to generate of a built-in data set."""
    train_rows: int | None = Field(default=None, ge=1)
    """Learn from so many of the training rows only, chosen by hash: fewer are always among more."""
    splits: list[float] = Field(default_factory=list)
    """Shares of train, validation and test rows; unset, 5 % each for the last two, at most 2,000 rows."""
    split_seed: int = 0
    """Another number gives another split, and other rows of a built-in data set."""
    tokenizer: str | None = None
    """bpe, unigram, characters, bytes or words, learned from the training rows; or the path of a tokenizer.json.
    Unset: bpe, but characters for the built-in dates."""
    vocab_size: int | None = Field(default=None, ge=5)
    """The most tokens in the vocabulary; unset, one for each 400 characters of data, 512 to 32,000."""
    max_length: int = Field(default=512, ge=1)
    """Training rows with more tokens than this on a side are left out, and counted."""

    @model_validator(mode="after")
    def _splits_are_shares(self) -> Self:
        if self.splits and (len(self.splits) != 3 or min(self.splits) < 0 or abs(sum(self.splits) - 1) > 1e-6):
            raise ConfigError(f"data.splits must be three shares that sum to 1, got {self.splits}")
        if self.splits and self.splits[0] <= 0:
            raise ConfigError(f"data.splits must leave rows to train on, got {self.splits}")
        return self
