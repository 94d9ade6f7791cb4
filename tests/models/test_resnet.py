"""Residual convolutional networks: maps, what they depend on, and their batch normalization."""

import pytest
import torch
from torch import nn

from regard.data.formats.images import ImageConfig
from regard.errors import ConfigError
from regard.models import Encoder
from regard.models.heads import HeadConfig
from regard.models.resnet import ResNet, ResNetConfig, stage_widths
from regard.nn.norms import BatchNorm
from regard.tasks.image_classification import ImageClassifier
from regard.training.ema import WeightAverage

IMAGE = ImageConfig(size=20, patch_size=4)
SHAPE = ResNetConfig(num_layers=2, model_dim=28)


def pixels(count: int = 3) -> torch.Tensor:
    return torch.randint(256, (count, 3, 20, 20), dtype=torch.uint8)


def randomized(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@torch.no_grad()
def test_the_hidden_states_are_the_cells_of_the_last_map_row_by_row():
    model = randomized(ResNet(SHAPE, IMAGE)).eval()
    assert isinstance(model, Encoder)
    first = pixels(1)
    encoded = model.encode(first)
    assert encoded.hidden_states.shape == (1, 25, 28)
    assert encoded.mask is None
    edited = first.clone()
    edited[..., :4, -4:] ^= 255  # the cell at the end of the first row
    changes = (model.encode(edited).hidden_states - encoded.hidden_states).abs().sum(dim=-1)[0]
    assert changes.argmax() in (3, 4, 8, 9)
    assert changes[20] < changes[4]


def test_a_new_block_is_its_shortcut():
    block = ResNet(SHAPE, IMAGE).encoder.blocks[1]
    x = torch.randn(2, 7, 6, 6)
    torch.testing.assert_close(block(x), x)


def test_every_parameter_gets_a_gradient():
    model = randomized(ImageClassifier(SHAPE, IMAGE, HeadConfig(dropout=0.0, pooling="mean"), 5))
    model(pixels()).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if not weight.grad.abs().sum()] == []


@torch.no_grad()
def test_images_do_not_depend_on_each_other_outside_of_training():
    model = randomized(ResNet(SHAPE, IMAGE)).eval()
    given = pixels()
    torch.testing.assert_close(model.encode(given).hidden_states[:1], model.encode(given[:1]).hidden_states)


def test_batch_normalization_is_that_of_pytorch():
    own, theirs = BatchNorm(5), nn.BatchNorm2d(5)
    for weight, other in zip(own.parameters(), theirs.parameters(), strict=True):
        nn.init.normal_(weight)
        other.data.copy_(weight.data)
    x = torch.randn(7, 5, 3, 2)
    for _ in range(2):
        torch.testing.assert_close(own(x), theirs(x))
    torch.testing.assert_close(own.eval()(2 * x), theirs.eval()(2 * x))


def test_frozen_batch_normalization_does_not_change():
    layer = BatchNorm(5).requires_grad_(False)
    x = torch.randn(7, 5, 3, 2)
    torch.testing.assert_close(layer.train()(x), x / (1 + 1e-5) ** 0.5)
    assert torch.equal(layer.mean, torch.zeros(5))


def test_the_statistics_of_batch_normalization_are_averaged_with_the_weights():
    layer = BatchNorm(5)
    model = nn.Sequential(layer)
    average = WeightAverage(model, 0.5)
    layer.mean.fill_(4.0)
    average.update(model, 0.5)
    assert average.tensors()["0.mean"].tolist() == [2.0] * 5
    with average.applied():
        assert layer.mean.tolist() == [2.0] * 5
    assert layer.mean.tolist() == [4.0] * 5


def test_stochastic_depth_skips_blocks_in_training_only():
    model = randomized(ResNet(SHAPE.changed(stochastic_depth=0.9), IMAGE))
    plain = randomized(ResNet(SHAPE, IMAGE))
    plain.load_state_dict(model.state_dict())
    given = pixels()
    assert not torch.equal(model.encode(given).hidden_states, model.encode(given).hidden_states)
    plain.load_state_dict(model.state_dict())
    states = [each.eval().encode(given).hidden_states for each in (model, plain)]
    assert torch.equal(*states)


def test_sizes_that_do_not_fit_are_errors():
    assert stage_widths(96, 1) == [96]
    with pytest.raises(ConfigError, match="power of two for a convolutional network, got 5"):
        stage_widths(100, 5)
    with pytest.raises(ConfigError, match=r"multiple of task.image.patch_size, got 30 and 4"):
        stage_widths(30, 4)
    with pytest.raises(ConfigError, match="kernel_size must be odd, got 2"):
        ResNet(SHAPE.changed(kernel_size=2), IMAGE)
    with pytest.raises(ConfigError, match="reads pixels"):
        ResNet(SHAPE, IMAGE).encode(pixels(), torch.tensor([1, 2, 3]))
