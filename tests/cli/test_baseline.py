"""The baseline on the command line: its line on stderr, its scores in the JSON, and the option that turns it off."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.experiments.jobs import Job, run_job
from regard.explanation.pages import page_data

WORDS = {"good": "praise", "great": "praise", "bad": "blame", "weak": "blame"}


@pytest.fixture(scope="module")
def opinions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("opinions") / "opinions.tsv"
    rows = [f"a {word} film number {number}\t{label}\n" for number in range(60) for word, label in WORDS.items()]
    path.write_text("text\tlabel\n" + "".join(rows))
    return path


def train_section(run: Path) -> dict[str, object]:
    return tomllib.loads((run / "run.toml").read_text())["train"]


def test_a_model_of_one_step_is_worse_and_that_comes_first(
    regard: Callable, tiny: list[str], opinions: Path, tmp_path: Path
):
    splits = ["--set", "data.splits=[0.6, 0.3, 0.1]", "--set", "train.learning_rate=1e-6", "--set", "task.ngrams=0"]
    answer = regard("train", opinions, "--out", tmp_path / "run", "--steps", 1, *tiny, *splits, "--json").succeeds()
    lines = answer.err.splitlines()
    trained = next(number for number, line in enumerate(lines) if line.startswith("trained 1 step"))
    assert lines[trained + 1].startswith("warning: the model is significantly worse than the baseline, TF-IDF + logist")
    assert "most likely to help: training for more than 1 step, fine-tuning of a pretr" in lines[trained + 1]
    assert lines[trained + 2].startswith("warning: the model has not learned the task")
    assert lines[trained + 3].startswith("validation accuracy")
    found = json.loads(answer.out.splitlines()[-1])
    baseline = found["baseline"]
    assert baseline == json.loads((tmp_path / "run" / "baseline.json").read_text())
    assert baseline["verdict"] == "worse"
    assert baseline["scores"]["accuracy"]["value"] == 1.0
    assert baseline["model_score"] == found["accuracy"]["value"]


def test_no_baseline_is_fitted_where_it_is_turned_off(
    regard: Callable, tiny: list[str], opinions: Path, tmp_path: Path
):
    run, tuned = tmp_path / "run", tmp_path / "tuned"
    answer = regard("train", opinions, "--out", run, "--steps", 1, *tiny, "--no-baseline", "--json").succeeds()
    assert "the baseline" not in answer.err
    assert "baseline" not in json.loads(answer.out.splitlines()[-1])
    fine = regard("finetune", run, opinions, "--out", tuned, "--steps", 1, "--device", "cpu", "--no-baseline", "--json")
    assert "baseline" not in json.loads(fine.succeeds().out.splitlines()[-1])
    for folder in (run, tuned):
        assert train_section(folder)["baseline"] is False
        assert not (folder / "baseline.json").exists()


def test_runs_of_an_experiment_fit_no_baseline_unless_it_is_set(dates: Path, tmp_path: Path):
    settings = {
        "preset": "transformer-tiny",
        "model": {"model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "num_layers": 1},
        "task": {"name": "seq2seq", "tokenizer": "bytes"},
        "generate": {"max_tokens": 4},
        "train": {"max_steps": 1, "device": "cpu"},
    }
    with_one = {**settings, "train": {**settings["train"], "baseline": True}}
    for name, given in {"plain": settings, "set": with_one}.items():
        path = tmp_path / name
        run_job(
            Job(label="x", seed=0, path=str(path), data=[str(dates)], settings=given, threads=1, is_evaluated=False)
        )
        assert train_section(path)["baseline"] is (name == "set")
        assert (path / "baseline.json").exists() is (name == "set")


def test_a_comparison_has_the_baseline_beside_its_models(
    regard: Callable, opinions: Path, jobs_inside: Callable, tmp_path: Path
):
    models = ["--models", "gru,lstm", "--steps", "1"]
    shape = ["--set", "model.model_dim=12", "--set", "model.num_layers=1", "--set", "train.learning_rate=1e-6"]
    shape += ["--set", "data.splits=[0.6, 0.1, 0.3]", "--set", "train.device=cpu", "--set", "task.tokenizer=words"]
    shape += ["--set", "task.ngrams=0"]
    with jobs_inside():
        answer = regard("compare", opinions, *models, *shape, "--out", tmp_path / "all").succeeds()
        without = ["--set", "train.baseline=false", "--out", tmp_path / "none"]
        plain = regard("compare", opinions, *models, *shape, *without).succeeds()
    table = json.loads((tmp_path / "all" / "compare.json").read_text())
    baseline = table["baseline"]
    best = max(table["models"], key=lambda model: model["score"]["value"])
    assert baseline["model"] == best["name"]
    assert baseline["scores"]["accuracy"]["value"] == 1.0
    assert baseline["model_score"] == best["score"]["value"]
    assert baseline["verdict"] == "worse"
    (row,) = [line for line in answer.out.splitlines() if line.strip().startswith("baseline")]
    assert "1.000" in row
    verdict = f"{best['name']} is significantly worse than the baseline, TF-IDF + logistic regression: 1.000."
    assert verdict in " ".join(answer.out.split())
    assert page_data(tmp_path / "all" / "compare.html")["verdict"].endswith(verdict)
    assert json.loads((tmp_path / "none" / "compare.json").read_text())["baseline"] is None
    assert "baseline" not in plain.out


def test_help_and_import_load_no_scikit_learn():
    code = (
        "import sys, regard\nfrom regard.cli.main import main\nsys.argv = ['regard', 'train', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    sys.exit(any(name in sys.modules for name in ('sklearn', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == 0
    assert b"--no-baseline" in done.stdout
