"""Training: settings and their defaults, the loop, optimizers, schedules and checkpoints.

settings, defaults              TrainConfig and all settings of a run; how those that are unset get a value
loop, update                    Trainer; one update of the weights
optimizers, muon, schedules     AdamW, Adam and Muon; learning rate schedules
ema                             the exponential moving average of the weights
finetuning                      training that starts from weights, or from embeddings, of another run
precision                       the device, its precision and its threads
checkpoints                     tensors on disk, written atomically and checked by hash
interruption                    Ctrl-C, SIGTERM and SIGHUP
"""

from regard.training.checkpoints import read_tensors, write_tensors
from regard.training.defaults import draft, find_hardware, resolve
from regard.training.ema import WeightAverage
from regard.training.finetuning import FinetuneConfig
from regard.training.loop import Outcome, Progress, Trainer
from regard.training.muon import Muon
from regard.training.optimizers import make_optimizer
from regard.training.precision import Hardware, choose_hardware
from regard.training.schedules import lr_multiplier
from regard.training.settings import DraftSettings, ResolvedSettings, TrainConfig

__all__ = [
    "DraftSettings",
    "FinetuneConfig",
    "Hardware",
    "Muon",
    "Outcome",
    "Progress",
    "ResolvedSettings",
    "TrainConfig",
    "Trainer",
    "WeightAverage",
    "choose_hardware",
    "draft",
    "find_hardware",
    "lr_multiplier",
    "make_optimizer",
    "read_tensors",
    "resolve",
    "write_tensors",
]
