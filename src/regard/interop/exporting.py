"""Exporting a model: every export is read back, compared with the model, and only then renamed to its final name.

The outputs for random tokens are compared, and, where the runtime of the format is installed, the final outputs for
texts of the run's validation rows: these depend on the tokenizer and on what follows the model as well.

A package adds a format by declaring an `Exporter` in the entry-point group `regard.exporters`.
"""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import CheckpointError, ConfigError, DeviceError, RunError, RunExistsError
from regard.interop.model import EXPORT_TOLERANCE, FINAL_OUTPUTS, ExportableModel, Exporter
from regard.logging import log_info
from regard.models.transformer.config import TransformerConfig
from regard.registry import Registry
from regard.settings import nearest
from regard.tasks.capabilities import ExportGraph

EXPORTERS: Registry[Exporter] = Registry(
    "regard.exporters", "export format", members=("name", "write", "outputs", "files")
)


@dataclass(frozen=True)
class ComparedTexts:
    """How much final outputs for texts differ."""

    outputs: str
    """What they are: probabilities, numbers or embeddings."""
    difference: float
    num_texts: int

    def __str__(self) -> str:
        return f"{self.outputs}: {self.difference:.1e} for {self.num_texts} texts"


@dataclass(frozen=True)
class ExportedModel:
    """What was written, and how much its outputs differ from those of the model."""

    path: Path
    format: str
    name: str
    """The name of the model in that format, such as `LlamaForCausalLM`."""
    difference: float
    """The largest absolute difference of an output."""
    num_rows: int
    num_tokens: int
    """Tokens of each row; 0 where inputs are no tokens."""
    texts: "ComparedTexts | None" = None
    """The comparison from texts to final outputs, where the runtime of the format is installed."""

    def __str__(self) -> str:
        compared = f"{self.num_rows} x {self.num_tokens} tokens" if self.num_tokens else f"{self.num_rows} rows"
        tokens = f"largest difference of outputs: {self.difference:.1e} for {compared}"
        return tokens if self.texts is None else f"{tokens}; of {self.texts}"

    def to_json(self) -> dict[str, Any]:
        texts = self.texts
        compared = {} if texts is None else {"texts": texts.num_texts, "largest_text_difference": texts.difference}
        return {
            **compared,
            "path": str(self.path),
            "format": self.format,
            "name": self.name,
            "largest_difference": self.difference,
            "rows": self.num_rows,
            "tokens": self.num_tokens,
        }


def write_export(
    model: ExportableModel,
    out: Path,
    *,
    to: str,
    number_type: str | None = None,
    overwrite: bool = False,
) -> ExportedModel:
    """Write a model to `out`: a file for gguf, a folder for all other formats.

    The result is read back; if its outputs are not those of the model, it is removed and a CheckpointError is raised.
    """
    check_destination(out, to=to, number_type=number_type, overwrite=overwrite)
    exporter = EXPORTERS.find(to)
    _check_head(model, exporter)
    chosen = number_type or next(iter(exporter.number_types), None)
    options = {} if chosen is None else {"number_type": chosen}
    with _Staging(out, is_file=bool(exporter.suffix)) as staged:
        name = exporter.write(model, staged, **options)
        _report_position_tables(model, to)
        found, expected = exporter.outputs(model, staged)
        tolerance = EXPORT_TOLERANCE if chosen is None else exporter.number_types[chosen]
        difference = _difference(found, expected, tolerance, what="outputs", to=to)
        texts = _compare_texts(model, exporter, staged, tolerance)
    num_rows, num_tokens = model.example_tokens().shape
    return ExportedModel(out, to, name, difference, num_rows, num_tokens, texts)


def write_graph_export(graph: ExportGraph, out: Path, *, to: str, overwrite: bool = False) -> ExportedModel:
    """Write a network whose inputs are arrays, and compare its outputs with the predictions of the run."""
    check_destination(out, to=to, number_type=None, overwrite=overwrite)
    exporter = EXPORTERS.find(to)
    if exporter.write_graph is None or exporter.graph_outputs is None:
        able = " or ".join(each.name for each in EXPORTERS if each.write_graph is not None)
        raise ConfigError(
            f"{to} has models of texts, and this one reads {', '.join(graph.axes)}: {able} can represent it"
        )
    with _Staging(out, is_file=bool(exporter.suffix)) as staged:
        name = exporter.write_graph(graph, staged)
        differences, num_rows = [], 0
        for inputs, expected in graph.examples:
            found = exporter.graph_outputs(staged, inputs)
            num_rows += len(next(iter(inputs.values())))
            for what, one, other in zip(graph.outputs, found, expected, strict=True):
                differences.append(_difference(one, other, EXPORT_TOLERANCE, what=what, to=to))
    return ExportedModel(out, to, name, max(differences), num_rows, 0)


def _compare_texts(model: ExportableModel, exporter: Exporter, path: Path, tolerance: float) -> ComparedTexts | None:
    """Compare the final outputs for texts, where there are some and the runtime of the format is installed."""
    if exporter.predict is None or model.predict is None or not model.inputs:
        return None
    found = exporter.predict(model, path, model.inputs)
    if found is None:
        return None
    what = FINAL_OUTPUTS[model.spec.head]
    difference = _difference(found, model.predict(model.inputs), tolerance, what=f"{what} of texts", to=exporter.name)
    return ComparedTexts(what, difference, len(model.inputs))


def _difference(found: Tensor, expected: Tensor, tolerance: float, *, what: str, to: str) -> float:
    """The largest difference; more than the tolerance is an error."""
    difference = float((found.double() - expected.double()).abs().max())
    if not difference <= tolerance * max(1.0, float(expected.abs().max())):
        raise CheckpointError(
            f"the {what} of the {to} export differ from those of the model by up to {difference:.2g}: it was removed"
        )
    return difference


def check_destination(out: Path, *, to: str, number_type: str | None, overwrite: bool) -> None:
    """Raise if nothing of this format can be written to `out`."""
    exporter = EXPORTERS.find(to)
    if number_type is not None and not exporter.number_types:
        raise ConfigError(f"{to} is written in float32 and has no number types, got {number_type=}")
    if number_type is not None and number_type not in exporter.number_types:
        raise ConfigError(f"unknown number type {number_type!r}{nearest(number_type, list(exporter.number_types))}")
    suffix = out.suffix.lower()
    if suffix != exporter.suffix and (exporter.suffix or (suffix and suffix in {each.suffix for each in EXPORTERS})):
        kind = f"a file whose name ends in {exporter.suffix}" if exporter.suffix else "a folder"
        raise ConfigError(f"an export to {to} is {kind}, got {out}")
    if not out.exists():
        return
    if out.is_dir() == bool(exporter.suffix):
        kind, expected = ("folder", "file") if out.is_dir() else ("file", "folder")
        raise RunError(f"{out} is a {kind}, an export to {to} is a {expected}")
    if not overwrite and not (out.is_dir() and not any(out.iterdir())):
        raise RunExistsError(f"{out} already exists: overwrite it, or choose another path")
    known = {name for each in EXPORTERS for name in each.files}
    if out.is_dir() and (others := sorted({path.name for path in out.iterdir()} - known)):
        raise RunError(f"{out} contains {others[0]}, which is not part of an export: choose another path")


def _check_head(model: ExportableModel, exporter: Exporter) -> None:
    head = model.spec.head
    if head not in exporter.heads:
        raise ConfigError(f"the head of an exported model must be one of {', '.join(exporter.heads)}, got {head}")
    for name, value in model.spec.unsupported.items():
        off, given = json.dumps(type(value)()), json.dumps(value)
        raise ConfigError(f"{name} must be {off} to export a model, got {given}: it is not part of the logits")


def _report_position_tables(model: ExportableModel, to: str) -> None:
    config = model.config
    if (
        to in ("hf", "ctranslate2")
        and isinstance(config, TransformerConfig)
        and "sinusoidal" in config.position_schemes
    ):
        log_info(
            f"sinusoidal positions are written as a table for model.context_length={config.context_length} positions"
        )


class _Staging:
    """A temporary path that is renamed to `out` on success and removed after an error."""

    def __init__(self, out: Path, *, is_file: bool) -> None:
        self.out, self.is_file = out, is_file

    def __enter__(self) -> Path:
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.out.name}.", suffix=".part", dir=self.out.parent))
        except OSError as error:
            raise DeviceError(f"cannot write to {self.out.parent}: {error.strerror or error}") from None
        self.folder.chmod(0o755)
        return self.folder / self.out.name if self.is_file else self.folder

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        try:
            if kind is None:
                self._rename()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, DeviceError):
            raise DeviceError(
                f"cannot write {self.out}: {error.strerror or error}; the existing file is unchanged"
            ) from None

    def _rename(self) -> None:
        if self.is_file:
            os.replace(self.folder / self.out.name, self.out)
            return
        old = self.folder.with_suffix(".old")
        if self.out.exists():
            os.replace(self.out, old)
        os.replace(self.folder, self.out)
        shutil.rmtree(old, ignore_errors=True)
