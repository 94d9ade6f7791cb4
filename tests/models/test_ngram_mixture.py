"""The mixture of a network with n-grams: its limits at the weights 0 and 1, its states, and its weights on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.baselines import KneserNey
from regard.errors import CheckpointError, ConfigError
from regard.models.family import build_model, read_model_config
from regard.models.ngram_mixture import NgramMixture, best_weight
from regard.models.protocols import Decoder, DecoderState, StatefulDecoder, StaticState
from regard.nn.inference import prepare_for_inference
from regard.nn.ngrams import NgramTables, estimate_kneser_ney
from regard.training.checkpoints import load_weights, read_tensors, weights_of, write_tensors
from regard.training.optimizers import hidden_matrices

VOCAB, BATCH, TIME, START, END = 23, 3, 7, 1, 2
TEXT = torch.randint(3, VOCAB, (400,), generator=torch.Generator().manual_seed(3)).numpy() % 11
TEXT[::13] = END
SHAPES: dict[str, dict[str, Any]] = {
    "transformer": {"num_layers": 2, "model_dim": 20, "num_heads": 2, "feedforward_dim": 23, "encoder_layers": 0},
    "recurrent": {"family": "recurrent", "num_layers": 2, "model_dim": 20, "encoder_layers": 0, "bidirectional": False},
    "convolutional": {"family": "convolutional", "num_layers": 2, "model_dim": 20, "encoder_layers": 0},
}
TOKENS = torch.randint(3, VOCAB, (BATCH, TIME), generator=torch.Generator().manual_seed(5)) % 11
TOKENS[:, 0] = START
TOKENS[1, 4] = START


def network(family: str = "transformer", **more: Any) -> Any:
    torch.manual_seed(1)
    model = build_model(read_model_config({**SHAPES[family], "dropout": 0.1, **more}), VOCAB)
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
    return model.eval()


def mixture(
    family: str = "transformer", *, order: int = 3, weight: float = 0.3, isolates: bool = False, **more: Any
) -> NgramMixture:
    tables = NgramTables(VOCAB, order)
    tables.fill(estimate_kneser_ney(TEXT, vocab_size=VOCAB, order=order))
    model = NgramMixture(network(family, **more), tables, start=START, end=END, isolates=isolates).eval()
    model.network_weight.fill_(weight)
    return model


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@torch.no_grad()
def test_with_weight_0_it_is_the_ngrams_with_1_the_network_and_between_a_distribution(order: int):
    baseline = KneserNey(TEXT, vocab_size=VOCAB, order=order)
    found = mixture(order=order, weight=0.0)(TOKENS)
    for row, tokens in enumerate(TOKENS.masked_fill(TOKENS == START, END)):
        for place in range(TIME):
            after = [np.append(tokens[: place + 1].numpy(), token) for token in range(VOCAB)]
            expected = torch.tensor([-baseline.losses(ids)[-1] for ids in after])
            torch.testing.assert_close(found[row, place], expected)
    torch.testing.assert_close(mixture(order=order, weight=1.0)(TOKENS), network()(TOKENS).log_softmax(-1))
    mixed = mixture(order=order)(TOKENS)
    torch.testing.assert_close(mixed.exp().sum(-1), torch.ones(BATCH, TIME))
    torch.testing.assert_close(mixed.exp(), 0.3 * network()(TOKENS).softmax(-1) + 0.7 * found.exp())


@torch.no_grad()
def test_ngrams_that_nothing_was_counted_for_are_a_distribution():
    tables = NgramTables(VOCAB, 3)
    model = NgramMixture(network(), tables, start=START, end=END, isolates=False).eval()
    torch.testing.assert_close(model(TOKENS), network()(TOKENS).log_softmax(-1))
    model.network_weight.fill_(0.0)
    torch.testing.assert_close(model(TOKENS).exp().sum(-1), torch.ones(BATCH, TIME))


@pytest.mark.parametrize("family", SHAPES)
@torch.no_grad()
def test_it_is_a_decoder_that_gives_the_same_step_by_step(family: str):
    model = mixture(family)
    expected = model(TOKENS)
    assert isinstance(model, Decoder)
    assert not isinstance(model, StatefulDecoder)
    assert isinstance(model.initial_state(), DecoderState)
    assert isinstance(model.static_state(BATCH, 11), StaticState)
    for fast in (model, model.for_inference()):
        for pieces in ([1] * TIME, [3, 1, 3], [TIME]):
            state, parts = fast.initial_state(batch_size=BATCH), []
            for piece in TOKENS.split(pieces, dim=1):
                part, state = fast.step(piece, state)
                parts.append(part)
            torch.testing.assert_close(torch.cat(parts, dim=1), expected)
        static = fast.static_state(BATCH, 11)
        static.put(torch.arange(BATCH), fast.initial_state(batch_size=BATCH))
        for place, token in enumerate(TOKENS.split(1, dim=1)):
            torch.testing.assert_close(fast.step(token, static)[0], expected[:, place : place + 1])


@pytest.mark.parametrize("family", SHAPES)
@torch.no_grad()
def test_rows_of_states_are_selected_put_and_reordered(family: str):
    model = mixture(family)
    expected, rows = model(TOKENS), torch.tensor([2, 0, 2])
    _, state = model.step(TOKENS[:, :4], model.initial_state(batch_size=BATCH))
    static = model.static_state(BATCH + 1, 11)
    static.put(torch.tensor([3, 0, 1]), state)
    tokens = torch.zeros(BATCH + 1, 1, dtype=torch.long)
    tokens[[3, 0, 1]] = TOKENS[:, 4:5]
    found, _ = model.step(tokens, static)
    torch.testing.assert_close(found[[3, 0, 1], 0], expected[:, 4])
    static.reorder(torch.tensor([1, 0, 3, 0]))
    tokens = torch.cat([TOKENS[[2, 1, 0], 5:6], TOKENS[1:2, 5:6]])
    torch.testing.assert_close(model.step(tokens, static)[0][:, 0], expected[[2, 1, 0, 1], 5])
    again = static.select(torch.tensor([2, 0]))
    torch.testing.assert_close(model.step(TOKENS[[0, 2], 6:7], again)[0][:, 0], expected[[0, 2], 6])
    _, state = model.step(TOKENS[:, :4], model.initial_state(batch_size=BATCH))
    torch.testing.assert_close(model.step(TOKENS[rows, 4:5], state.select(rows))[0][:, 0], expected[rows, 4])


@torch.no_grad()
def test_contexts_of_isolated_documents_begin_with_their_start_token():
    for isolates in (True, False):
        model = mixture(weight=0.0, order=4, isolates=isolates)
        together, alone = model(TOKENS[1:2]), model(TOKENS[1:2, 4:])
        assert torch.allclose(together[:, 4:], alone) == isolates
        torch.testing.assert_close(together[:, :4], model(TOKENS[1:2, :4]))


def test_in_training_mode_it_is_the_network():
    """With the same logits and gradients; the n-grams have none."""
    model, alone = mixture(dropout=0.0).train(), network(dropout=0.0)
    torch.testing.assert_close(model(TOKENS), alone(TOKENS))
    model(TOKENS).square().sum().backward()
    alone(TOKENS).square().sum().backward()
    for (name, own), (other, expected) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
        assert name == f"body.{other}"
        torch.testing.assert_close(own.grad, expected.grad)


@pytest.mark.parametrize("is_tied", [True, False])
def test_muon_trains_the_same_matrices_as_without_ngrams(is_tied: bool):
    model = mixture(tie_embeddings=is_tied)
    assert [id(p) for p in hidden_matrices(model)] == [id(p) for p in hidden_matrices(model.body)]


def test_the_best_weight_is_that_of_a_fine_grid():
    one, other = torch.rand(2, 97).log()
    grid = torch.linspace(0, 1, 10_001)[:, None]
    likelihoods = torch.logaddexp(grid.log() + one, (1 - grid).log() + other).sum(dim=1)
    assert best_weight(one, other) == pytest.approx(float(grid[likelihoods.argmax()]), abs=1e-4)
    assert best_weight(one, one - 1) == pytest.approx(1.0)
    assert best_weight(one - 1, one) == pytest.approx(0.0)
    model = mixture()
    for network, expected in ((one, best_weight(one, other)), (other - 5, 0.0)):
        model.fit_weight(network, other)
        assert float(model.network_weight) == expected


def test_saved_weights_are_loaded_into_tables_of_another_size(tmp_path: Path):
    model = mixture(order=3)
    write_tensors(tmp_path / "model.safetensors", weights_of(model), {})
    tensors = read_tensors(tmp_path / "model.safetensors")[0]
    other = NgramMixture(network("transformer"), NgramTables(VOCAB, 3), start=START, end=END, isolates=False).eval()
    load_weights(other, tensors)
    assert torch.equal(other(TOKENS), model(TOKENS))
    assert float(other.network_weight) == 0.3
    shorter = {**tensors, "body.embedding.weight": tensors["body.embedding.weight"][1:]}
    with pytest.raises(CheckpointError, match=r"embedding\.weight has shape"):
        load_weights(other, shorter)
    with pytest.raises(CheckpointError, match="keys_4"):
        load_weights(mixture(order=4), tensors)


def test_tables_keep_their_precision_and_follow_the_device():
    model = prepare_for_inference(mixture(), "bfloat16")
    assert model.body.dtype == torch.bfloat16
    assert {buffer.dtype for buffer in model.tables.buffers()} == {torch.int64, torch.float64}
    with torch.inference_mode():
        torch.testing.assert_close(model(TOKENS).exp().sum(-1), torch.ones(BATCH, TIME, dtype=torch.float32))
    assert {buffer.device.type for buffer in mixture().to("meta").tables.buffers()} == {"meta"}


@torch.no_grad()
def test_int8_weights_of_the_network_change_little():
    model = mixture().float()
    found = model.for_inference(quantization="int8")(TOKENS)
    assert not torch.equal(found, model(TOKENS))
    torch.testing.assert_close(found, model(TOKENS), atol=0.5, rtol=0.5)  # 8 bits of a network with large weights


def test_an_encoder_decoder_is_an_error():
    both = build_model(read_model_config({**SHAPES["transformer"], "encoder_layers": 1}), VOCAB)
    with pytest.raises(ConfigError, match="this one has an encoder"):
        NgramMixture(both, NgramTables(VOCAB, 2), start=START, end=END, isolates=False)
