"""Wishes that cannot be granted: one line, exit code 2, before anything is written."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("command", ["train", "sweep", "finetune", "compare"])
def test_a_command_without_arguments_is_one_line(regard, tmp_path: Path, monkeypatch, command: str):
    monkeypatch.chdir(tmp_path)
    regard(command).fails_with("")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--set", "model.num_layer=3"], ["unknown setting model.num_layer; did you mean model.num_layers?"]),
        (["--set", "trane.seed=3"], ["unknown setting trane; did you mean train?"]),
        (["--set", "train.seed"], ["a setting is given as section.name=value, got 'train.seed'"]),
        (["--set", "train.seed=many"], ["train.seed", "integer", "got 'many'"]),
        (["--set", "train.max_steps=0"], ["train.max_steps", "greater than or equal to 1", "got 0"]),
        (["--set", "model.dropout=1.5"], ["model.dropout", "less than 1", "got 1.5"]),
        (["--set", "model.num_heads=5"], ["model_dim must be a multiple of num_heads, got model_dim="]),
        (["--set", "model=3"], ["model", "got 3"]),
        (["--set", "preset=3"], ["no preset is called '3'"]),
        (["--set", "train.learning_rate=-1"], ["train.learning_rate", "greater than 0"]),
        (["--model", "smal"], ["no preset is called 'smal'; did you mean small?"]),
        (["--task", "poetry"], ["unknown task 'poetry'", "seq2seq"]),
        (["--device", "cuda:99"], ["device cuda:99 does not exist: this machine has"]),
        (["--device", "tpu"], ["a device is auto, cpu, cuda or cuda:N, got 'tpu'"]),
        (["--steps", "abc"], ["--steps must be an integer, got 'abc' (see regard train --help)"]),
        (["--steps", "1.5"], ["--steps must be an integer, got '1.5' (see regard train --help)"]),
        (["--minutes", "soon"], ["--minutes must be a number, got 'soon' (see regard train --help)"]),
        (["--minutes", "0"], ["train.minutes", "greater than 0", "got 0.0"]),
        (["--minutes", "inf"], ["train.minutes", "finite", "got inf"]),
        (["--encoding", "windos-1252"], ["unknown encoding 'windos-1252'; did you mean 'windows-1252'?"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["--resume"], ["--out"]),
        (["--settings", "none.toml"], ["none.toml"]),
    ],
)
def test_a_bad_wish_is_one_line(regard, dates: Path, tmp_path: Path, monkeypatch, options: list[str], parts: list[str]):
    monkeypatch.chdir(tmp_path)
    regard("train", dates, "--quiet", *options).fails_with(*parts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"[train\n", ["mine.toml is not TOML", "line 1"]),
        (b"\xff\xfe", ["mine.toml is not TOML"]),
        (b"[train]\nseeed = 3\n", ["unknown setting train.seeed; did you mean train.seed?"]),
        (b'[train]\nseed = "3"\n', ["train.seed", "integer", "got '3'"]),
        (b"train = 3\n", ["train", "got 3"]),
    ],
)
def test_a_bad_settings_file_is_one_line(regard, dates: Path, tmp_path: Path, text: bytes, parts: list[str]):
    (tmp_path / "mine.toml").write_bytes(text)
    options = ["--settings", tmp_path / "mine.toml", "--out", tmp_path / "run", "--quiet"]
    regard("train", dates, *options).fails_with(*parts)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_a_settings_file_that_is_a_folder(regard, dates: Path, tmp_path: Path):
    regard("train", dates, "--settings", tmp_path, "--quiet").fails_with("--settings", "directory")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["a", "--beam", 2, "--temperature", 1], ["beam search does not sample"]),
        (["a", "--beam", 0], ["--beam"]),
        (["a", "--top-k", 3], ["top_k needs a temperature above 0"]),
        (["a", "--temperature", -1], ["generate.temperature", "greater than or equal to 0"]),
        (["a", "--temperature", 1, "--top-p", 2], ["generate.top_p", "less than or equal to 1"]),
        (["a", "--max-tokens", 0], ["generate.max_tokens", "greater than or equal to 1"]),
        (["a", "--device", "cuda:99"], ["device cuda:99 does not exist"]),
        (["a", "--device", "tpu"], ["a device is auto, cpu, cuda or cuda:N, got 'tpu'"]),
        ([""], ["input 1 is empty"]),
        (["a", "  "], ["input 2 is empty"]),
        (["a\udcff"], ["input 1 is not UTF-8"]),
    ],
)
def test_a_bad_wish_to_predict(regard, trained: Path, options: list, parts: list[str]):
    regard("predict", trained, *options).fails_with(*parts)


def test_lines_that_are_not_utf8_are_told_where(regard, trained: Path):
    answer = regard("predict", trained, stdin=b"good\nb\xe4d\n")
    answer.fails_with("not UTF-8: line 2, byte 2 is 0xe4")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--kind", "sideways"], ["no attention of kind 'sideways'", "encoder, decoder, cross"]),
        (["--layer", 2], ["--layer must be in 1 to 1 for cross attention, got 2"]),
        (["--head", 3], ["--head must be in 1 to 1"]),
        (["--layer", 0], ["--layer"]),
        (["--out", "map.pdf"], [".html, .png, .svg or .json"]),
        (["--out", "none/map.svg"], ["cannot write none/map.svg", "No such file"]),
        (["--out", "none/map.html"], ["cannot write none/map.html", "No such file"]),
    ],
)
def test_attention_that_is_not_there(regard, trained: Path, tmp_path: Path, monkeypatch, options, parts: list[str]):
    monkeypatch.chdir(tmp_path)
    regard("attention", trained, "4 March", *options).fails_with(*parts)
    assert not list(tmp_path.iterdir())


def test_attention_of_an_empty_text(regard, trained: Path):
    regard("attention", trained, "").fails_with("input 1 is empty")


def test_evaluating_on_a_missing_or_foreign_file(regard, trained: Path, tmp_path: Path):
    regard("evaluate", trained, tmp_path / "none.tsv").fails_with("there is no file")
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    regard("evaluate", trained, tmp_path / "words.txt").fails_with("words.txt", "1 column")


def test_a_data_set_that_is_not_there(regard):
    regard("data", "show", "datse").fails_with("dates", "'datse'")
    regard("data", "show", "dates", "--rows", 0).fails_with("--rows")


def test_a_command_that_is_not_there(regard):
    regard("trian").fails_with("trian")


def test_tensorboard_that_is_not_installed_is_told_before_a_run_is_made(regard, tiny, dates, tmp_path, monkeypatch):
    import regard.runs.train as launch

    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    answer = regard("train", dates, "--out", tmp_path / "run", *tiny, "--quiet", "--set", "train.tensorboard=true")
    answer.fails_with("train.tensorboard needs the extra regard[tensorboard]")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--set", "train.lr=1"], "did you mean train.learning_rate?"),
        (["--set", "model.hidden_size=32"], "did you mean model.model_dim?"),
        (["--task", "ner"], "did you mean token-classification?"),
        (["--task", "text_generation"], "did you mean language-modeling?"),
        (["--tokenizer", "char"], "did you mean characters?"),
        (["--model", "bert"], "did you mean transformer?"),
        (["--lr", "1"], "did you mean --set train.learning_rate=VALUE?"),
    ],
)
def test_names_from_elsewhere_are_answered_by_ours(regard, dates: Path, tmp_path: Path, given: list[str], meant: str):
    regard("train", dates, "--out", tmp_path / "run", "--steps", 1, "-q", *given).fails_with(meant)
    assert not (tmp_path / "run").exists()
