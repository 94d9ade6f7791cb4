"""Several runs with LoRA that share the weights of one base in memory."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError, RunError
from regard.runs.run import Run

_SHOWN = 12
"""Digits of a hash in messages."""


def load_adapters(paths: Sequence[str | os.PathLike[str]], *, device: str = "auto") -> dict[str, Run]:
    """Load runs with LoRA that were trained on one base, by the names of their folders.

    Each is a run like any other, with its own task, head and labels, and the same predictions as when it is loaded
    alone; but all of them share the memory of the frozen weights.

    Example:
        runs = regard.load_adapters(["runs/tone", "runs/topic"])
        runs["tone"].predict("a film to remember")
    """
    runs = [Run(path, device=device) for path in paths]
    if not runs:
        raise ConfigError("no runs to load: name their folders")
    _require_one_base(runs)
    held: dict[str, Tensor] = {}
    for run in runs:
        model = run.unmerged()
        _share(model, held)
        # A copy that is prepared for inference would have the frozen weights again.
        run.model = run.inference_model = model
    return dict(zip(_names(runs), runs, strict=True))


def _require_one_base(runs: Sequence[Run]) -> None:
    first = runs[0].settings.finetune
    for run in runs:
        tuned = run.settings.finetune
        if tuned is None or not tuned.is_adapter:
            raise RunError(f"runs that share a base must be trained with LoRA, and {run.path} has all its weights")
        assert first is not None, "it comes first"
        if tuned.base_hash != first.base_hash:
            raise CheckpointError(
                f"runs that are loaded together must have one base, but {runs[0].path} was trained on weights "
                f"{first.base_hash[:_SHOWN]}, {run.path} on {tuned.base_hash[:_SHOWN]}"
            )
        if tuned.lora.bits != first.lora.bits:
            raise ConfigError(
                "runs that are loaded together must have frozen weights of the same number of bits, got "
                f"finetune.lora.bits={first.lora.bits} in {runs[0].path} and {tuned.lora.bits} in {run.path}"
            )


def _share(model: nn.Module, held: dict[str, Tensor]) -> None:
    """Replace the model's frozen tensors by those already in `held`, and add the others to it."""
    body = dict(model.named_children()).get("body", model)
    for place, name, tensor in list(_frozen(body)):
        key = f"{place}.{name}".replace(".base.", ".")  # the original layer of an adapted one is its `base`
        setattr(body.get_submodule(place), name, held.setdefault(key, tensor))


def _frozen(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Frozen tensors, tied ones once for each name: the layer, the name in it, and the tensor."""
    parameters = (each for each in model.named_parameters(remove_duplicate=False) if not each[1].requires_grad)
    for named, tensor in (*parameters, *model.named_buffers(remove_duplicate=False)):
        place, _, name = named.rpartition(".")
        yield place, name, tensor


def _names(runs: Sequence[Run]) -> list[str]:
    """The names of the folders, or their paths where two names are equal."""
    names = [run.path.absolute().name for run in runs]
    names = names if len(set(names)) == len(names) else [str(Path(run.path)) for run in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"each run can be loaded once, got {', '.join(names)}")
    return names
