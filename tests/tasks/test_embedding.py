"""Embeddings: pairs, batches, what competes with what, and vectors of texts."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.errors import ConfigError
from regard.generation.config import GenerationConfig
from regard.models.convolutional import ConvolutionalConfig
from regard.models.families import AnyConfig, make_model
from regard.models.heads import Classifier, Embedder, HeadConfig, MaskedModel
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig
from regard.tasks import find_task
from regard.tasks.embedding import Embedding, embed_texts, match
from regard.tasks.objective import Objective
from regard.tasks.task import moved

TASK = Embedding()
CPU = torch.device("cpu")
SHAPE = {"num_layers": 2, "decoder_layers": 0, "model_dim": 22, "dropout": 0.0}
BODIES: dict[str, AnyConfig] = {
    "transformer": TransformerConfig.read({**SHAPE, "num_heads": 1, "feedforward_dim": 37, "num_segments": 2}),
    "recurrent": RecurrentConfig.read(SHAPE),
    "convolutional": ConvolutionalConfig.read(SHAPE),
    "decoder": TransformerConfig.read(
        {**SHAPE, "num_heads": 1, "feedforward_dim": 37, "decoder_layers": 2, "encoder_layers": 0}
    ),
}
NUMBERS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
ROWS = [
    (f"{'number ' * (first % 3)}{first} {second}", f"{NUMBERS[first]} {NUMBERS[second]}")
    for first in range(10)
    for second in range(10)
]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(rows=ROWS, **options) -> tuple[Prepared, DataConfig]:
    config = DataConfig(**{"tokenizer": "characters", "splits": [0.7, 0.2, 0.1], **options})
    return TASK.prepare(config, rows), config


def model_for(data: Prepared, body: str = "transformer", **head) -> Embedder:
    return TASK.build_model(BODIES[body], data.tokenizer, head=HeadConfig(**head))


def plain_losses(texts: torch.Tensor, others: torch.Tensor, temperature: float) -> torch.Tensor:
    """The formula, row by row."""
    scores = (texts @ others.T / temperature).exp()
    right = scores.diagonal()
    return -(right / scores.sum(dim=1)).log() / 2 - (right / scores.sum(dim=0)).log() / 2


@pytest.mark.parametrize("body", BODIES)
def test_the_loss_is_that_of_the_formula(body: str):
    data, config = prepared()
    model = model_for(data, body, temperature=0.3)
    batch = TASK.batches(data, config, batch_tokens=400, seed=3).batch(0)
    assert batch.num_targets > 5
    texts, others = (F.normalize(model.embed(side.source, side.lengths), dim=-1) for side in (batch.text, batch.other))
    torch.testing.assert_close(TASK.loss(model, batch), plain_losses(texts, others, 0.3).sum())
    torch.testing.assert_close(texts.square().sum(dim=-1), torch.ones(len(texts)))
    TASK.loss(model, batch).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None and "segments" not in name] == []


def test_batches_filled_to_a_shape_cost_what_they_did():
    data, config = prepared()
    model = model_for(data)
    plain = TASK.batches(data, config, batch_tokens=250, seed=3)
    shaped = TASK.batches(data, config, batch_tokens=250, seed=3, has_few_shapes=True)
    assert plain.per_epoch > 2
    has_more = False
    for number in range(plain.per_epoch):
        one, other = plain.batch(number), shaped.batch(number)
        has_more |= len(other.text.source) > len(one.text.source)
        assert one.num_targets == other.num_targets == len(one.text.source)
        assert one.num_tokens == other.num_tokens
        torch.testing.assert_close(TASK.loss(model, one), TASK.loss(model, other))
    assert has_more


def test_batches_move_with_all_their_tensors():
    data, config = prepared()
    batch = TASK.batches(data, config, batch_tokens=300, seed=3).batch(0)
    again = moved(batch, CPU)
    assert all(one is other for one, other in zip(batch.tensors(), again.tensors(), strict=True))


def test_rows_with_the_same_text_do_not_compete():
    data, _ = prepared()
    model, tokenizer = model_for(data, temperature=0.5), data.tokenizer

    def loss(rows) -> torch.Tensor:
        texts, others = ([np.array(tokenizer.encode([row[side]])[0]) for row in rows] for side in (0, 1))
        return TASK.loss(model, match(texts, others, tokenizer))

    first, second, third = ROWS[3], ROWS[14], ROWS[25]
    same_other = (second[0], first[1])
    torch.testing.assert_close(loss([first, first]), torch.zeros(()))
    torch.testing.assert_close(loss([first, same_other]), torch.zeros(()))
    once, twice = loss([first, third]), loss([first, first, third])
    assert once > 0
    assert twice > once  # the third now has two against it, the others one each


@pytest.mark.parametrize("body", BODIES)
def test_rows_as_text_and_rows_of_the_store_are_the_same(body: str):
    data, config = prepared()
    model = model_for(data, body).eval()
    stored = TASK.negative_log_likelihoods(model, TASK.held_out(data, config), CPU)
    rows = data.held_out["valid"]
    given = TASK.negative_log_likelihoods(model, TASK.rows_as_batches(rows, data.tokenizer, config), CPU)
    assert given.losses == pytest.approx(stored.losses)
    assert given.ranks == stored.ranks
    assert len(given.losses) == len(rows)
    vectors = [embed_texts(model, data.tokenizer, [row[side] for row in rows], config) for side in (0, 1)]
    order = (vectors[0] @ vectors[1].T).argsort(axis=1)[:, ::-1]
    assert sorted(given.ranks) == sorted(order[row].tolist().index(row) + 1 for row in range(len(rows)))


def test_validation_compares_all_rows_however_they_are_cut(monkeypatch):
    data, config = prepared()
    model = model_for(data, temperature=0.4).eval()
    rows = data.held_out["valid"]
    whole = TASK.negative_log_likelihoods(model, TASK.rows_as_batches(rows, data.tokenizer, config), CPU)
    monkeypatch.setattr("regard.tasks.embedding.BATCH_TOKENS", 60)
    monkeypatch.setattr("regard.tasks.embedding._COMPARED_AT_ONCE", 40)
    cut = TASK.negative_log_likelihoods(model, TASK.rows_as_batches(rows, data.tokenizer, config), CPU)
    assert sorted(cut.losses) == pytest.approx(sorted(whole.losses))
    assert sorted(cut.ranks) == sorted(whole.ranks)
    everything = np.arange(len(data.valid))
    batch = match(*(data.valid.sequences(side, everything) for side in (0, 1)), data.tokenizer)
    assert sum(whole.losses) == pytest.approx(float(TASK.loss(model, batch).detach()))


def test_scores_are_those_of_the_ranks():
    data, config = prepared()
    model = model_for(data).eval()
    found = TASK.negative_log_likelihoods(model, TASK.held_out(data, config), CPU)
    scores = {score.name: score for score in TASK.scores(data.held_out["valid"], [], found, config)}
    assert list(scores) == ["recall_at_1", "recall_at_10", "mean_reciprocal_rank"]
    assert TASK.headline([]) in scores
    assert scores["recall_at_1"].value == pytest.approx(np.mean(np.array(found.ranks) == 1))
    assert find_task("embedding").name == "embedding"


@pytest.mark.parametrize("body", BODIES)
def test_vectors_of_texts_do_not_depend_on_their_company(body: str):
    data, config = prepared()
    torch.set_default_dtype(torch.float32)
    model = model_for(data, body).eval()
    texts = ["3 4", "number number 5", "", "7" * 40]
    together = embed_texts(model, data.tokenizer, texts, config)
    assert together.dtype == np.float32
    assert together.shape == (4, 22)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, rtol=1e-5)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(embed_texts(model, data.tokenizer, [text], config)[0], vector, atol=1e-6)
    assert embed_texts(model, data.tokenizer, [], config).shape == (0, 22)


def test_a_mean_counts_the_start_and_the_end():
    data, config = prepared()
    model = model_for(data, pooling="mean").eval()
    tokenizer = data.tokenizer
    tokens = torch.tensor([[tokenizer.start, *tokenizer.encode(["3 4"])[0], tokenizer.end]])
    mean = model.body.encode(tokens).states.mean(dim=1)
    expected = F.normalize(mean, dim=-1)[0].detach().numpy()
    np.testing.assert_allclose(embed_texts(model, tokenizer, ["3 4"], config)[0], expected, rtol=1e-5)


def test_any_model_that_reads_has_vectors_and_others_say_so():
    data, config = prepared()
    shape, size = BODIES["transformer"], data.tokenizer.vocab_size
    for model in (Classifier(shape, HeadConfig(), size, 3), MaskedModel(shape, size)):
        assert embed_texts(model.eval(), data.tokenizer, ["3 4", "5"], config).shape == (2, 22)
    writer = make_model(BODIES["decoder"], size)
    with pytest.raises(ConfigError, match="vectors come from models for embedding, masked text or classification"):
        embed_texts(writer, data.tokenizer, ["3 4"], config)


def test_what_is_not_read_of_a_text_is_said(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("regard.tasks.embedding.warn", said.append)
    data, config = prepared(max_length=7)
    model = model_for(data).eval()
    long, cut = embed_texts(model, data.tokenizer, ["number 3 4", "numbe"], config)
    assert said == ["1 of 2 texts have more than 5 tokens: the rest is not read"]
    np.testing.assert_allclose(long, cut, rtol=1e-5)
    learned = Embedder(BODIES["transformer"].changed(positions="learned", context_length=5), HeadConfig(), 40).eval()
    assert embed_texts(learned, data.tokenizer, ["number 3 4"], config).shape == (1, 22)


def test_long_rows_are_cut_and_not_left_out():
    data, _ = prepared(max_length=6)
    assert data.train.max_length == 6
    assert len(data.train) + len(data.valid) + len(data.held_out["test"]) == len(ROWS)


def test_the_writer_answers_with_numbers():
    data, config = prepared()
    model = model_for(data).eval()
    found = TASK.writer(model, data.tokenizer, GenerationConfig(), config)(["3 4", "5 6"])
    vectors = embed_texts(model, data.tokenizer, ["3 4", "5 6"], config)
    for each, vector in zip(found, vectors, strict=True):
        np.testing.assert_allclose([float(number) for number in each.output.split(" ")], vector, rtol=1e-5)


def test_samples_show_what_lies_nearest():
    data, config = prepared()
    model = model_for(data).eval()
    rows = data.held_out["valid"]
    found = TASK.samples(model, data.tokenizer, rows, config)
    assert sorted((each["source"], each["target"]) for each in found) == sorted(rows)
    assert {each["prediction"] for each in found} <= {row[1] for row in rows}
    assert [each["right"] for each in found] == sorted(each["right"] for each in found)


@pytest.mark.parametrize("objective", [Objective(label_smoothing=0.1), Objective(consistency=1.0)])
def test_what_has_no_meaning_for_embeddings_is_refused(objective: Objective):
    data, config = prepared()
    batch = TASK.batches(data, config, batch_tokens=300, seed=3).batch(0)
    with pytest.raises(ConfigError, match="embeddings are learned without"):
        TASK.loss(model_for(data), batch, objective)


@pytest.mark.slow
def test_a_small_model_learns_which_texts_belong_together():
    torch.set_default_dtype(torch.float32)
    data, config = prepared(tokenizer="words")
    model = TASK.build_model(BODIES["recurrent"].changed(num_layers=1), data.tokenizer)
    batches = TASK.batches(data, config, batch_tokens=200, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = TASK.negative_log_likelihoods(model.eval(), TASK.held_out(data, config), CPU)
    model.train()
    for number in range(100):
        batch = batches.batch(number)
        (TASK.loss(model, batch) / batch.num_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = TASK.negative_log_likelihoods(model.eval(), TASK.held_out(data, config), CPU)
    first = [np.mean(np.array(found.ranks) == 1) for found in (before, after)]
    assert len(after.ranks) > 10
    assert first[0] < 0.4
    assert first[1] > 0.8
    assert after.mean < before.mean
