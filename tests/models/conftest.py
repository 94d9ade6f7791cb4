"""Static caches with processed tokens, for the inference backends."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.models.transformer import Transformer
from regard.models.transformer.states import StaticCache


@pytest.fixture
def fill_cache() -> Callable[..., StaticCache]:
    """A static cache whose rows have processed `counts` of their tokens, and a source each if there is an encoder."""

    def fill(model: Transformer, counts: list[int], tokens: Tensor, capacity: int) -> StaticCache:
        cache = model.static_state(len(counts), capacity, source_length=0 if model.encoder is None else 7)
        for slot, count in enumerate(counts):
            source = torch.arange(3 + slot, device=tokens.device)[None]
            state = model.initial_state(None if model.encoder is None else model.encode(source))
            if count:
                _, state = model.step(tokens[slot : slot + 1, :count], state)
            cache.put(torch.tensor([slot], device=tokens.device), state)
        return cache

    return fill
