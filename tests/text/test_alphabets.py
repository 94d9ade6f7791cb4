"""Molecules and biological sequences are recognized, and tokenized by what they consist of."""

import pytest

from regard.text.alphabets import SEQUENCE_KINDS, sequence_kind
from regard.text.statistics import TextStatistics, choose_tokenizer
from regard.text.tokenizer import Tokenizer, train_tokenizer

SMILES = ["CC(=O)Oc1ccccc1C(=O)O", "C[C@@H](N)C(=O)O", "ClCCBr", "C%12CCCCC%12", "[Na+].[Cl-]", "F/C=C\\F", "c1ccsc1"]
SELFIES = ["[C][C][O]", "[C][=C][C][=C][Ring1][=Branch1]", "[C][Branch1][C][O][C]", "[N][C]", "[O][C].[C]"]
PROTEINS = [
    "MKVLAAGIVGLLLAQWERTYPSDF",
    "MSTNPKPQRKTKRNTNRRPQDVKF",
    "GAMDPEFLKQWYHHCDEEVAAR",
    "MKKLLPTAAAGLLLLA",
    "MAEGNTLHDFYV",
]
GENES = ["ACGTACGTTAGC", "GGGTTTACACGTNA", "TTTTACGGCATCA", "ACGUACGUUAGC", "CCCCGGGGAAAATT"]


def test_the_tokens_of_smiles_are_atoms_bonds_and_rings():
    tokenizer = train_tokenizer(SMILES, "smiles", 100)
    ids = tokenizer.encode(["C[C@@H](N)ClC%12Br=c"])[0]
    assert tokenizer.pieces(ids) == ["C", "[C@@H]", "(", "N", ")", "Cl", "C", "%12", "Br", "=", "c"]


def test_the_tokens_of_selfies_are_symbols():
    tokenizer = train_tokenizer(SELFIES, "selfies", 100)
    assert tokenizer.pieces(tokenizer.encode(["[C][=Branch1].[O]"])[0])[0::2] == ["[C]", "."]


@pytest.mark.parametrize(
    ("kind", "texts"), [("smiles", SMILES), ("selfies", SELFIES), ("amino-acids", PROTEINS), ("nucleotides", GENES)]
)
def test_sequences_are_recognized_and_survive_tokenization(kind: str, texts: list[str]):
    assert sequence_kind(texts) == kind
    assert choose_tokenizer(TextStatistics.of(texts))[0] == kind
    tokenizer = train_tokenizer(texts, kind, 100)  # pyright: ignore[reportArgumentType]
    again = Tokenizer.from_json(tokenizer.to_json())
    ids = again.encode(texts)
    assert again.decode(ids) == texts
    assert again.count_unknown(ids) == 0


@pytest.mark.parametrize("kind", ["nucleotides", "amino-acids"])
def test_an_alphabet_has_its_letters_whatever_the_training_rows_have(kind: str):
    tokenizer = train_tokenizer(["A"], kind, 100)  # pyright: ignore[reportArgumentType]
    assert tokenizer.count_unknown(tokenizer.encode(["ACGTN"])) == 0
    assert tokenizer.count_unknown(tokenizer.encode(["A1"])) == 1


@pytest.mark.parametrize(
    "texts",
    [
        ["CON", "BOSS", "COPS", "SON", "NO", "COIN"],
        ["house", "mouse", "blouse", "cat", "dog"],
        ["1", "23", "4", "5", "6"],
        ["2024-05-31", "2024-06-01", "2024-06-02", "2023-01-01", "2022-02-02"],
        ["The cat sleeps.", "A dog barks.", "No.", "Yes!", "So?"],
        ["CCO", "c1ccccc1"],
    ],
)
def test_words_and_numbers_are_no_sequences(texts: list[str]):
    assert sequence_kind(texts) is None


def test_every_kind_of_sequence_is_a_kind_of_tokenizer():
    for kind in SEQUENCE_KINDS:
        assert train_tokenizer(["CCO"], kind, 50).vocab_size > 4
