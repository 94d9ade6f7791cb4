"""Reading the files of a Hugging Face folder.

config.json                     the model config, in the names of its architecture
model.safetensors               the weights; or several such files, and model.safetensors.index.json
tokenizer.json                  the tokenizer
special_tokens_map.json         the tokens for start, end, padding and mask
tokenizer_config.json           the same, and the chat template
chat_template.jinja             the chat template, if it is a file of its own
generation_config.json          the tokens that start and end generated text
1_Pooling/config.json           the pooling of hidden states, by sentence-transformers
sentence_bert_config.json       the maximum length for that
preprocessor_config.json        the preprocessing of images

Weights in other formats are pickles, which can run any code when they are
loaded: they are rejected.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.data.formats.cells import as_text
from regard.errors import CheckpointError, DataError
from regard.files import load_json, require_inside
from regard.interop.hf.architectures import reads_images
from regard.interop.hf.config import HFConfig
from regard.models.heads import Pooling

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "consolidated*.pth")
_PICKLE_SUFFIXES = (".pt", ".pth", ".ckpt")
_PICKLE_MAGIC = (b"PK", b"\x80")
"""The first bytes of pickles, in a zip archive or bare."""
POOLING_MODES: dict[Pooling, str] = {
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "last": "pooling_mode_lasttoken",
}
"""The fields of sentence-transformers' `1_Pooling/config.json`."""
_EFFICIENTNET_STEM = "_conv_stem.weight"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A pretrained model in the names of Hugging Face, as its files describe it."""

    name: str
    """The name of the file or folder, without its path."""
    config: HFConfig
    tensors: Mapping[str, Tensor]
    """Read from the file on access."""
    tokenizer: str
    """The content of a `tokenizer.json`; empty for a model that reads images."""
    content_hash: str
    """SHA-256 of the files that contain the weights."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Tokens by their roles: bos_token, eos_token, pad_token, cls_token, sep_token, mask_token."""
    generation: HFConfig = field(default_factory=dict)
    chat_template: str | None = None
    pooling: Pooling | None = None
    max_length: int | None = None
    """The most tokens of a text that the model should read, if that is fewer than it can."""
    processor: HFConfig = field(default_factory=dict)
    """The preprocessing of images."""
    dense_layers: tuple[str, ...] = ()
    """The folders of layers after the pooling, by sentence-transformers."""


class LazyTensors(Mapping[str, Tensor]):
    """Tensors of files, each read on access by `read`."""

    def __init__(self, names: Collection[str], read: Callable[[str], Tensor]) -> None:
        self._names, self._read = dict.fromkeys(names), read

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def recognizes_folder(path: Path) -> bool:
    """Whether `path` is a folder with a `config.json`, or one file of a model, which `read_checkpoint` explains."""
    if path.is_dir():
        return (path / "config.json").is_file() and not (path / "adapter_config.json").is_file()
    return (path.suffix.lower() == ".safetensors" and not is_efficientnet(path)) or is_pickle(path)


def is_efficientnet(path: Path) -> bool:
    """Whether a safetensors file has the first tensor of an EfficientNet in the names of PyTorch's ports."""
    if not path.is_file() or path.suffix.lower() != ".safetensors":
        return False
    try:
        return _EFFICIENTNET_STEM in _names_in(path)
    except CheckpointError:
        return False


def is_pickle(path: Path) -> bool:
    """Whether a file is a pickled checkpoint, by its suffix and its first bytes."""
    if path.suffix.lower() != ".bin":
        return path.suffix.lower() in _PICKLE_SUFFIXES
    with open(path, "rb") as file:
        return file.read(2).startswith(_PICKLE_MAGIC)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a folder; its weights are read on access."""
    if folder.is_file():
        if is_pickle(folder):
            _reject_pickle(folder)
        raise DataError(f"{folder} is a file: a model is imported from the folder with its config.json")
    config = _table(folder / "config.json")
    if config is None:
        raise DataError(f"{folder} is not the folder of a model: it has no config.json")
    if config.get("quantization_config"):
        raise CheckpointError(f"the weights in {folder} are quantized: only float16, bfloat16 and float32 are imported")
    files = _weight_files(folder)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file() and not reads_images(config):
        raise DataError(
            f"{folder} has no tokenizer.json: a model is imported with its tokenizer, and no other format of it is read"
        )
    settings = _table(folder / "tokenizer_config.json") or {}
    return Checkpoint(
        name=folder.resolve().name,
        config=config,
        tensors=LazyTensors(files, lambda name: read_tensor(files[name], name)),
        tokenizer="" if reads_images(config) else _text(tokenizer),
        content_hash=hash_files(sorted(set(files.values()))),
        special_tokens=_special_tokens({**settings, **(_table(folder / "special_tokens_map.json") or {})}),
        generation=_table(folder / "generation_config.json") or {},
        chat_template=_chat_template(folder, settings),
        pooling=read_pooling(folder),
        max_length=_max_length(folder),
        processor=_table(folder / "preprocessor_config.json") or {},
        dense_layers=tuple(sorted(path.parent.name for path in folder.glob("*_Dense/config.json"))),
    )


def _reject_pickle(path: Path) -> NoReturn:
    raise CheckpointError(
        f"{path} is a pickle, which can run any code when it is loaded: "
        f"if you trust it, convert it to {_WEIGHTS}, for example by save_pretrained of transformers"
    )


def hash_files(paths: Sequence[Path]) -> str:
    """SHA-256 of the concatenated contents of files."""
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
    """The file that contains each tensor."""
    index = _table(folder / _INDEX)
    if index is None and (folder / _WEIGHTS).is_file():
        return dict.fromkeys(_names_in(folder / _WEIGHTS), folder / _WEIGHTS)
    if index is None:
        pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
        if pickles:
            _reject_pickle(folder / pickles[0])
        raise CheckpointError(f"{folder} has no weights: neither {_WEIGHTS} nor {_INDEX} exists")
    table = index.get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{folder / _INDEX} has no weight_map from weights to files")
    invalid = [file for file in table.values() if not isinstance(file, str) or Path(file).name != file]
    if invalid:
        raise CheckpointError(f"{folder / _INDEX} must name files of the same folder, got {invalid[0]!r}")
    stored = {file: set(_names_in(folder / file)) for file in sorted(set(table.values()))}
    missing = [name for name, file in table.items() if name not in stored[file]]
    if missing:
        raise CheckpointError(f"{folder / table[missing[0]]} has no {missing[0]}, contrary to {_INDEX}")
    return {name: folder / file for name, file in table.items()}


def read_tensor(path: Path, name: str) -> Tensor:
    with open_safetensors(path) as file:
        try:
            return file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged: {name} cannot be read: {_line(error)}") from None


def _names_in(path: Path) -> list[str]:
    with open_safetensors(path) as file:
        return list(file.keys())


def open_safetensors(path: Path) -> Any:
    """Open a safetensors file; the library checks its header against its size."""
    require_inside(path, path.parent)
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise CheckpointError(f"no weights at {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {_line(error)}") from None


def _special_tokens(table: Mapping[str, Any]) -> dict[str, str]:
    """Tokens by their roles; in some files a token is an object with more fields than its content."""
    contents = {name: value.get("content") if isinstance(value, dict) else value for name, value in table.items()}
    texts = {name: as_text(content) for name, content in contents.items() if isinstance(content, str)}
    return {name: text for name, text in texts.items() if name.endswith("_token") and text is not None}


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _text(path)
    found = settings.get("chat_template")
    if isinstance(found, list):  # several by name; the default one is for chats
        tables = [each for each in found if isinstance(each, dict)]
        found = next((each.get("template") for each in tables if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling by sentence-transformers."""
    table = _table(folder / "1_Pooling" / "config.json") or {}
    return next((pooling for pooling, mode in POOLING_MODES.items() if table.get(mode) is True), None)


def _max_length(folder: Path) -> int | None:
    found = (_table(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    return found if isinstance(found, int) and found > 0 else None


def _table(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        found = load_json(_text(path))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {_line(error)}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} must contain an object, got {type(found).__name__}")
    return found


def _text(path: Path) -> str:
    try:
        return require_inside(path, path.parent).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {_line(error)}") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
