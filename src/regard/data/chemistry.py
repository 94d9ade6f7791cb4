"""Molecules, read by rdkit (the extra `regard[chemistry]`): validity, scaffolds, fingerprints, descriptors, spellings.

A molecule is given as SMILES or as SELFIES, whose symbols are all in brackets and have no hydrogens: `[C][=O]`.

Bemis & Murcko, "The Properties of Known Drugs. 1. Molecular Frameworks" (1996), for scaffolds.
Rogers & Hahn, "Extended-Connectivity Fingerprints" (2010), for Morgan fingerprints.
Bjerrum, "SMILES Enumeration as Data Augmentation for Neural Network Modeling of Molecules" (2017).
https://arxiv.org/abs/1703.07076

Dimensions: `molecules`, `bits` of fingerprints, `descriptors`.
"""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

from regard.errors import DataError
from regard.text.alphabets import SMILES_TOKEN, is_selfies, is_smiles

FINGERPRINTS = ("morgan", "atom pairs", "torsions")
NUM_BITS = 4_096
"""The length of each fingerprint."""
_MOST_COUNTED = 8
"""Occurrences of a substructure in a molecule that are counted."""
_MULTIPLIERS = 2_654_435_761, 40_503
"""Knuth's multiplicative hash: folds substructures and their counts to bits."""
_SLOW = re.compile(r"qed|SPS|Ipc|AvgIpc|BertzCT|BCUT2D_.*|.*PartialCharge|.*EStateIndex")
"""Descriptors that take most of the time, or are not defined for every molecule."""
_LARGEST = 1e6
_SHOWN = 40
_RING = re.compile(r"%\d\d|\d")
_SELFIES_SYMBOL = re.compile(r"\[(?:[=#/\\]?(?:Br|Cl|[BCNOPSFI])|[^\]]*(?:Branch|Ring)\d)\]")


def require_rdkit(why: str = "molecules") -> None:
    """Raise an error that names the extra where rdkit is not installed."""
    _rdkit(why)


@lru_cache(1 << 17)
def fault_of(text: str) -> str:
    """Why a text is not a molecule; empty if it is one.

    It completes the sentence "the row has", as the faults of tables do.
    """
    text = text.strip()
    if not text:
        return "an empty molecule"
    molecule = _parse(text)
    if molecule is not None:
        return "" if molecule.GetNumAtoms() else "an empty molecule"
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    return f"an invalid molecule {shown!r} ({_reason(text)})"


def is_molecule(text: str) -> bool:
    """Whether a text is a molecule with at least one atom."""
    return not fault_of(text)


def canonical_smiles(text: str) -> str:
    """The SMILES that all spellings of a molecule have in common."""
    chem = _rdkit()
    return chem.MolToSmiles(_molecule(text))


def to_selfies(text: str) -> str:
    """A molecule as SELFIES.

    Raises:
        DataError: If SELFIES cannot express it.
    """
    if _is_selfies(text):
        return text
    selfies = _selfies()
    try:
        return selfies.encoder(text, strict=False)
    except selfies.EncoderError:
        raise DataError(f"SELFIES cannot express the molecule {text!r}: use SMILES tokens") from None


def spellings(text: str, number: int, *, as_selfies: bool = False) -> list[str]:
    """The canonical SMILES of a molecule and `number` random ones, for a molecule always the same.

    Args:
        text: The molecule.
        number: How many random spellings there are; some may be equal.
        as_selfies: Whether each is written as SELFIES.
    """
    chem, found = _rdkit(), [canonical_smiles(text)]
    if number:
        seed = zlib.crc32(found[0].encode()) & 0x7FFFFFFF
        found += chem.MolToRandomSmilesVect(_molecule(found[0]), number, randomSeed=seed)
    return [to_selfies(each) for each in found] if as_selfies else found


def scaffold_of(text: str) -> str:
    """The Bemis-Murcko scaffold of a molecule, its rings and what connects them; empty without rings."""
    _rdkit()
    from rdkit.Chem.Scaffolds import MurckoScaffold

    return MurckoScaffold.MurckoScaffoldSmiles(mol=_molecule(text), includeChirality=False)


def fingerprint_bits(texts: Sequence[str]) -> UInt8[np.ndarray, "molecules bytes"]:
    """The bits of three fingerprints of each molecule, one after the other, packed.

    A substructure that occurs n times sets n bits, so that the Tanimoto similarity of bits is that of counts.
    """
    generators = _generators()
    bits = np.zeros((len(texts), len(generators), NUM_BITS), np.uint8)
    for row, text in zip(bits, texts, strict=True):
        molecule = _molecule(text)
        for kind, generator in zip(row, generators, strict=True):
            counts = generator.GetSparseCountFingerprint(molecule).GetNonzeroElements()
            kind[_folded(counts)] = 1
    return np.packbits(bits.reshape(len(texts), -1), axis=1)


def morgan_bits(texts: Sequence[str]) -> UInt8[np.ndarray, "molecules bits"]:
    """The Morgan fingerprint of each molecule, a number for each bit."""
    packed = fingerprint_bits(texts)[:, : NUM_BITS // 8]
    return np.unpackbits(packed, axis=1)


def descriptor_values(texts: Sequence[str], names: Sequence[str]) -> Float[np.ndarray, "molecules descriptors"]:
    """Descriptors of each molecule, such as its weight and its number of rings; large ones by their logarithm."""
    known = _descriptors()
    if missing := [name for name in names if name not in known]:
        raise DataError(f"the installed rdkit has no descriptor {missing[0]}, which the model was trained with")
    functions = [known[name] for name in names]
    found = np.zeros((len(texts), len(functions)))
    for row, text in zip(found, texts, strict=True):
        molecule = _molecule(text)
        row[:] = [_value(function, molecule) for function in functions]
    return (np.sign(found) * np.log1p(np.abs(found))).astype(np.float32)


def descriptor_names() -> tuple[str, ...]:
    """The descriptors of the installed rdkit that are quick to compute."""
    return tuple(name for name in _descriptors() if not _SLOW.fullmatch(name))


def _rdkit(why: str = "molecules") -> Any:
    try:
        from rdkit import Chem
    except ImportError:
        raise DataError(f"{why} need the package rdkit: pip install 'regard[chemistry]'") from None
    return Chem


def _selfies() -> Any:
    try:
        import selfies
    except ImportError:
        raise DataError("SELFIES need the package selfies: pip install 'regard[chemistry]'") from None
    return selfies


def _parse(text: str) -> Any:
    """The molecule of a text, or None."""
    chem = _rdkit()
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        if _is_selfies(text):
            text = _from_selfies(text) or text  # salts in SMILES may have atoms in brackets only
        return chem.MolFromSmiles(text) if is_smiles(text) else None


def _molecule(text: str) -> Any:
    molecule = _parse(text.strip())
    if molecule is None or not molecule.GetNumAtoms():
        raise DataError(f"the input has {fault_of(text)}")
    return molecule


def _is_selfies(text: str) -> bool:
    return is_selfies(text) and _SELFIES_SYMBOL.search(text) is not None


def _from_selfies(text: str) -> str | None:
    selfies = _selfies()
    try:
        return selfies.decoder(text)
    except selfies.DecoderError:
        return None


def _reason(text: str) -> str:
    """Why rdkit cannot read SMILES."""
    if unknown := re.sub(SMILES_TOKEN, "", text):
        return f"{unknown[0]!r} is no part of SMILES"
    if text.count("(") != text.count(")"):
        return "a parenthesis is not closed" if text.count("(") > text.count(")") else "a parenthesis is not opened"
    rings = Counter(_RING.findall(re.sub(r"\[[^\]]*\]", "", text)))
    if open_rings := [ring for ring, count in rings.items() if count % 2]:
        return f"ring {open_rings[0].removeprefix('%')} is not closed"
    chem = _rdkit()
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        molecule = chem.MolFromSmiles(text, sanitize=False)
        problems = [] if molecule is None else chem.DetectChemistryProblems(molecule)
    return problems[0].Message() if problems else "its bonds and atoms are not in a valid order"


@lru_cache(1)
def _generators() -> tuple[Any, ...]:
    _rdkit()
    from rdkit.Chem import rdFingerprintGenerator

    size = 1 << 20
    return (
        rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=size),
        rdFingerprintGenerator.GetAtomPairGenerator(fpSize=size),
        rdFingerprintGenerator.GetTopologicalTorsionGenerator(fpSize=size),
    )


@lru_cache(1)
def _descriptors() -> dict[str, Any]:
    _rdkit()
    from rdkit.Chem import Descriptors

    return dict(Descriptors.descList)


def _value(function: Any, molecule: Any) -> float:
    number = float(function(molecule))
    return float(np.clip(number, -_LARGEST, _LARGEST)) if np.isfinite(number) else 0.0


def _folded(counts: dict[int, int]) -> NDArray[np.int64]:
    """The bits of substructures, as many for each as it occurs."""
    pairs = [(key, level) for key, count in counts.items() for level in range(min(count, _MOST_COUNTED))]
    keys, levels = np.array(pairs, np.uint64).reshape(-1, 2).T
    first, second = (np.uint64(number) for number in _MULTIPLIERS)
    return ((keys * first + levels * second) % np.uint64(1 << 32) % np.uint64(NUM_BITS)).astype(np.int64)
