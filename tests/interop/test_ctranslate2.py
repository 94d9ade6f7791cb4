"""Exports to CTranslate2: its Translator and its Generator say what our models say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import CheckpointError, ConfigError
from regard.generation.beam import BeamSearch
from regard.generation.config import GenerationConfig
from regard.interop.ctranslate2_file import read_variables
from regard.interop.exporting import export
from regard.interop.trained import Trained, token_names

ctranslate2 = pytest.importorskip("ctranslate2")

SHAPE: dict[str, Any] = {
    "num_layers": 2, "model_dim": 24, "num_heads": 4, "feedforward_dim": 29, "context_length": 31,
}  # fmt: skip
MODERN: dict[str, Any] = {**SHAPE, "block": "pre-norm", "positions": "rotary", "position_base": 500.0}
SHAPES: dict[str, dict[str, Any]] = {
    "paper": SHAPE,
    "learned": {**SHAPE, "positions": "learned", "embedding_norm": True, "activation": "gelu", "output_bias": True},
    "none": {**SHAPE, "positions": "none", "scale_embeddings": False, "activation": "gelu-tanh"},
    "rotary": MODERN,
    "untied": {**MODERN, "tie_embeddings": False, "activation": "swiglu", "attention_bias": False},
    "rms": {**MODERN, "norm": "rms", "norm_epsilon": 1e-2, "bias": False, "activation": "silu"},
    "shared": {**MODERN, "num_key_value_heads": 2, "query_width": 32, "activation": "geglu"},
    "t5": {**SHAPE, "block": "pre-norm", "positions": "relative", "position_buckets": 6, "position_distance": 11,
           "similarity": "dot", "norm": "rms", "bias": False, "scale_output": True, "activation": "geglu-tanh"},
}  # fmt: skip
SOURCE, TARGET, LIMIT = 7, 5, 13


def sources(trained: Trained, length: int) -> list[list[int]]:
    """Rows without special tokens, each shorter than the one before."""
    ids = torch.randint(4, trained.tokenizer.vocab_size, (3, length)).tolist()
    return [row[: length - number] for number, row in enumerate(ids)]


def written(trained: Trained, folder: Path) -> list[str]:
    """Export the model; the names of its tokens."""
    assert export(trained, folder, to="ctranslate2").difference == 0.0
    return token_names(trained.tokenizer)


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_a_translator_gives_the_same_scores(trained, name: str, tmp_path: Path):
    ours: Trained = trained("translation", SHAPES[name])
    names, tokenizer = written(ours, tmp_path / "out"), ours.tokenizer
    some, others = sources(ours, SOURCE), sources(ours, TARGET)
    there = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    found = there.score_batch([[names[i] for i in row] for row in some], [[names[i] for i in row] for row in others])
    model: Any = ours.model
    for source, target, score in zip(some, others, found, strict=True):
        scores = model(torch.tensor([[tokenizer.start, *target]]), torch.tensor([[*source, tokenizer.end]]))
        expected = scores[0].log_softmax(dim=-1).gather(1, torch.tensor([*target, tokenizer.end])[:, None])[:, 0]
        # Both compute in float32.
        torch.testing.assert_close(torch.tensor(score.log_probs), expected.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_a_generator_gives_the_same_scores(trained, name: str, tmp_path: Path):
    ours: Trained = trained("language", {**SHAPES[name], "encoder_layers": 0})
    names = written(ours, tmp_path / "out")
    there = ctranslate2.Generator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    rows = torch.randint(4, ours.tokenizer.vocab_size, (3, 11))
    found = np.array(there.forward_batch([[names[i] for i in row] for row in rows.tolist()]))
    torch.testing.assert_close(torch.from_numpy(found), ours.model(rows), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_normed_queries_of_a_decoder_alone_go_over(trained, tmp_path: Path):
    ours: Trained = trained("language", {**MODERN, "encoder_layers": 0, "query_key_norm": True})
    names = written(ours, tmp_path / "out")
    there = ctranslate2.Generator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    rows = torch.randint(4, ours.tokenizer.vocab_size, (2, 5))
    found = np.array(there.forward_batch([[names[i] for i in row] for row in rows.tolist()]))
    torch.testing.assert_close(torch.from_numpy(found), ours.model(rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("name", ["paper", "rotary", "t5"])
@torch.no_grad()
def test_a_translator_writes_the_same_tokens(trained, name: str, beam_size: int, tmp_path: Path):
    ours: Trained = trained("translation", SHAPES[name])
    tokenizer, model = ours.tokenizer, ours.body
    names = written(ours, tmp_path / "out")
    there = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    some = sources(ours, SOURCE)
    found = there.translate_batch(
        [[names[i] for i in row] for row in some],
        beam_size=beam_size,
        length_penalty=0.0,
        min_decoding_length=0,
        max_decoding_length=LIMIT,
        return_scores=True,
    )
    search = BeamSearch(model, end=tokenizer.end, config=GenerationConfig(beam_size=beam_size, length_penalty=0.0))
    lengths = []
    for source, theirs in zip(some, found, strict=True):
        state = model.start(model.encode(torch.tensor([[*source, tokenizer.end]])))
        best = search.search(state, torch.tensor([[tokenizer.start]]), [LIMIT])[0][0]
        assert [names.index(token) for token in theirs.hypotheses[0]] == best.tokens
        assert theirs.scores[0] == pytest.approx(best.score, rel=1e-4)
        lengths.append(len(best.tokens))
    assert min(lengths) > 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"activation": "squared-relu"}, "activation must be relu or .* got squared-relu"),
        ({"norm": "none"}, "norm must be layer or rms for CTranslate2, got none"),
        ({"block": "parallel"}, "block must be pre-norm or post-norm"),
        ({"positions": "alibi"}, "positions must be sinusoidal or .* got alibi"),
        ({"similarity": "cosine"}, "similarity must be scaled-dot or dot"),
        ({"retrieval": "hard"}, "retrieval must be soft"),
        ({"residual": False}, "residual must be True"),
        ({"feedforward_dim": 0}, "feedforward_dim must not be 0"),
        ({"query_key_norm": True}, "query_key_norm must be False for CTranslate2 where there is an encoder"),
        ({"positions": "rotary", "position_stretch": 2.0}, "position_stretch must be 1.0"),
    ],
)
def test_a_shape_without_words_is_refused_by_its_setting(trained, changed: dict[str, Any], told: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=rf"model\.{told}"):
        export(trained("translation", {**SHAPE, **changed}), tmp_path / "out", to="ctranslate2")
    assert not list(tmp_path.iterdir())


def test_a_head_is_refused(trained, tmp_path: Path):
    with pytest.raises(ConfigError, match="task must be translation or language for CTranslate2, got classification"):
        export(trained("classification", {**SHAPE, "decoder_layers": 0}), tmp_path / "out", to="ctranslate2")


def test_a_file_that_was_cut_is_said(trained, tmp_path: Path):
    written(trained("language", {**MODERN, "encoder_layers": 0}), tmp_path / "out")
    path = tmp_path / "out" / "model.bin"
    assert read_variables(path).name == "TransformerDecoderSpec"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="ends too early"):
        read_variables(path)
    path.write_bytes(b"\1" + content[1:])
    with pytest.raises(CheckpointError, match="version 1 of its layout"):
        read_variables(path)
