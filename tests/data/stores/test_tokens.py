"""Text as one array of token ids on disk."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.data.stores.tokens
from regard.data.formats.plain_text import Piece, cut_documents
from regard.data.stores.tokens import TokenStream, count_tokens, write_stream
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer, train_tokenizer

DOCUMENTS = ["ab c", "\n", "d\N{SNOWMAN}"]
TEXTS = [
    "the cat sat on the mat\nand the dog ran,  far away",
    "ein Hund läuft </s> 你好 世界\n\n  <unk>",
    "the\n \tcat \n  ran\n\n \n  off \t \n\ttoo",
] * 7
KINDS = {kind: train_tokenizer(TEXTS, kind, 350) for kind in ("bpe", "unigram", "characters", "bytes", "words")}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return KINDS["bytes"]


def test_an_end_is_first_and_after_every_document(tokenizer: Tokenizer, tmp_path: Path):
    stream = write_stream(tmp_path / "stream", cut_documents(DOCUMENTS), tokenizer)
    expected = [tokenizer.end]
    for ids in tokenizer.encode(DOCUMENTS):
        expected += [*ids, tokenizer.end]
    assert stream.ids.tolist() == expected
    assert stream.ids.dtype == np.uint16
    assert len(stream) == stream.num_tokens == len(expected) == 13
    assert (stream.num_documents, stream.num_bytes, stream.num_text_tokens) == (3, 9, 9)
    assert TokenStream(tmp_path / "stream").ids.tolist() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["stream"]


def test_a_stream_of_nothing_is_an_end(tokenizer: Tokenizer, tmp_path: Path):
    stream = write_stream(tmp_path / "stream", [], tokenizer)
    assert (stream.ids.tolist(), stream.num_documents, stream.num_text_tokens) == ([tokenizer.end], 0, 0)


SPACES = st.text(st.sampled_from(" \n\t"), max_size=3)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)  # files, and a machine with other work
@given(
    cuts=st.lists(st.tuples(SPACES, st.sampled_from(["the cat", "ran, you", "a 好"]), SPACES), min_size=2, max_size=7)
)
def test_a_cut_between_words_is_not_seen(kind: str, cuts: list[tuple[str, str, str]]):
    tokenizer = KINDS[kind]
    texts = ["".join(cut) for cut in cuts]
    pieces = [Piece(text, number == len(texts)) for number, text in enumerate(texts, 1)]
    assert count_tokens(pieces, tokenizer) == len(tokenizer.encode(["".join(texts)])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_do_not_depend_on_where_a_text_is_cut(kind: str, tmp_path: Path):
    text = "\n".join(TEXTS)
    whole = write_stream(tmp_path / "whole", [Piece(text, True)], KINDS[kind])
    for length in (7, 17, 53, 211):
        cut = [Piece(text[i : i + length], i + length >= len(text)) for i in range(0, len(text), length)]
        pieces = write_stream(tmp_path / f"cut{length}", cut, KINDS[kind])
        assert pieces.num_bytes == whole.num_bytes
        if length > 23:  # every piece has a space between two words
            assert pieces.ids.tolist() == whole.ids.tolist()
            assert count_tokens(cut, KINDS[kind]) == whole.num_text_tokens
    assert (whole.ids == KINDS[kind].end).sum() == 2, "text that spells the end is no end"


@settings(deadline=None)  # files, and a machine with other work
@given(st.lists(st.text(st.sampled_from("ab \n\N{SNOWMAN}é")), min_size=1), st.integers(1, 7))
def test_bytes_are_kept_to_the_letter_however_cut(documents: list[str], length: int):
    tokenizer = KINDS["bytes"]
    cut = [
        Piece(text[i : i + length], i + length >= len(text))
        for text in documents
        for i in range(0, max(1, len(text)), length)
    ]
    with tempfile.TemporaryDirectory() as folder:
        stream = write_stream(Path(folder) / "stream", cut, tokenizer)
        ends = np.flatnonzero(stream.ids == tokenizer.end)
        between = [stream.ids[a + 1 : b].tolist() for a, b in pairwise(ends)]
        assert tokenizer.decode(between) == documents
        assert stream.num_bytes == sum(len(text.encode()) for text in documents)


def test_many_pieces_pass_the_end_of_a_chunk(tokenizer: Tokenizer, tmp_path: Path, monkeypatch):
    documents = [f"{i}" for i in range(9_001)]
    stream = write_stream(tmp_path / "many", cut_documents(documents), tokenizer)
    assert (stream.num_documents, stream.num_text_tokens) == (9_001, sum(map(len, documents)))
    monkeypatch.setattr(regard.data.stores.tokens, "_CHUNK_CHARACTERS", 13)
    assert write_stream(tmp_path / "few", cut_documents(documents), tokenizer).ids.tolist() == stream.ids.tolist()


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path):
    tokenizer = train_tokenizer([" ".join(f"w{i}" for i in range(70_001))], "words", 100_000)
    stream = write_stream(tmp_path / "stream", [Piece("w70000 w0", True)], tokenizer)
    assert stream.ids.dtype == np.uint32
    assert tokenizer.decode([stream.ids.tolist()]) == ["w70000 w0"]


def test_no_stream_is_left_where_reading_fails(tokenizer: Tokenizer, tmp_path: Path):
    def broken():
        yield Piece("a", True)
        raise DataError("line 2")

    with pytest.raises(DataError, match="line 2"):
        write_stream(tmp_path / "stream", broken(), tokenizer)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [-2, 2])
def test_a_file_of_the_wrong_size_is_noticed(tokenizer: Tokenizer, tmp_path: Path, change: int):
    write_stream(tmp_path / "stream", cut_documents(DOCUMENTS), tokenizer)
    path = tmp_path / "stream" / "ids"
    path.write_bytes(path.read_bytes()[:change] if change < 0 else path.read_bytes() + b"\0" * change)
    with pytest.raises(DataError, match="is damaged: the size of its file does not match its 13 tokens"):
        TokenStream(tmp_path / "stream")
