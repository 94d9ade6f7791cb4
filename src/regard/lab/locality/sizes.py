"""Which networks are trained by which method, at which sizes, and with which settings to choose from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

_Value = TypeVar("_Value")


def middle(values: Sequence[_Value]) -> _Value:
    """Returns the value in the middle, with which a search begins."""
    return values[len(values) // 2]


class LocalityMethod(NamedTuple):
    """A network and how it is trained; without a `beta`, by SGD with momentum."""

    network: str
    beta: float | None = None

    @property
    def label(self) -> str:
        return f"{self.network}, SGD" if self.beta is None else f"{self.network}, beta-lasso {self.beta:g}"


class Rates(NamedTuple):
    """The settings of one training run."""

    learning_rate: float
    penalty: float = 0.0
    """The weight of the L1 penalty in the first layer."""


METHODS = (
    LocalityMethod("S-CONV"), LocalityMethod("S-LOCAL"), LocalityMethod("S-FC"), LocalityMethod("3-FC"),
    LocalityMethod("3-FC", 50.0),
    LocalityMethod("S-FC", 0.0), LocalityMethod("S-FC", 1.0), LocalityMethod("S-FC", 50.0),
)  # fmt: skip
LAST = METHODS[-1]
"""S-FC by beta-lasso with the largest beta."""
MAIN = (*METHODS[:3], LAST)
"""The networks between which the gap is, and by which it is closed."""
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
    num_train: int = 4_000
    num_test: int = 2_000
    noise: float = 0.6
    """Standard deviation of the noise in generated images, whose patterns have an amplitude of 1."""
    valid_share: float = 0.0
    """The share of training images that are left out: the settings that are best on these are taken."""
    kernel: int = 5
    base_channels: int = 8
    """Channels of the convolution; the second layer has 24 times as many units."""
    epochs: int = 40
    batch_size: int = 100
    learning_rates: tuple[float, ...] = (0.05,)
    """The learning rates of SGD to choose from, in order; its momentum is 0.9."""
    lasso_rates: tuple[float, ...] = (0.3,)
    """The learning rates of beta-lasso to choose from, in order; it has no momentum."""
    paths: tuple[float, ...] = (0.024,)
    """How far the penalty alone moves a weight in the whole training, to choose from, in order. The penalty follows
    from it, the learning rate and the number of steps."""
    num_settings: int = 4
    """Settings of a method that are tried at most before another method has its turn."""
    search_share: float = 0.1
    """The share of the epochs after which learning rates of SGD are compared."""
    later_penalty: float = 0.25
    """The penalty of the layers after the first one, as a share of the penalty of the first."""
    shift: int = 2
    """Random shifts of training images, in pixels of each direction."""
    distortion: float = 0.0
    """How strongly training images are rotated, scaled, recolored and partly covered, from 0 to 1."""
    num_seeds: int = 3

    def rates(self, method: LocalityMethod, num_steps: int) -> list[list[Rates]]:
        """Returns the settings to choose from in order: learning rates, each with all penalties."""
        if method.beta is None:
            return [[Rates(rate)] for rate in self.learning_rates]
        # A rate that falls as a cosine is half of the first one on average.
        return [
            [Rates(rate, float(f"{path / (rate * num_steps / 2):.3g}")) for path in self.paths]
            for rate in self.lasso_rates
        ]


FULL = LocalitySizes(num_test=4_000, base_channels=16, epochs=120, paths=(0.072,), num_seeds=5)
IMAGES = LocalitySizes(
    valid_share=0.1,
    kernel=9,
    base_channels=32,
    epochs=400,
    batch_size=512,
    learning_rates=(0.01, 0.03, 0.1, 0.3, 1.0),
    lasso_rates=(0.1, 0.3, 1.0, 3.0),
    paths=(0.02, 0.06, 0.2, 0.6, 2.0),
    shift=4,
    distortion=0.5,
    num_seeds=1,
)
"""For CIFAR-10 and other images of a user, on a GPU."""
QUICK_IMAGES = LocalitySizes(kernel=9, base_channels=4, epochs=2, batch_size=128, num_seeds=1)
