"""Models of others with random weights, and ours with the same."""

from collections.abc import Callable

import pytest
from torch import nn

from regard.interop.hf.architectures import ARCHITECTURES
from regard.interop.hf.weights import read_weight
from regard.models.transformer import Transformer
from regard.training.checkpoints import load_weights, weights_of


@pytest.fixture
def randomized() -> Callable[[nn.Module], nn.Module]:
    """A foreign model in float64 with random weights: initial biases are zero, and zeros hide mistakes."""

    def randomize(theirs: nn.Module) -> nn.Module:
        theirs = theirs.double().eval()
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.3)
        return theirs

    return randomize


@pytest.fixture
def ours_from() -> Callable[[nn.Module], Transformer]:
    """Our model with the weights of a foreign one, by the names of `regard.interop`."""

    def build(theirs: nn.Module) -> Transformer:
        config, tensors = theirs.config.to_dict(), theirs.state_dict()
        architecture = ARCHITECTURES[type(theirs).__name__]
        names = architecture.weight_names(config)
        ours = Transformer(architecture.read_config(config), config["vocab_size"]).eval()
        own = weights_of(ours)
        load_weights(ours, {name: read_weight(names[name], tuple(own[name].shape), tensors) for name in own})
        return ours

    return build
