"""Answering: rows, windows, losses, spans."""

import json
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, trainers

from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.data.questions import (
    QuestionCoding,
    most_windows,
    open_question_source,
    read_answers,
    tokens_of,
    windows_of,
    write_answers,
)
from regard.data.squad import Answer
from regard.errors import BadRowsError, ConfigError, DataError
from regard.models.heads import HeadConfig
from regard.models.transformer import TransformerConfig
from regard.tasks.answering import LONGEST_ANSWER, Answering, best_spans
from regard.tasks.objective import Objective
from regard.tasks.task import Prediction
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.training.resolution import with_learned

SHAPE = TransformerConfig.read(
    {"num_layers": 1, "decoder_layers": 0, "model_dim": 22, "num_heads": 2, "feedforward_dim": 37, "dropout": 0.0}
)
CPU = torch.device("cpu")
TASK = Answering()
COLORS = ["red", "green", "dark blue", "grey"]
THINGS = ["cat", "dog", "owl", "hen", "fox"]


def rows_of(count: int = 90, filler: int = 0) -> list[Any]:
    """What color a thing has; every seventh context does not say it, and some are longer than others."""
    rows = []
    for number in range(count):
        said = [(THINGS[(number + k) % 5], COLORS[(number // 3 + k) % 4]) for k in range(3)]
        texts = [f"the {thing} is {color} ." for thing, color in said]
        context = " and so on ".join(texts) + f" seen {number}" + " oh well" * (filler * (number % 5))
        thing, color = said[number % 3]
        if number % 7 == 0:
            rows.append((f"what is the {THINGS[(number + 4) % 5]} ?", context, ""))
        else:
            place = context.index(f"the {thing} is {color}") + len(f"the {thing} is ")
            rows.append((f"what is the {thing} ?", context, write_answers([Answer(color, place)])))
    return rows


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(rows, **options) -> tuple[Prepared, DataConfig]:
    config = DataConfig.read({"tokenizer": "words", **options})
    data = TASK.prepare(config, rows)
    return data, with_learned(config, data)


def model_for(data: Prepared):
    return TASK.build_model(SHAPE, data.tokenizer, head=HeadConfig(dropout=0.0))


def answers(model, data: Prepared, config: DataConfig, inputs):
    return TASK.writer(model.eval(), data.tokenizer, None, config)(inputs)  # pyright: ignore[reportArgumentType]  it is not used


def scores_of(rows, said, config):
    return {score.name: score.value for score in TASK.scores(rows, said, None, config)}  # pyright: ignore[reportArgumentType]  it is not used


def tokenizer_of(kind) -> Tokenizer:
    texts = [text for row in rows_of() for text in row[:2]]
    if kind != "wordpiece":
        return train_tokenizer(texts, kind, {"bpe": 300, "unigram": 70}.get(kind, 400))
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    inner.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=70, special_tokens=names))
    return Tokenizer(inner)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words", "wordpiece"])
def test_the_tokens_of_an_answer_hold_its_text(kind):
    tokenizer = tokenizer_of(kind)
    contexts = [row[1] for row in rows_of(30)] + ["née à Dark  Blue\n§ grey"]
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


def test_windows_overlap_hold_all_of_the_context_and_the_answer_where_it_is_whole():
    question, context = [51, 52, 53], list(range(100, 137))
    tokens = [1, *question, 2, *context, 2]
    windows = windows_of(tokens, [0, 3, 0, 11, 0, 13], max_length=17, stride=5)
    assert len(windows) == most_windows(len(tokens), max_length=17, stride=5)
    room = 17 - 3 - 3
    for number, window in enumerate(windows):
        assert window.first == 5 * number
        assert window.tokens == [1, *question, 2, *context[5 * number : 5 * number + room], 2]
        is_whole = window.first <= 11 and window.first + room > 13
        assert window.span == (
            (window.start + 11 - window.first, window.start + 13 - window.first) if is_whole else (0, 0)
        )
    assert {token for window in windows for token in window.tokens[window.start : -1]} == set(context)
    assert sum(window.span != (0, 0) for window in windows) == 2
    assert len(windows_of(tokens, [0, 3], max_length=45)) == 1
    long = [1, *range(10, 40), 2, 7, 8, 2]
    assert [len(window.tokens) for window in windows_of(long, [0, 30], max_length=20)] == [10]
    with pytest.raises(ConfigError, match="needs max_length of 12, got 7"):
        windows_of(tokens, [0, 3], max_length=7)


def test_the_loss_is_that_of_a_plain_loop():
    data, config = prepared(rows_of(filler=5), max_length=29)
    model = model_for(data)
    batch = TASK.batches(data, config, batch_tokens=300, seed=0).batch(1)
    assert max(batch.num_windows) > 1
    expected = torch.zeros(())
    for row in range(batch.source.size(0)):
        length = int(batch.lengths[row])
        scores = model(batch.source[row : row + 1, :length])[0]
        start = batch.source[row].tolist().index(data.tokenizer.end) + 1
        kept = [0, *range(start, length - 1)]
        for end, place in enumerate(batch.spans[row].tolist()):
            expected = expected - scores[kept, end].log_softmax(dim=0)[kept.index(place)]
    assert batch.num_targets == 2 * sum(batch.num_windows)
    torch.testing.assert_close(TASK.loss(model, batch), expected)


@pytest.mark.slow
def test_batches_filled_to_a_shape_cost_what_they_did():
    data, config = prepared(rows_of(filler=5), max_length=29)
    model = model_for(data)
    plain = TASK.batches(data, config, batch_tokens=400, seed=3)
    shaped = TASK.batches(data, config, batch_tokens=400, seed=3, has_few_shapes=True)
    assert plain.per_epoch > 2
    shapes = set()
    for number in range(plain.per_epoch):
        one, other = plain.batch(number), shaped.batch(number)
        shapes.add(other.source.shape)
        assert one.num_targets == other.num_targets
        for objective in (Objective(), Objective(label_smoothing=0.1, consistency=2.0)):
            torch.testing.assert_close(TASK.loss(model, one, objective), TASK.loss(model, other, objective))
    assert len(shapes) <= len(plain.sampler.buckets)


def test_rows_as_text_and_rows_of_the_store_are_the_same():
    data, config = prepared(rows_of(filler=5), max_length=29)
    model = model_for(data)
    stored = TASK.negative_log_likelihoods(model, TASK.held_out(data, config), CPU)
    batches = TASK.rows_as_batches(data.held_out["valid"], data.tokenizer, config)
    given = TASK.negative_log_likelihoods(model, batches, CPU)
    assert sorted(given.losses) == pytest.approx(sorted(stored.losses))
    assert len(given.losses) == len(data.held_out["valid"])


def test_a_place_beyond_sixteen_bits_is_kept():
    tokenizer = train_tokenizer(["a b"], "words", 20)
    context = "a " * 70_000 + "b"
    tokens, places = QuestionCoding().encode([(context, "a", write_answers([Answer("b", 140_000)]))], tokenizer)
    assert max(places[0]) < 1 << 16
    windows = windows_of(tokens[0], places[0], max_length=4_000)
    assert [window.span != (0, 0) for window in windows[-2:]] == [False, True]
    window = windows[-1]
    assert window.tokens[window.span[0]] == tokenizer.encode(["b"])[0][0]


def test_the_best_span_is_found_by_trying_all():
    windows, time = 5, 41
    scores = torch.randn(windows, time, 2)
    may_end = torch.zeros(windows, time, dtype=torch.bool)
    may_end[:, 0] = may_end[:, 5:39] = True
    best, nothing, first, last = best_spans(scores, may_end)
    for row in range(windows):
        tried = {
            (one, other): float(scores[row, one, 0] + scores[row, other, 1])
            for one in range(5, 39)
            for other in range(one, min(39, one + LONGEST_ANSWER))
        }
        assert (int(first[row]), int(last[row])) == max(tried, key=tried.__getitem__)
        assert float(best[row]) == max(tried.values())
        assert float(nothing[row]) == float(scores[row, 0].sum())


def test_answers_stand_in_their_context_and_long_ones_are_read_whole():
    data, config = prepared(rows_of(filler=5), max_length=23)
    model = model_for(data)
    inputs = [f"{question}\t{context}" for question, context, _ in rows_of(12, filler=9)]
    found = answers(model, data, config, inputs)
    assert [each.input for each in found] == inputs
    assert all(each.output in each.input.split("\t")[1] for each in found)
    one_by_one = [answers(model, data, config, [text])[0].output for text in inputs]
    assert [each.output for each in found] == one_by_one
    with pytest.raises(DataError, match="an input is a question, a tab, and the text"):
        answers(model, data, config, ["what?"])


@pytest.mark.slow
def test_what_is_asked_for_is_learned():
    kinds = {"color": ["red", "green", "blue"], "animal": THINGS, "number": ["one", "two", "six"]}
    generator = torch.Generator().manual_seed(5)
    rows = []
    for _ in range(400):
        draws = torch.randint(0, 3, (5,), generator=generator).tolist()
        words = {kind: some[draw] for (kind, some), draw in zip(kinds.items(), draws, strict=False)}
        left_out = list(kinds)[draws[3]]
        there = [word for kind, word in words.items() if kind != left_out] + ["and", "or"]
        order = torch.randperm(len(there), generator=generator).tolist()
        asked = list(kinds)[draws[4]]
        answer = "" if asked == left_out else words[asked]
        rows.append((f"which {asked}", " ".join(there[n] for n in order), answer))
    data, config = prepared(rows)
    model = TASK.build_model(SHAPE.changed(num_layers=2), data.tokenizer, head=HeadConfig(dropout=0.0)).float()
    batches = TASK.batches(data, config, batch_tokens=1000, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        batch = batches.batch(step)
        optimizer.zero_grad()
        (TASK.loss(model, batch) / batch.num_targets).backward()
        optimizer.step()
    held_out = data.held_out["valid"] + data.held_out["test"]
    assert not {row[0] for row in data.held_out["valid"]} & {row[0] for row in data.held_out["test"]}
    said = answers(model, data, config, [TASK.question(row) for row in held_out])
    assert scores_of(held_out, said, config)[TASK.headline(held_out)] > 0.8


def test_scores_know_questions_without_answers():
    rows = [("red or green", "q", write_answers([Answer("red", 0), Answer("green", 7)])), ("red", "q", "[]")]
    scores = scores_of(rows, [Prediction("", "green"), Prediction("", "red")], DataConfig())
    assert scores["answer_f1"] == 0.5
    assert scores["answer_exact_match_unanswerable"] == 0.0


def test_files_and_rows_in_memory_give_the_same_rows(tmp_path):
    rows = rows_of(20)
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
        assert TASK.read(DataConfig(train=[str(tmp_path / name)]))[0] == expected
    assert TASK.read(DataConfig(), rows)[0] == expected
    several: Any = [("q", "a b a", ["b", "a"])]
    assert TASK.read(DataConfig(), several)[0] == [
        ("a b a", "q", '[{"text": "b", "start": 2}, {"text": "a", "start": 0}]')
    ]
    source = open_question_source(DataConfig(train=[str(tmp_path / "a.json")], valid=[str(tmp_path / "train.jsonl")]))
    assert source.valid is not None
    assert source.content_hash().count("+") == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("q", "context", "answer"), "has the answer 'answer', which is not where it is said to be in its context"),
        (("q", "context", write_answers([Answer("text", 1)])), "has the answer 'text', which is not where"),
        (("q", "context"), "has 2 values instead of 3"),
        (("", "context", "text"), "has an empty question"),
    ],
)
def test_rows_that_cannot_be_are_refused(row, message):
    with pytest.raises(BadRowsError, match=f"{message}.*: row 91"):
        prepared([*rows_of(), row])


def test_bad_questions_of_a_file_are_counted(tmp_path):
    lines = [json.dumps({"question": "q", "context": "a b", "answer": answer}) for answer in ("a", "b", "c")]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "1"]))
    config = DataConfig(train=[str(tmp_path / "a.jsonl")])
    with pytest.raises(BadRowsError, match=r"has the answer 'c', which is not in its context \(row 3\); 1 has no JSON"):
        TASK.read(config)
    assert len(TASK.read(config.changed(skip_bad=True))[0]) == 2
