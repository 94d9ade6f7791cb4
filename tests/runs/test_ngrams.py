"""Runs whose model is a mixture of a network with n-grams: the default for a short run on a CPU."""

import random
from pathlib import Path

import pytest
import torch

from regard import Run, export_model, finetune, load, train
from regard.errors import ConfigError

WORDS = [f"{first}{second}" for first in "bdfgk" for second in ("a", "e", "i", "o", "um", "ent")]


def markov_text(num_words: int, seed: int) -> str:
    """Each word has five usual successors; lines have eleven words."""
    rng, table = random.Random(seed), random.Random(1)
    usual = {word: table.choices(WORDS, k=5) for word in WORDS}
    words = ["ba"]
    while len(words) < num_words:
        words.append(rng.choice(usual[words[-1]]) if rng.random() < 0.8 else rng.choice(WORDS))
    return "\n".join(" ".join(words[start : start + 11]) for start in range(0, num_words, 11))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("markov")
    (folder / "text.txt").write_text(markov_text(6_000, seed=2), encoding="utf-8")
    return train(folder / "text.txt", out=folder / "run", tokenizer="words", minutes=0.05, device="cpu")


@pytest.mark.slow
def test_a_short_run_is_not_worse_than_its_baseline(run: Run):
    report, baseline = run.last_report(), run.baseline
    assert report is not None
    assert baseline is not None
    assert run.settings.task.model_dump()["ngrams"] == 3
    own, other = report["scores"]["perplexity"]["value"], baseline.scores["perplexity"]["value"]
    assert own <= other * 1.0001, "the weight is fitted on the first validation tokens, and 0 is the baseline"
    assert "Kneser-Ney 3-grams" in (run.path / "report.html").read_text(encoding="utf-8")


def test_a_loaded_run_is_the_same_mixture_and_generates(run: Run):
    again, rows = load(run.path), run.folder.read_held_out("valid")
    expected = run.evaluate_rows(rows).scores["perplexity"].value
    assert again.evaluate_rows(rows).scores["perplexity"].value == expected
    assert again.score("ba de fi").log_probability == run.score("ba de fi").log_probability
    assert len(again.generate("ba", max_tokens=5).split()) == 5
    assert again.generate("ba", max_tokens=5) == run.generate("ba", max_tokens=5)
    sampled = again.predict(["ba de", "fi"], temperature=1.0, max_tokens=7)
    assert sampled == [again.predict(text, temperature=1.0, max_tokens=7) for text in ("ba de", "fi")]
    assert again.attention("ba de fi").weights["decoder"].shape[-1] == 4


def test_a_fine_tuned_run_starts_from_the_network_alone(run: Run, tmp_path: Path):
    unchanged = {"train": {"learning_rate": 1e-30, "weight_decay": 0.0}}
    text = tmp_path / "text.txt"
    text.write_text(markov_text(900, seed=3), encoding="utf-8")
    tuned = finetune(run.path, text, out=tmp_path / "run", steps=1, device="cpu", settings=unchanged)
    assert tuned.settings.task.model_dump()["ngrams"] == 0
    network = run.model.get_submodule("body")
    for name, parameter in tuned.model.named_parameters():
        torch.testing.assert_close(parameter, network.get_parameter(name))
    with pytest.raises(ConfigError, match=r"task\.ngrams is for models that are trained from scratch"):
        finetune(run.path, text, out=tmp_path / "other", steps=1, settings={"task": {"ngrams": 3}})


@pytest.mark.parametrize("to", ["hf", "onnx", "ctranslate2"])
def test_an_export_is_refused_with_the_setting_to_change(run: Run, tmp_path: Path, to: str):
    with pytest.raises(ConfigError, match=r"task\.ngrams must be 0 to export a model, got 3"):
        export_model(run, tmp_path / "out", to=to)
    assert not list(tmp_path.iterdir())
