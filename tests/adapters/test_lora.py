"""LoRA: beside the layers it adapts, the fast product beside the plain one, and every setting."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.adapters.lora import (
    LoraConfig,
    LoRALinear,
    LowRankUpdate,
    adapted_layers,
    add_lora,
    load_lora,
    lora_tensors,
    merge_lora,
    require_lora_settings,
)
from regard.adapters.quantized import QuantizedLinear
from regard.errors import CheckpointError, ConfigError
from regard.models.family import build_model
from regard.models.protocols import Decoder
from regard.models.transformer import Transformer, TransformerConfig

VOCAB, INPUT, OUTPUT, RANK = 31, 67, 29, 3
FEW, MANY = 2, 53
"""Rows for which the correction is added to the product, and to the matrix."""
KINDS: list[dict[str, Any]] = [
    {},
    {"rank_stabilized": True},
    {"dora": True},
    {"bits": 8},
    {"bits": 4},
    {"bits": 4, "dora": True, "rank_stabilized": True},
]


def make_body(**settings: Any) -> Decoder:
    values = {"num_layers": 2, "model_dim": 22, "num_heads": 2, "feedforward_dim": 23, "dropout": 0.0, **settings}
    model = build_model(TransformerConfig(**values), VOCAB)
    return filled(model)


def filled(model: Any) -> Any:
    for parameter in model.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.3)
    return model


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of the adapter, layer by layer."""
    return [parameter for layer in adapted_layers(model).values() for parameter in layer.parts().values()]


def shaken(model: nn.Module) -> None:
    """Give an adapter random weights, as if it were trained."""
    for parameter in trainable(model):
        parameter.data.add_(torch.randn_like(parameter) * 0.3)


def scores_of(model: Decoder) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    source, target = (torch.randint(VOCAB, (3, time), generator=generator) for time in (7, 5))
    return model(target, source, torch.tensor([7, 2, 5]))


def make_layer(
    num_inputs: int = INPUT,
    num_outputs: int = OUTPUT,
    *,
    bits: Any = None,
    dora: bool = False,
    dropout: float = 0.0,
    bias: bool = True,
) -> LoRALinear:
    linear = filled(nn.Linear(num_inputs, num_outputs, bias=bias))
    base = linear if bits is None else QuantizedLinear(linear, bits=bits)
    layer = LoRALinear(base, rank=RANK, scale=1.7, dropout=dropout, has_magnitude=dora)
    for parameter in layer.parts().values():
        nn.init.normal_(parameter)
    return layer


@pytest.fixture(params=KINDS, ids=str)
def config(request: pytest.FixtureRequest) -> LoraConfig:
    return LoraConfig(rank=RANK, alpha=5.0, **request.param)


def test_an_untrained_adapter_changes_nothing(config: LoraConfig):
    model = make_body()
    if config.bits is not None:  # fewer bits change the model by themselves
        add_lora(model, config)
        merge_lora(model)
        config = config.changed(bits=None)
    before = scores_of(model)
    add_lora(model, config)
    torch.testing.assert_close(scores_of(model), before)


def test_only_the_adapter_gets_gradients(config: LoraConfig):
    model = make_body()
    add_lora(model, config)
    shaken(model)
    scores_of(model).square().sum().backward()
    learned = {id(parameter) for parameter in trainable(model)}
    for name, parameter in model.named_parameters():
        if id(parameter) in learned:
            assert parameter.grad is not None, name
            assert (parameter.grad != 0).any(), name
        else:
            assert parameter.grad is None, name
            assert not parameter.requires_grad, name


def test_merged_equals_unmerged(config: LoraConfig):
    model = make_body()
    add_lora(model, config)
    shaken(model)
    expected = scores_of(model)
    merge_lora(model)
    torch.testing.assert_close(scores_of(model), expected)
    assert not any(isinstance(module, LoRALinear | QuantizedLinear) for module in model.modules())
    assert list(model.state_dict()) == list(make_body().state_dict())


def test_all_linear_layers_of_the_body_are_adapted_and_no_others():
    model = make_body()
    add_lora(model, LoraConfig())
    plain = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert {name for name in plain if not name.endswith(".base")} == {"output"}
    assert len(adapted_layers(model)) == 2 * 6 + 2 * 10


def test_an_adapter_travels_alone(config: LoraConfig):
    model, other = make_body(), make_body()
    other.load_state_dict(model.state_dict())
    add_lora(model, config)
    add_lora(other, config)
    shaken(model)
    tensors = {name: tensor.clone() for name, tensor in lora_tensors(model).items()}
    load_lora(other, tensors)
    assert torch.equal(scores_of(other), scores_of(model))
    assert sum(tensor.numel() for tensor in tensors.values()) < sum(p.numel() for p in make_body().parameters()) / 2


def test_a_correction_of_another_shape_or_place_is_refused():
    model = make_body()
    add_lora(model, LoraConfig(rank=RANK))
    tensors = lora_tensors(model)
    name = "encoder.blocks.0.attention.query.a"
    with pytest.raises(CheckpointError, match=r"query\.a has shape \(5, 22\), the model's is \(3, 22\)"):
        load_lora(model, {**tensors, name: torch.zeros(5, 22)})
    with pytest.raises(CheckpointError, match=r"missing \['encoder.blocks.0.attention.query.a'\]"):
        load_lora(model, {each: tensor for each, tensor in tensors.items() if each != name})


@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_the_fast_product_is_the_plain_one(bits: Any, dora: bool, bias: bool, dropout: float, rows: int, monkeypatch):
    monkeypatch.setattr("regard.adapters.lora._CHUNK", 3 * INPUT)  # several parts, the last one shorter
    layer = make_layer(bits=bits, dora=dora, bias=bias, dropout=dropout)
    x = torch.randn(rows, 5, INPUT, requires_grad=True)
    gradient = torch.randn(rows, 5, OUTPUT)

    def outcome(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(7)
        y = function(x)
        return [y, *torch.autograd.grad(y, [x, *layer.parts().values()], gradient)]

    for found, expected in zip(outcome(layer), outcome(layer.plain), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("dora", [False, True])
def test_a_gpu_computes_what_a_cpu_does(bits: Any, dora: bool):
    layer = make_layer(bits=bits, dora=dora)
    x = torch.randn(MANY, INPUT)
    torch.testing.assert_close(copy.deepcopy(layer).cuda()(x.cuda()).cpu(), layer(x))


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("rows", [2, 13])
def test_gradients_are_those_of_finite_differences(rows: int, dora: bool):
    """All but those of A and B through the lengths of the rows, which DoRA treats as constants."""
    layer = make_layer(11, 7, dora=dora)
    x = torch.randn(rows, 11, requires_grad=True)
    if not dora:
        assert torch.autograd.gradcheck(lambda x, a, b: _called(layer, x, a=a, b=b), (x, layer.a, layer.b))
    else:
        magnitude = layer.magnitude
        assert magnitude is not None
        assert torch.autograd.gradcheck(lambda x, m: _called(layer, x, magnitude=m), (x, magnitude))


def _called(layer: LoRALinear, x: Tensor, **parts: Tensor) -> Tensor:
    return torch.func.functional_call(layer, parts, x)


def test_dora_gives_each_row_its_length():
    layer = make_layer(dora=True)
    lengths = layer.merged().weight.norm(dim=1)
    assert layer.magnitude is not None
    torch.testing.assert_close(lengths, layer.magnitude.detach().abs())


def test_a_row_of_zeros_is_no_division_by_zero():
    linear = filled(nn.Linear(INPUT, OUTPUT))
    linear.weight.data[3] = 0.0
    layer = LoRALinear(linear, rank=RANK, scale=1.7, has_magnitude=True)
    y = layer(torch.randn(MANY, INPUT))
    y.square().sum().backward()
    assert y.isfinite().all()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in layer.parts().values())


def test_the_input_of_the_frozen_layer_has_no_dropout():
    layer = make_layer(dropout=0.5)
    layer.b.data.zero_()
    x = torch.randn(MANY, INPUT)
    torch.testing.assert_close(layer(x), layer.base(x))


def test_dropout_is_right_on_average():
    layer = make_layer(dropout=0.25)
    x = torch.randn(1, INPUT)
    mean = layer(x.expand(200_000, -1)).mean(dim=0)
    expected = layer.eval()(x)[0]
    assert (mean - expected).abs().max() < 0.05 * expected.abs().mean()


def test_nothing_is_kept_for_the_gradients_but_the_input():
    """Not a matrix, not what the rank has narrowed, and what was dropped in a byte each."""
    layer = make_layer(bits=4, dropout=0.3)
    kept: list[Tensor] = []
    x = torch.randn(MANY, INPUT, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(x)
    own = {part.data_ptr() for part in layer.parts().values()} | {x.data_ptr()}
    assert {tensor.data_ptr() for tensor in kept} <= own


def test_a_layer_that_is_not_frozen_gets_its_gradients():
    layer = make_layer()
    layer.base.requires_grad_(True)
    layer(torch.randn(MANY, INPUT)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize("dora", [False, True])
def test_under_autocast_gradients_keep_the_precision_of_what_they_are_for(dora: bool):
    layer = make_layer(bits=4, dora=dora).float()
    x = torch.randn(MANY, INPUT, dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    expected = layer(x)
    assert (y - expected).norm() < 0.02 * expected.norm()
    assert x.grad is not None
    assert all(part.grad is not None and part.grad.dtype == torch.float32 for part in layer.parts().values())


def test_the_joined_matrix_of_a_correction():
    a, b, matrix = torch.randn(RANK, INPUT), torch.randn(OUTPUT, RANK), torch.randn(OUTPUT, INPUT)
    torch.testing.assert_close(LowRankUpdate(a, b, None, 0.7).merged_with(matrix), matrix + 0.7 * b @ a)


def test_an_adapter_learns_what_was_shifted():
    """A layer and its target differ by a matrix of the adapter's rank: that much can be learned, and exactly."""
    layer = LoRALinear(filled(nn.Linear(INPUT, OUTPUT)), rank=RANK, scale=1.0)
    target = layer.base.weight + torch.randn(OUTPUT, RANK) @ torch.randn(RANK, INPUT) / INPUT**0.5
    optimizer = torch.optim.LBFGS(layer.parts().values(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (layer(torch.eye(INPUT)) - layer.base.bias - target.T).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert closure() < 1e-6


EFFECTS: dict[str, Any] = {
    "rank": 5,
    "alpha": 3.0,
    "rank_stabilized": True,
    "dropout": 0.4,
    "dora": True,
    "targets": ["encoder.blocks.0.attention.query"],
    "bits": 4,
}


def test_every_setting_has_an_effect():
    """Each one changes what a model makes of its inputs, or what of it learns, from the same seed."""
    assert EFFECTS.keys() == LoraConfig.model_fields.keys()
    plain = _after_a_step({})
    for name, value in EFFECTS.items():
        changed = _after_a_step({name: value})
        assert changed.shape == plain.shape
        assert not torch.allclose(changed, plain), name


def _after_a_step(values: dict[str, Any]) -> Tensor:
    torch.manual_seed(3)
    model = make_body()
    torch.manual_seed(4)
    add_lora(model, LoraConfig(**{"rank": RANK, **values}))
    optimizer = torch.optim.SGD(trainable(model), lr=0.01)
    scores_of(model).square().sum().backward()
    optimizer.step()
    return scores_of(model.eval())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rank": 0}, "rank: input should be greater than or equal to 1, got 0"),
        ({"alpha": 0.0}, "alpha: input should be greater than 0, got 0.0"),
        ({"dropout": 1.0}, "dropout: input should be less than 1, got 1.0"),
        ({"bits": 3}, "bits: input should be 4 or 8, got 3"),
        ({"targets": []}, "targets"),
        ({"ranks": 4}, "unknown setting ranks; did you mean rank"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        LoraConfig.read(values)


def test_a_pattern_that_matches_nothing_is_an_error_that_lists_the_layers():
    with pytest.raises(ConfigError) as error:
        add_lora(make_body(), LoraConfig(targets=["*.attention.query", "*.attention.queries"]))
    assert str(error.value) == (
        "no linear layer matches '*.attention.queries'; the model has *.attention.query, *.attention.key, "
        "*.attention.value, *.attention.output, *.feedforward.input, *.feedforward.output, *.cross_attention.query, "
        "*.cross_attention.key, *.cross_attention.value, *.cross_attention.output, output"
    )


def test_of_many_kinds_of_layers_a_few_are_named():
    model = nn.ModuleDict({f"layer{number}": nn.Linear(2, 3) for number in range(20)})
    with pytest.raises(ConfigError, match=r"layer11 and 8 more$"):
        add_lora(model, LoraConfig(targets=["query"]))
    with pytest.raises(ConfigError, match="the model has none"):
        add_lora(nn.ReLU(), LoraConfig())


def test_shared_weights_are_refused():
    with pytest.raises(ConfigError, match=r"got output: embedding\.weight is output\.weight"):
        add_lora(make_body(), LoraConfig(targets=["output"]))
    add_lora(make_body(tie_embeddings=False), LoraConfig(targets=["output"]))


def test_settings_that_are_not_the_adapters_are_noticed():
    model = make_body()
    with pytest.raises(ConfigError, match="the model has no adapter"):
        require_lora_settings(model, LoraConfig())
    add_lora(model, LoraConfig(rank=RANK))
    require_lora_settings(model, LoraConfig(rank=RANK))
    for values in ({"rank": 5}, {"alpha": 3.0}, {"dropout": 0.1}, {"dora": True}, {"rank_stabilized": True}):
        with pytest.raises(ConfigError, match=r"got \(3, "):
            require_lora_settings(model, LoraConfig(**{"rank": RANK, **values}))


def test_a_model_is_adapted_once():
    model = make_body()
    add_lora(model, LoraConfig())
    with pytest.raises(ConfigError, match="adapted already"):
        add_lora(model, LoraConfig())


def test_a_refused_adapter_leaves_the_model_as_it_was():
    model = make_body()
    with pytest.raises(ConfigError):
        add_lora(model, LoraConfig(targets=["*blocks.*", "nothing"], bits=4))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules())


def test_an_adapted_decoder_step_by_step_equals_all_at_once(config: LoraConfig):
    model = make_body(encoder_layers=0, positions="rotary", model_dim=20)
    add_lora(model, config)
    shaken(model)
    model.eval()
    assert isinstance(model, Transformer)
    tokens = torch.randint(VOCAB, (3, 5))
    state, stepped = model.initial_state(batch_size=3), []
    for column in tokens.T:
        scores, state = model.step(column[:, None], state)
        stepped.append(scores)
    torch.testing.assert_close(torch.cat(stepped, dim=1), model(tokens))
