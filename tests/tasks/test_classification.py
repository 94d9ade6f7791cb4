"""Classification and regression: rows, batches, losses, answers."""

import math

import pytest
import torch

from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.data.sources import IN_MEMORY
from regard.errors import DataError
from regard.models.heads import HeadConfig
from regard.models.transformer import TransformerConfig
from regard.nn.contrast import contrast_losses
from regard.tasks import find_task, guess_task
from regard.tasks.classification import Classification, balanced_weights, numbers_of
from regard.tasks.objective import Objective
from regard.tasks.reading import read_rows, segments_of
from regard.tasks.regression import Regression
from regard.training.resolution import with_learned

SHAPE = TransformerConfig.read(
    {"num_layers": 1, "decoder_layers": 0, "model_dim": 22, "num_heads": 2, "feedforward_dim": 37, "dropout": 0.0}
)
ROWS = [
    (f"{word} film number {number}", label) for number in range(60) for word, label in (("good", "+"), ("bad", "-"))
]
NUMBERS = [(f"{'very ' * (number % 7)}long {number}", f"{number % 7 + 10}") for number in range(120)]
PAIRS = [(f"a {number}", f"b {number % 5}", str(number % 3)) for number in range(120)]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(task, rows, **options) -> tuple[Prepared, DataConfig]:
    config = DataConfig(tokenizer="characters", **options)
    data = task.prepare(config, rows)
    return data, with_learned(config, data)


def model_for(task, data: Prepared, config: DataConfig):
    return task.build_model(SHAPE, data.tokenizer, data=config, head=HeadConfig(dropout=0.0))


@pytest.mark.parametrize(
    ("task", "rows"), [(Classification(), ROWS), (Regression(), NUMBERS), (Classification(), PAIRS)]
)
def test_batches_filled_to_a_shape_cost_what_they_did(task, rows):
    data, config = prepared(task, rows)
    model = model_for(task, data, config)
    plain = task.batches(data, config, batch_tokens=400, seed=3)
    shaped = task.batches(data, config, batch_tokens=400, seed=3, has_few_shapes=True)
    assert plain.per_epoch > 2
    for number in range(plain.per_epoch):
        one, other = plain.batch(number), shaped.batch(number)
        assert one.num_targets == other.num_targets
        torch.testing.assert_close(task.loss(model, one), task.loss(model, other))


@pytest.mark.parametrize(
    ("task", "rows"), [(Classification(), ROWS), (Regression(), NUMBERS), (Classification(), PAIRS)]
)
def test_rows_as_text_and_rows_of_the_store_are_the_same(task, rows):
    data, config = prepared(task, rows)
    model = model_for(task, data, config)
    stored = task.negative_log_likelihoods(model, task.held_out(data, config), torch.device("cpu"))
    batches = task.rows_as_batches(data.held_out["valid"], data.tokenizer, config)
    given = task.negative_log_likelihoods(model, batches, torch.device("cpu"))
    assert sorted(given.losses) == pytest.approx(sorted(stored.losses), rel=1e-5)
    assert len(given.losses) == len(data.held_out["valid"])


def test_answers_are_the_likeliest_labels_in_the_order_of_the_inputs():
    task = Classification()
    data, config = prepared(task, ROWS)
    model = model_for(task, data, config).eval()
    inputs = ["good film", "bad", "x" * 40]
    found = task.writer(model, data.tokenizer, None, config)(inputs)  # pyright: ignore[reportArgumentType]  it is not used
    assert [each.input for each in found] == inputs
    for each in found:
        assert each.probabilities is not None
        assert sum(each.probabilities.values()) == pytest.approx(1.0)
        assert each.output == max(each.probabilities, key=each.probabilities.__getitem__)
        assert list(each.probabilities) == ["+", "-"]
    rows = [(text, each.output) for text, each in zip(inputs, found, strict=True)]
    scores = {score.name: score.value for score in task.scores(rows, found, None, config)}  # pyright: ignore[reportArgumentType]  it is not used
    assert scores["accuracy"] == 1.0


def test_several_labels_are_judged_one_by_one():
    task = Classification()
    rows = [
        (f"row {n}", ",".join(name for name, k in (("two", 2), ("three", 3)) if n % k == 0) or ",") for n in range(90)
    ]
    data, config = prepared(task, rows, label_separator=",")
    assert config.labels == ["three", "two"]
    batch = task.batches(data, config, batch_tokens=400, seed=0).batch(0)
    assert batch.targets.shape[1] == 2
    model = model_for(task, data, config).eval()
    for each in task.writer(model, data.tokenizer, None, config)(["row 6", "row 7"]):  # pyright: ignore[reportArgumentType]  it is not used
        assert each.probabilities is not None
        assert each.output == ", ".join(label for label, chance in each.probabilities.items() if chance > 0.5)


def test_agreement_of_two_readings_costs_nothing_where_they_agree():
    task = Classification()
    data, config = prepared(task, ROWS)
    model = model_for(task, data, config)
    batch = task.batches(data, config, batch_tokens=400, seed=0).batch(0)
    torch.testing.assert_close(task.loss(model, batch, Objective(consistency=3.0)), task.loss(model, batch))
    model.head.dropout.probability = 0.5
    assert float(task.loss(model, batch, Objective(consistency=3.0)).detach()) > 0


def test_contrast_is_added_to_the_loss_and_rows_that_fill_a_shape_have_none():
    task = Classification()
    data, config = prepared(task, ROWS)
    model = model_for(task, data, config)
    plain = task.batches(data, config, batch_tokens=400, seed=0)
    shaped = task.batches(data, config, batch_tokens=400, seed=0, has_few_shapes=True)
    batch = plain.batch(0)
    vectors = model.embed(batch.source, batch.lengths, batch.segments)
    more = contrast_losses(vectors, batch.targets, torch.ones(len(vectors), dtype=torch.bool)).sum()
    found = task.loss(model, batch, Objective(contrast=0.7))
    torch.testing.assert_close(found, task.loss(model, batch) + 0.7 * more)
    torch.testing.assert_close(task.loss(model, shaped.batch(0), Objective(contrast=0.7)), found)


def test_rare_labels_count_as_much_as_common_ones():
    weights = balanced_weights({"rare": 2, "common": 6})
    assert weights.tolist() == pytest.approx([2.0, 2 / 3])
    task = Classification()
    rows = [(f"row {number}", "rare" if number % 8 == 0 else "common") for number in range(120)]
    data, config = prepared(task, rows, balance=True)
    batch = task.batches(data, config, batch_tokens=10_000, seed=0).batch(0)
    by_label = [float(batch.weights[batch.targets == label].sum()) for label in (0, 1)]
    assert by_label[0] == pytest.approx(by_label[1], rel=0.35)


def test_numbers_are_learned_without_their_mean_and_spread():
    task = Regression()
    data, config = prepared(task, NUMBERS)
    assert (config.center, config.spread) == (pytest.approx(13.0, abs=0.1), pytest.approx(2.0, abs=0.1))
    targets = torch.cat([batch.targets for batch in task.held_out(data, config)])
    found = sorted((targets * config.spread + config.center).tolist())
    assert found == pytest.approx(sorted(float(row[-1]) for row in data.held_out["valid"]), abs=1e-4)
    model = model_for(task, data, config).eval()
    answers = task.writer(model, data.tokenizer, None, config)([row[0] for row in NUMBERS[:5]])  # pyright: ignore[reportArgumentType]  it is not used
    assert all(math.isfinite(float(each.output)) for each in answers)


def test_segments_part_the_texts_of_a_pair():
    source = torch.tensor([[1, 7, 2, 8, 9, 2, 0], [1, 2, 2, 0, 0, 0, 0]])
    assert segments_of(source, end=2).tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]]


def test_a_label_that_the_model_does_not_know_is_named():
    with pytest.raises(DataError, match="the model knows no label 'x', it knows a, b"):
        numbers_of("x", DataConfig(labels=["a", "b"]))


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("a.tsv", "label\tsentence\n0\tbad film\n1\tgood film\n", "classification"),
        ("b.csv", "text,sentiment\nbad film,0\ngood film,1\n", "classification"),
        (
            "c.tsv",
            "".join(f"a film {number}\t{'yes' if number % 2 else 'no'}\n" for number in range(40)),
            "classification",
        ),
        ("d.tsv", "".join(f"{number}\tnumber {number}\n" for number in range(40)), "translation"),
        ("e.tsv", "question1\tquestion2\tis_duplicate\nwho?\twhom?\t1\nwhy?\twhen?\t0\n", "classification"),
    ],
)
def test_labels_are_known_by_their_name_or_by_coming_again(tmp_path, name: str, text: str, task: str):
    (tmp_path / name).write_text(text)
    assert guess_task(DataConfig(train=[str(tmp_path / name)])) == task
    assert find_task(task).name == task


def test_pairs_in_memory_need_no_names_of_columns():
    config = DataConfig(train=[IN_MEMORY])
    rows, _ = read_rows(config, PAIRS, "label")
    assert rows == PAIRS
