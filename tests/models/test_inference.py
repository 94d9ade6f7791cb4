"""Inference: weights that are packed, cast or quantized, and the step on a CPU, against the model itself."""

import copy
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.explanation.attention.recording import record_attention
from regard.generation.beam import BeamSearch
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.models.convolutional import ConvolutionalConfig
from regard.models.family import ModelConfig, build_model, read_model_config
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer.inference.cpu import PackedStep
from regard.models.transformer.states import StaticCache
from regard.nn.attention import MultiHeadAttention
from regard.nn.feedforward import Activation
from regard.nn.inference import Int8Linear, convert_to_int8, pack_weights, prepare_for_inference
from regard.nn.kv_cache import LinearCache

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
    {"attention": "window", "window": 4, "positions": "rotary", "num_key_value_heads": 1},
    {"attention": ["strided", "full"], "window": 2, "stride": 3, "num_global_tokens": 2},
    {"attention": ["linear", "window"], "window": 3, "positions": "rotary", "num_key_value_heads": 1, "bias": False},
    {"attention": "linear", "query_key_norm": True, "positions": "learned", "block": "post-norm"},
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
FAMILIES: list[ModelConfig] = [
    PLAIN,
    DECODER.changed(activation="swiglu", positions="rotary", num_key_value_heads=1),
    RecurrentConfig(num_layers=2, model_dim=10, attention="luong", dropout=0.0),
    ConvolutionalConfig(num_layers=2, model_dim=10, kernel_size=3, dropout=0.0),
]


def make(config: ModelConfig) -> Any:
    torch.manual_seed(3)
    model = build_model(config, VOCAB).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
    return model


def logits_of(model: Any) -> torch.Tensor:
    rows = torch.arange(15).view(3, 5).to(torch.long)
    return model(rows, None if model.encoder is None else rows + 1)


@pytest.fixture(params=FAMILIES, ids=lambda config: f"{config.family} {config.encoder_depth}+{config.decoder_depth}")
def model(request: pytest.FixtureRequest) -> Any:
    return make(request.param)


@torch.no_grad()
def test_packing_weights_changes_no_logit(model):
    before, names = logits_of(model), list(model.state_dict())
    pack_weights(model)
    torch.testing.assert_close(logits_of(model), before)
    assert list(model.state_dict()) == names


@torch.no_grad()
def test_a_prepared_model_has_one_dtype_and_no_gradients_and_the_model_stays_as_it_is(model):
    model.train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        made = prepare_for_inference(model, precision)
        assert {weight.dtype for weight in made.state_dict().values()} == {dtype}
        assert not any(weight.requires_grad for weight in made.parameters())
        assert not made.training
        assert logits_of(made).dtype == dtype
        assert made.initial_state(None if made.encoder is None else made.encode(torch.tensor([[3]]))) is not None
        assert made.output is not None
        assert made.output.weight is made.embedding.weight
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@torch.no_grad()
def test_precision_changes_logits_by_rounding_only(model):
    expected = logits_of(model)
    # Eight bits of mantissa, over a few layers.
    for precision, tolerance in (("float32", 1e-4), ("bfloat16", 0.1)):
        found = logits_of(prepare_for_inference(model, precision)).to(expected.dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@torch.no_grad()
def test_the_projections_of_an_attention_are_one_matrix_that_follows_its_parts():
    model = make(DECODER)
    made = prepare_for_inference(model, "float32")
    attention = next(module for module in made.modules() if isinstance(module, MultiHeadAttention))
    weight, bias = vars(attention.query)["packed"]
    parts = [attention.query, attention.key, attention.value]
    assert torch.equal(weight, torch.cat([part.weight for part in parts]))
    assert torch.equal(bias, torch.cat([part.bias for part in parts]))
    made.load_state_dict({name: 2 * value for name, value in made.state_dict().items()})
    assert torch.equal(weight, torch.cat([part.weight for part in parts]))


@torch.no_grad()
@pytest.mark.parametrize("is_packed", [False, True], ids=["unpacked", "packed"])
@pytest.mark.parametrize("counts", [[4], [2, 2, 2], [3, 0, 5], [9, 10, 11]], ids=str)
@pytest.mark.parametrize("switch", KNOWN, ids=str)
def test_the_packed_step_equals_the_step_of_the_model(
    switch: dict, counts: list[int], is_packed: bool, fill_cache: Callable[..., StaticCache]
):
    model = make(DECODER.changed(**switch))
    assert isinstance(model, Transformer)
    if is_packed:
        pack_weights(model)
    tokens = torch.randint(VOCAB, (len(counts), 11))
    slots = fill_cache(model, counts, tokens, CAPACITY)
    expected_slots = copy.deepcopy(slots)
    step = PackedStep.for_model(model)
    assert step is not None
    for place in range(2):
        new = tokens[:, place : place + 1]
        expected, _ = model.step(new, expected_slots)
        assert step.supports(new, slots)
        found = step.step(new, slots)
        torch.testing.assert_close(found, expected)
    assert torch.equal(slots.lengths, expected_slots.lengths)
    for cache, expected_cache in zip(slots.caches, expected_slots.caches, strict=True):
        names = ("sums", "totals") if isinstance(cache, LinearCache) else ("keys", "values")
        for name in names:
            torch.testing.assert_close(getattr(cache, name), getattr(expected_cache, name))


@pytest.mark.parametrize("switch", UNUSUAL, ids=str)
def test_unusual_settings_have_no_packed_step(switch: dict):
    model = make(DECODER.changed(**switch))
    assert PackedStep.for_model(model) is None
    assert model.for_inference().backend is None


@torch.no_grad()
def test_other_states_and_several_tokens_are_left_to_the_model():
    model = make(DECODER)
    fast, tokens = model.for_inference(), torch.tensor([[3, 4]])
    assert fast.backend is not None
    assert not fast.backend.supports(tokens, fast.static_state(1, CAPACITY))
    assert not fast.backend.supports(tokens[:, :1], fast.initial_state())
    torch.testing.assert_close(
        fast.step(tokens, fast.static_state(1, CAPACITY))[0], model.step(tokens, model.static_state(1, CAPACITY))[0]
    )


def test_a_model_for_inference_shares_its_weights_and_the_model_keeps_its_own_step():
    model = make(DECODER)
    fast = model.for_inference()
    assert [id(weight) for weight in fast.parameters()] == [id(weight) for weight in model.parameters()]
    assert fast.backend is not None
    assert model.backend is None


@torch.no_grad()
def test_a_watcher_is_called_with_the_weights():
    model = prepare_for_inference(make(DECODER), "float32").for_inference()
    with record_attention(model) as maps:
        model.step(torch.tensor([[3]]), model.static_state(1, CAPACITY))
    assert len(maps) == 2


@torch.no_grad()
def test_layers_that_are_not_plain_are_called_as_they_are():
    model = make(DECODER.changed(activation="swiglu"))
    fast = model.for_inference(quantization="int8")
    assert fast.backend is not None
    tokens = torch.tensor([[3], [5]])
    plain = prepare_for_inference(model, "float32", quantization="int8")
    expected, _ = plain.step(tokens, plain.static_state(2, CAPACITY))
    torch.testing.assert_close(fast.step(tokens, fast.static_state(2, CAPACITY))[0], expected)


def test_an_engine_generates_the_same_with_packed_weights(model):
    source = None if model.encoder is None else [3, 4, 5]
    requests = [Request([3] * (1 + number % 4), limit=9, seed=number, source=source) for number in range(5)]
    config = GenerationConfig(temperature=1.2)
    expected = Engine(model, config, end=2).run(requests)
    pack_weights(model)
    assert Engine(model, config, end=2, num_slots=3).run(requests) == expected


@torch.no_grad()
def test_a_layer_errs_by_no_more_than_rounding_does():
    """An input errs by half a step of its range, a weight by half a step of its row: so much can a sum of products."""
    linear = nn.Linear(61, 37)
    x = torch.randn(2, 7, 61)
    steps = linear.weight.abs().amax(dim=1) / 127
    input_step = (x.max() - x.min()) / 127
    at_most = input_step / 2 * linear.weight.abs().sum(1) + steps / 2 * (x.abs() + input_step / 2).sum(-1, keepdim=True)
    found = Int8Linear(linear)(x)
    assert found.dtype == x.dtype
    assert ((found - linear(x)).abs() <= at_most + 1e-5).all()


@torch.no_grad()
def test_a_row_of_large_weights_leaves_the_others_alone():
    linear = nn.Linear(61, 37)
    x = torch.randn(7, 61)
    before = Int8Linear(linear)(x)
    linear.weight[3] *= 1000.0
    after = Int8Linear(linear)(x)
    others = [row for row in range(37) if row != 3]
    assert torch.equal(after[:, others], before[:, others])


QUANTIZED = [
    {"family": "transformer", "num_heads": 3, "feedforward_dim": 53},
    {"family": "transformer", "num_heads": 3, "feedforward_dim": 53, "tie_embeddings": False, "activation": "swiglu"},
    {"family": "recurrent", "attention": "luong"},
    {"family": "convolutional", "kernel_size": 3},
]


@torch.no_grad()
@pytest.mark.parametrize("values", QUANTIZED, ids=str)
def test_logits_of_quantized_weights_are_close_and_the_model_stays_as_it_is(values: dict):
    """Within 7 % of their spread: inputs of 7 bits err by about 1 % in each of some ten consecutive layers."""
    torch.manual_seed(3)
    config = read_model_config({"num_layers": 2, "model_dim": 42, "dropout": 0.0, **values})
    model = build_model(config, 97).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fast = model.for_inference(quantization="int8")
    source, target = torch.randint(97, (5, 7)), torch.randint(97, (5, 11))
    lengths = torch.tensor([7, 3, 5, 7, 1])
    expected, found = model(target, source, lengths), fast(target, source, lengths).double()
    assert not torch.equal(found, expected)
    assert (found - expected).std() < 0.07 * expected.std()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(type(module) is nn.Linear for module in fast.modules())
    torch.testing.assert_close(fast.embedding.weight.double(), model.embedding.weight, rtol=0, atol=1e-6)  # float32


@torch.no_grad()
def test_beams_of_quantized_weights_are_mostly_the_same():
    """Where hypotheses are far apart, as in a trained model; where they are not, rounding decides."""
    config = TransformerConfig(num_layers=1, model_dim=10, num_heads=1, feedforward_dim=11, positions="rotary")
    model = Transformer(config, 97).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    source, start, limits = torch.randint(97, (40, 7)), torch.full((40, 1), 1), [9] * 40
    outputs = []
    for quantization in (None, "int8"):
        search = BeamSearch(model, end=2, config=GenerationConfig(beam_size=3, quantization=quantization))
        state = search.model.initial_state(search.model.encode(source))
        outputs.append([hypotheses[0].tokens[:4] for hypotheses in search.search(state, start, limits)])
    assert sum(one == other for one, other in zip(*outputs, strict=True)) >= 20


def test_int8_products_are_for_a_cpu():
    with pytest.raises(ConfigError, match="on a CPU, got a model on meta"):
        convert_to_int8(nn.Sequential(nn.Linear(3, 5, device="meta")))
