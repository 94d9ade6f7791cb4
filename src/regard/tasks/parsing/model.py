r"""Models of trees: words by any encoder, and above it a chart of spans or a decoder of linearized trees.

Stern et al., "A Minimal Span-Based Neural Constituency Parser" (2017): spans are scored independently of each other,
and the best tree is found by CKY. https://arxiv.org/abs/1705.03919
Kitaev and Klein, "Constituency Parsing with a Self-Attentive Encoder" (2018), section 2.
https://arxiv.org/abs/1805.01052
Zhang et al., "Fast and Accurate Neural CRF Constituency Parsing" (2020): the likelihood of the whole tree.
https://arxiv.org/abs/2008.03736
Vinyals et al., "Grammar as a Foreign Language" (2015): trees as sequences. https://arxiv.org/abs/1412.7449

The gap before word $k$ has the vector $g_k$, the first half of the hidden state before the gap and the second half of
the one after it, which in a bidirectional network have read the words before and after. A label of the span from word
$i$ to word $j$ has the score $s(i, j, \cdot) = W \, \mathrm{ReLU}(L g_i + R g_{j+1})$; that of no label is 0.

Dimensions:
    batch, time    sentences, and their tokens
    words          of a sentence, without a start and an end
    spans          of a sentence, by `spans_of`; first and last: their words
    labels         of spans; the first, `NO_LABEL`, is that of a span which is no constituent
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from regard.data.codecs.trees import TreeCodec
from regard.models.family import ModelConfig, build_model
from regard.models.heads import PredictionHead, build_body
from regard.models.protocols import EncoderOutput
from regard.nn.chart import IMPOSSIBLE, log_partition
from regard.nn.dropout import Dropout
from regard.nn.norms import LayerNorm
from regard.tasks.token_classification.sentences import AFFIX_BUCKETS, AFFIXES, NUM_FORMS

CROSSING = -1
"""The label of a span that crosses a constituent, which no binary tree with that constituent has."""


class Parser(nn.Module):
    """Token ids and the positions of words in, a vector for each word out, which a chart or a decoder reads.

    With features, the capitalization and the affixes of each word are inputs, too.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, head: "SpanChart | TreeDecoder", *, has_features: bool
    ) -> None:
        super().__init__()
        self.body = build_body(config, vocab_size)
        self.head = head
        self.forms = nn.Embedding(NUM_FORMS, config.model_dim) if has_features else None
        self.affixes = nn.Embedding(len(AFFIXES) * AFFIX_BUCKETS, config.model_dim) if has_features else None
        for table in (self.forms, self.affixes):
            if table is not None:
                nn.init.zeros_(table.weight)  # a pretrained body is initially unchanged

    def embed_words(
        self,
        source: Int[Tensor, "batch time"],
        positions: Int[Tensor, "batch positions"],
        lengths: Int[Tensor, " batch"] | None = None,
        forms: Int[Tensor, "batch time"] | None = None,
        affixes: Int[Tensor, "batch time affixes"] | None = None,
    ) -> Float[Tensor, "batch positions model"]:
        """The hidden states at these positions: the start, the first token of each word, and the end."""
        extra = None
        if self.forms is not None and self.affixes is not None:
            assert forms is not None, "a parser with features needs the forms of words"
            assert affixes is not None, "a parser with features needs the affixes of words"
            numbers = AFFIX_BUCKETS * torch.arange(affixes.size(-1), device=affixes.device)
            extra = self.forms(forms) + self.affixes(affixes + numbers).sum(dim=-2)
        hidden_states = self.body.encode(source, lengths, extra_embeddings=extra).hidden_states
        return hidden_states.gather(1, positions[..., None].expand(-1, -1, hidden_states.size(-1)))


class SpanChart(nn.Module):
    """The scores of the labels of all spans, and of the tags of all words."""

    def __init__(self, model_dim: int, codec: TreeCodec, *, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.tags = PredictionHead(model_dim, len(codec.tags), dropout=dropout)
        self.left = nn.Linear(model_dim, hidden_dim)
        self.right = nn.Linear(model_dim, hidden_dim, bias=False)
        self.dropout = Dropout(dropout)
        self.labels = nn.Linear(hidden_dim, len(codec.labels))

    def tag_logits(self, vectors: Float[Tensor, "batch positions model"]) -> Float[Tensor, "batch words tags"]:
        """Returns the logits of each word's tag, given the vectors of the start, the words and the end."""
        return self.tags(vectors[:, 1:-1])

    def span_scores(
        self, vectors: Float[Tensor, "batch positions model"], num_words: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch spans labels"]:
        """The score of each label of each span, in float32 at least; a whole sentence of several words has a label."""
        before, after = vectors[:, :-1], vectors[:, 1:]
        half = vectors.size(-1) // 2
        gaps = self.dropout(torch.cat([before[..., :half], after[..., half:]], dim=-1))
        first, last = spans_of(gaps.size(1) - 1, gaps.device)
        scores = self.labels(F.relu(self.left(gaps)[:, first] + self.right(gaps)[:, last + 1]))
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        is_root = (first == 0) & (last == num_words[:, None] - 1) & (num_words[:, None] > 1)
        unlabeled = torch.zeros_like(scores[..., :1]).masked_fill(is_root[..., None], IMPOSSIBLE)
        return torch.cat([unlabeled, scores], dim=-1)


def spans_of(num_words: int, device: torch.device | None = None) -> tuple[Int[Tensor, " spans"], Int[Tensor, " spans"]]:
    """The first and the last word of each span of a sentence.

    Example:
        >>> [some.tolist() for some in spans_of(2)]
        [[0, 0, 1], [0, 1, 1]]
    """
    first, last = torch.triu_indices(num_words, num_words, device=device)
    return first, last


def as_chart(values: Shaped[Tensor, "batch spans"], num_words: int) -> Shaped[Tensor, "batch first last"]:
    """Values of spans as a chart; 0 where there is no span."""
    first, last = spans_of(num_words, values.device)
    flat = values.new_zeros(len(values), num_words * num_words)
    return flat.index_copy(1, first * num_words + last, values).unflatten(1, (num_words, num_words))


def tree_log_likelihood(
    scores: Float[Tensor, "batch spans labels"],
    labels: Int[Tensor, "batch first last"],
    num_words: Int[Tensor, " batch"],
) -> Float[Tensor, " batch"]:
    """The log-probability of each tree, which is the sum over all binary trees that it follows from.

    A tree with more than two children somewhere has several binary forms, whose further spans have no label. They are
    all binary trees without a span that crosses a constituent.

    Args:
        scores: Of the labels of each span.
        labels: The label of each span of the tree, `NO_LABEL` where it is no constituent, `CROSSING` where it crosses
            one.
        num_words: Of each sentence.
    """
    size = labels.size(1)
    first, last = spans_of(size, labels.device)
    actual = labels[:, first, last]
    chosen = scores.gather(2, actual.clamp(min=0)[..., None])[..., 0].masked_fill(actual == CROSSING, IMPOSSIBLE)
    both = torch.cat([chosen, scores.logsumexp(dim=2)])
    numerator, denominator = log_partition(as_chart(both, size), num_words.repeat(2)).chunk(2)
    return numerator - denominator


class TreeDecoder(nn.Module):
    """A decoder that reads the vectors of words, and predicts the actions of a linearized tree."""

    def __init__(self, model_dim: int, decoder: ModelConfig, num_actions: int) -> None:
        super().__init__()
        self.projection = nn.Linear(model_dim, decoder.model_dim)
        self.norm = LayerNorm(decoder.model_dim)
        self.decoder: Any = build_model(decoder, num_actions).replace_encoder()

    def memory(
        self, vectors: Float[Tensor, "batch positions model"], is_word: Bool[Tensor, "batch positions"]
    ) -> EncoderOutput:
        """What the decoder attends to."""
        return EncoderOutput(self.norm(self.projection(vectors)), is_word[:, None, None])
