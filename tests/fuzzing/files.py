"""The bytes of the corpus: small valid files, each made by code."""

import gzip
import io
import json
import struct
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from regard.adapters.lora import LoraConfig, add_lora
from regard.interop import write_export
from regard.interop.model import ExportableModel, ImportedModel
from regard.models.family import build_model
from regard.models.transformer.config import TransformerConfig
from regard.runs.folder import RunFolder
from regard.runs.importing import write_imported
from regard.tasks.content import ExportSpec
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.training.checkpoints import load_weights, weights_of

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}U: {{ message.content | trim }}\n"
    "{% else %}A: {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
CONFIG = TransformerConfig.read(
    {
        "encoder_layers": 0, "num_layers": 1, "model_dim": 8, "num_heads": 2, "num_key_value_heads": 1,
        "feedforward_dim": 11, "activation": "swiglu", "norm": "rms", "block": "pre-norm", "positions": "rotary",
        "context_length": 53, "bias": False, "scale_embeddings": False, "dropout": 0.0, "initialization": "gpt2",
    }
)  # fmt: skip


@cache
def tokenizer(kind: str = "bpe") -> Tokenizer:
    return train_tokenizer(["the heather there", "in the other theatre 123"] * 20, kind, 280)  # pyright: ignore[reportArgumentType]


@cache
def exportable() -> ExportableModel:
    """A small Llama with random weights."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    size = tokenizer().vocab_size
    generator = torch.Generator().manual_seed(7)
    inner = build_model(CONFIG, size).eval()
    for parameter in inner.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    torch.set_default_dtype(before)
    return ExportableModel(
        model=inner,
        config=CONFIG,
        tokenizer=tokenizer(),
        spec=ExportSpec(head="next-token", max_length=512),
        build=lambda config: build_model(config, size),
        chat_template=TEMPLATE,
    )


@cache
def exported(kind: str) -> dict[str, bytes]:
    """The files of the model in a format: hf, gguf or peft."""
    model = exportable()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        if kind == "gguf":
            write_export(model, folder.with_suffix(".gguf"), to="gguf", number_type="F32")
            return {"model.gguf": folder.with_suffix(".gguf").read_bytes()}
        if kind == "peft":
            model = _adapted(model)
        write_export(model, folder, to=kind)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _adapted(model: ExportableModel) -> ExportableModel:
    lora = LoraConfig(rank=3, alpha=5.0)
    inner = model.build(CONFIG).eval()
    load_weights(inner, weights_of(model.model))
    add_lora(inner, lora)
    return ExportableModel(
        model=inner, config=CONFIG, tokenizer=model.tokenizer, spec=model.spec, build=model.build, lora=lora
    )


@cache
def run_files() -> dict[str, bytes]:
    """The files of a run: the model as a language model."""
    model = exportable()
    imported = ImportedModel(
        name="small", architecture="Llama", content_hash="0" * 64, head="next-token", config=CONFIG,
        weights=weights_of(model.model), tokenizer=model.tokenizer, chat_template=TEMPLATE, context_length=53,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "run")
        write_imported(imported, folder)
        return {
            str(path.relative_to(folder.path)): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()
        }


def llama2c() -> tuple[bytes, bytes]:
    """A model file and its vocabulary."""
    model, wide, heads, vocab, length = 8, 11, 2, 263, 5
    count = vocab * model + (2 * model + 4 * model * model + 3 * wide * model) + model + length * (model // heads)
    header = struct.pack("<7i", model, wide, 1, heads, heads, vocab, length)
    pieces = [b" ", b"a", b"n", b" a"]
    tokens = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256)), *pieces]
    entries = b"".join(struct.pack("<fi", -1.0, len(token)) + token for token in tokens)
    return header + np.linspace(-1, 1, count, dtype="<f4").tobytes(), struct.pack("<i", 6) + entries


_SHEET = "xl/worksheets/sheet1.xml"


@cache
def _book() -> bytes:
    import openpyxl

    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (("source", "target", "n"), ("one", "eins", 1), ("two", "zwei", 2.5), ("three", "=A2", 3)):
        book.active.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def workbook(sheet: bytes | None = None) -> bytes:
    """An Excel workbook; `sheet` replaces the XML of its sheet."""
    if sheet is None:
        return _book()
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_book())) as before, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as after:
        for entry in before.infolist():
            after.writestr(entry.filename, sheet if entry.filename == _SHEET else before.read(entry))
    return changed.getvalue()


def sheet_xml() -> bytes:
    with zipfile.ZipFile(io.BytesIO(workbook())) as file:
        return file.read(_SHEET)


def parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet as files

    table = pyarrow.table(
        {"source": ["one", "two", "three"], "target": ["eins", "zwei", "drei"], "n": [1, 2, None],
         "s": [{"a": "x"}] * 3, "l": [["a"], [], ["b", "c"]]}
    )  # fmt: skip
    file = io.BytesIO()
    files.write_table(table, file)
    return file.getvalue()


def images() -> list[bytes]:
    """One small image of each format."""
    picture = Image.linear_gradient("L").resize((9, 7))
    color = Image.merge("RGB", [picture, picture.rotate(180), picture])
    found = []
    for kind, image in (("PNG", color), ("JPEG", color), ("GIF", picture), ("BMP", color), ("WEBP", color),
                        ("TIFF", picture), ("PPM", color)):  # fmt: skip
        file = io.BytesIO()
        image.save(file, kind)
        found.append(file.getvalue())
    for mode in ("1", "LA", "P", "I;16"):
        file = io.BytesIO()
        (Image.new("I;16", (5, 3), 7) if mode == "I;16" else picture.convert(mode)).save(file, "PNG")
        found.append(file.getvalue())
    return found


def episode_arrays(members: dict[str, bytes] | None = None) -> bytes:
    """A file of arrays of episodes."""
    file = io.BytesIO()
    np.savez(file, observations=np.arange(8.0).reshape(4, 2), actions=np.array([0, 1, 0, 1]),
             rewards=np.ones(4), terminations=np.array([False, True, False, True]))  # fmt: skip
    return file.getvalue()


def as_npy(header: bytes, data: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) & 0xFFFF) + header + data


def compressed(text: bytes) -> list[tuple[str, bytes]]:
    """A text under each compression, by the suffix of its file."""
    import bz2
    import lzma

    import zstandard

    return [
        (".gz", gzip.compress(text, mtime=0)),
        (".bz2", bz2.compress(text)),
        (".xz", lzma.compress(text)),
        (".zst", zstandard.compress(text)),
    ]


def safetensors_bytes(header: bytes, data: bytes) -> bytes:
    """A safetensors file with this header, whatever it says."""
    return struct.pack("<Q", len(header)) + header + data


def split_safetensors(content: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length], content[8 + length :]


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


@cache
def run_settings() -> object:
    """The settings of the run."""
    from regard.settings import read_toml
    from regard.training.settings import ResolvedSettings

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.toml"
        path.write_bytes(run_files()["run.toml"])
        values = read_toml(path)
    return ResolvedSettings.read({key: value for key, value in values.items() if key != "provenance"})


def baseline() -> bytes:
    from regard.runs.baseline import BaselineResult

    return as_json(
        BaselineResult(
            name="TF-IDF", seconds=1.0, headline="accuracy", scores={"accuracy": {"value": 0.5, "interval": None}},
            model_score=0.6, difference=0.1, verdict="better", interval=(0.0, 0.2), p=0.01, advice=("more rows",),
        ).to_json()
    )  # fmt: skip
