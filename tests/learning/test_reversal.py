"""Does it learn: reversing short strings, from a list of pairs, in seconds."""

import random

import pytest
import torch

import regard


@pytest.fixture(autouse=True)
def single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_a_tiny_transformer_learns_to_reverse(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    rng = random.Random(0)
    words = {"".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(6_000)}
    pairs = [(word, word[::-1]) for word in sorted(words)]
    run = regard.train(
        pairs,
        out=tmp_path / "run",
        settings={
            "model": {"model_dim": 32, "feedforward_dim": 64, "num_heads": 2, "dropout": 0.0},
            "task": {"tokenizer": "characters"},
            "train": {"max_steps": 400, "batch_tokens": 512, "learning_rate": 5e-3, "label_smoothing": 0.0},
        },
        show_progress=False,
    )
    evaluation = run.test()
    assert evaluation.headline == "exact_match"
    assert evaluation.scores["exact_match"].interval[0] > 0.9
    assert run.predict("abcdef") == "fedcba"
    assert run.predict(["hgf", "abcd"], beam_size=4) == ["fgh", "dcba"]
