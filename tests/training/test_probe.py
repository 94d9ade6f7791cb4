"""The linear probe: it is scikit-learn's solution, with a penalty that held-out rows choose."""

import time

import pytest
import torch
from tests.tiny import Tiny, tiny
from torch import Tensor

from regard.tasks.capabilities import LabeledVectors
from regard.training.precision import choose_hardware
from regard.training.probe import collect_vectors, head_loss, probe_head, solve_head

ROWS, WIDTH, CLASSES, STRENGTH = 97, 11, 3, 7.0


def vectors(seed: int = 0, rows: int = ROWS) -> Tensor:
    """Correlated features of different sizes and means, one of them constant."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(99))
    x = torch.randn(rows, WIDTH, generator=generator) @ mixing * torch.arange(1, WIDTH + 1) + 3.0
    x[:, 4] = 5.0
    return x


def classes_of(x: Tensor, noise: float = 1.0) -> Tensor:
    weight = (
        torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(7)) / torch.arange(1, WIDTH + 1)[:, None]
    )
    logits = (x - 3.0) @ weight
    return (logits + noise * torch.randn(logits.shape, generator=torch.Generator().manual_seed(5))).argmax(dim=1)


def standardized(x: Tensor) -> Tensor:
    """As the module says: variances averaged with their median, which counts as 20 rows, and no smaller than that."""
    variance = x.var(dim=0, correction=0)
    mixed = (len(x) * variance + 20 * variance.median()) / (len(x) + 20)
    return (x - x.mean(dim=0)) / mixed.clamp(min=variance.median()).sqrt()


def test_classes_are_the_solution_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = vectors()
    y, weights = classes_of(x), torch.rand(ROWS) + 0.5
    head = solve_head(LabeledVectors(x, y, weights), None, CLASSES, strength=STRENGTH)
    theirs = linear_model.LogisticRegression(C=1 / STRENGTH, tol=1e-10, max_iter=10_000)
    theirs.fit(standardized(x).numpy(), y.numpy(), sample_weight=weights.numpy())
    expected = torch.from_numpy(theirs.predict_proba(standardized(x).numpy()))
    # Both end where the gradient is small, not zero.
    torch.testing.assert_close((x @ head.weight.T + head.bias).softmax(dim=1), expected, rtol=1e-4, atol=1e-4)


def test_several_labels_are_solutions_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = vectors()
    y = torch.stack([classes_of(x) == 0, classes_of(x) != 1], dim=1).double()
    head = solve_head(LabeledVectors(x, y, torch.ones(ROWS)), None, 2, strength=STRENGTH)
    for label in range(2):
        theirs = linear_model.LogisticRegression(C=1 / STRENGTH, tol=1e-10, max_iter=10_000)
        theirs.fit(standardized(x).numpy(), y[:, label].numpy())
        expected = torch.from_numpy(theirs.predict_proba(standardized(x).numpy())[:, 1])
        found = (x @ head.weight.T + head.bias).sigmoid()[:, label]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_numbers_are_the_solution_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = vectors()
    y = x @ torch.linspace(-1, 1, WIDTH) + torch.randn(ROWS)
    head = solve_head(LabeledVectors(x, y, torch.ones(ROWS)), None, 1, strength=STRENGTH)
    theirs = linear_model.Ridge(alpha=STRENGTH).fit(standardized(x).numpy(), y.numpy())
    expected = torch.from_numpy(theirs.predict(standardized(x).numpy()))
    torch.testing.assert_close((x @ head.weight.T + head.bias)[:, 0], expected)


def test_validation_rows_choose_the_penalty():
    train, valid = (LabeledVectors(x, classes_of(x), torch.ones(len(x))) for x in (vectors(0), vectors(1)))
    chosen = solve_head(train, valid, CLASSES)
    assert chosen.chosen_by == "97 validation vectors"
    loss = head_loss(valid, chosen.weight, chosen.bias)
    for factor in (0.1, 10.0):
        other = solve_head(train, valid, CLASSES, strength=factor * chosen.strength)
        assert loss < head_loss(valid, other.weight, other.bias)


def test_labels_that_vectors_do_not_predict_get_the_strongest_penalty():
    x = vectors(rows=60)
    random = torch.randint(CLASSES, (60,), generator=torch.Generator().manual_seed(3))
    learned, unlearned = (
        solve_head(LabeledVectors(x, y, torch.ones(60)), None, CLASSES) for y in (classes_of(x, 0.1), random)
    )
    assert learned.chosen_by == unlearned.chosen_by == "5-fold cross-validation"
    assert unlearned.strength > 10 * learned.strength
    assert float((x @ unlearned.weight.T).std(dim=0).max()) < 0.5


def test_one_row_of_each_class_is_enough():
    x = vectors(rows=CLASSES)
    head = solve_head(LabeledVectors(x, torch.arange(CLASSES), torch.ones(CLASSES)), None, CLASSES)
    assert "too few rows" in head.chosen_by
    assert (x @ head.weight.T + head.bias).argmax(dim=1).tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def opinions(cache: None) -> Tiny:
    words = ("good", "bad", "fine")
    rows = [(f"a {words[number % 3]} film number {number}", words[number % 3]) for number in range(150)]
    return tiny("text-classification", rows, tokenizer="words")


CPU = choose_hardware("cpu", "float32", 12)


def test_vectors_are_computed_until_a_deadline_or_a_signal(opinions: Tiny):
    model, batches = opinions.build(), opinions.batches(batch_tokens=100)
    epoch = [batches.batch(number) for number in range(batches.per_epoch)]
    whole = collect_vectors(model, opinions.task, epoch, CPU)
    assert whole is not None
    assert len(whole.vectors) == len(opinions.data.train)
    late = collect_vectors(model, opinions.task, epoch, CPU, deadline=time.perf_counter())
    assert late is not None
    torch.testing.assert_close(late.vectors, whole.vectors[: len(late.vectors)])
    assert len(late.vectors) == epoch[0].num_targets
    assert collect_vectors(model, opinions.task, epoch, CPU, should_stop=lambda: True) is None


def test_only_the_head_is_changed_unless_that_of_the_base_is_better(opinions: Tiny):
    model = opinions.build(std=0.3)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    random = opinions.validation(model).mean
    assert probe_head(model, opinions.task, opinions.data, opinions.batches(), CPU)
    solved = opinions.validation(model).mean
    assert solved < random
    changed = [name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])]
    assert changed == ["head.output.weight", "head.output.bias"]
    valid = collect_vectors(model, opinions.task, opinions.task.validation_batches(opinions.data), CPU)
    assert valid is not None
    better = solve_head(valid, None, 3, strength=1e-3)
    with torch.no_grad():
        model.head.output.weight.copy_(better.weight)
        model.head.output.bias.copy_(better.bias)
    assert opinions.validation(model).mean < solved
    assert probe_head(model, opinions.task, opinions.data, opinions.batches(), CPU)
    torch.testing.assert_close(model.head.output.weight, better.weight, rtol=0, atol=0)
