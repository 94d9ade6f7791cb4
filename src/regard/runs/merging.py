"""A run with LoRA as a run that needs no base: the corrections are added to the weights they correct."""

import os
import shutil
import time
from pathlib import Path

from regard.errors import RunError
from regard.files import write_atomically
from regard.runs.run import Run
from regard.training.checkpoints import weights_of, write_tensors
from regard.training.folder import RunFolder
from regard.version import version

_STAGED = "merged.safetensors"


def merge(path: str | os.PathLike[str], out: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the run with LoRA at `path` with all its weights to `out`; it says the very same.

    What was written down of looks at held-out rows goes along; what training would go on from does not.
    """
    run = Run(path, device="cpu")
    tuned, record = run.settings.finetune, run.settings.record
    assert record is not None, "a run folder has a record"
    if tuned is None or not tuned.is_adapter:
        raise RunError(f"{run.path} holds all its weights already: only a run with LoRA has something to merge")
    folder = RunFolder(out)
    folder.require_vacant(overwrite=overwrite)
    for name, taken in (("the run itself", run.path), ("the base of the run", Path(tuned.base))):
        if folder.path.absolute() == taken.absolute():
            raise RunError(f"{folder.path} is {name}: name another folder")
    note = (
        f"merged: the corrections of {run.path.name}, of rank {tuned.lora.rank}, and its base {Path(tuned.base).name}"
    )
    changes = {
        "version": version(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "num_parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "notes": [*record.notes, note],
    }
    settings = run.settings.changed(
        finetune=None,
        data=run.settings.data.changed(tokenizer=folder.tokenizer_path.name),  # its own, where the base had one
        record=record.changed(**changes),
    )
    held_out = {"valid": rows} if (rows := run.folder.read_held_out("valid")) else {}
    is_new, staged = not folder.path.exists(), folder.path / _STAGED
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        # The large file first: where the disk is full, an old run stays what it is.
        write_tensors(staged, weights_of(run.model), {"step": 0})
        folder.create(settings, run.tokenizer, held_out)
        run.folder.copy_sealed_to(folder)
        if (template := run.folder.read_chat_template()) is not None:
            write_atomically(folder.chat_template_path, template.encode())
        os.replace(staged, folder.model_path)
    except BaseException as error:
        staged.unlink(missing_ok=True)
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise RunError(f"cannot make a run in {folder.path}: {error.strerror or error}") from None
        raise
    return folder.path
