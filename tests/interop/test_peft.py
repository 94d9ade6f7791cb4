"""Adapters exported to peft and imported from it: the same logits on the same base."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.codecs import Codec
from regard.errors import BaseMissingError, CheckpointError, ConfigError, RegardError, RunError
from regard.interop.model import ExportableModel
from regard.runs.export import export_model, exportable_model
from regard.runs.folder import RunFolder
from regard.runs.importing import import_model
from regard.runs.run import Run, load
from regard.tasks.registry import make_task
from regard.training.checkpoints import hash_of, trained_weights, weights_of, write_tensors
from regard.training.finetuning import adapt, base_weights
from regard.training.settings import Provenance, ResolvedSettings

LLAMA: dict[str, Any] = {
    "encoder_layers": 0, "num_layers": 2, "model_dim": 24, "num_heads": 2, "feedforward_dim": 29, "block": "pre-norm",
    "positions": "rotary", "norm": "rms", "bias": False, "activation": "swiglu", "scale_embeddings": False,
}  # fmt: skip
BERT: dict[str, Any] = {
    "num_layers": 2, "decoder_layers": 0, "model_dim": 22, "num_heads": 2, "feedforward_dim": 29, "block": "post-norm",
    "positions": "learned", "embedding_norm": True, "scale_embeddings": False, "activation": "gelu",
    "context_length": 17,
}  # fmt: skip
HEADS = {kind: {"pooling": "first", "hidden_layer": True} for kind in ("labels", "number")}

Build = Callable[..., Run]


@pytest.fixture
def build(exportable, settings_with, codecs_with, tmp_path: Path) -> Build:
    """A run with LoRA, of which nothing is zero, on a base in `tmp_path`."""

    def make(kind: str, head: dict[str, Any] | None = None, **lora: Any) -> Run:
        base_kind, shape = ("next-token", LLAMA) if kind == "next-token" else ("vector", BERT)
        base: ExportableModel = exportable(base_kind, shape)
        folder = RunFolder(tmp_path / "base")
        write_run(folder, settings_with(base_kind, shape), codecs_with(base_kind), weights_of(base.model))
        tuned = {"base": str(tmp_path / "base"), "base_hash": hash_of(tmp_path / "base" / "model.safetensors"),
                 "method": "lora", "lora": {"rank": 3, "alpha": 5.0, **lora}}  # fmt: skip
        settings = settings_with(kind, shape, head=head or HEADS.get(kind)).changed(finetune=tuned)
        torch.set_default_dtype(torch.float32)
        model = adapted(settings, codecs_with(kind))
        torch.set_default_dtype(torch.float64)
        write_run(RunFolder(tmp_path / "mine"), settings, codecs_with(kind), trained_weights(model))
        return load(tmp_path / "mine", device="cpu")

    return make


def adapted(settings: ResolvedSettings, codecs: dict[str, Codec]) -> torch.nn.Module:
    model = make_task(settings.task, codecs).build(settings.model, settings.head)
    assert settings.finetune is not None
    adapt(model, settings.finetune, base_weights(settings.finetune, Path()))
    for weight in trained_weights(model).values():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def write_run(
    folder: RunFolder, settings: ResolvedSettings, codecs: dict[str, Codec], weights: dict[str, torch.Tensor]
) -> None:
    provenance = Provenance(
        version="0", torch="0", data_hash="", num_parameters=1, created="", hardware="", notes=[]
    )  # fmt: skip
    folder.create(settings, provenance, codecs, {})
    write_tensors(folder.model_path, {name: weight.float() for name, weight in weights.items()}, {"step": 0})


def outputs(run: Run) -> torch.Tensor:
    return exportable_model(run.settings, run.task, run.model).outputs()


@pytest.mark.parametrize("kind", [{}, {"dora": True}, {"rank_stabilized": True}])
@torch.no_grad()
def test_an_adapter_of_a_language_model_is_exported_and_imported(build: Build, kind, tmp_path: Path):
    run = build("next-token", **kind)
    made = export_model(run, tmp_path / "out", to="peft")
    assert made.name == "an adapter for LlamaForCausalLM"
    assert made.difference < 1e-5
    back = load(import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "base"), device="cpu")
    torch.testing.assert_close(outputs(back), outputs(run))
    assert back.settings.finetune is not None
    assert (back.settings.finetune.lora.rank, back.settings.finetune.lora.alpha) == (3, 5.0)


@pytest.mark.parametrize("kind", ["labels", "number", "tags", "spans", "vector"])
@torch.no_grad()
def test_an_adapter_and_its_head_are_exported_and_imported(build: Build, kind: str, tmp_path: Path):
    run = build(kind)
    export_model(run, tmp_path / "out", to="peft")
    back = load(import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "base"), device="cpu")
    assert back.task.export_spec().head == kind
    # The scale of numbers is rounded to float32 as it is written.
    close = {"rtol": 1e-4, "atol": 1e-4} if kind == "number" else {}
    torch.testing.assert_close(outputs(back), outputs(run), **close)


@pytest.mark.parametrize("kind", ["labels", "number"])
@pytest.mark.parametrize("head", [{"pooling": "mean"}, {"pooling": "max", "hidden_layer": True}])
@torch.no_grad()
def test_an_adapter_and_a_head_that_bert_does_not_have(build: Build, kind: str, head: dict[str, Any], tmp_path: Path):
    run = build(kind, head)
    assert export_model(run, tmp_path / "out", to="peft").name == "an adapter for BertModel"
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["task_type"] == "FEATURE_EXTRACTION"
    back = load(import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "base"), device="cpu")
    assert back.task.export_spec().head == kind
    assert back.settings.head.pooling == head["pooling"]
    if kind == "labels":
        assert back.task.export_spec().labels == ("a", "b", "c")
    # The scale of numbers is rounded to float32 as it is written.
    torch.testing.assert_close(outputs(back), outputs(run), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["next-token", "labels"])
@torch.no_grad()
def test_peft_computes_the_same_logits(build: Build, kind: str, tmp_path: Path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    run = build(kind)
    export_model(run, tmp_path / "adapter", to="peft")
    export_model(run, tmp_path / "whole", to="hf")
    architecture = "LlamaForCausalLM" if kind == "next-token" else "BertForSequenceClassification"
    export_model(tmp_path / "base", tmp_path / "plain", to="hf")
    # The base of the classifier has no head: the adapter brings it, and what stands there before does not matter.
    more = {"num_labels": 3} if kind == "labels" else {}
    plain = getattr(transformers, architecture).from_pretrained(tmp_path / "plain", **more)
    theirs = peft.PeftModel.from_pretrained(plain, str(tmp_path / "adapter")).double().eval()
    rows = exportable_model(run.settings, run.task, run.model).example_tokens()
    # Transformers has Llama's norms in float32.
    torch.testing.assert_close(theirs(input_ids=rows).logits, outputs(run), rtol=1e-4, atol=1e-4)
    whole = getattr(transformers, architecture).from_pretrained(tmp_path / "whole").double().eval()
    torch.testing.assert_close(whole(rows).logits, outputs(run), rtol=1e-4, atol=1e-4)


def test_an_adapter_without_its_base_is_an_error(build: Build, tmp_path: Path):
    run = build("next-token")
    with pytest.raises(ConfigError, match=r"finetune\.method must be lora for peft"):
        export_model(tmp_path / "base", tmp_path / "out", to="peft")
    export_model(run, tmp_path / "out", to="peft")
    cases: list[tuple[dict[str, Any], type[RegardError], str]] = [
        ({}, BaseMissingError, "is an adapter: name its base"),
        ({"base": tmp_path / "mine"}, RunError, "contains only an adapter"),
        ({"base": tmp_path / "none"}, RunError, "no run at"),
    ]
    for values, kind, message in cases:
        with pytest.raises(kind, match=message):
            import_model(tmp_path / "out", tmp_path / "back", **values)
    with pytest.raises(RunError, match="is the base"):
        import_model(tmp_path / "out", tmp_path / "base", base=tmp_path / "base", overwrite=True)
    export_model(run, tmp_path / "whole", to="hf")
    with pytest.raises(ConfigError, match="a base is only for an adapter"):
        import_model(tmp_path / "whole", tmp_path / "back", base=tmp_path / "base")
    assert not (tmp_path / "back").exists()


def test_an_adapter_for_another_config_is_an_error(
    build: Build, exportable, settings_with, codecs_with, tmp_path: Path
):
    export_model(build("next-token"), tmp_path / "out", to="peft")
    for name, changed in (("other", {"num_layers": 1}), ("wide", {"feedforward_dim": 31})):
        shape = {**LLAMA, **changed}
        weights = weights_of(exportable("next-token", shape).model)
        write_run(RunFolder(tmp_path / name), settings_with("next-token", shape), codecs_with("next-token"), weights)
    with pytest.raises(CheckpointError, match="adapts layers that the model does not have"):
        import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "other")
    with pytest.raises(CheckpointError, match="the adapter does not fit the model"):
        import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "wide")
    assert not (tmp_path / "back").exists()
