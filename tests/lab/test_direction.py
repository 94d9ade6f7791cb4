"""Reading direction: what encoders see, by gradients, and what they can learn of it."""

import pytest
import torch

from regard.lab.direction.encoders import (
    READING_TASKS,
    DirectionSizes,
    build_encoders,
    count_correct,
    draw_left_token,
    draw_majority,
    draw_right_token,
    influence,
    study_direction,
)
from regard.lab.exercises import TokenBatch, train_on_batches
from regard.nn.losses import IGNORED

TINY = DirectionSizes(model_dim=8, num_layers=1, length=7, num_symbols=4, steps=2, batch_size=3, num_test_rows=5,
                      num_seeds=1)  # fmt: skip


@pytest.mark.parametrize("name", build_encoders(TINY))
def test_a_causal_encoder_depends_on_earlier_tokens_alone_and_a_bidirectional_one_on_all(name: str):
    found = influence(build_encoders(TINY)[name](), 5)
    expected = torch.ones(5, 5).tril() if "causal" in name else torch.ones(5, 5)
    torch.testing.assert_close(found, expected)
    # What no encoder here is: one that reads from the right, one that sees itself alone, one without the last token.
    for wrong in (torch.ones(5, 5).triu(), torch.eye(5), torch.ones(5, 5).tril(-1)):
        assert not torch.equal(found, wrong)


def test_targets_are_the_tokens_beside():
    left, right = draw_left_token(11, TINY), draw_right_token(11, TINY)
    assert torch.equal(left.targets[:, 2:], left.inputs[:, :-2])
    assert torch.equal(right.targets[:, :-2], right.inputs[:, 2:])
    assert (left.targets[:, :2] == IGNORED).all()
    assert (right.targets[:, -2:] == IGNORED).all()


def test_the_majority_is_that_of_the_first_half_of_the_tokens():
    batch = draw_majority(50, TINY)
    for tokens, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert targets[:-1] == [IGNORED] * 6
        assert targets[-1] == int(sum(token in (0, 1) for token in tokens) >= 4)


def test_correct_targets_are_counted_without_ignored_ones():
    batch = TokenBatch(torch.tensor([[0, 1, 2]]), torch.tensor([[IGNORED, 1, 0]]))

    class Copy(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(tokens, 4).double()

    assert count_correct(Copy(), batch) == (1, 2)


def test_both_directions_have_about_as_many_parameters():
    counts = {
        name: sum(p.numel() for p in build().parameters()) for name, build in build_encoders(DirectionSizes()).items()
    }
    for family in ("Transformer", "LSTM"):
        one, other = (counts[f"{family}, {way}"] for way in ("bidirectional", "causal"))
        assert 0.6 < one / other < 1.7


@pytest.mark.slow
def test_a_causal_encoder_cannot_learn_the_token_to_the_right():
    torch.set_default_dtype(torch.float32)
    sizes = DirectionSizes(model_dim=16, length=9, num_symbols=4, distance=1, steps=120)
    scores = {}
    for name in ("Transformer, bidirectional", "Transformer, causal"):
        torch.manual_seed(0)
        model = build_encoders(sizes)[name]()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        train_on_batches(model, lambda: draw_right_token(32, sizes), optimizer, steps=sizes.steps, clip_norm=1.0)
        correct, total = count_correct(model.eval(), draw_right_token(200, sizes))
        scores[name] = correct / total
    assert scores["Transformer, causal"] < 0.35
    assert scores["Transformer, bidirectional"] > 0.6


def test_the_study_is_whole():
    study = study_direction(sizes=TINY)
    (table,) = study.tables
    assert table.columns == ["encoder", "parameters", *READING_TASKS]
    assert len(table.rows) == 4
    assert len(study.findings) == 3
