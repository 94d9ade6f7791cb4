"""Properties of molecules.

task      the task
columns   which columns of a table are molecules and properties, and how rows are read
model     a network and a Gaussian process beside it, and spellings of molecules as batches
"""

from regard.tasks.molecules.model import MoleculeModel
from regard.tasks.molecules.task import MoleculeProperties

__all__ = ["MoleculeModel", "MoleculeProperties"]
