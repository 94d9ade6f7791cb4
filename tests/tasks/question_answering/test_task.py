"""Question answering: losses over windows, the best span, and predictions."""

from typing import Any

import pytest
import torch
from tests.tasks.question_answering.rows import THINGS, question_rows
from tests.tiny import Tiny, tiny

from regard.data.formats.squad import Answer
from regard.errors import DataError
from regard.tasks.question_answering.task import LONGEST_ANSWER, best_spans, write_answers


def prepared(rows: Any, **sections: Any) -> Tiny:
    return tiny("question-answering", rows, **{"tokenizer": "words", **sections})


def test_the_loss_matches_a_loop_over_windows():
    made = prepared(question_rows(filler=5), max_length=29)
    model = made.build()
    batch = made.batches(batch_tokens=300, seed=0).batch(1)
    assert max(batch.num_windows) > 1
    expected = torch.zeros(())
    for row in range(batch.source.size(0)):
        length = int(batch.lengths[row])
        logits = model(batch.source[row : row + 1, :length])[0]
        start = batch.source[row].tolist().index(made.task.tokenizer.end) + 1
        kept = [0, *range(start, length - 1)]
        for end, place in enumerate(batch.spans[row].tolist()):
            expected = expected - logits[kept, end].log_softmax(dim=0)[kept.index(place)]
    assert batch.num_targets == 2 * sum(batch.num_windows)
    torch.testing.assert_close(made.task.loss(model, batch), expected)


def test_batches_of_a_bucket_have_one_shape():
    made = prepared(question_rows(filler=5), max_length=29)
    padded = made.batches(has_fixed_shapes=True)
    shapes = {padded.batch(number).source.shape for number in range(padded.per_epoch)}
    assert len(shapes) <= len(padded.sampler.buckets)


def test_the_best_span_is_the_best_of_all():
    windows, time = 5, 41
    logits = torch.randn(windows, time, 2)
    is_candidate = torch.zeros(windows, time, dtype=torch.bool)
    is_candidate[:, 0] = is_candidate[:, 5:39] = True
    best, nothing, first, last = best_spans(logits, is_candidate)
    for row in range(windows):
        scores = {
            (one, other): float(logits[row, one, 0] + logits[row, other, 1])
            for one in range(5, 39)
            for other in range(one, min(39, one + LONGEST_ANSWER))
        }
        assert (int(first[row]), int(last[row])) == max(scores, key=scores.__getitem__)
        assert float(best[row]) == max(scores.values())
        assert float(nothing[row]) == float(logits[row, 0].sum())


def test_answers_are_spans_of_contexts_of_any_length():
    made = prepared(question_rows(filler=5), max_length=23)
    model = made.build()
    inputs = [f"{question}\t{context}" for question, context, _ in question_rows(12, filler=9)]
    found = made.predict(model, inputs)
    assert all(each.output in each.input.split("\t")[1] for each in found)
    assert [each.output for each in found] == [made.predict(model, [text])[0].output for text in inputs]
    with pytest.raises(DataError, match=r"a tab.*'what\?'"):
        made.predict(model, ["what?"])


def test_scores_include_questions_without_answers():
    made = prepared(question_rows(30))
    rows = [("red or green", "q", write_answers([Answer("red", 0), Answer("green", 7)])), ("red", "q", "[]")]
    scores = made.scores(rows, ["green", "red"])
    assert scores["answer_f1"] == 0.5
    assert scores["answer_exact_match_unanswerable"] == 0.0


@pytest.mark.slow
def test_the_kind_of_word_that_a_question_names_is_learned():
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
    made = prepared(rows, model={"num_layers": 2, "model_dim": 24})
    model = made.build().float().train()
    batches = made.batches(batch_tokens=1000, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(120):
        batch = batches.batch(step)
        optimizer.zero_grad()
        (made.task.loss(model, batch) / batch.num_targets).backward()
        optimizer.step()
    held_out = made.data.held_out["valid"] + made.data.held_out["test"]
    assert not {row[0] for row in made.data.held_out["valid"]} & {row[0] for row in made.data.held_out["test"]}
    predictions = made.predict(model.eval(), [made.task.input_of(row) for row in held_out])
    assert made.scores(held_out, [each.output for each in predictions])[made.task.headline(held_out)] > 0.8
