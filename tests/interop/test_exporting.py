"""Exports to Hugging Face folders and to GGUF: transformers reads them, and so do we."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError, RegardError, RunError, RunExistsError
from regard.interop.exporting import write_export
from regard.interop.model import ExportableModel
from regard.runs.importing import import_model
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
CLASSIFIER = {"pooling": "first", "hidden_layer": True}
SHAPES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "vector": ("BertModel", "vector", BERT, {}),
    "masked": ("BertForMaskedLM", "masked-tokens", {**BERT, "num_segments": 0}, {}),
    "labels": ("BertForSequenceClassification", "labels", BERT, CLASSIFIER),
    "number": ("BertForSequenceClassification", "number", BERT, CLASSIFIER),
    "tags": ("BertForTokenClassification", "tags", BERT, {}),
    "spans": ("BertForQuestionAnswering", "spans", BERT, {}),
    "gpt2": ("GPT2LMHeadModel", "next-token", GPT2, {}),
    "gpt2, sines": ("GPT2LMHeadModel", "next-token", {**GPT2, "positions": "sinusoidal", "tie_embeddings": False}, {}),
    "llama": ("LlamaForCausalLM", "next-token", {**LLAMA, "num_key_value_heads": 1, "query_width": 20}, {}),
    "stretched": ("LlamaForCausalLM", "next-token", {**LLAMA, "position_stretch": 7.0, "position_stretch_from": 8}, {}),
    "stretched by yarn": ("LlamaForCausalLM", "next-token",
                          {**LLAMA, "position_stretch": 7.0, "position_stretch_by": "yarn",
                           "position_stretch_from": 64}, {}),
    "windows": ("MistralForCausalLM", "next-token", {**LLAMA, "attention": "window", "window": 3}, {}),
    "windows of qwen2": ("Qwen2ForCausalLM", "next-token",
                         {**LLAMA, "attention_bias": True, "attention": ["window", "full"], "window": 3}, {}),
    "biased": ("LlamaForCausalLM", "next-token", {**LLAMA, "bias": True, "activation": "geglu-tanh"}, {}),
    "qwen2": ("Qwen2ForCausalLM", "next-token", {**LLAMA, "attention_bias": True}, {}),
    "qwen3": ("Qwen3ForCausalLM", "next-token", {**LLAMA, "query_key_norm": True, "tie_embeddings": False}, {}),
    "paper": ("MarianMTModel", "target-tokens", BOTH, {}),
    "marian": ("MarianMTModel", "target-tokens", {**BOTH, "positions": "learned", "output_bias": True}, {}),
    "bart": ("BartForConditionalGeneration", "target-tokens", BARELY, {}),
    "bart, untied": ("BartForConditionalGeneration", "target-tokens", {**BARELY, "tie_embeddings": False}, {}),
    "t5": ("T5ForConditionalGeneration", "target-tokens", T5, {}),
    "t5, gated": ("T5ForConditionalGeneration", "target-tokens",
                  {**T5, "activation": "geglu-tanh", "scale_output": False, "tie_embeddings": False}, {}),
}  # fmt: skip

BACK = [name for name, (kind, *_) in SHAPES.items() if kind in ("BertModel", "BertForMaskedLM") or "Bert" not in kind]
"""Those that are imported as the same model; of another head on BERT only the body is imported."""


def close(name: str) -> dict[str, float]:
    """Transformers has some norms in float32 whatever its weights are.

    Sinusoids and the scale of numbers are rounded to float32 as they are written.
    """
    architecture, head, shape, _ = SHAPES[name]
    is_rounded = any(name in architecture for name in ("Llama", "Mistral", "Qwen", "T5")) or head == "number"
    has_sines = shape.get("positions", "sinusoidal") == "sinusoidal"
    return {"rtol": 1e-4, "atol": 1e-4} if is_rounded or has_sines else {}


def theirs_of(theirs: nn.Module, head: str, rows: Tensor) -> Tensor:
    if head == "target-tokens":
        return theirs(input_ids=rows.flip(1), decoder_input_ids=rows).logits
    found = theirs(rows)
    if head == "vector":
        return F.normalize(found.last_hidden_state.mean(dim=1), dim=-1)
    return torch.stack([found.start_logits, found.end_logits], dim=-1) if head == "spans" else found.logits


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_transformers_computes_the_same_logits(exportable, name: str, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    architecture, kind, shape, head = SHAPES[name]
    ours: ExportableModel = exportable(kind, shape, head=head)
    made = write_export(ours, tmp_path / "out", to="hf")
    assert made.name == architecture
    assert made.difference < 1e-5
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "out").double().eval()
    ours.model.double()
    torch.testing.assert_close(theirs_of(theirs, kind, ours.example_tokens()), ours.outputs(), **close(name))
    if kind in ("labels", "tags"):
        assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    tokenizer, (ids,) = ours.tokenizer, ours.tokenizer.encode(["ab"])
    before, behind = [tokenizer.start], [tokenizer.end]
    expected = {"next-token": [*before, *ids], "target-tokens": [*ids, *behind]}.get(kind, [*before, *ids, *behind])
    assert read("ab").input_ids == expected
    assert read.pad_token_id == tokenizer.pad


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("kind", "pooling", "hidden"), [
    ("labels", "mean", False), ("labels", "max", True), ("number", "mean", True), ("number", "first", False)
])  # fmt: skip
@torch.no_grad()
def test_a_head_that_bert_does_not_have_is_written_for_sentence_transformers(
    exportable, kind: str, pooling: str, hidden: bool, tmp_path: Path
):
    transformers = pytest.importorskip("transformers")
    ours: ExportableModel = exportable(kind, BERT, head={"pooling": pooling, "hidden_layer": hidden})
    made, out = write_export(ours, tmp_path / "out", to="hf"), tmp_path / "out"
    assert made.name == f"BertModel, {pooling} pooling and a dense head"
    assert made.difference < 1e-5
    theirs = transformers.AutoModel.from_pretrained(out).eval()
    states = theirs(ours.example_tokens()).last_hidden_state
    x = {"mean": states.mean(dim=1), "max": states.amax(dim=1), "first": states[:, 0]}[pooling]
    modules = json.loads((out / "modules.json").read_text())
    assert [each["path"] for each in modules] == ["", "1_Pooling", "2_Dense", *(["3_Dense"] if hidden else [])]
    for module in modules[2:]:
        layer, tensors = out / module["path"], load_file(out / module["path"] / "model.safetensors")
        config = json.loads((layer / "config.json").read_text())
        assert (config["out_features"], config["in_features"]) == tuple(tensors["linear.weight"].shape)
        x = F.linear(x, tensors["linear.weight"], tensors["linear.bias"])
        x = x.tanh() if config["activation_function"].endswith("Tanh") else x
    torch.testing.assert_close(x, ours.outputs().float(), rtol=1e-4, atol=1e-4)
    if kind == "labels":
        assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    run = load(import_model(out, tmp_path / "run"), device="cpu")
    assert any(note.startswith("not used: 2_Dense") for note in run.folder.read_provenance().notes)


def test_an_export_with_other_probabilities_of_texts_is_removed(exportable, tmp_path: Path):
    pytest.importorskip("transformers")
    ours: ExportableModel = exportable("labels", BERT)
    wrong = replace(ours, inputs=("the other",), predict=lambda texts: torch.full((len(texts), 3), 1 / 3))
    with pytest.raises(CheckpointError, match="the probabilities of texts of the hf export differ"):
        write_export(wrong, tmp_path / "out", to="hf")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", BACK)
@torch.no_grad()
def test_an_export_is_imported_as_the_same_model(exportable, name: str, tmp_path: Path):
    _, kind, shape, head = SHAPES[name]
    template = "{{ messages }}" if kind == "next-token" else None
    ours: ExportableModel = exportable(kind, shape, head=head, chat_template=template)
    write_export(ours, tmp_path / "out", to="hf")
    run = load(import_model(tmp_path / "out", tmp_path / "run"), device="cpu")
    ours.model.double()
    has_sines = shape.get("positions", "sinusoidal") == "sinusoidal"
    torch.testing.assert_close(ours.outputs(run.model), ours.outputs(), **(close(name) if has_sines else {}))
    assert run.task.export_spec().head == kind
    assert (run.tokenizer.start, run.tokenizer.end, run.tokenizer.pad) == (
        ours.tokenizer.start, ours.tokenizer.end, ours.tokenizer.pad
    )  # fmt: skip
    assert run.tokenizer.encode(["ab"]) == ours.tokenizer.encode(["ab"])
    assert run.folder.read_chat_template() == ours.chat_template


@pytest.mark.parametrize(("number_type", "most"), [("F32", 1e-5), ("F16", 0.1), ("Q8_0", 1.0)])
def test_a_gguf_file_is_read_by_its_package_and_by_us(exportable, number_type, most: float, tmp_path: Path):
    gguf = pytest.importorskip("gguf")
    ours: ExportableModel = exportable("next-token", {**LLAMA, "model_dim": 32, "feedforward_dim": 64})
    made = write_export(ours, tmp_path / "model.gguf", to="gguf", number_type=number_type)
    assert made.name == f"llama, {number_type}"
    assert 0.0 <= made.difference < most
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) == 2} == {number_type}
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("hf", "next-token", {**GPT2, "positions": "alibi"}, {},
     r"nearest is GPT2LMHeadModel: model\.positions must be learned, got alibi"),
    ("hf", "next-token", {**LLAMA, "activation": "squared-relu"}, {},
     r"LlamaForCausalLM: model\.activation must be swiglu, got squared-relu"),
    ("hf", "target-tokens", {**BOTH, "block": "pre-norm"}, {}, r"MarianMTModel: model\.block must be post-norm"),
    ("hf", "labels", BERT, {"head": {"pooling": "attention"}}, r"got attention; onnx can represent every head"),
    ("hf", "tags", BERT, {"head": {"hidden_layer": True}}, r"head\.hidden_layer must be false, got true"),
    ("hf", "labels", GPT2, {"head": CLASSIFIER}, r"model\.encoder_layers must not be 0"),
    ("hf", "tags", BERT, {"task": {"crf": True}}, r"task\.crf must be false"),
    ("hf", "vector", BERT, {"head": {"pooling": "attention"}}, r"head\.pooling must be one of mean, first, max, last"),
    ("hf", "masked-tokens", {**BERT, "activation": "relu"}, {}, r"model\.activation must be gelu, got relu"),
    ("hf", "next-token", {"family": "recurrent", "encoder_layers": 0, "model_dim": 22, "bidirectional": False}, {},
     r"model\.family must be transformer, got recurrent"),
    ("gguf", "next-token", GPT2, {}, r"model\.positions must be rotary for a GGUF file, got learned"),
    ("gguf", "next-token", {**LLAMA, "activation": "gelu"}, {}, r"model\.activation must be swiglu for a GGUF file"),
    ("gguf", "target-tokens", BOTH, {}, r"head next-token, got target-tokens"),
    ("gguf", "next-token", {"family": "convolutional", "encoder_layers": 0, "model_dim": 22}, {},
     r"model\.family must be transformer, got convolutional"),
]  # fmt: skip


@pytest.mark.parametrize(("to", "kind", "shape", "settings", "message"), REFUSED)
def test_a_setting_that_a_format_cannot_represent_is_an_error(
    exportable, to, kind, shape, settings, message: str, tmp_path: Path
):
    out = tmp_path / ("out.gguf" if to == "gguf" else "out")
    with pytest.raises(ConfigError, match=message):
        write_export(exportable(kind, shape, **settings), out, to=to)
    assert not list(tmp_path.iterdir())


def test_only_an_export_is_replaced_and_only_with_overwrite(exportable, tmp_path: Path):
    ours, out = exportable("next-token", GPT2), tmp_path / "out"
    write_export(ours, out, to="hf")
    with pytest.raises(RunExistsError, match="already exists"):
        write_export(ours, out, to="hf")
    write_export(ours, out, to="hf", overwrite=True)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"contains notes\.txt, which is not part of an export"):
        write_export(ours, out, to="hf", overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "file").write_text("mine")
    for values, message in (
        ({"out": tmp_path / "file", "to": "hf"}, "is a file"),
        ({"out": tmp_path / "x.gguf", "to": "hf"}, "is a folder, got"),
        ({"out": tmp_path / "x", "to": "gguf"}, r"ends in \.gguf, got"),
        ({"out": tmp_path / "x", "to": "onxx"}, "unknown export format 'onxx'; did you mean onnx"),
        ({"out": tmp_path / "x", "to": "hf", "number_type": "F16"}, "no number types"),
        ({"out": tmp_path / "file" / "x", "to": "hf"}, "cannot write to"),
    ):
        with pytest.raises(RegardError, match=message):
            write_export(ours, overwrite=True, **values)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_export_changes_nothing(exportable, kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours, out = exportable("next-token", GPT2), tmp_path / "out"
    write_export(ours, out, to="hf")
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def stop(*_: object) -> None:
        raise kind

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises((KeyboardInterrupt, RegardError)):
            write_export(ours, out, to="hf", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_export_with_other_outputs_is_removed(exportable, tmp_path: Path):
    ours: ExportableModel = exportable("next-token", GPT2)
    with torch.no_grad():
        ours.body.embedding.weight[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="outputs of the hf export differ"):
        write_export(ours, tmp_path / "out", to="hf")
    assert not list(tmp_path.iterdir())


def test_embeddings_keep_their_pooling(exportable, tmp_path: Path):
    write_export(exportable("vector", BERT, head={"pooling": "max"}), tmp_path / "out", to="hf")
    run = load(import_model(tmp_path / "out", tmp_path / "run"), device="cpu")
    assert (run.settings.head.pooling, run.task.settings.max_length) == ("max", 13)
    kinds = [part["type"].rpartition(".")[2] for part in json.loads((tmp_path / "out" / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Normalize"]
