"""Models of the next event: an encoder of events with a mixture after each, and constant rates for comparison.

Dimensions: `batch` subjects, `time` entries of their histories, `features` of an entry, `last` event, `events` kinds.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data.codecs.events import EventCodec
from regard.errors import ConfigError
from regard.models.events import EventShape
from regard.models.family import ModelConfig, find_family
from regard.models.heads import HeadConfig
from regard.nn.dropout import Dropout
from regard.tasks.event_prediction.process import EventMixture, make_mixture

_NUM_PARTS = 3
"""Outputs of a component besides the logits of the events: weight, scale and shape."""


class EventPredictor(nn.Module):
    """Histories in, the distribution of the next event after each entry out; times are in units of the mean gap."""

    def __init__(self, config: ModelConfig, head: HeadConfig, codec: EventCodec, *, num_components: int) -> None:
        super().__init__()
        if config.input_kind != "events":
            raise ConfigError(
                f"events need a model that reads them, such as transformer-events, got model.family={config.family}"
            )
        family: Any = find_family(config.family)
        self.config, self.num_components, self.num_events = config, num_components, len(codec.events)
        self.shortest = codec.resolution / codec.scale / 2
        shape = EventShape(len(codec.events), len(codec.values))
        self.body: Any = family.build(config, vocab_size=0, events=shape)
        self.dropout = Dropout(head.dropout)
        self.output = nn.Linear(self.body.width, num_components * (_NUM_PARTS + self.num_events))
        self._initialize(codec.gap_quantiles, codec.counts)

    @torch.no_grad()
    def _initialize(self, gap_quantiles: Sequence[float], counts: Sequence[int]) -> None:
        """Exponentials whose scales are those of the gaps, with events as frequent as in training."""
        self.output.weight.mul_(0.1)
        bias = self.output.bias.zero_().view(self.num_components, -1)
        places = np.linspace(0, len(gap_quantiles) - 1, self.num_components)
        scales = np.interp(places, np.arange(len(gap_quantiles)), np.log(gap_quantiles))
        bias[:, 1] = torch.from_numpy(scales).to(bias)
        bias[:, _NUM_PARTS:] = torch.tensor([math.log(count / sum(counts)) for count in counts]).to(bias)

    def forward(self, source: Float[Tensor, "batch time features"]) -> EventMixture:
        source = source.to(torch.promote_types(self.output.weight.dtype, torch.float32))
        hidden_states = self.dropout(self.body.encode(source).hidden_states)
        # The logarithms of scales need more digits than bfloat16 has.
        with torch.autocast(source.device.type, enabled=False):
            outputs = self.output(hidden_states.to(self.output.weight.dtype))
        outputs = outputs.unflatten(-1, (self.num_components, -1))
        return make_mixture(outputs, shortest=self.shortest, num_events=self.num_events)


class ConstantRates(nn.Module):
    """Events at rates that depend on the last event only: a mixture with one exponential component."""

    def __init__(self, rates: Float[np.ndarray, "last events"]) -> None:
        super().__init__()
        self.rates: Tensor
        self.register_buffer("rates", torch.from_numpy(rates).float())

    def forward(self, source: Float[Tensor, "batch time features"]) -> EventMixture:
        rates = self.rates[source[..., 0].long()][..., None, :]
        total = rates.sum(dim=-1)
        return EventMixture(
            torch.zeros_like(total), -total.log(), torch.ones_like(total), (rates / total[..., None]).log()
        )
