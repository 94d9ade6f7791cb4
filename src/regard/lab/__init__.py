"""Studies: small experiments that measure what the lectures state.

    import regard.lab

    study = regard.lab.run_study("softmax", quick=True)
    study.findings
    study.write("lab")

A study is a folder: its `__init__.py` states what is measured and declares a
`StudyEntry`, one module measures, another reports (findings, tables, figure); a
small study is a single module. Studies are registered under the entry-point
group `regard.studies`, those of other packages in the same way as these. A
study's modules are imported when it runs.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard.errors import ConfigError
from regard.lab.study import Study, StudyEntry, StudyTable
from regard.registry import Registry
from regard.settings import nearest

__all__ = ["STUDIES", "Study", "StudyEntry", "StudyTable", "run_study"]

STUDIES: Registry[StudyEntry] = Registry("regard.studies", "study", members=("name", "question", "study"))


def run_study(
    name: str,
    *,
    quick: bool = False,
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
) -> Study:
    """Run the study registered as `name`, on one CPU thread, so that its numbers do not depend on the number of cores.

    Args:
        name: One of `STUDIES.names()`.
        quick: Use small sizes, few samples and few seeds.
        seed: The random seed; a study with several seeds counts up from it.
        data: A file or a run folder, for a study that reads one (`StudyEntry.reads`); without it the study generates
            its data.
        device: `cpu`, `cuda` or `cuda:N`, for a study that runs on a GPU.
        options: Values of the options that this study declares, such as `{"formula": "a ^ b"}` for `circuits`.
    """
    entry = STUDIES.find(name)
    given: dict[str, Any] = {**(options or {}), **({} if data is None else {"data": os.fspath(data)})}
    known = list(getattr(entry, "options", {}))
    if unknown := [option for option in options or {} if option not in known]:
        reason = nearest(unknown[0], known) if known else "; it has no options of its own"
        raise ConfigError(f"the study {name} has no option {unknown[0]}{reason}")
    if device != "cpu":
        if not entry.runs_on_gpu:
            raise ConfigError(f"the study {name} runs on a CPU only, got the device {device}")
        given["device"] = device
    import torch

    from regard.training.precision import threads

    started = time.perf_counter()
    with threads(1), torch.random.fork_rng(devices=[]):
        study = entry.study(quick=quick, seed=seed, **given)
    settings = {**study.settings, "quick": quick, "seed": seed, **given}
    return replace(study, settings=settings, seconds=time.perf_counter() - started, options=dict(options or {}))
