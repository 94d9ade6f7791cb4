"""Adapters that go to peft and come from it: the same scores beside the same base."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import BaseMissingError, CheckpointError, ConfigError, RegardError, RunError
from regard.interop.importing import import_model
from regard.interop.trained import Trained
from regard.runs.export import export_model
from regard.runs.run import Run, load
from regard.tasks import find_task
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoints import hash_of, trained_weights, weights_of, write_tensors
from regard.training.finetuning import adapt, base_weights
from regard.training.folder import RunFolder
from regard.training.settings import RunSettings

LLAMA: dict[str, Any] = {
    "encoder_layers": 0, "num_layers": 2, "model_dim": 24, "num_heads": 2, "feedforward_dim": 29, "block": "pre-norm",
    "positions": "rotary", "norm": "rms", "bias": False, "activation": "swiglu", "scale_embeddings": False,
}  # fmt: skip
BERT: dict[str, Any] = {
    "num_layers": 2, "decoder_layers": 0, "model_dim": 22, "num_heads": 2, "feedforward_dim": 29, "block": "post-norm",
    "positions": "learned", "embedding_norm": True, "scale_embeddings": False, "activation": "gelu",
    "context_length": 17,
}  # fmt: skip
HEADS = {"classification": {"pooling": "first", "hidden": True}, "regression": {"pooling": "first", "hidden": True}}

Build = Callable[..., Run]


@pytest.fixture
def build(trained, tokenizer: Tokenizer, tmp_path: Path) -> Build:
    """A run with LoRA, of which nothing is zero, on a base that goes to `tmp_path` as well."""

    def make(task: str, **lora: Any) -> Run:
        shape, is_reader = (LLAMA, False) if task == "language" else (BERT, True)
        base: Trained = trained("embedding" if is_reader else task, shape)
        write_run(RunFolder(tmp_path / "base"), base.settings, tokenizer, weights_of(base.model))
        data = base.settings.data.changed(labels=["a", "b", "c"])
        tuned = {"base": str(tmp_path / "base"), "base_hash": hash_of(tmp_path / "base" / "model.safetensors"),
                 "method": "lora", "lora": {"rank": 3, "alpha": 5.0, **lora}}  # fmt: skip
        head = base.settings.head.changed(**HEADS.get(task, {})).model_dump()
        settings = base.settings.changed(task=task, head=head, data=data.model_dump(), finetune=tuned)
        torch.set_default_dtype(torch.float32)
        model = adapted(settings, tokenizer)
        torch.set_default_dtype(torch.float64)
        write_run(RunFolder(tmp_path / "mine"), settings, tokenizer, trained_weights(model))
        return load(tmp_path / "mine", device="cpu")

    return make


def adapted(settings: RunSettings, tokenizer: Tokenizer) -> torch.nn.Module:
    model = find_task(settings.task).build_model(settings.model, tokenizer, data=settings.data, head=settings.head)
    assert settings.finetune is not None
    adapt(model, settings.finetune, base_weights(settings.finetune))
    for weight in trained_weights(model).values():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def write_run(folder: RunFolder, settings: RunSettings, tokenizer: Tokenizer, weights: dict[str, Any]) -> None:
    record = {"version": "0", "torch": "0", "data_hash": "", "num_parameters": 1, "created": "", "hardware": "",
              "notes": []}  # fmt: skip
    train = {"max_steps": 1, "learning_rate": 0.1, "warmup_steps": 1, "batch_tokens": 9, "optimizer": "adamw",
             "schedule": "linear", "label_smoothing": 0.0, "beta2": 0.9, "weight_decay": 0.0,
             "average": 0.0}  # fmt: skip
    data = settings.data.changed(tokenizer="bpe").model_dump()
    folder.create(settings.changed(record=record, train=train, data=data), tokenizer, {})
    write_tensors(folder.model_path, {name: weight.float() for name, weight in weights.items()}, {"step": 0})


def scored(run: Run, model: Any = None) -> torch.Tensor:
    return Trained("", run.settings, run.tokenizer, run.model).scores(model)


@pytest.mark.parametrize("kind", [{}, {"dora": True}, {"rank_stabilized": True}])
@torch.no_grad()
def test_an_adapter_of_a_language_model_goes_out_and_comes_back(build: Build, kind, tmp_path: Path):
    run = build("language", **kind)
    made = export_model(run, tmp_path / "out", to="peft")
    assert made.kind == "an adapter for LlamaForCausalLM"
    assert made.difference < 1e-5
    back = load(import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "base"), device="cpu")
    torch.testing.assert_close(scored(back), scored(run))
    assert back.settings.finetune is not None
    assert (back.settings.finetune.lora.rank, back.settings.finetune.lora.alpha) == (3, 5.0)


@pytest.mark.parametrize("task", ["classification", "regression", "tagging", "answering", "embedding"])
@torch.no_grad()
def test_an_adapter_and_its_head_go_out_and_come_back(build: Build, task: str, tmp_path: Path):
    run = build(task)
    export_model(run, tmp_path / "out", to="peft")
    back = load(import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "base"), device="cpu")
    assert back.task.name == task
    # The scale of numbers is rounded to float32 as it is written.
    close = {"rtol": 1e-4, "atol": 1e-4} if task == "regression" else {}
    torch.testing.assert_close(scored(back), scored(run), **close)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("task", ["language", "classification"])
@torch.no_grad()
def test_peft_gives_the_same_scores(build: Build, task: str, tmp_path: Path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    run = build(task)
    export_model(run, tmp_path / "adapter", to="peft")
    export_model(run, tmp_path / "whole", to="hf")
    kind = "LlamaForCausalLM" if task == "language" else "BertForSequenceClassification"
    export_model(tmp_path / "base", tmp_path / "plain", to="hf")
    # The base of the classifier has no head: the adapter brings it, and what stands there before does not matter.
    more = {"num_labels": 3} if task == "classification" else {}
    plain = getattr(transformers, kind).from_pretrained(tmp_path / "plain", **more)
    theirs = peft.PeftModel.from_pretrained(plain, str(tmp_path / "adapter")).double().eval()
    rows = Trained("", run.settings, run.tokenizer, run.model).rows()
    # Transformers has Llama's norms in float32.
    torch.testing.assert_close(theirs(input_ids=rows).logits, scored(run), rtol=1e-4, atol=1e-4)
    whole = getattr(transformers, kind).from_pretrained(tmp_path / "whole").double().eval()
    torch.testing.assert_close(whole(rows).logits, scored(run), rtol=1e-4, atol=1e-4)


def test_what_is_no_adapter_or_has_no_base_is_told(build: Build, tmp_path: Path):
    run = build("language")
    with pytest.raises(ConfigError, match=r"finetune\.method must be lora for peft"):
        export_model(tmp_path / "base", tmp_path / "out", to="peft")
    export_model(run, tmp_path / "out", to="peft")
    cases: list[tuple[dict[str, Any], type[RegardError], str]] = [
        ({}, BaseMissingError, "is an adapter of peft: name its base"),
        ({"base": tmp_path / "mine"}, RunError, "holds an adapter alone"),
        ({"base": tmp_path / "none"}, RunError, "no run at"),
    ]
    for values, kind, told in cases:
        with pytest.raises(kind, match=told):
            import_model(tmp_path / "out", tmp_path / "back", **values)
    with pytest.raises(RunError, match="is the base"):
        import_model(tmp_path / "out", tmp_path / "base", base=tmp_path / "base", overwrite=True)
    export_model(run, tmp_path / "whole", to="hf")
    with pytest.raises(ConfigError, match="a base is for an adapter of peft"):
        import_model(tmp_path / "whole", tmp_path / "back", base=tmp_path / "base")
    assert not (tmp_path / "back").exists()


def test_an_adapter_of_another_shape_is_refused(build: Build, trained, tokenizer: Tokenizer, tmp_path: Path):
    export_model(build("language"), tmp_path / "out", to="peft")
    other: Trained = trained("language", {**LLAMA, "num_layers": 1})
    write_run(RunFolder(tmp_path / "other"), other.settings, tokenizer, weights_of(other.model))
    with pytest.raises(CheckpointError, match="adapts layers that the model has not"):
        import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "other")
    wide: Trained = trained("language", {**LLAMA, "feedforward_dim": 31})
    write_run(RunFolder(tmp_path / "wide"), wide.settings, tokenizer, weights_of(wide.model))
    with pytest.raises(CheckpointError, match="the adapter does not fit the model"):
        import_model(tmp_path / "out", tmp_path / "back", base=tmp_path / "wide")
    assert not (tmp_path / "back").exists()
