"""Hugging Face folders, read and written, without the transformers library.

One file per architecture has its fields of `config.json` and its names of weights;
`reading` and `writing` handle the files, `conversion` the weights.
"""

from pathlib import Path

from regard.interop.hf.architectures import ARCHITECTURES, architecture_name, nearest_architecture
from regard.interop.hf.conversion import convert_checkpoint
from regard.interop.hf.reading import Checkpoint, read_checkpoint, recognizes_folder
from regard.interop.hf.writing import write_hf
from regard.interop.importing import Importer
from regard.interop.model import ImportedModel


def read_hf(path: Path) -> ImportedModel:
    """Read the model in a Hugging Face folder."""
    return convert_checkpoint(read_checkpoint(path))


HUGGING_FACE = Importer(
    name="hf",
    description="a Hugging Face folder with config.json, model.safetensors and tokenizer.json",
    recognizes=recognizes_folder,
    read=read_hf,
)

__all__ = [
    "ARCHITECTURES",
    "HUGGING_FACE",
    "Checkpoint",
    "architecture_name",
    "convert_checkpoint",
    "nearest_architecture",
    "read_checkpoint",
    "read_hf",
    "write_hf",
]
