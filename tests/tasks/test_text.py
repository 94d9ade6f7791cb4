"""What tasks on text share: how rows are joined and truncated, and the loss of an output layer, also an adapted one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.adapters.lora import LoRALinear
from regard.nn.losses import IGNORED
from regard.tasks.task import Objective
from regard.tasks.text import append_bias, join_texts, output_log_probs, output_loss, target_log_likelihoods
from regard.text.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer([], "bytes", 300)


def test_hidden_states_and_matrix_with_a_bias_give_the_logits():
    states, output = torch.randn(7, 5), nn.Linear(5, 11)
    wider, matrix = append_bias(states, output)
    torch.testing.assert_close(wider @ matrix.T, output(states))
    F.mse_loss(wider @ matrix.T, torch.zeros(7, 11)).backward()
    assert output.bias.grad is not None
    assert bool((output.bias.grad != 0).all())


def test_without_a_bias_nothing_is_appended():
    states, output = torch.randn(7, 5), nn.Linear(5, 11, bias=False)
    assert append_bias(states, output) == (states, output.weight)


@pytest.mark.parametrize("has_bias", [True, False])
def test_an_output_layer_with_an_adapter_has_the_loss_of_the_merged_layer(has_bias: bool):
    adapted = LoRALinear(nn.Linear(5, 11, bias=has_bias), rank=2, scale=0.7)
    nn.init.normal_(adapted.b)
    merged, states = adapted.merged(), torch.randn(2, 3, 5, requires_grad=True)
    targets = torch.tensor([[1, 10, IGNORED], [0, IGNORED, 4]])
    rows, flat = states.flatten(0, 1), targets.flatten()
    for objective in (Objective(), Objective(label_smoothing=0.2), Objective(rdrop=0.5)):
        found, expected = (output_loss(layer, rows, flat, objective) for layer in (adapted, merged))
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(loss, states, retain_graph=True)[0] for loss in (found, expected)]
        torch.testing.assert_close(*gradients)
    torch.testing.assert_close(output_log_probs(adapted, rows, flat), output_log_probs(merged, rows, flat))
    models: list[Any] = [SimpleNamespace(output=layer) for layer in (adapted, merged)]
    torch.testing.assert_close(*(target_log_likelihoods(model, states, targets) for model in models))
    output_log_probs(adapted, rows, flat).sum().backward()
    assert adapted.b.grad is not None


@pytest.mark.parametrize(
    ("lengths", "limit", "kept"),
    [((3, 4), 50, (3, 4)), ((30, 4), 20, (13, 4)), ((30, 30), 21, (9, 9)), ((5,), 4, (2,)), ((9, 9), 3, (0, 0))],
)
def test_a_long_row_is_truncated_its_longest_text_first(lengths, limit: int, kept):
    ids = join_texts([[7] * length for length in lengths], TOKENIZER, limit)
    ends = [place for place, token in enumerate(ids) if token == TOKENIZER.end]
    found = [end - start - 1 for start, end in zip([0, *ends], ends, strict=False)]
    assert tuple(found) == kept
    assert len(ids) <= max(limit, 1 + len(lengths))
