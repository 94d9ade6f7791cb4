"""Exports to ONNX: its runtime computes our logits, for batches of any size, padded or not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import tokenizers
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.interop.exporting import write_export
from regard.interop.model import ExportableModel

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

SHAPE: dict[str, Any] = {"num_layers": 1, "model_dim": 22, "num_heads": 2, "feedforward_dim": 29, "context_length": 17}
READER: dict[str, Any] = {**SHAPE, "decoder_layers": 0, "positions": "learned", "num_segments": 2}
RECURRENT: dict[str, Any] = {"family": "recurrent", "num_layers": 1, "model_dim": 22, "attention": "luong"}
LANGUAGE: dict[str, dict[str, Any]] = {
    "learned": {**SHAPE, "positions": "learned"},
    "gru": {**RECURRENT, "attention": "none", "bidirectional": False, "cell": "gru"},
}
BOTH: dict[str, dict[str, Any]] = {
    "rotary": {**SHAPE, "positions": "rotary", "query_width": 12, "num_key_value_heads": 1},
    "lstm": {**RECURRENT, "cell": "lstm"},
    "convolutional": {"family": "convolutional", "num_layers": 1, "model_dim": 22},
}

Session = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def without_checks() -> Iterator[None]:
    """Sizes are symbols while a graph is traced, and no annotation knows of such."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def session(tmp_path: Path) -> Callable[[ExportableModel], Session]:
    """Export a model; returns what computes the outputs of its graph."""

    def open_(model: ExportableModel) -> Session:
        assert write_export(model, tmp_path / "out", to="onnx").difference < 1e-5
        found = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])

        def run(**inputs: Tensor) -> Tensor:
            assert {each.name for each in found.get_inputs()} == set(inputs)
            (scores,) = found.run(None, {name: np.asarray(values) for name, values in inputs.items()})
            return torch.from_numpy(scores)

        return run

    return open_


def tokens(model: ExportableModel, rows: int, time: int) -> Tensor:
    return torch.randint(model.tokenizer.vocab_size, (rows, time))


def mask_of(lengths: Tensor, time: int) -> Tensor:
    return (torch.arange(time) < lengths[:, None]).long()


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE)
@torch.no_grad()
def test_a_language_model(exportable, session, name: str):
    ours: ExportableModel = exportable("next-token", {**LANGUAGE[name], "encoder_layers": 0})
    run = session(ours)
    for rows, time in ((3, 11), (1, 1)):
        some = tokens(ours, rows, time)
        torch.testing.assert_close(run(input_ids=some), ours.model(some), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
@torch.no_grad()
def test_an_encoder_decoder_with_padded_sources(exportable, session, name: str):
    ours: ExportableModel = exportable("target-tokens", BOTH[name])
    run, lengths = session(ours), torch.tensor([9, 1, 4])
    source, target = tokens(ours, 3, 9), tokens(ours, 3, 5)
    expected = ours.model(target, source, lengths)
    found = run(input_ids=source, attention_mask=mask_of(lengths, 9), decoder_input_ids=target)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["number", "tags"])
@torch.no_grad()
def test_a_head_on_an_encoder_of_padded_texts(exportable, session, kind: str, tmp_path: Path):
    ours: ExportableModel = exportable(kind, READER, head={"pooling": "attention"})
    run, lengths, time = session(ours), torch.tensor([9, 1, 4]), 9
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert read.encode("ab").ids == [ours.tokenizer.start, *ours.tokenizer.encode(["ab"])[0], ours.tokenizer.end]
    source, segments, mask = tokens(ours, 3, time), torch.randint(2, (3, time)), mask_of(lengths, time)
    if kind == "tags":
        found, expected = (
            run(input_ids=source, attention_mask=mask),
            ours.model(source, torch.arange(time).expand(3, -1), lengths),
        )
        found, expected = found[mask.bool()], expected[mask.bool()]
    else:
        found = run(input_ids=source, attention_mask=mask, token_type_ids=segments)
        expected = ours.model(source, lengths, segments)
    if kind == "number":
        expected = expected * ours.spec.scale + ours.spec.shift
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "shape", "settings", "message"),
    [
        (
            "target-tokens",
            {**RECURRENT, "attention": "bahdanau"},
            {},
            r"model\.attention must be none or luong for onnx",
        ),
        ("target-tokens", {**RECURRENT, "input_feeding": True}, {}, r"model\.input_feeding must be false for onnx"),
        ("tags", READER, {"task": {"crf": True}}, r"task\.crf must be false to export a model, got true"),
    ],
)
def test_a_setting_that_a_graph_cannot_represent_is_an_error(
    exportable, kind, shape, settings, message: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match=message):
        write_export(exportable(kind, shape, **settings), tmp_path / "out", to="onnx")
    assert not list(tmp_path.iterdir())
