"""Fine-tuning: going on from weights that were trained on something else.

    all    every weight moves                              Devlin et al. (2018), arXiv 1810.04805, section 3.2
    head   only what is new
    top    what is new, and the topmost layers
    lora   what is new, and low-rank corrections           Hu et al. (2021), arXiv 2106.09685

Howard & Ruder, "Universal Language Model Fine-tuning for Text Classification"
(2018), sections 3.2 and 3.3, for rates that fall from layer to layer and for
layers that begin to move one after the other, from the top. https://arxiv.org/abs/1801.06146
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.adapters.lora import LoraConfig, add_lora
from regard.errors import CheckpointError, ConfigError
from regard.settings import Settings
from regard.training.checkpoints import copy_weights, hash_of, read_tensors, weights_of

Method = Literal["all", "head", "top", "lora"]

_BODY = "body."
_NEW = ("head.", "pooling.", "crf.", "forms.")
"""What the names of weights begin with that a base does not have."""
_BLOCK = re.compile(r"(?:encoder|decoder)\.blocks\.(\d+)\.")


class FinetuneConfig(Settings):
    """What a run goes on from, and what of it may move."""

    base: str
    """The run folder whose weights were the start."""
    base_hash: str = ""
    """The hash of those weights; written by regard."""
    method: Method = "all"
    """all: every weight moves; head: only what is new; top: also the topmost layers; lora: also low-rank
    corrections."""
    top_layers: int = Field(default=2, ge=1)
    """How many layers move with the method top."""
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    """What share of the rate of the layer above it a layer has."""
    gradual: bool = False
    """Let the layers begin to move one after the other, from the top, over the first half of the run."""
    lora: LoraConfig = Field(default_factory=LoraConfig)

    @model_validator(mode="after")
    def _rates_need_layers(self) -> Self:
        if self.method in ("head", "lora") and (self.layer_decay != 1.0 or self.gradual):
            raise ConfigError(
                f"finetune.layer_decay and finetune.gradual are for layers that move, got finetune.method={self.method}"
            )
        return self

    @property
    def is_adapter(self) -> bool:
        """Whether the run keeps only what it trained, and needs its base to be used."""
        return self.method == "lora"


def base_weights(config: FinetuneConfig) -> dict[str, Tensor]:
    """The weights that the run goes on from, which must be those it began with."""
    path = Path(config.base) / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(
            f"the base of this run is not at {config.base} any more: bring it back, or import it anew"
        )
    if config.base_hash and (found := hash_of(path)) != config.base_hash:
        raise CheckpointError(
            f"the adapter belongs to another base: it was trained on weights {config.base_hash[:12]}, "
            f"{config.base} holds {found[:12]}"
        )
    return read_tensors(path)[0]


def adapt(model: nn.Module, config: FinetuneConfig, weights: Mapping[str, Tensor]) -> None:
    """Give a fresh model the weights of its base, and freeze what is not to move."""
    load_base(model, weights)
    if config.method == "all":
        return
    if config.method == "lora":
        add_lora(model.get_submodule("body") if hasattr(model, "body") else model, config.lora)
    else:
        model.requires_grad_(False)
    num_layers = depth_of(model)
    for name, parameter in model.named_parameters():
        place = layer_of(name, num_layers)
        is_top = config.method == "top" and place > num_layers - config.top_layers
        if name.startswith(_NEW) or is_top:
            parameter.requires_grad_(True)


def load_base(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy what a base has into the body of `model`, or into all of it where it has no body of its own."""
    own = weights_of(model)
    prefix = _BODY if any(name.startswith(_BODY) for name in own) else ""
    theirs = {name.removeprefix(_BODY): tensor for name, tensor in weights.items() if not name.startswith(_NEW)}
    wanted = {name.removeprefix(prefix): tensor for name, tensor in own.items() if not name.startswith(_NEW)}
    missing = sorted(wanted.keys() - theirs.keys())
    if missing:
        raise CheckpointError(f"the base has not the weights that this model needs: missing {', '.join(missing[:3])}")
    copy_weights(wanted, {name: theirs[name] for name in wanted})
    # A head for the same purpose goes on as well.
    heads = {name: tensor for name, tensor in own.items() if name.startswith(_NEW)}
    if heads and all(name in weights and weights[name].shape == tensor.shape for name, tensor in heads.items()):
        copy_weights(heads, {name: weights[name] for name in heads})


def depth_of(model: nn.Module) -> int:
    """How many layers stand one upon another."""
    found = [_BLOCK.search(name) for name, _ in model.named_parameters()]
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def layer_of(name: str, num_layers: int) -> int:
    """Where a weight stands: embeddings at 0, the layers at 1 and up, what is new above them.

    Example:
        >>> [layer_of(f"body.{part}", 6) for part in ("embedding.weight", "encoder.blocks.0.a", "encoder.blocks.5.a")]
        [0, 1, 6]
        >>> layer_of("head.output.weight", 6)
        7
    """
    if name.startswith(_NEW):
        return num_layers + 1
    match = _BLOCK.search(name)
    if match:
        return int(match[1]) + 1
    return num_layers if "final_norm" in name else 0


def share_of(name: str, config: FinetuneConfig, num_layers: int) -> float:
    """What share of the rate a weight has."""
    return config.layer_decay ** (num_layers + 1 - layer_of(name, num_layers))


def opens_at(name: str, config: FinetuneConfig, num_layers: int) -> float:
    """The share of the run after which a weight begins to move."""
    if not config.gradual:
        return 0.0
    return 0.5 * (num_layers + 1 - layer_of(name, num_layers)) / (num_layers + 1)


def usual_rate(model_dim: int, method: Method) -> float:
    """A peak that neither forgets what the base knows nor leaves it as it is; what is new can bear more.

    Wide models bear less than narrow ones: 1.6e-4 at 384, 5.6e-5 at 768.
    """
    rate = 1.2 / model_dim**1.5
    return float(f"{rate * (12 if method in ('head', 'lora') else 1):.2g}")
