"""Exports to Hugging Face's layout and to GGUF: transformers reads them, and so do we."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError, RegardError, RunError, RunExistsError
from regard.interop.exporting import export
from regard.interop.importing import import_model
from regard.interop.trained import Trained
from regard.runs.run import load

BERT: dict[str, Any] = {
    "num_layers": 2, "decoder_layers": 0, "model_dim": 22, "num_heads": 2, "feedforward_dim": 29, "block": "post-norm",
    "positions": "learned", "embedding_norm": True, "scale_embeddings": False, "activation": "gelu",
    "context_length": 17, "num_segments": 2, "norm_epsilon": 1e-7,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "encoder_layers": 0, "num_layers": 2, "model_dim": 22, "num_heads": 2, "feedforward_dim": 29, "block": "pre-norm",
    "positions": "learned", "activation": "gelu-tanh", "scale_embeddings": False, "context_length": 17,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    **GPT2, "model_dim": 24, "norm": "rms", "positions": "rotary", "bias": False, "activation": "swiglu",
    "norm_epsilon": 1e-4, "position_base": 500.0,
}  # fmt: skip
BOTH: dict[str, Any] = {
    "encoder_layers": 2, "decoder_layers": 3, "model_dim": 22, "num_heads": 2, "feedforward_dim": 29,
    "context_length": 17,
}  # fmt: skip
T5: dict[str, Any] = {
    **BOTH, "block": "pre-norm", "positions": "relative", "position_buckets": 6, "position_distance": 11,
    "similarity": "dot", "norm": "rms", "bias": False, "scale_output": True, "scale_embeddings": False,
    "query_width": 26,
}  # fmt: skip
BARELY: dict[str, Any] = {**BOTH, "positions": "learned", "embedding_norm": True, "scale_embeddings": False}
CLASSIFIER = {"pooling": "first", "hidden": True}
SHAPES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "embedding": ("BertModel", "embedding", BERT, {}),
    "masked": ("BertForMaskedLM", "masked", {**BERT, "num_segments": 0}, {}),
    "classifier": ("BertForSequenceClassification", "classification", BERT, CLASSIFIER),
    "regression": ("BertForSequenceClassification", "regression", BERT, CLASSIFIER),
    "tags": ("BertForTokenClassification", "tagging", BERT, {}),
    "answers": ("BertForQuestionAnswering", "answering", BERT, {}),
    "gpt2": ("GPT2LMHeadModel", "language", GPT2, {}),
    "gpt2, sines": ("GPT2LMHeadModel", "language", {**GPT2, "positions": "sinusoidal", "tie_embeddings": False}, {}),
    "llama": ("LlamaForCausalLM", "language", {**LLAMA, "num_key_value_heads": 1, "query_width": 20}, {}),
    "stretched": ("LlamaForCausalLM", "language", {**LLAMA, "position_stretch": 7.0, "position_stretch_from": 8}, {}),
    "biased": ("LlamaForCausalLM", "language", {**LLAMA, "bias": True, "activation": "geglu-tanh"}, {}),
    "qwen2": ("Qwen2ForCausalLM", "language", {**LLAMA, "attention_bias": True}, {}),
    "qwen3": ("Qwen3ForCausalLM", "language", {**LLAMA, "query_key_norm": True, "tie_embeddings": False}, {}),
    "paper": ("MarianMTModel", "translation", BOTH, {}),
    "marian": ("MarianMTModel", "translation", {**BOTH, "positions": "learned", "output_bias": True}, {}),
    "bart": ("BartForConditionalGeneration", "translation", BARELY, {}),
    "bart, untied": ("BartForConditionalGeneration", "translation", {**BARELY, "tie_embeddings": False}, {}),
    "t5": ("T5ForConditionalGeneration", "translation", T5, {}),
    "t5, gated": ("T5ForConditionalGeneration", "translation",
                  {**T5, "activation": "geglu-tanh", "scale_output": False, "tie_embeddings": False}, {}),
}  # fmt: skip

BACK = [name for name, (kind, *_) in SHAPES.items() if kind in ("BertModel", "BertForMaskedLM") or "Bert" not in kind]
"""Those that an import takes for the same: of another head on BERT the body comes back."""


def close(name: str) -> dict[str, float]:
    """Transformers has some norms in float32 whatever its weights are.

    Sinusoids and the scale of numbers are rounded to float32 as they are written.
    """
    architecture, task, shape, _ = SHAPES[name]
    is_rounded = any(name in architecture for name in ("Llama", "Qwen", "T5")) or task == "regression"
    has_sines = shape.get("positions", "sinusoidal") == "sinusoidal"
    return {"rtol": 1e-4, "atol": 1e-4} if is_rounded or has_sines else {}


def theirs_of(theirs: nn.Module, task: str, rows: Tensor) -> Tensor:
    if task == "translation":
        return theirs(input_ids=rows.flip(1), decoder_input_ids=rows).logits
    found = theirs(rows)
    if task == "embedding":
        return F.normalize(found.last_hidden_state.mean(dim=1), dim=-1)
    return torch.stack([found.start_logits, found.end_logits], dim=-1) if task == "answering" else found.logits


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_transformers_gives_the_same_scores(trained, name: str, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    architecture, task, shape, head = SHAPES[name]
    ours: Trained = trained(task, shape, head=head)
    made = export(ours, tmp_path / "out", to="hf")
    assert made.kind == architecture
    assert made.difference < 1e-5
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "out").double().eval()
    ours.model.double()
    torch.testing.assert_close(theirs_of(theirs, task, ours.rows()), ours.scores(), **close(name))
    if task in ("classification", "tagging"):
        assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    cut = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    tokenizer, (ids,) = ours.tokenizer, ours.tokenizer.encode(["ab"])
    before, behind = [tokenizer.start], [tokenizer.end]
    expected = {"language": [*before, *ids], "translation": [*ids, *behind]}.get(task, [*before, *ids, *behind])
    assert cut("ab").input_ids == expected
    assert cut.pad_token_id == tokenizer.pad


@pytest.mark.parametrize("name", BACK)
@torch.no_grad()
def test_what_goes_out_comes_back(trained, name: str, tmp_path: Path):
    _, task, shape, head = SHAPES[name]
    ours: Trained = trained(task, shape, head=head, chat_template="{{ messages }}" if task == "language" else None)
    export(ours, tmp_path / "out", to="hf")
    run = load(import_model(tmp_path / "out", tmp_path / "run"), device="cpu")
    ours.model.double()
    has_sines = shape.get("positions", "sinusoidal") == "sinusoidal"
    torch.testing.assert_close(ours.scores(run.model), ours.scores(), **(close(name) if has_sines else {}))
    assert run.task.name == task
    assert (run.tokenizer.start, run.tokenizer.end, run.tokenizer.pad) == (
        ours.tokenizer.start, ours.tokenizer.end, ours.tokenizer.pad
    )  # fmt: skip
    assert run.tokenizer.encode(["ab"]) == ours.tokenizer.encode(["ab"])
    assert run.folder.read_chat_template() == ours.chat_template


@pytest.mark.parametrize(("number_type", "most"), [("F32", 1e-5), ("F16", 0.1), ("Q8_0", 1.0)])
def test_a_gguf_file_is_read_by_its_package_and_by_us(trained, number_type, most: float, tmp_path: Path):
    gguf = pytest.importorskip("gguf")
    ours: Trained = trained("language", {**LLAMA, "model_dim": 32, "feedforward_dim": 64})
    made = export(ours, tmp_path / "model.gguf", to="gguf", number_type=number_type)
    assert made.kind == f"llama, {number_type}"
    assert 0.0 <= made.difference < most
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) == 2} == {number_type}
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("hf", "language", {**GPT2, "positions": "alibi"}, {},
     r"nearest is GPT2LMHeadModel: model\.positions must be learned, got alibi"),
    ("hf", "language", {**LLAMA, "activation": "squared-relu"}, {},
     r"LlamaForCausalLM: model\.activation must be swiglu, got squared-relu"),
    ("hf", "translation", {**BOTH, "block": "pre-norm"}, {}, r"MarianMTModel: model\.block must be post-norm"),
    ("hf", "classification", BERT, {}, r"head\.hidden must be true, got false; head\.pooling must be first, got mean"),
    ("hf", "classification", GPT2, CLASSIFIER, r"model\.encoder_layers must not be 0"),
    ("hf", "tagging", BERT, {"crf": True}, r"head\.crf must be false, got true"),
    ("hf", "embedding", BERT, {"pooling": "attention"}, r"head\.pooling must be one of mean, first, max, last"),
    ("hf", "masked", {**BERT, "activation": "relu"}, {}, r"model\.activation must be gelu, got relu"),
    ("hf", "language", {"family": "recurrent", "encoder_layers": 0, "model_dim": 22, "bidirectional": False}, {},
     r"model\.family must be transformer, got recurrent"),
    ("gguf", "language", GPT2, {}, r"model\.positions must be rotary for a GGUF file, got learned"),
    ("gguf", "language", {**LLAMA, "activation": "gelu"}, {}, r"model\.activation must be swiglu for a GGUF file"),
    ("gguf", "translation", BOTH, {}, r"task must be language for a GGUF file, got translation"),
    ("gguf", "language", {"family": "convolutional", "encoder_layers": 0, "model_dim": 22}, {},
     r"model\.family must be transformer, got convolutional"),
]  # fmt: skip


@pytest.mark.parametrize(("to", "task", "shape", "head", "told"), REFUSED)
def test_a_shape_without_words_is_refused_by_its_setting(trained, to, task, shape, head, told: str, tmp_path: Path):
    out = tmp_path / ("out.gguf" if to == "gguf" else "out")
    with pytest.raises(ConfigError, match=told):
        export(trained(task, shape, head=head), out, to=to)
    assert not list(tmp_path.iterdir())


def test_an_export_is_replaced_only_where_that_is_said_and_nothing_else_is(trained, tmp_path: Path):
    ours, out = trained("language", GPT2), tmp_path / "out"
    export(ours, out, to="hf")
    with pytest.raises(RunExistsError, match="is there already"):
        export(ours, out, to="hf")
    export(ours, out, to="hf", overwrite=True)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"holds notes\.txt, which no export wrote"):
        export(ours, out, to="hf", overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "file").write_text("mine")
    for values, told in (
        ({"out": tmp_path / "file", "to": "hf"}, "is a file"),
        ({"out": tmp_path / "x.gguf", "to": "hf"}, "is a folder, got"),
        ({"out": tmp_path / "x", "to": "gguf"}, r"ends in \.gguf, got"),
        ({"out": tmp_path / "x", "to": "onxx"}, "no format is called 'onxx'; did you mean onnx"),
        ({"out": tmp_path / "x", "to": "hf", "number_type": "F16"}, "number_type is for gguf"),
        ({"out": tmp_path / "file" / "x", "to": "hf"}, "cannot write to"),
    ):
        with pytest.raises(RegardError, match=told):
            export(ours, overwrite=True, **values)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_nothing_is_left_where_writing_was_stopped(trained, kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours, out = trained("language", GPT2), tmp_path / "out"
    export(ours, out, to="hf")
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def stop(*_: object) -> None:
        raise kind

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises((KeyboardInterrupt, RegardError)):
            export(ours, out, to="hf", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_what_has_other_scores_is_not_kept(trained, tmp_path: Path):
    ours: Trained = trained("language", GPT2)
    with torch.no_grad():
        ours.body.embedding.weight[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="gives other scores than the model"):
        export(ours, tmp_path / "out", to="hf")
    assert not list(tmp_path.iterdir())


def test_vectors_keep_their_pooling(trained, tmp_path: Path):
    export(trained("embedding", BERT, head={"pooling": "max"}), tmp_path / "out", to="hf")
    run = load(import_model(tmp_path / "out", tmp_path / "run"), device="cpu")
    assert (run.settings.head.pooling, run.settings.data.max_length) == ("max", 13)
    kinds = [part["type"].rpartition(".")[2] for part in json.loads((tmp_path / "out" / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Normalize"]
