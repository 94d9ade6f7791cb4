r"""Embeddings: vectors of texts, such that those of texts that mean the same lie near one another.

Rows are pairs of texts that belong together. Each text is to find its own partner
among those of all rows of a batch, by the softmax of their cosines divided by a
temperature $\tau$; and each partner its text:

$$ -\tfrac12 \log \frac{e^{x_i \cdot y_i / \tau}}{\sum_j e^{x_i \cdot y_j / \tau}}
   -\tfrac12 \log \frac{e^{x_i \cdot y_i / \tau}}{\sum_j e^{x_j \cdot y_i / \tau}} $$

Rows with the same text on a side are right answers to one another, and are left
out of the sums of one another.

Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply" (2017), section 4.
https://arxiv.org/abs/1705.00652
van den Oord et al., "Representation Learning with Contrastive Predictive Coding" (2018), equation 4, for its name,
InfoNCE. https://arxiv.org/abs/1807.03748
Reimers & Gurevych, "Sentence-BERT" (2019), for means over the states of an encoder. https://arxiv.org/abs/1908.10084

Dimensions: `batch` rows, `rows` of all batches, `model` width.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import StoredBatches, batches_by_length
from regard.data.coding import Columns, Learned, Row, encode_texts, joined
from regard.data.config import DataConfig
from regard.data.preparation import Prepared, prepare
from regard.data.sources import Rows, open_source
from regard.data.store import TokenStore
from regard.errors import ConfigError
from regard.evaluation.retrieval import rank_matches, score_ranks
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.logging import log_info, log_warning
from regard.models.families import AnyConfig, AnyModel, longest_sequence
from regard.models.heads import Embedder, HeadConfig
from regard.tasks.objective import PLAIN, Objective
from regard.tasks.reading import BATCH_TOKENS, TextsBatch, filled, make_batch
from regard.tasks.task import Likelihoods, Prediction, moved
from regard.tasks.translation import ROLES
from regard.text.tokenizer import Tokenizer

_COMPARED_AT_ONCE = 1 << 22
"""Cosines that are held at once when rows are scored."""
_SAMPLES = 200


@runtime_checkable
class EmbedsTexts(Protocol):
    """A model that has a vector for a whole text."""

    body: AnyModel

    def embed(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch model"]:
        """The vector of each text, of any length."""
        ...


@dataclass(frozen=True)
class MatchBatch:
    """Texts and their partners; the targets of either are numbers that the same texts share."""

    text: TextsBatch
    other: TextsBatch
    num_targets: int

    @property
    def num_tokens(self) -> int:
        return self.text.num_tokens + self.other.num_tokens

    def tensors(self) -> list[Tensor | None]:
        return [*self.text.tensors(), *self.other.tensors()]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "MatchBatch":
        half = len(tensors) // 2
        text, other = self.text.with_tensors(tensors[:half]), self.other.with_tensors(tensors[half:])
        return replace(self, text=text, other=other)


@dataclass(frozen=True)
class Ranks(Likelihoods):
    """How probable the model holds the partner of each text among all, and what rank it gives it."""

    ranks: tuple[int, ...] = ()


class MatchCoding:
    """Two texts, each a column of its own between a start and an end."""

    columns: tuple[str, ...] = ("text", "other")

    def __init__(self, *, max_length: int) -> None:
        self._max_length = max_length

    def see(self, row: Row) -> None:
        """There is nothing to learn."""

    def texts(self, row: Row) -> Sequence[str]:
        return row

    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Columns:
        return [encode_texts([(row[side],) for row in rows], tokenizer, self._max_length) for side in (0, 1)]

    def learned(self) -> Learned:
        return Learned()


class Embedding:
    """Pairs of texts that belong together, by a model that reads."""

    name = "embedding"
    description = "vectors of texts, near where these mean the same"
    has_answers = False

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        return prepare(open_source(config, ROLES, rows), config, ROLES, MatchCoding(max_length=config.max_length))

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = open_source(config, ROLES, rows)
        for guess in source.train.guesses:
            log_info(guess)
        return [row.values for row in source.train], source.content_hash()

    def question(self, row: Sequence[str]) -> str:
        return row[0]

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> Embedder:
        return Embedder(config, head or HeadConfig(), tokenizer.vocab_size)

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> StoredBatches[MatchBatch]:
        store, tokenizer = data.train, data.tokenizer
        assert isinstance(store, TokenStore)

        def fill(batch: MatchBatch, num_rows: int, length: int) -> MatchBatch:
            text, other = (filled(side, num_rows, length, tokenizer.pad) for side in (batch.text, batch.other))
            return replace(batch, text=text, other=other)

        make = partial(collate, store, tokenizer=tokenizer)
        return StoredBatches(store, make, fill if has_few_shapes else None, batch_tokens=batch_tokens, seed=seed)

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[MatchBatch]:
        assert isinstance(data.valid, TokenStore)
        for rows in batches_by_length(data.valid.lengths(), batch_tokens=BATCH_TOKENS):
            yield collate(data.valid, rows, data.tokenizer)

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[MatchBatch]:
        coding = MatchCoding(max_length=config.max_length)
        texts, others = ([np.array(ids, np.int64) for ids in side] for side in coding.encode(rows, tokenizer))
        lengths = [max(len(text), len(other)) for text, other in zip(texts, others, strict=True)]
        for chosen in batches_by_length(lengths, batch_tokens=BATCH_TOKENS):
            yield match([texts[row] for row in chosen], [others[row] for row in chosen], tokenizer)

    def loss(self, model: Embedder, batch: MatchBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """How improbable it is that text and partner find each other, summed over the rows."""
        if objective.label_smoothing or objective.consistency:
            raise ConfigError(
                "embeddings are learned without train.label_smoothing and train.consistency, "
                f"got {objective.label_smoothing} and {objective.consistency}"
            )
        texts, others = (_vectors(model, side) for side in (batch.text, batch.other))
        text_numbers, other_numbers, weights = batch.text.targets, batch.other.targets, batch.text.weights
        is_same = (text_numbers[:, None] == text_numbers) | (other_numbers[:, None] == other_numbers)
        is_itself = torch.eye(len(weights), dtype=torch.bool, device=weights.device)
        is_left_out = (is_same | (weights == 0)) & ~is_itself
        with torch.autocast(weights.device.type, enabled=False):  # bfloat16 has too few digits for cosines
            losses = match_losses(texts, others, is_left_out, model.temperature)
        return (losses * weights).sum()

    @torch.no_grad()
    def negative_log_likelihoods(self, model: Embedder, batches: Iterator[MatchBatch], device: torch.device) -> Ranks:
        """Of each row among those of all batches, however these are cut."""
        found = [(batch.text.targets, batch.other.targets, *_both(model, moved(batch, device))) for batch in batches]
        text_numbers, other_numbers, texts, others = (torch.cat(parts) for parts in zip(*found, strict=True))
        losses: list[float] = []
        rows = torch.arange(len(texts))
        for some in rows.split(max(1, _COMPARED_AT_ONCE // len(texts))):
            is_same = text_numbers[some, None] == text_numbers
            is_same |= other_numbers[some, None] == other_numbers
            is_left_out = is_same & (some[:, None] != rows)
            one, other = (
                _one_way(own[some], against, is_left_out, some, model.temperature)
                for own, against in ((texts, others), (others, texts))
            )
            losses += ((one + other) / 2).tolist()
        twins = torch.stack([text_numbers, other_numbers]).numpy()
        ranks = rank_matches(texts.numpy(), others.numpy(), twins=twins)
        return Ranks(losses, [1] * len(losses), ranks=tuple(ranks.tolist()))

    def writer(
        self, model: Embedder, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "VectorWriter":
        return VectorWriter(model, tokenizer, data or DataConfig())

    def samples(
        self, model: Embedder, tokenizer: Tokenizer, rows: Sequence[Sequence[str]], config: DataConfig
    ) -> list[dict[str, Any]]:
        """Texts, their partners, and what lies nearest to them among all partners; wrong ones first."""
        rows = rows[:_SAMPLES]
        texts, others = (embed_texts(model, tokenizer, [row[side] for row in rows], config) for side in (0, 1))
        nearest = (texts @ others.T).argmax(axis=1).tolist()
        found = [(row[0], row[1], rows[place][1]) for row, place in zip(rows, nearest, strict=True)]
        answers = [
            {"source": text, "target": other, "prediction": given, "right": given == other}
            for text, other, given in found
        ]
        return sorted(answers, key=lambda answer: answer["right"])

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "recall_at_1"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        assert isinstance(likelihoods, Ranks)
        return score_ranks(likelihoods.ranks)


class VectorWriter:
    """Answers a text with its vector, in numbers with a space between them."""

    def __init__(self, model: EmbedsTexts, tokenizer: Tokenizer, data: DataConfig) -> None:
        self._model, self._tokenizer, self._data = model, tokenizer, data

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        vectors = embed_texts(self._model, self._tokenizer, inputs, self._data)
        outputs = (" ".join(f"{number:.6g}" for number in vector.tolist()) for vector in vectors)
        return [Prediction(text, output) for text, output in zip(inputs, outputs, strict=True)]


@torch.inference_mode()
def embed_texts(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], config: DataConfig
) -> Float[np.ndarray, "texts model"]:
    """A vector of length 1 for each text, in float32: their products are cosines.

    Of a text with more than `config.max_length` tokens, or more than the model can read, the rest is not read, and
    that is said.
    """
    if not isinstance(model, EmbedsTexts):
        raise ConfigError(
            f"vectors come from models for embedding, masked text or classification, this is a {type(model).__name__}"
        )
    most = min(config.max_length, longest_sequence(model.body.config) or config.max_length)
    read = tokenizer.encode(texts)
    encoded = [np.array(joined([ids], tokenizer, most), np.int64) for ids in read]
    if num_long := sum(len(ids) > most - 2 for ids in read):
        log_warning(f"{num_long:,} of {len(texts):,} texts have more than {most - 2:,} tokens: the rest is not read")
    device = model.body.embedding.weight.device
    result = np.zeros((len(texts), model.body.config.model_dim), np.float32)
    for rows in batches_by_length([len(ids) for ids in encoded], batch_tokens=BATCH_TOKENS):
        nothing = torch.zeros(len(rows), dtype=torch.long)
        batch: TextsBatch = moved(make_batch([encoded[row] for row in rows], nothing, tokenizer), device)
        vectors = model.embed(batch.source, batch.lengths, batch.segments).float()
        result[rows] = F.normalize(vectors, dim=-1).cpu().numpy()
    return result


def collate(store: TokenStore, rows: NDArray[np.int64], tokenizer: Tokenizer) -> MatchBatch:
    """Rows of a store as one batch."""
    return match(store.sequences(0, rows), store.sequences(1, rows), tokenizer)


def match(texts: list[NDArray[np.int64]], others: list[NDArray[np.int64]], tokenizer: Tokenizer) -> MatchBatch:
    """Texts and their partners as rectangles."""
    text, other = (
        make_batch(side, torch.tensor([zlib.crc32(ids.tobytes()) for ids in side]), tokenizer)
        for side in (texts, others)
    )
    return MatchBatch(text, other, len(texts))


def match_losses(
    texts: Float[Tensor, "batch model"],
    others: Float[Tensor, "batch model"],
    is_left_out: Bool[Tensor, "batch batch"],
    temperature: float,
) -> Float[Tensor, " batch"]:
    """What each row costs, in both directions."""
    rows = torch.arange(len(texts), device=texts.device)
    one, other = (
        _one_way(own, against, is_left_out, rows, temperature) for own, against in ((texts, others), (others, texts))
    )
    return (one + other) / 2


def _one_way(
    queries: Float[Tensor, "some model"],
    candidates: Float[Tensor, "rows model"],
    is_left_out: Bool[Tensor, "some rows"],
    right: Int[Tensor, " some"],
    temperature: float,
) -> Float[Tensor, " some"]:
    scores = (queries @ candidates.T / temperature).masked_fill(is_left_out, -torch.inf)
    return F.cross_entropy(scores, right, reduction="none")


def _vectors(model: Embedder, side: TextsBatch) -> Float[Tensor, "batch model"]:
    vectors = model(side.source, side.lengths, side.segments)
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def _both(model: Embedder, batch: MatchBatch) -> tuple[Float[Tensor, "batch model"], Float[Tensor, "batch model"]]:
    """The vectors of both sides, where they need no room on a device."""
    return _vectors(model, batch.text).cpu(), _vectors(model, batch.other).cpu()
