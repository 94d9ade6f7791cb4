"""Transformers written as GGUF: readable by others, and the same when they come back."""

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import ConfigError, DeviceError
from regard.interop.gguf import read_chat_template, read_config, read_gguf, read_tensors, read_tokenizer
from regard.interop.gguf_file import GGUFFile
from regard.interop.gguf_writing import config_of, write_gguf
from regard.interop.importing import import_model
from regard.models.presets import preset
from regard.models.transformer import Transformer
from regard.models.transformer_config import TransformerConfig
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
    "width said": {"query_width": 60, "encoder_positions": "alibi", "decoder_layers": 1, "dropout": 0.3},
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
def test_a_model_goes_out_and_comes_back(tokenizer, transformer_from, changed, tmp_path):
    model, path = make(tokenizer, **changed), tmp_path / "folder" / "model.gguf"
    write_gguf(path, model, tokenizer, number_type="F32", chat_template="{{ messages }}")
    file = GGUFFile(path)
    back = transformer_from(read_config(file), read_tensors(file))
    tokens = torch.randint(tokenizer.vocab_size, (3, 13))
    torch.testing.assert_close(back(tokens), model(tokens))
    assert read_tokenizer(file).encode(["in the heather"]) == tokenizer.encode(["in the heather"])
    assert read_tokenizer(file).prefix == (tokenizer.start,)
    assert read_chat_template(file) == "{{ messages }}"
    assert [path.name for path in path.parent.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(("number_type", "tolerance"), [("F32", 0.0), ("F16", 2.0**-11), ("Q8_0", 1 / 127)])
def test_matrices_are_written_in_the_type_that_was_asked_for(tokenizer, number_type, tolerance, tmp_path):
    changed = {"model_dim": 64, "num_heads": 4, "num_key_value_heads": 2, "feedforward_dim": 96}
    model, path = make(tokenizer, **changed), tmp_path / "model.gguf"
    write_gguf(path, model, tokenizer, number_type=number_type)
    theirs = gguf.GGUFReader(path)
    types = {tensor.tensor_type.name for tensor in theirs.tensors if len(tensor.shape) == 2}
    assert types == {number_type}
    assert {tensor.tensor_type.name for tensor in theirs.tensors if len(tensor.shape) == 1} == {"F32"}
    assert theirs.fields["general.architecture"].contents() == "llama"
    assert theirs.fields["llama.block_count"].types == [gguf.GGUFValueType.UINT32]
    written = read_gguf(path).tensors["model.embed_tokens.weight"]
    weight = model.embedding.weight.detach()
    assert (written - weight).abs().max() <= tolerance * weight.abs().max()


def test_a_run_of_a_file_writes_what_the_model_writes(tokenizer, tmp_path):
    """With weights that are large enough to be certain of the next token."""
    model, path = make(tokenizer, num_layers=1), tmp_path / "model.gguf"
    write_gguf(path, model, tokenizer, number_type="F32", chat_template="{{ messages[0].content }}")
    run = load(import_model(path, tmp_path / "run"), device="cpu")
    tokens = torch.randint(tokenizer.vocab_size, (3, 13))
    torch.testing.assert_close(run.model(tokens), model(tokens))
    assert run.task.name == "language"
    assert (run.path / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
    ids = [tokenizer.start, *tokenizer.encode(["in the"])[0]]
    for _ in range(5):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    text = run.generate("in the", temperature=0.0, max_length=5)
    assert tokenizer.decode([ids])[0].startswith("in the" + text)


def test_the_llama_preset_can_be_written_and_others_are_refused_by_name(tokenizer):
    _, values = preset("llama-tiny")
    assert config_of(TransformerConfig.read(values), vocab_size=31)["model_type"] == "llama"
    for name, setting in (("gpt-tiny", "activation"), ("gpt2-tiny", "activation"), ("tiny", "encoder_layers")):
        with pytest.raises(ConfigError, match=rf"model\.{setting} must be \w+ for a GGUF file"):
            config_of(TransformerConfig.read(preset(name)[1]), vocab_size=31)


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
        ({"position_stretch": 2.0, "position_stretch_from": 64}, "position_stretch_from must be 8192 .* got 64"),
    ],
)  # fmt: skip
def test_a_shape_that_the_format_has_no_word_for_is_refused_by_its_setting(changed, setting):
    with pytest.raises(ConfigError, match=rf"model\.{setting}"):
        config_of(TransformerConfig.read({**LLAMA, **changed}), vocab_size=31)


def test_rows_that_do_not_fit_into_blocks_are_refused(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"Q8_0 packs 32 numbers of a row together, token_embd.weight has rows of 60"):
        write_gguf(tmp_path / "model.gguf", make(tokenizer), tokenizer, number_type="Q8_0")
    with pytest.raises(ConfigError, match="no type of numbers is called 'Q9'"):
        write_gguf(tmp_path / "model.gguf", make(tokenizer), tokenizer, number_type="Q9")
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_what_was_there_stays(tokenizer, tmp_path: Path):
    path = tmp_path / "model.gguf"
    path.mkdir()
    with pytest.raises(DeviceError, match=r"cannot write .*model\.gguf"):
        write_gguf(path, make(tokenizer), tokenizer)
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]
