"""Each command, end to end: results on stdout, talk on stderr, the exit code."""

import inspect
import json
import re
import tomllib
from pathlib import Path

import pytest

from regard.cli import bound, lab, predict, sweep, train
from regard.explanation.pages import page_data
from regard.runs.folder import RunFolder
from regard.training.defaults import draft

COMMANDS = {
    "train": train.train_command, "predict": predict.predict_command, "sweep": sweep.sweep_command,
    "lab": lab.lab_command, "bound": bound.bound_command,
}  # fmt: skip
SCORES = ("exact_match", "bleu", "chrf", "word_error_rate", "character_error_rate", "perplexity")


def last_object(text: str) -> dict:
    """The JSON object on the last line; no other line is one."""
    *before, last = text.splitlines()
    assert not [line for line in before if line.startswith("{")]
    value = json.loads(last)
    assert isinstance(value, dict)
    return value


def check_scores(found: dict) -> None:
    for name in SCORES:
        assert set(found[name]) == {"value", "interval", "signature"}
        low, high = found[name]["interval"]
        assert low <= found[name]["value"] <= high
        assert "version:" in found[name]["signature"]


def test_training_leaves_a_run_that_stands_alone(trained: Path):
    files = {str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()}
    assert files == {
        "run.toml", "codecs/text.json", "model.safetensors", "metrics.jsonl", "ledger.jsonl", "ledger.head",
        "report.html", "baseline.json", "held_out/valid.jsonl",
        "held_out/train.fingerprints", "sealed/test.rows", "sealed/test.fingerprints",
        "checkpoints/step-000000020.safetensors", "checkpoints/step-000000030.safetensors",
    }  # fmt: skip
    assert RunFolder(trained).read_provenance().num_parameters > 0
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [10, 20, 30]
    assert [line["step"] for line in lines if "valid_loss" in line] == [10, 20, 30]


def test_train_prints_the_run_and_talks_on_stderr(regard, tiny, dates: Path, tmp_path: Path):
    answer = regard("train", dates, "--out", tmp_path / "run", "--steps", 1, *tiny).succeeds()
    assert answer.out == f"{tmp_path / 'run'}\n"
    assert "240 for training" in answer.err
    assert "report:" in answer.err
    assert f"next:\n  regard predict {tmp_path / 'run'} TEXT" in answer.err
    assert f"regard test {tmp_path / 'run'} " in answer.err


def test_the_report_has_the_choices_with_their_reasons_and_the_commands_that_come_next(trained: Path):
    page = page_data(trained / "report.html")
    assert page["notes"][0].startswith("task seq2seq, by the data: ")
    for part in ("240 for training", "learning rate", "parameters on CPU"):
        assert sum(part in note for note in page["notes"]) == 1
    assert [command for command, _ in page["commands"]] == [
        f"regard predict {trained} TEXT", f"regard evaluate {trained} FILE", f"regard test {trained}"]  # fmt: skip


def test_train_with_json_prints_one_object_and_quiet_says_nothing(regard, tiny, dates: Path, tmp_path: Path):
    # On 15 validation rows there is no warning that nothing was learned.
    options = ["--steps", 1, *tiny, "--set", "data.splits=[0.9,0.05,0.05]", "--no-baseline", "--json", "--quiet"]
    answer = regard("train", dates, "--out", tmp_path / "run", *options).succeeds()
    assert answer.err == ""
    found = last_object(answer.out)
    check_scores(found)
    assert found["run"] == str(tmp_path / "run")
    assert Path(found["report"]).is_file()


def test_training_goes_to_a_fresh_folder_when_none_is_named(regard, tiny, dates: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "dates").mkdir(parents=True)
    answer = regard("train", dates, "--steps", 1, *tiny, "--quiet").succeeds()
    assert answer.out == "runs/dates-2\n"


def test_predict_answers_arguments_and_lines_alike(regard, trained: Path):
    from_arguments = regard("predict", trained, "4 March 2025", "5 May 1999").succeeds()
    from_lines = regard("predict", trained, stdin="4 March 2025\n5 May 1999\n").succeeds()
    without_last_end = regard("predict", trained, stdin="4 March 2025\r\n5 May 1999").succeeds()
    assert from_arguments.out == from_lines.out == without_last_end.out
    assert len(from_arguments.out.splitlines()) == 2
    assert from_arguments.err == ""


def test_a_blank_line_in_is_a_blank_line_out(regard, trained: Path):
    answer = regard("predict", trained, "--max-tokens", 5, stdin="a\n\n  \nb\n").succeeds()
    lines = answer.out.split("\n")
    assert len(lines) == 5
    assert lines[1] == lines[2] == lines[4] == ""
    assert lines[0] != ""
    found = last_object(regard("predict", trained, "--max-tokens", 5, "--json", stdin="a\n\nb\n").succeeds().out)
    assert [each["input"] for each in found["predictions"]] == ["a", "", "b"]
    assert found["predictions"][1]["output"] == ""


def test_no_lines_in_are_no_lines_out(regard, trained: Path):
    assert regard("predict", trained, stdin="").succeeds().out == ""


def test_only_a_line_feed_ends_a_line(regard, trained: Path):
    answer = regard("predict", trained, "--max-tokens", 3, "--json", stdin="a\u2028b\rc\nd\n").succeeds()
    assert [each["input"] for each in last_object(answer.out)["predictions"]] == ["a\u2028b\rc", "d"]


def test_a_line_break_in_an_output_is_printed_as_a_space(regard, trained: Path, monkeypatch):
    from regard.runs.run import Run
    from regard.tasks.content import Prediction

    monkeypatch.setattr(
        Run, "predict_grouped", lambda self, inputs, **_: [[Prediction(text, "x\ny")] for text in inputs]
    )
    assert regard("predict", trained, "a", "b").succeeds().out == "x y\nx y\n"


def test_beam_search_scores_its_answer_and_sampling_repeats_itself(regard, trained: Path):
    found = last_object(regard("predict", trained, "4 March 2025", "--beam", 3, "--json").succeeds().out)
    assert found["predictions"][0]["score"] < 0
    options = ["--temperature", 1.0, "--top-k", 5, "--max-tokens", 9]
    same = [regard("predict", trained, "x", "--seed", 3, *options).succeeds().out for _ in range(2)]
    assert same[0] == same[1] != regard("predict", trained, "x", "--seed", 4, *options).succeeds().out


@pytest.mark.parametrize("command", ["evaluate", "test"])
def test_scores_come_with_interval_and_signature(regard, run: Path, command: str):
    answer = regard(command, run).succeeds()
    assert ("the scores are those of the run's validation rows" in answer.err) is (command == "evaluate")
    header, *lines, rows = answer.out.splitlines()
    assert header.split() == ["metric", "value", "95", "%", "interval"]
    lines = [line for line in lines if not line.startswith("-: no interval")]
    assert [line.split()[0] for line in lines] == list(SCORES)
    assert len({line.index(line.split()[1]) + len(line.split()[1]) for line in lines}) == 1  # aligned
    assert rows == "rows: 30"
    found = last_object(regard(command, run, "--json", "--quiet").succeeds().out)
    check_scores(found)
    assert found["rows"] == 30
    looks = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    role = {"evaluate": "valid", "test": "test"}[command]
    assert sum(look["set"] == role and look["event"] == "evaluation" for look in looks) == 2


def test_the_second_look_at_the_test_rows_is_remarked_on(regard, run: Path):
    assert regard("test", run).succeeds().err == ""
    assert "opened 1 time before" in regard("test", run, "--quiet").succeeds().err


def test_evaluate_reads_a_file_or_two_aligned_ones(regard, trained: Path, dates: Path, tmp_path: Path):
    rows = [line.split("\t") for line in dates.read_text(encoding="utf-8").splitlines()[1:8]]
    table, source, target = (tmp_path / name for name in ("some.tsv", "some.in", "some.out"))
    table.write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    source.write_text("".join(f"{a}\n" for a, _ in rows), encoding="utf-8")
    target.write_text("".join(f"{b}\n" for _, b in rows), encoding="utf-8")
    answer = regard("evaluate", trained, table, "--json").succeeds()
    one = last_object(answer.out)
    two = last_object(regard("evaluate", trained, source, target, "--json").succeeds().out)
    assert one == two
    assert "1 of 7 rows is of the sealed test set" in answer.err
    assert one["rows"] == 6


@pytest.mark.parametrize(
    ("name", "beginning"), [("a.html", b"<!"), ("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.json", b"{")]
)
def test_attention_is_drawn_to_a_file(regard, trained: Path, tmp_path: Path, name: str, beginning: bytes):
    answer = regard("attention", trained, "4 March 2025", "--out", tmp_path / name).succeeds()
    assert answer.out == f"{tmp_path / name}\n"
    assert (tmp_path / name).read_bytes().startswith(beginning)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_attention_is_drawn_in_the_terminal(regard, trained: Path):
    answer = regard("attention", trained, "4 March", "--kind", "encoder", "--layer", 1, "--head", 1).succeeds()
    assert "Encoder attention, layer 1, head 1" in answer.out
    assert len(answer.out.splitlines()) > len("4 March")


def test_attention_as_json_holds_rows_that_sum_to_one(regard, trained: Path):
    found = last_object(regard("attention", trained, "4 March", "--json").succeeds().out)
    for row in found["weights"]["cross"][0][0]:
        assert sum(row) == pytest.approx(1.0, abs=1e-6)  # float32
    assert len(found["source_tokens"]) == len("4 March") + 1


def test_settings_are_toml_that_train_accepts(regard, tiny, dates: Path, tmp_path: Path):
    answer = regard("settings").succeeds()
    assert draft(tomllib.loads(answer.out)) == draft({"task": {"name": "seq2seq"}, "preset": "tiny"})
    (tmp_path / "mine.toml").write_text(answer.out)
    options = ["--settings", tmp_path / "mine.toml", "--out", tmp_path / "run", "--steps", 1, *tiny, "--quiet"]
    regard("train", dates, *options).succeeds()
    written = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert (written["train"]["max_steps"], written["model"]["model_dim"]) == (1, 22)


def test_an_option_outweighs_the_settings_file(regard, tiny, dates: Path, tmp_path: Path):
    (tmp_path / "mine.toml").write_text('preset = "tiny"\n[train]\nmax_steps = 9\nseed = 5\n')
    options = ["--settings", tmp_path / "mine.toml", "--out", tmp_path / "run", "--steps", 1, *tiny, "--quiet"]
    regard("train", dates, *options, "--model", "small").succeeds()
    written = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert (written["preset"], written["train"]["max_steps"], written["train"]["seed"]) == ("small", 1, 5)


def test_the_preset_of_a_settings_file_gives_the_shape(regard, dates: Path, tmp_path: Path, monkeypatch):
    import regard.runs.train as launch

    seen = {}

    def stop(settings, data):
        seen["model"] = settings.model
        raise RuntimeError

    monkeypatch.setattr(launch, "make_trainer", stop)
    with pytest.raises(RuntimeError):
        launch.train(str(dates), out=tmp_path / "run", settings={"preset": "small"})
    assert (seen["model"].num_layers, seen["model"].model_dim) == (4, 256)


def test_data_list_names_the_sets(regard):
    assert "dates\t" in regard("data", "list").succeeds().out
    found = last_object(regard("data", "list", "--json").succeeds().out)
    assert [each["name"] for each in found["sets"]] == [
        "answers",
        "dates",
        "molecules",
        "patients",
        "ratings",
        "rings",
        "sales",
        "scenes",
    ]


def test_data_show_prints_a_table_that_its_seed_repeats(regard):
    first, same, other = (regard("data", "show", "dates", "--rows", 5, "--seed", s).succeeds().out for s in (1, 1, 2))
    assert first == same != other
    lines = first.splitlines()
    assert lines[0] == "source\ttarget"
    assert len(lines) == 6
    assert all(line.count("\t") == 1 for line in lines)
    found = last_object(regard("data", "show", "dates", "--rows", 5, "--seed", 1, "--json").succeeds().out)
    assert ["\t".join(row) for row in found["rows"]] == lines[1:]


@pytest.mark.slow
def test_demo_trains_judges_and_shows(regard, jobs_inside, tmp_path: Path, monkeypatch):
    from regard.experiments import demo

    small = {
        "task": {"tokenizer": "characters"},
        "data": {"num_rows": 60},
        "model": {"model_dim": 32, "feedforward_dim": 31},
        "generate": {"max_tokens": 12},
    }
    monkeypatch.setattr(demo, "DEMO_SETTINGS", small)
    monkeypatch.setattr(demo, "COMPARED_MODELS", ["lstm", "transformer"])
    monkeypatch.setattr(demo, "COMPARISON_SETTINGS", {**small, "model": {"model_dim": 32}})
    for module in ("demo", "compare.plan"):
        monkeypatch.setattr(f"regard.experiments.{module}.MIN_SECONDS", 0.1)
    with jobs_inside():
        answer = regard("demo", "--out", tmp_path / "run", "--minutes", 0.001).succeeds()
        again = regard("demo", "--out", tmp_path / "run", "--minutes", 0.001, "--json", "-q").succeeds()
    assert "test rows" in answer.out
    assert "exact_match|" in answer.out
    assert re.search(r"better than the baseline, .*: exact match \d.\d+ against", answer.out)
    assert "other models" in answer.out
    assert f"regard predict {tmp_path / 'run'}" in answer.out
    found = last_object(again.out)
    check_scores(found)
    assert set(found) == {*SCORES, "rows", "seconds", "baseline", "report", "certificate", "comparison"}
    assert 0 <= found["baseline"]["scores"]["exact_match"]["value"] <= 1
    assert found["baseline"]["model_score"] == found["exact_match"]["value"], "on the rows of the score"
    assert "better than the baseline, " in (tmp_path / "run" / "report.html").read_text()
    assert [model["name"] for model in found["comparison"]["models"]] == ["lstm", "transformer"]


def test_help_and_version_are_results(regard):
    answer = regard("--version").succeeds()
    assert answer.out.startswith("regard ")
    for command in ("train", "compare", "predict", "evaluate", "test", "attention", "settings", "demo", "data"):
        answer = regard(command, "--help").succeeds()
        assert "Usage" in answer.out
        assert answer.err == ""


def test_regard_alone_prints_its_help(regard):
    answer = regard()
    assert answer.code == 2
    assert "Usage" in answer.out
    assert answer.err == ""


@pytest.mark.slow
def test_curves_for_tensorboard_hold_each_step_once_also_after_resuming(regard, tiny, dates: Path, tmp_path: Path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = ["--out", tmp_path / "run", "--set", "train.tensorboard=true", "--quiet"]
    regard("train", dates, *options, *tiny, "--steps", 12, "--set", "train.evaluate_every=100").succeeds()
    regard("train", dates, *options, "--resume", "--steps", 23).succeeds()
    curves = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in curves.Scalars("loss")] == [10, 12, 20, 23]


@pytest.mark.parametrize("command", ["train", "predict", "sweep", "lab", "bound"])
def test_help_has_each_example_on_one_line_and_words_for_types(regard, command: str):
    answer = regard(command, "--help").succeeds()
    documented = inspect.cleandoc(COMMANDS[command].__doc__ or "").splitlines()
    examples = [line for line in documented if line.startswith("  regard ")]
    assert len(examples) > 2
    assert {f"  {line}" for line in examples} <= set(answer.out.splitlines())
    assert "<" not in answer.out.replace("> ", "").split("Options:")[1]
    assert "--out TEXT" in answer.out
