"""Exports to CTranslate2: its Translator and its Generator compute what our models compute."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import ConfigError
from regard.generation.beam import BeamSearch
from regard.generation.config import GenerationConfig
from regard.interop.exporting import write_export
from regard.interop.model import ExportableModel, token_names

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


def sources(model: ExportableModel, length: int) -> list[list[int]]:
    """Rows without special tokens, each shorter than the one before."""
    ids = torch.randint(4, model.tokenizer.vocab_size, (3, length)).tolist()
    return [row[: length - number] for number, row in enumerate(ids)]


def written(model: ExportableModel, folder: Path) -> list[str]:
    """Export the model; the names of its tokens."""
    made = write_export(model, folder, to="ctranslate2")
    # Both compute in float32, in another order.
    assert made.difference < 1e-3
    return token_names(model.tokenizer)


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_a_translator_computes_the_same_log_probabilities(exportable, name: str, tmp_path: Path):
    ours: ExportableModel = exportable("target-tokens", SHAPES[name])
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
def test_a_generator_computes_the_same_logits(exportable, name: str, tmp_path: Path):
    ours: ExportableModel = exportable("next-token", {**SHAPES[name], "encoder_layers": 0})
    names = written(ours, tmp_path / "out")
    there = ctranslate2.Generator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    rows = torch.randint(4, ours.tokenizer.vocab_size, (3, 11))
    found = np.array(there.forward_batch([[names[i] for i in row] for row in rows.tolist()]))
    torch.testing.assert_close(torch.from_numpy(found), ours.model(rows), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_normalized_queries_of_a_decoder_are_exported(exportable, tmp_path: Path):
    ours: ExportableModel = exportable("next-token", {**MODERN, "encoder_layers": 0, "query_key_norm": True})
    names = written(ours, tmp_path / "out")
    there = ctranslate2.Generator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    rows = torch.randint(4, ours.tokenizer.vocab_size, (2, 5))
    found = np.array(there.forward_batch([[names[i] for i in row] for row in rows.tolist()]))
    torch.testing.assert_close(torch.from_numpy(found), ours.model(rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("name", ["paper", "rotary", "t5"])
@torch.no_grad()
def test_a_translator_generates_the_same_tokens(exportable, name: str, beam_size: int, tmp_path: Path):
    ours: ExportableModel = exportable("target-tokens", SHAPES[name])
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
        state = model.initial_state(model.encode(torch.tensor([[*source, tokenizer.end]])))
        best = search.search(state, torch.tensor([[tokenizer.start]]), [LIMIT])[0][0]
        assert [names.index(token) for token in theirs.hypotheses[0]] == best.tokens
        assert theirs.scores[0] == pytest.approx(best.score, rel=1e-4)
        lengths.append(len(best.tokens))
    assert min(lengths) > 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"activation": "squared-relu"}, "activation must be relu or .* got squared-relu"),
        ({"norm": "none"}, "norm must be layer or rms for CTranslate2, got none"),
        ({"block": "parallel"}, "block must be pre-norm or post-norm"),
        ({"positions": "alibi"}, "positions must be sinusoidal or .* got alibi"),
        ({"similarity": "cosine"}, "similarity must be scaled-dot or dot"),
        ({"retrieval": "hard"}, "retrieval must be soft"),
        ({"residual": False}, "residual must be True"),
        ({"feedforward_dim": 0}, "feedforward_dim must not be 0"),
        ({"query_key_norm": True}, "query_key_norm must be False for CTranslate2 in a model with an encoder"),
        ({"positions": "rotary", "position_stretch": 2.0}, "position_stretch must be 1.0"),
        ({"attention": "linear"}, "attention must be full"),
        ({"encoder_attention": "window"}, "encoder_attention must be None or full"),
    ],
)
def test_a_setting_that_the_format_cannot_represent_is_an_error(
    exportable, changed: dict[str, Any], message: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match=rf"model\.{message}"):
        write_export(exportable("target-tokens", {**SHAPE, **changed}), tmp_path / "out", to="ctranslate2")
    assert not list(tmp_path.iterdir())


def test_a_head_on_an_encoder_is_an_error(exportable, tmp_path: Path):
    with pytest.raises(ConfigError, match="head target-tokens or next-token, got labels"):
        write_export(exportable("labels", {**SHAPE, "decoder_layers": 0}), tmp_path / "out", to="ctranslate2")


def test_without_the_package_the_error_names_the_extra(exportable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(ConfigError, match=r"pip install 'regard\[ctranslate2\]'"):
        write_export(exportable("target-tokens", SHAPE), tmp_path / "out", to="ctranslate2")
    assert not list(tmp_path.iterdir())


def test_tied_weights_are_stored_once(exportable, tmp_path: Path):
    sizes = []
    for is_tied in (True, False):
        model = exportable("next-token", {**MODERN, "encoder_layers": 0, "tie_embeddings": is_tied})
        write_export(model, tmp_path / str(is_tied), to="ctranslate2")
        sizes.append((tmp_path / str(is_tied) / "model.bin").stat().st_size)
    assert sizes[1] - sizes[0] == pytest.approx(4 * 24 * model.tokenizer.vocab_size, abs=200)
