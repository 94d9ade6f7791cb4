"""`regard export` and `regard import`: each format from the command line, and errors."""

import json
import re
from pathlib import Path

import pytest
import torch

from regard import export_model


@pytest.fixture(scope="module")
def llama(regard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of a few steps whose shape llama.cpp knows."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("llama")
    (folder / "text.txt").write_text("the cat sat on the mat and the rat sat on the hat\n" * 200, encoding="utf-8")
    sizes = ["--set", "model.model_dim=32", "--set", "model.num_heads=2", "--set", "model.num_layers=1",
             "--set", "model.feedforward_dim=32", "--set", "task.window=16"]  # fmt: skip
    regard("train", folder / "text.txt", "--task", "language-modeling", "--model", "llama-tiny", "--tokenizer", "bpe",
           "--out", folder / "run", "--steps", 2, "--device", "cpu", "--quiet", *sizes).succeeds()  # fmt: skip
    return folder / "run"


def test_an_encoder_decoder_is_exported_and_the_difference_is_printed(regard, trained: Path, tmp_path: Path):
    out = tmp_path / "ct2"
    answer = regard("export", trained, "--to", "ctranslate2", "--out", out).succeeds()
    assert answer.out == f"{out}\n"
    assert re.fullmatch(r"largest difference of outputs: \S+ for 4 x 32 tokens", answer.err.splitlines()[-1])
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "model.bin", "shared_vocabulary.json", "tokenizer.json"
    ]  # fmt: skip
    regard("export", trained, "--to", "ctranslate2", "--out", out).fails_with("already exists", "--overwrite")
    quiet = regard(
        "export", trained, "--to", "ctranslate2", "--out", out, "--overwrite", "--quiet", "--json"
    ).succeeds()
    assert quiet.err == ""
    values = json.loads(quiet.out)
    assert 0.0 <= values.pop("largest_difference") < 1e-4
    assert values == {
        "path": str(out), "format": "ctranslate2", "name": "TransformerSpec", "rows": 4, "tokens": 32
    }  # fmt: skip


def test_a_language_model_is_exported_and_imported(regard, llama: Path, tmp_path: Path):
    for to, out, more in (("hf", "hf", []), ("gguf", "model.gguf", ["--number-type", "F32"])):
        regard("export", llama, "--to", to, "--out", tmp_path / out, *more).succeeds()
        regard("import", tmp_path / out, tmp_path / f"{to}-run").succeeds()
        expected = regard("score", llama, "the cat sat", "--json").succeeds().out
        found = regard("score", tmp_path / f"{to}-run", "the cat sat", "--json").succeeds().out
        ours, theirs = (json.loads(each)["scores"][0]["log_probability"] for each in (expected, found))
        assert theirs == pytest.approx(ours, rel=1e-4)


def test_the_same_from_python(llama: Path, tmp_path: Path):
    made = export_model(llama, tmp_path / "q8.gguf", to="gguf", number_type="Q8_0")
    assert (made.name, made.path) == ("llama, Q8_0", tmp_path / "q8.gguf")
    assert 0.0 < made.difference < 0.1


@pytest.mark.slow
def test_an_adapter_needs_its_base_from_the_command_line_as_well(regard, llama: Path, tmp_path: Path):
    text = llama.parent / "text.txt"
    regard("finetune", llama, text, "--task", "language-modeling", "--lora", "--rank", 2, "--steps", 2, "--out",
           tmp_path / "tuned", "--device", "cpu", "--quiet", "--set", "task.window=16").succeeds()  # fmt: skip
    regard("export", tmp_path / "tuned", "--to", "peft", "--out", tmp_path / "adapter").succeeds()
    regard("import", tmp_path / "adapter", tmp_path / "back").fails_with("name its base", "--base")
    regard("import", tmp_path / "adapter", tmp_path / "back", "--base", llama).succeeds()
    ours, theirs = (regard("score", tmp_path / run, "the rat", "--json").succeeds().out for run in ("tuned", "back"))
    assert json.loads(theirs) == json.loads(ours)


def test_errors_are_one_line(regard, trained: Path, llama: Path, tmp_path: Path):
    def fails_with(*parts: str, to: str, out: str = "x", run: Path = trained) -> None:
        regard("export", run, "--to", to, "--out", tmp_path / out).fails_with(*parts)

    fails_with("nearest is", "model.", to="hf")
    fails_with("head next-token", to="gguf", out="x.gguf")
    fails_with("ends in .gguf", to="gguf")
    fails_with("finetune.method must be lora", to="peft", run=llama)
    fails_with("unknown export format 'onxx'; did you mean onnx?", to="onxx")
    fails_with("no run at", to="hf", run=tmp_path / "none")
    regard("export", llama, "--to", "hf", "--out", tmp_path / "x", "--number-type", "F16").fails_with("no number types")
    regard("export", llama, "--to", "gguf", "--out", tmp_path / "x.gguf", "--number-type", "Q9").fails_with("'Q9'")
    assert not list(tmp_path.iterdir())
    answer = regard("export", llama, "--out", tmp_path / "x")
    assert answer.code == 2
    assert "--to" in answer.err


def test_a_path_that_cannot_be_imported_is_an_error_that_lists_the_formats(regard, llama: Path, tmp_path: Path):
    for path in (llama, llama.parent / "text.txt"):
        regard("import", path, tmp_path / "run").fails_with(
            "hf: a Hugging Face folder", "gguf: a GGUF file", "llama2c: "
        )
    regard("import", tmp_path / "none.gguf", tmp_path / "run").fails_with("no file or folder at")
    regard("import", llama, tmp_path / "run", "--format", "ggml").fails_with("unknown importer 'ggml'", "gguf")
    assert not (tmp_path / "run").exists()


def test_the_help_has_examples(regard):
    answer = regard("export", "--help").succeeds()
    assert "regard export runs/pairs --to ctranslate2" in answer.out
