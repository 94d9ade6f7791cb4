"""Runs: from data and settings to a run folder, and everything that can be done with one.

folder       the files of a run, and their order of writing
train        `regard.train`: detect the task, prepare, resolve, train, report; resume
finetune     `regard.finetune`: the same from the weights of another run
run          `Run`: predict, generate, evaluate, test, attention maps, embeddings
report       the report of a run
baseline     a simple model beside the scores, and the test of the difference
importing, export    models of other libraries as runs, and runs as models of other libraries
merge, adapters      LoRA updates merged into the weights; several runs that share one base in memory

`train`, `finetune` and `merge` are exported by `regard`: here, these names are modules. The public names are imported
when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.runs.adapters import load_adapters
    from regard.runs.evaluation import Evaluation
    from regard.runs.export import export_model
    from regard.runs.folder import RunFolder
    from regard.runs.importing import import_model, load_pretrained
    from regard.runs.run import GenerationOptions, Run, attention_maps, load

_HOMES = {
    "Evaluation": "evaluation",
    "GenerationOptions": "run",
    "Run": "run",
    "RunFolder": "folder",
    "attention_maps": "run",
    "export_model": "export",
    "import_model": "importing",
    "load": "run",
    "load_adapters": "adapters",
    "load_pretrained": "importing",
}

__all__ = [
    "Evaluation",
    "GenerationOptions",
    "Run",
    "RunFolder",
    "attention_maps",
    "export_model",
    "import_model",
    "load",
    "load_adapters",
    "load_pretrained",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.runs' has no attribute {name!r}")
    return getattr(import_module(f"regard.runs.{_HOMES[name]}"), name)
