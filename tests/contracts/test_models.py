"""What every model must keep, over every switch of the Transformer."""

import pytest
import torch
from torch import nn

from regard.config import to_toml
from regard.models.presets import PRESETS
from regard.models.protocols import Decoder, Encoder, State
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.checkpoints import load_weights, read_tensors, weights_of, write_tensors

VOCAB, BATCH, SOURCE, TARGET = 31, 3, 7, 5
TINY = {"num_layers": 2, "model_dim": 20, "num_heads": 2, "feedforward_dim": 23, "dropout": 0.1, "context_length": 17}
SWITCHES = [
    *({"positions": p} for p in ("sinusoidal", "learned", "rotary", "relative", "alibi", "none")),
    *({"activation": a} for a in ("gelu", "squared-relu", "swiglu")),
    {"block": "pre-norm"},
    {"norm": "rms", "bias": False},
    {"num_key_value_heads": 1, "positions": "rotary"},
    {"tie_embeddings": False, "scale_embeddings": False},
    {"encoder_layers": 1, "decoder_layers": 3},
]


def make(switch: dict, **more: int) -> Transformer:
    torch.manual_seed(1)
    model = Transformer(TransformerConfig.read({**TINY, **switch, **more}), VOCAB)
    for parameter in model.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture(params=SWITCHES, ids=lambda switch: ",".join(f"{k}={v}" for k, v in switch.items()))
def switch(request: pytest.FixtureRequest) -> dict:
    return request.param


@pytest.fixture
def model(switch: dict) -> Transformer:
    return make(switch)


@pytest.fixture
def source() -> torch.Tensor:
    return torch.randint(VOCAB, (BATCH, SOURCE))


@pytest.fixture
def target() -> torch.Tensor:
    return torch.randint(VOCAB, (BATCH, TARGET))


LENGTHS = torch.tensor([7, 2, 5])


def test_it_follows_the_protocols(model: Transformer, source: torch.Tensor):
    assert isinstance(model, Encoder)
    assert isinstance(model, Decoder)
    assert isinstance(model.start(model.encode(source)), State)


def test_settings_survive_a_round_trip(model: Transformer):
    import tomllib

    text = to_toml(model.config.model_dump())
    assert TransformerConfig.read(tomllib.loads(text)) == model.config


def test_saved_weights_give_equal_scores(model: Transformer, switch: dict, source, target, tmp_path):
    write_tensors(tmp_path / "model.safetensors", weights_of(model), {})
    other = Transformer(model.config, VOCAB).eval()
    load_weights(other, read_tensors(tmp_path / "model.safetensors")[0])
    assert torch.equal(other(target, source, LENGTHS), model(target, source, LENGTHS))


def test_the_same_seed_gives_the_same_weights(model: Transformer):
    first, second = (weights_of(_seeded(model.config)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_parameter_gets_a_gradient(model: Transformer, source, target):
    model(target, source, LENGTHS).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # A position or distance that does not occur, and a token that is not there, have nothing to learn.
        assert parameter.grad.abs().sum() > 0, name


def test_padding_changes_nothing(model: Transformer, source, target):
    padded = model(target, source, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(target[row : row + 1], source[row : row + 1, :length])
        torch.testing.assert_close(padded[row : row + 1], alone)
    changed = source.clone()
    changed[1, 2:] = (changed[1, 2:] + 1) % VOCAB
    torch.testing.assert_close(model(target, changed, LENGTHS), padded)


def test_the_decoder_cannot_see_the_future(model: Transformer, source, target):
    edited = target.clone()
    edited[:, 3] = (edited[:, 3] + 1) % VOCAB
    before, after = model(target, source), model(edited, source)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_the_encoder_sees_everything(model: Transformer, source, target):
    edited = source.clone()
    edited[:, -1] = (edited[:, -1] + 1) % VOCAB
    assert (model.encode(edited).states != model.encode(source).states).any(-1).all()
    assert not torch.allclose(model(target, source)[:, 0], model(target, edited)[:, 0])


@pytest.mark.parametrize("pieces", [[1] * 5, [2, 3], [3, 1, 1]])
def test_step_by_step_equals_all_at_once(model: Transformer, source, target, pieces: list[int]):
    state = model.start(model.encode(source, LENGTHS))
    parts = []
    for piece in target.split(pieces, dim=1):
        scores, state = model.step(piece, state)
        parts.append(scores)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(target, source, LENGTHS))


def test_a_selected_state_goes_on_as_the_rows_would(model: Transformer, source, target):
    rows = torch.tensor([2, 0, 2])
    _, state = model.step(target[:, :3], model.start(model.encode(source, LENGTHS)))
    scores, _ = model.step(target[rows, 3:4], state.select(rows))
    torch.testing.assert_close(scores[:, 0], model(target, source, LENGTHS)[rows, 3])


def test_the_order_of_the_batch_does_not_matter(model: Transformer, source, target):
    order = torch.tensor([2, 0, 1])
    expected = model(target, source, LENGTHS)[order]
    torch.testing.assert_close(model(target[order], source[order], LENGTHS[order]), expected)


def test_dropout_only_while_training(model: Transformer, source, target):
    assert torch.equal(model(target, source), model(target, source))
    model.train()
    assert not torch.equal(model(target, source), model(target, source))


def test_tied_embeddings_are_one_matrix():
    model = make({})
    assert model.output is not None
    assert model.output.weight is model.embedding.weight
    assert "output.weight" not in weights_of(model)


def test_a_decoder_alone_is_a_causal_language_model(target):
    model = make({"encoder_layers": 0, "positions": "rotary"})
    assert model.encoder is None
    state, parts = model.start(batch_size=BATCH), []
    for token in target.split(1, dim=1):
        scores, state = model.step(token, state)
        parts.append(scores)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(target))


def test_an_encoder_alone_has_states_and_no_scores(source):
    model = make({"decoder_layers": 0})
    assert model.output is None
    assert model.encode(source, LENGTHS).states.shape == (BATCH, SOURCE, TINY["model_dim"])


@pytest.mark.parametrize(("name", "millions"), [("base", 65), ("big", 213)])
def test_presets_have_the_size_of_the_paper(name: str, millions: int):
    """Vaswani et al. (2017), table 3: 65 and 213 million, with a vocabulary of about 37,000."""
    config = TransformerConfig.read(PRESETS[name])
    with torch.device("meta"):
        count = sum(p.numel() for p in Transformer(config, 37_000).parameters())
    d, f = config.model_dim, config.feedforward_dim
    attention, feedforward, norm = 4 * (d * d + d), 2 * d * f + f + d, 2 * d
    encoder, decoder = attention + feedforward + 2 * norm, 2 * attention + feedforward + 3 * norm
    assert count == 37_000 * d + 6 * (encoder + decoder)
    assert count == pytest.approx(millions * 1e6, rel=0.03)


def _seeded(config: TransformerConfig) -> Transformer:
    torch.manual_seed(5)
    return Transformer(config, VOCAB)
