"""Sentence embeddings: the loss over the pairs of a batch, ranks, and vectors of texts."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.tiny import BODIES, CPU, Tiny, tiny

from regard.errors import ConfigError
from regard.models.family import build_model
from regard.models.heads import HeadConfig, SequenceClassifier
from regard.tasks.masked_language_modeling import MaskedLanguageModel
from regard.tasks.sentence_embedding import SentenceEncoder, embed_texts
from regard.tasks.task import EvaluationData, to_device

NUMBERS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
ROWS = [
    (f"{'number ' * (first % 3)}{first} {second}", f"{NUMBERS[first]} {NUMBERS[second]}")
    for first in range(10)
    for second in range(10)
]
WIDTH = BODIES["transformer"].model_dim


def prepared(**sections: Any) -> Tiny:
    settings = {"tokenizer": "characters", "data": {"splits": [0.7, 0.2, 0.1]}, **sections}
    return tiny("sentence-embedding", ROWS, **settings)


def plain_losses(texts: torch.Tensor, others: torch.Tensor, temperature: float) -> torch.Tensor:
    """The formula, row by row."""
    exponentials = (texts @ others.T / temperature).exp()
    right = exponentials.diagonal()
    return -(right / exponentials.sum(dim=1)).log() / 2 - (right / exponentials.sum(dim=0)).log() / 2


@pytest.mark.parametrize("body", BODIES)
def test_the_loss_follows_its_formula(body: str):
    made = prepared(temperature=0.3)
    model, batch = made.build(BODIES[body]), made.batches().batch(0)
    assert batch.num_targets > 5
    texts, others = (F.normalize(model.embed(side.source, side.lengths), dim=-1) for side in (batch.text, batch.other))
    torch.testing.assert_close(made.task.loss(model, batch), plain_losses(texts, others, 0.3).sum())
    torch.testing.assert_close(texts.square().sum(dim=-1), torch.ones(len(texts)))
    made.task.loss(model, batch).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_batches_are_padded_and_moved_with_all_their_tensors():
    made = prepared()
    plain, padded = (made.batches(batch_tokens=250, has_fixed_shapes=fixed) for fixed in (False, True))
    rows = [(len(plain.batch(n).text.source), len(padded.batch(n).text.source)) for n in range(plain.per_epoch)]
    assert any(more > few for few, more in rows)
    batch = plain.batch(0)
    moved = to_device(batch, CPU)
    assert all(one is other for one, other in zip(batch.tensors(), moved.tensors(), strict=True))


def test_rows_with_the_same_text_are_no_negatives_of_each_other():
    made = prepared(temperature=0.5)
    model = made.build()

    def loss(rows) -> torch.Tensor:
        (batch,) = made.task.row_batches(rows)
        return made.task.loss(model, batch)

    first, second, third = ROWS[3], ROWS[14], ROWS[25]
    same_other = (second[0], first[1])
    torch.testing.assert_close(loss([first, first]), torch.zeros(()))
    torch.testing.assert_close(loss([first, same_other]), torch.zeros(()))
    once, twice = loss([first, third]), loss([first, first, third])
    assert once > 0
    assert twice > once  # the third has two negatives now, the others one each


@pytest.mark.parametrize("body", BODIES)
def test_ranks_are_those_of_the_cosines(body: str):
    made = prepared()
    model, rows = made.build(BODIES[body]), made.data.held_out["valid"]
    ranks = made.likelihoods(model, rows).ranks
    vectors = [made.task.embed(model, [row[side] for row in rows]) for side in (0, 1)]
    order = (vectors[0] @ vectors[1].T).argsort(axis=1)[:, ::-1]
    assert sorted(ranks) == sorted(order[row].tolist().index(row) + 1 for row in range(len(rows)))


def test_validation_compares_all_rows_whatever_the_batches(monkeypatch):
    made = prepared(temperature=0.4)
    model, rows = made.build(), made.data.held_out["valid"]
    whole = made.likelihoods(model, rows)
    monkeypatch.setattr("regard.tasks.task.EVALUATION_TOKENS", 60)
    monkeypatch.setattr("regard.tasks.sentence_embedding._COSINES_AT_ONCE", 40)
    assert len(list(made.task.row_batches(rows))) > 1
    parts = made.likelihoods(model, rows)
    assert sorted(parts.losses) == pytest.approx(sorted(whole.losses))
    assert sorted(parts.ranks) == sorted(whole.ranks)
    everything = np.arange(len(made.data.valid))
    batch = made.task.collate([made.data.valid.sequences(side, everything) for side in (0, 1)])
    assert sum(whole.losses) == pytest.approx(float(made.task.loss(model, batch).detach()))


def test_scores_are_those_of_the_ranks():
    made = prepared()
    found = made.validation(made.build())
    scores = {score.name: score for score in made.task.scores(EvaluationData([], [], found))}
    assert list(scores) == ["recall_at_1", "recall_at_10", "mean_reciprocal_rank"]
    assert scores["recall_at_1"].value == pytest.approx(np.mean(np.array(found.ranks) == 1))


@pytest.mark.parametrize("body", BODIES)
def test_vectors_have_length_one_and_do_not_depend_on_other_texts(body: str):
    torch.set_default_dtype(torch.float32)
    made = prepared()
    model = made.build(BODIES[body])
    texts = ["3 4", "number number 5", "", "7" * 40]
    together = made.task.embed(model, texts)
    assert together.dtype == np.float32
    assert together.shape == (4, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, rtol=1e-5)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(made.task.embed(model, [text])[0], vector, atol=1e-6)
    assert made.task.embed(model, []).shape == (0, WIDTH)


def test_a_mean_includes_the_start_and_the_end():
    made = prepared()
    model, tokenizer = made.build(pooling="mean"), made.task.tokenizer
    tokens = torch.tensor([[tokenizer.start, *tokenizer.encode(["3 4"])[0], tokenizer.end]])
    mean = model.body.encode(tokens).hidden_states.mean(dim=1)
    expected = F.normalize(mean, dim=-1)[0].detach().numpy()
    np.testing.assert_allclose(made.task.embed(model, ["3 4"])[0], expected, rtol=1e-5)


def test_models_with_pooled_texts_have_embeddings_and_others_are_an_error():
    tokenizer = prepared().task.tokenizer
    shape, size = BODIES["transformer"], tokenizer.vocab_size
    head = HeadConfig(pooling="mean")
    for model in (SequenceClassifier(shape, head, size, 3), MaskedLanguageModel(shape, size)):
        assert embed_texts(model.eval(), tokenizer, ["3 4", "5"], max_length=50).shape == (2, WIDTH)
    with pytest.raises(ConfigError, match="Transformer"):
        embed_texts(build_model(BODIES["decoder"], size), tokenizer, ["3 4"], max_length=50)


def test_long_texts_are_truncated_with_a_warning(caplog):
    made = prepared(max_length=7)
    model = made.build()
    with caplog.at_level(logging.WARNING):
        long, short = made.task.embed(model, ["number 3 4", "numbe"])
    (message,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "1 of 2 texts" in message
    assert "5 tokens" in message
    np.testing.assert_allclose(long, short, rtol=1e-5)
    learned = BODIES["transformer"].changed(positions="learned", context_length=5)
    encoder = SentenceEncoder(learned, HeadConfig(pooling="mean"), made.task.tokenizer.vocab_size).eval()
    assert made.task.embed(encoder, ["number 3 4"]).shape == (1, WIDTH)
    assert made.data.train.max_length == 7
    assert len(made.data.train) + len(made.data.valid) + len(made.data.held_out["test"]) == len(ROWS)


def test_the_predictor_returns_numbers():
    made = prepared()
    model = made.build()
    vectors = made.task.embed(model, ["3 4", "5 6"])
    for each, vector in zip(made.predict(model, ["3 4", "5 6"]), vectors, strict=True):
        np.testing.assert_allclose([float(number) for number in each.output.split(" ")], vector, rtol=1e-5)


def test_samples_have_the_nearest_text():
    made = prepared()
    rows = made.data.held_out["valid"]
    found = made.task.samples(made.build(), EvaluationData(rows, [], made.validation(made.build())))
    assert sorted((each["source"], each["target"]) for each in found) == sorted(rows)
    assert {each["prediction"] for each in found} <= {row[1] for row in rows}
    assert [each["right"] for each in found] == sorted(each["right"] for each in found)


@pytest.mark.slow
def test_a_small_model_learns_which_texts_belong_together():
    torch.set_default_dtype(torch.float32)
    made = prepared(tokenizer="words")
    model = made.build(BODIES["recurrent"].changed(num_layers=1, model_dim=22))
    batches = made.batches(batch_tokens=200, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = made.validation(model)
    model.train()
    for number in range(100):
        batch = batches.batch(number)
        (made.task.loss(model, batch) / batch.num_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = made.validation(model.eval())
    recall = [np.mean(np.array(found.ranks) == 1) for found in (before, after)]
    assert len(after.ranks) > 10
    assert recall[0] < 0.4
    assert recall[1] > 0.8
    assert after.mean < before.mean


def test_the_baseline_ranks_by_common_parts_of_words_and_leaves_equal_texts_out():
    rows = [(f"the {word} of {number}", f"a {word} like {number}") for number, word in enumerate(NUMBERS * 3)]
    made = prepared()
    similarity = made.task.baseline(made.data)
    assert similarity.name == "cosine of TF-IDF vectors"
    found = similarity.compare(["null eins", "acht"], ["null eins", "neun"])
    assert found[0, 0] == pytest.approx(1.0)
    assert found[0, 0] > found[0, 1] > found[1, 0] >= 0.0
    ranks = made.task.baseline_examples(similarity, [*rows, rows[0]]).extras["ranks"]
    assert len(ranks) == 31
    assert ranks[0] == ranks[-1]
    assert np.mean([rank == 1 for rank in ranks]) > 0.2
    shuffled = [(text, rows[(place + 1) % 30][1]) for place, (text, _) in enumerate(rows)]
    assert np.mean(made.task.baseline_examples(similarity, shuffled).extras["ranks"]) > 2 * np.mean(ranks)
