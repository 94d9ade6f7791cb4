"""Decoding strategies: what is measured, and the study from end to end."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.errors import DataError
from regard.lab.decoding.strategies import (
    HUMAN,
    STRATEGIES,
    DecodingSizes,
    continue_prompts,
    cut_prompts,
    divergence,
    mean_log_probabilities,
    ngrams,
    random_walk,
    repetition,
    study_decoding,
    train_language_model,
)

TINY = DecodingSizes(vocab_size=31, num_tokens=1_500, num_layers=1, model_dim=8, num_heads=2, steps=3, batch_size=3,
                     window=11, num_prompts=5, prompt_length=3, new_tokens=7)  # fmt: skip


def test_the_divergence_is_symmetric_and_that_of_distributions():
    one, other = [[1, 2, 3, 1, 2]], [[1, 2, 4]]
    assert divergence(one, other) == pytest.approx(divergence(other, one))
    assert divergence(one, [*one, *one]) == pytest.approx(0.0, abs=1e-12)
    # p(1 2) is 1/2 and 1/2, p(2 3), p(3 1) are 1/4, p(2 4) is 1/2: by the definition
    assert divergence(one, other) == pytest.approx(0.5)


def test_repetition_counts_what_occurred_before():
    assert ngrams([1, 2, 3], 2) == [(1, 2), (2, 3)]
    assert repetition([1] * 10, 4) == pytest.approx(6 / 7)
    assert repetition(list(range(9)), 4) == 0.0
    assert repetition([1], 4) == 0.0


def test_each_strategy_continues_all_prompts_by_as_many_tokens():
    tokens = random_walk(TINY, 1)
    model = train_language_model(tokens, TINY)
    prompts, actual, others = cut_prompts(tokens, TINY)
    assert actual.shape == others.shape == (5, 7)
    torch.testing.assert_close(torch.cat([prompts, actual], dim=1).flatten()[:10], tokens[:10])
    means = {}
    for name, config in STRATEGIES.items():
        written = continue_prompts(model, prompts, 7, config, seed=3)
        assert written.shape == actual.shape
        means[name] = mean_log_probabilities(model, prompts, written).mean()
    assert means["beam 16"] >= means["beam 4"] - 1e-9


def test_beam_search_without_an_end_is_scored_by_the_model():
    tokens = random_walk(TINY, 2)
    model = train_language_model(tokens, TINY)
    prompts, _, _ = cut_prompts(tokens, TINY)
    greedy, beam = (continue_prompts(model, prompts[:1], 5, STRATEGIES[name], seed=0) for name in ("greedy", "beam 16"))
    both = [mean_log_probabilities(model, prompts[:1], each)[0] for each in (greedy, beam)]
    assert both[1] >= both[0] - 1e-9


def test_the_findings_follow_from_the_table(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text(
        "the cat sees the sea and the dog sees the cat . a bird sings by the sea .\n" * 60, encoding="utf-8"
    )
    for data, size in ((None, 31), (str(text), 300)):
        study = study_decoding(quick=True, seed=1, data=data, sizes=replace(TINY, vocab_size=size))
        (table,) = study.tables
        assert [row[0] for row in table.rows] == [HUMAN, *STRATEGIES]
        likeliest = max(table.rows, key=lambda row: row[1][0])  # pyright: ignore
        assert f"are of {likeliest[0]}:" in study.findings[0]
        closest = min(table.rows[1:], key=lambda row: row[4])  # pyright: ignore
        assert f"is {closest[0]} (" in study.findings[2]


def test_a_text_that_is_too_short_is_an_error(tmp_path: Path):
    (tmp_path / "text.txt").write_text("a b c\n", encoding="utf-8")
    with pytest.raises(DataError, match="tokens, and the study needs at least 134"):
        study_decoding(quick=True, data=str(tmp_path / "text.txt"), sizes=replace(TINY, vocab_size=300))
