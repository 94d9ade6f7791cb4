"""What every importer must keep: it recognizes its own files, names a damaged one, and inverts the export."""

import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.adapters.lora import LoraConfig, add_lora
from regard.errors import CheckpointError, ConfigError, DataError
from regard.interop import EXPORTERS, IMPORTERS, find_importer, read_model, write_export
from regard.interop.hf.architectures import config_differences
from regard.interop.hf.llama import LLAMA, pairs_from_halves
from regard.interop.hf.weights import foreign_weights
from regard.interop.model import ExportableModel
from regard.models.family import build_model
from regard.models.transformer.config import TransformerConfig
from regard.runs.export import export_model
from regard.runs.importing import import_model
from regard.runs.run import load
from regard.tasks.content import ExportSpec
from regard.text.tokenizer import train_tokenizer
from regard.training.checkpoints import load_weights, read_tensors, weights_of

CONFIG = TransformerConfig.read(
    {
        "encoder_layers": 0, "num_layers": 2, "model_dim": 24, "num_heads": 6, "num_key_value_heads": 3,
        "feedforward_dim": 37, "activation": "swiglu", "norm": "rms", "block": "pre-norm", "positions": "rotary",
        "context_length": 53, "bias": False, "scale_embeddings": False, "dropout": 0.0, "initialization": "gpt2",
    }
)  # fmt: skip
TEXTS = ["the heather there", "in the other theatre 123"]
TOKENIZER = train_tokenizer(TEXTS * 20, "bpe", 290)
VOCAB = TOKENIZER.vocab_size


@pytest.fixture(scope="module")
def model() -> ExportableModel:
    """A small Llama with random weights, which every format can represent."""
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(7)
    inner = build_model(CONFIG, VOCAB).eval()
    for parameter in inner.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return ExportableModel(
        model=inner,
        config=CONFIG,
        tokenizer=TOKENIZER,
        spec=ExportSpec(head="next-token", max_length=512),
        build=lambda config: build_model(config, VOCAB),
        chat_template="{{ messages }}",
    )


@pytest.fixture(scope="module")
def samples(model: ExportableModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model in each format; the adapter is for that model."""
    folder = tmp_path_factory.mktemp("samples")
    write_export(model, folder / "hf", to="hf")
    write_export(model, folder / "model.gguf", to="gguf", number_type="F32")
    (folder / "llama2c").mkdir()
    (folder / "llama2c" / "model.bin").write_bytes(llama2c_bytes(model))
    (folder / "llama2c" / "tokenizer.bin").write_bytes(vocabulary_bytes())
    write_adapter(model, folder / "peft")
    return {
        "hf": folder / "hf",
        "gguf": folder / "model.gguf",
        "llama2c": folder / "llama2c" / "model.bin",
        "peft": folder / "peft",
    }


def write_adapter(model: ExportableModel, path: Path) -> None:
    lora = LoraConfig(rank=3, alpha=5.0)
    inner = build_model(CONFIG, VOCAB).eval()
    load_weights(inner, weights_of(model.model))
    add_lora(inner, lora)
    for parameter in inner.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted = ExportableModel(
        model=inner, config=CONFIG, tokenizer=TOKENIZER, spec=model.spec, build=model.build, lora=lora
    )
    write_export(adapted, path, to="peft")


def llama2c_bytes(model: ExportableModel) -> bytes:
    """A file as llama2.c's own export writes it: each tensor for all layers, rows of queries and keys in pairs."""
    assert LLAMA.write_config is not None
    config = {**LLAMA.write_config(CONFIG), "vocab_size": VOCAB}
    tensors = foreign_weights(LLAMA.weight_names(config), weights_of(model.model))
    parts = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
             "post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"]  # fmt: skip
    heads = {"self_attn.q_proj": 6, "self_attn.k_proj": 3}
    arrays = [tensors["model.embed_tokens.weight"]]
    for part in parts:
        for layer in range(2):
            tensor = tensors[f"model.layers.{layer}.{part}.weight"]
            arrays.append(pairs_from_halves(tensor, heads[part]) if part in heads else tensor)
    arrays += [tensors["model.norm.weight"], torch.zeros(2, 53, 2)]
    header = struct.pack("<7i", 24, 37, 2, 6, 3, VOCAB, 53)
    return header + b"".join(array.detach().numpy().astype("<f4").tobytes() for array in arrays)


def vocabulary_bytes() -> bytes:
    pieces = [f"p{number}".encode() for number in range(VOCAB - 259)]
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256)), *pieces]
    return struct.pack("<i", 9) + b"".join(struct.pack("<fi", 0.0, len(token)) + token for token in tokens)


def copied(sample: Path, folder: Path) -> Path:
    """A copy of a sample, with the files in its folder that it needs."""
    if sample.is_dir():
        return Path(shutil.copytree(sample, folder / sample.name))
    for path in sample.parent.iterdir():
        if path.is_file():
            shutil.copy(path, folder / path.name)
    return folder / sample.name


@pytest.mark.parametrize("name", IMPORTERS.names())
def test_an_importer_has_its_registered_name_and_a_description(name: str):
    importer = IMPORTERS.find(name)
    assert importer.name == name
    assert importer.description


@pytest.mark.parametrize("name", IMPORTERS.names())
def test_an_importer_recognizes_only_its_own_files(name: str, samples: dict[str, Path], tmp_path: Path):
    importer = IMPORTERS.find(name)
    assert {kind for kind, path in samples.items() if importer.recognizes(path)} == {name} & samples.keys()
    (tmp_path / "table.csv").write_text("a,b\n")
    (tmp_path / "empty").mkdir()
    assert not any(importer.recognizes(path) for path in (tmp_path, tmp_path / "table.csv", tmp_path / "empty"))


def test_an_adapter_saved_with_the_config_of_its_base_is_an_adapter(samples: dict[str, Path], tmp_path: Path):
    path = copied(samples["peft"], tmp_path)
    shutil.copy(samples["hf"] / "config.json", path / "config.json")
    assert find_importer(path).name == "peft"


def test_every_importer_of_this_package_has_a_sample(samples: dict[str, Path]):
    assert set(IMPORTERS.names()) >= samples.keys() == {"hf", "gguf", "llama2c", "peft"}


@pytest.mark.parametrize("name", ["hf", "gguf", "llama2c"])
def test_a_model_is_read_in_our_names(name: str, samples: dict[str, Path], model: ExportableModel):
    imported = read_model(samples[name])
    assert (imported.head, imported.adapter) == ("next-token", None)
    assert imported.tokenizer is not None
    assert len(imported.content_hash) == 64
    assert {weight.dtype for weight in imported.weights.values()} == {torch.float32}
    expected = weights_of(model.model)
    assert imported.weights.keys() == expected.keys()
    for key, weight in imported.weights.items():
        assert torch.equal(weight, expected[key]), key
    assert imported.tokenizer.vocab_size == VOCAB
    assert imported.context_length == CONFIG.context_length
    assert isinstance(imported.config, TransformerConfig)
    assert config_differences(imported.config, CONFIG) == {}


@pytest.mark.parametrize("name", IMPORTERS.names())
def test_a_truncated_file_is_an_error_with_the_path(name: str, samples: dict[str, Path], tmp_path: Path):
    if name not in samples:
        pytest.skip("the importer of another package has no sample here")
    path = copied(samples[name], tmp_path)
    files = [path] if path.suffix == ".gguf" else sorted(each for each in tmp_path.rglob("*") if each.is_file())
    text_files = {"chat_template.jinja"}
    for file in (each for each in files if each.name not in text_files):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises((CheckpointError, DataError)) as error:
            read_model(path)
        assert str(path) in str(error.value), file.name
        assert "\n" not in str(error.value), file.name
        file.write_bytes(content)
    read_model(path)


@pytest.mark.parametrize("name", sorted(set(IMPORTERS.names()) & set(EXPORTERS.names())))
def test_importing_an_export_of_an_import_is_the_identity(name: str, samples: dict[str, Path], tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    options: dict[str, Any] = {"number_type": "F32"} if name == "gguf" else {}
    base: dict[str, Any] = {}
    if name == "peft":
        base = {"base": import_model(samples["hf"], tmp_path / "base")}
    first = import_model(samples[name], tmp_path / "first", **base)
    exported = export_model(first, tmp_path / f"exported{EXPORTERS.find(name).suffix}", to=name, **options).path
    second = import_model(exported, tmp_path / "second", **base)
    before, after = (read_tensors(run / "model.safetensors")[0] for run in (first, second))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    runs = [load(run, device="cpu") for run in (first, second)]
    assert runs[0].settings.model == runs[1].settings.model
    assert runs[0].settings.task == runs[1].settings.task
    assert runs[0].tokenizer.encode(TEXTS) == runs[1].tokenizer.encode(TEXTS)
    assert runs[0].folder.read_chat_template() == runs[1].folder.read_chat_template() == "{{ messages }}"


def test_a_path_that_no_importer_recognizes_is_an_error_that_lists_what_each_accepts(tmp_path: Path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n")
    with pytest.raises(DataError) as error:
        find_importer(path)
    assert str(path) in str(error.value)
    for importer in IMPORTERS:
        assert f"{importer.name}: {importer.description}" in str(error.value)
    with pytest.raises(DataError, match="no file or folder at"):
        find_importer(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="unknown importer 'ggufs'; did you mean gguf"):
        find_importer(path, "ggufs")


PLUGIN = """
import json
import torch
from regard.interop import Importer, ImportedModel
from regard.models.family import build_model
from regard.models.transformer.config import TransformerConfig
from regard.text.tokenizer import train_tokenizer
from regard.training.checkpoints import weights_of

def read(path):
    tokenizer = train_tokenizer([], "bytes", 300)
    config = TransformerConfig.read({"encoder_layers": 0, "model_dim": 12, "num_heads": 2, "num_layers": 1})
    torch.manual_seed(json.loads(path.read_text())["seed"])
    weights = weights_of(build_model(config, tokenizer.vocab_size).float())
    return ImportedModel(
        name=path.stem, architecture="seeded", content_hash="", head="next-token", config=config, weights=weights,
        tokenizer=tokenizer, context_length=31,
    )

def is_seed(path):
    return path.suffix in (".seed", ".gguf")

SEED = Importer(name="seed", description="a seed (.seed)", recognizes=is_seed, read=read)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with an importer that recognizes GGUF files as well."""
    folder = tmp_path / "site"
    (folder / "seeded_models-1.0.dist-info").mkdir(parents=True)
    (folder / "seeded_models.py").write_text(PLUGIN)
    (folder / "seeded_models-1.0.dist-info" / "METADATA").write_text("Name: seeded-models\nVersion: 1.0\n")
    (folder / "seeded_models-1.0.dist-info" / "entry_points.txt").write_text(
        "[regard.importers]\nseed = seeded_models:SEED\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("seeded_models", None)


@pytest.mark.usefixtures("plugin")
def test_the_importer_of_another_package_is_used(samples: dict[str, Path], tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    path = tmp_path / "three.seed"
    path.write_text(json.dumps({"seed": 3}))
    run = load(import_model(path, tmp_path / "run"), device="cpu")
    assert run.folder.read_provenance().notes == ["imported from three (seeded)"]
    assert isinstance(run.generate("ab"), str)
    with pytest.raises(ConfigError, match=r"several importers recognize .*: gguf, seed"):
        find_importer(samples["gguf"])
    assert read_model(samples["gguf"], format="gguf").architecture == "LlamaForCausalLM"
