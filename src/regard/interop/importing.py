"""A model that others have trained, as a run folder: from there on it is a model like any other.

What is written is what training writes: settings, tokenizer, weights, in our
names and in float32; and a chat template, where the model has one. Everything
is read and checked before the first byte is written.
"""

import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor, nn

from regard.errors import BaseMissingError, CheckpointError, ConfigError, DataError, RunError
from regard.files import write_atomically
from regard.interop import vit
from regard.interop.adapter_importing import ADAPTER, read_adapter_run
from regard.interop.checkpoint import Foreign, read_checkpoint, refuse_pickle
from regard.interop.fields import count
from regard.interop.gguf import read_gguf
from regard.interop.llama2c import read_llama2c
from regard.interop.names import Names, Weight, names_within, taken
from regard.interop.shapes import SHAPES, Shape, architecture_of
from regard.logging import log_info
from regard.models.heads import HeadConfig, MaskedHead
from regard.models.transformer import Transformer
from regard.models.transformer_config import TransformerConfig
from regard.models.vision import PictureClassifier
from regard.text.tokenizer import Role, Tokenizer, train_tokenizer
from regard.training.checkpoints import weights_of, write_tensors
from regard.training.folder import RunFolder
from regard.training.settings import Record, RunSettings
from regard.version import version

_STAGED = "imported.safetensors"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_PICKLES = (b"PK", b"\x80")
"""What pickles begin with, in an archive or bare."""
_OF_VOCABULARY = ("embedding.weight", "output.weight", "output.bias")
"""What has a row for each token."""
_BANNED = -1e4
"""The score of a token that is never to be written."""
_LONGEST, _WINDOW = 512, 1_024
_TRAINING: dict[str, Any] = {
    "max_epochs": 3.0,
    "batch_tokens": 4_096,
    "optimizer": "adamw",
    "learning_rate": 5e-5,
    "schedule": "linear",
    "warmup_steps": 100,
    "beta2": 0.999,
    "weight_decay": 0.01,
    "label_smoothing": 0.0,
    "average": 0.0,
}
"""What a run is written with; of the values that Devlin et al. (2018), A.3, fine-tune with."""
_TOLD = 3


def import_model(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the model at `path` as a run folder.

    `path` is a folder in Hugging Face's layout, a GGUF file, or a file of llama2.c with its `tokenizer.bin` beside it;
    or an adapter that peft wrote, for the run folder `base`.
    """
    folder = RunFolder(out)
    folder.require_vacant(overwrite=overwrite)
    if (Path(path) / ADAPTER).is_file():
        _import_adapter(Path(path), folder, base)
        return folder.path
    if base is not None:
        raise ConfigError(f"a base is for an adapter of peft, and {path} has no {ADAPTER}")
    write_run(read_foreign(Path(path)), folder)
    return folder.path


def _import_adapter(path: Path, folder: RunFolder, base: str | os.PathLike[str] | None) -> None:
    if base is None:
        raise BaseMissingError(f"{path} is an adapter of peft: name its base, the run folder of the model it is for")
    base_folder = RunFolder(base)
    if base_folder.path.absolute() == folder.path.absolute():
        raise RunError(f"{folder.path} is the base: name another folder")
    settings, tokenizer, weights = read_adapter_run(path, base_folder)
    _write(folder, settings, tokenizer, weights, base_folder.read_chat_template())


def read_foreign(path: Path) -> Foreign:
    """The model at `path`, in the names of Hugging Face."""
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return read_gguf(path)
    if path.is_file() and path.suffix.lower() in _PICKLED:
        with open(path, "rb") as file:
            if file.read(2).startswith(_PICKLES):
                refuse_pickle(path)
        if path.suffix.lower() == ".bin":
            return read_llama2c(path)
    return read_checkpoint(path)


def write_run(foreign: Foreign, folder: RunFolder) -> None:
    """Make the run folder of a model; whatever does not fit is told before anything is written."""
    architecture = architecture_of(foreign.config)
    shape = SHAPES[architecture]
    values, tokenizer, weights, notes = (
        _from_pictures(foreign, shape) if shape.kind == "pictures" else _from_text(foreign, shape)
    )
    notes = [f"imported from {foreign.name}, a {architecture}", *notes]
    preset = str(foreign.config.get("model_type", architecture))
    settings = RunSettings.read({**values, "preset": preset, "train": _TRAINING})
    record = Record(
        version=version(),
        torch=torch.__version__,
        data_hash=foreign.content_hash,
        num_parameters=sum(weight.numel() for weight in weights.values()),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hardware="none: imported",
        notes=notes,
    )
    for note in notes:
        log_info(note)
    _write(folder, settings.changed(record=record.model_dump()), tokenizer, weights, foreign.chat_template)


def _from_text(foreign: Foreign, shape: Shape) -> tuple[dict[str, Any], Tokenizer, dict[str, Tensor], list[str]]:
    """Of a model that reads text: settings, tokenizer, weights, and what there is to say."""
    task = task_of(foreign, shape)
    roles: dict[Role, Any] = {**roles_of(foreign, shape)}
    if several := ends_of(foreign, roles.get("end")):
        roles["end"] = several
    tokenizer = Tokenizer.from_json(foreign.tokenizer, name=f"the tokenizer of {foreign.name}", roles=roles)
    model, weights, notes = read_weights(foreign, shape, tokenizer.vocab_size)
    values = {
        "task": task,
        "model": model.model_dump(),
        "head": {"pooling": foreign.pooling},
        "data": _data(foreign, model, task),
    }
    return values, tokenizer, weights, notes


def _from_pictures(foreign: Foreign, shape: Shape) -> tuple[dict[str, Any], Tokenizer, dict[str, Tensor], list[str]]:
    """The same of a model that reads pictures; its labels, where it tells them apart, are those of its config."""
    config, tensors = foreign.config, foreign.tensors
    assert shape.head_names is not None, "whoever reads pictures can have a head"
    head_names = shape.head_names(config)
    has_head = bool(names_within(head_names["output.weight"], tensors))
    labels = vit.labels(config) if has_head else []
    model, picture = shape.settings(config), vit.picture_settings(config, foreign.processor)
    head = HeadConfig(pooling="first", dropout=0.0)
    with torch.device("meta"):
        wanted = weights_of(PictureClassifier(model, picture, head, len(labels)))
    names = {f"body.{name}": weight for name, weight in shape.names(config).items()}
    names |= {f"head.{name}": weight for name, weight in head_names.items()} if has_head else {}
    weights, used = _taken_all(names, wanted, tensors)
    notes = [] if has_head else ["it tells no labels apart: it is to be fine-tuned"]
    if not foreign.processor:
        notes.append("there is no preprocessor_config.json: pictures are brought into the usual form of ViT")
    values = {
        "task": "recognition",
        "model": model.model_dump(),
        "head": head.model_dump(),
        "data": {"tokenizer": "bytes", "labels": labels, "picture": picture.model_dump()},
    }
    return values, train_tokenizer([], "bytes", 300), weights, [*notes, *_left_over(tensors, used, shape)]


def task_of(foreign: Foreign, shape: Shape) -> str:
    """What a model is for, by the stacks and the head that it has."""
    if shape.kind == "decoder":
        return "language"
    if shape.kind == "both":
        return "translation"
    return "masked" if has_masked_head(foreign, shape) else "embedding"


def has_masked_head(foreign: Foreign, shape: Shape) -> bool:
    if shape.head_names is None:
        return False
    first = next(iter(shape.head_names({}).values()))
    return bool(names_within(first, foreign.tensors))


def read_weights(
    foreign: Foreign, shape: Shape, vocab_size: int
) -> tuple[TransformerConfig, dict[str, Tensor], list[str]]:
    """The settings of a model, its weights under the names that a run has for them, and what there is to say.

    An encoder is the body of what is made with it, and its weights are called so.
    """
    model, names, tensors = shape.settings(foreign.config), shape.names(foreign.config), foreign.tensors
    notes: list[str] = []
    if model.decoder_depth and model.tie_embeddings and not _is_tied(names["output.weight"], names, tensors):
        model = model.changed(tie_embeddings=False)
        notes.append("the output projection is not tied to the embedding, whatever config.json says")
    num_rows = _num_rows(foreign, vocab_size)
    with torch.device("meta"):
        wanted = weights_of(Transformer(model, num_rows))
    body, used = _taken_all(names, wanted, tensors)
    prefix = "body." if shape.kind == "encoder" else ""
    weights = {prefix + name: weight for name, weight in body.items()}
    if shape.head_names is not None and has_masked_head(foreign, shape):
        head = shape.head_names(foreign.config)
        if not _is_tied(head["output.weight"], names, tensors):
            raise CheckpointError(
                f"{head['output.weight'].name} must be the embedding once more, but is another matrix"
            )
        with torch.device("meta"):
            wanted = weights_of(MaskedHead(nn.Embedding(num_rows, model.model_dim)))
        found, more = _taken_all(head, {name: wanted[name] for name in head if name != "output.weight"}, tensors)
        weights |= {f"head.{name}": weight for name, weight in found.items()}
        used |= more
    notes += _left_over(tensors, used, shape)
    _ban(weights, foreign)
    if model.output_bias and not weights["output.bias"].any():
        model = model.changed(output_bias=False)
        del weights["output.bias"]
    if num_rows > vocab_size:
        notes.append(f"left out, for no token has them: the last {num_rows - vocab_size:,} rows of the embedding")
    cut = {prefix + name for name in _OF_VOCABULARY} | {f"head.{name}" for name in _OF_VOCABULARY}
    return model, {name: each[:vocab_size] if name in cut else each for name, each in weights.items()}, notes


def _taken_all(
    names: Names, wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], set[str]]:
    """The wanted weights in float32, and the names that are accounted for."""
    unknown = sorted(wanted.keys() - names.keys())
    assert not unknown, f"no foreign name is known for {unknown}"
    found = {name: taken(names[name], tuple(like.shape), tensors).float() for name, like in wanted.items()}
    return found, {name for weight in names.values() for name in names_within(weight, tensors)}


def _is_tied(output: Weight, names: Names, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the output projection is the embedding: by its absence, or by its numbers."""
    own, embedding = (names_within(weight, tensors) for weight in (output, names["embedding.weight"]))
    return not own or not embedding or torch.equal(tensors[own[0]], tensors[embedding[0]])


def roles_of(foreign: Foreign, shape: Shape) -> dict[Role, str]:
    """Which tokens of a foreign tokenizer start, end, pad and mask."""
    try:
        inner = tokenizers.Tokenizer.from_str(foreign.tokenizer)
    except Exception as error:  # the library raises bare Exception for whatever it cannot parse
        told = " ".join(str(error).split())
        raise DataError(f"the tokenizer of {foreign.name} is not a tokenizer: {told}") from None
    special, ids = foreign.special_tokens, {**foreign.config, **foreign.generation}

    def by_id(name: str) -> str | None:
        found = ids.get(name)
        first = found[0] if isinstance(found, list) and found else found
        return inner.id_to_token(first) if isinstance(first, int) and 0 <= first < 2**31 else None

    def known(*candidates: str | None) -> str | None:
        return next((each for each in candidates if each and inner.token_to_id(each) is not None), None)

    sep, eos = special.get("sep_token"), (special.get("eos_token"), by_id("eos_token_id"))
    end = known(sep, *eos) if shape.kind == "encoder" else known(*eos, sep)
    pad = known(special.get("pad_token"), by_id("pad_token_id"), end)
    bos = (special.get("bos_token"), by_id("bos_token_id"))
    starts = {
        "encoder": (special.get("cls_token"), *bos),
        "decoder": (*bos, end),
        "both": (by_id("decoder_start_token_id"), pad),
    }
    found: dict[Role, str | None] = {
        "pad": pad,
        "start": known(*starts[shape.kind]),
        "end": end,
        "mask": known(special.get("mask_token")),
    }
    return {role: token for role, token in found.items() if token is not None}


def ends_of(foreign: Foreign, end: str | None) -> list[str]:
    """The token that ends a text, and whatever else does where the model was taught several; none where it is one."""
    inner = tokenizers.Tokenizer.from_str(foreign.tokenizer)
    ids = {**foreign.config, **foreign.generation}.get("eos_token_id")
    listed = [number for number in ids if isinstance(number, int) and number >= 0] if isinstance(ids, list) else []
    others = [token for number in listed if (token := inner.id_to_token(number)) is not None and token != end]
    return [end, *dict.fromkeys(others)] if end is not None and others else []


def _num_rows(foreign: Foreign, vocab_size: int) -> int:
    """Rows of the embedding: those of tokens, and maybe some that only fill it up."""
    num_rows = count(foreign.config, "vocab_size")
    if num_rows < vocab_size:
        raise CheckpointError(f"the tokenizer has {vocab_size:,} tokens, the model knows {num_rows:,} of them")
    return num_rows


def _left_over(tensors: Mapping[str, Tensor], used: set[str], shape: Shape) -> list[str]:
    """What is said of weights that the model has no place for; an error where they are not known to be idle."""
    rest = [name for name in tensors if name not in used]
    idle = [name for name in rest if any(re.search(pattern, name) for pattern in shape.passed_over)]
    strange = sorted(set(rest) - set(idle))
    if strange:
        raise CheckpointError(
            f"the file holds {len(strange)} weights that config.json does not ask for: {', '.join(strange[:_TOLD])}"
            + (", ..." if len(strange) > _TOLD else "")
        )
    more = ", ..." if len(idle) > _TOLD else ""
    return [f"left out, for they are not needed: {', '.join(sorted(idle)[:_TOLD])}{more}"] if idle else []


def _ban(weights: dict[str, Tensor], foreign: Foreign) -> None:
    """Give tokens that are never to be written a score that never wins, where scores have a bias."""
    banned = {**foreign.config, **foreign.generation}.get("bad_words_ids")
    if "output.bias" in weights and isinstance(banned, list):
        bias = weights["output.bias"] = weights["output.bias"].clone()
        for word in banned:
            if isinstance(word, list) and len(word) == 1 and word[0] in range(len(bias)):
                bias[word[0]] = _BANNED


def _data(foreign: Foreign, model: TransformerConfig, task: str) -> dict[str, Any]:
    reach = model.context_length
    window = {"window": max(2, min(reach, _WINDOW))} if task == "language" else {}
    return {"tokenizer": "tokenizer.json", "max_length": min(reach, foreign.max_length or _LONGEST), **window}


def _write(
    folder: RunFolder, settings: RunSettings, tokenizer: Tokenizer, weights: Mapping[str, Tensor], template: str | None
) -> None:
    """All files of the run, the large one first: where the disk is full, an old run stays what it is."""
    is_new = not folder.path.exists()
    staged = folder.path / _STAGED
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_tensors(staged, weights, {"step": 0})
        folder.create(settings, tokenizer, {})
        os.replace(staged, folder.model_path)
        if template is not None:
            write_atomically(folder.chat_template_path, template.encode())
    except BaseException as error:
        staged.unlink(missing_ok=True)
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise RunError(f"cannot make a run in {folder.path}: {error.strerror or error}") from None
        raise
