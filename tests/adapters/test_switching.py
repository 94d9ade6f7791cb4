"""Several adapters on one model."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.adapters.lora import LoraConfig, add_lora, load_lora, lora_tensors
from regard.adapters.switching import AdapterSet
from regard.errors import ConfigError

INPUT, HIDDEN, OUTPUT = 7, 13, 5
CONFIGS: dict[str, dict[str, Any]] = {
    "formal": {"rank": 3},
    "casual": {"rank": 2, "dora": True, "targets": ["blocks.0"]},
    "brief": {"rank": 5, "rank_stabilized": True, "dropout": 0.3, "targets": ["blocks.*", "head"]},
}


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(INPUT, HIDDEN), nn.Linear(HIDDEN, HIDDEN)])
        self.head = nn.Linear(HIDDEN, OUTPUT)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(x)


@pytest.fixture(params=[None, 8, 4])
def bits(request: pytest.FixtureRequest) -> Any:
    return request.param


def config_of(name: str, bits: Any = None) -> LoraConfig:
    return LoraConfig(**CONFIGS[name], bits=bits)


def trained(model: nn.Module, config: LoraConfig) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of `model` with an adapter of its own, and the adapter."""
    alone = copy.deepcopy(model)
    add_lora(alone, config)
    tensors = {name: torch.randn_like(tensor) for name, tensor in lora_tensors(alone).items()}
    load_lora(alone, tensors)
    return alone.eval(), tensors


@pytest.mark.parametrize("parked", [None, "cpu"])
def test_each_adapter_gives_exactly_its_outputs_and_none_the_base(bits: Any, parked: str | None):
    model = Stack().eval()
    alone = {name: trained(model, config_of(name, bits)) for name in CONFIGS}
    adapters = AdapterSet(model, bits=bits, parked=parked)
    x = torch.randn(11, INPUT)
    base = model(x)
    for name, (_, tensors) in alone.items():
        adapters.add(name, config_of(name, bits), tensors)
    assert adapters.current is None
    assert torch.equal(model(x), base)
    for name in ["formal", "casual", None, "brief", "formal", "formal", None, None, "casual"]:
        adapters.use(name)
        assert adapters.current == name
        if name is None:
            assert torch.equal(model(x), base)
        elif bits is None or name != "brief":
            assert torch.equal(model(x), alone[name][0](x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_is_not_in_use_waits_where_it_is_parked():
    model = Stack().cuda()
    adapters = AdapterSet(model, parked="cpu")
    for name in ("formal", "casual"):
        adapters.add(name, config_of(name))

    def places(name: str) -> set[str]:
        return {tensor.device.type for tensor in adapters.tensors(name).values()}

    adapters.use("formal")
    assert (places("formal"), places("casual")) == ({"cuda"}, {"cpu"})
    adapters.use("casual")
    assert (places("formal"), places("casual")) == ({"cpu"}, {"cuda"})
    model(torch.randn(11, INPUT, device="cuda"))


def test_off_is_the_very_model_that_there_was():
    model = Stack()
    before = copy.deepcopy(model)
    adapters = AdapterSet(model)
    adapters.add("formal", config_of("formal"))
    adapters.use("formal")
    adapters.use(None)
    assert str(model) == str(before)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.state_dict().items())


def test_adapters_share_the_weights_of_the_model():
    model = Stack()
    adapters = AdapterSet(model)
    weights = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    for name in CONFIGS:
        adapters.add(name, config_of(name))
        adapters.use(name)
    assert model.get_parameter("blocks.0.base.weight").data_ptr() == weights["blocks.0.weight"]


def test_one_of_several_can_be_trained():
    model = Stack()
    adapters = AdapterSet(model)
    adapters.add("formal", config_of("formal"))
    adapters.add("casual", config_of("casual"))
    adapters.use("casual")
    others = {name: tensor.clone() for name, tensor in adapters.tensors("formal").items()}
    before = {name: tensor.clone() for name, tensor in adapters.tensors("casual").items()}
    optimizer = torch.optim.SGD(adapters.parameters("casual"), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(11, INPUT)).square().sum().backward()
        optimizer.step()
    assert all(not torch.equal(tensor, before[name]) for name, tensor in adapters.tensors("casual").items())
    assert all(torch.equal(tensor, others[name]) for name, tensor in adapters.tensors("formal").items())
    assert model.head.weight.grad is None


def test_an_adapter_in_use_has_the_mode_of_the_model():
    model = Stack()
    adapters = AdapterSet(model)
    adapters.add("brief", config_of("brief"))
    for layer in adapters._layers("brief").values():
        nn.init.normal_(layer.b)
    x = torch.randn(11, INPUT)
    adapters.use("brief")
    assert not torch.equal(model(x), model(x))
    adapters.use(None)
    model.eval()
    adapters.use("brief")
    assert torch.equal(model(x), model(x))


def test_an_unknown_name_is_told_the_nearest_and_changes_nothing():
    adapters = AdapterSet(Stack())
    with pytest.raises(ConfigError, match=r"there is no adapter 'formal'$"):
        adapters.use("formal")
    adapters.add("formal", config_of("formal"))
    adapters.use("formal")
    with pytest.raises(ConfigError, match="there is no adapter 'fromal'; did you mean formal"):
        adapters.use("fromal")
    assert adapters.current == "formal"
    assert adapters.names == ["formal"]


def test_a_name_is_given_once():
    adapters = AdapterSet(Stack())
    adapters.add("formal", config_of("formal"))
    with pytest.raises(ConfigError, match="there is an adapter 'formal' already"):
        adapters.add("formal", config_of("casual"))


def test_an_adapter_for_other_bits_is_refused():
    adapters = AdapterSet(Stack(), bits=8)
    with pytest.raises(ConfigError, match=r"got config\.bits=None for 'formal' and bits=8 for the model"):
        adapters.add("formal", config_of("formal"))


def test_an_adapted_model_is_refused():
    model = Stack()
    add_lora(model, LoraConfig())
    with pytest.raises(ConfigError, match="adapted already"):
        AdapterSet(model)


def test_shared_weights_are_refused_whatever_is_in_use():
    model = Stack()
    model.head.weight = nn.Parameter(model.head.weight.data)
    model.tied = nn.Linear(HIDDEN, OUTPUT)
    model.tied.weight = model.head.weight
    adapters = AdapterSet(model)
    adapters.add("formal", config_of("formal"))
    adapters.use("formal")
    with pytest.raises(ConfigError, match=r"got head: head\.weight is tied\.weight"):
        adapters.add("brief", config_of("brief"))
