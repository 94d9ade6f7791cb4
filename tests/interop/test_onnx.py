"""Exports to ONNX: its runtime gives our scores, for rows of any size, padded or not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.interop.exporting import export
from regard.interop.trained import Trained

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
def session(tmp_path: Path) -> Callable[[Trained], Session]:
    """Export a model; what its graph makes of tensors."""

    def open_(trained: Trained) -> Session:
        assert export(trained, tmp_path / "out", to="onnx").difference < 1e-5
        found = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])

        def run(**inputs: Tensor) -> Tensor:
            assert {each.name for each in found.get_inputs()} == set(inputs)
            (scores,) = found.run(None, {name: np.asarray(values) for name, values in inputs.items()})
            return torch.from_numpy(scores)

        return run

    return open_


def tokens(trained: Trained, rows: int, time: int) -> Tensor:
    return torch.randint(trained.tokenizer.vocab_size, (rows, time))


def mask_of(lengths: Tensor, time: int) -> Tensor:
    return (torch.arange(time) < lengths[:, None]).long()


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE)
@torch.no_grad()
def test_a_language_model(trained, session, name: str):
    ours: Trained = trained("language", {**LANGUAGE[name], "encoder_layers": 0})
    run = session(ours)
    for rows, time in ((3, 11), (1, 1)):
        some = tokens(ours, rows, time)
        torch.testing.assert_close(run(tokens=some), ours.model(some), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
@torch.no_grad()
def test_an_encoder_decoder_with_padded_sources(trained, session, name: str):
    ours: Trained = trained("translation", BOTH[name])
    run, lengths = session(ours), torch.tensor([9, 1, 4])
    source, target = tokens(ours, 3, 9), tokens(ours, 3, 5)
    expected = ours.model(target, source, lengths)
    found = run(source=source, source_mask=mask_of(lengths, 9), target=target)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "tagging"])
@torch.no_grad()
def test_a_model_that_reads_padded_texts(trained, session, task: str):
    ours: Trained = trained(task, READER, head={"pooling": "attention"})
    run, lengths, time = session(ours), torch.tensor([9, 1, 4]), 9
    source, segments, mask = tokens(ours, 3, time), torch.randint(2, (3, time)), mask_of(lengths, time)
    if task == "tagging":
        found, expected = run(tokens=source, mask=mask), ours.model(source, torch.arange(time).expand(3, -1), lengths)
        found, expected = found[mask.bool()], expected[mask.bool()]
    else:
        found, expected = run(tokens=source, mask=mask, segments=segments), ours.model(source, lengths, segments)
    if task == "regression":
        expected = expected * ours.settings.data.spread + ours.settings.data.center
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("task", "shape", "head", "told"),
    [
        ("translation", {**RECURRENT, "attention": "bahdanau"}, {}, r"model\.attention must be none or luong for onnx"),
        ("translation", {**RECURRENT, "input_feeding": True}, {}, r"model\.input_feeding must be false for onnx"),
        ("tagging", READER, {"crf": True}, r"head\.crf must be false for onnx, got true"),
    ],
)
def test_what_is_no_graph_is_refused_by_its_setting(trained, task, shape, head, told: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=told):
        export(trained(task, shape, head=head), tmp_path / "out", to="onnx")
    assert not list(tmp_path.iterdir())
