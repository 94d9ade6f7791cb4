"""Models made ready for writing: the same numbers, laid out otherwise."""

import copy
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import nn

from regard.explanation.record import record_attention
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.generation.inference import DirectStep, lay_out, ready
from regard.generation.quantization import quantized
from regard.models.convolutional import ConvolutionalConfig
from regard.models.families import AnyConfig, AnyModel, make_model
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_states import TransformerSlots
from regard.nn.feedforward import Activation
from regard.nn.multihead import MultiHeadAttention

VOCAB, CAPACITY = 17, 11
PLAIN = TransformerConfig(num_layers=2, model_dim=12, num_heads=2, feedforward_dim=19, dropout=0.0, context_length=23)
DECODER = PLAIN.changed(encoder_layers=0, block="pre-norm")
KNOWN = [
    *({"positions": positions} for positions in ("sinusoidal", "learned", "rotary", "none")),
    *({"activation": activation} for activation in get_args(Activation)),
    {"block": "post-norm"},
    {"norm": "rms", "bias": False, "positions": "rotary", "num_key_value_heads": 1, "activation": "swiglu"},
    {"norm": "none", "feedforward_dim": 0},
    {"query_key_norm": True, "num_key_value_heads": 1, "positions": "rotary"},
    {"scale_embeddings": False, "tie_embeddings": False},
    {"similarity": "dot", "attention_temperature": 0.7},
    {"encoder_layers": 1, "block": "post-norm"},
    {"encoder_layers": 1, "query_key_norm": True, "num_key_value_heads": 1, "positions": "learned"},
]
UNUSUAL = [
    {"positions": "alibi"},
    {"positions": "relative"},
    {"positions": "shaw"},
    {"similarity": "gaussian"},
    {"retrieval": "hard"},
    {"block": "parallel"},
    {"residual": False},
    {"shaped_attention": True},
    {"value_projection": False},
    {"encoder_layers": 1, "similarity": "bilinear"},
]
FAMILIES: list[AnyConfig] = [
    PLAIN,
    DECODER.changed(activation="swiglu", positions="rotary", num_key_value_heads=1),
    RecurrentConfig(num_layers=2, model_dim=10, attention="luong", dropout=0.0),
    ConvolutionalConfig(num_layers=2, model_dim=10, kernel_size=3, dropout=0.0),
]


def make(config: AnyConfig) -> AnyModel:
    torch.manual_seed(3)
    model = make_model(config, VOCAB).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
    return model


def scores_of(model: AnyModel) -> torch.Tensor:
    rows = torch.arange(15).view(3, 5).to(torch.long)
    return model(rows, None if model.encoder is None else rows + 1)


@pytest.fixture(params=FAMILIES, ids=lambda config: f"{config.family} {config.encoder_depth}+{config.decoder_depth}")
def model(request: pytest.FixtureRequest) -> AnyModel:
    return make(request.param)


@torch.no_grad()
def test_laying_weights_out_changes_no_score(model: AnyModel):
    before, names = scores_of(model), list(model.state_dict())
    lay_out(model)
    torch.testing.assert_close(scores_of(model), before)
    assert list(model.state_dict()) == names


@torch.no_grad()
def test_a_ready_model_has_one_precision_and_no_gradients_and_leaves_the_model_alone(model: AnyModel):
    model.train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        made = ready(model, precision)
        assert {weight.dtype for weight in made.state_dict().values()} == {dtype}
        assert not any(weight.requires_grad for weight in made.parameters())
        assert not made.training
        assert scores_of(made).dtype == dtype
        assert made.start(None if made.encoder is None else made.encode(torch.tensor([[3]]))) is not None
        assert made.output is not None
        assert made.output.weight is made.embedding.weight
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@torch.no_grad()
def test_precision_changes_scores_by_rounding_only(model: AnyModel):
    expected = scores_of(model)
    # Eight bits of mantissa, over a few layers.
    for precision, tolerance in (("float32", 1e-4), ("bfloat16", 0.1)):
        found = scores_of(ready(model, precision)).to(expected.dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@torch.no_grad()
def test_the_projections_of_an_attention_are_one_matrix_that_follows_its_parts():
    model = make(DECODER)
    made = ready(model, "float32")
    attention = next(module for module in made.modules() if isinstance(module, MultiHeadAttention))
    weight, bias = vars(attention.query)["joined"]
    parts = [attention.query, attention.key, attention.value]
    assert torch.equal(weight, torch.cat([part.weight for part in parts]))
    assert torch.equal(bias, torch.cat([part.bias for part in parts]))
    made.load_state_dict({name: 2 * value for name, value in made.state_dict().items()})
    assert torch.equal(weight, torch.cat([part.weight for part in parts]))


@torch.no_grad()
@pytest.mark.parametrize("is_ready", [False, True], ids=["as it is", "laid out"])
@pytest.mark.parametrize("counts", [[4], [2, 2, 2], [3, 0, 5], [9, 10, 11]], ids=str)
@pytest.mark.parametrize("switch", KNOWN, ids=str)
def test_the_direct_step_equals_the_step_of_the_model(
    switch: dict, counts: list[int], is_ready: bool, fill_slots: Callable[..., TransformerSlots]
):
    model = make(DECODER.changed(**switch))
    assert isinstance(model, Transformer)
    if is_ready:
        lay_out(model)
    tokens = torch.randint(VOCAB, (len(counts), 11))
    slots = fill_slots(model, counts, tokens, CAPACITY)
    expected_slots = copy.deepcopy(slots)
    step = DirectStep.of(model, CAPACITY)
    assert step is not None
    for place in range(2):
        new = tokens[:, place : place + 1]
        expected, _ = model.step(new, expected_slots)
        found, _ = step(new, slots)
        torch.testing.assert_close(found, expected)
    assert torch.equal(slots.lengths, expected_slots.lengths)
    for cache, expected_cache in zip(slots.caches, expected_slots.caches, strict=True):
        torch.testing.assert_close(cache.keys, expected_cache.keys)
        torch.testing.assert_close(cache.values, expected_cache.values)


@pytest.mark.parametrize("switch", UNUSUAL, ids=str)
def test_what_the_direct_step_does_not_know_it_leaves_to_the_model(switch: dict):
    assert DirectStep.of(make(DECODER.changed(**switch)), CAPACITY) is None


def test_other_families_have_no_direct_step():
    assert DirectStep.of(make(FAMILIES[2]), CAPACITY) is None


@torch.no_grad()
def test_a_watcher_still_sees_the_weights():
    model = ready(make(DECODER), "float32")
    step = DirectStep.of(model, CAPACITY)
    assert step is not None
    with record_attention(model) as maps:
        step(torch.tensor([[3]]), model.slots(1, CAPACITY))
    assert len(maps) == 2


@torch.no_grad()
def test_layers_that_are_not_plain_are_called_as_they_are():
    model = quantized(ready(make(DECODER.changed(activation="swiglu")), "float32"))
    step = DirectStep.of(model, CAPACITY)
    assert step is not None
    tokens = torch.tensor([[3], [5]])
    expected, _ = model.step(tokens, model.slots(2, CAPACITY))
    torch.testing.assert_close(step(tokens, model.slots(2, CAPACITY))[0], expected)


def test_an_engine_writes_the_same_with_a_model_that_is_laid_out(model: AnyModel):
    source = None if model.encoder is None else [3, 4, 5]
    requests = [Request([3] * (1 + number % 4), limit=9, seed=number, source=source) for number in range(5)]
    config = GenerationConfig(temperature=1.2)
    expected = Engine(model, config, end=2).run(requests)
    lay_out(model)
    assert Engine(model, config, end=2, num_slots=3).run(requests) == expected
