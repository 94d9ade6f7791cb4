"""Runs with LoRA: merged they predict the same without their base, and several of them share one."""

from pathlib import Path

import pytest
import torch

import regard
from regard.adapters.lora import LoraConfig
from regard.errors import CheckpointError, ConfigError, RunError, RunExistsError
from regard.runs.run import Run

TINY = {
    "model": {"num_layers": 2, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17, "dropout": 0.0},
    "task": {"tokenizer": "characters"},
    "train": {"max_steps": 3, "batch_tokens": 300, "evaluate_every": 3, "precision": "float32", "device": "cpu"},
}
WORDS = {"good": "+", "bad": "-", "fair": "o"}
TONES = [(f"{word} film number {number}", label) for number in range(40) for word, label in WORDS.items()]
TOPICS = [(f"a {word} at {number}", word) for number in range(60) for word in ("play", "song")]
TEXTS = ["good film number 3", "a bad song"]
LORAS = {"tone": LoraConfig(rank=3), "topic": LoraConfig(rank=2, dora=True, targets=["*query", "*feedforward*"])}


def tune(base: Path, out: Path, rows, lora: LoraConfig, *, seed: int = 0) -> Path:
    """A run with LoRA whose updates are far from zero."""
    settings = {
        "train": {**TINY["train"], "learning_rate": 0.05, "warmup_steps": 1, "seed": seed},
        "finetune": {"lora": lora.model_dump()},
    }
    return regard.finetune(base, rows, out=out, method="lora", settings=settings, show_progress=False).path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and runs on it; and a run on another base."""
    place = tmp_path_factory.mktemp("runs")
    torch.set_default_dtype(torch.float32)
    for name, seed in (("base", 0), ("other", 7)):
        settings = {**TINY, "train": {**TINY["train"], "seed": seed}}
        regard.train(TONES, out=place / name, task="text-classification", settings=settings, show_progress=False)
    tune(place / "base", place / "tone", TONES, LORAS["tone"])
    tune(place / "base", place / "topic", TOPICS, LORAS["topic"], seed=1)
    tune(place / "base", place / "quantized", TOPICS, LoraConfig(rank=2, bits=8))
    tune(place / "other", place / "unrelated", TONES, LORAS["tone"])
    return place


def logits_of(run: Run, texts: list[str] = TEXTS) -> torch.Tensor:
    (batch,) = run.task.row_batches([(text, labels_of(run)[0]) for text in texts])
    with torch.no_grad():
        return run.model(batch.source, batch.lengths, batch.segments)


def labels_of(run: Run) -> list[str]:
    return run.task.codecs["label"].labels


def probabilities_of(run: Run) -> list[dict[str, float] | None]:
    return [prediction.probabilities for prediction in run.predict_full(TEXTS)]


@pytest.mark.parametrize("name", ["tone", "topic", "quantized"])
def test_a_merged_run_has_the_logits_of_the_updates_and_their_base(folder: Path, tmp_path: Path, name: str):
    merged = regard.load(regard.merge(folder / name, tmp_path / "merged"))
    beside = regard.load(folder / name)
    base = logits_of(beside)
    beside.model = beside.unmerged()
    torch.testing.assert_close(logits_of(merged), logits_of(beside))
    assert not torch.equal(base, torch.zeros_like(base))
    assert merged.settings.finetune is None


def test_a_merged_run_predicts_the_same_and_needs_no_base(folder: Path, tmp_path: Path):
    made = regard.merge(folder / "tone", tmp_path / "merged")
    merged, alone = regard.load(made), probabilities_of(regard.load(folder / "tone"))
    (folder / "base").rename(folder / "elsewhere")
    try:
        assert probabilities_of(merged) == alone
    finally:
        (folder / "elsewhere").rename(folder / "base")
    assert merged.folder.read_ledger() == regard.load(folder / "tone").folder.read_ledger()
    assert merged.evaluate().scores["accuracy"] == regard.load(folder / "tone").evaluate().scores["accuracy"]
    assert "merged: the LoRA updates of tone" in (made / "run.toml").read_text()


def test_a_merged_run_can_be_fine_tuned_but_not_resumed(folder: Path, tmp_path: Path):
    made = regard.merge(folder / "tone", tmp_path / "merged")
    assert labels_of(regard.load(tune(made, tmp_path / "on", TOPICS, LORAS["tone"]))) == ["play", "song"]
    with pytest.raises(RunError, match="merged"):
        regard.train(TONES, out=made, resume=True, show_progress=False)


def test_what_cannot_be_merged_is_an_error_and_nothing_is_written(folder: Path, tmp_path: Path):
    with pytest.raises(RunError, match="has all its weights"):
        regard.merge(folder / "base", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(RunExistsError, match="already has a run"):
        regard.merge(folder / "tone", folder / "topic")
    for taken, what in (("tone", "the run itself"), ("base", "the base of the run")):
        with pytest.raises(RunError, match=f"is {what}"):
            regard.merge(folder / "tone", folder / taken, overwrite=True)


def test_runs_that_share_a_base_have_the_logits_that_they_have_alone(folder: Path):
    together = regard.load_adapters([folder / "tone", folder / "topic"])
    assert list(together) == ["tone", "topic"]
    for name in ("tone", "topic", "topic", "tone"):
        torch.testing.assert_close(logits_of(together[name]), logits_of(regard.load(folder / name)))
    assert list(probabilities_of(together["tone"])[0] or {}) == ["+", "-", "o"]
    assert list(probabilities_of(together["topic"])[0] or {}) == ["play", "song"]


def test_frozen_weights_are_in_memory_once(folder: Path):
    runs = regard.load_adapters([folder / "tone", folder / "topic"])
    models = [run.inference_model for run in runs.values()]
    assert [run.model for run in runs.values()] == models
    frozen = [{p.data_ptr(): p.numel() for p in model.parameters() if not p.requires_grad} for model in models]
    assert frozen[0] == frozen[1]
    places = {p.data_ptr(): p.numel() for model in models for p in model.parameters()}
    learned = sum(p.numel() for model in models for p in model.parameters() if p.requires_grad)
    base = sum(
        p.numel()
        for name, p in regard.load(folder / "base").model.named_parameters()
        if not name.startswith(("head.", "ngrams."))
    )
    assert sum(places.values()) == base + learned


def test_quantized_weights_are_shared_with_quantized_weights_only(folder: Path, tmp_path: Path):
    also = tune(folder / "base", tmp_path / "also", TONES, LoraConfig(rank=2, bits=8))
    runs = regard.load_adapters([folder / "quantized", also])
    codes = [{b.data_ptr() for _, b in run.model.named_buffers()} for run in runs.values()]
    assert codes[0] == codes[1] != set()
    with pytest.raises(ConfigError, match=r"finetune\.lora\.bits=8 .* and None"):
        regard.load_adapters([folder / "quantized", folder / "tone"])


def test_runs_that_share_no_base_are_an_error(folder: Path):
    with pytest.raises(CheckpointError, match=r"one base.*tone .*unrelated"):
        regard.load_adapters([folder / "tone", folder / "unrelated"])
    with pytest.raises(RunError, match=r"LoRA.*base"):
        regard.load_adapters([folder / "tone", folder / "base"])
    with pytest.raises(ConfigError, match="once"):
        regard.load_adapters([folder / "tone", folder / "tone"])
    with pytest.raises(ConfigError, match="no runs to load"):
        regard.load_adapters([])
