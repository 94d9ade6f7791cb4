"""What stands on a model that reads, where something else than the next token is asked for.

    Classifier       one vector for a whole text, and scores for its labels, or a number
    Tagger           scores for a tag of each word, and perhaps of tags side by side
    SpanFinder       scores for each position to begin an answer, and to end it
    MaskedModel      scores for the token that a position hides
    Embedder         one vector of length 1 for a whole text

The body is any model with an encoder, or a decoder alone, which reads forwards, or a table of vectors without either.
What is said about each aspect of a text is scored in `aspects.py`.

Dimensions: `batch` texts, `time` positions, `model` width, `outputs` scores, `hidden` places of each text, `vocab`
tokens, `words` of a sentence.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from regard.data.tagged import NUM_FORMS
from regard.models.families import AnyConfig, AnyModel, make_model
from regard.models.protocols import Memory
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.crf import ConditionalRandomField
from regard.nn.dropout import Dropout
from regard.nn.masks import padding_mask, places_within
from regard.settings import Settings

Pooling = Literal["mean", "first", "last", "max", "attention"]
Asking = Literal["query", "pair", "both"]


class HeadConfig(Settings):
    """What a classifier makes of the states of its body."""

    pooling: Pooling | None = None
    """How the states of a text become one vector: their mean, the first, the last, the largest of each number, or
    attention by a learned query. Unset: mean, but last where the body reads forwards alone."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """On the vector that scores are computed from."""
    hidden: bool = False
    """Whether a layer of its own stands between that vector and the scores."""
    crf: bool = False
    """Of tags: whether those of neighbouring words are scored together, by a conditional random field."""
    capitals: bool | None = None
    """Of tags: whether the model is told how each word is written, in capitals or digits. Unset: where its tokenizer
    does not tell capitals from small letters."""
    aspect: Asking | None = None
    """How an aspect is asked for: by a learned query for each, by reading it behind the text as the second of a pair,
    or both. Unset: both, but pair where a base is fine-tuned or aspects are terms of the texts."""
    projections: bool = True
    """Of aspects: whether what a query looks at, and what it finds, are learned projections of the states."""
    temperature: float = Field(default=0.05, gt=0.0)
    """Of embeddings: what cosines are divided by in training; the smaller, the more the nearest wrong ones count."""


class Classifier(nn.Module):
    """Token ids in, a score for each label out."""

    def __init__(self, config: AnyConfig, head: HeadConfig, vocab_size: int, num_outputs: int) -> None:
        super().__init__()
        self.body = make_body(config, vocab_size)
        self.pooling = Pool(config.model_dim, head.pooling or usual_pooling(config))
        self.head = ScoringHead(config.model_dim, num_outputs, dropout=head.dropout, is_hidden=head.hidden)

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch outputs"]:
        return self.head(self.embed(source, lengths, segments))

    def embed(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch model"]:
        """The vector of each text."""
        return pooled(self.pooling, read(self.body, source, lengths, segments))


class Embedder(nn.Module):
    """Token ids in, a vector of length 1 for each text out: the nearer two are, the more alike are the texts."""

    def __init__(self, config: AnyConfig, head: HeadConfig, vocab_size: int) -> None:
        super().__init__()
        self.body = make_body(config, vocab_size)
        self.pooling = Pool(config.model_dim, head.pooling or usual_pooling(config))
        self.temperature = head.temperature

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
        return pooled(self.pooling, read(self.body, source, lengths, segments))


class MaskedModel(nn.Module):
    """Token ids in, scores for the token that each position hides out."""

    def __init__(self, config: AnyConfig, vocab_size: int) -> None:
        super().__init__()
        self.body = make_body(config, vocab_size)
        epsilon = config.norm_epsilon if isinstance(config, TransformerConfig) else 1e-5
        self.head = MaskedHead(self.body.embedding, norm_epsilon=epsilon)
        self.pooling = Pool(config.model_dim, "mean")

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        return self.head(read(self.body, source, lengths, segments).states)

    def states(
        self,
        source: Int[Tensor, "batch time"],
        places: Int[Tensor, "batch hidden"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch hidden model"]:
        """What the scores of some places of each text are computed from.

        With `documents`, a position sees those only that have the same number as its own.
        """
        if documents is None:
            states = read(self.body, source, lengths).states
        else:
            states = read_apart(self.body, source, documents)
        return self.head.states(states.gather(1, places[..., None].expand(-1, -1, states.size(-1))))

    def embed(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch model"]:
        """The mean of each text's states."""
        return pooled(self.pooling, read(self.body, source, lengths, segments))


class ScoringHead(nn.Module):
    """Scores from vectors, by one layer or two."""

    def __init__(self, model_dim: int, num_outputs: int, *, dropout: float = 0.0, is_hidden: bool = False) -> None:
        super().__init__()
        self.hidden = nn.Linear(model_dim, model_dim) if is_hidden else None
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


class Pool(nn.Module):
    """One vector from the states of a text; padding counts for nothing.

    With attention, a learned query asks each position how much it matters (Yang et al., "Hierarchical Attention
    Networks for Document Classification", 2016, section 2.2).
    """

    def __init__(self, model_dim: int, how: Pooling) -> None:
        super().__init__()
        self.how: Pooling = how
        self.query = nn.Linear(model_dim, 1, bias=False) if how == "attention" else None

    def forward(
        self, states: Float[Tensor, "batch time model"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch model"]:
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        match self.how:
            case "first":
                return states[:, 0]
            case "last":
                rows = torch.arange(states.size(0), device=states.device)
                return states[rows, mask.sum(dim=1) - 1]
            case "max":
                return states.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
            case _:
                return torch.einsum("btm,bt->bm", states, self.weights(states, mask).to(states.dtype))

    def weights(
        self, states: Float[Tensor, "batch time model"], mask: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time"]:
        """How much each position counts in a mean or under attention; they sum to 1."""
        scores = torch.zeros_like(states[..., 0]) if self.query is None else self.query(states)[..., 0]
        return scores.float().masked_fill(~mask, -torch.inf).softmax(dim=-1)


class MaskedHead(nn.Module):
    """Scores for the token at each position, from what stands around it.

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

    def forward(self, states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        return self.output(self.states(states))

    def states(self, states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """What the scores are computed from."""
        return self.norm(F.gelu(self.transform(states)))


def usual_pooling(config: AnyConfig) -> Pooling:
    """The last state of a body that reads forwards, which alone has seen everything; of others the mean."""
    return "last" if config.decoder_depth and not config.encoder_depth else "mean"


def make_body(config: AnyConfig, vocab_size: int) -> AnyModel:
    """A model that reads: whatever this shape is, without its projection to the vocabulary."""
    body = make_model(config, vocab_size)
    body.output = None
    return body


def read(
    body: AnyModel,
    source: Int[Tensor, "batch time"],
    lengths: Int[Tensor, " batch"] | None = None,
    segments: Int[Tensor, "batch time"] | None = None,
    *,
    added: Float[Tensor, "batch time model"] | None = None,
) -> Memory:
    """The states of a text: of the encoder, or of a decoder alone, which sees what stands before.

    Without either they are the vectors of the tokens, each by itself.

    `segments` are for a body that tells them apart; `added` is what an encoder knows of each position beside its token.
    """
    if body.encoder is None and body.decoder is not None:
        assert added is None, "a decoder reads tokens alone"
        mask = None if lengths is None else padding_mask(lengths, source.size(1))
        return Memory(body.states(source), mask)
    if isinstance(body, Transformer) and body.config.num_segments:
        return body.encode(source, lengths, segments, added=added)
    return body.encode(source, lengths, added=added)


def read_apart(
    body: AnyModel, source: Int[Tensor, "batch time"], documents: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time model"]:
    """The states of rows that hold several documents, one behind the other: each is read as if it stood alone."""
    assert isinstance(body, Transformer), "only attention can keep documents apart"
    assert body.encoder is not None, "this Transformer has no encoder"
    x = body._embed(source)
    if body.segments is not None:
        x = x + body.segments(torch.zeros_like(source)).to(x.dtype)
    is_same = documents[:, None, :, None] == documents[:, None, None, :]
    return body.encoder(x, is_same, positions=places_within(documents))


def pooled(pooling: Pool, memory: Memory) -> Float[Tensor, "batch model"]:
    """One vector from what a body has read."""
    return pooling(memory.states, None if memory.mask is None else memory.mask[:, 0, 0])


class Tagger(nn.Module):
    """Token ids in, and where words begin among them; a score for each tag of each word out.

    `allowed` says which tag may follow which, where a conditional random field scores them together. How the word of
    each token is written is told by `forms`, where the model was made to know it.
    """

    def __init__(
        self,
        config: AnyConfig,
        head: HeadConfig,
        vocab_size: int,
        num_tags: int,
        *,
        allowed: Bool[Tensor, "before after"] | None = None,
    ) -> None:
        super().__init__()
        self.body = make_body(config, vocab_size)
        self.head = ScoringHead(config.model_dim, num_tags, dropout=head.dropout, is_hidden=head.hidden)
        self.crf = ConditionalRandomField(num_tags, allowed=allowed) if head.crf else None
        self.forms = nn.Embedding(NUM_FORMS, config.model_dim) if head.capitals else None
        if self.forms is not None:
            # A base goes on from where it was: it has never been told.
            nn.init.zeros_(self.forms.weight)

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        places: Int[Tensor, "batch words"],
        lengths: Int[Tensor, " batch"] | None = None,
        forms: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch words outputs"]:
        added = None
        if self.forms is not None:
            assert forms is not None, "this model is told how words are written"
            added = self.forms(forms)
        states = read(self.body, source, lengths, added=added).states
        return self.head(states.gather(1, places[..., None].expand(-1, -1, states.size(-1))))


class SpanFinder(nn.Module):
    """Token ids in, for each position how well an answer begins there, and how well it ends there, out."""

    def __init__(self, config: AnyConfig, head: HeadConfig, vocab_size: int) -> None:
        super().__init__()
        self.body = make_body(config, vocab_size)
        self.head = ScoringHead(config.model_dim, 2, dropout=head.dropout, is_hidden=head.hidden)

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time ends"]:
        return self.head(read(self.body, source, lengths, segments).states)
