"""Augmentation: crops are shifts of the reflected image, and mixtures have the shares that are given."""

import torch
import torch.nn.functional as F

from regard.nn.augmentation import crop_and_flip, mix_images
from regard.nn.dropout import StochasticDepth


def test_a_crop_is_one_of_the_reflected_image():
    x = torch.randn(5, 3, 11, 7)
    offsets = torch.tensor([[0, 0], [2, -1], [-3, 3], [1, 1], [-2, -3]])
    found = crop_and_flip(x, offsets, torch.tensor([False, False, False, True, False]))
    padded = F.pad(x, (3, 3, 3, 3), mode="reflect")
    for number, (row, column) in enumerate(offsets.tolist()):
        expected = padded[number, :, 3 + row : 14 + row, 3 + column : 10 + column]
        assert torch.equal(found[number], expected.flip(2) if number == 3 else expected)


def test_pixels_stay_integers_unless_they_are_mixed():
    x = torch.randint(256, (3, 1, 5, 5), dtype=torch.uint8)
    still = crop_and_flip(x, torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, dtype=torch.bool))
    assert torch.equal(still, x)
    assert still.dtype == torch.uint8
    mixed = mix_images(x, torch.tensor([1.0, 0.25, 0.0]))
    torch.testing.assert_close(mixed[0], x[0].to(mixed.dtype))
    torch.testing.assert_close(mixed[1], 0.25 * x[1] + 0.75 * x[0])
    torch.testing.assert_close(mixed[2], x[1].to(mixed.dtype))


def test_stochastic_depth_keeps_the_mean():
    layer = StochasticDepth(0.3)
    x = torch.ones(20_000, 2, 2)
    found = layer(x)
    assert {round(value, 6) for value in found.unique().tolist()} == {0.0, round(1 / 0.7, 6)}
    assert (found.flatten(1).std(dim=1) == 0).all()
    torch.testing.assert_close(found.mean(), torch.ones(()).to(found), rtol=0.02, atol=0.0)
    assert torch.equal(layer.eval()(x), x)
