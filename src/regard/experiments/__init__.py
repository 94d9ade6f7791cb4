"""Experiments: several runs, each in a process of its own.

    compare/           `regard.compare`: train models on the same data under one budget, and test their differences
    sweep/             `regard.sweep`: search settings with Optuna
    few_shot.py        `regard.few_shot`: train on a few rows of each label, several times
    demo.py            `regard.demo`: train, compare and certify on built-in data
    jobs.py            one run in a process, and several of these at a time
    processes.py       child processes: start, stop, progress, threads, the lock of a folder
    manifest.py        the files that make an experiment resumable: its manifest, and rows in memory as a file

The functions are exported by `regard`: here, their names are modules. The types of their results are imported when
they are first used, since a child process needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.experiments.compare import Comparison
    from regard.experiments.few_shot import FewShot
    from regard.experiments.sweep import Sweep

_HOMES = {"Comparison": "compare", "FewShot": "few_shot", "Sweep": "sweep"}

__all__ = ["Comparison", "FewShot", "Sweep"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.experiments' has no attribute {name!r}")
    return getattr(import_module(f"regard.experiments.{_HOMES[name]}"), name)
