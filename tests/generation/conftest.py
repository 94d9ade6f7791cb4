"""A model too small to be good, for tests of how tokens are chosen; and slots that have read something."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_states import TransformerSlots


@pytest.fixture
def make_model() -> Callable[[int], Transformer]:
    """A Transformer with so many tokens, and weights far from zero."""

    def make(vocab_size: int) -> Transformer:
        config = TransformerConfig(
            num_layers=1, model_dim=10, num_heads=1, feedforward_dim=11, dropout=0.0, positions="rotary"
        )
        made = Transformer(config, vocab_size).eval()
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.6)
        return made

    return make


@pytest.fixture
def fill_slots() -> Callable[..., TransformerSlots]:
    """Slots whose rows have read so many of their tokens, and a source of their own where there is an encoder."""

    def fill(model: Transformer, counts: list[int], tokens: Tensor, capacity: int) -> TransformerSlots:
        slots = model.slots(len(counts), capacity, source_length=0 if model.encoder is None else 7)
        for slot, count in enumerate(counts):
            source = torch.arange(3 + slot, device=tokens.device)[None]
            state = model.start(None if model.encoder is None else model.encode(source))
            if count:
                _, state = model.step(tokens[slot : slot + 1, :count], state)
            slots.put(slot, state)
        return slots

    return fill
