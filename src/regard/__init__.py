"""From a file of sequences to a model you can trust.

    import regard

    run = regard.train("pairs.tsv", minutes=1)
    run.predict("Der Hund rennt")

The public names are loaded when they are first used, so that `import regard`
takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.errors import RegardError
    from regard.interop.importing import import_model
    from regard.runs.adapters import load_adapters
    from regard.runs.comparison import compare
    from regard.runs.demo import demo
    from regard.runs.export import export_model
    from regard.runs.few import few_shot
    from regard.runs.finetune import finetune
    from regard.runs.launch import train
    from regard.runs.merging import merge
    from regard.runs.run import Run, load
    from regard.runs.sweep import sweep
    from regard.serving.server import serve

_HOMES = {
    "RegardError": "regard.errors",
    "Run": "regard.runs.run",
    "compare": "regard.runs.comparison",
    "demo": "regard.runs.demo",
    "export_model": "regard.runs.export",
    "few_shot": "regard.runs.few",
    "finetune": "regard.runs.finetune",
    "import_model": "regard.interop.importing",
    "load": "regard.runs.run",
    "load_adapters": "regard.runs.adapters",
    "merge": "regard.runs.merging",
    "serve": "regard.serving.server",
    "sweep": "regard.runs.sweep",
    "train": "regard.runs.launch",
}

__all__ = [
    "RegardError",
    "Run",
    "compare",
    "demo",
    "export_model",
    "few_shot",
    "finetune",
    "import_model",
    "load",
    "load_adapters",
    "merge",
    "serve",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
