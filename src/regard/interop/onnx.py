"""Writing models as ONNX graphs, for batches of any size and sequences of any length.

The output is `logits`; the inputs have Hugging Face's names:

    input_ids                                       of a causal language model
    input_ids, attention_mask, decoder_input_ids    of an encoder-decoder
    input_ids, attention_mask, token_type_ids       of every other model; the last if it has segment embeddings

A mask has 1 for tokens and 0 for the padding after them. There is no KV cache: the graph computes the logits of all
positions. A number has the units of the data.

A model whose inputs are arrays, such as series or graphs, has the inputs and outputs that its task declares; they are
described in `config.json`, and the outputs are those of the run: numbers in the units of the data, or probabilities.

`tokenizer.json` adds the tokens that the model was trained with, and truncates texts. `config.json` has the names of
the labels, the function that turns logits into probabilities, and the pooling, which is part of the graph.
"""

import copy
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.files import write_atomically
from regard.interop.hf.tokenizer import tokenizer_with_template
from regard.interop.hf.writing import label_fields
from regard.interop.model import FINAL_OUTPUTS, TOKENIZER_FILES, ExportableModel, Exporter, optional_package
from regard.logging import log_info
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer.config import TransformerConfig
from regard.nn.recurrent import LayerHidden, RecurrentLayer
from regard.tasks.capabilities import ExportGraph
from regard.tasks.text import SEPARATOR

_FILE, _CONFIG = "model.onnx", "config.json"
_MAX_BYTES = 1_800_000_000
"""Weights up to this size are stored in the file of the graph, which can have at most two gigabytes."""
_ROWS, _TIME, _SOURCE_TIME = 2, 5, 7
"""The sizes of the inputs that the graph is traced with; it is compared for other sizes."""
_OPERATORS = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM"}
_GATES = {"rnn": [0], "gru": [1, 0, 2], "lstm": [0, 3, 1, 2]}
"""PyTorch's gates in the order of ONNX."""


def write_onnx(model: ExportableModel, folder: Path) -> str:
    """Write the graph and the tokenizer to an empty folder and return the inputs of the graph."""
    for package in ("onnx", "onnxscript"):
        optional_package(package, extra="onnx")
    _require_graph(model)
    log_info("writing the graph, which takes up to a minute")
    inner = _prepared(model.model)
    graph = _Graph(model, inner)
    inputs = _example_inputs(model, torch.zeros(_ROWS, _TIME), torch.zeros(_ROWS, _SOURCE_TIME))
    limit, batch = model.max_positions, torch.export.Dim("batch")
    time, source_time = (torch.export.Dim(name, max=limit) for name in ("time", "source_time"))
    is_pair = model.spec.head == "target-tokens"
    lengths = {name: source_time if is_pair and name != "decoder_input_ids" else time for name in inputs}
    shapes = {name: {0: batch, 1: length} for name, length in lengths.items()}
    _export(graph, inputs, shapes, ["logits"], folder)
    write_atomically(folder / "tokenizer.json", _tokenizer(model).encode())
    _write_config(folder, _config(model))
    return f"a graph of {', '.join(inputs)}"


def write_onnx_graph(graph: ExportGraph, folder: Path) -> str:
    """Write a network whose inputs are arrays to an empty folder and return its inputs."""
    for package in ("onnx", "onnxscript"):
        optional_package(package, extra="onnx")
    log_info("writing the graph, which takes up to a minute")
    names = sorted({name for axes in graph.axes.values() for name in axes.values()})
    dims = {name: torch.export.Dim(name, max=graph.limits.get(name)) for name in names}
    shapes = {name: {axis: dims[size] for axis, size in axes.items()} for name, axes in graph.axes.items()}
    example, _ = graph.examples[0]
    # A size of 1 would be traced as a constant; values have no influence on a trace.
    traced = dict(example)
    for name, axes in graph.axes.items():
        for axis in axes:
            traced[name] = traced[name].repeat_interleave(1 + (traced[name].size(axis) == 1), dim=axis)
    _export(_prepared(graph.module), traced, shapes, graph.outputs, folder)
    sizes = {
        name: [graph.axes[name].get(axis, size) for axis, size in enumerate(values.shape)]
        for name, values in example.items()
    }
    _write_config(folder, {"inputs": sizes, "outputs": list(graph.outputs), **graph.config})
    return f"a graph of {', '.join(example)}"


def graph_outputs(folder: Path, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs of a graph for inputs by name, by onnxruntime or else by ONNX's reference."""
    feed, path = {name: values.numpy() for name, values in inputs.items()}, str(folder / _FILE)
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return [torch.from_numpy(each) for each in session.run(None, feed)]
    from onnx.reference import ReferenceEvaluator

    found: Any = ReferenceEvaluator(path).run(None, feed)
    return [torch.from_numpy(each) for each in found]


def _prepared(model: nn.Module) -> nn.Module:
    """A copy in float32 whose recurrent layers are operators of ONNX."""
    inner = copy.deepcopy(model).float().eval()
    for layer in inner.modules():
        if isinstance(layer, RecurrentLayer):
            layer.forward = _Recurrence(layer)
    return inner


def _export(
    module: nn.Module, inputs: dict[str, Tensor], shapes: Mapping[str, Any], outputs: Sequence[str], folder: Path
) -> None:
    with _quiet_exporter(), torch.no_grad():
        torch.onnx.export(
            module,
            kwargs=inputs,
            f=folder / _FILE,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=dict(shapes),
            dynamo=True,
            external_data=sum(parameter.numel() * 4 for parameter in module.parameters()) > _MAX_BYTES,
            verbose=False,
        )


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    write_atomically(folder / _CONFIG, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())


def onnx_outputs(model: ExportableModel, folder: Path) -> tuple[Tensor, Tensor]:
    """The outputs of the graph, by onnxruntime or else by ONNX's reference, and those of the model."""
    tokens = model.example_tokens()
    return graph_outputs(folder, _example_inputs(model, tokens, tokens.flip(1)))[0], model.outputs()


def onnx_predictions(model: ExportableModel, folder: Path, inputs: Sequence[str]) -> Tensor | None:
    """The final outputs for texts by onnxruntime, from the files alone; None where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / _FILE), providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    names, found = {each.name for each in session.get_inputs()}, []
    for text in inputs:
        first, *others = text.split(SEPARATOR)
        encoding = tokenizer.encode(first, others[0] if others else None)
        columns = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
        columns["token_type_ids"] = encoding.type_ids
        feed = {name: np.array([column]) for name, column in columns.items() if name in names}
        found.append(torch.from_numpy(session.run(None, feed)[0]))
    outputs = torch.cat(found)
    match config.get("activation"):
        case "softmax":
            return outputs.softmax(dim=-1)
        case "sigmoid":
            return outputs.sigmoid()
    return outputs


def _tokenizer(model: ExportableModel) -> str:
    """The tokenizer, which truncates texts as the model's task does."""
    layout = json.loads(tokenizer_with_template(model))
    if model.spec.max_length is not None and model.spec.head in FINAL_OUTPUTS:
        limit = {"direction": "Right", "max_length": model.spec.max_length, "strategy": "LongestFirst", "stride": 0}
        layout["truncation"] = limit
    return json.dumps(layout, ensure_ascii=False)


def _config(model: ExportableModel) -> dict[str, Any]:
    """What a program needs to know besides the graph and the tokenizer."""
    spec = model.spec
    config: dict[str, Any] = {
        "head": spec.head,
        **label_fields(model),
        "pad_token_id": model.tokenizer.pad,
        "max_length": spec.max_length,
    }
    if spec.head in FINAL_OUTPUTS:
        config["pooling"] = spec.pooling
    if spec.head == "labels":
        config["activation"] = "sigmoid" if spec.is_multi_label else "softmax"
    if spec.head == "number":
        config["scaling"] = {"scale": spec.scale, "shift": spec.shift, "is_in_graph": True}
    return config


class _Graph(nn.Module):
    """The model with the inputs of the graph."""

    def __init__(self, exported: ExportableModel, model: nn.Module) -> None:
        super().__init__()
        self.model, self.spec = model, exported.spec

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        if attention_mask is None:
            return self.model(input_ids)
        lengths = attention_mask.sum(dim=1)
        if decoder_input_ids is not None:
            return self.model(decoder_input_ids, input_ids, lengths)
        if self.spec.head == "tags":
            return self.model(input_ids, torch.arange(input_ids.size(1)).expand_as(input_ids), lengths)
        segments = () if token_type_ids is None else (token_type_ids,)
        outputs = self.model(input_ids, lengths, *segments)
        return outputs * self.spec.scale + self.spec.shift if self.spec.head == "number" else outputs


def _example_inputs(model: ExportableModel, tokens: Tensor, source: Tensor) -> dict[str, Tensor]:
    """The inputs of the graph by name, not longer than the model can read."""
    limit = model.max_positions
    tokens, source = (values[:, :limit].long() for values in (tokens, source))
    match model.spec.head:
        case "next-token":
            return {"input_ids": tokens}
        case "target-tokens":
            return {"input_ids": source, "attention_mask": torch.ones_like(source), "decoder_input_ids": tokens}
    has_segments = (
        isinstance(model.config, TransformerConfig) and model.config.num_segments and model.spec.head != "tags"
    )
    segments = {"token_type_ids": torch.zeros_like(tokens)} if has_segments else {}
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **segments}


class _Recurrence:
    """A recurrent layer as one ONNX operator: PyTorch's own would be exported with a fixed length."""

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
        """The weights of all directions, with the gates in the order of ONNX."""
        order, kernel = _GATES[self.layer.cell], dict(self.layer.kernel.named_parameters())
        sides = [kernel[f"{kind}_l0{side}"].detach() for side in ("", "_reverse")[: self.layer.num_directions]]
        return torch.stack([torch.cat([side.chunk(len(order))[gate] for gate in order]) for side in sides])


def _require_graph(model: ExportableModel) -> None:
    """Raise if a graph would need a loop over positions."""
    config = model.config
    if isinstance(config, RecurrentConfig) and config.is_step_by_step:
        rule = "model.input_feeding must be false" if config.input_feeding else "model.attention must be none or luong"
        raise ConfigError(f"{rule} for onnx, which cannot represent attention between two steps of a recurrent layer")


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Hide warnings about optional packages of the exporter."""
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


ONNX = Exporter(
    name="onnx",
    write=write_onnx,
    outputs=onnx_outputs,
    predict=onnx_predictions,
    write_graph=write_onnx_graph,
    graph_outputs=graph_outputs,
    files=(_FILE, f"{_FILE}.data", _CONFIG, *TOKENIZER_FILES),
)
