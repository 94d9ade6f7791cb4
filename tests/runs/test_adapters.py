"""Runs with LoRA: merged they say the same without their base, and several of them share one."""

from pathlib import Path

import pytest
import torch

import regard
from regard.adapters.lora import LoraConfig
from regard.errors import CheckpointError, ConfigError, RunError, RunExistsError
from regard.runs.run import Run

TINY = {
    "model": {"num_layers": 2, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17, "dropout": 0.0},
    "data": {"tokenizer": "characters"},
    "train": {"max_steps": 3, "batch_tokens": 300, "evaluate_every": 3, "precision": "float32", "device": "cpu"},
}
WORDS = {"good": "+", "bad": "-", "fair": "o"}
TONES = [(f"{word} film number {number}", label) for number in range(40) for word, label in WORDS.items()]
TOPICS = [(f"a {word} at {number}", word) for number in range(60) for word in ("play", "song")]
TEXTS = ["good film number 3", "a bad song"]
LORAS = {"tone": LoraConfig(rank=3), "topic": LoraConfig(rank=2, dora=True, targets=["*query", "*feedforward*"])}


def tune(base: Path, out: Path, rows, lora: LoraConfig, *, seed: int = 0) -> Path:
    """A run with LoRA whose corrections are far from nothing."""
    settings = {
        "train": {**TINY["train"], "learning_rate": 0.05, "warmup_steps": 1, "seed": seed},
        "finetune": {"lora": lora.model_dump()},
    }
    return regard.finetune(base, rows, out=out, method="lora", settings=settings, show_progress=False).path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and runs on it; all of them trained in what a user gets."""
    before, place = torch.get_default_dtype(), tmp_path_factory.mktemp("runs")
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        shared = {**TINY, "task": "classification"}
        regard.train(TONES, out=place / "base", settings=shared, show_progress=False)
        other = {**shared, "train": {**TINY["train"], "seed": 7}}
        regard.train(TONES, out=place / "other", settings=other, show_progress=False)
        tune(place / "base", place / "tone", TONES, LORAS["tone"])
        tune(place / "base", place / "topic", TOPICS, LORAS["topic"], seed=1)
        tune(place / "base", place / "packed", TOPICS, LoraConfig(rank=2, bits=8))
        tune(place / "other", place / "strange", TONES, LORAS["tone"])
    torch.set_default_dtype(before)
    return place


def scores_of(run: Run, texts: list[str] = TEXTS) -> torch.Tensor:
    """What the model of a run makes of these texts, in its own precision."""
    config = run.settings.data
    (batch,) = run.task.rows_as_batches([(text, config.labels[0]) for text in texts], run.tokenizer, config)
    with torch.no_grad():
        return run.model(batch.source, batch.lengths, batch.segments)


def said_by(run: Run) -> list[dict[str, float] | None]:
    return [prediction.probabilities for prediction in run.predictions(TEXTS)]


@pytest.mark.parametrize("name", ["tone", "topic", "packed"])
def test_a_merged_run_computes_what_the_corrections_beside_their_base_do(folder: Path, tmp_path: Path, name: str):
    merged = regard.load(regard.merge(folder / name, tmp_path / "merged"))
    beside = regard.load(folder / name)
    base = scores_of(beside)
    beside.model = beside.unmerged()
    torch.testing.assert_close(scores_of(merged), scores_of(beside))
    assert not torch.equal(base, torch.zeros_like(base))
    assert merged.settings.finetune is None


def test_a_merged_run_says_the_very_same_and_needs_no_base(folder: Path, tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    made = regard.merge(folder / "tone", tmp_path / "merged")
    merged, alone = regard.load(made), said_by(regard.load(folder / "tone"))
    (folder / "base").rename(folder / "elsewhere")
    try:
        assert said_by(merged) == alone
    finally:
        (folder / "elsewhere").rename(folder / "base")
    assert merged.folder.read_looks() == regard.load(folder / "tone").folder.read_looks()
    assert merged.evaluate().scores["accuracy"] == regard.load(folder / "tone").evaluate().scores["accuracy"]
    assert "merged: the corrections of tone" in (made / "run.toml").read_text()


def test_a_merged_run_is_a_base_but_no_training_to_resume(folder: Path, tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    made = regard.merge(folder / "tone", tmp_path / "merged")
    assert set(regard.load(tune(made, tmp_path / "on", TOPICS, LORAS["tone"])).settings.data.labels) == {"play", "song"}
    with pytest.raises(RunError, match="imported or merged, and has no training to go on with"):
        regard.train(TONES, out=made, resume=True, show_progress=False)


def test_what_cannot_be_merged_is_told_and_nothing_is_written(folder: Path, tmp_path: Path):
    with pytest.raises(RunError, match="holds all its weights already"):
        regard.merge(folder / "base", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(RunExistsError, match="already holds a run"):
        regard.merge(folder / "tone", folder / "topic")
    for taken, what in (("tone", "the run itself"), ("base", "the base of the run")):
        with pytest.raises(RunError, match=f"is {what}"):
            regard.merge(folder / "tone", folder / taken, overwrite=True)


def test_runs_that_share_a_base_give_the_numbers_they_give_alone(folder: Path):
    together = regard.load_adapters([folder / "tone", folder / "topic"])
    assert list(together) == ["tone", "topic"]
    for name in ("tone", "topic", "topic", "tone"):
        torch.testing.assert_close(scores_of(together[name]), scores_of(regard.load(folder / name)))
    assert list(said_by(together["tone"])[0] or {}) == ["+", "-", "o"]
    assert list(said_by(together["topic"])[0] or {}) == ["play", "song"]


def test_what_is_frozen_is_in_memory_once(folder: Path):
    runs = regard.load_adapters([folder / "tone", folder / "topic"])
    models = [run.inference_model for run in runs.values()]
    assert [run.model for run in runs.values()] == models
    frozen = [{p.data_ptr(): p.numel() for p in model.parameters() if not p.requires_grad} for model in models]
    assert frozen[0] == frozen[1]
    places = {p.data_ptr(): p.numel() for model in models for p in model.parameters()}
    learned = sum(p.numel() for model in models for p in model.parameters() if p.requires_grad)
    base = sum(p.numel() for name, p in regard.load(folder / "base").model.named_parameters() if "head." not in name)
    assert sum(places.values()) == base + learned


def test_packed_weights_are_shared_with_packed_weights_only(folder: Path, tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    also = tune(folder / "base", tmp_path / "also", TONES, LoraConfig(rank=2, bits=8))
    runs = regard.load_adapters([folder / "packed", also])
    codes = [{b.data_ptr() for _, b in run.model.named_buffers()} for run in runs.values()]
    assert codes[0] == codes[1] != set()
    with pytest.raises(ConfigError, match=r"as many bits, got finetune\.lora\.bits=8 .* and None"):
        regard.load_adapters([folder / "packed", folder / "tone"])


def test_runs_that_share_no_base_are_refused(folder: Path):
    with pytest.raises(CheckpointError, match=r"have one base, but .*tone was trained on weights .*, .*strange on"):
        regard.load_adapters([folder / "tone", folder / "strange"])
    with pytest.raises(RunError, match=r"trained with LoRA, but .*base holds all its weights"):
        regard.load_adapters([folder / "tone", folder / "base"])
    with pytest.raises(ConfigError, match="loaded once"):
        regard.load_adapters([folder / "tone", folder / "tone"])
    with pytest.raises(ConfigError, match="no runs to load"):
        regard.load_adapters([])
