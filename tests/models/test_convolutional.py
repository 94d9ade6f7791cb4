"""What every model must keep, over every switch of the convolutional network; and that it is local."""

import tomllib

import pytest
import torch
from torch import nn

from regard.config import to_toml
from regard.errors import ConfigError
from regard.explanation.record import record_attention
from regard.models.convolutional import Convolutional, ConvolutionalConfig
from regard.models.protocols import Decoder, Encoder, State
from regard.training.checkpoints import load_weights, read_tensors, weights_of, write_tensors

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


def test_it_follows_the_protocols(model: Convolutional, source):
    assert isinstance(model, Encoder)
    assert isinstance(model, Decoder)
    assert isinstance(model.start(model.encode(source)), State)


def test_settings_survive_a_round_trip(model: Convolutional):
    assert ConvolutionalConfig.read(tomllib.loads(to_toml(model.config.model_dump()))) == model.config


def test_saved_weights_give_equal_scores(model: Convolutional, source, target, tmp_path):
    write_tensors(tmp_path / "model.safetensors", weights_of(model), {})
    other = Convolutional(model.config, VOCAB).eval()
    load_weights(other, read_tensors(tmp_path / "model.safetensors")[0])
    assert torch.equal(other(target, source, LENGTHS), model(target, source, LENGTHS))


def test_the_same_seed_gives_the_same_weights(model: Convolutional):
    first, second = (weights_of(_seeded(model.config)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_parameter_gets_a_gradient(model: Convolutional, source, target):
    model(target, source, LENGTHS).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_padding_changes_nothing(model: Convolutional, source, target):
    padded = model(target, source, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(target[row : row + 1], source[row : row + 1, :length])
        torch.testing.assert_close(padded[row : row + 1], alone)
    changed = source.clone()
    changed[1, 2:] = (changed[1, 2:] + 1) % VOCAB
    torch.testing.assert_close(model(target, changed, LENGTHS), padded)


def test_the_decoder_cannot_see_the_future(model: Convolutional, source, target):
    before, after = model(target, source), model(edited(target, 3), source)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_every_position_of_the_target_sees_the_whole_source(source, target):
    model = make({})
    for position in range(SOURCE):
        changed = model(target, edited(source, position)) != model(target, source)
        assert changed.any(-1).all()


@pytest.mark.parametrize("pieces", [[1] * 5, [2, 3], [3, 1, 1]])
def test_step_by_step_equals_all_at_once(model: Convolutional, source, target, pieces: list[int]):
    state = model.start(model.encode(source, LENGTHS))
    torch.testing.assert_close(_stepped(model, state, target, pieces), model(target, source, LENGTHS))


def test_a_selected_state_goes_on_as_the_rows_would(model: Convolutional, source, target):
    rows = torch.tensor([2, 0, 2])
    _, state = model.step(target[:, :3], model.start(model.encode(source, LENGTHS)))
    scores, _ = model.step(target[rows, 3:4], state.select(rows))
    torch.testing.assert_close(scores[:, 0], model(target, source, LENGTHS)[rows, 3])


def test_the_order_of_the_batch_does_not_matter(model: Convolutional, source, target):
    order = torch.tensor([2, 0, 1])
    expected = model(target, source, LENGTHS)[order]
    torch.testing.assert_close(model(target[order], source[order], LENGTHS[order]), expected)


def test_dropout_only_while_training(model: Convolutional, source, target):
    assert torch.equal(model(target, source), model(target, source))
    model.train()
    assert not torch.equal(model(target, source), model(target, source))


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


def test_tied_embeddings_are_one_matrix():
    model = make({})
    assert model.output is not None
    assert model.output.weight is model.embedding.weight
    assert "output.weight" not in weights_of(model)


@pytest.mark.parametrize("kernel_size", [2, 3])
def test_a_decoder_alone_is_a_causal_language_model(target, kernel_size: int):
    model = make({"encoder_layers": 0, "kernel_size": kernel_size})
    assert model.encoder is None
    torch.testing.assert_close(_stepped(model, model.start(batch_size=BATCH), target, [1, 3, 1]), model(target))


def test_an_encoder_alone_has_states_and_no_scores(source):
    model = make({"decoder_layers": 0})
    assert model.output is None
    assert model.encode(source, LENGTHS).states.shape == (BATCH, SOURCE, TINY["model_dim"])


@pytest.mark.parametrize(("growth", "reach"), [(1, 4), (2, 6)])
def test_a_decoder_sees_as_far_as_its_windows_reach(growth: int, reach: int):
    """Two layers of three places: each looks back on two positions, `growth` times as far apart in the second."""
    model = make({"encoder_layers": 0, "dilation_growth": growth})
    tokens = torch.randint(VOCAB, (BATCH, 13))
    last = model(tokens)[:, -1]
    for distance in range(13):
        changed = (model(edited(tokens, 12 - distance))[:, -1] != last).any(-1)
        assert changed.all() if distance <= reach else not changed.any(), distance


@pytest.mark.parametrize(("growth", "reach"), [(1, 2), (2, 3)])
def test_an_encoder_sees_as_far_to_either_side(growth: int, reach: int):
    model = make({"decoder_layers": 0, "dilation_growth": growth})
    tokens = torch.randint(VOCAB, (BATCH, 13))
    middle = model.encode(tokens).states[:, 6]
    for position in range(13):
        changed = (model.encode(edited(tokens, position)).states[:, 6] != middle).any(-1)
        assert changed.all() if abs(position - 6) <= reach else not changed.any(), position


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kernel_size": 4}, "odd kernel_size, got self.kernel_size=4 with encoder_layers=6"),
        ({"model_dim": 7}, "sinusoidal positions need an even model_dim, got self.model_dim=7"),
        ({"num_layers": 0}, "needs layers in its encoder or in its decoder"),
        ({"positions": "rotary"}, "positions: input should be 'sinusoidal', 'learned' or 'none', got 'rotary'"),
        ({"kernel_sise": 3}, "unknown setting kernel_sise; did you mean kernel_size?"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(settings: dict, words: str):
    with pytest.raises(ConfigError) as error:
        ConvolutionalConfig.read(settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sequence_longer_than_learned_positions_is_told():
    model = make({"positions": "learned", "context_length": 5})
    source = torch.zeros(1, 5, dtype=torch.long)
    model.encode(source)
    with pytest.raises(ConfigError, match=r"context_length=5.* 6 positions"):
        model.encode(torch.zeros(1, 6, dtype=torch.long))
    _, state = model.step(source, model.start(model.encode(source)))
    with pytest.raises(ConfigError, match=r"context_length=5.* 6 positions"):
        model.step(source[:, :1], state)


def _stepped(model: Convolutional, state: State, target: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    parts = []
    for piece in target.split(pieces, dim=1):
        scores, state = model.step(piece, state)
        parts.append(scores)
    return torch.cat(parts, dim=1)


def _seeded(config: ConvolutionalConfig) -> Convolutional:
    torch.manual_seed(5)
    return Convolutional(config, VOCAB)
