"""Tagged sentences: how words are tokenized, and where sentences come from."""

import json

import pytest
import tokenizers
from tests.tasks.token_classification.rows import PLAIN_ROWS, entity_rows
from tests.tiny import tiny
from tokenizers import models, normalizers, pre_tokenizers, trainers

from regard.data.settings import DataConfig
from regard.errors import BadRowsError, DataError
from regard.tasks.token_classification.sentences import encode_sentences, has_word_boundaries, open_sentences
from regard.text.tokenizer import Tokenizer, train_tokenizer


def wordpiece() -> Tokenizer:
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=names, show_progress=False)
    inner.train_from_iterator([" ".join(words) for words, _ in entity_rows()], trainer)
    return Tokenizer(inner)


def tokenizer_of(kind) -> Tokenizer:
    texts = [" ".join(words) for words, _ in entity_rows()]
    size = {"bpe": 300, "unigram": 60}.get(kind, 400)
    return wordpiece() if kind == "wordpiece" else train_tokenizer(texts, kind, size)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words", "wordpiece"])
def test_words_have_the_tokens_that_they_have_in_the_sentence(kind):
    tokenizer = tokenizer_of(kind)
    sentences = [words for words, _ in entity_rows(40)]
    tokens, positions, *_ = encode_sentences(sentences, tokenizer, 512)
    for words, ids, firsts in zip(sentences, tokens, positions, strict=True):
        assert ids == [tokenizer.start, *tokenizer.encode([" ".join(words)])[0], tokenizer.end]
        assert len(firsts) == len(words)
        assert firsts == sorted(set(firsts))
        for word, start in zip(words, firsts, strict=True):
            piece = tokenizer.pieces([ids[start]])[0].strip().removeprefix("▁")
            assert word.lower().startswith(piece.lower()) or kind in ("words", "wordpiece")
            assert piece
    assert has_word_boundaries(tokenizer) == (kind in ("bpe", "characters", "bytes"))


def test_a_sentence_is_truncated_at_a_word_and_a_word_without_tokens_has_the_position_before():
    tokenizer = tokenizer_of("characters")
    tokens, positions, *_ = encode_sentences([["Ada", "sang", "it"], ["Noether" * 3, "sang"]], tokenizer, 11)
    assert [len(ids) for ids in tokens] == [10, 11]
    assert positions == [[1, 5], [1]]
    (ids,), (firsts,), *_ = encode_sentences([["\u200b", "Ada", "\u200b"]], wordpiece(), 50)
    assert firsts == [0, 1, len(ids) - 2]


def test_each_token_has_the_form_of_its_word():
    tokenizer = tokenizer_of("characters")
    (tokens,), _, (forms,), *affixes = encode_sentences([["Ada", "UN", "is"]], tokenizer, 9)
    assert {len(forms), *(len(column[0]) for column in affixes)} == {len(tokens)}
    assert forms == [0, 3, 3, 3, 4, 4, 4, 0]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([*PLAIN_ROWS, ("a b", "X")], BadRowsError, "2 words and 1 tag: row 91"),
        ([*PLAIN_ROWS, (["a", "b"], ["X", "Y", "Z"])], BadRowsError, "2 words and 3 tags: row 91"),
        ([*PLAIN_ROWS, (["a"], ["X Y"])], BadRowsError, "a tag with a space in it: row 91"),
        ([(f"a {n}", "X X") for n in range(60)], DataError, "words have 'X'"),
    ],
)
def test_invalid_rows_are_errors(rows, error, message):
    with pytest.raises(error, match=message):
        tiny("token-classification", rows, tokenizer="characters", data={"skip_bad": False})


def test_files_lists_and_joined_texts_give_the_same_rows(tmp_path):
    rows = entity_rows(30)
    task = tiny("token-classification", rows, tokenizer="characters").task
    columns = "\n\n".join("\n".join(f"{w} {t}" for w, t in zip(*row, strict=True)) for row in rows) + "\n"
    (tmp_path / "a.conll").write_text(columns)
    lines = (json.dumps({"tokens": words, "tags": tags}) for words, tags in rows)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    expected = [(" ".join(words), " ".join(tags)) for words, tags in rows]
    for name in ("a.conll", "a.jsonl"):
        assert task.read(DataConfig(train=[str(tmp_path / name)]))[0] == expected
    assert task.read(DataConfig(), rows)[0] == task.read(DataConfig(), expected)[0] == expected
    assert task.read(DataConfig(), rows)[1] == task.read(DataConfig(), expected)[1]
    config = DataConfig(train=[str(tmp_path / "a.conll")], columns=["2", "1"])
    assert task.read(config)[0] == [(tags, words) for words, tags in expected]


def test_a_folder_has_its_splits_and_a_space_inside_a_word_becomes_a_no_break_space(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"en-{split}.conllu").write_text(
            f"1\t10 000\t_\tNUM{6 * chr(9)}_\n2\t{split}\t_\tNOUN{6 * chr(9)}_\n\n"
        )
    source = open_sentences(DataConfig(train=[str(tmp_path)]))
    assert [row.values for row in source.train] == [("10\u00a0000 train", "NUM NOUN")]
    assert source.valid is not None
    assert [row.values for row in source.valid] == [("10\u00a0000 dev", "NUM NOUN")]
    assert source.content_hash().count("+") == 2
