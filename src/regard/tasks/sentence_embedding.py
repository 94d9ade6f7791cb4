r"""Sentence embeddings: vectors of texts that are close where texts mean the same.

Rows are pairs of texts that belong together. Each text is to retrieve its own
partner among those of all rows of a batch, by the softmax of their cosines
divided by a temperature $\tau$; and each partner its text:

$$ -\tfrac12 \log \frac{e^{x_i \cdot y_i / \tau}}{\sum_j e^{x_i \cdot y_j / \tau}}
   -\tfrac12 \log \frac{e^{x_i \cdot y_i / \tau}}{\sum_j e^{x_j \cdot y_i / \tau}} $$

Rows with the same text on a side are right answers to each other, and are left
out of each other's sums.

Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply" (2017), section 4.
https://arxiv.org/abs/1705.00652
van den Oord et al., "Representation Learning with Contrastive Predictive Coding" (2018), equation 4, for its name,
InfoNCE. https://arxiv.org/abs/1807.03748
Reimers & Gurevych, "Sentence-BERT" (2019), for the mean of hidden states. https://arxiv.org/abs/1908.10084

Dimensions: `batch` rows, `rows` of all batches, `model` width.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from regard.baselines.baseline import Baseline
from regard.baselines.pairs import TextSimilarity, fit_similarity
from regard.data.batches import batches_by_length
from regard.data.codecs.codec import Codec
from regard.data.codecs.text import TextCodec
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source, open_source
from regard.errors import ConfigError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.retrieval import rank_matches
from regard.logging import log_warning
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig, Pool, build_body, default_pooling, pooled
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import Prediction, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.task import (
    EVALUATION_TOKENS,
    NUM_SAMPLES,
    PLAIN,
    Detection,
    EvaluationData,
    Likelihoods,
    Objective,
    to_device,
)
from regard.tasks.text import (
    TextBatch,
    TextSettings,
    TextTask,
    encode_texts,
    join_texts,
    make_text_batch,
    pad_text_batch,
)
from regard.text.tokenizer import Tokenizer

_COSINES_AT_ONCE = 1 << 22


@runtime_checkable
class TextEmbedder(Protocol):
    """A model with a vector for each text."""

    body: Any

    def embed(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch model"]:
        """The vector of each text, of any length."""
        ...


class SentenceEmbeddingSettings(TextSettings):
    """Settings of sentence embeddings."""

    name: str = "sentence-embedding"
    temperature: float = Field(default=0.05, gt=0.0)
    """Cosines are divided by it in training: the smaller, the more the nearest wrong partners count."""


@dataclass(frozen=True)
class MatchBatch:
    """Texts and their partners; the targets of each side are hashes that equal texts share."""

    text: TextBatch
    other: TextBatch
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


class SentenceEmbedding(TextTask[SentenceEmbeddingSettings]):
    """Pairs of texts that belong together, by an encoder."""

    name = "sentence-embedding"
    description = "sentence embeddings"
    other_names = ("embedding", "embeddings", "retrieval", "sentence-similarity", "feature-extraction")
    Settings = SentenceEmbeddingSettings
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec}
    store_columns = ("text", "other")
    metrics = ("recall_at_1", "recall_at_10", "mean_reciprocal_rank")
    has_targets = False
    supports_comparison = False
    head_kind = "vector"
    objectives = frozenset()

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.columns_given or not {"anchor", "positive"} <= set(summary.names):
            return None
        return Detection("columns anchor and positive", confidence=0.9)

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        return open_source(config, self.roles, rows)

    def texts_of(self, row: Sequence[str]) -> Sequence[str]:
        return row

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        most = self.settings.max_length
        return [encode_texts([(row[side],) for row in rows], self.tokenizer, most) for side in (0, 1)]

    def defaults(self, context: DefaultsContext) -> Defaults:
        return Defaults(super().defaults(context).train, head={"pooling": default_pooling(context.model)})

    def build(self, model: ModelConfig, head: HeadConfig) -> "SentenceEncoder":
        return SentenceEncoder(model, head, self.tokenizer.vocab_size)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> MatchBatch:
        text, other = (
            make_text_batch(side, torch.tensor([zlib.crc32(ids.tobytes()) for ids in side]), self.tokenizer)
            for side in columns
        )
        return MatchBatch(text, other, len(columns[0]))

    def pad_batch(self, batch: MatchBatch, num_rows: int, length: int) -> MatchBatch:
        text, other = (pad_text_batch(side, num_rows, length, self.tokenizer.pad) for side in (batch.text, batch.other))
        return replace(batch, text=text, other=other)

    def loss(self, model: "SentenceEncoder", batch: MatchBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """InfoNCE in both directions, summed over the rows."""
        texts, others = (_vectors(model, side) for side in (batch.text, batch.other))
        text_hashes, other_hashes, weights = batch.text.targets, batch.other.targets, batch.text.weights
        is_same = (text_hashes[:, None] == text_hashes) | (other_hashes[:, None] == other_hashes)
        is_itself = torch.eye(len(weights), dtype=torch.bool, device=weights.device)
        is_excluded = (is_same | (weights == 0)) & ~is_itself
        with torch.autocast(weights.device.type, enabled=False):  # bfloat16 has too few digits for cosines
            losses = match_losses(texts, others, is_excluded, self.settings.temperature)
        return (losses * weights).sum()

    @property
    def uses_whole_batch(self) -> bool:
        return True

    @torch.no_grad()
    def likelihoods(self, model: "SentenceEncoder", batches: Iterator[MatchBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each row's partner among those of all batches."""
        found = [
            (batch.text.targets, batch.other.targets, *_both(model, to_device(batch, device))) for batch in batches
        ]
        text_hashes, other_hashes, texts, others = (torch.cat(parts) for parts in zip(*found, strict=True))
        losses: list[float] = []
        rows = torch.arange(len(texts))
        for some in rows.split(max(1, _COSINES_AT_ONCE // len(texts))):
            is_same = text_hashes[some, None] == text_hashes
            is_same |= other_hashes[some, None] == other_hashes
            is_excluded = is_same & (some[:, None] != rows)
            one, other = (
                _one_way(own[some], against, is_excluded, some, self.settings.temperature)
                for own, against in ((texts, others), (others, texts))
            )
            losses += ((one + other) / 2).tolist()
        duplicates = torch.stack([text_hashes, other_hashes]).numpy()
        ranks = rank_matches(texts.numpy(), others.numpy(), duplicates=duplicates)
        return Likelihoods(losses, [1] * len(losses), ranks=tuple(ranks.tolist()))

    def predictor(self, model: Any, config: Any) -> "EmbeddingPredictor":
        return EmbeddingPredictor(self, model)

    def examples(self, data: EvaluationData) -> Examples:
        return Examples(extras={"ranks": data.likelihoods.ranks})

    def baseline(self, data: Prepared) -> Baseline:
        return fit_similarity([(row[0], row[1]) for row in data.train_rows()])

    def baseline_examples(self, baseline: Baseline, rows: Sequence[Sequence[str]]) -> Examples:
        """The ranks by the similarity of the texts; equal texts are left out of them, as they are of the model's."""
        assert isinstance(baseline, TextSimilarity)
        similarities = baseline.compare([row[0] for row in rows], [row[1] for row in rows])
        hashes = [[zlib.crc32(np.array(ids).tobytes()) for ids in side] for side in self.encode_rows(rows)]
        ranks = rank_matches(similarities, np.eye(len(rows)), duplicates=np.array(hashes))
        return Examples(extras={"ranks": tuple(ranks.tolist())})

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        """Texts, their partners, and the nearest of all partners; errors first."""
        rows = data.rows[:NUM_SAMPLES]
        texts, others = (self.embed(model, [row[side] for row in rows]) for side in (0, 1))
        nearest = (texts @ others.T).argmax(axis=1).tolist()
        found = [(row[0], row[1], rows[place][1]) for row, place in zip(rows, nearest, strict=True)]
        samples = [
            {"source": text, "target": other, "prediction": given, "right": given == other}
            for text, other, given in found
        ]
        return sorted(samples, key=lambda sample: sample["right"])

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(output="vector")

    def output_for(self, model: Any, text: str) -> str:
        return f"a vector of {len(self.embed(model, [text])[0])} numbers"

    def embed(self, model: Any, inputs: Sequence[str]) -> Float[np.ndarray, "inputs model"]:
        return embed_texts(model, self.tokenizer, inputs, max_length=self.settings.max_length)


class SentenceEncoder(nn.Module):
    """Token ids in, a vector of length 1 for each text out."""

    def __init__(self, config: ModelConfig, head: HeadConfig, vocab_size: int) -> None:
        super().__init__()
        self.body = build_body(config, vocab_size)
        self.pooling = Pool(config.model_dim, head.pooling)

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch model"]:
        return F.normalize(self.embed(source, lengths, segments), dim=-1)

    def embed(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch model"]:
        """The vector of each text, of any length."""
        return pooled(self.pooling, self.body.encode(source, lengths, segments=segments))


class EmbeddingPredictor:
    """The embedding of each text, as numbers separated by spaces."""

    def __init__(self, task: SentenceEmbedding, model: Any) -> None:
        self._task, self._model = task, model

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        vectors = self._task.embed(self._model, inputs)
        outputs = (" ".join(f"{number:.6g}" for number in vector.tolist()) for vector in vectors)
        return [Prediction(text, output) for text, output in zip(inputs, outputs, strict=True)]


@torch.inference_mode()
def embed_texts(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], *, max_length: int
) -> Float[np.ndarray, "texts model"]:
    """A vector of length 1 for each text, in float32: their products are cosines.

    Texts with more than `max_length` tokens, or more than the model can read, are truncated with a warning.
    """
    if not isinstance(model, TextEmbedder):
        raise ConfigError(f"a {type(model).__name__} has no embeddings of texts")
    most = min(max_length, model.body.config.max_positions or max_length)
    read = tokenizer.encode(texts)
    encoded = [np.array(join_texts([ids], tokenizer, most), np.int64) for ids in read]
    if num_long := sum(len(ids) > most - 2 for ids in read):
        log_warning(f"{num_long:,} of {len(texts):,} texts have more than {most - 2:,} tokens and are truncated")
    device = next(model.body.parameters()).device
    result = np.zeros((len(texts), model.body.config.model_dim), np.float32)
    for rows in batches_by_length([len(ids) for ids in encoded], batch_tokens=EVALUATION_TOKENS):
        nothing = torch.zeros(len(rows), dtype=torch.long)
        batch: TextBatch = to_device(make_text_batch([encoded[row] for row in rows], nothing, tokenizer), device)
        vectors = model.embed(batch.source, batch.lengths, batch.segments).float()
        result[rows] = F.normalize(vectors, dim=-1).cpu().numpy()
    return result


def match_losses(
    texts: Float[Tensor, "batch model"],
    others: Float[Tensor, "batch model"],
    is_excluded: Bool[Tensor, "batch batch"],
    temperature: float,
) -> Float[Tensor, " batch"]:
    """The loss of each row, in both directions."""
    rows = torch.arange(len(texts), device=texts.device)
    one, other = (
        _one_way(own, against, is_excluded, rows, temperature) for own, against in ((texts, others), (others, texts))
    )
    return (one + other) / 2


def _one_way(
    queries: Float[Tensor, "some model"],
    candidates: Float[Tensor, "rows model"],
    is_excluded: Bool[Tensor, "some rows"],
    right: Int[Tensor, " some"],
    temperature: float,
) -> Float[Tensor, " some"]:
    logits = (queries @ candidates.T / temperature).masked_fill(is_excluded, -torch.inf)
    return F.cross_entropy(logits, right, reduction="none")


def _vectors(model: SentenceEncoder, side: TextBatch) -> Float[Tensor, "batch model"]:
    vectors = model(side.source, side.lengths, side.segments)
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def _both(
    model: SentenceEncoder, batch: MatchBatch
) -> tuple[Float[Tensor, "batch model"], Float[Tensor, "batch model"]]:
    """The vectors of both sides, on the CPU."""
    return _vectors(model, batch.text).cpu(), _vectors(model, batch.other).cpu()
