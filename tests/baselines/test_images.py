"""Histograms as distributions of images."""

import numpy as np
import pytest

from regard.baselines import images as densities
from regard.baselines.images import ErrorHistograms, NeighborHistograms, PixelHistograms, fit_pixel_density

KINDS = (PixelHistograms, NeighborHistograms, ErrorHistograms)


def smooth(count: int, *, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Images that brighten to the right, each at its own place, with a little noise."""
    rng = np.random.default_rng(seed)
    slope = np.arange(7) * 12 + rng.integers(0, 150, (count, 1, 1, 1))
    return (slope + rng.integers(0, 5, (count, channels, 7, 7))).astype(np.uint8)


@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 1, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_probabilities_of_all_images_sum_to_one(kind, shape):
    """Of all images of two pixels, and of two channels: the second value depends on the first."""
    model = kind.fit(smooth(50, channels=shape[0])[:, :, : shape[1], : shape[2]])
    images = np.stack(np.meshgrid(np.arange(256), np.arange(256)), axis=-1).reshape(-1, *shape).astype(np.uint8)
    assert np.exp(-model.losses(images)).sum() == pytest.approx(1.0)


def test_pixels_of_one_value_cost_almost_nothing_and_uniform_ones_eight_bits():
    flat, noise = np.full((60, 1, 5, 5), 77, np.uint8), np.random.default_rng(0).integers(0, 256, (4_000, 1, 5, 5))
    assert (PixelHistograms.fit(flat).losses(flat) / 25 < 0.15).all()
    bits = PixelHistograms.fit(noise.astype(np.uint8)).losses(noise.astype(np.uint8)).mean() / 25 / np.log(2)
    assert bits == pytest.approx(8.0, abs=0.1)


def test_neighbors_help_where_images_are_smooth():
    train, test = smooth(300), smooth(40, seed=9)
    by_pixel, by_neighbor, by_error = (kind.fit(train).losses(test).sum() for kind in KINDS)
    assert by_error < by_neighbor < by_pixel


def test_the_best_on_held_out_images_is_chosen():
    images = smooth(200)
    baseline = fit_pixel_density(images, read=lambda paths: images[: len(paths)])
    assert baseline.name == "histograms of the errors of a linear prediction"
    found = baseline.predict(["a", "b"])
    assert list(found.num_tokens) == [147, 147]
    expected = ErrorHistograms.fit(images[np.arange(200) % 10 != 9]).losses(images[:2])
    assert found.losses == pytest.approx(expected.tolist())


def test_an_image_has_the_same_loss_whatever_is_beside_it(monkeypatch):
    images = smooth(30)
    for kind in KINDS:
        model = kind.fit(images)
        np.testing.assert_allclose(model.losses(images)[4:6], model.losses(images[4:6]))
    whole = ErrorHistograms.fit(images).losses(images)
    monkeypatch.setattr(densities, "_AT_ONCE", 7)
    np.testing.assert_allclose(ErrorHistograms.fit(images).losses(images), whole)
