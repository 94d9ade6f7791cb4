"""What tasks on text share: how rows are joined and truncated, and the loss of an output layer with a bias."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.tasks.text import append_bias, join_texts
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
