"""Runs that start from a linear probe: they never end below it, and with the head alone they are it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.runs.finetune import finetune, set_up_finetuning
from regard.runs.run import Run, load
from regard.runs.train import train
from regard.training.checkpoints import read_tensors

WORDS = ("good", "bad", "fine")
LABELED = [(f"a {WORDS[number % 3]} film number {number}", WORDS[number % 3]) for number in range(120)]
RATED = [(f"a {WORDS[number % 3]} film number {number}", str(number % 3 + number / 200)) for number in range(120)]
DATA = {"splits": [0.9, 0.05, 0.05]}
TRAIN = {"batch_tokens": 300, "precision": "float32", "device": "cpu"}
TINY = {
    "model": {"num_layers": 2, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17, "dropout": 0.0},
    "task": {"tokenizer": "words", "ngrams": 0},
    "data": DATA,
    "train": {**TRAIN, "max_steps": 4},
}
METHODS = ("all", "top", "lora")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained for something else."""
    torch.set_default_dtype(torch.float32)
    rows = [(f"a {WORDS[number % 3]} film number {number}", "odd" if number % 2 else "even") for number in range(120)]
    out = tmp_path_factory.mktemp("runs") / "base"
    return train(rows, out=out, task="text-classification", settings=TINY, show_progress=False).path


@pytest.fixture
def tune(base: Path, tmp_path: Path) -> Callable[..., Run]:
    def run(rows: Any, out: str, **options: Any) -> Run:
        settings = {"data": DATA, "train": {**TRAIN, **options.pop("train", {})}, **options.pop("settings", {})}
        return finetune(base, rows, out=tmp_path / out, settings=settings, show_progress=False, **options)

    return run


def validation_losses(run: Run) -> dict[int, float]:
    return {line["step"]: line["valid_loss"] for line in run.folder.read_metrics() if "valid_loss" in line}


@pytest.mark.parametrize(("rows", "task"), [(LABELED, "text-classification"), (RATED, "regression")])
def test_the_head_alone_is_solved_without_steps_and_is_a_complete_run(tune, base: Path, tmp_path: Path, rows, task):
    run = tune(rows, "probe", method="head", task=task)
    assert list(validation_losses(run)) == [0]
    assert not any("loss" in line for line in run.folder.read_metrics())
    events = [(line["event"], line["candidate"]) for line in run.folder.read_ledger() if line["scores"]]
    assert events == [("training", "step 0"), ("report", "step 0")]
    assert run.folder.report_path.is_file()
    stored, whole = (read_tensors(path)[0] for path in (run.folder.model_path, base / "model.safetensors"))
    for name in whole.keys() - {"head.output.weight", "head.output.bias"}:
        torch.testing.assert_close(stored[name], whole[name], rtol=0, atol=0)
    again = load(run.path, device="cpu")
    found, expected = (each.evaluate(log=False) for each in (again, run))
    assert found.scores == expected.scores
    assert found.likelihoods.mean == pytest.approx(validation_losses(run)[0], rel=1e-5)
    if task == "text-classification":
        assert found.scores["accuracy"].value > 0.9
    else:
        assert found.scores["pearson"].value > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_a_run_never_ends_below_its_probe(tune, method: str):
    destructive = {"max_steps": 6, "evaluate_every": 2, "learning_rate": 3.0, "warmup_steps": 0}
    run, probe = tune(LABELED, "tuned", method=method, train=destructive), tune(LABELED, "probe", method="head")
    losses = validation_losses(run)
    assert list(losses) == [0, 2, 4, 6]
    assert losses[0] == pytest.approx(validation_losses(probe)[0], rel=1e-4)
    assert min(losses[step] for step in (2, 4, 6)) > losses[0]
    assert run.candidate() == "step 0"
    assert ("training", "step 0") in [(line["event"], line["candidate"]) for line in run.folder.read_ledger()]
    text = ["a good film number 7"]
    (found,), (expected,) = (each.predict_full(text) for each in (run, probe))
    assert found.probabilities == pytest.approx(expected.probabilities, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_training_goes_on_from_the_probe(tune, method: str):
    run = tune(LABELED, "tuned", method=method, train={"max_steps": 20, "evaluate_every": 5, "learning_rate": 0.003})
    losses = validation_losses(run)
    assert min(losses, key=lambda step: losses[step]) > 0
    assert losses[5] < 2 * losses[0]


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_is_resumed_as_if_it_had_not_been(tune, tmp_path: Path, method: str):
    train_settings = {"max_steps": 6, "evaluate_every": 2, "checkpoint_every": 3, "learning_rate": 0.003}
    whole = tune(LABELED, "whole", method=method, train=train_settings)
    stopped = tune(LABELED, "stopped", method=method, train=train_settings)
    (stopped.folder.checkpoints / "step-000000006.safetensors").unlink()
    resumed = train(LABELED, out=stopped.path, resume=True, show_progress=False)
    assert validation_losses(resumed) == validation_losses(whole)
    one, other = (read_tensors(run.folder.model_path)[0] for run in (whole, resumed))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_run_without_a_checkpoint_is_probed_again(tune, tmp_path: Path):
    run = tune(LABELED, "probe", method="head")
    before = read_tensors(run.folder.model_path)[0]
    for path in run.folder.checkpoints.iterdir():
        path.unlink()
    run.folder.metrics_path.unlink()
    resumed = train(LABELED, out=run.path, resume=True, show_progress=False)
    torch.testing.assert_close(read_tensors(resumed.folder.model_path)[0], before, rtol=0, atol=0)
    assert list(validation_losses(resumed)) == [0]


def test_a_finished_probe_can_be_trained_further(tune, tmp_path: Path):
    run = tune(LABELED, "probe", method="head")
    again = train(LABELED, out=run.path, resume=True, show_progress=False)
    assert list(validation_losses(again)) == [0]
    longer = train(LABELED, out=run.path, resume=True, steps=3, show_progress=False)
    assert list(validation_losses(longer)) == [0, 3]


@pytest.mark.parametrize(
    "settings",
    [{"finetune": {"probe": False}}, {"head": {"hidden_layer": True}}, {"head": {"pooling": "attention"}}],
)
def test_a_head_that_is_not_linear_or_not_to_be_probed_is_trained(tune, settings: dict[str, Any]):
    run = tune(LABELED, "tuned", method="head", train={"max_steps": 2}, settings=settings)
    assert list(validation_losses(run)) == [2]
    assert run.settings.finetune.probe is False


def test_words_are_probed(tune, tmp_path: Path):
    words = [f"{WORDS[number % 3]} O\ncat O\n{number} O\nAda B-{WORDS[number % 3].upper()}\n" for number in range(90)]
    (tmp_path / "tags.conll").write_text("\n".join(words))
    run = tune(str(tmp_path / "tags.conll"), "tags", method="head")
    assert list(validation_losses(run)) == [0]
    assert run.evaluate(log=False).likelihoods.mean == pytest.approx(validation_losses(run)[0], rel=1e-5)


def test_few_shots_choose_nothing_by_validation_rows(tune):
    run = tune(LABELED, "few", method="lora", train={"max_steps": 2}, settings={"data": {"shots": 4}})
    assert list(validation_losses(run)) == [2]
    alone = tune(LABELED, "head", method="head", settings={"data": {"shots": 4}})
    assert list(validation_losses(alone)) == [0]


@pytest.mark.slow
def test_a_few_shot_experiment_of_probes(base: Path, tmp_path: Path):
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in LABELED))
    settings = {"train": TRAIN}
    found = regard.few_shot(str(path), [4], base=base, method="head", shot_seeds=1, settings=settings,
                            out=tmp_path / "few", show_progress=False)  # fmt: skip
    (size,) = json.loads((found.path / "few_shot.json").read_text())["sizes"]
    assert [run["steps"] for run in size["runs"]] == [0]
    assert size["runs"][0]["seconds"] > 0


def test_a_run_that_is_stopped_while_vectors_are_computed_can_be_resumed(base: Path):
    values = {"task": {"name": "text-classification"}, "train": {**TRAIN, "max_steps": 2}}
    _, _, trainer = set_up_finetuning(base, values, method="lora", rows=LABELED)
    saved: list[int] = []
    outcome = trainer.fit(save=lambda each: saved.append(each.progress.step), should_stop=lambda: True)
    assert (outcome.is_finished, outcome.progress.step, saved) == (False, 0, [0])
    assert trainer.fit().progress.step == 2
    assert trainer.progress.best_loss < float("inf")
