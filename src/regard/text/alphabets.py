"""Sequences that are not words: molecules as SMILES or SELFIES, nucleotides and amino acids.

smiles       atoms, bonds, branches and rings: `CC(=O)Oc1ccccc1`     Weininger (1988)
selfies      symbols in brackets: `[C][C][=O]`                       Krenn et al. (2020)
nucleotides  the letters of IUPAC: `ACGTN`
amino-acids  the letters of IUPAC: `MKVLA`
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

SequenceKind = Literal["smiles", "selfies", "nucleotides", "amino-acids"]
SEQUENCE_KINDS: tuple[SequenceKind, ...] = get_args(SequenceKind)

SMILES_TOKEN = r"\[[^\[\]]+\]|Br|Cl|[BCNOPSFI]|[bcnops]|%\d\d|[=#$:/\\.()*~-]|\d"
"""An atom, a bond, a branch, a ring closure or a dot, as in Schwaller et al. (2019), "Molecular Transformer"."""
SELFIES_TOKEN = r"\[[^\[\]]+\]|\."
NUCLEOTIDES = "ACGTUNRYKMSWBDHV-"
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWYBJOUXZ*-"

_SMILES = re.compile(rf"(?=[A-Za-z\[*(])(?:{SMILES_TOKEN})+")
"""It begins with an atom, unlike numbers and dates."""
_SELFIES = re.compile(rf"(?:{SELFIES_TOKEN})+")
_BONDS_AND_RINGS = re.compile(r"[=#()\[\]\d]")
_PLAIN_NUCLEOTIDES = frozenset("ACGTUN")
_FEWEST_TEXTS, _FEWEST_NUCLEOTIDES, _FEWEST_LETTERS, _SHORTEST_MEAN = 5, 3, 8, 12
"""Texts, distinct letters of genes and of proteins, and mean characters, below which texts may be something else."""
_NEARLY_ALL, _STRUCTURED = 0.9, 0.3
_NAMES: dict[SequenceKind, str] = {
    "smiles": "molecules in SMILES: one token for each atom, bond and ring",
    "selfies": "molecules in SELFIES: one token for each symbol",
    "nucleotides": "sequences of nucleotides",
    "amino-acids": "sequences of amino acids",
}


def is_smiles(text: str) -> bool:
    """Whether a text consists of tokens of SMILES; it may still be no molecule.

    Example:
        >>> is_smiles("CC(=O)O"), is_smiles("a cat")
        (True, False)
    """
    return _SMILES.fullmatch(text) is not None


def is_selfies(text: str) -> bool:
    """Whether a text consists of symbols in brackets."""
    return _SELFIES.fullmatch(text) is not None


def sequence_kind(texts: Sequence[str]) -> SequenceKind | None:
    """What kind of sequences nearly all of these texts are; None for other texts.

    Example:
        >>> sequence_kind(["CCO", "c1ccccc1", "CC(=O)O", "C#N", "CC(C)C"])
        'smiles'
        >>> sequence_kind(["a cat", "a dog"] * 5)
    """
    texts = [text.strip() for text in texts]
    if len(texts) < _FEWEST_TEXTS:
        return None
    if _share(map(is_selfies, texts)) >= _NEARLY_ALL:
        return "selfies"
    letters = {letter for text in texts for letter in text}
    is_long = sum(map(len, texts)) >= _SHORTEST_MEAN * len(texts)
    is_diverse = len(letters) >= _FEWEST_NUCLEOTIDES
    if is_long and is_diverse and _share(set(text) <= _PLAIN_NUCLEOTIDES for text in texts) >= _NEARLY_ALL:
        return "nucleotides" if letters <= set(NUCLEOTIDES) else None
    is_structured = _share(_BONDS_AND_RINGS.search(text) is not None for text in texts) >= _STRUCTURED
    if is_structured and _share(map(is_smiles, texts)) >= _NEARLY_ALL:
        return "smiles"
    has_letters = len(letters) >= _FEWEST_LETTERS and letters <= set(AMINO_ACIDS)
    return "amino-acids" if is_long and has_letters else None


def describe_kind(kind: SequenceKind) -> str:
    """The sequences of this kind, for a message."""
    return _NAMES[kind]


def _share(flags: Iterable[bool]) -> float:
    found = list(flags)
    return sum(found) / max(1, len(found))
