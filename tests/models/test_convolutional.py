"""The convolutional network: receptive fields, attention, and invalid settings."""

import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.explanation import record_attention
from regard.models.convolutional import Convolutional, ConvolutionalConfig
from regard.models.protocols import DecoderState

VOCAB, BATCH, SOURCE, TARGET = 31, 3, 7, 5
TINY = {"num_layers": 2, "model_dim": 22, "kernel_size": 3, "dropout": 0.1, "context_length": 17}
SWITCHES = [
    *({"kernel_size": k, "dilation_growth": g} for k in (3, 5) for g in (1, 2)),
    *({"positions": p} for p in ("learned", "none")),
    *({"similarity": s} for s in ("dot", "bilinear", "additive", "cosine", "gaussian", "mahalanobis", "latent")),
    {"retrieval": "hard", "attention_temperature": 0.5},
    {"tie_embeddings": False},
    {"encoder_layers": 1, "decoder_layers": 3},
]
LENGTHS = torch.tensor([7, 2, 5])


def make(switch: dict, **more: int) -> Convolutional:
    torch.manual_seed(1)
    model = Convolutional(ConvolutionalConfig.read({**TINY, **switch, **more}), VOCAB)
    for parameter in model.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture(params=SWITCHES, ids=lambda switch: ",".join(f"{k}={v}" for k, v in switch.items()))
def model(request: pytest.FixtureRequest) -> Convolutional:
    return make(request.param)


@pytest.fixture
def source() -> torch.Tensor:
    return torch.randint(VOCAB, (BATCH, SOURCE))


@pytest.fixture
def target() -> torch.Tensor:
    return torch.randint(VOCAB, (BATCH, TARGET))


def edited(tokens: torch.Tensor, position: int) -> torch.Tensor:
    """The same tokens but for one position."""
    other = tokens.clone()
    other[:, position] = (other[:, position] + 1) % VOCAB
    return other


def test_every_position_of_the_target_depends_on_the_whole_source(source, target):
    model = make({})
    for position in range(SOURCE):
        changed = model(target, edited(source, position)) != model(target, source)
        assert changed.any(-1).all()


def test_every_block_of_the_decoder_can_be_watched(model: Convolutional, source, target):
    expected = model(target, source, LENGTHS)
    with record_attention(model) as weights:
        torch.testing.assert_close(model(target, source, LENGTHS), expected)
    names = [f"decoder.blocks.{layer}.cross_attention" for layer in range(model.config.decoder_depth)]
    assert list(weights) == names
    for looks in weights.values():
        assert looks.shape == (BATCH, 1, TARGET, SOURCE)
        torch.testing.assert_close(looks.sum(-1), torch.ones(BATCH, 1, TARGET))
        assert (looks[1, :, :, 2:] == 0).all()


def test_attention_at_a_low_temperature_becomes_hard_retrieval(source, target):
    soft, cold, hard = (
        make(switch)(target, source) for switch in ({}, {"attention_temperature": 1e-9}, {"retrieval": "hard"})
    )
    torch.testing.assert_close(cold, hard)
    assert not torch.allclose(soft, hard)


@pytest.mark.parametrize("kernel_size", [2, 3])
def test_a_decoder_alone_is_a_causal_language_model(target, kernel_size: int):
    model = make({"encoder_layers": 0, "kernel_size": kernel_size})
    assert model.encoder is None
    torch.testing.assert_close(_stepped(model, model.initial_state(batch_size=BATCH), target, [1, 3, 1]), model(target))


@pytest.mark.parametrize(("growth", "reach"), [(1, 4), (2, 6)])
def test_the_receptive_field_of_a_decoder_is_that_of_its_windows(growth: int, reach: int):
    """Two layers of three inputs: each adds two positions, `growth` times as far apart in the second."""
    model = make({"encoder_layers": 0, "dilation_growth": growth})
    tokens = torch.randint(VOCAB, (BATCH, 13))
    last = model(tokens)[:, -1]
    for distance in range(13):
        changed = (model(edited(tokens, 12 - distance))[:, -1] != last).any(-1)
        assert changed.all() if distance <= reach else not changed.any(), distance


@pytest.mark.parametrize(("growth", "reach"), [(1, 2), (2, 3)])
def test_the_receptive_field_of_an_encoder_is_centered(growth: int, reach: int):
    model = make({"decoder_layers": 0, "dilation_growth": growth})
    tokens = torch.randint(VOCAB, (BATCH, 13))
    middle = model.encode(tokens).hidden_states[:, 6]
    for position in range(13):
        changed = (model.encode(edited(tokens, position)).hidden_states[:, 6] != middle).any(-1)
        assert changed.all() if abs(position - 6) <= reach else not changed.any(), position


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kernel_size": 4}, "kernel_size must be odd for the centered windows of the encoder, got kernel_size=4"),
        ({"model_dim": 7}, "sinusoidal positions need an even model_dim, got model_dim=7"),
        ({"num_layers": 0}, "needs layers in its encoder or in its decoder"),
        ({"positions": "rotary"}, "positions: input should be 'sinusoidal', 'learned' or 'none', got 'rotary'"),
        ({"kernel_sise": 3}, "unknown setting kernel_sise; did you mean kernel_size?"),
    ],
)
def test_invalid_settings_are_errors_of_one_line(settings: dict, words: str):
    with pytest.raises(ConfigError) as error:
        ConvolutionalConfig.read(settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sequence_longer_than_learned_positions_is_an_error():
    model = make({"positions": "learned", "context_length": 5})
    source = torch.zeros(1, 5, dtype=torch.long)
    model.encode(source)
    with pytest.raises(ConfigError, match=r"context_length=5.* 6 positions"):
        model.encode(torch.zeros(1, 6, dtype=torch.long))
    _, state = model.step(source, model.initial_state(model.encode(source)))
    with pytest.raises(ConfigError, match=r"context_length=5.* 6 positions"):
        model.step(source[:, :1], state)


def _stepped(model: Convolutional, state: DecoderState, target: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    parts = []
    for piece in target.split(pieces, dim=1):
        scores, state = model.step(piece, state)
        parts.append(scores)
    return torch.cat(parts, dim=1)


def _seeded(config: ConvolutionalConfig) -> Convolutional:
    torch.manual_seed(5)
    return Convolutional(config, VOCAB)
