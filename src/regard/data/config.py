"""Settings of the data: where it is, how it is read, split and cut into tokens."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from regard.errors import ConfigError
from regard.settings import Settings

Resampling = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


class PictureConfig(Settings):
    """How pictures are brought into one form, and cut into patches."""

    size: int = Field(default=32, ge=1, le=4_096)
    """Height and width that each picture is brought to, in pixels; a multiple of patch_size."""
    patch_size: int = Field(default=4, ge=1)
    """Height and width of the patches that it is cut into. A patch is to a picture what a token is to a text."""
    channels: Literal[1, 3] = 3
    """3: red, green and blue; 1: shades of grey."""
    center: list[float] = Field(default_factory=lambda: [0.5])
    """What is subtracted from pixels of 0 to 1: of each channel, or of all."""
    spread: list[float] = Field(default_factory=lambda: [0.5])
    """What they are divided by then."""
    resampling: Resampling = "bilinear"
    """How a picture is brought to its size: nearest, box, bilinear, hamming, bicubic or lanczos."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.size % self.patch_size:
            raise ConfigError(
                f"data.picture.size must be a multiple of its patch_size, got {self.size=} and {self.patch_size=}"
            )
        for name, numbers in (("center", self.center), ("spread", self.spread)):
            if len(numbers) not in (1, self.channels) or not all(map(math.isfinite, numbers)):
                raise ConfigError(
                    f"data.picture.{name} must be a finite number for all channels or one for each, got {numbers}"
                )
        if min(self.spread) <= 0.0:
            raise ConfigError(f"data.picture.spread must be above 0, got {self.spread}")
        return self

    @property
    def num_positions(self) -> int:
        """What a model reads of a picture: its patches, and a place of its own before them."""
        return 1 + (self.size // self.patch_size) ** 2

    @property
    def patch_dim(self) -> int:
        """Numbers of a patch."""
        return self.channels * self.patch_size**2


class DataConfig(Settings):
    """Where the rows come from and how they become tokens."""

    train: list[str] = Field(default_factory=list)
    """The file, two aligned files or folder of rows to learn from, or the name of a built-in data set; for running
    text one file, several, or a folder of them."""
    valid: list[str] = Field(default_factory=list)
    """A file (or two aligned ones) of rows to choose the model by; unset, part of the training rows."""
    test: list[str] = Field(default_factory=list)
    """A file (or two aligned ones) of rows to judge the chosen model by; unset, part of the training rows,
    unless a validation file is given."""
    columns: list[str] = Field(default_factory=list)
    """Source and target columns, or that of the text, by name or by position from 1; unset, they are guessed and
    said."""
    format: str | None = None
    """tsv, csv, jsonl, parquet, aligned, semeval or semeval-terms; unset, told by the file's name and first lines."""
    header: bool | None = None
    """Whether the first row names the columns; unset, guessed and said."""
    skip_bad: bool = False
    """Go on without the rows that cannot be read, and say how many there were."""
    documents: Literal["auto", "file", "lines"] = "auto"
    """How a plain text falls into documents: the whole file is one, or each line; auto: lines where the tokenizer is
    words, else the file."""
    isolate: bool | None = None
    """Whether a document is read by itself; unset: true for rows of a table and for many files, false where lines or
    one file run on."""
    window: int | None = Field(default=None, ge=2)
    """Positions of a training window of running text; unset, chosen for the model and the device."""
    stride: int | None = Field(default=None, ge=1)
    """How far apart the windows start that running text is scored by: less gives each token more to go by, and takes
    longer; unset, side by side."""
    labels: list[str] = Field(default_factory=list)
    """What rows are told apart by, in the order of their numbers; read off the training rows."""
    label_separator: str | None = Field(default=None, min_length=1)
    """What stands between the labels of a row that may have several; a row that has none holds this alone."""
    aspects: list[str] = Field(default_factory=list)
    """What of a text labels may be about, in the order of their numbers; read off the training rows."""
    ignored_labels: list[str] = Field(default_factory=lambda: ["conflict"])
    """Of aspects: rows with these labels are passed over; conflict is what SemEval calls good and bad at once."""
    center: float = 0.0
    """The mean of the numbers to be foretold; read off the training rows."""
    spread: float = Field(default=1.0, gt=0.0)
    """Their standard deviation; read off the training rows."""
    balance: bool = False
    """Whether all labels are to count alike, however many rows have them."""
    num_rows: int | None = Field(default=None, ge=1)
    """Rows to generate of a built-in data set."""
    train_rows: int | None = Field(default=None, ge=1)
    """Learn from so many of the training rows only, chosen by hash, or with order the last of them: fewer are always
    among more."""
    few: int | None = Field(default=None, ge=1)
    """Learn from so many of the training rows of each label only; where rows have no labels, from so many in all."""
    draw: int = Field(default=0, ge=0)
    """With few: another number draws other rows. Of one draw, fewer are always among more."""
    splits: list[float] = Field(default_factory=list)
    """Shares of train, validation and test rows; unset, 5 % each for the last two, at most 2,000 rows, or 1,000,000
    characters of running text; with few, 40 % for the test."""
    split_seed: int = 0
    """Another number gives another split, and other rows of a built-in data set."""
    group: str | int | None = None
    """A column, by name or by position from 1: rows with the same value in it are all in one set, such as those of one
    author; of SQuAD's questions title, of tagged sentences document. Unset, those with the same source are."""
    stratify: bool = False
    """Split within each label, so that its share is the same in every set; for rows with one label each."""
    order: str | int | None = None
    """Split by time: the first rows are for training, the next for validation, the last for the test. A column of
    numbers, or of dates as 2024-05-31 or 2024-05-31T12:00; or rows, for the order of the file."""
    tokenizer: str | None = None
    """bpe, unigram, characters, bytes or words, learned from the training rows; or the path of a tokenizer.json.
    Unset: bpe, but characters for the built-in dates."""
    vectors: str | None = None
    """A run folder, imported or trained, whose tokenizer and vectors of tokens the model starts with; vectors of
    another width are turned so that the first of their principal components are kept."""
    lowercase: bool = False
    """Read and write capitals as small letters: fewer words to learn, where rows are few and what is said matters more
    than how it is spelled."""
    vocab_size: int | None = Field(default=None, ge=5)
    """The most tokens in the vocabulary; unset, one for each 400 characters of data, 512 to 32,000; but of running
    text every character, or each of its 50,000 commonest words."""
    max_length: int = Field(default=512, ge=1)
    """Training rows with more tokens than this on a side are left out, and counted; of rows with a label the rest is
    not read."""
    mask_share: float = Field(default=0.15, gt=0.0, lt=1.0)
    """Of masked models: the share of tokens that are hidden, to be told from those around them."""
    mask_spans: bool = False
    """Of masked models: hide stretches of one to ten words, short ones more often, and not single words."""
    mask_words: bool = True
    """Of masked models: hide all tokens of a word together, or else each by itself."""
    picture: PictureConfig = Field(default_factory=PictureConfig)

    @model_validator(mode="after")
    def _splits_are_shares(self) -> Self:
        if self.splits and (len(self.splits) != 3 or min(self.splits) < 0 or abs(sum(self.splits) - 1) > 1e-6):
            raise ConfigError(f"data.splits must be three shares that sum to 1, got {self.splits}")
        if self.splits and self.splits[0] <= 0:
            raise ConfigError(f"data.splits must leave rows to train on, got {self.splits}")
        return self

    @model_validator(mode="after")
    def _ways_to_split_fit_together(self) -> Self:
        if self.order is not None and (self.group is not None or self.stratify):
            told = f"data.group = {self.group!r}" if self.group is not None else "data.stratify"
            raise ConfigError(
                "time alone decides where rows are split by it, and neither groups nor labels are kept together: "
                f"got data.order = {self.order!r} and {told}"
            )
        if self.stratify and self.label_separator is not None:
            raise ConfigError(
                "data.stratify is for rows with one label each, and data.label_separator says that they may have "
                f"several, got {self.label_separator!r}"
            )
        return self

    @model_validator(mode="after")
    def _draws_are_of_few(self) -> Self:
        if self.draw and self.few is None:
            raise ConfigError(f"data.draw says which rows data.few takes: set data.few, got {self.draw=}")
        return self
