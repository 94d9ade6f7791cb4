"""Vocabularies of GGUF files: the same tokens as those who trained them would get."""

import random
from itertools import pairwise
from typing import Any

import pytest

from regard.errors import ConfigError, DataError
from regard.interop.gguf.tokenizer import (
    PRE_TOKENIZERS,
    GGUFVocabulary,
    TokenType,
    metadata_from_tokenizer,
    sentencepiece_tokenizer,
    tokenizer_from_metadata,
)
from regard.text.tokenizer import Tokenizer, train_tokenizer

PIECES = [
    "\u2581",
    "t",
    "h",
    "e",
    "r",
    "n",
    "th",
    "he",
    "\u2581t",
    "\u2581th",
    "the",
    "\u2581the",
    "re",
    "er",
    "ere",
    "in",
]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
SCORES = [0.0] * 259 + [-float(rank) for rank in random.Random(3).sample(range(100), len(PIECES))]
SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": SPM_TOKENS,
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.pieces(tokenizer.encode([text])[0])


@pytest.mark.parametrize(
    ("pre_tokenizer", "expected"),
    [
        ("gpt-2", ["hell", "o", " wor", "l", "d", "'s", " ", "123", "4", "'", "S"]),
        ("smollm", ["hell", "o", " wor", "l", "d", "'s", " ", "1", "2", "3", "4", "'", "S"]),
        ("llama-bpe", ["hell", "o", " wor", "l", "d", "'s", " ", "123", "4", "'S"]),
        ("qwen2", ["hell", "o", " wor", "l", "d", "'s", " ", "1", "2", "3", "4", "'S"]),
    ],
)
def test_a_text_is_split_by_the_pre_tokenizer_of_the_file(byte_level, pre_tokenizer, expected):
    tokenizer = tokenizer_from_metadata({**byte_level, "tokenizer.ggml.pre": pre_tokenizer})
    assert pieces(tokenizer, "hello world's 1234'S") == expected


@pytest.mark.parametrize("pre_tokenizer", PRE_TOKENIZERS)
def test_any_text_comes_back_and_spelled_markers_are_text(byte_level, pre_tokenizer):
    tokenizer = tokenizer_from_metadata({**byte_level, "tokenizer.ggml.pre": pre_tokenizer})
    texts = ["", " ", "hello  world\n\n\tit's 12345", "né 你好 \U0001f600", "<|im_end|> is text"]
    ids = tokenizer.encode(texts)
    assert tokenizer.decode(ids) == texts
    assert not {0, 1, 2} & {token for row in ids for token in row}


def test_tokens_of_the_user_are_found_in_any_text(byte_level):
    kinds = [*byte_level["tokenizer.ggml.token_type"], int(TokenType.USER_DEFINED)]
    metadata = {
        "tokenizer.ggml.tokens": [*byte_level["tokenizer.ggml.tokens"], "<think>"],
        "tokenizer.ggml.token_type": kinds,
    }
    tokenizer = tokenizer_from_metadata({**byte_level, **metadata})
    assert tokenizer.encode(["<think>"]) == [[len(byte_level["tokenizer.ggml.tokens"])]]


def test_the_start_token_is_added_if_the_file_requires_it(byte_level):
    assert tokenizer_from_metadata(byte_level).prefix == ()
    assert tokenizer_from_metadata({**byte_level, "tokenizer.ggml.add_bos_token": True}).prefix == (1,)
    assert tokenizer_from_metadata({**byte_level, "tokenizer.ggml.pre": "llama-bpe"}).prefix == (1,)
    assert tokenizer_from_metadata(SENTENCEPIECE).prefix == (1,)
    assert tokenizer_from_metadata({**SENTENCEPIECE, "tokenizer.ggml.add_bos_token": False}).prefix == ()


def test_the_roles_are_those_of_the_file_whatever_the_tokens_are_called(byte_level):
    names = ["one", "two", "three", *byte_level["tokenizer.ggml.tokens"][3:]]
    tokenizer = tokenizer_from_metadata({**byte_level, "tokenizer.ggml.tokens": names})
    assert [tokenizer.pad, tokenizer.start, tokenizer.end] == [0, 1, 2]
    only_end = {key: value for key, value in byte_level.items() if "bos" not in key and "padding" not in key}
    tokenizer = tokenizer_from_metadata({**only_end, "tokenizer.ggml.tokens": names})
    assert [tokenizer.pad, tokenizer.start, tokenizer.end] == [2, 2, 2]


def joined_by_score(text: str) -> list[int]:
    """SentencePiece's own way: of neighbors that make a piece, join those that make the best one, leftmost first."""
    ids = {piece: index for index, piece in enumerate(SPM_TOKENS) if index == 0 or index > 258}
    parts = list(("\u2581" + text).replace(" ", "\u2581"))
    while True:
        wholes = ["".join(pair) for pair in pairwise(parts)]
        places = [place for place, whole in enumerate(wholes) if whole in ids]
        if not places:
            break
        best = max(places, key=lambda place: (SCORES[ids[wholes[place]]], -place))
        parts[best : best + 2] = [wholes[best]]
    return [token for part in parts for token in ([ids[part]] if part in ids else [3 + b for b in part.encode()])]


def test_pieces_are_joined_as_sentencepiece_joins_them():
    tokenizer = tokenizer_from_metadata(SENTENCEPIECE)
    rng = random.Random(5)
    texts = ["".join(rng.choice("ttheern né") for _ in range(rng.randint(1, 23))) for _ in range(300)]
    assert tokenizer.encode(texts) == [joined_by_score(text) for text in texts]
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


def test_without_a_prefix_no_space_comes_in_front():
    tokenizer = tokenizer_from_metadata({**SENTENCEPIECE, "tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.encode(["the"]) == [[SPM_TOKENS.index("the")]]
    assert tokenizer.decode(tokenizer.encode([" the", "the"])) == [" the", "the"]


def test_llama_3_encodes_a_part_that_is_a_token_as_that_token(byte_level):
    tokens, kinds = byte_level["tokenizer.ggml.tokens"], byte_level["tokenizer.ggml.token_type"]
    metadata = {**byte_level, "tokenizer.ggml.tokens": [*tokens, "other"], "tokenizer.ggml.token_type": [*kinds, 1]}
    whole = tokenizer_from_metadata({**metadata, "tokenizer.ggml.pre": "llama-bpe"})
    merged = tokenizer_from_metadata({**metadata, "tokenizer.ggml.pre": "qwen2"})
    assert pieces(whole, "other") == ["other"]
    assert pieces(merged, "other") == ["o", "t", "he", "r"]


def test_qwen_composes_characters_first(byte_level):
    tokenizer = tokenizer_from_metadata({**byte_level, "tokenizer.ggml.pre": "qwen2"})
    assert tokenizer.encode(["ne\u0301"]) == tokenizer.encode(["n\u00e9"])


def test_words_are_split_into_the_pieces_of_bert():
    """The vocabulary of BERT, whose rests of words are marked; in GGUF their beginnings are."""
    transformers = pytest.importorskip("transformers")
    words = ["the", "heat", "##her", "in", "n", "##e", "[unused1]", "un", "##heat", "\uff0c", ","]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    theirs = transformers.BertTokenizerFast(vocab={token: index for index, token in enumerate(tokens)})
    marked = [token[2:] if token[:2] == "##" else token if token[0] == "[" else f"\u2581{token}" for token in tokens]
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": marked,
        "tokenizer.ggml.token_type": [3] * 5 + [1] * len(words),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }
    ours = tokenizer_from_metadata(metadata)
    texts = ["The heather, in NÉ unheather", "xyz the", "", "the[unused1]"]
    assert ours.encode(texts) == [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert (ours.pad, ours.start, ours.end, ours.mask, ours.prefix) == (0, 2, 3, 4, (2,))
    assert ours.decode(ours.encode(["the heather"])) == ["the heather"]


@pytest.mark.parametrize("pre_tokenizer", PRE_TOKENIZERS)
def test_a_byte_level_tokenizer_is_written_and_read_back(byte_level, pre_tokenizer):
    tokenizer = tokenizer_from_metadata({**byte_level, "tokenizer.ggml.pre": pre_tokenizer})
    metadata = metadata_from_tokenizer(tokenizer, adds_start=False)
    assert metadata.items() >= {**byte_level, "tokenizer.ggml.pre": pre_tokenizer}.items()
    assert (
        tokenizer_from_metadata(metadata).to_json()
        == tokenizer_from_metadata(
            {**byte_level, "tokenizer.ggml.pre": pre_tokenizer, "tokenizer.ggml.add_bos_token": False}
        ).to_json()
    )


def test_a_sentencepiece_tokenizer_is_written_and_read_back():
    tokenizer = tokenizer_from_metadata(SENTENCEPIECE)
    back = tokenizer_from_metadata(metadata_from_tokenizer(tokenizer, adds_start=True))
    texts = ["the other", "there in the heather", "né"]
    assert back.encode(texts) == tokenizer.encode(texts)
    assert (back.start, back.end, back.pad, back.prefix) == (1, 2, 2, (1,))


def test_a_tokenizer_that_was_trained_here_is_written_and_read_back():
    texts = ["the heather there", "in the other theatre 123"] * 20
    tokenizer = train_tokenizer(texts, "bpe", 290)
    back = tokenizer_from_metadata(metadata_from_tokenizer(tokenizer, adds_start=True))
    assert back.encode(texts) == tokenizer.encode(texts)
    assert back.vocab_size == tokenizer.vocab_size
    assert (back.start, back.end, back.pad) == (tokenizer.start, tokenizer.end, tokenizer.pad)


@pytest.mark.parametrize(
    ("kind", "reason"), [("words", "WordLevel"), ("unigram", "Unigram"), ("bytes", "must have merges")]
)
def test_a_tokenizer_that_the_format_cannot_represent_is_an_error(kind, reason):
    tokenizer = train_tokenizer(["the heather there"] * 9, kind, 300)
    with pytest.raises(ConfigError, match=reason):
        metadata_from_tokenizer(tokenizer, adds_start=True)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer model 'rwkv' cannot be imported"),
        ({"tokenizer.ggml.model": None}, "tokenizer model None cannot be imported"),
        ({"tokenizer.ggml.pre": "qwen3000"}, "'qwen3000'; did you mean qwen2"),
        ({"tokenizer.ggml.tokens": [1, 2]}, r"no list of str for tokenizer\.ggml\.tokens"),
        ({"tokenizer.ggml.merges": None}, r"no list of str for tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.merges": ["he"]}, "a merge must have two tokens, got 'he'"),
        ({"tokenizer.ggml.merges": ["he xyz"]}, "the merges do not fit the vocabulary"),
        ({"tokenizer.ggml.token_type": [1]}, "269 tokens and 1 types"),
        ({"tokenizer.ggml.tokens": ["h"] * 269}, "got 'h' 269 times"),
        ({"tokenizer.ggml.eos_token_id": 269}, r"eos_token_id must be the id of one of 269 tokens, got 269"),
    ],
)  # fmt: skip
def test_an_invalid_tokenizer_is_an_error(byte_level, changed, reason):
    metadata = {key: value for key, value in {**byte_level, **changed}.items() if value is not None}
    with pytest.raises((ConfigError, DataError), match=reason):
        tokenizer_from_metadata(metadata)


def test_without_a_pre_tokenizer_that_of_gpt2_is_used_with_a_warning(byte_level, caplog):
    without = {key: value for key, value in byte_level.items() if key != "tokenizer.ggml.pre"}
    assert pieces(tokenizer_from_metadata(without), "'s 123") == ["'s", " ", "123"]
    assert "the pre-tokenizer of GPT-2 is used" in caplog.text


def test_each_piece_needs_a_score():
    with pytest.raises(DataError, match="2 pieces and 1 scores"):
        sentencepiece_tokenizer(GGUFVocabulary(["a", "b"], [1, 1], scores=[0.0]))
