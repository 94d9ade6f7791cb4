"""EfficientNet-Lite: against a computation written out, the padding of TensorFlow, and what an encoder guarantees."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.formats.images import ImageConfig
from regard.errors import ConfigError
from regard.models import Encoder
from regard.models.efficientnet import EfficientNet, EfficientNetConfig, PaddedConv2d
from regard.models.heads import HeadConfig
from regard.tasks.image_classification import ImageClassifier

IMAGE = ImageConfig(size=64, patch_size=32, mean=[127 / 255], std=[128 / 255])
SHAPE = EfficientNetConfig(model_dim=13, stem_dim=5, widths=[3, 5, 7, 3, 5, 7, 11], depths=[1, 2, 1, 1, 2, 1, 1])


def pixels(count: int = 2) -> Tensor:
    return torch.randint(256, (count, 3, 64, 64), dtype=torch.uint8)


def randomized(model: nn.Module) -> nn.Module:
    for name, tensor in model.state_dict().items():
        if name.endswith("variance"):
            tensor.uniform_(0.5, 2.0)
        else:
            tensor.normal_(std=0.5)
    return model


def convolved(x: Tensor, weights: dict[str, Tensor], name: str, stride: int, *, has_clip: bool) -> Tensor:
    """A convolution as TensorFlow pads it, one filter at a time, and its normalization."""
    kernel = weights[f"{name}.weight"]
    size, height = kernel.size(-1), x.size(2)
    outputs = -(-height // stride)
    before = max(0, (outputs - 1) * stride + size - height) // 2
    padded = torch.zeros(x.size(0), x.size(1), height + 2 * size, height + 2 * size)
    padded[:, :, before : before + height, before : before + height] = x
    windows = padded.unfold(2, size, stride).unfold(3, size, stride)[:, :, :outputs, :outputs]
    if kernel.size(1) == 1 and x.size(1) > 1:
        y = torch.einsum("bcxyij,cij->bcxy", windows, kernel[:, 0])
    else:
        y = torch.einsum("bcxyij,ocij->boxy", windows, kernel)
    norm = {part: weights[f"{name}_norm.{part}"][:, None, None] for part in ("weight", "bias", "mean", "variance")}
    y = norm["weight"] * (y - norm["mean"]) / (norm["variance"] + 1e-3).sqrt() + norm["bias"]
    return y.clamp(0.0, 6.0) if has_clip else y


@torch.no_grad()
def test_the_forward_pass_is_that_of_the_paper_written_out():
    model = randomized(EfficientNet(SHAPE, IMAGE)).eval()
    weights = {name.removeprefix("encoder."): tensor for name, tensor in model.state_dict().items()}
    given = pixels()
    x = convolved((given.double() - 127) / 128, weights, "stem", 2, has_clip=True)
    for number, (stride, is_residual) in enumerate(
        [(1, False), (2, False), (1, True), (2, False), (2, False), (1, False), (1, True), (2, False), (1, False)]
    ):
        block, y = f"blocks.{number}", x
        if number:  # the first block has no more channels inside than outside
            y = convolved(y, weights, f"{block}.expand", 1, has_clip=True)
        y = convolved(y, weights, f"{block}.depthwise", stride, has_clip=True)
        y = convolved(y, weights, f"{block}.project", 1, has_clip=False)
        x = x + y if is_residual else y
    expected = convolved(x, weights, "final", 1, has_clip=True)
    found = model.encode(given)
    assert found.mask is None
    assert found.hidden_states.shape == (2, 4, 13)
    torch.testing.assert_close(found.hidden_states, expected.flatten(2).transpose(1, 2))
    assert expected.std() > 0.0


def test_symmetric_padding_is_that_of_pytorch():
    x = torch.randn(2, 3, 9, 9)
    own = PaddedConv2d(3, 5, 3, 2, padding_kind="symmetric")
    torch.testing.assert_close(own(x), F.conv2d(x, own.weight, stride=2, padding=1))
    even, same = torch.randn(2, 3, 8, 8), PaddedConv2d(3, 5, 3, 2, padding_kind="same")
    torch.testing.assert_close(same(even), F.conv2d(F.pad(even, (0, 1, 0, 1)), same.weight, stride=2))


def test_every_parameter_gets_a_gradient():
    torch.manual_seed(1)
    model = ImageClassifier(SHAPE, IMAGE, HeadConfig(dropout=0.0, pooling="mean"), 5)
    assert isinstance(model.body, Encoder)
    model(pixels(5)).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if not weight.grad.abs().sum()] == []


def test_lite0_has_the_published_number_of_parameters():
    model = EfficientNet.from_preset("efficientnet-lite0")
    assert model.image.size == 224
    assert sum(parameter.numel() for parameter in model.parameters()) + 1_281_000 == 4_652_008


def test_sizes_that_do_not_fit_are_errors():
    with pytest.raises(ConfigError, match=r"patch_size must be 32 for an EfficientNet.*got 4"):
        EfficientNet(SHAPE, ImageConfig())
    with pytest.raises(ConfigError, match=r"model.depths must be 7 positive numbers, got \[1, 2\]"):
        SHAPE.changed(depths=[1, 2])
