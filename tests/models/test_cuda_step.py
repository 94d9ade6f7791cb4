"""The step by Triton kernels against the model's own. On a CPU the kernels run in Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="the kernels of a GPU are written in Triton, which is not installed")

from regard.explanation.attention.recording import record_attention
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer.inference.cuda import FusedStep
from regard.models.transformer.states import StaticCache
from regard.nn.feedforward import FUSED_ACTIVATIONS
from regard.nn.inference import pack_weights
from regard.nn.kernels.decoding import (
    LinearWeights,
    NormWeights,
    fused_attend,
    fused_linear,
    fused_norm,
)

pytestmark = pytest.mark.slow  # where there is no GPU, an interpreter takes its time
VOCAB, CAPACITY = 37, 11
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLAIN = TransformerConfig(
    num_layers=2, model_dim=32, num_heads=2, feedforward_dim=48, dropout=0.0, context_length=600, block="pre-norm",
    encoder_layers=0,
)  # fmt: skip
KNOWN = [
    *({"positions": positions} for positions in ("sinusoidal", "learned", "rotary", "none")),
    {"block": "post-norm", "activation": "gelu"},
    {"norm": "rms", "bias": False, "positions": "rotary", "num_key_value_heads": 1, "activation": "swiglu"},
    {"query_key_norm": True, "num_key_value_heads": 1, "positions": "rotary", "activation": "squared-relu"},
    {"scale_embeddings": False, "tie_embeddings": False, "feedforward_dim": 0},
    {"similarity": "dot", "attention_temperature": 0.7},
    {"encoder_layers": 1, "block": "post-norm"},
    {"encoder_layers": 1, "query_key_norm": True, "num_key_value_heads": 1, "positions": "learned"},
]
UNUSUAL = [
    {"positions": "alibi"},
    {"similarity": "gaussian"},
    {"retrieval": "hard"},
    {"block": "parallel"},
    {"residual": False},
    {"value_projection": False},
    {"output_projection": False},
    {"norm": "none"},
    {"model_dim": 24},
]


@pytest.fixture(autouse=True)
def single_precision():
    """Kernels are not made for float64."""
    torch.set_default_dtype(torch.float32)


def make(settings: dict) -> Transformer:
    torch.manual_seed(3)
    model = Transformer(PLAIN.changed(**settings), VOCAB).eval().to(DEVICE)
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
    pack_weights(model)
    for module in model.modules():  # as they lie on a GPU
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.contiguous()
            if "packed" in vars(module):
                weight, bias = vars(module)["packed"]
                vars(module)["packed"] = weight.contiguous(), bias
    return model


def check_equal(
    model: Transformer, counts: list[int], fill_cache: Callable[..., StaticCache], capacity: int = CAPACITY
) -> None:
    tokens = torch.randint(VOCAB, (len(counts), capacity), device=DEVICE)
    expected_slots, slots = (fill_cache(model, counts, tokens, capacity) for _ in range(2))
    step = FusedStep.for_model(model)
    assert step is not None
    for place in range(2):
        new = tokens[:, place : place + 1]
        expected, _ = model.step(new, expected_slots)
        assert step.supports(new, slots)
        found = step.step(new, slots)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(slots.lengths, expected_slots.lengths)
    for cache, expected_cache in zip(slots.caches, expected_slots.caches, strict=True):
        torch.testing.assert_close(cache.keys, expected_cache.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(cache.values, expected_cache.values, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("counts", [[4], [3, 0, 10]], ids=str)
@pytest.mark.parametrize("switch", KNOWN, ids=str)
def test_the_fused_step_equals_the_step_of_the_model(switch: dict, counts: list[int], fill_cache):
    check_equal(make(switch), counts, fill_cache)


@torch.no_grad()
@pytest.mark.parametrize("counts", [[520], [3, 590]], ids=str)
def test_programs_that_split_a_long_cache_compute_the_same(counts: list[int], fill_cache):
    check_equal(make({"positions": "rotary", "num_layers": 1}), counts, fill_cache, capacity=600)


@torch.no_grad()
@pytest.mark.parametrize("switch", [KNOWN[0], KNOWN[5], KNOWN[9], KNOWN[10]], ids=str)
def test_hypotheses_of_a_beam_attend_to_their_ancestors(switch: dict):
    model, batch, width = make(switch), 2, 3
    source = torch.randint(VOCAB, (batch, 5), device=DEVICE)
    lengths = torch.tensor([5, 3], device=DEVICE)
    start = model.initial_state(None if model.encoder is None else model.encode(source, lengths), batch_size=batch)
    expected_branches, branches = (start.to_static_beams(width, CAPACITY) for _ in range(2))
    for each in (expected_branches, branches):
        each.reset(start)
    step = FusedStep.for_model(model)
    assert step is not None
    for _ in range(4):
        tokens = torch.randint(VOCAB, (batch * width, 1), device=DEVICE)
        expected, _ = model.step(tokens, expected_branches)
        found = step.step(tokens, branches)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        rows = torch.tensor([0, 0, 2, 5, 4, 4], device=DEVICE)
        expected_branches.reorder(rows)
        branches.reorder(rows)


def test_a_cache_beyond_the_learned_positions_is_not_supported():
    model = make({"positions": "learned", "context_length": 8})
    step, tokens = FusedStep.for_model(model), torch.zeros(1, 1, dtype=torch.long)
    assert step is not None
    assert step.supports(tokens, model.static_state(1, 8))
    assert not step.supports(tokens, model.static_state(1, 9))
    assert model.static_beam_state(model.initial_state(), 2, 8) is not None
    assert model.static_beam_state(model.initial_state(), 2, 9) is None


@pytest.mark.parametrize("switch", UNUSUAL, ids=str)
def test_unusual_settings_have_no_fused_step(switch: dict):
    assert FusedStep.for_model(make(switch)) is None


@torch.no_grad()
def test_a_watcher_is_called_with_the_weights():
    model = make({})
    model.backend = FusedStep.for_model(model)
    assert model.backend is not None
    with record_attention(model) as maps:
        model.step(torch.tensor([[3]], device=DEVICE), model.static_state(1, CAPACITY))
    assert len(maps) == 2


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("activation", [None, *FUSED_ACTIVATIONS])
@pytest.mark.parametrize("kind", [None, "layer", "rms"])
def test_a_product_with_its_norm_activation_and_residual(kind: str | None, activation, rows: int):
    torch.manual_seed(1)
    inputs, outputs = 80, 19
    made = outputs * (2 if activation == "swiglu" else 1)
    x, residual = torch.randn(rows, inputs, device=DEVICE), torch.randn(rows, outputs, device=DEVICE)
    weights = LinearWeights(torch.randn(made, inputs, device=DEVICE) / 9, torch.randn(made, device=DEVICE))
    gain, shift = torch.randn(inputs, device=DEVICE), torch.randn(inputs, device=DEVICE)
    before = None if kind is None else NormWeights(kind, gain, shift if kind == "layer" else None, 1e-5)
    normed = x
    if kind == "layer":
        normed = nn.functional.layer_norm(x, (inputs,), gain, shift, 1e-5)
    elif kind == "rms":
        normed = nn.functional.rms_norm(x, (inputs,), gain, 1e-5)
    hidden = nn.functional.linear(normed, *weights)
    if activation == "swiglu":
        gate, passed = hidden.chunk(2, dim=-1)
        hidden = nn.functional.silu(gate) * passed
    elif activation is not None:
        hidden = FUSED_ACTIVATIONS[activation](hidden)
    found = fused_linear(x, weights, norm=before, activation=activation, residual=residual)
    torch.testing.assert_close(found, residual + hidden, rtol=1e-4, atol=1e-4)


def test_a_norm_of_a_sum():
    x, delta, gain = (torch.randn(*shape, device=DEVICE) for shape in ((3, 20), (3, 20), (20,)))
    total, normed = fused_norm(x, delta, NormWeights("rms", gain, None, 1e-6))
    torch.testing.assert_close(total, x + delta)
    torch.testing.assert_close(normed, nn.functional.rms_norm(x + delta, (20,), gain, 1e-6))


def test_a_fully_masked_row_attends_to_nothing():
    keys = torch.randn(1, 1, 8, 16, device=DEVICE)
    mask = torch.zeros(1, 1, 1, 8, dtype=torch.bool, device=DEVICE)
    found = fused_attend(torch.randn(1, 16, device=DEVICE), keys, keys, num_heads=1, scale=1.0, mask=mask)
    assert torch.equal(found, torch.zeros_like(found))


def test_the_newest_key_is_normalized_and_rotated_before_it_is_stored():
    torch.manual_seed(2)
    heads, keys, values = torch.randn(1, 48), torch.zeros(1, 1, 4, 16), torch.zeros(1, 1, 4, 16)
    heads, keys, values = (part.to(DEVICE) for part in (heads, keys, values))
    gains, angle = torch.ones(16, device=DEVICE), torch.rand(4, 8, device=DEVICE)
    rotary = (torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1))
    place = torch.tensor([2], device=DEVICE)
    norms = (gains, gains, 1e-6)
    fused_attend(heads, keys, values, num_heads=1, scale=1.0, positions=place, norms=norms, rotary=rotary)
    plane = torch.view_as_complex(nn.functional.rms_norm(heads[0, 16:32], (16,)).view(2, 8).t().contiguous())
    turned = torch.view_as_real(plane * torch.polar(torch.ones(8, device=DEVICE), angle[2])).t().flatten()
    torch.testing.assert_close(keys[0, 0, 2], turned, rtol=1e-4, atol=1e-5)
    assert torch.equal(values[0, 0, 2], heads[0, 32:])
    assert not keys[0, 0, [0, 1, 3]].any()
