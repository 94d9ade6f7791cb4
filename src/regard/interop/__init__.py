"""Models in the formats of other libraries, imported and exported: the only folder with their names.

`hf/` reads and writes Hugging Face folders, `gguf/` GGUF files, and one module each
llama2.c files, LoRA adapters of peft, ONNX graphs and CTranslate2 folders. An
importer returns an `ImportedModel`, an exporter takes an `ExportableModel`; run
folders are written and read by `regard.runs`.
"""

from regard.interop.exporting import EXPORTERS, ExportedModel, check_destination, write_export
from regard.interop.importing import IMPORTERS, Importer, find_importer, read_model
from regard.interop.model import ExportableModel, Exporter, ImportedAdapter, ImportedModel

__all__ = [
    "EXPORTERS",
    "IMPORTERS",
    "ExportableModel",
    "ExportedModel",
    "Exporter",
    "ImportedAdapter",
    "ImportedModel",
    "Importer",
    "check_destination",
    "find_importer",
    "read_model",
    "write_export",
]
