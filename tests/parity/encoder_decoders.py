"""An encoder-decoder of transformers and ours, compared."""

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def assert_same_outputs(theirs: Any, ours: Any, source: Tensor, target: Tensor, lengths: Tensor) -> None:
    """The hidden states of the encoder, padding apart, and the logits of the decoder."""
    mask = (torch.arange(source.size(1)) < lengths[:, None]).long()

    expected = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target)

    memory = ours.encode(source, lengths)
    torch.testing.assert_close(memory.hidden_states[mask == 1], expected.encoder_last_hidden_state[mask == 1])
    torch.testing.assert_close(ours.decode(target, memory), expected.logits)


@torch.no_grad()
def assert_same_steps(theirs: Any, ours: Any, source: Tensor, target: Tensor) -> None:
    """The logits of all positions at once, and ours step by step."""
    expected = theirs(input_ids=source, decoder_input_ids=target).logits
    state, found = ours.initial_state(ours.encode(source)), []
    for place in range(target.size(1)):
        logits, state = ours.step(target[:, place : place + 1], state)
        found.append(logits)

    torch.testing.assert_close(torch.cat(found, dim=1), expected)
