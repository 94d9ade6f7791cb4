r"""Shallow networks whose first layer is convolutional, locally connected or fully connected, by SGD and beta-lasso.

Neyshabur, "Towards Learning Convolutions from Scratch" (2020). https://arxiv.org/abs/2007.13657

S-CONV has a convolution with a large kernel and a stride of 2, a fully connected layer and an output layer; each
layer but the last is followed by batch normalization and ReLU. S-LOCAL has the same connections without shared
weights, and S-FC all connections: each contains the one before it. 3-FC has two hidden layers of equal width and the
number of parameters of S-FC. The fewer the assumptions, the lower the accuracy by SGD.

The settings of each method are those with the best accuracy on validation images: a search begins in the middle of a
grid, and tries neighbors of the best (`search.py`).

The locality of a unit is the largest share of its squared first-layer weights within one window of the kernel's size.
It is compared with that of the same weights at shuffled pixels.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from regard.data.prepare import cache_folder
from regard.errors import ConfigError, DataError
from regard.evaluation.intervals import Interval, clopper_pearson, mean_interval
from regard.lab.drawing import COLORS, label_axes, make_panels, plot_matrix
from regard.lab.locality import LOCALITY
from regard.lab.locality.images import ImageSets, generated_images, read_images
from regard.lab.locality.results import NetworkStore, read_settings
from regard.lab.locality.search import (
    LocalityJob,
    Results,
    Trained,
    best_networks,
    best_settings,
    known_jobs,
    planned_networks,
    search_jobs,
)
from regard.lab.locality.sizes import (
    FULL,
    IMAGES,
    LAST,
    METHODS,
    PUBLISHED,
    QUICK_IMAGES,
    LocalityMethod,
    LocalitySizes,
)
from regard.lab.locality.training import OutOfTimeError, TrainedNetwork, seconds_per_epoch, train_network
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info, progress_bar
from regard.training.precision import find_device

_RESERVE = 0.85
"""The share of the time that is planned for training; the rest is for what takes longer than planned."""
_DRAWN = 12
"""Filters that are drawn of each network."""
_SMALLEST, _LARGEST = 20, 4_000
"""Epochs that are planned at least and at most."""


def study_locality(
    *,
    quick: bool = False,
    seed: int = 0,
    data: str | None = None,
    device: str = "cpu",
    sizes: LocalitySizes | None = None,
    minutes: str | None = None,
    epochs: str | None = None,
    channels: str | None = None,
    results: str | None = None,
    settings: str | None = None,
) -> Study:
    """Train each network by each method, and measure accuracies, surviving weights and their locality.

    Where a method has several settings, the one with the best accuracy on validation images is reported. With
    `minutes` and without `epochs`, as many epochs are planned as fit. Finished networks are stored in the folder
    `results`, otherwise in the cache until the study ends: an interrupted study continues. With `settings`, such a
    folder of another study, its best settings are taken without a search, and no images are left out.
    """
    sizes = sizes or ((LocalitySizes() if quick else FULL) if data is None else QUICK_IMAGES if quick else IMAGES)
    started = time.perf_counter()
    seconds = None if minutes is None else 60 * _positive(minutes, "minutes")
    if channels is not None:
        sizes = replace(sizes, base_channels=int(_positive(channels, "channels")))
    if settings is not None:
        sizes = replace(sizes, valid_share=0.0)
    place = find_device(device)
    images = generated_images(sizes, seed=seed) if data is None else read_images(data)
    content = hashlib.sha256(images.train[:100].numpy().tobytes()).hexdigest()[:16]
    images = images.to(place)
    key: dict[str, Any] = {**asdict(sizes), "seed": seed, "content": content, "device": place.type}
    digest = hashlib.sha256(json.dumps([key, epochs, minutes, settings]).encode()).hexdigest()[:16]
    store = NetworkStore(Path(results) if results else cache_folder() / "lab" / f"locality-{digest}", key)
    if epochs is not None:
        sizes = replace(sizes, epochs=int(_positive(epochs, "epochs")))
    elif store.epochs is not None:
        sizes = replace(sizes, epochs=store.epochs)
    elif seconds is not None:
        sizes = replace(sizes, epochs=_planned_epochs(images, sizes, seconds - (time.perf_counter() - started)))
    store.begin(sizes.epochs)
    training = _Plan(store, images, images.hold_out(sizes.valid_share) if sizes.valid_share else None, sizes)
    trained = training.run(seed, settings, None if seconds is None else started + seconds)
    if not trained:
        raise DataError("no network was trained to the end in this time; allow more --minutes or fewer --epochs")
    chosen = best_networks(trained)
    shown = [method for method in (LocalityMethod("S-CONV"), LocalityMethod("S-FC"), LAST) if method in chosen]
    figure, axes = make_panels(2, len(shown), height=3.6)
    _plot_scores(axes[0], axes[1], chosen)
    for panel, method in zip(axes[2:], shown, strict=True):
        _plot_filters(panel, method, chosen[method][0])
    section = _report(trained, sizes, images, is_cifar=data is not None and images.is_mirrored)
    if not results:
        store.remove()
    return LOCALITY.result(sizes, [section], figure, images="generated" if data is None else Path(data).name)


def _positive(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"--{name} must be a positive number, got {text!r}")
    return value


def _planned_epochs(images: ImageSets, sizes: LocalitySizes, seconds: float) -> int:
    """Returns the number of epochs with which the most important networks are trained in the given time."""
    start = time.perf_counter()
    training = images.hold_out(sizes.valid_share) if sizes.valid_share else images
    networks = {method: count for method in METHODS if (count := planned_networks(method, sizes))}
    # The value of beta does not matter.
    kinds = {(method.network, method.beta is None): method for method in networks}
    times = {kind: seconds_per_epoch(method, training, sizes) for kind, method in kinds.items()}
    once = sum(count * times[method.network, method.beta is None] for method, count in networks.items())
    left = _RESERVE * (seconds - (time.perf_counter() - start))
    epochs = min(_LARGEST, max(_SMALLEST, int(left / once)))
    listed = ", ".join(f"{kinds[kind].label} {1_000 * each:.0f} ms" for kind, each in times.items())
    log_info(f"an epoch takes {listed}; {epochs} epochs are planned")
    return epochs


@dataclass
class _Plan:
    """The networks to train, with the images to train them on and the store for those that are finished."""

    store: NetworkStore
    images: ImageSets
    valid: ImageSets | None
    sizes: LocalitySizes

    def run(self, seed: int, settings: str | None, deadline: float | None) -> Trained:
        """Train what the store does not have, until the deadline."""
        trained: dict[LocalityJob, TrainedNetwork] = {}
        for job in progress_bar(self._jobs(trained, seed, settings), "networks"):
            if job in trained:
                continue
            found = self.store.networks.get(job) or self._train(job, deadline)
            if found is None:
                break
            trained[job] = found
        return trained

    def _jobs(self, trained: Trained, seed: int, settings: str | None) -> Iterator[LocalityJob]:
        if settings is not None:
            return known_jobs(read_settings(settings, self.sizes.epochs), self.sizes, seed=seed)
        num_images = len((self.valid or self.images).train)
        steps = num_images // min(self.sizes.batch_size, num_images)
        return search_jobs(self.sizes, trained, seed=seed, steps_per_epoch=steps)

    def _train(self, job: LocalityJob, deadline: float | None) -> TrainedNetwork | None:
        """Train and store a network; None where the time is over."""
        start = time.perf_counter()
        if deadline is not None and start > deadline:
            return None
        try:
            network = train_network(
                job.method, job.rates, self.images, self.sizes, seed=job.seed, epochs=job.epochs, valid=self.valid,
                deadline=deadline, checkpoint=self.store.folder / f"{self.store.name(job)}.safetensors",
            )  # fmt: skip
        except OutOfTimeError as error:
            log_info(f"the time is over: {error}")
            return None
        log_info(_describe(job, network, self.valid, time.perf_counter() - start))
        self.store.add(job, network)
        return network


def _describe(job: LocalityJob, network: TrainedNetwork, valid: ImageSets | None, seconds: float) -> str:
    # While settings are searched, accuracies on test images are not printed.
    share = None if valid is None else network.num_valid_correct / len(valid.test)
    scored = f"test {network.accuracy:.4f}" if share is None else f"validation {share:.4f}"
    return (
        f"{job.method.label}, rate {job.rates.learning_rate:g}, penalty {job.rates.penalty:g}, "
        f"{job.epochs} epochs: {scored} training loss {network.train_loss:.3f} "
        f"weights {network.surviving:.4f} locality {network.locality:.3f} "
        f"shuffled {network.shuffled_locality:.3f} in {seconds:.0f} s"
    )


def network_accuracy(networks: Sequence[TrainedNetwork]) -> Interval:
    """The mean accuracy over seeds with its interval; for one seed, the exact interval over test images."""
    if len(networks) == 1:
        one = networks[0]
        return one.accuracy, *clopper_pearson(one.num_correct, one.num_tests)
    return mean_interval([each.accuracy for each in networks])


def recovered_share(results: Mapping[LocalityMethod, Sequence[TrainedNetwork]], beta: float) -> Interval | None:
    """How much of the gap between S-FC and S-LOCAL by SGD beta-lasso closes, over seeds; None where there is no gap.

    With one seed both ends are NaN.
    """
    methods = (LocalityMethod("S-LOCAL"), LocalityMethod("S-FC"), LocalityMethod("S-FC", beta))
    count = min(len(results.get(method, ())) for method in methods)
    local, dense, lasso = (np.array([each.accuracy for each in results.get(method, ())][:count]) for method in methods)
    if count == 0 or (gap := local.mean() - dense.mean()) <= 0:
        return None
    return mean_interval((lasso - dense) / gap)


def _report(trained: Trained, sizes: LocalitySizes, images: ImageSets, *, is_cifar: bool) -> StudySection:
    results = best_networks(trained)
    columns = ["network and method", "test accuracy", "surviving weights", "locality", "locality, shuffled pixels"]
    rows = []
    for method, networks in results.items():
        means = [_mean(networks, name) for name in ("surviving", "locality", "shuffled_locality")]
        published = [PUBLISHED.get(method)] if is_cifar else []
        rows.append([method.label, network_accuracy(networks), *means, *published])
    over = f"over {sizes.num_seeds} seeds" if sizes.num_seeds > 1 else f"over {len(images.test):,} test images"
    table = StudyTable(
        "Accuracy and locality", [*columns, "published accuracy"] if is_cifar else columns, rows,
        f"Intervals are {over}. Weights are those of the first layer. Locality is the median over units of the largest "
        f"share of squared weights within a window of {sizes.kernel} x {sizes.kernel} pixels.",
    )  # fmt: skip
    num_valid = images.num_held_out(sizes.valid_share)
    tables = [table, *([_settings_table(trained, num_valid)] if num_valid else [])]
    return _findings(results, sizes), tables


def _settings_table(trained: Trained, num_valid: int) -> StudyTable:
    best, epochs = best_settings(trained), max(job.epochs for job in trained)
    rows = [
        [
            job.method.label, job.epochs, job.rates.learning_rate,
            job.rates.penalty if job.method.beta is not None else None,
            network.num_valid_correct / num_valid, network.train_loss, network.surviving, network.locality,
            "yes" if job.epochs == epochs and best[job.method] == job.rates else "no",
        ]
        for job, network in trained.items()
    ]  # fmt: skip
    return StudyTable(
        "Settings",
        ["network and method", "epochs", "learning rate", "penalty", "validation accuracy", "training loss",
         "surviving weights", "locality", "taken"],
        rows,
        f"Accuracies are those of {num_valid:,} training images that are left out. The search begins in the "
        "middle of a list of settings and tries neighbors of the best; learning rates of SGD are compared after fewer "
        "epochs. The training loss is that of the last epoch.",
    )  # fmt: skip


def _mean(networks: Sequence[TrainedNetwork], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in networks]))


def _findings(results: Results, sizes: LocalitySizes) -> list[str]:
    accuracies = {method: _mean(networks, "accuracy") for method, networks in results.items()}
    nested = [method for name in ("S-CONV", "S-LOCAL", "S-FC") if (method := LocalityMethod(name)) in results]
    holds = all(accuracies[one] > accuracies[other] for one, other in pairwise(nested))
    listed = ", ".join(f"{method.network} {accuracies[method]:.3f}" for method in nested)
    order = "fewer assumptions, lower accuracy" if holds else "not in the order of their assumptions"
    findings = [f"By SGD: {listed} ({order})."] if len(nested) > 1 else []
    best = LAST
    if missing := ", ".join(method.label for method in METHODS if method not in results):
        findings.append(f"Not trained in this time: {missing}.")
    if best not in results or len(nested) < 3:
        return findings
    share = recovered_share(results, best.beta or 0.0)
    if share is None:
        findings.append("S-LOCAL is not better than S-FC by SGD here: there is no gap to recover.")
    else:
        interval = "" if math.isnan(share[1]) else f" [{share[1]:.0%}, {share[2]:.0%}]"
        others = " and ".join(
            f"{mean:.3f} with beta {method.beta:g}"
            for method, mean in accuracies.items()
            if method.network == best.network and method.beta is not None and method != best
        )
        findings.append(
            f"{best.label} has {accuracies[best]:.3f} and recovers {share[0]:.0%}{interval} of the gap between S-FC "
            f"and S-LOCAL by SGD; it has {others or 'not been trained with other values of beta'}."
        )
    kept, local, shuffled = (_mean(results[best], name) for name in ("surviving", "locality", "shuffled_locality"))
    if math.isnan(local):
        findings.append(f"No unit of its first layer has weights left ({kept:.1%} survive).")
    else:
        findings.append(
            f"Of the first layer's weights {kept:.1%} survive it. Half of the units have more than {local:.0%} of "
            f"their squared weights within {sizes.kernel} x {sizes.kernel} pixels, against {shuffled:.0%} with "
            f"shuffled pixels; by SGD {_mean(results[LocalityMethod('S-FC')], 'locality'):.0%}."
        )
    return findings


def _plot_scores(scores: Axes, places: Axes, results: Mapping[LocalityMethod, Sequence[TrainedNetwork]]) -> None:
    names = [method.label for method in results]
    heights = list(range(len(names)))[::-1]
    for axes, title, key in (
        (scores, "Test accuracy", "accuracy"),
        (places, "Locality of the first layer", "locality"),
    ):
        for height, (method, networks) in zip(heights, results.items(), strict=True):
            values = [getattr(each, key) for each in networks]
            color = COLORS[1] if method.beta is not None else COLORS[0]
            axes.plot(values, [height] * len(values), "o", color=color, markersize=5, alpha=0.8)
            if key == "locality":
                control = [each.shuffled_locality for each in networks]
                axes.plot(control, [height] * len(control), "|", color=COLORS[2], markersize=9)
        label_axes(axes, title, "accuracy" if key == "accuracy" else "share of squared weights in one window", "")
        axes.set_yticks(heights, names, fontsize=8.5)
    places.plot([], [], "|", color=COLORS[2], markersize=9, label="shuffled pixels")
    places.legend(fontsize=8.5, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def _plot_filters(axes: Axes, method: LocalityMethod, network: TrainedNetwork) -> None:
    """Draw the filters of a few units side by side, each scaled to its largest weight."""
    filters = network.filters.sum(1)
    height, width = filters.shape[1:]
    columns = 3
    grid = torch.full((_DRAWN // columns * (height + 1) - 1, columns * (width + 1) - 1), math.nan)
    for number, each in enumerate(filters[:: max(1, len(filters) // _DRAWN)][:_DRAWN]):
        row, column = divmod(number, columns)
        scaled = each / (each.abs().max() + 1e-12)
        grid[row * (height + 1) : row * (height + 1) + height, column * (width + 1) : column * (width + 1) + width] = (
            scaled
        )
    plot_matrix(axes, grid.nan_to_num(0.0).where(~grid.isnan(), torch.tensor(math.nan)))
    label_axes(axes, f"Filters: {method.label}", "", "", has_grid=False)
    axes.set(xticks=[], yticks=[], aspect="equal")
