"""Transformers written as GGUF: read by the gguf package, and equal when imported again."""

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import ConfigError, DeviceError
from regard.interop.gguf.reading import read_gguf_checkpoint
from regard.interop.gguf.writing import gguf_config, write_gguf
from regard.models.presets import find_preset
from regard.models.transformer import Transformer
from regard.models.transformer.config import TransformerConfig
from regard.runs.importing import import_model
from regard.runs.run import load
from regard.text.tokenizer import Tokenizer, train_tokenizer

gguf = pytest.importorskip("gguf")

LLAMA: dict[str, Any] = {
    "encoder_layers": 0, "num_layers": 2, "model_dim": 60, "num_heads": 6, "num_key_value_heads": 3,
    "feedforward_dim": 37, "activation": "swiglu", "norm": "rms", "norm_epsilon": 1e-3, "block": "pre-norm",
    "positions": "rotary", "position_base": 500.0, "context_length": 53, "bias": False, "scale_embeddings": False,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "biased": {"bias": True},
    "wide heads": {"query_width": 84},
    "width set": {"query_width": 60, "encoder_positions": "alibi", "decoder_layers": 1, "dropout": 0.3},
    "stretched": {"position_stretch": 7.0, "position_base": 500_000.0},
    "qwen2": {"attention_bias": True},
    "qwen3": {"query_key_norm": True, "query_width": 84},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["the heather there", "in the other theatre 123"] * 20, "bpe", 290)


def make(tokenizer: Tokenizer, **changed: Any) -> Transformer:
    """A model whose weights are nowhere zero, and such as float32 can hold."""
    model = Transformer(TransformerConfig.read({**LLAMA, **changed}), tokenizer.vocab_size).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.float().double()


@pytest.mark.parametrize("changed", SHAPES.values(), ids=list(SHAPES))
def test_a_model_is_written_and_read_back(tokenizer, transformer_from, changed, tmp_path):
    model, path = make(tokenizer, **changed), tmp_path / "folder" / "model.gguf"
    write_gguf(path, model, tokenizer, number_type="F32", chat_template="{{ messages }}")
    checkpoint = read_gguf_checkpoint(path)
    back = transformer_from(checkpoint.config, checkpoint.tensors)
    tokens = torch.randint(tokenizer.vocab_size, (3, 13))
    torch.testing.assert_close(back(tokens), model(tokens))
    read = Tokenizer.from_json(checkpoint.tokenizer)
    assert read.encode(["in the heather"]) == tokenizer.encode(["in the heather"])
    assert read.prefix == (tokenizer.start,)
    assert checkpoint.chat_template == "{{ messages }}"
    assert [path.name for path in path.parent.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(("number_type", "tolerance"), [("F32", 0.0), ("F16", 2.0**-11), ("Q8_0", 1 / 127)])
def test_matrices_are_written_in_the_given_type(tokenizer, number_type, tolerance, tmp_path):
    changed = {"model_dim": 64, "num_heads": 4, "num_key_value_heads": 2, "feedforward_dim": 96}
    model, path = make(tokenizer, **changed), tmp_path / "model.gguf"
    write_gguf(path, model, tokenizer, number_type=number_type)
    theirs = gguf.GGUFReader(path)
    types = {tensor.tensor_type.name for tensor in theirs.tensors if len(tensor.shape) == 2}
    assert types == {number_type}
    assert {tensor.tensor_type.name for tensor in theirs.tensors if len(tensor.shape) == 1} == {"F32"}
    assert theirs.fields["general.architecture"].contents() == "llama"
    assert theirs.fields["llama.block_count"].types == [gguf.GGUFValueType.UINT32]
    written = read_gguf_checkpoint(path).tensors["model.embed_tokens.weight"]
    weight = model.embedding.weight.detach()
    assert (written - weight).abs().max() <= tolerance * weight.abs().max()


def test_an_imported_file_generates_what_the_model_generates(tokenizer, tmp_path):
    """With weights that are large enough to be certain of the next token."""
    model, path = make(tokenizer, num_layers=1), tmp_path / "model.gguf"
    write_gguf(path, model, tokenizer, number_type="F32", chat_template="{{ messages[0].content }}")
    run = load(import_model(path, tmp_path / "run"), device="cpu")
    tokens = torch.randint(tokenizer.vocab_size, (3, 13))
    torch.testing.assert_close(run.model(tokens), model(tokens))
    assert run.task.name == "language-modeling"
    assert (run.path / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
    ids = [tokenizer.start, *tokenizer.encode(["in the"])[0]]
    for _ in range(5):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    text = run.generate("in the", temperature=0.0, max_tokens=5)
    assert tokenizer.decode([ids])[0].startswith("in the" + text)


def test_the_llama_preset_can_be_written_and_others_are_errors(tokenizer):
    _, values = find_preset("llama-tiny")
    assert gguf_config(TransformerConfig.read(values), vocab_size=31)["model_type"] == "llama"
    for name, setting in (("gpt-tiny", "activation"), ("gpt2-tiny", "activation"), ("tiny", "encoder_layers")):
        with pytest.raises(ConfigError, match=rf"model\.{setting} must be \w+ for a GGUF file"):
            gguf_config(TransformerConfig.read(find_preset(name)[1]), vocab_size=31)


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"encoder_layers": 2}, "encoder_layers must be 0 .* got 2"),
        ({"activation": "geglu"}, "activation must be swiglu .* got geglu"),
        ({"norm": "layer"}, "norm must be rms"),
        ({"block": "post-norm"}, "block must be pre-norm"),
        ({"positions": "alibi"}, "positions must be rotary"),
        ({"decoder_positions": "none"}, "positions must be rotary .* got none"),
        ({"scale_embeddings": True}, "scale_embeddings must be False"),
        ({"residual": False}, "residual must be True"),
        ({"embedding_norm": True}, "embedding_norm must be False"),
        ({"output_bias": True}, "output_bias must be False"),
        ({"scale_output": True}, "scale_output must be False"),
        ({"feedforward_dim": 0}, "feedforward_dim must be 1 .* got 0"),
        ({"similarity": "cosine"}, "similarity must be scaled-dot"),
        ({"attention_temperature": 2.0}, "attention_temperature must be 1.0"),
        ({"shaped_attention": True}, "shaped_attention must be False"),
        ({"bias": True, "attention_bias": False}, "bias must be False .* got True"),
        ({"query_key_norm": True, "bias": True}, "bias must be False"),
        ({"attention": "window", "window": 3}, "attention must be full .* got window"),
        ({"position_stretch": 2.0, "position_stretch_by": "yarn"}, "position_stretch_by must be llama3 .* got yarn"),
        ({"position_stretch": 2.0, "position_stretch_from": 64}, "position_stretch_from must be 8192 .* got 64"),
    ],
)  # fmt: skip
def test_a_setting_that_the_format_cannot_represent_is_an_error(changed, setting):
    with pytest.raises(ConfigError, match=rf"model\.{setting}"):
        gguf_config(TransformerConfig.read({**LLAMA, **changed}), vocab_size=31)


def test_rows_that_do_not_fit_into_blocks_are_an_error(tokenizer, tmp_path):
    with pytest.raises(
        ConfigError, match=r"Q8_0 needs rows of a multiple of 32 numbers, token_embd.weight has rows of 60"
    ):
        write_gguf(tmp_path / "model.gguf", make(tokenizer), tokenizer, number_type="Q8_0")
    with pytest.raises(ConfigError, match="unknown number type 'Q9'"):
        write_gguf(tmp_path / "model.gguf", make(tokenizer), tokenizer, number_type="Q9")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_existing_file_unchanged(tokenizer, tmp_path: Path):
    path = tmp_path / "model.gguf"
    path.mkdir()
    with pytest.raises(DeviceError, match=r"cannot write .*model\.gguf"):
        write_gguf(path, make(tokenizer), tokenizer)
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]
