"""Merging: a run with LoRA as a run that needs no base."""

import os
import shutil
import time
from pathlib import Path

from regard.errors import RunError
from regard.files import write_atomically
from regard.runs.folder import RunFolder
from regard.runs.run import Run
from regard.training.checkpoints import weights_of, write_tensors
from regard.training.finetuning import base_folder
from regard.version import version

_STAGED = "merged.safetensors"


def merge(path: str | os.PathLike[str], out: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the run with LoRA at `path` to `out` with its updates merged into the weights; predictions are the same.

    The ledger and the sealed test set are copied; checkpoints are not.
    """
    run = Run(path, device="cpu")
    tuned, provenance = run.settings.finetune, run.folder.read_provenance()
    if tuned is None or not tuned.is_adapter:
        raise RunError(f"{run.path} has all its weights: only a run with LoRA can be merged")
    folder = RunFolder(out)
    folder.require_vacant(overwrite=overwrite)
    for name, taken in (("the run itself", run.path), ("the base of the run", base_folder(tuned, run.path))):
        if folder.path.resolve() == taken.resolve():
            raise RunError(f"{folder.path} is {name}: name another folder")
    note = f"merged: the LoRA updates of {run.path.name}, rank {tuned.lora.rank}, and its base {Path(tuned.base).name}"
    changes = {
        "version": version(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "num_parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "notes": [*provenance.notes, note],
    }
    settings = run.settings.changed(finetune=None)
    held_out = {"valid": rows} if (rows := run.folder.read_held_out("valid")) else {}
    is_new, staged = not folder.path.exists(), folder.path / _STAGED
    with folder.lock():
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            # The large file first: if the disk is full, an existing run is unchanged.
            write_tensors(staged, weights_of(run.model), {"step": 0})
            folder.create(settings, provenance.changed(**changes), run.task.codecs, held_out)
            run.folder.copy_sealed_to(folder)
            if (template := run.folder.read_chat_template()) is not None:
                write_atomically(folder.chat_template_path, template.encode())
            os.replace(staged, folder.model_path)
        except BaseException as error:
            staged.unlink(missing_ok=True)
            if is_new:
                shutil.rmtree(folder.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise RunError(f"cannot create a run in {folder.path}: {error.strerror or error}") from None
            raise
    return folder.path
