"""The Vision Transformer: patches, and what its states depend on."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.data.config import PictureConfig
from regard.errors import ConfigError
from regard.models.heads import HeadConfig
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer_config import TransformerConfig
from regard.models.vision import PictureClassifier, VisionTransformer, patches, require_reader

PICTURE = PictureConfig(size=15, patch_size=5, center=[0.2, 0.4, 0.6])
SHAPE = TransformerConfig.read(
    {"num_layers": 2, "decoder_layers": 0, "model_dim": 22, "num_heads": 2, "feedforward_dim": 29, "block": "pre-norm",
     "positions": "learned", "dropout": 0.0}
)  # fmt: skip


def pixels(channels: int = 3) -> torch.Tensor:
    return torch.randint(256, (4, channels, 15, 15), dtype=torch.uint8)


def randomized(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_a_linear_layer_on_patches_is_a_convolution_whose_stride_is_its_size():
    x, weight = torch.randn(2, 3, 15, 10), torch.randn(7, 3, 5, 5)
    expected = F.conv2d(x, weight, stride=5).flatten(2).transpose(1, 2)
    torch.testing.assert_close(patches(x, 5) @ weight.flatten(1).T, expected)


@pytest.mark.parametrize("positions", ["learned", "relative", "sinusoidal"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_parameter_gets_a_gradient(positions: str, channels: int):
    picture = PictureConfig(size=15, patch_size=5, channels=channels)
    model = PictureClassifier(SHAPE.changed(positions=positions), picture, HeadConfig(dropout=0.0), 7)
    randomized(model)(pixels(channels)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_the_state_before_the_patches_sees_all_of_them_and_where_they_are():
    body = randomized(VisionTransformer(SHAPE, PICTURE))
    first = pixels()[:1]
    moved = first.roll(5, dims=3)  # the same patches, in other places
    edited = first.clone()
    edited[..., -1, -1] ^= 255
    states = [body.encode(each).states[0, 0] for each in (first, moved, edited)]
    assert body.encode(first).states.shape == (1, 1 + 9, 22)
    assert not torch.allclose(states[0], states[1])
    assert not torch.allclose(states[0], states[2])


@torch.no_grad()
def test_one_number_serves_all_channels():
    one = VisionTransformer(SHAPE, PictureConfig(size=15, patch_size=5, center=[0.3], spread=[0.7]))
    three = VisionTransformer(SHAPE, PictureConfig(size=15, patch_size=5, center=[0.3] * 3, spread=[0.7] * 3))
    given = pixels()
    assert torch.equal(one.normalized(given), three.normalized(given))
    torch.testing.assert_close(one.normalized(given), (given / 255 - 0.3) / 0.7)


def test_whoever_cannot_read_pictures_is_told():
    assert require_reader(SHAPE) is SHAPE
    with pytest.raises(ConfigError, match="by a Transformer, such as vit-tiny, got"):
        require_reader(RecurrentConfig())
    with pytest.raises(ConfigError, match="by an encoder"):
        require_reader(SHAPE.changed(encoder_layers=0, decoder_layers=1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"size": 15}, "data.picture.size must be a multiple of its patch_size, got self.size=15"),
        ({"center": [0.1, 0.2]}, "data.picture.center must be a finite number for all channels or one for each"),
        ({"spread": [0.0]}, "data.picture.spread must be above 0"),
        ({"channels": 2}, "channels"),
        ({"resampling": "best"}, "resampling"),
    ],
)
def test_a_form_that_cannot_be_is_told(values: dict, words: str):
    with pytest.raises(ConfigError) as error:
        PictureConfig.read(values)
    assert words in str(error.value)
