"""Exporting the model of a run to the formats of other libraries."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.codecs.text import TextCodec
from regard.errors import ConfigError
from regard.interop.exporting import ExportedModel, check_destination, write_export, write_graph_export
from regard.interop.model import FINAL_OUTPUTS, ExportableModel
from regard.logging import log_info
from regard.runs.run import Run
from regard.tasks.capabilities import GraphExporter
from regard.tasks.task import Task
from regard.tasks.text import SEPARATOR
from regard.training.settings import ResolvedSettings

_NUM_INPUTS, _NUM_CANDIDATES = 8, 100
"""Texts that are compared, and validation rows that they are taken from."""


def export_model(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str],
    *,
    to: str,
    number_type: str | None = None,
    overwrite: bool = False,
) -> ExportedModel:
    """Write the model of a run in another format, read it back, and compare its outputs with those of the model.

    Args:
        run: A run folder, or a run. A LoRA adapter is merged into the weights, unless `to` is peft.
        out: The folder to create; for gguf a file.
        to: hf, gguf, onnx, ctranslate2, or peft, which has only the adapter.
        number_type: For gguf, the type of matrices: F32, F16 or Q8_0; by default F16.
        overwrite: Replace an export in `out`.
    """
    check_destination(Path(out), to=to, number_type=number_type, overwrite=overwrite)
    found = Run(run.path if isinstance(run, Run) else run, device="cpu")
    model = (found.unmerged() if to == "peft" else found.model).float()
    rows = found.folder.read_held_out("valid")[:_NUM_CANDIDATES]
    graph = found.task.export_graph(model, rows) if isinstance(found.task, GraphExporter) else None
    if graph is not None:
        exported = write_graph_export(graph, Path(out), to=to, overwrite=overwrite)
        log_info(str(exported))
        return exported
    exportable = exportable_model(found.settings, found.task, model, chat_template=found.chat_template)
    if exportable.spec.head in FINAL_OUTPUTS:
        predict = partial(_final_outputs, found, exportable.spec.head)
        exportable = replace(exportable, inputs=_example_inputs(found), predict=predict)
    exported = write_export(exportable, Path(out), to=to, number_type=number_type, overwrite=overwrite)
    log_info(str(exported))
    return exported


def _example_inputs(run: Run) -> tuple[str, ...]:
    """A few inputs of the validation rows; pairs that are truncated are left out, for which libraries differ."""
    inputs = [run.task.input_of(row) for row in run.folder.read_held_out("valid")[:_NUM_CANDIDATES]]
    limit = run.task.export_spec().max_length
    lengths = [sum(len(ids) + 1 for ids in run.tokenizer.encode(text.split(SEPARATOR))) + 1 for text in inputs]
    kept = (
        text
        for text, length in zip(inputs, lengths, strict=True)
        if SEPARATOR not in text or limit is None or length <= limit
    )
    return tuple(islice(kept, _NUM_INPUTS))


def _final_outputs(run: Run, head: str, inputs: Sequence[str]) -> Tensor:
    """What a user of the run gets: embeddings, numbers, or the probability of each label."""
    if head == "vector":
        return torch.from_numpy(run.embed(inputs))
    predictions = run.predict_full(inputs)
    if head == "number":
        return torch.tensor([[float(each.output)] for each in predictions])
    return torch.tensor([list((each.probabilities or {}).values()) for each in predictions])


def exportable_model(
    settings: ResolvedSettings, task: Task[Any], model: nn.Module, *, chat_template: str | None = None
) -> ExportableModel:
    """The model of a run as exporters take it."""
    tuned, codec, head = settings.finetune, task.codecs.get("text"), settings.head
    spec = task.export_spec()
    if not isinstance(codec, TextCodec):
        raise ConfigError(f"a model for {task.description} cannot be exported: it has no tokenizer")
    return ExportableModel(
        model=model,
        config=settings.model,
        tokenizer=codec.tokenizer,
        spec=replace(spec, pooling=head.pooling, has_hidden_layer=head.hidden_layer),
        build=lambda config: task.build(config, head),
        chat_template=chat_template,
        lora=tuned.lora if tuned is not None and tuned.is_adapter else None,
        base_name=None if tuned is None else Path(tuned.base).name,
    )
