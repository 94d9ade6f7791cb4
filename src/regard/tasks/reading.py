"""What tasks share that read a text and answer about it as a whole: batches, and rows of one text or two.

Dimensions: `batch` texts, `time` positions, `outputs` of the model for each text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import StoredBatches, batches_by_length, pad
from regard.data.coding import encode_texts
from regard.data.columns import listing
from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.data.sources import Rows, Source, open_source
from regard.data.store import TokenStore
from regard.errors import DataError
from regard.logging import log_info
from regard.text.tokenizer import Tokenizer

BATCH_TOKENS = 8_192
"""Tokens read together when scoring."""
PAIR_NAMES = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("question", "sentence"), ("question", "passage"),
)  # fmt: skip
"""What the two texts of a pair are called, where a table says it."""
SEPARATOR = "\t"
"""Between the two texts of a pair, where they are written as one."""

MakeBatch = Callable[[list[NDArray[np.int64]], list[NDArray[np.int64]]], "TextsBatch"]
"""Makes a batch of texts, and of what is to be said of each as it was stored."""


@dataclass(frozen=True)
class TextsBatch:
    """Texts, and what is to be said of each."""

    source: Int[Tensor, "batch time"]
    lengths: Int[Tensor, " batch"] | None
    """None where none is padded."""
    segments: Int[Tensor, "batch time"]
    """Which text of its row each position belongs to."""
    targets: Shaped[Tensor, "batch ..."]
    weights: Float[Tensor, " batch"]
    """How much each row counts: 0 for one that only fills a shape."""
    num_targets: int
    num_tokens: int

    def tensors(self) -> list[Tensor | None]:
        return [self.source, self.lengths, self.segments, self.targets, self.weights]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "TextsBatch":
        source, lengths, segments, targets, weights = tensors
        assert source is not None
        assert segments is not None
        assert targets is not None
        assert weights is not None
        return replace(self, source=source, lengths=lengths, segments=segments, targets=targets, weights=weights)


def texts_of(
    data: Prepared, make: MakeBatch, *, batch_tokens: int, seed: int, has_few_shapes: bool
) -> StoredBatches[TextsBatch]:
    """What to train on: `make` is handed the texts of some rows and what is to be said of each."""
    store = data.train
    assert isinstance(store, TokenStore)
    fill = partial(filled, padding=data.tokenizer.pad) if has_few_shapes else None
    return StoredBatches(store, lambda rows: _made(store, rows, make), fill, batch_tokens=batch_tokens, seed=seed)


def held_out_texts(data: Prepared, make: MakeBatch) -> Iterator[TextsBatch]:
    """All of the validation rows, once."""
    store = data.valid
    assert isinstance(store, TokenStore)
    for rows in batches_by_length(store.lengths(), batch_tokens=BATCH_TOKENS):
        yield _made(store, rows, make)


def _made(store: TokenStore, rows: NDArray[np.int64], make: MakeBatch) -> TextsBatch:
    return make(store.sequences(0, rows), store.sequences(1, rows))


def make_batch(
    texts: list[NDArray[np.int64]], targets: Tensor, tokenizer: Tokenizer, weights: Tensor | None = None
) -> TextsBatch:
    """Texts as one rectangle; unset, all rows count alike."""
    lengths = [len(text) for text in texts]
    source = torch.from_numpy(pad(texts, tokenizer.pad))
    return TextsBatch(
        source=source,
        lengths=torch.tensor(lengths) if min(lengths) < max(lengths) else None,
        segments=segments_of(source, tokenizer.end),
        targets=targets,
        weights=torch.ones(len(texts)) if weights is None else weights,
        num_targets=len(texts),
        num_tokens=sum(lengths),
    )


def segments_of(source: Int[Tensor, "batch time"], end: int) -> Int[Tensor, "batch time"]:
    """0 up to the first end, 1 behind it, and so on for padding too.

    Example:
        >>> segments_of(torch.tensor([[1, 7, 2, 8, 9, 2]]), end=2).tolist()
        [[0, 0, 0, 1, 1, 1]]
    """
    ends = (source == end).long()
    return (ends.cumsum(dim=1) - ends).clamp(max=1)


def filled(batch: TextsBatch, num_rows: int, length: int, padding: int) -> TextsBatch:
    """The same batch, padded to so many rows of so many tokens; added rows repeat the first and do not count."""
    more = num_rows - batch.source.size(0)
    lengths = batch.lengths if batch.lengths is not None else torch.full((batch.source.size(0),), batch.source.size(1))

    def with_rows(x: Tensor) -> Tensor:
        return torch.cat([x, x[:1].expand(more, *x.shape[1:])])

    def wide(x: Tensor, value: int) -> Tensor:
        return with_rows(F.pad(x, (0, length - x.size(1)), value=value))

    return replace(
        batch,
        source=wide(batch.source, padding),
        lengths=with_rows(lengths),
        segments=wide(batch.segments, 0),
        targets=with_rows(batch.targets),
        weights=F.pad(batch.weights, (0, more)),
    )


def open_rows(config: DataConfig, rows: Rows | None, last: str) -> tuple[Source, DataConfig, tuple[str, ...]]:
    """Rows of one text or two and a `last` column, the settings with their columns, and what each column is."""
    roles = roles_of(config, rows, last)
    if rows is None:
        config = with_pair_columns(config, roles)
    return open_source(config, roles, rows), config, roles


def read_rows(config: DataConfig, rows: Rows | None, last: str) -> tuple[list[tuple[str, ...]], str]:
    """Such rows as text, and the hash of their content."""
    source, _, _ = open_rows(config, rows, last)
    for guess in source.train.guesses:
        log_info(guess)
    return [row.values for row in source.train], source.content_hash()


def roles_of(config: DataConfig, rows: Rows | None, last: str) -> tuple[str, ...]:
    """What a row is made of: one text or two, and what is to be said of them."""
    single, pair = ("text", last), ("text", "other", last)
    if config.columns or rows is not None:
        width = len(config.columns) or (len(rows[0]) if rows else 2)
        if width not in (2, 3):
            raise DataError(f"a row needs one text or two and a {last}, got {width} columns")
        return single if width == 2 else pair
    names = {name.rpartition(".")[2].lower() for name in open_source(config, single).train.names}
    return pair if any(set(both) <= names for both in PAIR_NAMES) else single


def with_pair_columns(config: DataConfig, roles: Sequence[str]) -> DataConfig:
    """The settings with the columns of a pair by the names that the table has, where none are set."""
    if config.columns or len(roles) != 3 or not config.train:
        return config
    table = open_source(config, (roles[0], roles[-1])).train
    names = {name.rpartition(".")[2].lower(): name for name in table.names}
    both = next((pair for pair in PAIR_NAMES if set(pair) <= set(names)), None)
    if both is None:
        return config
    labels = [name for plain, name in names.items() if plain in _LABEL_NAMES]
    if not labels:
        raise DataError(f"which column holds the {roles[-1]}? The table has {listing(table.names)}")
    return config.changed(columns=[names[both[0]], names[both[1]], labels[0]])


_LABEL_NAMES = ("label", "gold_label", "labels", "class", "category", "score", "similarity", "target", "is_duplicate")


def encode_inputs(inputs: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[NDArray[np.int64]]:
    """Inputs as rows are encoded; the two texts of a pair are parted by a tab."""
    encoded = (encode_texts([text.split(SEPARATOR)], tokenizer, max_length)[0] for text in inputs)
    return [np.array(ids, np.int64) for ids in encoded]
