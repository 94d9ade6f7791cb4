"""Molecules of a few ring systems and groups, with a solubility that is a sum over their parts and noise.

The contributions are those of a table of our own, of the size of published ones; a model that knows which groups a
molecule has cannot have a smaller expected squared error than the variance of the noise.
"""

from collections.abc import Iterator

from regard.data.builtin import BuiltinData

SOLUBILITY_NOISE = 0.2
"""The standard deviation of the noise, in logarithms of mol/l."""
_CORES = {
    "c1ccc({})cc1{}": -2.0, "c1cc({})ncc1{}": -1.0, "C1CCC({})CC1{}": -2.6, "C1CN({})CCC1{}": -0.9,
    "c1cc({})sc1{}": -1.8, "C1CC({})CC1{}": -2.2, "c1ccc2c({})cccc2c1{}": -4.0, "C1CC({})OC1{}": -0.4,
    "c1c({})[nH]cc1{}": -1.2, "O=C1CCC({})C1{}": -0.7, "c1ccc(c2ccc({})cc2)cc1{}": -4.8, "C1C({})C1{}": -1.1,
}  # fmt: skip
_GROUPS = {
    "C": -0.5, "CC": -1.0, "O": 0.9, "N": 0.8, "Cl": -0.7, "F": -0.2, "C(=O)O": 0.7, "OC": 0.1, "C#N": 0.2,
    "C(=O)N": 0.8, "Br": -0.9, "CCO": 0.5, "C(C)C": -1.4,
}  # fmt: skip


def generate_molecules(num_rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Rows of a molecule in SMILES and its solubility.

    Example:
        >>> next(generate_molecules(1, 0))
        ('c1ccc(c2ccc(C#N)cc2)cc1C(=O)O', '-3.77')
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    cores, groups = list(_CORES), list(_GROUPS)
    for _ in range(num_rows):
        core = cores[rng.integers(len(cores))]
        first, second = (groups[number] for number in rng.integers(len(groups), size=2))
        mean = _CORES[core] + _GROUPS[first] + _GROUPS[second]
        yield core.format(first, second), f"{mean + SOLUBILITY_NOISE * rng.normal():.2f}"


MOLECULES_DATA = BuiltinData(
    name="molecules",
    description="molecules of a few ring systems and groups, with a solubility that their parts determine",
    columns=("smiles", "solubility"),
    num_rows=1_000,
    tokenizer="smiles",
    generate=generate_molecules,
)
