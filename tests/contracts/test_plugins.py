"""A package outside of regard adds a task on data that is not text, a model family, a metric, an importer and a study.

The package in `plugin/` is installed into a temporary folder; nothing in `src/` knows it. Every command works on it.
"""

import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import call

from regard.explanation.pages import page_data

PLUGIN = Path(__file__).parent / "plugin"
pytestmark = pytest.mark.slow


class Shell:
    """Runs `regard` with the plug-in installed, in a process of its own."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self.folder, self.packages = folder, packages
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
            "REGARD_CACHE": str(folder / "cache"),
        }

    def run(self, *arguments: str, code: int = 0, stdin: str | None = None) -> str:
        """Returns stdout, or stderr where the command is expected to fail."""
        done = subprocess.run(
            [sys.executable, "-m", "regard", *arguments],
            cwd=self.folder, env=self.env, input=stdin, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def call(self, *arguments: str, code: int = 0) -> str:
        """The same inside this process, where what it starts has the same environment."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.syspath_prepend(self.packages)
            for name, value in self.env.items():
                patch.setenv(name, value)
            torch.set_default_dtype(torch.float32)
            answer = call(*arguments)
        assert answer.code == code, answer.err
        return answer.out if code == 0 else answer.err

    def json(self, *arguments: str) -> dict[str, Any]:
        return json.loads(self.call(*arguments, "--json").splitlines()[-1])


def install(source: Path, target: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index",
         "--target", str(target), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("packages")
    source.mkdir()
    for path in PLUGIN.iterdir():
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    install(source, target)
    return target


def series(number: int, *, seed: int) -> str:
    """Lines of a rising or falling series and its label."""
    rng = random.Random(seed)
    lines = []
    for _ in range(number):
        is_up = rng.random() < 0.5
        values = sorted((round(rng.random(), 3) for _ in range(rng.randint(4, 9))), reverse=not is_up)
        lines.append(f"{' '.join(map(str, values))}\t{'up' if is_up else 'down'}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Shell:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "train.series").write_text(series(600, seed=1))
    (folder / "more.series").write_text(series(60, seed=2))
    shell = Shell(folder, packages)
    shell.run("train", "train.series", "--out", "run", "--steps", "60", "--set", "train.checkpoint_every=20")
    return shell


def test_the_task_is_detected_trained_and_written(shell: Shell):
    assert (shell.folder / "run" / "codecs" / "series.json").is_file()
    assert not (shell.folder / "run" / "codecs" / "text.json").exists()
    settings = (shell.folder / "run" / "run.toml").read_text()
    assert 'name = "trend"' in settings
    assert 'family = "pooled-series"' in settings
    assert "Share of up" in (shell.folder / "run" / "report.html").read_text()


def test_the_task_adds_a_section_to_its_report(shell: Shell):
    data = page_data(shell.folder / "run" / "report.html")
    (section,) = data["sections"]
    assert (section["title"], section["lead"], section["note"]) == ("Trends", "The first series.", "Each has a row.")
    assert section["figure"].count("<svg") == 1
    assert section["table"]["columns"] == ["target", "prediction"]
    assert {row[0] for row in section["table"]["rows"]} == {"up", "down"}


def test_the_task_adds_a_field_to_predictions_and_to_what_a_metric_reads(shell: Shell):
    (found,) = shell.json("predict", "run", "0.1 0.2 0.75")["predictions"]
    assert found["change"] == 0.65
    assert shell.json("evaluate", "run", "more.series")["monotone"]["value"] > 0.9


def test_the_task_offers_a_capability_of_another_task(shell: Shell):
    (shell.folder / "one.series").write_text("0.1 0.5\tup\n")
    rows = shell.json("forecast", "run", "one.series", "--horizon", "3", "--plot", "one.svg")["rows"]
    assert [(row["time"], row["point"], row["lower"]) for row in rows] == [(str(n), 0.5, -0.5) for n in range(3)]
    assert "<svg" in (shell.folder / "one.svg").read_text()
    assert "images are drawn by" in shell.call("generate", "run", "--class", "up", "--out", "x.png", code=2)


def test_a_data_set_of_the_plugin_is_built_in(shell: Shell):
    assert "walks\tseries that increase or decrease" in shell.call("data", "list")
    assert shell.call("data", "show", "walks", "--rows", "2").splitlines()[0] == "series\tlabel"
    shell.call("train", "walks", "--task", "trend", "--steps", "5", "--out", "walked")
    assert "walks" in shell.call("train", "wlaks", "--task", "trend", "--steps", "5", "--out", "other", code=2)


def test_predict_and_evaluate(shell: Shell):
    assert shell.call("predict", "run", "0.1 0.2 0.6 0.9", "0.9 0.5 0.1").split() == ["up", "down"]
    scores = shell.json("evaluate", "run", "more.series")
    assert scores["accuracy"]["value"] > 0.9
    assert scores["rows"] == 60
    assert 0.0 < scores["share_of_up"]["value"] < 1.0
    assert "numbers separated by spaces" in shell.call("predict", "run", "not a number", code=2)


def test_training_is_resumed_to_the_same_weights(shell: Shell):
    common = ("--set", "train.checkpoint_every=20", "--seed", "3")
    shell.call("train", "train.series", "--out", "whole", "--steps", "60", *common)
    shell.call("train", "train.series", "--out", "parts", "--steps", "60", *common)
    for path in sorted((shell.folder / "parts" / "checkpoints").iterdir()):
        if "60" in path.name:
            path.unlink()
    shell.call("train", "--out", "parts", "--resume")
    weights = [(shell.folder / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]


def test_test_and_certificate(shell: Shell):
    assert shell.json("test", "run")["accuracy"]["value"] > 0.8
    certificate = shell.json("certificate", "run")
    assert certificate["openings"]


def test_compare_sweep_and_shots(shell: Shell):
    table = shell.json("compare", "train.series", "--models", "pooled,last", "--steps", "20", "--out", "compared")
    assert {model["name"] for model in table["models"]} == {"pooled", "last"}
    assert table["metric"] == "accuracy"
    (shell.folder / "space.toml").write_text("[model.model_dim]\nchoices = [4, 8]\n")
    sweep = shell.json("sweep", "train.series", "space.toml", "--trials", "2", "--steps", "20", "--repeats", "1",
                       "--objective", "share_of_up", "--out", "swept")  # fmt: skip
    assert sweep["objectives"] == [{"name": "share_of_up", "direction": "maximize"}]
    shots = shell.json("train", "train.series", "--shots", "4", "--shot-seeds", "2", "--steps", "5", "--out", "few")
    assert shots["is_per_label"]


def test_the_server_answers(shell: Shell):
    command = [sys.executable, "-m", "regard", "serve", "run", "--port", "0", "--json"]
    with subprocess.Popen(
        command, cwd=shell.folder, env=shell.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["url"].rstrip("/")
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            body = json.dumps({"inputs": ["0.1 0.2 0.6 0.9"]}).encode()
            request = urllib.request.Request(f"{address}/predict", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                assert json.load(response)["predictions"][0]["output"] == "up"
            with urllib.request.urlopen(f"{address}/model", timeout=60) as response:
                model = json.load(response)
            assert model["inputs"] == ["series"]
            assert model["labels"] == ["down", "up"]
        finally:
            process.terminate()


def test_what_the_task_cannot_do_is_one_line(shell: Shell):
    assert "cannot be exported" in shell.call("export", "run", "--to", "onnx", "--out", "x.onnx", code=2)
    assert "attention" in shell.call("attention", "run", "0.1 0.2", code=2)
    assert "embeddings" in shell.call("embed", "run", "0.1 0.2", code=2)
    assert "language models" in shell.call("generate", "run", "0.1", code=2)


def test_the_importer_the_exporter_and_the_study(shell: Shell):
    values = {"labels": ["bad", "good"], "words": {"awful": [2.0, 0.0], "great": [0.0, 2.0], "film": [0.0, 0.0]}}
    (shell.folder / "words.trend.json").write_text(json.dumps(values))
    shell.call("import", "words.trend.json", "imported")
    assert shell.call("predict", "imported", "great film", "awful film").split() == ["good", "bad"]
    shell.call("export", "imported", "--to", "trend-json", "--out", "exported.trend.json")
    assert json.loads((shell.folder / "exported.trend.json").read_text()) == values
    (shell.folder / "broken.trend.json").write_text("{}")
    assert "broken.trend.json" in shell.call("import", "broken.trend.json", "other", code=2)
    assert "coin" in shell.call("lab")
    assert "of 100 tosses" in shell.call("lab", "coin", "--quick")


def test_help_settings_and_the_nearest_name(shell: Shell):
    assert "most_numbers" in shell.call("settings", "--task", "trend")
    assert "trend" in shell.call("train", "train.series", "--task", "trned", code=2)
    assert "most_numbers" in shell.call("train", "train.series", "--set", "task.most_number=3", code=2)


BROKEN = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.0"

[project.entry-points."regard.tasks"]
{task} = "{module}:{target}"

[tool.setuptools]
py-modules = ["{module}"]
"""


def package(folder: Path, packages: Path, *, name: str, task: str, target: str, code: str) -> None:
    """Installs a package with one module, that registers one task."""
    module = name.replace("-", "_")
    folder.mkdir()
    (folder / "pyproject.toml").write_text(BROKEN.format(name=name, task=task, module=module, target=target))
    (folder / f"{module}.py").write_text(code)
    install(folder, packages)


def test_a_broken_plugin_is_one_line_and_everything_else_works(tmp_path: Path):
    packages = tmp_path / "packages"
    package(tmp_path / "a", packages, name="no-import", task="absent", target="Gone", code="import nothing_here\n")
    package(tmp_path / "b", packages, name="no-member", task="partial", target="Partial",
            code="class Partial:\n    name = 'partial'\n")  # fmt: skip
    shell = Shell(tmp_path, packages)
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} {n}\t{n}\n" for n in range(100)))
    error = shell.run("train", "pairs.tsv", "--task", "absent", code=2)
    assert "no-import" in error
    assert "nothing_here" in error
    error = shell.run("train", "pairs.tsv", "--task", "partial", code=2)
    assert "no-member" in error
    assert "description" in error
    shell.run("train", "pairs.tsv", "--steps", "2", "--out", "run", "--set", "data.splits=[0.8, 0.1, 0.1]")


def test_two_plugins_with_one_name_are_an_error_that_names_both(tmp_path: Path):
    packages = tmp_path / "packages"
    package(tmp_path / "a", packages, name="other-regression", task="regression", target="Other", code="Other = 1\n")
    shell = Shell(tmp_path, packages)
    (tmp_path / "rows.tsv").write_text("a text\t1.5\n")
    error = shell.run("train", "rows.tsv", "--task", "regression", code=2)
    assert "regard" in error
    assert "other-regression" in error
