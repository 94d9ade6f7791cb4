r"""Training of the networks by SGD and by beta-lasso, on a GPU as replays of a CUDA graph.

Neyshabur, "Towards Learning Convolutions from Scratch" (2020). https://arxiv.org/abs/2007.13657

beta-lasso takes steps on the loss with an L1 penalty, and then removes weights below a threshold:

$$\theta \leftarrow \theta - \eta (\nabla L(\theta) + \lambda \operatorname{sign} \theta), \qquad
  \theta \leftarrow \theta \cdot 1[|\theta| \ge \beta \lambda].$$

With $\beta = 0$ it is plain subgradient descent on the L1 penalty, which leaves weights near 0 but not at it.

Learning rates fall as a cosine to 0. A weight of 0 returns only if a single step moves it beyond the threshold.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import CheckpointError
from regard.files import partial_path
from regard.generation.cuda_graphs import capture_cuda_graph
from regard.lab.locality.images import ImageSets, vary_images
from regard.lab.locality.networks import dense_filters, make_network, shuffle_pixels, window_shares
from regard.lab.locality.sizes import LocalityMethod, LocalitySizes, Rates, middle
from regard.logging import log_info, log_warning

_KEPT = 24
"""Filters that are kept of each network."""
_MOMENTUM = 0.9
_TIMED_SECONDS = 0.5
_BATCHES_VARIED = {"cuda": 16}
"""Batches whose images are varied together, outside of the graph of a step: many small kernels would take as long as
the network. On a CPU it is one."""


class OutOfTimeError(Exception):
    """The time for training is over; the checkpoint has what was reached."""


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
    filters: Float[Tensor, "unit channels height width"]
    """A few filters, from the strongest to the weakest."""
    num_valid_correct: int = 0
    """Of the images that are held out for the choice of settings."""
    train_loss: float = math.nan
    """The mean of the last epoch, on varied images."""

    @property
    def accuracy(self) -> float:
        return self.num_correct / self.num_tests


def beta_lasso_step(
    weight: Tensor, gradient: Tensor, rounded: Tensor, rate: Tensor, penalty: Tensor, threshold: Tensor
) -> None:
    """Take a step on the loss with an L1 penalty, and set weights below the threshold, beta times the penalty, to 0.

    `rounded` gets the same weights, in its own number type.
    """
    moved = weight - rate * (gradient + penalty * weight.sign())
    moved = moved * (moved.abs() >= threshold)
    weight.copy_(moved)
    rounded.copy_(moved)


def _sgd_step(weight: Tensor, gradient: Tensor, rounded: Tensor, momentum: Tensor, rate: Tensor) -> None:
    velocity = _MOMENTUM * momentum + gradient
    moved = weight - rate * velocity
    momentum.copy_(velocity)
    weight.copy_(moved)
    rounded.copy_(moved)


class _Compiled:
    """An update as one kernel on a GPU, or as it is where that fails."""

    def __init__(self, update: Callable[..., None]) -> None:
        self._plain = update
        self._fast: Callable[..., None] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        if not tensors[0].is_cuda:
            self._plain(*tensors)
            return
        if self._fast is None:
            self._fast = torch.compile(self._plain, dynamic=True)
            try:
                self._fast(*(each.clone() for each in tensors))
            except Exception as error:  # what a compiler raises is not documented
                log_warning(f"updates are not compiled and are slower: {str(error).splitlines()[0]}")
                self._fast = self._plain
        self._fast(*tensors)


_sgd, _lasso = _Compiled(_sgd_step), _Compiled(beta_lasso_step)


def _number_type(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.get_default_dtype()


class _Training:
    """A network with the state of its training; `step` reads and changes tensors on the device only."""

    def __init__(
        self,
        method: LocalityMethod,
        rates: Rates,
        images: ImageSets,
        sizes: LocalitySizes,
        *,
        seed: int,
        epochs: int | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.method, self.images, self.sizes, self.seed = method, images, sizes, seed
        self.device = images.train.device
        self.network = make_network(
            method.network, images.shape, images.num_classes,
            base_channels=sizes.base_channels, kernel=sizes.kernel,
        ).to(self.device)  # fmt: skip
        self.parameters = list(self.network.parameters())
        self.exact = [each.detach().clone() for each in self.parameters]
        """The weights in full precision; on a GPU the layers of the network, other than its norms, are in bfloat16."""
        self.number_type = _number_type(self.device)
        for layer in self.network:
            if not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.to(self.number_type)
        self.momenta = [
            torch.zeros_like(each) for each in self.exact if method.beta is None or each.ndim == 1
        ]  # fmt: skip
        self.batch_size = min(sizes.batch_size, len(images.train))
        self.steps_per_epoch = len(images.train) // self.batch_size
        number = {"dtype": torch.get_default_dtype(), "device": self.device}
        self.order = torch.arange(len(images.train), device=self.device)
        self.within = torch.arange(self.batch_size, device=self.device)
        self.num_varied = min(self.steps_per_epoch, _BATCHES_VARIED.get(self.device.type, 1))
        count = self.num_varied * self.batch_size
        self.varied = torch.zeros(count, *images.shape, dtype=self.number_type, device=self.device)
        self.varied_labels = images.train_labels[:count].clone()
        self.num_done = torch.zeros((), dtype=torch.long, device=self.device)
        self.loss = torch.zeros((), **number)
        self.epochs = epochs or sizes.epochs
        self.total = torch.tensor(float(self.epochs * self.steps_per_epoch), **number)
        self.rate = torch.tensor(rates.learning_rate, **number)
        self.other_rate = torch.tensor(middle(sizes.learning_rates), **number)
        shares = [1.0 if number == 0 else sizes.later_penalty for number in range(len(self.parameters))]
        self.penalties = [torch.tensor(rates.penalty * share, **number) for share in shares]
        self.thresholds = [each * (method.beta or 0.0) for each in self.penalties]
        sample = images.train[:5_000].to(torch.get_default_dtype())
        self.mean, self.std = sample.mean((0, 2, 3), keepdim=True), sample.std((0, 2, 3), keepdim=True)

    def vary(self, number: int) -> None:
        """Vary the images of the next batches where step `number` of the epoch is the first of these."""
        if number % self.num_varied:
            return
        sizes, images = self.sizes, self.images
        rows = self.order[: self.steps_per_epoch * self.batch_size][number * self.batch_size :][: len(self.varied)]
        pixels = (images.train[rows].to(self.mean.dtype) - self.mean) / self.std
        pixels = vary_images(
            pixels, shift=sizes.shift, distortion=sizes.distortion, is_mirrored=images.is_mirrored
        )  # fmt: skip
        self.varied[: len(rows)].copy_(pixels)
        self.varied_labels[: len(rows)].copy_(images.train_labels[rows])

    def step(self) -> None:
        """Take one step on the next of the varied images."""
        rows = self.num_done % self.steps_per_epoch % self.num_varied * self.batch_size + self.within
        outputs = self.network(self.varied.index_select(0, rows))
        loss = F.cross_entropy(outputs.to(self.mean.dtype), self.varied_labels.index_select(0, rows))
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            self._update(gradients)
            self.loss.add_(loss)
            self.num_done.add_(1)

    def _update(self, gradients: Sequence[Tensor]) -> None:
        decay = (1 + torch.cos(math.pi * self.num_done / self.total)) / 2
        rate, other_rate = decay * self.rate, decay * (self.rate if self.method.beta is None else self.other_rate)
        momenta = iter(self.momenta)
        for number, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            flat = [each.reshape(-1) for each in (self.exact[number], gradient, parameter.detach())]
            if self.method.beta is None or parameter.ndim == 1:
                _sgd(*flat, next(momenta).view(-1), other_rate)
            else:
                _lasso(*flat, rate, self.penalties[number], self.thresholds[number])

    def state(self) -> dict[str, Tensor]:
        """Returns the tensors that change, by their names."""
        tensors = {
            "num_done": self.num_done,
            **{f"network.{name}": each for name, each in self.network.named_buffers()},
        }
        tensors |= {f"exact.{number}": each for number, each in enumerate(self.exact)}
        return tensors | {f"momentum.{number}": each for number, each in enumerate(self.momenta)}

    def restore(self, values: dict[str, Tensor]) -> None:
        """Copy the values into the tensors of `state`."""
        with torch.no_grad():
            for name, each in self.state().items():
                each.copy_(values[name])
            for parameter, exact in zip(self.parameters, self.exact, strict=True):
                parameter.copy_(exact)

    def run_epoch(self, step: Callable[[], None]) -> None:
        """Take the steps of an epoch."""
        for number in range(self.steps_per_epoch):
            self.vary(number)
            step()

    def captured(self) -> Callable[[], None]:
        """Returns `step` as a CUDA graph on a GPU."""
        if self.device.type != "cuda":
            return self.step
        before = {name: each.clone() for name, each in self.state().items()}
        replay = capture_cuda_graph(self.step)
        self.restore(before)
        return replay or self.step

    def start_epoch(self, epoch: int) -> None:
        """Draw the order of the images; a resumed training draws the same."""
        torch.manual_seed(1_000_003 * self.seed + epoch)
        self.order.copy_(torch.randperm(len(self.order), device=self.device))
        self.loss.zero_()


def seconds_per_epoch(method: LocalityMethod, images: ImageSets, sizes: LocalitySizes) -> float:
    """Returns how long an epoch takes here, from a few steps."""
    training = _Training(method, Rates(1e-3), images, sizes, seed=0)
    step = training.captured()
    synchronize = torch.cuda.synchronize if training.device.type == "cuda" else lambda: None
    training.vary(0)
    step()
    synchronize()
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < _TIMED_SECONDS:
        for _ in range(training.num_varied):
            training.vary(count % training.num_varied)
            step()
            count += 1
        synchronize()
    return (time.perf_counter() - start) / count * training.steps_per_epoch


def train_network(
    method: LocalityMethod,
    rates: Rates,
    images: ImageSets,
    sizes: LocalitySizes,
    *,
    seed: int,
    epochs: int | None = None,
    valid: ImageSets | None = None,
    checkpoint: Path | None = None,
    seconds_between: float = 60.0,
    deadline: float | None = None,
) -> TrainedNetwork:
    """Train a network, from `checkpoint` where an interrupted run has left one, and measure it.

    It is trained for `epochs`, by default those of `sizes`. With `valid`, it is trained on the images of `valid`, and
    scored on its test images too. After the `deadline`, a time of `time.perf_counter`, an `OutOfTimeError` is raised.
    """
    training = _Training(method, rates, valid or images, sizes, seed=seed, epochs=epochs)
    first = _restore(checkpoint, training)
    step = training.captured()
    saved = time.perf_counter()
    for epoch in range(first, training.epochs):
        training.start_epoch(epoch)
        training.run_epoch(step)
        if training.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        is_over = deadline is not None and now > deadline and epoch + 1 < training.epochs
        if checkpoint is not None and (is_over or now - saved >= seconds_between):
            _save(checkpoint, training, epoch + 1)
            saved = now
        if is_over:
            raise OutOfTimeError(f"{method.label} after {epoch + 1} of {training.epochs} epochs")
    return _measure(training, images, valid)


@torch.no_grad()
def _measure(training: _Training, images: ImageSets, valid: ImageSets | None) -> TrainedNetwork:
    network, sizes = training.network, training.sizes
    for parameter, exact in zip(training.parameters, training.exact, strict=True):
        parameter.data = exact
    network.eval()

    def count_correct(sets: ImageSets) -> int:
        pairs = zip(sets.test.split(1_000), sets.test_labels.split(1_000), strict=True)
        scaled = (((pixels.to(training.mean.dtype) - training.mean) / training.std, labels) for pixels, labels in pairs)
        return sum(int((network(pixels).argmax(1) == labels).sum()) for pixels, labels in scaled)

    filters = dense_filters(network[0], images.shape)
    shares = window_shares(filters, sizes.kernel)
    shuffled = window_shares(shuffle_pixels(filters, seed=training.seed), sizes.kernel)
    strongest = filters.square().sum((1, 2, 3)).argsort(descending=True)
    return TrainedNetwork(
        num_correct=count_correct(images),
        num_tests=len(images.test),
        surviving=(filters != 0).double().mean().item(),
        locality=shares.median().item() if len(shares) else math.nan,
        shuffled_locality=shuffled.median().item() if len(shuffled) else math.nan,
        filters=filters[strongest[:: max(1, len(filters) // _KEPT)][:_KEPT]].cpu(),
        num_valid_correct=0 if valid is None else count_correct(valid),
        train_loss=training.loss.item() / training.steps_per_epoch,
    )


def _save(path: Path, training: _Training, epoch: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: each.contiguous() for name, each in training.state().items()}
    save_file(tensors, partial_path(path), {"epoch": str(epoch)})
    partial_path(path).replace(path)


def _restore(path: Path | None, training: _Training) -> int:
    """Load a checkpoint; returns the number of epochs that are done."""
    if path is None or not path.is_file():
        return 0
    try:
        with safe_open(path, "pt") as file:
            epoch = int(file.metadata()["epoch"])
        training.restore(load_file(path))
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} is no checkpoint of this network: {error}; remove it") from None
    log_info(f"resumed after {epoch} epochs")
    return epoch
