from pathlib import Path

import pytest

from regard.data.formats.files import iter_blocks
from regard.errors import DataError, RunError
from regard.selection.sealed import Fingerprints, rows_digest, seal, unseal, without_sealed

ROWS = [(f"text {number}", f"label {number % 3}") for number in range(20)]
POEM = "\n".join(f"This is line number {number} of a long poem" for number in range(100))


def test_rows_come_out_as_they_went_in():
    odd = [("a\nb\u2028c", "\ud800"), ("", "é")]
    assert unseal(seal(odd)) == odd
    assert rows_digest(unseal(seal(ROWS))) == rows_digest(ROWS) != rows_digest(ROWS[1:])


def test_sealed_rows_are_no_data_to_any_reader(tmp_path: Path):
    path = tmp_path / "test.tsv"
    path.write_bytes(seal(ROWS))
    assert b"label" not in path.read_bytes()
    with pytest.raises(DataError, match="sealed test set"):
        list(iter_blocks(path, block_length=10))


def test_damage_is_detected():
    whole = seal(ROWS)
    for broken in (whole[:-9], whole[:80] + b"x" + whole[81:], b"something else"):
        with pytest.raises(RunError):
            unseal(broken)


def test_rows_of_the_sealed_set_are_recognized_elsewhere():
    fingerprints = Fingerprints.from_bytes(Fingerprints.of(ROWS[:5]).to_bytes())
    assert fingerprints.match(ROWS) == [True] * 5 + [False] * 15
    assert without_sealed(ROWS, fingerprints) == ROWS[5:]
    assert without_sealed(ROWS, Fingerprints(frozenset())) == ROWS


def test_a_text_that_contains_sealed_lines_is_refused_and_one_that_quotes_is_not():
    fingerprints = Fingerprints.of([("\n".join(POEM.splitlines()[80:]),)])
    assert without_sealed([("\n".join(POEM.splitlines()[80:90]),)], fingerprints) == []
    with pytest.raises(RunError, match="contains 100 % of the sealed test text"):
        without_sealed([(POEM,)], fingerprints)
    quoting = "\n".join(POEM.splitlines()[:81])
    assert without_sealed([(quoting,)], fingerprints) == [(quoting,)]
    assert without_sealed([("Exit.\nExit.",)], fingerprints) == [("Exit.\nExit.",)]
