"""Studies: small experiments that show what the lectures claim.

    import regard.lab

    study = regard.lab.run("softmax", quick=True)
    study.findings
    study.write("lab")

A study is one file of this folder, called as the study is, with a function
`study(*, quick, seed) -> Study`, and one line in `STUDIES`. Nothing heavy is
imported until a study runs.
"""

import time
from dataclasses import replace
from importlib import import_module

from regard.errors import ConfigError
from regard.lab.study import Study

STUDIES = {
    "softmax": "How does its temperature lead softmax from taking the best to taking all alike?",
    "scaling-factor": "Why are the scores of attention divided by the square root of the width of a key?",
    "gradients": "How much of a loss at the end of a sequence is felt at its beginning, and what does clipping do?",
    "positions": "Which ways of telling positions apart still work on sequences longer than those trained on?",
    "scaling": "How does the loss fall with parameters, data and compute, and how far ahead can that be foretold?",
    "descent": "How large may a step of gradient descent be, what makes descent slow, and what does noise do to it?",
    "optimizers": "What do momentum, adaptive rates and orthogonal updates gain, each at its own best rate?",
    "stability": "How far apart does one changed example lead two trainings, and what does that bound?",
    "bounds": "How often do bounds on the score of the best of many fail, and how much room do they leave?",
    "double-descent": "Does the risk fall a second time when a model grows beyond what it takes to meet every label?",
    "bias-variance": "Which part of a risk is bias and which variance, and what does choosing among K functions cost?",
}
"""What each study asks, by its name."""


def run(name: str, *, quick: bool = False, seed: int = 0) -> Study:
    """Run the study of that name, on one thread of the CPU, so that it gives the same on few cores as on many.

    Args:
        name: One of `STUDIES`.
        quick: Take small sizes, few samples and one seed.
        seed: Where randomness starts; studies with several seeds count on from it.
    """
    check(name)
    import torch

    from regard.training.precision import threads

    module = import_module(f"regard.lab.{name.replace('-', '_')}")
    started = time.perf_counter()
    with threads(1), torch.random.fork_rng(devices=[]):
        study: Study = module.study(quick=quick, seed=seed)
    settings = {"quick": quick, "seed": seed, **study.settings}
    return replace(study, settings=settings, seconds=time.perf_counter() - started)


def check(name: str) -> None:
    """Say what there is where no study has that name."""
    if name not in STUDIES:
        from regard.settings import nearest

        raise ConfigError(f"no study is called {name!r}{nearest(name, list(STUDIES))}")
