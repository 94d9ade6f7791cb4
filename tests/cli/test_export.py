"""`regard export`: each format from the command line, and what is said of those that cannot be."""

import json
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
             "--set", "model.feedforward_dim=32", "--set", "data.window=16"]  # fmt: skip
    regard("train", folder / "text.txt", "--task", "language", "--model", "llama-tiny", "--tokenizer", "bpe", "--out",
           folder / "run", "--steps", 2, "--device", "cpu", "--quiet", *sizes).is_well()  # fmt: skip
    return folder / "run"


def test_a_translator_is_written_and_the_difference_is_said(regard, trained: Path, tmp_path: Path):
    out = tmp_path / "ct2"
    answer = regard("export", trained, "--to", "ctranslate2", "--out", out).is_well()
    assert answer.out == f"{out}\n"
    assert answer.err.splitlines()[-1] == "largest difference of logits: 0.0e+00 on 4 rows of 32 tokens"
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "model.bin", "shared_vocabulary.json", "tokenizer.json"
    ]  # fmt: skip
    regard("export", trained, "--to", "ctranslate2", "--out", out).says_no("is there already", "--overwrite")
    quiet = regard("export", trained, "--to", "ctranslate2", "--out", out, "--overwrite", "--quiet", "--json").is_well()
    assert quiet.err == ""
    assert json.loads(quiet.out) == {
        "path": str(out), "format": "ctranslate2", "kind": "TransformerSpec", "largest_difference": 0.0, "rows": 4,
        "tokens": 32,
    }  # fmt: skip


def test_a_language_model_goes_out_and_comes_back(regard, llama: Path, tmp_path: Path):
    for to, out, more in (("hf", "hf", []), ("gguf", "model.gguf", ["--number-type", "F32"])):
        regard("export", llama, "--to", to, "--out", tmp_path / out, *more).is_well()
        regard("import", tmp_path / out, tmp_path / f"{to}-run").is_well()
        expected = regard("score", llama, "the cat sat", "--json").is_well().out
        found = regard("score", tmp_path / f"{to}-run", "the cat sat", "--json").is_well().out
        ours, theirs = (json.loads(each)["scores"][0]["log_probability"] for each in (expected, found))
        assert theirs == pytest.approx(ours, rel=1e-4)


def test_python_says_the_same(llama: Path, tmp_path: Path):
    made = export_model(llama, tmp_path / "q8.gguf", to="gguf", number_type="Q8_0")
    assert (made.kind, made.path) == ("llama, Q8_0", tmp_path / "q8.gguf")
    assert 0.0 < made.difference < 0.1


@pytest.mark.slow
def test_an_adapter_needs_its_base_from_the_command_line_as_well(regard, llama: Path, tmp_path: Path):
    text = llama.parent / "text.txt"
    regard("finetune", llama, text, "--task", "language", "--lora", "--rank", 2, "--steps", 2, "--out",
           tmp_path / "tuned", "--device", "cpu", "--quiet", "--set", "data.window=16").is_well()  # fmt: skip
    regard("export", tmp_path / "tuned", "--to", "peft", "--out", tmp_path / "adapter").is_well()
    regard("import", tmp_path / "adapter", tmp_path / "back").says_no("name its base", "--base")
    regard("import", tmp_path / "adapter", tmp_path / "back", "--base", llama).is_well()
    ours, theirs = (regard("score", tmp_path / run, "the rat", "--json").is_well().out for run in ("tuned", "back"))
    assert json.loads(theirs) == json.loads(ours)


def test_what_cannot_be_is_told_in_one_line(regard, trained: Path, llama: Path, tmp_path: Path):
    def says_no(*parts: str, to: str, out: str = "x", run: Path = trained) -> None:
        regard("export", run, "--to", to, "--out", tmp_path / out).says_no(*parts)

    says_no("nearest is", "model.", to="hf")
    says_no("task must be language", to="gguf", out="x.gguf")
    says_no("ends in .gguf", to="gguf")
    says_no("finetune.method must be lora", to="peft", run=llama)
    says_no("no format is called 'onxx'; did you mean onnx?", to="onxx")
    says_no("no run at", to="hf", run=tmp_path / "none")
    regard("export", llama, "--to", "hf", "--out", tmp_path / "x", "--number-type", "F16").says_no("is for gguf")
    regard("export", llama, "--to", "gguf", "--out", tmp_path / "x.gguf", "--number-type", "Q9").says_no("'Q9'")
    assert not list(tmp_path.iterdir())
    answer = regard("export", llama, "--out", tmp_path / "x")
    assert answer.code == 2
    assert "--to" in answer.err


def test_the_help_has_examples(regard):
    answer = regard("export", "--help").is_well()
    assert "regard export runs/pairs --to ctranslate2" in answer.out
