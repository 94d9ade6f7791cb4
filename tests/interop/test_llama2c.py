"""Files of llama2.c: tiny ones that are written here, and a trained one."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.errors import DataError
from regard.interop.hf.llama import halves_from_pairs, pairs_from_halves
from regard.interop.llama2c import read_llama2c_checkpoint
from regard.runs.importing import import_model
from regard.runs.run import load

MODEL, WIDE, LAYERS, HEADS, SHARED, VOCAB, POSITIONS = 24, 37, 2, 6, 3, 263, 53
PIECES = [b" ", b"a", b"n", b" a"]
STORIES = Path(__file__).parents[3] / "shared/data/pretrained/stories260K"


def vocabulary_bytes(pieces: list[bytes] = PIECES) -> bytes:
    tokens = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256)), *pieces]
    scores = [*[0.0] * 259, *(-float(place) for place in range(len(pieces)))]
    entries = [struct.pack("<fi", score, len(token)) + token for token, score in zip(tokens, scores, strict=True)]
    return struct.pack("<i", max(map(len, tokens))) + b"".join(entries)


def model_bytes(
    shuffled: Callable[[np.ndarray, int], np.ndarray],
    *,
    tied: bool = True,
    weights: dict[str, torch.Tensor] | None = None,
) -> bytes:
    """A file as llama2.c's export writes it, with the weights of a Llama or with random ones."""
    rng = np.random.default_rng(0)
    shared = MODEL // HEADS * SHARED
    shapes = {
        "input_layernorm": (MODEL,),
        "self_attn.q_proj": (MODEL, MODEL),
        "self_attn.k_proj": (shared, MODEL),
        "self_attn.v_proj": (shared, MODEL),
        "self_attn.o_proj": (MODEL, MODEL),
        "post_attention_layernorm": (MODEL,),
        "mlp.gate_proj": (WIDE, MODEL),
        "mlp.down_proj": (MODEL, WIDE),
        "mlp.up_proj": (WIDE, MODEL),
    }

    def get(name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = rng.normal(size=shape) if weights is None else weights[f"{name}.weight"].numpy()
        heads = {"q_proj": HEADS, "k_proj": SHARED}.get(name.split(".")[-1])
        return array if heads is None else shuffled(array, heads)

    parts = [get("model.embed_tokens", (VOCAB, MODEL))]
    for part, shape in shapes.items():
        parts += [get(f"model.layers.{layer}.{part}", shape) for layer in range(LAYERS)]
    parts += [get("model.norm", (MODEL,)), np.zeros((2, POSITIONS, MODEL // HEADS // 2))]
    parts += [] if tied else [get("lm_head", (VOCAB, MODEL))]
    header = struct.pack("<7i", MODEL, WIDE, LAYERS, HEADS, SHARED, VOCAB if tied else -VOCAB, POSITIONS)
    return header + b"".join(np.asarray(part, "<f4").tobytes() for part in parts)


@pytest.fixture
def files(tmp_path: Path, shuffled: Callable[[np.ndarray, int], np.ndarray]) -> tuple[Path, Path]:
    model, vocabulary = tmp_path / "model.bin", tmp_path / "tokenizer.bin"
    model.write_bytes(model_bytes(shuffled))
    vocabulary.write_bytes(vocabulary_bytes())
    return model, vocabulary


@pytest.mark.parametrize("tied", [True, False])
def test_same_logits_as_transformers(files, shuffled, transformer_from, tied):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=MODEL,
        intermediate_size=WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs = theirs.float().double()
    files[0].write_bytes(model_bytes(shuffled, tied=tied, weights=theirs.state_dict()))
    checkpoint = read_llama2c_checkpoint(*files)
    ours = transformer_from(checkpoint.config, checkpoint.tensors)
    tokens = torch.randint(VOCAB, (3, 13))
    # Equal to seven digits: transformers turns queries and keys in float32, whatever the model is in.
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_rows_of_pairs_and_of_halves_are_each_others_reordering():
    rows = torch.arange(2 * 6)
    assert halves_from_pairs(rows, 2).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    matrix = torch.randn(2 * 6, 5)
    assert torch.equal(pairs_from_halves(halves_from_pairs(matrix, 2), 2), matrix)


def test_a_file_becomes_a_run(files, tmp_path):
    run = load(import_model(files[0], tmp_path / "run"), device="cpu")
    assert run.task.name == "language-modeling"
    assert run.tokenizer.encode(["an a"]) == [[262, 261, 262]]
    assert run.tokenizer.decode([[1, 262, 261, 262, 2]]) == ["an a"]


def test_a_size_that_does_not_fit_the_header_is_an_error_with_both(files):
    path, content = files[0], files[0].read_bytes()
    for damaged in (content[:-4], content + b"\0\0\0\0", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"it has {len(damaged):,} bytes, its header requires {len(content):,}"):
            read_llama2c_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"has 0 bytes, fewer than the header of a llama2.c file \(28\)"),
        (b"12345", "has 5 bytes"),
        (struct.pack("<Ii", 0x616B3432, 1) + bytes(248), "a llama2.c file of a later version"),
        (b"GGUF" + bytes(96), "is not a llama2.c file: it begins with 1179993927, 0, 0"),
        (struct.pack("<7i", 24, 37, 2, 5, 5, 263, 53), "is not a llama2.c file"),
        (struct.pack("<7i", *[2**30] * 3, 2, 1, 2**31 - 1, 2**31 - 1), r"requires [\d,]{25,}"),
    ],
    ids=["empty", "short", "later", "gguf", "heads", "huge"],
)
def test_another_file_is_an_error(tmp_path, content, reason):
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read_llama2c_checkpoint(path)


def test_a_truncated_or_invalid_vocabulary_is_an_error(files, tmp_path):
    content = files[1].read_bytes()
    for cut in (1, 5, 11):
        files[1].write_bytes(content[:-cut])
        with pytest.raises(DataError, match=r"is damaged: it ends within token 26[12]"):
            read_llama2c_checkpoint(*files)
    files[1].write_bytes(b"")
    with pytest.raises(DataError, match=r"is not a llama2\.c vocabulary"):
        read_llama2c_checkpoint(*files)
    with pytest.raises(DataError, match=r"cannot read .*: No such file"):
        read_llama2c_checkpoint(files[0], tmp_path / "none.bin")


def test_a_vocabulary_of_another_model_is_an_error(files):
    files[1].write_bytes(vocabulary_bytes(PIECES[:-1]))
    with pytest.raises(DataError, match=r"does not belong to .*: it has 262 tokens, the model has 263"):
        read_llama2c_checkpoint(*files)


def test_the_vocabulary_is_the_one_in_the_same_folder(files):
    expected = read_llama2c_checkpoint(*files).tokenizer
    assert read_llama2c_checkpoint(files[0]).tokenizer == expected
    other = files[1].rename(files[1].with_name("tok263.bin"))
    assert read_llama2c_checkpoint(files[0]).tokenizer == expected
    other.with_name("tok512.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"or as the only tok\*\.bin, got tok263\.bin, tok512\.bin"):
        read_llama2c_checkpoint(files[0])


@pytest.mark.skipif(not STORIES.exists(), reason="the trained files are not part of the repository")
def test_a_trained_model_generates_its_story(tmp_path):
    run = load(import_model(STORIES / "stories260K.bin", tmp_path / "run"), device="cpu")
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    text = run.generate("", temperature=0.0, max_tokens=60)
    assert text.startswith(story)
