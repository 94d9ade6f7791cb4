"""Shapes are checked where a call has new ones, and in every test anew."""

import re
from pathlib import Path

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from tests.shape_checks import forget_checked_calls, jaxtyped_once, unchecked_shapes
from torch import Tensor

import regard
from regard.nn.losses import cross_entropy


class Layer(torch.nn.Module):
    """Returns what it was given, cut where it is told to."""

    cut = False

    @jaxtyped_once(typechecker=beartype)
    def forward(self, x: Float[Tensor, "batch 3"], y: Float[Tensor, " batch"]) -> Float[Tensor, "batch 3"]:
        return x[:, :2] if self.cut else x


def test_wrong_shapes_are_noticed_after_right_ones():
    layer = Layer()
    for _ in range(2):
        layer(torch.zeros(5, 3), torch.zeros(5))
        for x, y in ((torch.zeros(5, 2), torch.zeros(5)), (torch.zeros(5, 3), torch.zeros(7))):
            with pytest.raises(TypeCheckError, match="parameters"):
                layer(x, y)
        with pytest.raises(TypeCheckError, match="parameters"):
            layer(torch.zeros(5, 3, dtype=torch.long), torch.zeros(5))


def test_an_output_of_another_shape_is_noticed_for_the_same_inputs():
    layer = Layer()
    layer(torch.zeros(5, 3), torch.zeros(5))
    layer.cut = True
    with pytest.raises(TypeCheckError, match="return value"):
        layer(torch.zeros(5, 3), torch.zeros(5))


def test_a_call_is_checked_once_in_a_test():
    seen = []

    class Recorded(type):
        def __instancecheck__(cls, value: object) -> bool:
            seen.append(value)
            return True

    class Anything(metaclass=Recorded):
        pass

    def same(x: Anything) -> None:
        pass

    check = jaxtyped_once(same, typechecker=beartype)
    check(torch.zeros(2))
    assert seen
    seen.clear()
    for _ in range(3):
        check(torch.zeros(2))
    assert not seen
    forget_checked_calls()
    check(torch.zeros(2))
    assert seen
    seen.clear()
    check(torch.zeros(3))
    assert seen


def test_nothing_is_checked_while_a_graph_is_traced():
    layer = Layer()
    with unchecked_shapes():
        layer(torch.zeros(5, 7), torch.zeros(5))
    with pytest.raises(TypeCheckError):
        layer(torch.zeros(5, 7), torch.zeros(5))


def test_the_functions_of_the_package_are_checked_once():
    assert cross_entropy.__code__ is Layer.forward.__code__
    with pytest.raises(TypeCheckError, match="parameters"):
        cross_entropy(torch.zeros(2, 3), torch.zeros(5, dtype=torch.long))


def test_no_size_in_an_annotation_is_an_attribute_of_a_layer():
    """Calls of layers of one class are not compared by their layers."""
    sources = [path.read_text(encoding="utf-8") for path in Path(regard.__file__).parent.rglob("*.py")]
    assert not [found for source in sources for found in re.findall(r'\[[\w. ]+, "[^"\n]*\{\w[^"\n]*"\]', source)]
    assert re.findall(r'\[[\w. ]+, "[^"\n]*\{\w[^"\n]*"\]', 'x: Float[Tensor, "batch {self.size}"]')
