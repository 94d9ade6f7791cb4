"""A run's model in the formats of others."""

import os
from pathlib import Path

from regard.interop.exporting import Exported, Format, export, require_place
from regard.interop.gguf_writing import NumberType
from regard.interop.trained import Trained
from regard.logging import log_info
from regard.runs.run import Run


def export_model(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str],
    *,
    to: Format,
    number_type: NumberType | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the model of a run for others to load, read it back, and say how far its scores are off.

    Args:
        run: A run folder, or a run. The corrections of one with LoRA are merged into the weights, unless they are
            what is written.
        out: The folder to make; of gguf a file.
        to: hf, gguf, onnx, ctranslate2, or peft, which has the adapter alone.
        number_type: Of gguf, how matrices are written: F32, F16 or Q8_0; unset, F16.
        overwrite: Replace an export in `out`.
    """
    require_place(Path(out), to=to, number_type=number_type, overwrite=overwrite)
    found = Run(run.path if isinstance(run, Run) else run, device="cpu")
    trained = Trained(
        name=found.path.name,
        settings=found.settings,
        tokenizer=found.tokenizer,
        model=(found.unmerged() if to == "peft" else found.model).float(),
        chat_template=found.folder.read_chat_template(),
    )
    made = export(trained, Path(out), to=to, number_type=number_type, overwrite=overwrite)
    log_info(str(made))
    return made
