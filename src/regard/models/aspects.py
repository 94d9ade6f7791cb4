r"""A query for each aspect looks at the words of a text, and what it finds says what is said about the aspect.

    $w_t = \mathrm{softmax}_t(\langle q_a, k_t \rangle / \sqrt d)$,    $y = \mathrm{scores}(\sum_t w_t v_t)$

Where keys $k$ and values $v$ are the states of the body, this is attention without
learned projections; with them, they are linear maps of the states. Wang et al.,
"Attention-based LSTM for Aspect-level Sentiment Classification" (2016), section 3,
https://aclanthology.org/D16-1058; for an aspect that is read behind the text, Sun et
al., "Utilizing BERT for Aspect-Based Sentiment Analysis via Constructing Auxiliary
Sentence" (2019), https://arxiv.org/abs/1903.09588.

Dimensions: `batch` texts, `time` positions, `model` width, `outputs` scores.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.families import AnyConfig
from regard.models.heads import Asking, HeadConfig, ScoringHead, make_body, read
from regard.nn.attention import Lookup
from regard.nn.similarity import DotProduct


class AspectClassifier(nn.Module):
    """Token ids in, and which aspect is asked for; a score for each label out.

    A row is the start, the text, an end, the aspect, an end. Of a model that asks by a
    learned query alone, the body does not read the aspect.
    """

    def __init__(
        self, config: AnyConfig, head: HeadConfig, vocab_size: int, num_outputs: int, *, num_aspects: int
    ) -> None:
        super().__init__()
        self.asking: Asking = head.aspect or "both"
        self.body = make_body(config, vocab_size)
        self.pooling = AspectAttention(
            config.model_dim, num_aspects, asking=self.asking, has_projections=head.projections
        )
        self.head = ScoringHead(config.model_dim, num_outputs, dropout=head.dropout, is_hidden=head.hidden)

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None,
        segments: Int[Tensor, "batch time"],
        aspects: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch outputs"]:
        """`segments` are 0 for a text and its end, and 1 for the aspect behind it."""
        time = torch.arange(source.size(1), device=source.device)
        if lengths is None:
            lengths = torch.full_like(source[:, 0], source.size(1))
        text_lengths = ((segments == 0) & (time < lengths[:, None])).sum(dim=1)
        read_lengths = text_lengths if self.asking == "query" else lengths
        states = read(self.body, source, read_lengths, segments).states
        is_word = (time > 0) & (time < text_lengths[:, None] - 1)
        is_aspect = (time >= text_lengths[:, None]) & (time < lengths[:, None] - 1)
        return self.head(self.pooling(states, is_word, is_aspect, aspects))


class AspectAttention(nn.Module):
    """What a query finds among the words of a text.

    The query is a learned vector for each aspect, the mean state of the words that name
    the aspect, or the sum of the two. Learned vectors start at zero, for which all words count alike.
    """

    def __init__(self, model_dim: int, num_aspects: int, *, asking: Asking, has_projections: bool) -> None:
        super().__init__()

        def projection() -> nn.Module:
            return nn.Linear(model_dim, model_dim) if has_projections else nn.Identity()

        self.queries = None if asking == "pair" else nn.Embedding(num_aspects, model_dim)
        self.query = None if asking == "query" else projection()
        self.key, self.value = projection(), projection()
        self.lookup = Lookup(DotProduct(model_dim**-0.5))
        if self.queries is not None:
            nn.init.zeros_(self.queries.weight)

    def forward(
        self,
        states: Float[Tensor, "batch time model"],
        is_word: Bool[Tensor, "batch time"],
        is_aspect: Bool[Tensor, "batch time"],
        aspects: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch model"]:
        q = torch.zeros_like(states[:, 0])
        if self.queries is not None:
            q = q + self.queries(aspects).to(q.dtype)
        if self.query is not None:
            share = is_aspect.to(states.dtype) / is_aspect.sum(dim=1, keepdim=True).clamp(min=1)
            q = q + self.query(torch.einsum("btm,bt->bm", states, share.to(states.dtype)))
        k, v = self.key(states), self.value(states)
        found = self.lookup(q[:, None, None], k[:, None], v[:, None], is_word[:, None, None])
        return found[:, 0, 0]
