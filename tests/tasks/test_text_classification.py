"""Text classification: labels, weights of rows, and the contrastive term."""

import pytest
import torch
from tests.tiny import tiny

from regard.data.codecs import LabelCodec
from regard.data.settings import DataConfig
from regard.data.sources import IN_MEMORY
from regard.errors import ConfigError, DataError
from regard.nn.losses import contrastive_losses
from regard.tasks.content import Prediction
from regard.tasks.task import EvaluationData, Likelihoods, Objective
from regard.tasks.text import segments_of
from regard.tasks.text_classification import balanced_weights

ROWS = [
    (f"{word} film number {number}", label) for number in range(60) for word, label in (("good", "+"), ("bad", "-"))
]
PAIRS = [(f"a {number}", f"b {number % 5}", str(number % 3)) for number in range(120)]
CHARACTERS = {"tokenizer": "characters"}


def test_the_prediction_is_the_most_probable_label():
    made = tiny("text-classification", ROWS, **CHARACTERS)
    inputs = ["good film", "bad", "x" * 40]
    found = made.predict(made.build(), inputs)
    for each in found:
        assert each.probabilities is not None
        assert sum(each.probabilities.values()) == pytest.approx(1.0)
        assert each.output == max(each.probabilities, key=each.probabilities.__getitem__)
        assert list(each.probabilities) == ["+", "-"]


def test_several_labels_are_predicted_one_by_one():
    rows = [
        (f"row {n}", ",".join(name for name, k in (("two", 2), ("three", 3)) if n % k == 0) or ",") for n in range(90)
    ]
    made = tiny("text-classification", rows, label_separator=",", **CHARACTERS)
    assert made.task.label_codec.labels == ["three", "two"]
    batch = made.batches().batch(0)
    assert batch.targets.shape[1] == 2
    model = made.build()
    logits = model(batch.source, batch.lengths, batch.segments)
    expected = -(batch.targets * logits.sigmoid().log() + (1 - batch.targets) * (-logits).sigmoid().log()).sum()
    torch.testing.assert_close(made.task.loss(model, batch).double(), expected, rtol=1e-6, atol=1e-5)
    for each in made.predict(model, ["row 6", "row 7"]):
        assert each.probabilities is not None
        assert each.output == ", ".join(label for label, chance in each.probabilities.items() if chance > 0.5)


def test_the_order_of_the_labels_of_a_row_is_no_error():
    rows = [
        (f"row {n}", ",".join(name for name, k in (("two", 2), ("three", 3)) if n % k == 0) or ",") for n in range(90)
    ]
    made = tiny("text-classification", rows, label_separator=",", **CHARACTERS)
    both = Prediction("row 6", "three, two")
    data = EvaluationData(
        [("row 6", "two,three"), ("row 6", "three , two"), ("row 6", "two")], [both] * 3, Likelihoods([], [])
    )
    assert [(each["target"], each["right"]) for each in made.task.samples(None, data)] == [
        ("two", False), ("three, two", True), ("three, two", True)]  # fmt: skip


def test_rdrop_is_zero_where_both_passes_agree():
    made = tiny("text-classification", ROWS, **CHARACTERS)
    model, batch = made.build(), made.batches().batch(0)
    plain = made.task.loss(model, batch)
    torch.testing.assert_close(made.task.loss(model, batch, Objective(rdrop=3.0)), plain)
    model.train().head.dropout.probability = 0.5
    torch.manual_seed(1)
    without = made.task.loss(model, batch, Objective(rdrop=1e-9))
    torch.manual_seed(1)
    assert made.task.loss(model, batch, Objective(rdrop=3.0)) > without


def test_the_contrastive_term_is_added_and_padding_rows_have_none():
    plain, made = (tiny("text-classification", ROWS, contrastive=weight, **CHARACTERS) for weight in (0.0, 0.7))
    model, batch = made.build(), made.batches().batch(0)
    vectors = model.embed(batch.source, batch.lengths, batch.segments)
    terms = contrastive_losses(vectors, batch.targets, torch.ones(len(vectors), dtype=torch.bool)).sum()
    found = made.task.loss(model, batch)
    torch.testing.assert_close(found, plain.task.loss(model, batch) + 0.7 * terms.float())
    torch.testing.assert_close(made.task.loss(model, made.batches(has_fixed_shapes=True).batch(0)), found)
    with pytest.raises(ConfigError, match=r"task\.contrastive"):
        tiny("text-classification", ROWS, contrastive=0.7, label_separator=",", **CHARACTERS)


def test_balanced_labels_have_the_same_weight_in_the_loss():
    weights = balanced_weights(LabelCodec({"rare": 2, "common": 6}))
    assert weights.tolist() == pytest.approx([2.0, 2 / 3])
    rows = [(f"row {number}", "rare" if number % 8 == 0 else "common") for number in range(120)]
    made = tiny("text-classification", rows, balance=True, **CHARACTERS)
    batch = made.batches(batch_tokens=10_000, seed=0).batch(0)
    by_label = [float(batch.weights[batch.targets == label].sum()) for label in (0, 1)]
    assert by_label[0] == pytest.approx(by_label[1], rel=0.35)


def test_labels_are_those_of_training_rows_and_unknown_ones_have_no_likelihood():
    made = tiny("text-classification", ROWS, **CHARACTERS)
    model = made.build()
    counts = made.task.label_codec.counts
    assert sum(counts.values()) == len(made.data.train) < len(ROWS)
    known, unknown = ("good film", "+"), ("odd film", "?")
    found = made.likelihoods(model, [known, unknown, known])
    assert sorted(found.counts) == [0, 1, 1]
    assert found.mean == pytest.approx(made.likelihoods(model, [known]).mean)
    assert made.scores([known, unknown], ["+", "-"])["accuracy"] == 0.5


def test_segments_separate_the_texts_of_a_pair():
    source = torch.tensor([[1, 7, 2, 8, 9, 2, 0], [1, 2, 2, 0, 0, 0, 0]])
    assert segments_of(source, end=2).tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]]


def test_rows_in_memory_may_be_pairs():
    made = tiny("text-classification", PAIRS, **CHARACTERS)
    rows, _ = made.task.read(DataConfig(train=[IN_MEMORY]), PAIRS)
    assert rows == PAIRS
    assert made.task.input_of(PAIRS[0]) == "a 0\tb 0"
    with pytest.raises(DataError, match="4 columns"):
        made.task.open(DataConfig(train=[IN_MEMORY]), [("a", "b", "c", "d")])
