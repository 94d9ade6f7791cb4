"""Sweep: many trials with different settings under one budget, and the best settings trained again with other seeds.

    plan.py          what is searched; everything that is wrong with it is an error before anything is written
    run.py           `sweep`: start workers, follow their trials, train the winner's settings again; the results
    worker.py        a process that trains trial after trial
    study.py         trials in Optuna's storage: samplers, pruner, heartbeat, retries
    objectives.py    what trials are ranked by, read from their run folders

The folder of a sweep:

    sweep.json           the request; space.toml: the space that is searched
    study.db             the trials, in Optuna's storage, unless another storage is named
    trials/0000 ...      a run folder for each trial
    repeats/1 ...        the winner's settings with other seeds
    ledger.jsonl         each evaluation on the validation rows, of all of them
    result.json          the results; sweep.html and sweep.png show them

The best of many trials is partly best by chance. So its settings are trained again with seeds that had no part in the
selection, and their scores are shown beside the winner's; and the bound counts M, the number of evaluations that the
winner was selected from, in the ledger.
"""

from regard.experiments.sweep.run import Sweep, sweep

__all__ = ["Sweep", "sweep"]
