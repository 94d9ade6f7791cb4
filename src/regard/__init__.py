"""From a file of sequences to a model you can trust.

    import regard

    run = regard.train("pairs.tsv", minutes=1)
    run.predict("Der Hund rennt")

The public names are imported when they are first used, so that `import regard`
takes no time.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from regard.errors import RegardError
    from regard.evaluation.scores import Score
    from regard.experiments.compare import compare
    from regard.experiments.demo import demo
    from regard.experiments.few_shot import few_shot
    from regard.experiments.sweep import sweep
    from regard.runs.adapters import load_adapters
    from regard.runs.align import align
    from regard.runs.check import check
    from regard.runs.evaluation import Evaluation
    from regard.runs.export import export_model
    from regard.runs.finetune import finetune
    from regard.runs.importing import import_model, load_pretrained
    from regard.runs.merge import merge
    from regard.runs.rollout import rollout
    from regard.runs.run import Run, attention_maps, load
    from regard.runs.train import train
    from regard.serving.server import serve
    from regard.tasks.content import Prediction
    from regard.training.plan import Plan, plan

_HOMES = {
    "Evaluation": "regard.runs.evaluation",
    "Plan": "regard.training.plan",
    "Prediction": "regard.tasks.content",
    "RegardError": "regard.errors",
    "Run": "regard.runs.run",
    "Score": "regard.evaluation.scores",
    "align": "regard.runs.align",
    "attention_maps": "regard.runs.run",
    "check": "regard.runs.check",
    "compare": "regard.experiments.compare",
    "demo": "regard.experiments.demo",
    "export_model": "regard.runs.export",
    "few_shot": "regard.experiments.few_shot",
    "finetune": "regard.runs.finetune",
    "import_model": "regard.runs.importing",
    "load": "regard.runs.run",
    "load_adapters": "regard.runs.adapters",
    "load_pretrained": "regard.runs.importing",
    "merge": "regard.runs.merge",
    "plan": "regard.training.plan",
    "rollout": "regard.runs.rollout",
    "serve": "regard.serving.server",
    "sweep": "regard.experiments.sweep",
    "train": "regard.runs.train",
}

__all__ = [
    "Evaluation",
    "Plan",
    "Prediction",
    "RegardError",
    "Run",
    "Score",
    "align",
    "attention_maps",
    "check",
    "compare",
    "demo",
    "export_model",
    "few_shot",
    "finetune",
    "import_model",
    "load",
    "load_adapters",
    "load_pretrained",
    "merge",
    "plan",
    "rollout",
    "serve",
    "sweep",
    "train",
]


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(_importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
