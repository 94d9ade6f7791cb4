"""Models as ONNX graphs: token ids in, scores out, for any number of rows of any length.

    tokens, mask, segments     of a model that reads; `segments` where it tells them apart
    tokens                     of a language model
    source, source_mask, target  of an encoder-decoder

A mask has 1 where there is text and 0 for the padding behind it. The graph holds no key/value cache: it scores whole
prefixes. Numbers of a regression come out in the units of the data.
"""

import copy
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DeviceError
from regard.files import write_atomically
from regard.interop.trained import Trained, has_both
from regard.logging import log_info
from regard.models.families import longest_sequence
from regard.models.heads import Tagger
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import Transformer
from regard.nn.recurrent import LayerHidden, RecurrentLayer

_FILE = "model.onnx"
_LARGEST = 1_800_000_000
"""Bytes of weights that lie in the file of the graph; more than two gigabytes it cannot hold."""
_ROWS, _TIME, _SOURCE_TIME = 2, 5, 7
"""What the graph is traced with; it is compared on rows of other sizes."""
_OPERATORS = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM"}
_GATES = {"rnn": [0], "gru": [1, 0, 2], "lstm": [0, 3, 1, 2]}
"""PyTorch's gates in the order in which ONNX has them."""


def write_onnx(trained: Trained, folder: Path) -> str:
    """Fill an empty folder, and say what the graph is handed."""
    _require_packages()
    _require_graph(trained)
    log_info("writing the graph, which takes a while")
    model = copy.deepcopy(trained.model).float().eval()
    for layer in model.modules():
        if isinstance(layer, RecurrentLayer):
            layer.forward = _Recurrence(layer)
    graph = _Both(model) if has_both(model) else _Reading(trained, model) if _is_read(trained) else _Language(model)
    inputs = _inputs(trained, _ROWS, _TIME, _SOURCE_TIME)
    num_bytes = sum(parameter.numel() * 4 for parameter in model.parameters())
    with _hushed(), torch.no_grad():
        torch.onnx.export(
            graph,
            tuple(inputs.values()),
            folder / _FILE,
            input_names=list(inputs),
            output_names=["scores"],
            dynamic_shapes=_dimensions(trained, list(inputs)),
            dynamo=True,
            external_data=num_bytes > _LARGEST,
            verbose=False,
        )
    write_atomically(folder / "tokenizer.json", trained.tokenizer.to_json().encode())
    return f"a graph of {', '.join(inputs)}"


def onnx_scores(trained: Trained, folder: Path) -> Tensor:
    """What the graph makes of the rows that a model is compared on, by onnxruntime or else by the reference of ONNX."""
    rows = trained.rows()
    inputs = _inputs(trained, rows.size(0), rows.size(1), rows.size(1))
    for name, values in (("tokens", rows), ("target", rows), ("source", rows.flip(1))):
        if name in inputs:
            inputs[name] = values
    feed = {name: values.numpy() for name, values in inputs.items()}
    path = str(folder / _FILE)
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(None, feed)[0])
    from onnx.reference import ReferenceEvaluator

    return torch.from_numpy(ReferenceEvaluator(path).run(None, feed)[0])  # pyright: ignore[reportArgumentType, reportIndexIssue, reportCallIssue]  its stubs


class _Language(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)


class _Both(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        return self.model(target, source, source_mask.sum(dim=1))


class _Reading(nn.Module):
    def __init__(self, trained: Trained, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        is_number, data = trained.task == "regression", trained.settings.data
        self.center, self.spread = (data.center, data.spread) if is_number else (0.0, 1.0)

    def forward(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        lengths = mask.sum(dim=1)
        if isinstance(self.model, Tagger):
            return self.model(tokens, torch.arange(tokens.size(1)).expand_as(tokens), lengths)
        more = () if segments is None else (segments,)
        scores = self.model(tokens, lengths, *more)
        return scores if (self.center, self.spread) == (0.0, 1.0) else scores * self.spread + self.center


def _is_read(trained: Trained) -> bool:
    return trained.body is not trained.model


def _inputs(trained: Trained, rows: int, time: int, source_time: int) -> dict[str, Tensor]:
    """What the graph is handed, by name: rows of the first token of the vocabulary."""
    limit = longest_sequence(trained.settings.model) or max(time, source_time)
    tokens, source = (torch.zeros(rows, min(limit, length), dtype=torch.long) for length in (time, source_time))
    if has_both(trained.model):
        return {"source": source, "source_mask": torch.ones_like(source), "target": tokens}
    if not _is_read(trained):
        return {"tokens": tokens}
    body = trained.body
    has_segments = isinstance(body, Transformer) and body.segments is not None and not isinstance(trained.model, Tagger)
    more = {"segments": torch.zeros_like(tokens)} if has_segments else {}
    return {"tokens": tokens, "mask": torch.ones_like(tokens), **more}


def _dimensions(trained: Trained, names: Sequence[str]) -> tuple[dict[int, Any], ...]:
    limit = longest_sequence(trained.settings.model)
    batch = torch.export.Dim("batch")
    time, source_time = (torch.export.Dim(name, max=limit) for name in ("time", "source_time"))
    return tuple({0: batch, 1: source_time if name.startswith("source") else time} for name in names)


class _Recurrence:
    """What a recurrent layer computes, as one operator of ONNX: PyTorch's own becomes one of fixed length."""

    def __init__(self, layer: RecurrentLayer) -> None:
        self.layer = layer
        self.weights = [
            self._arranged("weight_ih"),
            self._arranged("weight_hh"),
            torch.cat([self._arranged("bias_ih"), self._arranged("bias_hh")], dim=1),
        ]
        self.attributes: dict[str, Any] = {
            "hidden_size": layer.hidden_dim,
            "direction": "bidirectional" if layer.num_directions == 2 else "forward",
        }
        if layer.cell == "gru":
            self.attributes["linear_before_reset"] = 1
        if layer.cell == "rnn":
            self.attributes["activations"] = [layer.activation.capitalize()] * layer.num_directions

    def __call__(
        self, x: Tensor, state: LayerHidden, lengths: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        layer, (rows, time, _) = self.layer, x.shape
        last = (layer.num_directions, rows, layer.hidden_dim)
        states, *ends = torch.onnx.ops.symbolic_multi_out(
            _OPERATORS[layer.cell],
            (x.transpose(0, 1), *self.weights, None if lengths is None else lengths.to(torch.int32), *state),
            self.attributes,
            dtypes=(x.dtype,) * (1 + layer.num_parts),
            shapes=((time, *last), *(last,) * layer.num_parts),
        )
        return states.permute(2, 0, 1, 3).flatten(2), tuple(ends)

    def _arranged(self, kind: str) -> Tensor:
        """The weights of all directions, gates in the order of ONNX."""
        order, kernel = _GATES[self.layer.cell], dict(self.layer.kernel.named_parameters())
        sides = [kernel[f"{kind}_l0{side}"].detach() for side in ("", "_reverse")[: self.layer.num_directions]]
        return torch.stack([torch.cat([side.chunk(len(order))[gate] for gate in order]) for side in sides])


def _require_graph(trained: Trained) -> None:
    """Raise where something cannot be said without a loop over positions, or is no part of the scores."""
    config = trained.settings.model
    if isinstance(config, RecurrentConfig) and config.is_step_by_step:
        name = "model.input_feeding must be false" if config.input_feeding else "model.attention must be none or luong"
        raise ConfigError(f"{name} for onnx, which has no place for a look between two steps")
    if trained.settings.head.crf and trained.task == "tagging":
        raise ConfigError("head.crf must be false for onnx, got true: what joins the tags is no part of the scores")
    if trained.settings.head.capitals:
        raise ConfigError("head.capitals must be false for onnx, got true: how words are written is no token")


def _require_packages() -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise DeviceError(f"to export as onnx the package {missing[0]} is needed: pip install 'regard[onnx]'")


@contextmanager
def _hushed() -> Iterator[None]:
    """Without what the exporter has to say of packages that nobody asked for."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("torch.onnx", "onnxscript", "onnx_ir"))}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
