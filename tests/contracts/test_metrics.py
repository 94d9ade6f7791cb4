"""What every registered metric must satisfy, ours and those of other packages alike."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from regard.errors import ConfigError, DataError
from regard.evaluation import METRICS, Examples, Metric, find_metric, find_metric_of
from regard.experiments.sweep.objectives import SweepObjective

ROWS = 23
RNG = np.random.default_rng(0)
WORDS = ["der", "hund", "rennt", "und", "bellt", "laut", "weil", "drei", "katzen", "sah"]
LABELS = ["joy", "anger", "fear"]
TAGS = ["DET", "NOUN", "VERB"]

TEXTS = [" ".join(RNG.choice(WORDS, size=7)) for _ in range(ROWS)]
CLASSES = [LABELS[number % 3] for number in range(ROWS)]
SETS = [frozenset(LABELS[: number % 3 + 1]) for number in range(ROWS)]
TAGGED = [[TAGS[(number + word) % 3] for word in range(number % 5 + 1)] for number in range(ROWS)]
ENTITIES = [["B-PER", "I-PER", "O", "B-LOC"] if number % 2 else ["O", "B-LOC"] for number in range(ROWS)]
ANSWERS = [[] if number % 4 == 0 else [f"the dog {number}", f"hund {number}"] for number in range(ROWS)]
NUMBERS = RNG.normal(size=ROWS).tolist()
BINARY = ["yes" if number % 3 else "no" for number in range(ROWS)]
SURE = [0.6 + 0.01 * number for number in range(ROWS)]
SEVERAL = [[number % 2, None if number % 4 == 0 else int(number % 3 == 0)] for number in range(ROWS)]
LIKELY = [[0.1 + 0.8 * one + 0.003 * row, 0.1 + 0.8 * (other or 0)] for row, (one, other) in enumerate(SEVERAL)]
CHAINS = ["C" * (number + 1) for number in range(ROWS)]
TOKENS = [2 * (number % 5 + 1) for number in range(ROWS)]

Wrong = Callable[[int], Any]
"""From the number of a row to an output that is wrong."""


def corrupted(outputs: Sequence[Any], wrong: Wrong, every: int) -> list[Any]:
    """The same outputs, but a wrong one in every `every`-th row."""
    return [wrong(row) if row % every == 0 else output for row, output in enumerate(outputs)]


def outputs_against(targets: Sequence[Any], wrong: Wrong, right: Sequence[Any] | None = None, **more: Any) -> Sequence:
    """Examples that are all right, right in two of three rows, and all wrong."""
    right = targets if right is None else right
    return [Examples(outputs=outputs, targets=targets, **more)
            for outputs in (right, corrupted(right, wrong, 3), corrupted(right, wrong, 1))]  # fmt: skip


def with_losses(*per_token: float) -> Sequence[Examples]:
    """Examples with these losses per token, lower ones first, and as many correct tokens as go with them."""
    return [
        Examples(
            losses=[loss * count * (1 + row / 100) for row, count in enumerate(TOKENS)],
            num_tokens=TOKENS,
            num_bytes=3 * sum(TOKENS),
            num_correct=[round(count / (1 + loss)) for count in TOKENS],
            extras={"squared_errors": [loss * count * (1 + row / 100) for row, count in enumerate(TOKENS)]},
        )
        for loss in per_token
    ]


def with_errors(size: float) -> Examples:
    """Sums over spans of forecasts with errors of about this size, of which large ones leave the interval."""
    sums = [
        (
            8.0,
            size**2 * (8 + row),
            size * (8 + row),
            size * (9 + row),
            size * (3 + row),
            50.0 + row,
            round(8 / (1 + size)),
        )
        for row in range(ROWS)
    ]
    return Examples(extras={"forecasts": sums})


def with_risks(order: Sequence[float]) -> Examples:
    """Two landmarks of each subject with one horizon and one event, the risks of the cases and of the others."""
    case, other = order
    risks = [[[[1.0, 1.0, case + row / 1000]], [[1.0, 0.0, other + row / 1000]]] for row in range(ROWS)]
    return Examples(extras={"risks": risks})


def with_simulated_risks(*shares: float) -> Examples:
    """One event and one horizon of each subject; the risk is the outcome with one of `shares` mixed in, row by row."""
    outcomes = [float(row % 3 == 0) for row in range(ROWS)]
    mixed = [shares[row % len(shares)] for row in range(ROWS)]
    risks = [(1 - share) * outcome + share * (1 - outcome) for share, outcome in zip(mixed, outcomes, strict=True)]
    table = [[[[1.0, outcome, risk]]] for outcome, risk in zip(outcomes, risks, strict=True)]
    return Examples(extras={"simulated_risks": table})


KINDS: dict[str, Sequence[Examples]] = {
    "text": outputs_against(TEXTS, lambda row: f"{TEXTS[row].split()[0]} x y z {row}"),
    "trees": outputs_against(
        [f"(S (NP (DT the) (NN dog{row})) (VP (VBZ runs) (ADVP (RB fast))))" for row in range(ROWS)],
        lambda row: f"(X (Y (A the) (A dog{row}) (A runs)) (A fast))",
    ),
    "formatted": [
        replace(each, settings={"format": "(?!.* x y z ).*"})
        for each in outputs_against(TEXTS, lambda row: f"{TEXTS[row].split()[0]} x y z {row}")
    ],
    "classes": outputs_against(
        CLASSES, lambda row: LABELS[(row + 1 + row % 2) % 3], labels=LABELS, confidences=[1.0] * ROWS
    ),
    "label sets": outputs_against(SETS, lambda row: frozenset(LABELS) - SETS[row] or {"joy"}, labels=LABELS),
    "tags": outputs_against(TAGGED, lambda row: [TAGS[(TAGS.index(tag) + 1) % 3] for tag in TAGGED[row]]),
    "entities": outputs_against(ENTITIES, lambda row: ["B-ORG", *["O"] * (len(ENTITIES[row]) - 1)]),
    "answers": outputs_against(
        ANSWERS, lambda row: "cat" if row % 4 == 0 else f"dog {row + 1}", [(some or [""])[-1] for some in ANSWERS]
    ),
    "numbers": outputs_against(NUMBERS, lambda row: -2.0 * NUMBERS[row] + 0.1 * row),
    "likelihoods": with_losses(0.01, 0.7, 2.0),
    "forecasts": [with_errors(0.0), with_errors(0.5), with_errors(1.5)],
    "risks": [with_risks(order) for order in ((0.9, 0.1), (0.5, 0.49), (0.1, 0.9))],
    "simulated risks": [with_simulated_risks(*shares) for shares in ((0.0,), (0.1, 0.7), (0.9,))],
    "rewards": [
        Examples(extras={"rewards": [size + spread * row for row in range(ROWS)]})
        for size, spread in ((1.0, 0.0), (0.2, 0.01), (-3.0, 0.01))
    ],
    "brier": [
        Examples(extras={"brier_sums": [[size * (3 + row), 4.0 + row] for row in range(ROWS)]})
        for size in (0.0, 0.2, 0.7)
    ],
    "pointing": [Examples(extras={"pointing": [[share * 3, 3.0]] * ROWS}) for share in (1.0, 0.6, 0.1)],
    "binary": outputs_against(
        BINARY, lambda row: "no" if BINARY[row] == "yes" else "yes", labels=["no", "yes"], confidences=SURE
    ),
    "several labels": [
        Examples(outputs=some, targets=SEVERAL, labels=["a", "b"])
        for some in (
            LIKELY,
            corrupted(LIKELY, lambda row: [1 - each for each in LIKELY[row]], 3),
            [[1 - each for each in row] for row in LIKELY],
        )
    ],
    "molecules": [
        Examples(outputs=some, extras={"references": ["C" * 40]})
        for some in (CHAINS, corrupted(CHAINS, lambda row: "C1CC", 3), ["C1CC"] * ROWS)
    ],
    "repeated molecules": [
        Examples(outputs=some, extras={"references": ["C" * 40]})
        for some in (CHAINS, CHAINS[:12] + CHAINS[:11], ["C1"] * ROWS)
    ],
    "known molecules": [Examples(outputs=CHAINS, extras={"references": CHAINS[:known]}) for known in (0, 9, ROWS)],
    "ranks": [Examples(extras={"ranks": ranks}) for ranks in ([1] * ROWS, [1, 2, 12] * 7 + [1, 2], [15] * ROWS)],
}
USED_ON = {
    "accuracy": ("classes", "tags"),
    "macro_f1": ("classes", "label sets", "tags"),
    "micro_f1": ("label sets", "tags"),
    "subset_accuracy": ("label sets",),
    **dict.fromkeys(("matthews", "calibration_error"), ("classes",)),
    "auroc": ("binary", "several labels"),
    "validity": ("molecules",),
    "uniqueness": ("repeated molecules",),
    "novelty": ("known molecules",),
    "format_match": ("formatted",),
    **dict.fromkeys(("bracket_f1", "bracket_precision", "bracket_recall", "exact_trees", "tag_accuracy"), ("trees",)),
    **dict.fromkeys(("entity_precision", "entity_recall", "entity_f1", "entity_macro_f1"), ("entities",)),
    **dict.fromkeys(("answer_exact_match", "answer_f1"), ("answers",)),
    **dict.fromkeys(("pearson", "spearman", "mean_absolute_error", "rmse", "r_squared"), ("numbers",)),
}
"""What the outputs of a metric are where their type is not text; unlisted metrics are tested on the first kind of
examples that has the fields they need, so that a metric of another package is tested as well."""
BEST = {"cider": 10.0}
WEIGHTED_BY_ALL = ("cider",)
"""Metrics whose n-grams are weighted by how rare they are in the references of all examples."""


def kinds_for(name: str) -> Sequence[str]:
    needs = find_metric(name).needs
    fitting = (kind for kind, some in KINDS.items() if all(some[0].get(field) is not None for field in needs))
    return USED_ON.get(name) or (next(fitting),)


OF_MOLECULES = () if find_spec("rdkit") else ("validity", "uniqueness", "novelty")
CASES = [(name, kind) for name in METRICS.names() if name not in OF_MOLECULES for kind in kinds_for(name)]
ADDITIVE = [(name, kind) for name, kind in CASES if find_metric(name).is_additive]


def value(metric: Metric, examples: Examples) -> float:
    return metric.scores(examples)[0].value


def chosen(examples: Examples, rows: Sequence[int]) -> Examples:
    """The examples of these rows; of a text, their share of its bytes."""
    per_row = ("outputs", "targets", "confidences", "losses", "num_tokens", "num_correct")
    columns = {name: getattr(examples, name) for name in per_row}
    found = {name: [column[row] for row in rows] for name, column in columns.items() if column is not None}
    if examples.num_bytes is not None:
        found["num_bytes"] = 3 * sum(found["num_tokens"])
    extras = {name: [each[row] for row in rows] for name, each in examples.extras.items() if name != "references"}
    return replace(examples, **found, extras={**examples.extras, **extras})


@pytest.mark.parametrize("name", METRICS.names())
def test_a_metric_is_registered_under_its_own_name(name: str):
    metric = find_metric(name)
    assert metric.name == name
    assert metric.label
    assert metric.in_text.lower() == metric.label.lower()
    assert kinds_for(name)
    assert (metric.counter is None) != (metric.scorer is None)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_better_outputs_score_better_in_the_declared_direction(name: str, kind: str):
    metric = find_metric(name)
    perfect, fair, wrong = (value(metric, examples) for examples in KINDS[kind])
    assert metric.is_better(perfect, fair)
    assert metric.is_better(fair, wrong)
    assert not metric.is_better(fair, perfect)
    assert not metric.is_better(float("nan"), fair)


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[1] != "likelihoods"])
def test_perfect_outputs_have_the_best_value(name: str, kind: str):
    metric = find_metric(name)
    best = 0.0 if not metric.higher_is_better else 100.0 if metric.digits == 2 else BEST.get(name, 1.0)
    assert value(metric, KINDS[kind][0]) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("name", METRICS.names())
def test_a_sweep_and_the_parts_of_a_metric_have_its_direction(name: str):
    higher_is_better = find_metric(name).higher_is_better
    assert SweepObjective(name).is_maximized is higher_is_better
    assert SweepObjective(f"{name}_part").is_maximized is higher_is_better


@pytest.mark.parametrize(("name", "kind"), ADDITIVE)
def test_counts_of_a_subset_and_of_the_rest_add_up_to_the_whole(name: str, kind: str):
    metric, examples = find_metric(name), KINDS[kind][1]
    counts = metric.count(examples)
    rows = np.random.default_rng(1).permutation(ROWS)
    parts = [counts.subset(rows[:7]), counts.subset(rows[7:])]
    sums = [part.statistics.sum(axis=0, dtype=np.float64) for part in (*parts, counts)]
    np.testing.assert_allclose(sums[0] + sums[1], sums[2], rtol=1e-12, atol=1e-12)
    assert len(counts) == len(parts[0]) + len(parts[1]) == ROWS
    for part, some in zip(parts, (rows[:7], rows[7:]), strict=True):
        if name in WEIGHTED_BY_ALL:
            continue
        assert part.value == pytest.approx(metric.count(chosen(examples, some)).value)


@pytest.mark.parametrize(("name", "kind"), ADDITIVE)
def test_the_value_is_computed_from_the_sums_of_the_counts(name: str, kind: str):
    metric, examples = find_metric(name), KINDS[kind][1]
    counts = metric.count(examples)
    assert counts.name == name
    assert counts.value == counts.compute(counts.statistics.sum(axis=0, dtype=np.float64)) == value(metric, examples)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_order_of_examples_does_not_matter(name: str, kind: str):
    metric, examples = find_metric(name), KINDS[kind][1]
    shuffled = chosen(examples, np.random.default_rng(2).permutation(ROWS).tolist())
    assert value(metric, shuffled) == pytest.approx(value(metric, examples))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_scores_have_names_of_their_own_which_lead_to_the_metric(name: str, kind: str):
    metric = find_metric(name)
    names = [score.name for score in metric.scores(KINDS[kind][1])]
    assert names[0] == name
    assert len(set(names)) == len(names)
    assert all(find_metric_of(each) is metric for each in names)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_score_has_an_interval_and_the_settings_of_the_examples(name: str, kind: str):
    for score in find_metric(name).scores(replace(KINDS[kind][1], settings={"beam": 5})):
        assert score.interval is not None
        assert score.interval[0] <= score.value <= score.interval[1]
        assert "|beam:5|" in f"|{score.signature}|"


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_examples_that_were_written_as_json_score_the_same(name: str, kind: str):
    examples = KINDS[kind][1]
    again = Examples.from_json(json.loads(json.dumps(examples.to_json())))
    assert find_metric(name).scores(again) == find_metric(name).scores(examples)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_missing_field_is_named(name: str, kind: str):
    metric = find_metric(name)
    for field in metric.needs:
        given = KINDS[kind][0]
        extras = {name: value for name, value in given.extras.items() if name != field}
        lacking = replace(given, **({"extras": extras} if field in given.extras else {field: None}))
        for compute in (metric.scores, *([metric.count] if metric.is_additive else [])):
            with pytest.raises(DataError, match=f"{name}: .* got none of {field}$"):
                compute(lacking)


@pytest.mark.parametrize(("name", "kind"), ADDITIVE)
def test_a_bounded_mean_is_the_mean_of_values_in_the_unit_interval(name: str, kind: str):
    counts = find_metric(name).count(KINDS[kind][1])
    if find_metric(name).is_bounded_mean or counts.is_proportion:
        values = [counts.subset([row]).value for row in range(ROWS)]
        assert min(values) >= 0.0
        assert max(values) <= 1.0
        assert np.mean(values) == pytest.approx(counts.value)


@pytest.mark.parametrize("name", [name for name in METRICS.names() if not find_metric(name).is_additive])
def test_a_metric_without_counts_has_no_paired_test(name: str):
    with pytest.raises(ConfigError, match="not a function of sums"):
        find_metric(name).count(KINDS[kinds_for(name)[0]][0])
