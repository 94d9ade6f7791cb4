"""GGUF files: what is read is what was written, and a damaged file is an error of one line."""

import math
import random
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import ConfigError, DataError, RegardError
from regard.interop.gguf.reading import GGUFFile, read_gguf_checkpoint
from regard.text.tokenizer import Tokenizer

gguf = pytest.importorskip("gguf")

VOCAB, LAYERS, HEADS, SHARED, HEAD, WIDE, POSITIONS = 269, 2, 6, 3, 10, 37, 53
MODEL = HEADS * HEAD
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def reference(kind: str = "Llama", *, tied: bool = False, **settings: Any) -> Any:
    """One of transformers' models, with weights that are nowhere zero."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        hidden_size=MODEL,
        intermediate_size=WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        head_dim=HEAD,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-3,
        tie_word_embeddings=tied,
        **settings,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.float().double()  # what a file of float32 can hold


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal to seven digits: transformers turns queries and keys in float32, whatever the model is in."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def written_tensors(theirs: Any, shuffled: Callable[[np.ndarray, int], np.ndarray] | None) -> dict[str, np.ndarray]:
    weights = {name: tensor.float().numpy() for name, tensor in theirs.state_dict().items()}
    found = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
    }
    if not theirs.config.tie_word_embeddings:
        found["output.weight"] = weights["lm_head.weight"]
    for layer in range(LAYERS):
        for ours, part in PARTS.items():
            for end in ("weight", "bias"):
                if (tensor := weights.get(f"model.layers.{layer}.{part}.{end}")) is not None:
                    if shuffled is not None and ours in ("attn_q", "attn_k"):
                        tensor = shuffled(tensor, HEADS if ours == "attn_q" else SHARED)
                    found[f"blk.{layer}.{ours}.{end}"] = tensor
    return found


def shape_metadata(architecture: str = "llama", **changed: Any) -> dict[str, Any]:
    shape = {
        "context_length": POSITIONS,
        "embedding_length": MODEL,
        "block_count": LAYERS,
        "feed_forward_length": WIDE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": SHARED,
        "attention.layer_norm_rms_epsilon": 1e-3,
        "rope.freq_base": 10_000.0,
        **changed,
    }
    own = {f"{architecture}.{key}": value for key, value in shape.items() if value is not None}
    return {**own, "tokenizer.chat_template": TEMPLATE}


def random_tensors(*, seed: int = 0) -> dict[str, np.ndarray]:
    """The weights of a Llama with one layer and a tied output."""
    rng = np.random.default_rng(seed)
    shapes = {
        "token_embd": (VOCAB, MODEL),
        "output_norm": (MODEL,),
        "blk.0.attn_norm": (MODEL,),
        "blk.0.attn_q": (MODEL, MODEL),
        "blk.0.attn_k": (SHARED * HEAD, MODEL),
        "blk.0.attn_v": (SHARED * HEAD, MODEL),
        "blk.0.attn_output": (MODEL, MODEL),
        "blk.0.ffn_norm": (MODEL,),
        "blk.0.ffn_gate": (WIDE, MODEL),
        "blk.0.ffn_up": (WIDE, MODEL),
        "blk.0.ffn_down": (MODEL, WIDE),
    }
    return {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def small_file(write_file: Callable[..., Path]) -> Path:
    return write_file("llama", shape_metadata(block_count=1), random_tensors())


@pytest.fixture
def logits(transformer_from: Callable[..., torch.nn.Module]) -> Callable[[Path, torch.Tensor], torch.Tensor]:
    def compute(path: Path, tokens: torch.Tensor) -> torch.Tensor:
        checkpoint = read_gguf_checkpoint(path)
        return transformer_from(checkpoint.config, checkpoint.tensors)(tokens)

    return compute


@pytest.mark.parametrize(("kind", "architecture"), [("Llama", "llama"), ("Qwen2", "qwen2"), ("Qwen3", "qwen3")])
@pytest.mark.parametrize("tied", [False, True])
def test_same_logits_as_transformers(write_file, logits, shuffled, kind, architecture, tied):
    theirs = reference(kind, tied=tied, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    metadata = shape_metadata(architecture, **{"rope.freq_base": 500.0, "attention.key_length": HEAD})
    path = write_file(architecture, metadata, written_tensors(theirs, shuffled if kind == "Llama" else None))
    tokens = torch.randint(VOCAB, (3, 13))
    assert_same(logits(path, tokens), theirs(tokens).logits)


def test_same_logits_as_a_llama_3_with_an_extended_context(write_file, logits, shuffled):
    stretch = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 7.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theirs = reference(rope_parameters=stretch)
    # The table that llama.cpp's converter computes, by its own formula: wavelengths against two limits.
    table = []
    for plane in range(HEAD // 2):
        wavelength = 2 * math.pi * 500_000.0 ** (2 * plane / HEAD)
        smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
        between = 1 / ((1 - smooth) / 7.0 + smooth)
        table.append(1.0 if wavelength < 8192 / 4 else 7.0 if wavelength > 8192 else between)
    tensors = written_tensors(theirs, shuffled) | {"rope_freqs.weight": np.array(table, np.float32)}
    path = write_file("llama", shape_metadata(**{"rope.freq_base": 500_000.0}), tensors)
    tokens = torch.randint(VOCAB, (3, 41))
    assert_same(logits(path, tokens), theirs(tokens).logits)


def test_same_logits_as_gpt2(write_file, logits):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=17, n_layer=2, n_head=3, n_embd=33, n_inner=29, layer_norm_epsilon=1e-3
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs = theirs.float().double()
    names = {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2"}
    names |= {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
    weights = {name: tensor.float() for name, tensor in theirs.transformer.state_dict().items()}
    tensors = {"token_embd.weight": weights["wte.weight"], "position_embd.weight": weights["wpe.weight"]}
    tensors |= {f"output_norm.{end}": weights[f"ln_f.{end}"] for end in ("weight", "bias")}
    for layer in range(2):
        for ours, part in names.items():
            for end in ("weight", "bias"):
                tensor = weights[f"h.{layer}.{part}.{end}"]
                tensors[f"blk.{layer}.{ours}.{end}"] = tensor.T.contiguous() if tensor.dim() == 2 else tensor
    metadata = {
        **{"gpt2.context_length": 17, "gpt2.embedding_length": 33, "gpt2.block_count": 2},
        **{"gpt2.feed_forward_length": 29, "gpt2.attention.head_count": 3, "gpt2.attention.layer_norm_epsilon": 1e-3},
    }
    path = write_file("gpt2", metadata, {name: tensor.numpy() for name, tensor in tensors.items()})
    tokens = torch.randint(VOCAB, (3, 13))
    assert_same(logits(path, tokens), theirs(tokens).logits)


def test_same_hidden_states_as_bert(write_file, transformer_from):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=33, num_hidden_layers=2, num_attention_heads=3, intermediate_size=29,
        max_position_embeddings=17, layer_norm_eps=1e-3,
    )  # fmt: skip
    theirs = transformers.BertModel(config, add_pooling_layer=False).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs = theirs.float().double()
    names = {"attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value"}
    names |= {"attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm"}
    names |= {"ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm"}
    blocks = {
        f"blk.{layer}.{ours}": f"encoder.layer.{layer}.{part}" for layer in (0, 1) for ours, part in names.items()
    }
    tables = {"token_embd": "word", "position_embd": "position", "token_types": "token_type"}
    blocks |= {ours: f"embeddings.{part}_embeddings" for ours, part in tables.items()}
    blocks |= {"token_embd_norm": "embeddings.LayerNorm"}
    weights = {name: tensor.float().numpy() for name, tensor in theirs.state_dict().items()}
    tensors = {
        f"{ours}.{end}": weights[f"{part}.{end}"]
        for ours, part in blocks.items()
        for end in ("weight", "bias")
        if f"{part}.{end}" in weights
    }
    metadata = {
        **{"bert.context_length": 17, "bert.embedding_length": 33, "bert.block_count": 2, "bert.pooling_type": 1},
        **{"bert.feed_forward_length": 29, "bert.attention.head_count": 3, "bert.attention.layer_norm_epsilon": 1e-3},
        **{"tokenizer.ggml.model": "bert", "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.bos_token_id": 1},
        **{"tokenizer.ggml.seperator_token_id": 2, "tokenizer.ggml.mask_token_id": 3},
        "tokenizer.ggml.tokens": ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"\u2581{n}" for n in range(26))],
        "tokenizer.ggml.token_type": [3] * 5 + [1] * 26,
    }
    checkpoint = read_gguf_checkpoint(write_file("bert", metadata, tensors))
    assert checkpoint.pooling == "mean"
    assert checkpoint.special_tokens["sep_token"] == "[SEP]"
    ours = transformer_from(checkpoint.config, checkpoint.tensors)
    tokens, segments = torch.randint(31, (3, 13)), torch.randint(2, (3, 13))
    expected = theirs(tokens, token_type_ids=segments).last_hidden_state
    torch.testing.assert_close(ours.encode(tokens, segments=segments).hidden_states, expected)


def test_the_header_is_what_the_package_of_llama_cpp_reads(small_file):
    file, theirs = GGUFFile(small_file), gguf.GGUFReader(small_file)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert file.metadata == {**fields, "llama.attention.layer_norm_rms_epsilon": 1e-3}
    assert {name: (stored.shape, stored.start, stored.num_bytes) for name, stored in file.tensors.items()} == {
        tensor.name: (tuple(tensor.shape.tolist()[::-1]), tensor.data_offset, tensor.n_bytes)
        for tensor in theirs.tensors
    }


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_packed_numbers_are_those_that_were_packed_to_the_precision_of_the_type(write_file, kind):
    numbers = np.random.default_rng(1).uniform(-1, 1, size=(3, 5 * 32)).astype(np.float32)
    path = write_file("llama", {}, {"x.weight": numbers}, types={"x.weight": kind})
    read = GGUFFile(path).read("x.weight")
    bits = {"F32": 24, "F16": 11, "BF16": 8, "Q8_0": 8, "Q5_0": 5, "Q5_1": 5, "Q4_0": 4, "Q4_1": 4}[kind]
    assert read.dtype == torch.float32
    assert np.abs(read.numpy() - numbers).max() <= 2.0 ** (1 - bits)
    expected = gguf.GGUFReader(path).tensors[0]
    assert np.array_equal(read.numpy(), gguf.dequantize(expected.data, expected.tensor_type))


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q8_0"])
def test_any_blocks_are_read_as_the_package_reads_them(write_file, kind):
    """Blocks of random bits; no byte has all bits of an exponent, so that scales are finite wherever they lie."""
    _, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    packed = np.random.default_rng(2).integers(0, 256, size=(3, 5 * num_bytes), dtype=np.uint8) & 0b10110111
    path = write_file("llama", {}, {"x.weight": packed}, types={"x.weight": kind})
    read = GGUFFile(path).read("x.weight")
    expected = gguf.GGUFReader(path).tensors[0]
    assert read.isfinite().all()
    assert np.array_equal(read.numpy(), gguf.dequantize(expected.data, expected.tensor_type))
    assert len(read) == 3


def test_blocks_of_eight_bits_are_a_scale_and_32_numbers(write_file):
    packed = struct.pack("<e32b", 0.5, *range(-16, 16))
    path = write_file("llama", {}, {"x.weight": np.frombuffer(packed, np.uint8)[None]}, types={"x.weight": "Q8_0"})
    assert GGUFFile(path).read("x.weight").tolist() == [[number / 2 for number in range(-16, 16)]]


def test_every_weight_the_tokenizer_and_the_template_are_read(small_file):
    checkpoint = read_gguf_checkpoint(small_file)
    config = checkpoint.config
    assert config["tie_word_embeddings"]
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 0)
    assert len(checkpoint.tensors) == len(random_tensors())
    assert checkpoint.chat_template == TEMPLATE
    assert Tokenizer.from_json(checkpoint.tokenizer).vocab_size == VOCAB == config["vocab_size"]


def test_a_truncated_file_is_an_error_wherever_it_ends(small_file, tmp_path):
    content = small_file.read_bytes()
    header = GGUFFile(small_file).tensors["token_embd.weight"].start
    cuts = {4, 5, 8, 12, 23, 24, 100, header - 1, header, header + 1, len(content) // 2}
    cuts |= {random.Random(0).randrange(4, header) for _ in range(50)}
    # Behind the last tensor there may be padding, which nobody misses.
    last = max(stored.start + stored.num_bytes for stored in GGUFFile(small_file).tensors.values())
    for cut in sorted(cuts | {last - 1}):
        path = tmp_path / "cut.gguf"
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match=r"cut\.gguf is truncated"):
            GGUFFile(path)


@pytest.mark.slow
def test_a_damaged_header_is_an_error_of_one_line(small_file, tmp_path):
    content = small_file.read_bytes()
    header = GGUFFile(small_file).tensors["token_embd.weight"].start
    rng = random.Random(0)
    messages = []
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 8])):
            damaged[rng.randrange(header)] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        path = tmp_path / "damaged.gguf"
        path.write_bytes(damaged)
        try:
            _ = dict(read_gguf_checkpoint(path).tensors)
        except RegardError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert not [line for line in messages if "\n" in line or len(line) > 400]


def test_another_file_is_an_error(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(DataError, match="is not a GGUF file: it begins with b'PK"):
        GGUFFile(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="is not a GGUF file"):
        GGUFFile(path)
    path.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(32))
    with pytest.raises(DataError, match="big-endian"):
        GGUFFile(path)
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + bytes(32))
    with pytest.raises(DataError, match="GGUF version 1, versions 2 and 3 can be read"):
        GGUFFile(path)
    with pytest.raises(DataError, match=r"cannot read .*: No such file"):
        GGUFFile(tmp_path / "none.gguf")


def test_a_damaged_length_ends_at_once(tmp_path):
    """The package's own reader would count to 2^60."""
    key = b"x" * 4
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 4, 1 << 60)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry + bytes(64))
    with pytest.raises(DataError, match="truncated or damaged"):
        GGUFFile(path)


REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "experts": ({"llama.expert_count": 8}, r"llama\.expert_count must be 0 .* got 8"),
    "partial": ({"llama.rope.dimension_count": 4}, r"llama\.rope\.dimension_count must be 10 .* got 4"),
    "scaled": ({"llama.rope.scaling.type": "yarn"}, r"llama\.rope\.scaling\.type must be none .* got yarn"),
    "split": ({"split.count": 3}, "is one of 3 parts"),
    "heads": ({"llama.attention.head_count": [6, 6]}, r"no single number for llama\.attention\.head_count"),
}


@pytest.mark.parametrize(("metadata", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_a_setting_that_cannot_be_imported_is_an_error(write_file, metadata, reason):
    path = write_file("llama", {**shape_metadata(block_count=1), **metadata}, random_tensors())
    with pytest.raises(RegardError, match=reason):
        read_gguf_checkpoint(path)


def test_an_unknown_architecture_is_an_error(write_file):
    path = write_file("mamba", {}, random_tensors())
    with pytest.raises(ConfigError, match="architecture 'mamba' cannot be imported; known: llama, qwen2"):
        read_gguf_checkpoint(path)


def test_a_missing_setting_is_an_error(write_file):
    path = write_file("llama", shape_metadata(block_count=None), random_tensors())
    with pytest.raises(DataError, match=r"has no value for llama\.block_count"):
        read_gguf_checkpoint(path)


def test_an_unknown_tensor_is_an_error(write_file):
    path = write_file("llama", shape_metadata(), random_tensors() | {"blk.0.attn_sinks.weight": np.ones(3, np.float32)})
    with pytest.raises(ConfigError, match=r"has no weight blk\.0\.attn_sinks\.weight"):
        read_gguf_checkpoint(path)


def test_a_number_type_that_cannot_be_read_is_an_error(write_file, tmp_path):
    packed = np.zeros((3, 292), np.uint8)
    path = write_file("llama", {}, {"x.weight": packed}, types={"x.weight": "Q8_K"})
    with pytest.raises(ConfigError, match=r"x\.weight has the type Q8_K, which cannot be read"):
        GGUFFile(path).read("x.weight")
    content = path.read_bytes()
    place = content.index(b"x.weight") + len(b"x.weight") + 4 + 2 * 8
    other = tmp_path / "other.gguf"
    other.write_bytes(content[:place] + struct.pack("<I", 99) + content[place + 4 :])
    with pytest.raises(ConfigError, match=r"x\.weight has the unknown type number 99"):
        GGUFFile(other)


def test_another_table_of_rotary_factors_is_an_error(write_file):
    table = np.linspace(1, 7, HEAD // 2, dtype=np.float32)
    path = write_file("llama", shape_metadata(block_count=1), random_tensors() | {"rope_freqs.weight": table})
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight is not the table of a Llama 3 model"):
        read_gguf_checkpoint(path)


def test_without_the_package_the_error_names_the_extra(small_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"pip install 'regard\[gguf\]'"):
        GGUFFile(small_file)


def test_special_tokens_are_those_of_the_file(small_file):
    tokenizer = Tokenizer.from_json(read_gguf_checkpoint(small_file).tokenizer)
    assert [tokenizer.pad, tokenizer.start, tokenizer.end] == [0, 1, 2]
    assert tokenizer.pieces([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
