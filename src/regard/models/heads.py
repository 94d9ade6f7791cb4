"""Heads: what predicts something else than the next token from the hidden states of a model.

    Pool                 one vector from the hidden states of a text
    PredictionHead       logits, or numbers, from vectors
    SequenceClassifier   a body, a pool and a head, and n-grams beside them: logits for a text as a whole
    MaskedHead           logits for the token at each position

The body is any model with an encoder, a decoder-only model, which reads causally, or an embedding table alone.

Dimensions: `batch` texts, `time` positions, `model` width, `outputs` logits.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from regard.models.family import ModelConfig, build_model
from regard.models.linear_ngrams import LinearNgrams
from regard.models.protocols import EncoderOutput
from regard.nn.dropout import Dropout
from regard.settings import Settings

Pooling = Literal["mean", "first", "last", "max", "attention"]


class HeadConfig(Settings):
    """The head of a model that predicts labels or numbers."""

    pooling: Pooling
    """How the hidden states of a text become one vector: mean, first, last, max, or attention with a learned query.
    Unset: mean, but last for decoder-only models that are no reward models, and first for Vision Transformers."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """On the vectors that logits are computed from."""
    hidden_layer: bool = False
    """Whether a hidden layer with tanh precedes the output layer. Unset: for taggers that are fine-tuned on 1,000
    sentences or more on a GPU."""

    @property
    def is_linear(self) -> bool:
        """Whether the output layer is all there is to learn: pooling has no weights."""
        return not self.hidden_layer and self.pooling != "attention"


class Pool(nn.Module):
    """One vector from the hidden states of a text; padding is excluded.

    With attention, a learned query weights the positions (Yang et al., "Hierarchical Attention Networks for Document
    Classification", 2016, section 2.2).
    """

    def __init__(self, model_dim: int, how: Pooling) -> None:
        super().__init__()
        self.how: Pooling = how
        self.query = nn.Linear(model_dim, 1, bias=False) if how == "attention" else None

    def forward(
        self, hidden_states: Float[Tensor, "batch time model"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch model"]:
        if mask is None:
            mask = torch.ones(hidden_states.shape[:2], dtype=torch.bool, device=hidden_states.device)
        match self.how:
            case "first":
                return hidden_states[:, 0]
            case "last":
                rows = torch.arange(hidden_states.size(0), device=hidden_states.device)
                return hidden_states[rows, mask.sum(dim=1) - 1]
            case "max":
                return hidden_states.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
            case _:
                weights = self.weights(hidden_states, mask).to(hidden_states.dtype)
                return torch.einsum("btm,bt->bm", hidden_states, weights)

    def weights(
        self, hidden_states: Float[Tensor, "batch time model"], mask: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time"]:
        """The weight of each position in a mean or under attention; they sum to 1."""
        scores = torch.zeros_like(hidden_states[..., 0]) if self.query is None else self.query(hidden_states)[..., 0]
        return scores.float().masked_fill(~mask, -torch.inf).softmax(dim=-1)


class PredictionHead(nn.Module):
    """Logits or numbers from vectors, by one layer or two."""

    def __init__(
        self, model_dim: int, num_outputs: int, *, dropout: float = 0.0, has_hidden_layer: bool = False
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(model_dim, model_dim) if has_hidden_layer else None
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(model_dim, num_outputs)
        for layer in (self.hidden, self.output):
            if layer is not None:
                nn.init.normal_(layer.weight, std=model_dim**-0.5)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch outputs"]:
        if self.hidden is not None:
            x = self.hidden(self.dropout(x)).tanh()
        return self.output(self.dropout(x))


class SequenceClassifier(nn.Module):
    """Token ids in, logits for each text out."""

    def __init__(
        self, config: ModelConfig, head: HeadConfig, vocab_size: int, num_outputs: int, *, ngrams: int = 0
    ) -> None:
        super().__init__()
        self.ngrams = LinearNgrams(ngrams, vocab_size, num_outputs) if ngrams else None
        self.body = build_body(config, vocab_size)
        self.pooling = Pool(config.model_dim, head.pooling)
        self.head = PredictionHead(
            config.model_dim, num_outputs, dropout=head.dropout, has_hidden_layer=head.hidden_layer
        )

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch outputs"]:
        network, own = self.parts(source, lengths, segments)
        return network if own is None or self.ngrams is None else self.ngrams.blend(network, own)

    def parts(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> tuple[Float[Tensor, "batch outputs"], Float[Tensor, "batch outputs"] | None]:
        """The logits of the network and those of the n-grams, which a model in training mode does not have."""
        network = self.head(self.embed(source, lengths, segments))
        return network, None if self.ngrams is None or self.training else self.ngrams(source, lengths)

    def embed(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch model"]:
        """The pooled embedding of each text."""
        return pooled(self.pooling, self.body.encode(source, lengths, segments=segments))


class MaskedHead(nn.Module):
    """Logits for the token at each position.

    Devlin et al., "BERT" (2018), section 3.1, task 1. https://arxiv.org/abs/1810.04805
    """

    def __init__(self, embedding: nn.Embedding, *, norm_epsilon: float = 1e-5) -> None:
        super().__init__()
        vocab_size, model_dim = embedding.weight.shape
        self.transform = nn.Linear(model_dim, model_dim)
        self.norm = nn.LayerNorm(model_dim, eps=norm_epsilon)
        self.output = nn.Linear(model_dim, vocab_size)
        nn.init.zeros_(self.output.bias)
        self.output.weight = embedding.weight

    def forward(self, hidden_states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        return self.output(self.transform_states(hidden_states))

    def transform_states(self, hidden_states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """The input of the output layer."""
        return self.norm(F.gelu(self.transform(hidden_states)))


def default_pooling(config: ModelConfig) -> Pooling:
    """The last hidden state of a decoder-only model, which alone depends on the whole text; otherwise the mean."""
    return "last" if config.decoder_depth and not config.encoder_depth else "mean"


def build_body(config: ModelConfig, vocab_size: int) -> Any:
    """A model of this shape without its output projection."""
    body: Any = build_model(config, vocab_size)
    body.output = None
    return body


def pooled(pooling: Pool, encoded: EncoderOutput) -> Float[Tensor, "batch model"]:
    """One vector from what a body has encoded."""
    return pooling(encoded.hidden_states, None if encoded.mask is None else encoded.mask[:, 0, 0])
