"""`regard compare`: what it prints and writes, that it is continued, and errors before training."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

SMALL = ["--set", "model.model_dim=16", "--set", "model.num_layers=1", "--set", "generate.max_tokens=12",
         "--set", "train.evaluate_every=2", "--tokenizer", "bytes", "--device", "cpu"]  # fmt: skip
KEYS = ("name", "score", "params", "tokens_per_s", "seconds")


@pytest.fixture(scope="module")
def compared(regard, jobs_inside, dates: Path, tmp_path_factory: pytest.TempPathFactory):
    """Two models, two seeds, four steps; one of them also on fewer rows would take too long here."""
    folder = tmp_path_factory.mktemp("compared") / "comparison"
    models = ["--models", "lstm-attention,transformer", "--steps", 4, "--seeds", 2]
    with jobs_inside():
        answer = regard("compare", dates, *models, "--out", folder, "--json", *SMALL)
    return folder, answer.succeeds()


def test_the_last_line_is_one_object(compared):
    table = json.loads(compared[1].out.splitlines()[-1])
    assert [model["name"] for model in table["models"]] == ["lstm-attention", "transformer"]
    for model in table["models"]:
        assert all(key in model for key in KEYS)
        low, high = model["score"]["interval"]
        assert low <= model["score"]["value"] <= high
        assert "seeds:2" in model["score"]["signature"]
        assert len(model["seed_scores"]) == len(model["curves"]) == 2
        assert sum(part["rows"] for part in model["by_length"]) == table["rows"]
        assert [point["step"] for point in model["curves"][0]["points"]] == [2, 4]
    (pair,) = table["pairs"]
    assert (pair["a"], pair["b"]) == ("lstm-attention", "transformer")
    first, second = (model["score"]["value"] for model in table["models"])
    assert pair["difference"] == pytest.approx(first - second)
    assert 0 < pair["p"] <= 1


def test_the_folder_has_the_table_the_page_and_the_figure(compared):
    folder, answer = compared
    assert json.loads((folder / "compare.json").read_text()) == json.loads(answer.out.splitlines()[-1])
    assert "<html" in (folder / "compare.html").read_text()[:200]
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    for name in ("lstm-attention-0", "lstm-attention-1", "transformer-0", "transformer-1"):
        assert (folder / name / "report.html").is_file()


def test_a_certificate_counts_the_whole_comparison(compared, regard):
    folder, _ = compared
    found = json.loads(regard("certificate", folder / "transformer-0", "--json").succeeds().out)
    assert found["name"] == f"{folder.name}/transformer-0"


def test_runs_of_one_seed_see_the_data_in_the_same_order(compared):
    from regard.runs.run import Run

    samplers = []
    for name in ("lstm-attention-1", "transformer-1"):
        run = Run(compared[0] / name, device="cpu")
        data, train = run.task.prepare(run.settings.data), run.settings.train
        batches: Any = run.task.batches(data, batch_tokens=train.batch_tokens, seed=train.seed)
        samplers.append(batches.sampler)
    for step in range(5):
        assert samplers[0].rows(step).tolist() == samplers[1].rows(step).tolist()


def test_the_same_command_again_trains_nothing_and_prints_the_same(compared, regard, dates: Path):
    folder, before = compared
    models = ["--models", "lstm-attention,transformer", "--steps", 4, "--seeds", 2]
    again = regard("compare", dates, *models, "--out", folder, "--json", *SMALL).succeeds()
    assert "4 of 4 runs are already finished" in again.err
    assert again.out == before.out


@pytest.mark.slow
def test_from_python_with_rows_equal_sizes_and_fewer_rows(jobs_inside, tmp_path: Path):
    import regard

    rows = [(f"eins {number} zwei", f"one {number} two") for number in range(200)]
    settings = {"task": {"tokenizer": "bytes"}, "generate": {"max_tokens": 5}, "train": {"device": "cpu"},
                "data": {"splits": [0.9, 0.05, 0.05]}}  # fmt: skip
    with jobs_inside():
        found = regard.compare(
            rows, ["gru", "tiny"], flops=4e9, params=70_000, sizes=[50], settings=settings, out=tmp_path / "compared",
            show_progress=False,
        )  # fmt: skip
    first, second = found.table["models"]
    assert all(abs(model["params"] - 70_000) <= 3_500 for model in (first, second))
    assert first["steps"] != second["steps"]
    assert all([part["rows"] for part in model["by_size"]] == [50, 180] for model in (first, second))
    assert found.page.is_file()


def test_a_damaged_manifest_is_an_error(compared, regard, dates: Path, tmp_path: Path):
    (tmp_path / "manifest.json").write_text("{")
    options = ["--models", "gru,tiny", "--steps", 3, "--out", tmp_path, "--quiet", *SMALL]
    regard("compare", dates, *options).fails_with("manifest.json is damaged", "name another folder")


def test_a_folder_with_files_of_others_is_left_alone(regard, dates: Path, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    options = ["--models", "gru,tiny", "--steps", 3, "--out", tmp_path, "--quiet", *SMALL]
    for more in ([], ["--overwrite"]):
        regard("compare", dates, *options, *more).fails_with(
            "neither empty nor a comparison, it has notes.txt: name another folder"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_other_settings_do_not_go_into_the_same_folder(compared, regard, dates: Path):
    folder, _ = compared
    models = ["--models", "lstm-attention,transformer", "--steps", 5, "--seeds", 2]
    regard("compare", dates, *models, "--out", folder, "--quiet", *SMALL).fails_with(
        "a comparison with other settings", "--overwrite"
    )


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--models", "lstm", "--steps", "3"], ["a comparison needs at least two models, got lstm"]),
        (["--models", "lstm,lstm", "--steps", "3"], ["models must have different names, got 'lstm' twice"]),
        (
            ["--models", "lstm,transfomer", "--steps", "3"],
            ["no preset is called 'transfomer'; did you mean transformer?"],
        ),
        (["--models", "lstm,none.toml", "--steps", "3"], ["no settings file at none.toml"]),
        (["--models", "lstm,gru"], ["one budget, in minutes, in steps or in flops, got none"]),
        (["--models", "lstm,gru", "--steps", "3", "--minutes", "1"], ["one budget", "got minutes=1.0, steps=3"]),
        (["--models", "lstm,gru", "--minutes", "0.001"], ["at least 1 s, got 0.001 minutes"]),
        (["--models", "lstm,gru", "--steps", "0"], ["at least one step, got 0"]),
        (["--models", "lstm,gru", "--flops", "10"], ["less than one step of lstm, which needs"]),
        (["--models", "lstm,gru", "--steps", "3", "--seeds", "1,2,1"], ["seeds must differ", "[1, 2, 1]"]),
        (["--models", "lstm,gru", "--steps", "3", "--seeds", "0"], ["seeds must be at least one, got 0"]),
        (["--models", "lstm,gru", "--steps", "3", "--seeds", "x"], ["--seeds must be integers", "'x'"]),
        (["--models", "lstm,gru", "--steps", "3", "--params", "100"], ["no width of lstm is within 5 % of 100"]),
        (["--models", "lstm,gru", "--steps", "3", "--sizes", "9999999"], ["1 to", "got 9,999,999"]),
        (["--models", "lstm,tiny", "--steps", "3", "--set", "model.num_heads=2"], ["model lstm: unknown setting"]),
    ],
)
def test_what_cannot_be_compared_is_an_error_before_training(
    regard, dates: Path, tmp_path: Path, monkeypatch, options: list[str], parts: list[str]
):
    monkeypatch.chdir(tmp_path)
    regard("compare", dates, "--quiet", "--tokenizer", "bytes", *options).fails_with(*parts)
    assert not list(tmp_path.rglob("run.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[model]\nfamily = "recurrent"\nencoder_layers = 0\n', "a decoder cannot be bidirectional"),
        (
            'preset = "lstm"\n[model]\nencoder_layers = 0\nbidirectional = false\n',
            "a sequence-to-sequence model needs an encoder",
        ),
        ("[model]\nencoder_layers = 0\n", "needs an encoder and a decoder"),
        ("[data]\ntrain_rows = 3\n", "has a table [data] of its own"),
    ],
)
def test_a_model_that_cannot_do_the_task_is_refused(
    regard, dates: Path, tmp_path: Path, monkeypatch, text: str, words: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(text)
    options = ["--models", "lstm,mine.toml", "--steps", 3, "--quiet", "--tokenizer", "bytes"]
    regard("compare", dates, *options).fails_with("mine", words)
    assert not list(tmp_path.rglob("run.toml"))


@pytest.mark.slow
def test_rows_of_two_texts_and_a_label_are_compared(jobs_inside, tmp_path: Path):
    """Few rows of each length: a bin with a single row has a score without an interval."""
    import regard

    rows = [
        (f"{word} film{' very' * (number % 37)}", f"text {number}", word)
        for number in range(40)
        for word in ("good", "bad")
    ]
    settings = {"model": {"model_dim": 16, "num_layers": 1}, "task": {"tokenizer": "bytes"}, "train": {"device": "cpu"}}
    with jobs_inside():
        found = regard.compare(
            rows, ["gru", "transformer"], steps=2, seeds=2, settings=settings, out=tmp_path / "compared",
            show_progress=False,
        )  # fmt: skip
    table = found.table
    assert (table["task"], table["metric"]) == ("text-classification", "accuracy")
    bins = table["models"][0]["by_length"]
    assert sum(part["rows"] for part in bins) == table["rows"]
    assert any(part["rows"] == 1 for part in bins)
    assert all((part["interval"] is None) == (part["rows"] == 1) for part in bins)
    with pytest.raises(regard.RegardError, match="on other rows"):
        regard.compare(rows[1:], ["gru", "transformer"], steps=2, seeds=2, settings=settings, out=tmp_path / "compared")


@pytest.mark.slow
def test_rows_with_several_labels_are_compared(jobs_inside, tmp_path: Path):
    import regard

    kinds = ["good", "good,long", "long", ","]
    rows = [(f"a {kind} film number {number}", kind) for number in range(30) for kind in kinds]
    settings = {"model": {"model_dim": 16, "num_layers": 1}, "train": {"device": "cpu"},
                "task": {"tokenizer": "bytes", "label_separator": ","}}  # fmt: skip
    with jobs_inside():
        found = regard.compare(
            rows, ["gru", "transformer"], steps=2, settings=settings, out=tmp_path / "compared", show_progress=False
        )
    for model in found.table["models"]:
        (own,) = (json.loads((Path(run) / "result.json").read_text())["scores"] for run in model["runs"])
        for name, score in {"micro_f1": model["score"], **model["scores"]}.items():
            assert score["value"] == pytest.approx(own[name]["value"]), name


@pytest.mark.slow
def test_each_run_is_a_process_of_its_own(regard, dates: Path, tmp_path: Path):
    options = ["--models", "gru,tiny", "--steps", 2, "--out", tmp_path / "comparison", *SMALL]
    answer = regard("compare", dates, *options).succeeds()
    for name in ("gru", "tiny"):
        assert f"{name}, seed 0: exact_match" in answer.err
        assert "trained 2 steps" in (tmp_path / "comparison" / "logs" / f"{name}-0.log").read_text()


@pytest.mark.slow
def test_an_interrupted_comparison_is_continued(regard, dates: Path, tmp_path: Path):
    """With processes of its own, as a user has it; Ctrl-C is sent to this very process."""
    folder = tmp_path / "comparison"
    options = ["--models", "gru,tiny", "--steps", 30, "--out", folder, "--json", *SMALL]

    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if list(folder.rglob("metrics.jsonl")):
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=interrupt)
    thread.start()
    stopped = regard("compare", dates, *options)
    thread.join()
    assert stopped.code == 130, stopped.err
    assert "the same command continues from there" in stopped.err
    assert not list(folder.rglob("result.json"))
    assert list(folder.rglob("*.safetensors"))

    finished = regard("compare", dates, *options).succeeds()
    table = json.loads(finished.out.splitlines()[-1])
    assert [model["steps"] for model in table["models"]] == [30, 30]
    assert any("resuming from step" in log.read_text() for log in (folder / "logs").iterdir())
