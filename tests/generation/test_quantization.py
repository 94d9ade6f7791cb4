"""Weights of 8 bits beside those of 32."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.generation.beam import beam_search
from regard.generation.config import GenerationConfig
from regard.generation.quantization import QuantizedLinear, quantized
from regard.models.families import AnyModel, make_model
from regard.models.transformer import Transformer
from regard.training.settings import RunSettings

VOCAB, START, END = 97, 1, 2
FAMILIES = [
    {"family": "transformer", "num_heads": 3, "feedforward_dim": 53},
    {"family": "transformer", "num_heads": 3, "feedforward_dim": 53, "tie_embeddings": False, "activation": "swiglu"},
    {"family": "recurrent", "attention": "luong"},
    {"family": "convolutional", "kernel_size": 3},
]


def make(values: dict) -> AnyModel:
    torch.manual_seed(3)
    config = RunSettings.read({"model": {"num_layers": 2, "model_dim": 42, "dropout": 0.0, **values}}).model
    return make_model(config, VOCAB).eval()


@pytest.fixture(params=FAMILIES, ids=str)
def model(request: pytest.FixtureRequest) -> AnyModel:
    return make(request.param)


@torch.no_grad()
def test_a_layer_errs_by_no_more_than_rounding_does():
    """An input errs by half a step of its range, a weight by half a step of its row: so much can a sum of products."""
    linear = nn.Linear(61, 37)
    x = torch.randn(2, 7, 61)
    steps = linear.weight.abs().amax(dim=1) / 127
    input_step = (x.max() - x.min()) / 127
    at_most = input_step / 2 * linear.weight.abs().sum(1) + steps / 2 * (x.abs() + input_step / 2).sum(-1, keepdim=True)
    found = QuantizedLinear(linear)(x)
    assert found.dtype == x.dtype
    assert ((found - linear(x)).abs() <= at_most + 1e-5).all()


@torch.no_grad()
def test_a_row_of_large_weights_leaves_the_others_alone():
    linear = nn.Linear(61, 37)
    x = torch.randn(7, 61)
    before = QuantizedLinear(linear)(x)
    linear.weight[3] *= 1000.0
    after = QuantizedLinear(linear)(x)
    others = [row for row in range(37) if row != 3]
    assert torch.equal(after[:, others], before[:, others])


@torch.no_grad()
def test_scores_stay_close(model: AnyModel):
    """Within 7 % of their spread: inputs of 7 bits err by about 1 % in each of some ten layers, one upon another."""
    source, target = torch.randint(VOCAB, (5, 7)), torch.randint(VOCAB, (5, 11))
    lengths = torch.tensor([7, 3, 5, 7, 1])
    expected, found = model(target, source, lengths), quantized(model)(target, source, lengths)
    assert not torch.equal(found, expected)
    assert (found - expected).std() < 0.07 * expected.std()


@torch.no_grad()
def test_beams_mostly_find_the_same(make_model: Callable[[int], Transformer]):
    """Where hypotheses lie far apart, as in a model that has learned something; where they do not, rounding decides."""
    model = make_model(VOCAB)
    source, start = torch.randint(VOCAB, (40, 7)), torch.full((40, 1), START)
    config = GenerationConfig(beam_size=3)
    outputs = [
        beam_search(some, some.start(some.encode(source)), start, end=END, limits=[9] * 40, config=config)
        for some in (model, quantized(model))
    ]
    same = sum(a[0].tokens[:4] == b[0].tokens[:4] for a, b in zip(*outputs, strict=True))
    assert same >= 20


def test_the_model_itself_stays_as_it_is(model: AnyModel):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = quantized(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(type(module) is nn.Linear for module in made.modules())
    assert torch.equal(made.embedding.weight, model.embedding.weight)


def test_only_a_cpu_has_such_products():
    with pytest.raises(ConfigError, match="for a CPU, got a model on meta"):
        quantized(nn.Linear(3, 5, device="meta"))
