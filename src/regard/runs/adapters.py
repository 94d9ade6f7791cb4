"""Several runs with LoRA on one base, whose weights are in memory once."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError, RunError
from regard.runs.run import Run

_SHOWN = 12
"""Digits of a hash that a message shows."""


def load_adapters(paths: Sequence[str | os.PathLike[str]], *, device: str = "auto") -> dict[str, Run]:
    """Runs with LoRA that were trained on one base, by the names of their folders.

    Each is a run like any other, with its own task, head and labels, and says what it says when it is loaded alone; but
    what is frozen is the same memory in all of them. Nothing has to be switched from one to the next.

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
        # A copy made ready to write would hold the frozen weights once more.
        run.model = run.inference_model = model
    return dict(zip(_names(runs), runs, strict=True))


def _require_one_base(runs: Sequence[Run]) -> None:
    first = runs[0].settings.finetune
    for run in runs:
        tuned = run.settings.finetune
        if tuned is None or not tuned.is_adapter:
            raise RunError(f"runs that share a base were trained with LoRA, but {run.path} holds all its weights")
        assert first is not None, "it comes first"
        if tuned.base_hash != first.base_hash:
            raise CheckpointError(
                f"runs that are loaded together have one base, but {runs[0].path} was trained on weights "
                f"{first.base_hash[:_SHOWN]}, {run.path} on {tuned.base_hash[:_SHOWN]}"
            )
        if tuned.lora.bits != first.lora.bits:
            raise ConfigError(
                "runs that are loaded together have frozen weights of as many bits, got "
                f"finetune.lora.bits={first.lora.bits} in {runs[0].path} and {tuned.lora.bits} in {run.path}"
            )


def _share(model: nn.Module, held: dict[str, Tensor]) -> None:
    """Put the frozen tensors that are held already in the place of the model's own, and hold its others."""
    body = model.get_submodule("body") if hasattr(model, "body") else model
    for place, name, tensor in list(_frozen(body)):
        key = f"{place}.{name}".replace(".base.", ".")  # an adapted layer holds what it corrects as its `base`
        setattr(body.get_submodule(place), name, held.setdefault(key, tensor))


def _frozen(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """What does not learn, tied tensors as often as they are named: the layer, the name there, and the tensor."""
    parameters = (each for each in model.named_parameters(remove_duplicate=False) if not each[1].requires_grad)
    for named, tensor in (*parameters, *model.named_buffers(remove_duplicate=False)):
        place, _, name = named.rpartition(".")
        yield place, name, tensor


def _names(runs: Sequence[Run]) -> list[str]:
    """Those of the folders, or, where two are called alike, their paths."""
    names = [run.path.absolute().name for run in runs]
    names = names if len(set(names)) == len(names) else [str(Path(run.path)) for run in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"runs are loaded once, got {', '.join(names)}")
    return names
