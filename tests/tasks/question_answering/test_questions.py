"""Questions: the tokens of an answer, windows of long contexts, and where questions come from."""

import json
from typing import Any

import pytest
import tokenizers
from tests.tasks.question_answering.rows import question_rows
from tests.tiny import tiny
from tokenizers import models, normalizers, pre_tokenizers, trainers

from regard.data.formats.squad import Answer
from regard.data.settings import DataConfig
from regard.errors import BadRowsError, ConfigError
from regard.tasks.question_answering.task import (
    encode_questions,
    most_windows,
    open_question_source,
    read_answers,
    tokens_of,
    windows_of,
    write_answers,
)
from regard.text.tokenizer import Tokenizer, train_tokenizer


def tokenizer_of(kind) -> Tokenizer:
    texts = [text for row in question_rows() for text in row[:2]]
    if kind != "wordpiece":
        return train_tokenizer(texts, kind, {"bpe": 300, "unigram": 70}.get(kind, 400))
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    inner.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=70, special_tokens=names))
    return Tokenizer(inner)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words", "wordpiece"])
def test_the_tokens_of_an_answer_cover_its_text(kind):
    tokenizer = tokenizer_of(kind)
    contexts = [row[1] for row in question_rows(30)] + ["née à Dark  Blue\n§ grey"]
    for context, ids, (same, offsets) in zip(
        contexts, tokenizer.encode(contexts), tokenizer.encode_with_offsets(contexts), strict=True
    ):
        assert ids == same
        for text in ("dark blue", "green", "à", "grey"):
            if text in context:
                span = tokens_of(Answer(text, context.index(text)), offsets)
                assert span
                found = context[offsets[span[0]][0] : offsets[span[1]][1]].strip()
                assert found == text


def test_windows_overlap_and_cover_the_context_and_have_the_answer_where_it_is_whole():
    question, context = [51, 52, 53], list(range(100, 137))
    tokens = [1, *question, 2, *context, 2]
    windows = windows_of(tokens, [0, 3, 0, 11, 0, 13], max_length=17, stride=5)
    assert len(windows) == most_windows(len(tokens), max_length=17, stride=5)
    width = 17 - 3 - 3
    for number, window in enumerate(windows):
        assert window.first == 5 * number
        assert window.tokens == [1, *question, 2, *context[5 * number : 5 * number + width], 2]
        is_whole = window.first <= 11 and window.first + width > 13
        assert window.span == (
            (window.start + 11 - window.first, window.start + 13 - window.first) if is_whole else (0, 0)
        )
    assert {token for window in windows for token in window.tokens[window.start : -1]} == set(context)
    assert sum(window.span != (0, 0) for window in windows) == 2
    assert len(windows_of(tokens, [0, 3], max_length=45)) == 1
    long = [1, *range(10, 40), 2, 7, 8, 2]
    assert [len(window.tokens) for window in windows_of(long, [0, 30], max_length=20)] == [10]
    with pytest.raises(ConfigError, match=r"12.* 7$"):
        windows_of(tokens, [0, 3], max_length=7)


def test_a_position_beyond_sixteen_bits_is_kept():
    tokenizer = train_tokenizer(["a b"], "words", 20)
    context = "a " * 70_000 + "b"
    tokens, positions = encode_questions([(context, "a", write_answers([Answer("b", 140_000)]))], tokenizer)
    assert max(positions[0]) < 1 << 16
    windows = windows_of(tokens[0], positions[0], max_length=4_000)
    assert [window.span != (0, 0) for window in windows[-2:]] == [False, True]
    window = windows[-1]
    assert window.tokens[window.span[0]] == tokenizer.encode(["b"])[0][0]


def test_files_and_rows_in_memory_give_the_same_rows(tmp_path):
    rows = question_rows(20)
    task = tiny("question-answering", rows, tokenizer="words").task
    expected = [(context, question, answer or "[]") for question, context, answer in rows]
    questions = [
        {
            "question": q,
            "context": c,
            "answers": [{"text": a.text, "answer_start": a.start} for a in read_answers(given)],
        }
        for c, q, given in expected
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, questions)))
    paragraphs = [{"context": each["context"], "qas": [{**each, "id": str(n)}]} for n, each in enumerate(questions)]
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    for name in ("train.jsonl", "a.json"):
        assert task.read(DataConfig(train=[str(tmp_path / name)]))[0] == expected
    assert task.read(DataConfig(), rows)[0] == expected
    several: Any = [("q", "a b a", ["b", "a"])]
    assert task.read(DataConfig(), several)[0] == [
        ("a b a", "q", '[{"text": "b", "start": 2}, {"text": "a", "start": 0}]')
    ]
    source = open_question_source(DataConfig(train=[str(tmp_path / "a.json")], valid=[str(tmp_path / "train.jsonl")]))
    assert source.valid is not None
    assert source.content_hash().count("+") == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("q", "context", "answer"), "the answer 'answer'"),
        (("q", "context", write_answers([Answer("text", 1)])), "the answer 'text'"),
        (("q", "context"), "2 values instead of 3"),
        (("", "context", "text"), "an empty question"),
    ],
)
def test_invalid_rows_are_errors(row, message):
    with pytest.raises(BadRowsError, match=f"{message}.*: row 91"):
        tiny("question-answering", [*question_rows(), row], tokenizer="words", data={"skip_bad": False})


def test_invalid_questions_of_a_file_are_counted(tmp_path):
    lines = [json.dumps({"question": "q", "context": "a b", "answer": answer}) for answer in ("a", "b", "c")]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "1"]))
    task = tiny("question-answering", question_rows(20), tokenizer="words").task
    config = DataConfig(train=[str(tmp_path / "a.jsonl")])
    with pytest.raises(BadRowsError, match=r"the answer 'c'.*\(row 3\); 1 .*JSON"):
        task.read(config)
    assert len(task.read(config.changed(skip_bad=True))[0]) == 2
