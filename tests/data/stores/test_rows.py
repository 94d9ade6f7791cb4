"""Rows of ids on disk."""

from pathlib import Path

import numpy as np
import pytest

from regard.data.stores.arrays import token_dtype
from regard.data.stores.rows import TokenStore, write_store
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([], "bytes", 300)


def write(folder: Path, rows, tokenizer: Tokenizer, *, max_length: int) -> TokenStore:
    def encode(some):
        return [tokenizer.encode([row[column] for row in some]) for column in (0, 1)]

    dtype = token_dtype(tokenizer.vocab_size)
    return write_store(folder, rows, encode, columns=("source", "target"), dtype=dtype, max_length=max_length)


ROWS = [("a", "bcd"), ("efghi", "j"), ("klm", "nopqrstu"), ("\N{SNOWMAN}", "v")]


def test_written_values_are_read_back(tokenizer: Tokenizer, tmp_path: Path):
    store = write(tmp_path / "store", ROWS, tokenizer, max_length=50)
    assert (len(store), store.columns, store.num_left_out) == (4, ("source", "target"), 0)
    for column in (0, 1):
        found = store.sequences(column, [2, 0, 3, 1])
        assert tokenizer.decode(found) == [ROWS[row][column] for row in (2, 0, 3, 1)]
        assert all(ids.dtype == np.int64 for ids in found)
    assert store.lengths().tolist() == [3, 5, 8, 3]
    assert store.lengths(1, 3).tolist() == [5, 8]
    assert store.num_tokens(0) == 1 + 5 + 3 + 3
    assert len(TokenStore(tmp_path / "store")) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_rows_may_exceed_a_chunk(tokenizer: Tokenizer, tmp_path: Path):
    rows = [(f"{i}", f"{-i}") for i in range(9_001)]
    store = write(tmp_path / "store", rows, tokenizer, max_length=50)
    assert tokenizer.decode(store.sequences(1, [4095, 4096, 9000])) == ["-4095", "-4096", "-9000"]


def test_long_rows_are_left_out_whole_and_counted(tokenizer: Tokenizer, tmp_path: Path):
    store = write(tmp_path / "store", ROWS, tokenizer, max_length=4)
    assert (len(store), store.num_left_out) == (2, 2)
    assert tokenizer.decode(store.sequences(0, [0, 1])) == ["a", "\N{SNOWMAN}"]


def test_no_store_is_left_where_no_row_fits_or_reading_fails(tokenizer: Tokenizer, tmp_path: Path):
    with pytest.raises(DataError, match="all 4 rows have more than max_length=2 tokens"):
        write(tmp_path / "store", ROWS, tokenizer, max_length=2)

    def broken():
        yield ROWS[0]
        raise DataError("line 2")

    with pytest.raises(DataError, match="line 2"):
        write(tmp_path / "store", broken(), tokenizer, max_length=50)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["source.ids", "target.offsets"])
def test_a_file_of_the_wrong_size_is_an_error(tokenizer: Tokenizer, tmp_path: Path, name: str):
    write(tmp_path / "store", ROWS, tokenizer, max_length=50)
    path = tmp_path / "store" / name
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match="is damaged: the size of its files does not match its 4 rows"):
        TokenStore(tmp_path / "store")
