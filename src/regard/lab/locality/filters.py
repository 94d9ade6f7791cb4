r"""Shallow networks whose first layer is convolutional, locally connected or fully connected, by SGD and beta-lasso.

Neyshabur, "Towards Learning Convolutions from Scratch" (2020). https://arxiv.org/abs/2007.13657

S-CONV has a convolution with a large kernel and a stride of 2, a fully connected layer and an output layer; each
layer but the last is followed by batch normalization and ReLU. S-LOCAL has the same connections without shared
weights, and S-FC all connections: each contains the one before it. 3-FC has two hidden layers of equal width and the
number of parameters of S-FC. The fewer the assumptions, the lower the accuracy by SGD.

The settings of each method are those with the best accuracy on validation images: a search begins in the middle of a
grid, and tries neighbors of the best. Each round tries one more setting of every method.

The locality of a unit is the largest share of its squared first-layer weights within one window of the kernel's size.
It is compared with that of the same weights at shuffled pixels.
"""

import base64
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from regard.data.prepare import cache_folder
from regard.errors import ConfigError, DataError
from regard.evaluation.intervals import Interval, clopper_pearson, mean_interval
from regard.files import partial_path
from regard.lab.drawing import COLORS, label_axes, make_panels, plot_matrix
from regard.lab.locality import LOCALITY
from regard.lab.locality.images import ImageSets, generated_images, read_images
from regard.lab.locality.sizes import (
    FULL,
    IMAGES,
    METHODS,
    PUBLISHED,
    QUICK_IMAGES,
    LocalityMethod,
    LocalitySizes,
    Rates,
    middle,
)
from regard.lab.locality.training import OutOfTimeError, TrainedNetwork, seconds_per_epoch, train_network
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info, progress_bar
from regard.training.precision import find_device

_RESERVE = 0.85
"""The share of the time that is planned for training; the rest is for what takes longer than planned."""
_ROUNDS = 3
"""Settings of each method for which time is planned."""
_DRAWN = 12
"""Filters that are drawn of each network."""
_SMALLEST, _LARGEST = 20, 2_000
"""Epochs that are planned at least and at most."""


@dataclass(frozen=True)
class LocalityJob:
    """One network to train: a method, one of its settings, and a seed."""

    method: LocalityMethod
    rates: Rates
    seed: int


Results = dict[LocalityMethod, list[TrainedNetwork]]
"""Of each method the networks with the settings that are best on the validation images, one for each seed."""


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
) -> Study:
    """Train each network by each method, and measure accuracies, surviving weights and their locality.

    Where a method has several settings, the one with the best accuracy on validation images is reported. With
    `minutes` and without `epochs`, as many epochs are planned as fit. Finished networks are stored in the folder
    `results`, otherwise in the cache until the study ends: an interrupted study continues.
    """
    sizes = sizes or ((LocalitySizes() if quick else FULL) if data is None else QUICK_IMAGES if quick else IMAGES)
    started = time.perf_counter()
    seconds = None if minutes is None else 60 * _positive(minutes, "minutes")
    if channels is not None:
        sizes = replace(sizes, base_channels=int(_positive(channels, "channels")))
    place = find_device(device)
    images = generated_images(sizes, seed=seed) if data is None else read_images(data)
    content = hashlib.sha256(images.train[:100].numpy().tobytes()).hexdigest()[:16]
    images = images.to(place)
    key: dict[str, Any] = {**asdict(sizes), "seed": seed, "content": content, "device": place.type}
    digest = hashlib.sha256(json.dumps([key, epochs, minutes]).encode()).hexdigest()[:16]
    store = _Store(Path(results) if results else cache_folder() / "lab" / f"locality-{digest}", key)
    if epochs is not None:
        sizes = replace(sizes, epochs=int(_positive(epochs, "epochs")))
    elif store.epochs is not None:
        sizes = replace(sizes, epochs=store.epochs)
    elif seconds is not None:
        sizes = replace(sizes, epochs=_planned_epochs(images, sizes, seconds - (time.perf_counter() - started)))
    store.begin(sizes.epochs)
    trained = _train_all(store, images, sizes, seed, None if seconds is None else started + seconds)
    if not trained:
        raise DataError("no network was trained to the end in this time; allow more --minutes or fewer --epochs")
    chosen = best_networks(trained)
    figure, axes = make_panels(2, 3, height=3.6)
    _plot_scores(axes[0], axes[1], chosen)
    shown = (LocalityMethod("S-CONV"), LocalityMethod("S-FC"), LocalityMethod("S-FC", 50.0))
    for panel, method in zip(axes[2:], shown, strict=True):
        if method in chosen:
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


def next_settings(settings: Sequence[Sequence[Rates]], scores: Mapping[Rates, float]) -> Rates | None:
    """Returns what to try after those with a score: the middle, then a neighbor of the best; None at the end."""
    if not scores:
        return middle(middle(settings))
    best = max(scores, key=lambda rates: scores[rates])
    row, column = next((row, each.index(best)) for row, each in enumerate(settings) if best in each)
    places = [(row, column + 1), (row - 1, column), (row, column - 1), (row + 1, column)]
    neighbors = [settings[r][c] for r, c in places if 0 <= r < len(settings) and 0 <= c < len(settings[r])]
    return next((each for each in neighbors if each not in scores), None)


def _planned_epochs(images: ImageSets, sizes: LocalitySizes, seconds: float) -> int:
    """Returns the number of epochs with which all networks are trained in the given time."""
    start = time.perf_counter()
    training = images.hold_out(sizes.valid_share) if sizes.valid_share else images
    # The value of beta does not matter.
    kinds = {(method.network, method.beta is None): method for method in METHODS}
    times = {kind: seconds_per_epoch(method, training, sizes) for kind, method in kinds.items()}
    once = sizes.num_seeds * sum(times[method.network, method.beta is None] for method in METHODS)
    rounds = _ROUNDS if sizes.valid_share else 1
    left = _RESERVE * (seconds - (time.perf_counter() - start))
    epochs = min(_LARGEST, max(_SMALLEST, int(left / (rounds * once))))
    listed = ", ".join(f"{kinds[kind].label} {1_000 * each:.0f} ms" for kind, each in times.items())
    log_info(f"an epoch takes {listed}; {epochs} epochs are planned")
    return epochs


def search_jobs(
    sizes: LocalitySizes, trained: Mapping[LocalityJob, TrainedNetwork], *, seed: int
) -> Iterator[LocalityJob]:
    """Yield the networks to train, in rounds with one more setting of each method; each is then in `trained`.

    beta-lasso comes first: where the time ends within a round, it is SGD that has one setting less.
    """
    scores: dict[LocalityMethod, dict[Rates, float]] = {method: {} for method in METHODS}
    seeds = range(seed, seed + sizes.num_seeds)
    is_over = False
    while not is_over:
        is_over = True
        for method in reversed(METHODS):
            rates = next_settings(sizes.rates(method), scores[method])
            if rates is not None:
                yield from (LocalityJob(method, rates, each) for each in seeds)
                scores[method][rates] = sum(
                    trained[LocalityJob(method, rates, each)].num_valid_correct for each in seeds
                )
                is_over = not sizes.valid_share


def _train_all(
    store: "_Store", images: ImageSets, sizes: LocalitySizes, seed: int, deadline: float | None
) -> dict[LocalityJob, TrainedNetwork]:
    """Train what the store does not have, until the deadline."""
    valid = images.hold_out(sizes.valid_share) if sizes.valid_share else None
    trained: dict[LocalityJob, TrainedNetwork] = {}
    most = sizes.num_seeds * sum(sum(map(len, sizes.rates(method))) if valid else 1 for method in METHODS)
    for job in progress_bar(search_jobs(sizes, trained, seed=seed), "networks", total=most):
        found = store.networks.get(job) or _train_one(store, job, images, valid, sizes, deadline)
        if found is None:
            break
        trained[job] = found
    return trained


def _train_one(
    store: "_Store",
    job: LocalityJob,
    images: ImageSets,
    valid: ImageSets | None,
    sizes: LocalitySizes,
    deadline: float | None,
) -> TrainedNetwork | None:
    """Train and store a network; None where the time is over."""
    start = time.perf_counter()
    if deadline is not None and start > deadline:
        return None
    try:
        network = train_network(
            job.method, job.rates, images, sizes, seed=job.seed, valid=valid, deadline=deadline,
            checkpoint=store.folder / f"{store.name(job)}.safetensors",
        )  # fmt: skip
    except OutOfTimeError as error:
        log_info(f"the time is over: {error}")
        return None
    log_info(_describe(job, network, valid, time.perf_counter() - start))
    store.add(job, network)
    return network


def _describe(job: LocalityJob, network: TrainedNetwork, valid: ImageSets | None, seconds: float) -> str:
    held = "" if valid is None else f" validation {network.num_valid_correct / len(valid.test):.4f}"
    return (
        f"{job.method.label}, rate {job.rates.learning_rate:g}, penalty {job.rates.penalty:g}:{held} "
        f"test {network.accuracy:.4f} training loss {network.train_loss:.3f} weights {network.surviving:.3f} "
        f"locality {network.locality:.3f} shuffled {network.shuffled_locality:.3f} in {seconds:.0f} s"
    )


class _Store:
    """Finished networks in a folder, with the settings that they share."""

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self.folder, self._path = folder, folder / "networks.json"
        self._key = json.loads(json.dumps(key))
        self.epochs: int | None = None
        self.networks: dict[LocalityJob, TrainedNetwork] = {}
        if self._path.is_file():
            self._read()

    def _read(self) -> None:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            key, self.epochs = found["settings"], found["epochs"]
            for row in found["networks"]:
                job = LocalityJob(LocalityMethod(*row["method"]), Rates(*row["rates"]), row["seed"])
                self.networks[job] = _network_from_json(row["network"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self._path} does not have the networks of a study: {error}") from None
        # The number of epochs is compared when it is known.
        different = [
            name for name in self._key if name not in ("epochs", "device") and key.get(name) != self._key[name]
        ]
        if different:
            name = different[0]
            raise ConfigError(
                f"{self.folder} has networks of another study: {name} was {key.get(name)} and is {self._key[name]}; "
                "name another folder"
            )

    def begin(self, epochs: int) -> None:
        """Check the number of epochs, or store it."""
        if self.epochs not in (None, epochs):
            raise ConfigError(
                f"{self.folder} has networks of another study: epochs was {self.epochs} and is {epochs}; "
                "name another folder"
            )
        self.epochs = epochs
        self._write()

    def add(self, job: LocalityJob, network: TrainedNetwork) -> None:
        """Store a finished network; its checkpoint is removed."""
        self.networks[job] = network
        self._write()
        (self.folder / f"{self.name(job)}.safetensors").unlink(missing_ok=True)

    def name(self, job: LocalityJob) -> str:
        """Returns the name of a network's checkpoint."""
        return hashlib.sha256(repr((job, self.epochs)).encode()).hexdigest()[:16]

    def remove(self) -> None:
        """Remove what is stored."""
        for path in [self._path, *self.folder.glob("*.safetensors")]:
            path.unlink(missing_ok=True)

    def _write(self) -> None:
        rows = [
            {"method": list(job.method), "rates": list(job.rates), "seed": job.seed, "network": _network_to_json(each)}
            for job, each in self.networks.items()
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        found = {"settings": self._key, "epochs": self.epochs, "networks": rows}
        partial_path(self._path).write_text(json.dumps(found) + "\n", encoding="utf-8")
        partial_path(self._path).replace(self._path)


def _network_to_json(network: TrainedNetwork) -> dict[str, Any]:
    values = {each.name: getattr(network, each.name) for each in fields(network)}
    drawn = network.filters.to(torch.float16).numpy()
    values["filters"] = {"shape": list(drawn.shape), "float16": base64.b64encode(drawn.tobytes()).decode()}
    return values


def _network_from_json(values: Mapping[str, Any]) -> TrainedNetwork:
    drawn = values["filters"]
    numbers = np.frombuffer(base64.b64decode(drawn["float16"]), np.float16).reshape(drawn["shape"])
    return TrainedNetwork(**{**values, "filters": torch.from_numpy(numbers.astype(np.float32))})


def best_settings(trained: Mapping[LocalityJob, TrainedNetwork]) -> dict[LocalityMethod, Rates]:
    """Returns the settings of each method with the best mean accuracy on the validation images."""
    scores: dict[tuple[LocalityMethod, Rates], list[int]] = {}
    for job, network in trained.items():
        scores.setdefault((job.method, job.rates), []).append(network.num_valid_correct)
    best: dict[LocalityMethod, Rates] = {}
    for (method, rates), found in scores.items():
        if method not in best or np.mean(found) > np.mean(scores[method, best[method]]):
            best[method] = rates
    return best


def best_networks(trained: Mapping[LocalityJob, TrainedNetwork]) -> Results:
    """Returns the networks of each method with its best settings."""
    best = best_settings(trained)
    results: Results = {}
    for job, network in trained.items():
        if best[job.method] == job.rates:
            results.setdefault(job.method, []).append(network)
    return {method: results[method] for method in METHODS if method in results}


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


def _report(
    trained: Mapping[LocalityJob, TrainedNetwork], sizes: LocalitySizes, images: ImageSets, *, is_cifar: bool
) -> StudySection:
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


def _settings_table(trained: Mapping[LocalityJob, TrainedNetwork], num_valid: int) -> StudyTable:
    best = best_settings(trained)
    rows = [
        [
            job.method.label, job.rates.learning_rate, job.rates.penalty if job.method.beta is not None else None,
            network.num_valid_correct / num_valid, network.train_loss, network.surviving, network.locality,
            "yes" if best[job.method] == job.rates else "no",
        ]
        for job, network in trained.items()
    ]  # fmt: skip
    return StudyTable(
        "Settings",
        ["network and method", "learning rate", "penalty", "validation accuracy", "training loss",
         "surviving weights", "locality", "taken"],
        rows,
        f"Accuracies are those of {num_valid:,} training images that are left out. The search begins in the "
        "middle of a list of settings and tries neighbors of the best. The training loss is that of the last epoch.",
    )  # fmt: skip


def _mean(networks: Sequence[TrainedNetwork], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in networks]))


def _findings(results: Results, sizes: LocalitySizes) -> list[str]:
    accuracies = {method: _mean(networks, "accuracy") for method, networks in results.items()}
    nested = [method for name in ("S-CONV", "S-LOCAL", "S-FC") if (method := LocalityMethod(name)) in results]
    holds = all(accuracies[one] > accuracies[other] for one, other in pairwise(nested))
    listed = ", ".join(f"{method.network} {accuracies[method]:.3f}" for method in nested)
    order = "fewer assumptions, lower accuracy" if holds else "not in the order of their assumptions"
    findings = [f"By SGD: {listed} ({order})."]
    best = METHODS[-1]
    if best not in results or len(nested) < 3:
        missing = ", ".join(method.label for method in METHODS if method not in results)
        return [*findings, f"Not trained in this time: {missing}."]
    share = recovered_share(results, best.beta or 0.0)
    if share is None:
        findings.append("S-LOCAL is not better than S-FC by SGD here: there is no gap to recover.")
    else:
        interval = "" if math.isnan(share[1]) else f" [{share[1]:.0%}, {share[2]:.0%}]"
        others = " and ".join(
            f"{accuracies[method]:.3f} with beta {method.beta:g}" for method in METHODS[4:-1] if method in accuracies
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
    columns = 4
    grid = torch.full((3 * (height + 1) - 1, columns * (width + 1) - 1), math.nan)
    for number, each in enumerate(filters[:: max(1, len(filters) // _DRAWN)][:_DRAWN]):
        row, column = divmod(number, columns)
        scaled = each / (each.abs().max() + 1e-12)
        grid[row * (height + 1) : row * (height + 1) + height, column * (width + 1) : column * (width + 1) + width] = (
            scaled
        )
    plot_matrix(axes, grid.nan_to_num(0.0).where(~grid.isnan(), torch.tensor(math.nan)))
    label_axes(axes, f"Filters: {method.label}", "", "", has_grid=False)
    axes.set(xticks=[], yticks=[], aspect="equal")
