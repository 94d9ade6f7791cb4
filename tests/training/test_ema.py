"""The exponential moving average of the weights."""

import pytest
import torch
from torch import nn

from regard.training.ema import WeightAverage


def test_the_average_follows_its_formula():
    model = nn.Linear(3, 5)
    average = WeightAverage(model, 0.9)
    expected = [p.detach().clone() for p in model.parameters()]
    for step in range(1, 101):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        average.update(model, average.decay_at(step))
        decay = min(0.9, (1 + step) / (10 + step))
        expected = [decay * a + (1 - decay) * p.detach() for a, p in zip(expected, model.parameters(), strict=True)]
    torch.testing.assert_close(list(average.tensors().values()), expected)


def test_averaged_weights_are_applied_and_removed_exactly():
    model = nn.Linear(3, 5)
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        model.weight += 1 / 3
    average.update(model, average.decay_at(1))
    own, averaged = model.weight.detach().clone(), average.tensors()["weight"].clone()
    with average.applied():
        assert torch.equal(model.weight, averaged)
        assert torch.equal(average.tensors()["weight"], own)
    assert torch.equal(model.weight, own)
    assert torch.equal(average.tensors()["weight"], averaged)


def test_the_weights_are_restored_after_an_error():
    model = nn.Linear(3, 5)
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        model.weight += 1
    own = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match="inside"), average.applied():
        raise RuntimeError("inside")
    assert torch.equal(model.weight, own)


def test_a_decay_of_zero_is_the_weights_themselves():
    model = nn.Linear(3, 5)
    average = WeightAverage(model, 0.0)
    own = model.weight.detach().clone()
    average.update(model, average.decay_at(1))
    with average.applied():
        assert torch.equal(model.weight, own)
    assert average.tensors() == {}


def test_the_average_is_restored_as_a_copy():
    one, two = nn.Linear(3, 5), nn.Linear(3, 5)
    first, second = WeightAverage(one, 0.9), WeightAverage(two, 0.9)
    second.restore(first.tensors())
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, second.tensors()[name])
        assert tensor.data_ptr() != second.tensors()[name].data_ptr()


def test_a_decay_in_a_tensor_gives_the_same_average():
    model = nn.Linear(3, 5)
    one, other = WeightAverage(model, 0.9), WeightAverage(model, 0.9)
    for step in range(1, 4):
        nn.init.normal_(model.weight)
        one.update(model, one.decay_at(step))
        other.update(model, torch.tensor(other.decay_at(step)))
    torch.testing.assert_close(one.tensors(), other.tensors())
