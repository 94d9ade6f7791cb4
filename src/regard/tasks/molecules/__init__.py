"""Properties of molecules.

task    the task, and how molecules are recognized
model   a network and a Gaussian process beside it, and spellings of molecules as batches
"""

from regard.tasks.molecules.model import MoleculeModel
from regard.tasks.molecules.task import MoleculeProperties

__all__ = ["MoleculeModel", "MoleculeProperties"]
