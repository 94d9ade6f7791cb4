"""Shapes are checked where a call has new ones, and in every test anew."""

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from tests.shape_checks import check_new_shapes, forget_checked_calls, unchecked_shapes
from torch import Tensor


class Layer(torch.nn.Module):
    """Returns what it was given, cut where it is told to."""

    cut = False

    @jaxtyped(typechecker=check_new_shapes)
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

    check = check_new_shapes(same)
    seen.clear()  # of what beartype tries
    for _ in range(3):
        check(torch.zeros(2))
    assert len(seen) == 1
    forget_checked_calls()
    check(torch.zeros(2))
    assert len(seen) == 2


def test_nothing_is_checked_while_a_graph_is_traced():
    layer = Layer()
    with unchecked_shapes():
        layer(torch.zeros(5, 7), torch.zeros(5))
    with pytest.raises(TypeCheckError):
        layer(torch.zeros(5, 7), torch.zeros(5))
