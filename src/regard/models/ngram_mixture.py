r"""The linear mixture of a decoder-only model with n-grams.

    p(w | prefix) = a p_network(w | prefix) + (1 - a) p_ngrams(w | last tokens)

A network that was trained for a few hundred steps predicts worse than n-grams that
were counted in a second, and the mixture better than either: Mikolov et al., "RNNLM -
Recurrent Neural Network Language Modeling Toolkit" (2011), section 3. The weight a
that is best on held-out text is found exactly, since its log-likelihood is concave.

In training mode the n-grams have no effect.

Dimensions: `batch` sequences, `time` positions, `model` width, `vocab` tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.family import ModelConfig
from regard.models.protocols import Decoder, DecoderState, EncoderOutput, StaticState
from regard.nn.inference import Quantization
from regard.nn.ngrams import NO_TOKEN, NgramTables

_ROWS_AT_ONCE = 256
"""Rows whose probabilities of all tokens are computed together."""
_LEAST_WEIGHT = 0.01
"""A smaller weight of the network is taken for 0: it adds next to nothing, and need not be computed."""
_HALVINGS = 40
"""Bisections of the interval from 0 to 1 that contains the best weight."""


@dataclass
class NgramMixtureState:
    """The state of the network, and the last tokens of each row."""

    network: DecoderState
    recent: Int[Tensor, "batch before"]
    """As many as the longest context has; `NO_TOKEN` before the first."""

    def select(self, rows: Int[Tensor, " chosen"]) -> "NgramMixtureState":
        return NgramMixtureState(self.network.select(rows), self.recent.index_select(0, rows))


@dataclass
class StaticNgramMixtureState:
    """A state of fixed size, which a step changes in place."""

    network: StaticState
    recent: Int[Tensor, "batch before"]

    def select(self, rows: Int[Tensor, " chosen"]) -> NgramMixtureState:
        return NgramMixtureState(self.network.select(rows), self.recent.index_select(0, rows))

    def put(self, rows: Int[Tensor, " chosen"], state: DecoderState) -> None:
        assert isinstance(state, NgramMixtureState | StaticNgramMixtureState)
        self.network.put(rows, state.network)
        self.recent[rows] = state.recent

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.network.reorder(rows)
        self.recent.copy_(self.recent.index_select(0, rows))


class NgramMixture(nn.Module, Decoder):
    """A decoder-only model whose output is mixed with n-grams; its logits are normalized log-probabilities.

    Its `hidden_states`, and the `logits` of these, are those of the network alone.

    Args:
        body: The network, a `Decoder`.
        tables: The n-grams of its tokens.
        start: The token that begins a text.
        end: The token that ends one, as which the n-grams know the beginning of the next.
        isolates: Whether contexts do not extend beyond the beginning of a text.
    """

    def __init__(self, body: Any, tables: NgramTables, *, start: int, end: int, isolates: bool) -> None:
        super().__init__()
        if body.config.encoder_depth:
            raise ConfigError("n-grams are mixed with a decoder-only model, this one has an encoder")
        self.body, self.tables = body, tables
        self.config: ModelConfig = body.config
        self.output: nn.Linear | None = body.output
        self.start, self.end, self.isolates = start, end, isolates
        self.network_weight: Tensor
        self.register_buffer("network_weight", torch.ones((), dtype=torch.float64))

    @property
    def device(self) -> torch.device:
        return self.body.device

    @property
    def dtype(self) -> torch.dtype:
        return self.body.dtype

    @property
    def vocab_size(self) -> int:
        return self.body.vocab_size

    @property
    def source_vocab_size(self) -> int:
        return self.body.source_vocab_size

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Return the logits after each prefix of `tokens`."""
        return self.decode(tokens)

    def encode(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        segments: Int[Tensor, "batch time"] | None = None,
        extra_embeddings: Float[Tensor, "batch time model"] | None = None,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> EncoderOutput:
        return self.body.encode(
            source, lengths, segments=segments, extra_embeddings=extra_embeddings, documents=documents
        )

    def hidden_states(
        self,
        tokens: Int[Tensor, "batch time"],
        encoder_output: EncoderOutput | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        return self.body.hidden_states(tokens, encoder_output, documents=documents)

    def logits(self, hidden_states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        return self.body.logits(hidden_states)

    def decode(
        self, tokens: Int[Tensor, "batch time"], encoder_output: EncoderOutput | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        contexts, _ = self.contexts(tokens)
        return self._mixed(self.body.decode(tokens, encoder_output), contexts)

    def initial_state(self, encoder_output: EncoderOutput | None = None, *, batch_size: int = 1) -> NgramMixtureState:
        state = self.body.initial_state(encoder_output, batch_size=batch_size)
        return NgramMixtureState(state, self._no_tokens(batch_size))

    def static_state(self, num_slots: int, capacity: int, *, source_length: int = 0) -> StaticNgramMixtureState:
        state = self.body.static_state(num_slots, capacity, source_length=source_length)
        return StaticNgramMixtureState(state, self._no_tokens(num_slots))

    def step(
        self, tokens: Int[Tensor, "batch new"], state: DecoderState
    ) -> tuple[Float[Tensor, "batch new vocab"], DecoderState]:
        assert isinstance(state, NgramMixtureState | StaticNgramMixtureState)
        logits, network = self.body.step(tokens, state.network)
        contexts, recent = self.contexts(tokens, state.recent)
        logits = self._mixed(logits, contexts)
        if isinstance(state, NgramMixtureState):
            return logits, NgramMixtureState(network, recent)
        state.recent.copy_(recent)
        return logits, state

    def for_inference(self, *, quantization: Quantization | None = None) -> "NgramMixture":
        body = self.body.for_inference(quantization=quantization)
        mixture = NgramMixture(body, self.tables, start=self.start, end=self.end, isolates=self.isolates)
        mixture.network_weight = self.network_weight
        return mixture.train(self.training)

    def beam_state(self, state: DecoderState) -> DecoderState:
        assert isinstance(state, NgramMixtureState)
        return NgramMixtureState(self.body.beam_state(state.network), state.recent)

    def static_beam_state(self, state: DecoderState, beam_size: int, capacity: int) -> None:
        """The number of n-grams of a context is known only on the device, so that a step cannot be captured."""

    def contexts(
        self, tokens: Int[Tensor, "batch time"], recent: Int[Tensor, "batch before"] | None = None
    ) -> tuple[list[Int[Tensor, "batch time"]], Int[Tensor, "batch before"]]:
        """Return the contexts of `NgramTables` after each token, and the last tokens, from which a text continues."""
        read = tokens.masked_fill(tokens == self.start, self.end)
        before = self._no_tokens(len(tokens)) if recent is None else recent
        found = self.tables.contexts(read, before, boundary=self.end if self.isolates else None)
        return found, torch.cat([before, read], dim=1)[:, read.size(1) :]

    def mix(self, network: Float[Tensor, "*shape"], ngrams: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the log-probabilities of the mixture from those of both."""
        weight = self.network_weight.to(network.dtype)
        return torch.logaddexp(weight.log() + network, (-weight).log1p() + ngrams.to(network.dtype))

    def fit_weight(self, network: Float[Tensor, " targets"], ngrams: Float[Tensor, " targets"]) -> None:
        """Set the weight of the network to the best one for targets with these log-probabilities."""
        weight = best_weight(network, ngrams)
        self.network_weight.fill_(weight if weight >= _LEAST_WEIGHT else 0.0)

    def _mixed(
        self, logits: Float[Tensor, "batch time vocab"], contexts: Sequence[Int[Tensor, "batch time"]]
    ) -> Float[Tensor, "batch time vocab"]:
        if self.training:
            return logits
        flat, dtype = logits.flatten(0, 1), torch.promote_types(logits.dtype, torch.float32)
        mixed = []
        for first in range(0, len(flat), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            network = flat[rows].log_softmax(-1, dtype=dtype)
            some = [context.flatten()[rows] for context in contexts]
            ngrams = self.tables.distributions(some, num_rows=len(network), dtype=dtype)
            mixed.append(self.mix(network, ngrams.log()))
        return torch.cat(mixed).view_as(logits)

    def _no_tokens(self, batch_size: int) -> Int[Tensor, "batch before"]:
        return torch.full((batch_size, self.tables.order - 1), NO_TOKEN, device=self.device)


def best_weight(one: Float[Tensor, " targets"], other: Float[Tensor, " targets"]) -> float:
    r"""Return the weight $a$ for which the log-likelihood of targets under a mixture of two models is highest.

    With $r_i$ the ratio of both probabilities of target $i$, its derivative

    $$ \sum_i \frac{r_i - 1}{1 + a (r_i - 1)} $$

    decreases in $a$; the zero in $[0, 1]$ is found by bisection.

    Args:
        one: The log-probabilities by the model with the weight $a$.
        other: Those by the model with the weight $1 - a$.

    Example:
        >>> one, other = torch.tensor([0.9, 0.1]), torch.tensor([0.2, 0.6])
        >>> round(best_weight(one.log(), other.log()), 3)
        0.457
    """
    gains = (one.double() - other.double()).expm1()
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float((gains / (1 + middle * gains)).sum()) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
