"""The Vision Transformer: patches, and what its states depend on."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.data.formats.images import ImageConfig
from regard.errors import ConfigError
from regard.models.heads import HeadConfig
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer.config import TransformerConfig
from regard.models.vision import VisionTransformer, VisionTransformerConfig, normalize_pixels, patches
from regard.tasks.image_classification import ImageClassifier

PICTURE = ImageConfig(size=15, patch_size=5, mean=[0.2, 0.4, 0.6])
SHAPE = VisionTransformerConfig.read(
    {"num_layers": 2, "model_dim": 22, "num_heads": 2, "feedforward_dim": 29, "block": "pre-norm",
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
    picture = ImageConfig(size=15, patch_size=5, channels=channels)
    model = ImageClassifier(SHAPE.changed(positions=positions), picture, HeadConfig(dropout=0.0, pooling="first"), 7)
    randomized(model)(pixels(channels)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_the_first_hidden_state_depends_on_all_patches_and_their_positions():
    body = randomized(VisionTransformer(SHAPE, PICTURE))
    first = pixels()[:1]
    moved = first.roll(5, dims=3)  # the same patches, in other places
    edited = first.clone()
    edited[..., -1, -1] ^= 255
    states = [body.encode(each).hidden_states[0, 0] for each in (first, moved, edited)]
    assert body.encode(first).hidden_states.shape == (1, 1 + 9, 22)
    assert not torch.allclose(states[0], states[1])
    assert not torch.allclose(states[0], states[2])


@torch.no_grad()
def test_one_number_serves_all_channels():
    given = pixels()
    one, three = (
        normalize_pixels(given, ImageConfig(mean=[0.3] * count, std=[0.7] * count), torch.float64) for count in (1, 3)
    )
    assert torch.equal(one, three)
    torch.testing.assert_close(one, (given / 255 - 0.3) / 0.7)


def test_images_need_a_model_that_reads_pixels():
    for config in (RecurrentConfig(), TransformerConfig()):
        with pytest.raises(ConfigError, match=f"vit-tiny, got model.family={config.family}"):
            ImageClassifier(config, PICTURE, HeadConfig(pooling="first"), 7)
    with pytest.raises(ConfigError, match="decoder_layers"):
        SHAPE.changed(decoder_layers=1)


def test_arguments_for_tokens_are_refused():
    body = VisionTransformer(SHAPE, PICTURE)
    with pytest.raises(ConfigError, match="reads pixels"):
        body.encode(pixels(), torch.tensor([1, 2, 3, 4]))


@torch.no_grad()
def test_the_encoder_reads_the_start_vector_and_then_the_patches_row_by_row():
    """The projection of patches is a convolution; the encoder's input is compared with PyTorch's."""
    body, given, inputs = randomized(VisionTransformer(SHAPE, PICTURE)), pixels(), []
    body.encoder.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    body.encode(given)
    x = (given / 255 - torch.tensor([0.2, 0.4, 0.6])[:, None, None]) / 0.5
    weight = body.embedding.weight.view(22, 3, 5, 5)
    expected = F.conv2d(x, weight, body.embedding.bias, stride=5).flatten(2).transpose(1, 2)
    torch.testing.assert_close(inputs[0][:, 1:], expected)
    assert torch.equal(inputs[0][:, 0], body.start.expand(4, -1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"size": 15}, "multiple of patch_size, got size=15"),
        ({"mean": [0.1, 0.2]}, "mean must be one finite number for all channels or one for each"),
        ({"std": [0.0]}, "std must be positive"),
        ({"channels": 2}, "channels"),
        ({"resampling": "best"}, "resampling"),
    ],
)
def test_invalid_image_settings_are_errors(values: dict, words: str):
    with pytest.raises(ConfigError) as error:
        ImageConfig.read(values)
    assert words in str(error.value)
