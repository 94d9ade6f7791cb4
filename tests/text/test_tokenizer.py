"""Tokenizers of every kind decode what they encode."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from regard.errors import ConfigError, DataError
from regard.text.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

TEXTS = ["the cat sat on the mat", "the dog ran", "ein Hund läuft", "мама мыла раму", "你好 世界", "  two  spaces "] * 4
KINDS = ["bpe", "unigram", "characters", "bytes", "words"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(TEXTS, request.param, 400)


def test_special_tokens_come_first(tokenizer: Tokenizer):
    assert (tokenizer.pad, tokenizer.start, tokenizer.end) == (0, 1, 2)


def test_what_goes_in_comes_out(tokenizer: Tokenizer):
    texts = ["the dog sat on the mat", "ein Hund läuft"]
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


def test_no_special_token_is_added(tokenizer: Tokenizer):
    assert not {0, 1, 2} & {token for ids in tokenizer.encode(TEXTS) for token in ids}


def test_decoding_leaves_special_tokens_out(tokenizer: Tokenizer):
    ids = tokenizer.encode(["the cat"])[0]
    assert tokenizer.decode([[1, *ids, 2, 0, 0]]) == ["the cat"]


def test_the_public_layout_round_trips(tokenizer: Tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), encoding="utf-8")
    again = load_tokenizer(path)
    assert again.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert again.vocab_size == tokenizer.vocab_size


def test_pieces_are_the_texts_of_tokens(tokenizer: Tokenizer):
    ids = tokenizer.encode(["the cat sat"])[0]
    pieces = tokenizer.pieces([*ids, 2])
    assert len(pieces) == len(ids) + 1
    assert pieces[-1] == "</s>"
    assert "".join(pieces[:-1]).replace("▁", "").replace(" ", "") == "thecatsat"


def test_the_vocabulary_stays_within_its_size():
    for kind in ("unigram", "characters", "words"):
        assert train_tokenizer(TEXTS, kind, 50).vocab_size <= 50


@given(st.text())
def test_bytes_encode_any_text(text: str):
    tokenizer = train_tokenizer([], "bytes", 300)
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


BPE = train_tokenizer(TEXTS, "bpe", 300)


@given(st.text())
def test_byte_level_bpe_encodes_any_text(text: str):
    assert BPE.decode(BPE.encode([text])) == [text]


def test_text_that_spells_a_special_token_is_text_all_the_same():
    ids = BPE.encode(["a </s> b"])
    assert 2 not in ids[0]
    assert BPE.decode(ids) == ["a </s> b"]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_keep_their_ids_where_the_text_spells_them(kind: str):
    texts = ["a </s> b <s> <pad> c <unk> d </s>", "the <unk> cat"] * 7
    tokenizer = train_tokenizer(texts, kind, 300)
    vocabulary = json.loads(tokenizer.to_json())["added_tokens"]
    assert {token["content"]: token["id"] for token in vocabulary} == {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    ids = tokenizer.encode(texts)
    assert not {0, 1, 2} & {token for some in ids for token in some}
    assert max(map(max, ids)) < tokenizer.vocab_size


def test_an_unknown_word_and_the_word_unk_are_one():
    tokenizer = train_tokenizer(["the <unk> cat <unk> sat </s>"] * 3, "words", 300)
    assert tokenizer.vocab_size == 4 + len({"the", "cat", "sat"})
    ids = tokenizer.encode(["the <unk> dog sat </s>"])
    assert ids[0][1:3] == [3, 3]
    assert tokenizer.count_unknown(ids) == 3
    assert tokenizer.decode(ids) == ["the <unk> <unk> sat <unk>"]


def test_words_that_are_not_in_the_vocabulary_are_split_into_pieces_that_many_words_share():
    texts = ["walking talking baking making", "walked talked baked", "unwise unfit unreal", "walked, and talked!"]
    tokenizer = train_tokenizer(texts, "wordpunct", 100)
    encoded = tokenizer.encode(["unking, walked"])[0]
    assert tokenizer.pieces(encoded) == ["un", "##king", ",", "walked"]
    assert tokenizer.decode([encoded]) == ["unking , walked"]
    assert tokenizer.vocab_size <= 100
    again = train_tokenizer(texts, "wordpunct", 100)
    assert again.to_json() == tokenizer.to_json()


def test_unknown_tokens_are_counted():
    tokenizer = train_tokenizer(["abc"], "characters", 100)
    assert tokenizer.count_unknown(tokenizer.encode(["abz", "yy"])) == 3


@pytest.mark.parametrize(("kind", "size"), [("bpe", 200), ("words", 4), ("unigram", 20)])
def test_a_vocabulary_too_small_is_an_error(kind: str, size: int):
    with pytest.raises(ConfigError, match=str(size)):
        train_tokenizer(TEXTS, kind, size)


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean unigram"):
        train_tokenizer(TEXTS, "unigramm", 300)


def test_a_foreign_tokenizer_brings_its_own_special_tokens():
    inner = tokenizers.Tokenizer(models.WordLevel({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "hi": 4}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer.from_json(inner.to_str())
    assert (tokenizer.pad, tokenizer.start, tokenizer.end) == (0, 1, 2)


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"model": 1}'])
def test_what_is_not_a_tokenizer_is_an_error(text: str, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        load_tokenizer(path)


def test_a_tokenizer_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot read the tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot read the tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "words"])
def test_a_lower_cased_tokenizer_ignores_case_and_keeps_offsets(kind):
    texts = ["The Cat saw the CAT", "a cat and The dog"] * 20
    tokenizer = train_tokenizer(texts, kind, 300, is_lowercased=True)
    again = Tokenizer.from_json(tokenizer.to_json())
    upper, lower = again.encode(["THE CAT", "the cat"])
    assert upper == lower
    assert again.decode([upper]) == ["the cat"]
    (found,) = again.encode_with_offsets(["THE CAT"])
    assert max(end for _, end in found[1]) == len("THE CAT")
