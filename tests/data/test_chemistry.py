"""Molecules by rdkit: what is wrong with one, its spellings, its scaffold and its fingerprints."""

import builtins

import numpy as np
import pytest

from regard.data import chemistry
from regard.data.chemistry import (
    NUM_BITS,
    canonical_smiles,
    descriptor_names,
    descriptor_values,
    fault_of,
    fingerprint_bits,
    scaffold_of,
    spellings,
    to_selfies,
)
from regard.data.codecs.properties import MoleculeCodec
from regard.errors import DataError

pytest.importorskip("rdkit")
pytest.importorskip("selfies")
ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"
OTHERS = ["CCO", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "C1CCNCC1", "O=C(O)c1ccccc1O"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("C1CC", "ring 1 is not closed"),
        ("CC(C", "a parenthesis is not closed"),
        ("CC)C", "a parenthesis is not opened"),
        ("C(C)(C)(C)(C)C", "Explicit valence for atom # 0 C, 5"),
        ("hello", "'h' is no part of SMILES"),
        ("c1cccc1", "kekulize"),
        (" ", "an empty molecule"),
    ],
)
def test_a_fault_says_why_a_text_is_no_molecule(text: str, reason: str):
    assert reason in fault_of(text)


@pytest.mark.parametrize(
    "text",
    [
        ASPIRIN,
        "[Na+].[Cl-]",
        "[Cl][Pt+2][Cl].[NH2-].[NH2-]",
        "*CC",
        "[C][C][O]",
        "[C][=C][C][=C][C][=C][Ring1][=Branch1]",
    ],
)
def test_molecules_have_no_fault(text: str):
    assert fault_of(text) == ""


def test_spellings_are_of_one_molecule_and_always_the_same():
    found = spellings(ASPIRIN, 12)
    assert found == spellings("OC(=O)c1ccccc1OC(C)=O", 12)
    assert len(set(found)) > 5
    assert {canonical_smiles(each) for each in found} == {canonical_smiles(ASPIRIN)} == {found[0]}


def test_selfies_are_the_same_molecule():
    assert all(canonical_smiles(to_selfies(text)) == canonical_smiles(text) for text in [ASPIRIN, *OTHERS])
    assert {canonical_smiles(each) for each in spellings(ASPIRIN, 3, as_selfies=True)} == {canonical_smiles(ASPIRIN)}


def test_a_scaffold_is_the_rings_and_what_connects_them():
    assert scaffold_of(ASPIRIN) == "c1ccccc1"
    assert scaffold_of("CCc1ccc(CCC2CCCCC2)cc1") == canonical_smiles("c1ccc(CCC2CCCCC2)cc1")
    assert scaffold_of("CCO") == ""


def test_the_similarity_of_bits_is_that_of_counted_substructures():
    from rdkit import Chem
    from rdkit.Chem import rdFingerprintGenerator
    from rdkit.DataStructs import TanimotoSimilarity

    texts = [ASPIRIN, *OTHERS]
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2)
    counts = [generator.GetSparseCountFingerprint(Chem.MolFromSmiles(text)) for text in texts]
    bits = np.unpackbits(fingerprint_bits(texts), axis=1)[:, :NUM_BITS].astype(float)
    shared = bits @ bits.T
    found = shared / (bits.sum(axis=1)[:, None] + bits.sum(axis=1) - shared)
    expected = [[TanimotoSimilarity(one, other) for other in counts] for one in counts]
    np.testing.assert_allclose(found, expected, atol=0.03)  # a few substructures share a bit


def test_the_features_of_a_codec_are_bits_and_descriptors():
    codec = MoleculeCodec.from_json(MoleculeCodec.fit().to_json())
    features = codec.features([ASPIRIN, "CCO"])
    numbers = np.ascontiguousarray(features[:, 3 * NUM_BITS // 8 :]).view(np.float32)
    np.testing.assert_array_equal(numbers, descriptor_values([ASPIRIN, "CCO"], codec.descriptors))
    weight = numbers[:, descriptor_names().index("MolWt")]
    np.testing.assert_allclose(np.expm1(weight), [180.159, 46.069], rtol=1e-4)
    with pytest.raises(DataError, match="no descriptor Charm"):
        MoleculeCodec(("Charm",)).features(["CCO"])


def test_without_rdkit_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def refuse(name: str, *rest: object, **options: object) -> object:
        if name.startswith(("rdkit", "selfies")):
            raise ImportError(name)
        return real(name, *rest, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(builtins, "__import__", refuse)
    for need in (chemistry.require_rdkit, lambda: chemistry.canonical_smiles("CCO"), lambda: to_selfies("CCO")):
        with pytest.raises(DataError, match=r"pip install 'regard\[chemistry\]'"):
            need()
