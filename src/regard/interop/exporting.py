"""A trained model in the formats of others, each of which is read back and compared before it has its name."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from regard.errors import CheckpointError, ConfigError, DeviceError, RunError, RunExistsError
from regard.interop.checkpoint import Foreign, read_checkpoint
from regard.interop.ctranslate2 import read_ctranslate2, write_ctranslate2
from regard.interop.gguf import read_gguf
from regard.interop.gguf_writing import NumberType, config_of, require_number_type, write_gguf
from regard.interop.hf_adapters import read_adapted, write_adapter
from regard.interop.hf_writing import read_head, write_hf
from regard.interop.importing import read_weights
from regard.interop.onnx import onnx_scores, write_onnx
from regard.interop.shapes import SHAPES, architecture_of
from regard.interop.trained import Trained
from regard.logging import log_info
from regard.models.transformer_config import TransformerConfig
from regard.settings import nearest

Format = Literal["hf", "gguf", "onnx", "ctranslate2", "peft"]
_HEADED = ("classification", "regression", "tagging", "answering")
_TASKS = ("translation", "language", "masked", "embedding", *_HEADED)
"""Tasks whose models can be exported."""
_TOLERANCES: dict[str, float] = {"F16": 0.03, "Q8_0": 0.3}
"""How far scores may be off, as a share of the largest, where numbers were written in fewer bits."""
_TOLERANCE = 1e-4
"""The same where they were not: what the order of sums changes in float32."""
_WRITTEN = {
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "generation_config.json", "chat_template.jinja", "1_Pooling", "sentence_bert_config.json", "modules.json",
    "model.onnx", "model.onnx.data", "model.bin", "vocabulary.json", "shared_vocabulary.json",
    "adapter_config.json", "adapter_model.safetensors",
}  # fmt: skip
"""What an export consists of."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from the model that it was made of."""

    path: Path
    format: Format
    kind: str
    """What the model is called there."""
    difference: float
    """The largest difference of scores."""
    num_rows: int
    num_tokens: int

    def __str__(self) -> str:
        return (
            f"largest difference of logits: {self.difference:.1e} on {self.num_rows} rows of {self.num_tokens} tokens"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "format": self.format,
            "kind": self.kind,
            "largest_difference": self.difference,
            "rows": self.num_rows,
            "tokens": self.num_tokens,
        }


def export(
    trained: Trained, out: Path, *, to: Format, number_type: NumberType | None = None, overwrite: bool = False
) -> Exported:
    """Write a model to `out`, a file for gguf and a folder for all others.

    What was written is read back; where its scores are not those of the model, nothing is left of it.
    """
    require_place(out, to=to, number_type=number_type, overwrite=overwrite)
    if trained.task not in _TASKS:
        raise ConfigError(f"task must be one of {', '.join(_TASKS)} to be exported, got {trained.task}")
    with _Place(out, is_file=to == "gguf") as part:
        kind, scores = _WRITERS[to](trained, part, number_type or "F16")
        _tell_of_tables(trained, to)
        expected = trained.scores()
        difference = float((scores.double() - expected.double()).abs().max())
        bound = _TOLERANCES.get(number_type or "F16", _TOLERANCE) if to == "gguf" else _TOLERANCE
        if not difference <= bound * max(1.0, float(expected.abs().max())):
            raise CheckpointError(
                f"what was written as {to} gives other scores than the model, by up to {difference:.2g}: "
                "it was not kept"
            )
    return Exported(out, to, kind, difference, *trained.rows().shape)


def require_place(out: Path, *, to: str, number_type: str | None, overwrite: bool) -> None:
    """Raise where nothing of this format may be written to `out`."""
    if to not in _WRITERS:
        raise ConfigError(f"no format is called {to!r}{nearest(to, get_args(Format))}")
    if number_type is not None and to != "gguf":
        raise ConfigError(f"number_type is for gguf, {to} has float32; got {number_type}")
    if number_type is not None:
        require_number_type(number_type)
    if (out.suffix.lower() == ".gguf") != (to == "gguf"):
        told = "a file whose name ends in .gguf" if to == "gguf" else "a folder"
        raise ConfigError(f"what is exported as {to} is {told}, got {out}")
    if not out.exists():
        return
    if out.is_dir() != (to != "gguf"):
        raise RunError(f"{out} is a {'folder' if out.is_dir() else 'file'}, and what is exported as {to} is none")
    if not overwrite and not (out.is_dir() and not any(out.iterdir())):
        raise RunExistsError(f"{out} is there already: overwrite it, or name another place")
    if out.is_dir() and (others := sorted({path.name for path in out.iterdir()} - _WRITTEN)):
        raise RunError(f"{out} holds {others[0]}, which no export wrote: name another place")


def _tell_of_tables(trained: Trained, to: Format) -> None:
    shape = trained.settings.model
    if to in ("hf", "ctranslate2") and isinstance(shape, TransformerConfig) and "sinusoidal" in shape.position_schemes:
        log_info(
            f"sinusoidal positions become a table, which ends where model.context_length={shape.context_length} does"
        )


class _Place:
    """Where something stands until it is whole; afterwards it has its name, or there is nothing left of it."""

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
                self._name_it()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, DeviceError):
            raise DeviceError(f"cannot write {self.out}: {error.strerror or error}; the existing file is unchanged") from None

    def _name_it(self) -> None:
        if self.is_file:
            os.replace(self.folder / self.out.name, self.out)
            return
        old = self.folder.with_suffix(".old")
        if self.out.exists():
            os.replace(self.out, old)
        os.replace(self.folder, self.out)
        shutil.rmtree(old, ignore_errors=True)


def _hf(trained: Trained, folder: Path, _: NumberType) -> tuple[str, Tensor]:
    kind = write_hf(trained, folder)
    return kind, _scores_of(trained, read_checkpoint(folder))


def _gguf(trained: Trained, path: Path, number_type: NumberType) -> tuple[str, Tensor]:
    if trained.task != "language":
        raise ConfigError(f"task must be language for a GGUF file, got {trained.task}")
    model: Any = trained.model
    config = config_of(trained.shape, vocab_size=trained.tokenizer.vocab_size)
    log_info(f"writing a model of the architecture {config['model_type']}, numbers as {number_type}")
    write_gguf(path, model, trained.tokenizer, chat_template=trained.chat_template, number_type=number_type)
    foreign = read_gguf(path)
    return f"{foreign.config['model_type']}, {number_type}", _scores_of(trained, foreign)


def _onnx(trained: Trained, folder: Path, _: NumberType) -> tuple[str, Tensor]:
    kind = write_onnx(trained, folder)
    return kind, onnx_scores(trained, folder)


def _ctranslate2(trained: Trained, folder: Path, _: NumberType) -> tuple[str, Tensor]:
    kind = write_ctranslate2(trained, folder)
    return kind, trained.scores(trained.rebuilt(*read_ctranslate2(trained, folder)))


def _peft(trained: Trained, folder: Path, _: NumberType) -> tuple[str, Tensor]:
    kind = write_adapter(trained, folder)
    return kind, trained.scores(read_adapted(trained, folder))


def _scores_of(trained: Trained, foreign: Foreign) -> Tensor:
    """What a model makes of the rows that was read by our own importer."""
    shape = SHAPES[architecture_of(foreign.config)]
    model, weights, _ = read_weights(foreign, shape, trained.tokenizer.vocab_size)
    if trained.task in _HEADED:
        weights |= read_head(trained, foreign.tensors, foreign.config)
    return trained.scores(trained.rebuilt(model, weights))


_WRITERS: dict[str, Callable[[Trained, Path, NumberType], tuple[str, Tensor]]] = {
    "hf": _hf,
    "gguf": _gguf,
    "onnx": _onnx,
    "ctranslate2": _ctranslate2,
    "peft": _peft,
}
"""For each format what writes it, and says what the model is called there and which scores it has when read back."""
