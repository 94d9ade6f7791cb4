"""Fine-tuning: training that starts from the weights of another run.

    all    every weight is trained                         Devlin et al. (2018), arXiv 1810.04805, section 3.2
    head   only the new layers
    top    the new layers, and the topmost layers of the base
    lora   the new layers, and low-rank updates            Hu et al. (2021), arXiv 2106.09685

Howard & Ruder, "Universal Language Model Fine-tuning for Text Classification"
(2018), sections 3.2 and 3.3, for learning rates that decrease from layer to layer
and for gradual unfreezing from the top. https://arxiv.org/abs/1801.06146
A new linear head is solved first: see `regard.training.probe`.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.adapters.lora import LoraConfig, adapted_layers, add_lora, without_adapter
from regard.errors import CheckpointError, ConfigError
from regard.settings import Settings
from regard.training.checkpoints import copy_weights, hash_of, read_tensors, weights_of

Method = Literal["all", "head", "top", "lora"]

_BODY = "body."
"""The prefix of the base's weights in a model with a head; other weights of such a model are new."""
_BLOCK = re.compile(r"(?:encoder|decoder)\.blocks\.(\d+)\.")
_EMBEDDING_TABLES = ("embedding.weight", "body.embedding.weight")
"""Names of the embedding table in a run folder."""


class FinetuneConfig(Settings):
    """The base of a run, and which of its weights are trained."""

    base: str
    """The run folder of the base; a relative path is relative to the run folder."""
    base_hash: str = ""
    """The hash of the base's weights; written by regard."""
    method: Method = "all"
    """all: every weight is trained; head: only the new layers; top: also the topmost layers of the base; lora: also
    low-rank updates."""
    top_layers: int = Field(default=2, ge=1)
    """The number of layers that the method top trains."""
    probe: bool = True
    """Solve a new linear head exactly on the vectors of the base before training, which starts from there; the method
    head without train.max_steps or train.max_epochs is this solution alone. No effect on heads that are not linear."""
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    """The learning rate of a layer, as a share of that of the layer above it. Unset: 1, but 0.85 for labels and tags
    of 1,000 texts or more on a GPU."""
    gradual: bool = False
    """Unfreeze the layers one after the other, from the top, over the first half of the run."""
    lora: LoraConfig = Field(default_factory=LoraConfig)

    @model_validator(mode="after")
    def _rates_need_layers(self) -> Self:
        if self.method in ("head", "lora") and (self.layer_decay != 1.0 or self.gradual):
            raise ConfigError(
                f"finetune.layer_decay and finetune.gradual need trained layers, got finetune.method={self.method}"
            )
        return self

    @property
    def is_adapter(self) -> bool:
        """Whether the run stores only its trained weights, and needs its base to be used."""
        return self.method == "lora"


def base_folder(config: FinetuneConfig, folder: Path) -> Path:
    """The base of the run in `folder`."""
    base = Path(config.base)
    return base if base.is_absolute() else folder / base


def base_weights(config: FinetuneConfig, folder: Path) -> dict[str, Tensor]:
    """The weights that the run in `folder` started from."""
    path = base_folder(config, folder) / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(
            f"the base of {folder} is not at {path.parent}: move it there, or set finetune.base in "
            f"{folder / 'run.toml'} to where it is (weights {config.base_hash[:12]})"
        )
    if config.base_hash and (found := hash_of(path)) != config.base_hash:
        raise CheckpointError(
            f"the adapter belongs to another base: it was trained on weights {config.base_hash[:12]}, "
            f"and {path.parent} has {found[:12]}"
        )
    return read_tensors(path)[0]


def adapt(model: nn.Module, config: FinetuneConfig, weights: Mapping[str, Tensor]) -> None:
    """Initialize a new model with the weights of its base, and freeze what is not trained."""
    load_base(model, weights)
    if config.method == "all":
        return
    new = _new_names(model)
    if config.method == "lora":
        add_lora(model.get_submodule("body") if _has_body(model) else model, config.lora)
    else:
        model.requires_grad_(False)
    num_layers = depth_of(model)
    for name, parameter in model.named_parameters():
        is_top = (
            config.method == "top" and layer_of(name, num_layers, is_new=name in new) > num_layers - config.top_layers
        )
        if name in new or is_top:
            parameter.requires_grad_(True)


class InitialModel:
    """A model as it is when training starts: the base under its adapter, or else a frozen copy."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._copy = None if adapted_layers(model) else copy.deepcopy(model).eval().requires_grad_(False)

    @contextmanager
    def applied(self) -> Iterator[Any]:
        """A context with the model to call; inside of it, the trained model must not be called."""
        if self._copy is not None:
            yield self._copy
            return
        with without_adapter(self._model):
            yield self._model.eval()


def load_base(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy the weights of a base into the body of `model`, or into all of it where it has no head."""
    own, new = weights_of(model), _new_names(model)
    prefix = _BODY if _has_body(model) else ""
    has_head = any(name.startswith(_BODY) for name in weights)
    theirs = {name.removeprefix(_BODY): w for name, w in weights.items() if not has_head or name.startswith(_BODY)}
    wanted = {name.removeprefix(prefix): tensor for name, tensor in own.items() if name.startswith(prefix)}
    missing = sorted(wanted.keys() - theirs.keys())
    if missing:
        raise CheckpointError(f"the base does not have the weights that this model needs: {', '.join(missing[:3])}")
    copy_weights(wanted, {name: theirs[name] for name in wanted})
    # A head for the same purpose is initialized as well.
    heads = {name: tensor for name, tensor in own.items() if name in new}
    if heads and all(name in weights and weights[name].shape == tensor.shape for name, tensor in heads.items()):
        copy_weights(heads, {name: weights[name] for name in heads})


def _new_names(model: nn.Module) -> set[str]:
    """The names of weights that a base does not have: all but the body's, in a model with a body."""
    return {name for name in weights_of(model) if not name.startswith(_BODY)} if _has_body(model) else set()


def _has_body(model: nn.Module) -> bool:
    return any(name.startswith(_BODY) for name in weights_of(model))


def depth_of(model: nn.Module) -> int:
    """The number of layers of the deepest stack."""
    found = [_BLOCK.search(name) for name, _ in model.named_parameters()]
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def layer_of(name: str, num_layers: int, *, is_new: bool = False) -> int:
    """The depth of a weight: embeddings at 0, layers from 1, new layers above them.

    Example:
        >>> [layer_of(f"body.{part}", 6) for part in ("embedding.weight", "encoder.blocks.0.a", "encoder.blocks.5.a")]
        [0, 1, 6]
        >>> layer_of("head.output.weight", 6, is_new=True)
        7
    """
    if is_new:
        return num_layers + 1
    match = _BLOCK.search(name)
    if match:
        return int(match[1]) + 1
    return num_layers if "final_norm" in name else 0


def lr_multipliers(model: nn.Module, config: FinetuneConfig | None) -> Callable[[str], tuple[float, float]]:
    """For each weight its learning rate as a share of the schedule's, and the share of the run before it is trained."""
    if config is None:
        return lambda name: (1.0, 0.0)
    num_layers, new = depth_of(model), _new_names(model)

    def multipliers(name: str) -> tuple[float, float]:
        below = num_layers + 1 - layer_of(name, num_layers, is_new=name in new)
        return config.layer_decay**below, 0.5 * below / (num_layers + 1) if config.gradual else 0.0

    return multipliers


def default_learning_rate(model_dim: int, method: Method) -> float:
    """The peak of the learning rate by width and method: 1.6e-4 at 384, 5.6e-5 at 768, more for new layers alone."""
    rate = 1.2 / model_dim**1.5
    return float(f"{rate * (12 if method in ('head', 'lora') else 1):.2g}")


@torch.no_grad()
def initialize_embeddings(model: nn.Module, base: str) -> None:
    """Initialize the token embeddings of a new model with those of the run folder `base`, scaled to its own norm.

    Words with similar meanings have similar embeddings, which a small model cannot learn from few rows.
    """
    path = Path(base) / "model.safetensors"
    if not path.is_file():
        raise ConfigError(f"task.embeddings must be a run folder, and {base} has no model.safetensors")
    weights, _ = read_tensors(path)
    table = next((weights[name] for name in _EMBEDDING_TABLES if name in weights), None)
    if table is None:
        raise CheckpointError(f"{base} has no token embeddings: a run with LoRA stores none, its base does")
    names = dict(model.named_parameters())
    own = names.get("body.embedding.weight", names.get("embedding.weight"))
    assert own is not None, "a model of text has token embeddings"
    if len(table) != len(own):
        raise CheckpointError(
            f"embeddings belong to a tokenizer: {base} has {len(table):,}, and the vocabulary {len(own):,} tokens"
        )
    found = resize_embeddings(table.to(own), own.size(1))
    own.copy_(found * (own.square().mean() / found.square().mean()).sqrt())


def resize_embeddings(table: Float[Tensor, "tokens given"], width: int) -> Float[Tensor, "tokens width"]:
    """Project embeddings onto their first `width` principal components, or pad them with zeros.

    This is the projection with the least squared error (Eckart and Young, 1936). Embeddings of this width are returned
    unchanged.
    """
    if table.size(1) == width:
        return table
    centered = table - table.mean(dim=0)
    _, axes = torch.linalg.eigh(centered.T @ centered)
    projected = centered @ axes.flip(1)[:, :width]
    return nn.functional.pad(projected, (0, width - projected.size(1)))
