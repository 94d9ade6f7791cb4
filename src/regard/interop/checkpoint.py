"""Folders in the layout of Hugging Face: a shape, weights, a tokenizer.

config.json                     the shape, in the names of its architecture
model.safetensors               the weights; or several such files, and model.safetensors.index.json
tokenizer.json                  in the public layout
special_tokens_map.json         which tokens start, end, pad and mask
tokenizer_config.json           the same, and how a conversation is written
chat_template.jinja             the latter, where it is a file of its own
generation_config.json          what writing starts and ends with
1_Pooling/config.json           how the states of a text become one vector
sentence_bert_config.json       how much of a text is read for that
preprocessor_config.json        how pictures are brought into one form

Weights in other layouts are pickles, which can run any code when they are
read: they are refused.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import CheckpointError, DataError
from regard.interop.fields import Config
from regard.interop.shapes import reads_pictures
from regard.models.heads import Pooling

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "consolidated*.pth")
_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Foreign:
    """A model as others have left it."""

    name: str
    """What it is called; no path."""
    config: Config
    """In the names of Hugging Face's `config.json`."""
    tensors: Mapping[str, Tensor]
    """In the names of Hugging Face; read when they are asked for."""
    tokenizer: str
    """The content of a `tokenizer.json`; nothing where pictures are read."""
    content_hash: str
    """SHA-256 of the files that hold the weights."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Tokens by what they are for: bos_token, eos_token, pad_token, cls_token, sep_token, mask_token."""
    generation: Config = field(default_factory=dict)
    chat_template: str | None = None
    pooling: Pooling | None = None
    max_length: int | None = None
    """The most tokens of a text that it was meant to read, where that is not all that it can."""
    processor: Config = field(default_factory=dict)
    """How pictures are brought into the form that it reads."""


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of safetensors files, each read when it is asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """`files` says where each tensor lies."""
        self._files = files

    def __getitem__(self, name: str) -> Tensor:
        path = self._files[name]
        with _opened(path) as file:
            try:
                return file.get_tensor(name)
            except (SafetensorError, OSError, RuntimeError, ValueError) as error:
                raise CheckpointError(f"{path.name} is damaged: {name} cannot be read: {_line(error)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files


def read_checkpoint(folder: Path) -> Foreign:
    """A folder in the layout of Hugging Face; its weights are read when they are asked for."""
    if folder.is_file():
        raise DataError(f"{folder} is a file: name the folder that holds it and its config.json")
    if not folder.is_dir():
        raise DataError(f"no model at {folder}: there is no such folder")
    config = _table(folder / "config.json")
    if config is None:
        raise DataError(f"{folder} is not the folder of a model: it has no config.json")
    if config.get("quantization_config"):
        raise CheckpointError(f"the weights in {folder} are quantised: only float16, bfloat16 and float32 are imported")
    files = _weight_files(folder)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file() and not reads_pictures(config):
        raise DataError(
            f"{folder} has no tokenizer.json: a model is imported with its tokenizer, and other layouts are not read"
        )
    settings = _table(folder / "tokenizer_config.json") or {}
    return Foreign(
        name=folder.resolve().name,
        config=config,
        tensors=StoredTensors(files),
        tokenizer="" if reads_pictures(config) else _text(tokenizer),
        content_hash=hash_files(sorted(set(files.values()))),
        special_tokens=_special_tokens({**settings, **(_table(folder / "special_tokens_map.json") or {})}),
        generation=_table(folder / "generation_config.json") or {},
        chat_template=_chat_template(folder, settings),
        pooling=_pooling(folder),
        max_length=_max_length(folder),
        processor=_table(folder / "preprocessor_config.json") or {},
    )


def refuse_pickle(path: Path) -> NoReturn:
    """Say why weights in this file are not read, and what to do."""
    raise CheckpointError(
        f"{path} is a pickle, which can run any code when it is read: "
        f"convert it to {_WEIGHTS} where you trust it, as save_pretrained of transformers does"
    )


def hash_files(paths: Sequence[Path]) -> str:
    """SHA-256 of the content of files, one behind the other."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with open(path, "rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    return digest.hexdigest()


def _weight_files(folder: Path) -> dict[str, Path]:
    """Where each tensor lies."""
    index = _table(folder / _INDEX)
    if index is None and (folder / _WEIGHTS).is_file():
        return dict.fromkeys(_names_in(folder / _WEIGHTS), folder / _WEIGHTS)
    if index is None:
        pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
        if pickles:
            refuse_pickle(folder / pickles[0])
        raise CheckpointError(f"{folder} has no weights: there is neither {_WEIGHTS} nor {_INDEX}")
    table = index.get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{folder / _INDEX} has no weight_map, which says where each weight lies")
    strange = [file for file in table.values() if not isinstance(file, str) or Path(file).name != file]
    if strange:
        raise CheckpointError(f"{folder / _INDEX} names files of the same folder only, got {strange[0]!r}")
    held = {file: set(_names_in(folder / file)) for file in sorted(set(table.values()))}
    lost = [name for name, file in table.items() if name not in held[file]]
    if lost:
        raise CheckpointError(f"{table[lost[0]]} has no {lost[0]}, which {_INDEX} says it holds")
    return {name: folder / file for name, file in table.items()}


def _names_in(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


def _opened(path: Path) -> Any:
    """A safetensors file, whose header was checked against its size."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise CheckpointError(f"no weights at {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {_line(error)}") from None


def _special_tokens(table: Mapping[str, Any]) -> dict[str, str]:
    """Tokens by their roles; some files have more to say of each than its name."""
    contents = {name: value.get("content") if isinstance(value, dict) else value for name, value in table.items()}
    return {name: text for name, text in contents.items() if name.endswith("_token") and isinstance(text, str)}


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _text(path)
    found = settings.get("chat_template")
    if isinstance(found, list):  # several by name, of which one is for conversations
        tables = [each for each in found if isinstance(each, dict)]
        found = next((each.get("template") for each in tables if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _pooling(folder: Path) -> Pooling | None:
    table = _table(folder / "1_Pooling" / "config.json") or {}
    return next((pooling for name, pooling in _POOLINGS.items() if table.get(name) is True), None)


def _max_length(folder: Path) -> int | None:
    found = (_table(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    return found if isinstance(found, int) and found > 0 else None


def _table(path: Path) -> dict[str, Any] | None:
    """The table that a JSON file holds, or None where there is no such file."""
    if not path.is_file():
        return None
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {_line(error)}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} must hold a table, got {type(found).__name__}")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {_line(error)}") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
