"""What every model must keep, over every family and every switch."""

from functools import cache
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from regard.models.convolutional import AddedPositions
from regard.models.families import AnyConfig, AnyModel, make_model
from regard.models.protocols import Decoder, Encoder, Memory, Slots, State
from regard.models.recurrent import RecurrentAttention
from regard.nn.blocks import BlockOrder
from regard.nn.feedforward import Activation
from regard.nn.positions import Positions
from regard.nn.recurrent import Cell
from regard.nn.similarity import SimilarityName
from regard.settings import to_toml
from regard.training.checkpoints import load_weights, read_tensors, weights_of, write_tensors
from regard.training.settings import RunSettings

VOCAB, BATCH, SOURCE, TARGET = 31, 3, 7, 5
TINY = {
    "transformer": {"num_heads": 2, "feedforward_dim": 23, "context_length": 17},
    "recurrent": {},
    "convolutional": {"kernel_size": 3, "context_length": 17},
}
COMMON = {"num_layers": 2, "model_dim": 20, "dropout": 0.1}
SIMPLIFIED = {
    "block": "parallel",
    "residual": False,
    "value_projection": False,
    "output_projection": False,
    "shaped_attention": True,
}
TRANSFORMER = [
    *({"positions": p} for p in get_args(Positions)),
    *({"activation": a} for a in get_args(Activation)),
    *({"similarity": s} for s in get_args(SimilarityName)),
    *({"block": b} for b in get_args(BlockOrder)),
    {"norm": "rms", "bias": False},
    {"norm": "none"},
    {"num_key_value_heads": 1, "positions": "rotary"},
    {"tie_embeddings": False, "scale_embeddings": False},
    {"encoder_layers": 1, "decoder_layers": 3},
    {"encoder_positions": "rotary", "decoder_positions": "shaw"},
    {"encoder_positions": "none", "decoder_positions": "learned", "positions": "alibi"},
    {"query_key_norm": True, "num_key_value_heads": 1, "positions": "rotary"},
    {"query_key_norm": True, "block": "pre-norm"},
    {"initialization": "gpt2"},
    {"attention_temperature": 0.3},
    {"attention_dropout": 0.3, "token_dropout": 0.2},
    {"retrieval": "hard"},
    {"residual": False},
    {"feedforward_dim": 0},
    {"value_projection": False},
    {"output_projection": False},
    {"shaped_attention": True},
    SIMPLIFIED,
    {**SIMPLIFIED, "norm": "none", "positions": "alibi"},
    {**SIMPLIFIED, "feedforward_dim": 0, "block": "pre-norm", "similarity": "gaussian"},
    {"block": "parallel", "residual": False, "norm": "rms", "bias": False, "activation": "swiglu"},
    {"block": "pre-norm", "retrieval": "hard", "similarity": "mahalanobis", "positions": "shaw"},
    {"shaped_attention": True, "num_key_value_heads": 1, "similarity": "latent", "positions": "relative"},
    {"num_key_value_heads": 1, "similarity": "additive", "attention_temperature": 0.3, "positions": "rotary"},
    {"num_key_value_heads": 1, "similarity": "bilinear", "attention_dropout": 0.3, "positions": "alibi"},
]


RECURRENT = [
    *({"cell": cell, "attention": attention} for cell in get_args(Cell) for attention in get_args(RecurrentAttention)),
    *({"attention": "luong", "similarity": s} for s in get_args(SimilarityName)),
    {"cell": "rnn", "activation": "relu"},
    {"bidirectional": False},
    {"bidirectional": False, "attention": "bahdanau"},
    {"initial_state": "learned"},
    {"attention": "luong", "input_feeding": True},
    {"attention": "luong", "input_feeding": True, "retrieval": "hard", "similarity": "gaussian"},
    {"attention": "bahdanau", "attention_temperature": 0.3},
    {"attention": "luong", "retrieval": "hard"},
    {"encoder_layers": 1, "decoder_layers": 3, "attention": "luong"},
    {"encoder_layers": 3, "decoder_layers": 1},
    {"tie_embeddings": False},
    {"dropout": 0.0, "input_dropout": 0.3, "layer_dropout": 0.2, "token_dropout": 0.1},
    {"locked_dropout": True, "attention": "luong"},
    *({"cell": cell, "weight_dropout": 0.5, "dropout": 0.0} for cell in get_args(Cell)),
]
CONVOLUTIONAL = [
    *({"positions": p} for p in get_args(AddedPositions)),
    *({"similarity": s} for s in get_args(SimilarityName)),
    {"kernel_size": 5},
    {"dilation_growth": 2},
    {"retrieval": "hard"},
    {"attention_temperature": 0.3},
    {"encoder_layers": 1, "decoder_layers": 3},
    {"tie_embeddings": False},
]
SWITCHES = [
    *({"family": "transformer", **switch} for switch in TRANSFORMER),
    *({"family": "recurrent", **switch} for switch in RECURRENT),
    *({"family": "convolutional", **switch} for switch in CONVOLUTIONAL),
]
LENGTHS = torch.tensor([7, 2, 5])
TOKENS = torch.randint(VOCAB, (BATCH, SOURCE + TARGET), generator=torch.Generator().manual_seed(0))


def make_config(switch: dict, **more: object) -> AnyConfig:
    values = {**COMMON, **TINY[switch["family"]], **switch, **more}
    return RunSettings.read({"model": values}).model


def make(switch: dict, **more: object) -> AnyModel:
    torch.manual_seed(1)
    model = make_model(make_config(switch, **more), VOCAB)
    for name, parameter in model.named_parameters():  # initial biases are zero, and zeros hide mistakes
        # Gains near zero would hide them too: behind a few norms of gain 0.3 all positions are equal to ten digits.
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
    return model.eval()


def named(switch: dict) -> str:
    return ",".join(str(v) if k == "family" else f"{k}={v}" for k, v in switch.items())


BY_NAME = {named(switch): switch for switch in SWITCHES}


@pytest.fixture(params=SWITCHES, ids=named)
def switch(request: pytest.FixtureRequest) -> dict:
    return request.param


@cache
def made(name: str) -> tuple[AnyModel, Memory, Tensor]:
    """The model of a switch, what it has read, and its scores: all tests share them, and none changes them."""
    model = make(BY_NAME[name])
    return model, model.encode(TOKENS[:, :SOURCE], LENGTHS), model(TOKENS[:, SOURCE:], TOKENS[:, :SOURCE], LENGTHS)


@pytest.fixture
def model(switch: dict) -> AnyModel:
    return made(named(switch))[0]


@pytest.fixture
def memory(switch: dict) -> Memory:
    return made(named(switch))[1]


@pytest.fixture
def scores(switch: dict) -> Tensor:
    """Of `target` behind `source`, of which each row has a length of its own."""
    return made(named(switch))[2]


@pytest.fixture
def source() -> Tensor:
    return TOKENS[:, :SOURCE].clone()


@pytest.fixture
def target() -> Tensor:
    return TOKENS[:, SOURCE:].clone()


def test_it_follows_the_protocols(model: AnyModel, memory: Memory):
    assert isinstance(model, Encoder)
    assert isinstance(model, Decoder)
    assert isinstance(model.start(memory), State)


def test_settings_survive_a_round_trip(model: AnyModel):
    import tomllib

    text = to_toml(model.config.model_dump())
    assert RunSettings.read({"model": tomllib.loads(text)}).model == model.config


def test_saved_weights_give_equal_scores(model: AnyModel, scores: Tensor, source, target, tmp_path):
    write_tensors(tmp_path / "model.safetensors", weights_of(model), {})
    other = make_model(model.config, VOCAB).eval()
    load_weights(other, read_tensors(tmp_path / "model.safetensors")[0])
    assert torch.equal(other(target, source, LENGTHS), scores)


def test_the_same_seed_gives_the_same_weights(model: AnyModel):
    first, second = (weights_of(_seeded(model.config)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_parameter_gets_a_gradient(switch: dict, source, target):
    model = make(switch)
    model(target, source, LENGTHS).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # A position or distance that does not occur, and a token that is not there, have nothing to learn.
        assert parameter.grad.abs().sum() > 0, name


def test_padding_changes_nothing(model: AnyModel, scores: Tensor, source, target):
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(target[row : row + 1], source[row : row + 1, :length])
        torch.testing.assert_close(scores[row : row + 1], alone)
    changed = source.clone()
    changed[1, 2:] = (changed[1, 2:] + 1) % VOCAB
    torch.testing.assert_close(model(target, changed, LENGTHS), scores)


def test_the_decoder_cannot_see_the_future(model: AnyModel, scores: Tensor, source, target):
    edited = target.clone()
    edited[:, 3] = (edited[:, 3] + 1) % VOCAB
    after = model(edited, source, LENGTHS)
    assert torch.equal(scores[:, :3], after[:, :3])
    assert not torch.allclose(scores[:, 3:], after[:, 3:])


def test_the_encoder_sees_what_it_may_and_the_decoder_all_of_it(model: AnyModel, switch: dict, source, target):
    edited = source.clone()
    edited[:, -1] = (edited[:, -1] + 1) % VOCAB
    has_changed = (model.encode(edited).states != model.encode(source).states).any(-1)
    assert has_changed[:, -1].all()
    if switch["family"] == "transformer" and switch.get("retrieval") == "hard":
        assert has_changed[:, :-1].any()  # a head takes one position and leaves the others: some meet the edited one
    elif switch["family"] != "convolutional" and switch.get("bidirectional", True):  # windows end, and so do directions
        assert has_changed.all()
    assert not torch.allclose(model(target, source)[:, 0], model(target, edited)[:, 0])


@pytest.mark.parametrize("pieces", [[1] * 5, [2, 3], [3, 1, 1]])
def test_step_by_step_equals_all_at_once(model: AnyModel, memory: Memory, scores: Tensor, target, pieces: list[int]):
    state, parts = model.start(memory), []
    for piece in target.split(pieces, dim=1):
        part, state = model.step(piece, state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), scores)


def test_a_selected_state_goes_on_as_the_rows_would(model: AnyModel, memory: Memory, scores: Tensor, target):
    rows = torch.tensor([2, 0, 2])
    _, state = model.step(target[:, :3], model.start(memory))
    found, _ = model.step(target[rows, 3:4], state.select(rows))
    torch.testing.assert_close(found[:, 0], scores[rows, 3])


def test_rows_of_slots_stand_where_they_were_put(model: AnyModel, scores: Tensor, source, target):
    """Three rows with 4, 1 and 3 tokens behind them go on side by side, beside a slot that nobody uses."""
    slots = model.slots(BATCH + 1, 11, source_length=SOURCE + 2)
    assert isinstance(slots, Slots)
    places, begun = [3, 0, 2], [3, 1, 2]
    for slot, row, count in zip(places, range(BATCH), begun, strict=True):
        memory = model.encode(source[row : row + 1, : LENGTHS[row]])
        _, state = model.step(target[row : row + 1, :count], model.start(memory))
        slots.put(slot, state)
    for more in range(2):
        tokens = torch.zeros(BATCH + 1, 1, dtype=torch.long)
        for slot, row, count in zip(places, range(BATCH), begun, strict=True):
            tokens[slot] = target[row, count + more]
        found, slots = model.step(tokens, slots)
        for slot, row, count in zip(places, range(BATCH), begun, strict=True):
            torch.testing.assert_close(found[slot, 0], scores[row, count + more])


def test_reordered_slots_go_on_as_the_rows_would(model: AnyModel, source, target):
    slots = model.slots(2, 11, source_length=SOURCE)
    for slot in range(2):
        _, state = model.step(target[slot : slot + 1, :3], model.start(model.encode(source[:1])))
        slots.put(slot, state)
    slots.reorder(torch.tensor([1, 1]))
    scores, _ = model.step(target[:2, 3:4], slots)
    rows = torch.cat([target[[1, 1], :3], target[:2, 3:4]], dim=1)
    torch.testing.assert_close(scores[:, 0], model(rows, source[[0, 0]])[:, 3])


def test_the_order_of_the_batch_does_not_matter(model: AnyModel, scores: Tensor, source, target):
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(model(target[order], source[order], LENGTHS[order]), scores[order])


def test_dropout_only_while_training(switch: dict, scores: Tensor, source, target):
    model = make(switch)
    assert torch.equal(model(target, source, LENGTHS), scores)
    model.train()
    assert not torch.equal(model(target, source), model(target, source))


@pytest.mark.parametrize("family", TINY)
def test_tied_embeddings_are_one_matrix(family: str):
    model = make({"family": family})
    assert model.output is not None
    assert model.output.weight is model.embedding.weight
    assert "output.weight" not in weights_of(model)


ALONE = [
    {"family": "transformer", "positions": "rotary"},
    *({"family": "recurrent", "bidirectional": False, "cell": cell} for cell in get_args(Cell)),
    {"family": "recurrent", "bidirectional": False, "initial_state": "learned"},
    {"family": "recurrent", "bidirectional": False, "hidden_dim": 23},
    {"family": "convolutional"},
]


@pytest.mark.parametrize("switch", ALONE, ids=named)
def test_a_decoder_alone_is_a_causal_language_model(target, switch: dict):
    model = make(switch, encoder_layers=0)
    assert model.encoder is None
    state, parts = model.start(batch_size=BATCH), []
    for token in target.split(1, dim=1):
        scores, state = model.step(token, state)
        parts.append(scores)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(target))


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1], [3, 4, 4, 4, 4], [7, 7, 7, 7, 7]])


@pytest.mark.parametrize("positions", get_args(Positions))
def test_documents_that_share_a_row_do_not_see_one_another(target, positions: str):
    model = make({"family": "transformer", "positions": positions}, encoder_layers=0)
    together = model.scores(model.states(target, documents=DOCUMENTS))
    for row, numbers in enumerate(DOCUMENTS.tolist()):
        for number in sorted(set(numbers)):
            places = [place for place, other in enumerate(numbers) if other == number]
            torch.testing.assert_close(together[row, places], model(target[row : row + 1, places])[0])


@pytest.mark.parametrize("family", TINY)
def test_an_encoder_alone_has_states_and_no_scores(source, family: str):
    model = make({"family": family}, decoder_layers=0)
    assert model.output is None
    assert model.encode(source, LENGTHS).states.shape == (BATCH, SOURCE, COMMON["model_dim"])


def _seeded(config: AnyConfig) -> AnyModel:
    torch.manual_seed(5)
    return make_model(config, VOCAB)
