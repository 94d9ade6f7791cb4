r"""The distribution of the next event and of the time until it: a mixture whose density, survival and risks are exact.

A component has a weight $w_m$, a Weibull distribution of the time and probabilities of the events:

$$ f(t, k) = \sum_m w_m p_m(k) f_m(t), \quad S(t) = \sum_m w_m S_m(t), \quad S_m(t) = e^{-(t / b_m)^{a_m}} $$

so that events depend on the time through the components, $\sum_k \int_0^\infty f(t, k) \, dt = 1$, and every risk is a
sum: $P(T \leq t, K = k) = \sum_m w_m p_m(k) (1 - S_m(t))$. With shapes $a_m = 1$ it is a mixture of exponentials, which
approximates any intensity that decreases; larger shapes are for events that are due after a certain time. Mixtures for
the time to the next event: Shchur, Bilos and Guennemann, "Intensity-Free Learning of Temporal Point Processes" (2020).

An observation that ends without an event contributes $\log S$: right-censoring.

Dimensions: `*batch` positions, `components` of the mixture, `events` kinds of events, `horizons`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

_LARGEST_EXPONENT = 60.0
_SHAPE_BELOW, _SHAPE_ABOVE = 1.0, 3.0
"""Bounds of the logarithm of a shape: from a third to twenty."""
_BISECTIONS = 60


@dataclass(frozen=True)
class EventMixture:
    """Mixtures, one for each position; times are since the last event."""

    log_weights: Float[Tensor, "*batch components"]
    log_scales: Float[Tensor, "*batch components"]
    shapes: Float[Tensor, "*batch components"]
    log_events: Float[Tensor, "*batch components events"]

    def at(self, places: tuple[Int[Tensor, " chosen"], ...]) -> "EventMixture":
        """The mixtures of some positions."""
        parts = (self.log_weights, self.log_scales, self.shapes, self.log_events)
        return EventMixture(*(part[places] for part in parts))

    def log_density(self, times: Float[Tensor, "*batch"], events: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """The logarithm of f(t, k), at positive times."""
        log_times = times[..., None].log()
        exponents = (self.shapes * (log_times - self.log_scales)).clamp(max=_LARGEST_EXPONENT)
        # a_m / t (t / b_m)^a_m is the hazard of a component.
        log_times = self.shapes.log() - log_times + exponents - exponents.exp()
        places = events[..., None, None].expand(*self.log_weights.shape, 1)
        log_events = self.log_events.gather(-1, places)[..., 0]
        return (self.log_weights + log_times + log_events).logsumexp(dim=-1)

    def log_survival(self, times: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """The logarithm of S(t)."""
        return (self.log_weights + self._log_component_survival(times)).logsumexp(dim=-1)

    def _log_component_survival(self, times: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch components"]:
        # Zero has no logarithm with a finite gradient; the survival at so small a time is 1.
        log_times = times[..., None].clamp(min=1e-30).log()
        return -(self.shapes * (log_times - self.log_scales)).clamp(max=_LARGEST_EXPONENT).exp()

    def after(self, elapsed: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch components"]:
        """The weight of each component if nothing has happened for this time."""
        return (self.log_weights + self._log_component_survival(elapsed)).softmax(dim=-1)

    def event_probabilities(self, elapsed: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch events"]:
        """The probability of each event to be the next, if nothing has happened for this time."""
        return torch.einsum("...m,...mk->...k", self.after(elapsed), self.log_events.exp())

    def risks(
        self, elapsed: Float[Tensor, "*batch"], horizons: Float[Tensor, "*rows horizons"]
    ) -> Float[Tensor, "*batch horizons events"]:
        """The probability that the next event is k and comes within a horizon, if nothing has happened before.

        The horizons are those of all positions, or each position has its own.
        """
        before = self._log_component_survival(elapsed)
        weights = (self.log_weights + before).softmax(dim=-1)
        found = []
        for horizon in horizons.unbind(-1):
            happened = -torch.expm1(self._log_component_survival(elapsed + horizon) - before)
            found.append(torch.einsum("...m,...mk->...k", weights * happened, self.log_events.exp()))
        return torch.stack(found, dim=-2)

    def sample(
        self, draws: Float[Tensor, "*batch 3"], elapsed: Float[Tensor, "*batch"]
    ) -> tuple[Float[Tensor, "*batch"], Int[Tensor, "*batch"]]:
        """A time since the last event and an event, if nothing has happened for `elapsed`, from three uniform numbers.

        A component is drawn first. Given that it has survived until s, its cumulative hazard (t / b)^a at the event
        exceeds that at s by a number with an exponential distribution.
        """
        chosen = _draw(self.after(elapsed), draws[..., 0])[..., None]
        log_scales, shapes = (part.gather(-1, chosen)[..., 0] for part in (self.log_scales, self.shapes))
        places = chosen[..., None].expand(*chosen.shape, self.log_events.size(-1))
        kinds = _draw(self.log_events.gather(-2, places)[..., 0, :].exp(), draws[..., 1])
        before = (shapes * (elapsed.clamp(min=1e-30).log() - log_scales)).clamp(max=_LARGEST_EXPONENT).exp()
        hazard = before - torch.log1p(-draws[..., 2])
        times = (log_scales + hazard.clamp(min=1e-30).log() / shapes).exp()
        return torch.maximum(times, elapsed), kinds

    def quantile(self, level: float, elapsed: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """The time from now until the next event has come with this probability, by bisection."""
        target = self.log_survival(elapsed) + math.log1p(-level)
        low, high = elapsed, elapsed + 1.0
        for _ in range(_BISECTIONS):
            high = torch.where(self.log_survival(high) > target, elapsed + 2 * (high - elapsed), high)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            is_before = self.log_survival(middle) > target
            low, high = torch.where(is_before, middle, low), torch.where(is_before, high, middle)
        return (low + high) / 2 - elapsed


def _draw(probabilities: Float[Tensor, "*batch choices"], draws: Float[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """The choice whose share of [0, 1] contains a number."""
    cumulative = probabilities.cumsum(dim=-1)
    found = (draws[..., None] * cumulative[..., -1:] >= cumulative).sum(dim=-1)
    return found.clamp(max=probabilities.size(-1) - 1)


def make_mixture(
    outputs: Float[Tensor, "*batch components parts"], *, shortest: float, num_events: int
) -> EventMixture:
    """The mixture of the outputs of a network: for each component weight, scale, shape and events.

    Args:
        outputs: For each component a weight, the logarithms of scale and shape, and logits of the events.
        shortest: The smallest scale: times are not known more exactly.
        num_events: Kinds of events.
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    weights, scales, shapes = (outputs[..., place] for place in range(3))
    assert outputs.size(-1) == 3 + num_events
    lower = math.log(shortest)
    log_shapes = torch.where(
        shapes < 0, _SHAPE_BELOW * (shapes / _SHAPE_BELOW).tanh(), _SHAPE_ABOVE * (shapes / _SHAPE_ABOVE).tanh()
    )
    return EventMixture(
        weights.log_softmax(dim=-1),
        lower + torch.nn.functional.softplus(scales - lower),
        log_shapes.exp(),
        outputs[..., 3:].log_softmax(dim=-1),
    )
