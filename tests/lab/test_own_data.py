"""Studies on a user's own file: what is read, what is measured on it, and the one line for a file of another kind."""

from pathlib import Path

import pytest
import torch

from regard.errors import ConfigError, DataError
from regard.lab import STUDIES, run_study
from regard.lab.bias_variance.risks import (
    BiasVarianceSizes,
    RegressionProblem,
    decompose_file_risk,
    decompose_risk,
    hidden_unit_learner,
    linear_learner,
    study_bias_variance,
)
from regard.lab.double_descent.risks import DoubleDescentSizes, draw_file_sets, study_double_descent
from regard.lab.own_data import LabeledRows, read_characters, read_labeled_rows
from regard.lab.scaling.laws import ScalingSizes, read_language, study_scaling
from regard.lab.stability.pairs import RowSource, StabilitySizes, study_stability

BIAS = BiasVarianceSizes(strengths=(1.0, 0.1), feature_rows=11, widths=(3, 13), num_draws=5, num_points=17,
                         hidden_units=(1, 3), network_steps=3)  # fmt: skip
DESCENT = DoubleDescentSizes(feature_rows=13, feature_widths=(3, 13, 40), feature_draws=2, perceptron_rows=11,
                             perceptron_widths=(1, 5), perceptron_epochs=3, num_seeds=2, num_test_rows=19)  # fmt: skip
STABILITY = StabilitySizes(runs=3, num_rows=7, steps=11, rates=(0.1, 1.0), row_counts=(5, 11), convexities=(0.1,),
                           width=3, network_rates=(0.5,), scales=(0.5,))  # fmt: skip
SCALING = ScalingSizes(widths=(4, 8), steps=(20, 40), larger_width=12, larger_steps=(40,), length=7, batch_size=2,
                       num_test_rows=11, num_resamples=5)  # fmt: skip


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """A table of three columns of numbers, and a label that depends on the first."""
    inputs = torch.randn(103, 3)
    lines = [",".join([*(f"{cell:.4f}" for cell in row), "high" if row[0] > 0 else "low"]) for row in inputs.tolist()]
    (tmp_path / "numbers.csv").write_text("\n".join(["a,b,c,grade", *lines]) + "\n")
    return str(tmp_path / "numbers.csv")


@pytest.fixture
def texts(tmp_path: Path) -> str:
    words = {"good": "yes", "bad": "no", "fair": "maybe"}
    rows = [f"a {word} film, number {n}\t{label}" for n in range(37) for word, label in words.items()]
    (tmp_path / "texts.tsv").write_text("\n".join(["text\tlabel", *rows, *rows[:1]]) + "\n")
    return str(tmp_path / "texts.tsv")


def test_numbers_are_standardized_and_labels_are_signs(numbers: str):
    rows = read_labeled_rows(numbers, study="x")
    assert rows.inputs.shape == (103, 3)
    torch.testing.assert_close(rows.inputs.mean(dim=0), torch.zeros(3), atol=1e-9, rtol=0)
    torch.testing.assert_close(rows.inputs.square().mean(), torch.ones(()))
    cells = [line.split(",") for line in Path(numbers).read_text().splitlines()[1:]]
    most = max(("high", "low"), key=[cell[-1] for cell in cells].count)
    assert rows.targets.tolist() == [1.0 if cell[-1] == most else -1.0 for cell in cells]
    assert "3 columns of numbers" in rows.description


def test_a_column_of_measurements_is_a_target_of_numbers(tmp_path: Path):
    values = torch.randn(67, 2).tolist()
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *(f"{a:.5f},{3 * a + 1:.5f}" for a, _ in values)]))
    rows = read_labeled_rows(str(tmp_path / "a.csv"), study="x")
    assert rows.kind == "numbers"
    # A line is standardized to the same line.
    torch.testing.assert_close(rows.targets, rows.inputs[:, 0] / rows.inputs[:, 0].std(), atol=1e-3, rtol=1e-3)
    assert set(rows.signs.tolist()) == {-1.0, 1.0}


def test_texts_become_components_and_the_most_frequent_label_is_compared_with_the_others(texts: str):
    rows = read_labeled_rows(texts, study="x")
    assert len(rows) == 112
    assert rows.inputs.size(1) <= 50
    assert int((rows.targets > 0).sum()) == 38
    assert "'yes' against all others" in rows.description
    # The words that decide the label are among the leading components.
    fitted = torch.linalg.lstsq(torch.cat([rows.inputs, torch.ones(112, 1)], dim=1), rows.targets[:, None]).solution
    predicted = torch.cat([rows.inputs, torch.ones(112, 1)], dim=1) @ fitted
    assert float((predicted[:, 0].sign() == rows.targets).double().mean()) > 0.95


def test_characters_are_numbered_by_frequency(tmp_path: Path):
    (tmp_path / "a.txt").write_text("bbbaac bbb\n")
    tokens, size = read_characters(str(tmp_path / "a.txt"), study="x")
    assert tokens[:6].tolist() == [0, 0, 0, 1, 1, 4]
    assert size == 5


@pytest.mark.parametrize("name", ["bias-variance", "double-descent", "stability"])
def test_running_text_is_one_line_that_says_what_is_read(name: str, tmp_path: Path):
    (tmp_path / "a.txt").write_text("one line of text\nand another one\n" * 40)
    with pytest.raises(DataError, match=f"{name} reads a table of texts or numbers with a label or a number"):
        run_study(name, quick=True, data=tmp_path / "a.txt")


def test_other_files_are_one_line(texts: str, tmp_path: Path):
    with pytest.raises(DataError, match=r"scaling reads running text, and .* is recognized as data for text class"):
        study_scaling(data=texts, sizes=SCALING)
    with pytest.raises(DataError, match="there is no file"):
        study_stability(data=str(tmp_path / "none.csv"), sizes=STABILITY)
    (tmp_path / "few.csv").write_text("text,label\n" + "good film,yes\nbad film,no\n" * 25)
    with pytest.raises(DataError, match=r"stability needs at least 60 rows, and .* has 50"):
        study_stability(data=str(tmp_path / "few.csv"), sizes=STABILITY)
    (tmp_path / "short.txt").write_text("abc def\n" * 9)
    with pytest.raises(DataError, match=r"must have at least [\d,]+ characters for this study, got 72"):
        study_scaling(data=str(tmp_path / "short.txt"), sizes=SCALING)
    with pytest.raises(ConfigError, match="the study softmax generates its data and reads no file"):
        run_study("softmax", data=texts)


def test_the_risk_of_rows_is_that_of_their_distribution():
    # The rows of a known problem: bias + noise and variance are those that are measured where the truth is known.
    problem = RegressionProblem(lambda x: x[..., 0], 2, 0.5)
    rng = torch.Generator().manual_seed(3)
    inputs = problem.draw(1, 6000, rng=rng)
    rows = LabeledRows(inputs[0], problem.targets(inputs, rng)[0], "numbers", "")
    sizes = {"num_rows": 11, "num_draws": 40, "num_points": 400, "rng": rng}
    known = decompose_risk(problem, linear_learner(strength=0.3), 0, **sizes)
    found = decompose_file_risk(rows, linear_learner(strength=0.3), 0, **sizes)
    assert float(found.bias.mean()) == pytest.approx(float(known.bias.mean()) + 0.25, rel=0.1)
    assert float(found.variance.mean()) == pytest.approx(float(known.variance.mean()), rel=0.15)
    assert float(found.total.mean()) == pytest.approx(float(found.risk.mean()), rel=0.1)
    # Wrong forms: bias without the noise, variance divided by n rather than n - 1 twice, bias not corrected.
    assert float(found.bias.mean()) != pytest.approx(float(known.bias.mean()), rel=0.1)


def test_networks_learn_what_their_hidden_units_allow():
    x = torch.linspace(-1, 1, 31)[None, :, None]
    targets = (4 * x[..., 0]).sin()
    rng = torch.Generator().manual_seed(0)
    few, many = (
        float((hidden_unit_learner(n, steps=400, learning_rate=0.03)(x, targets, x, rng) - targets).square().mean())
        for n in (1, 20)
    )
    assert many < 0.02 < few


def test_training_and_test_rows_of_a_draw_differ():
    rows = LabeledRows(torch.arange(20.0)[:, None], torch.ones(20), "labels", "")
    train, test = draw_file_sets(rows)(12, 8, (0.0, 1.0), torch.Generator().manual_seed(0))
    assert sorted([*train.inputs.flatten().tolist(), *test.inputs.flatten().tolist()]) == list(range(20))
    torch.testing.assert_close(train.labels[:, 0], -train.labels[:, 1])


def test_rows_are_drawn_with_norm_one():
    rows = LabeledRows(torch.randn(13, 3), torch.randn(13), "numbers", "")
    drawn = RowSource(rows).draw(5, 7, rng=torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.inputs.norm(dim=-1), torch.ones(5, 7))
    assert set(drawn.labels.flatten().tolist()) == {0.0, 1.0}


def test_windows_of_a_text_are_read_once_and_held_out_ones_never(tmp_path: Path):
    text = "".join(chr(97 + int(each)) for each in torch.randint(26, (3000,)))
    (tmp_path / "a.txt").write_text(text)
    language, test, sizes = read_language(str(tmp_path / "a.txt"), SCALING, seed=0)
    drawn = language.draw(len(language.windows), 7, torch.Generator().manual_seed(1)).batch
    assert len({tuple(row) for row in drawn.inputs.tolist()}) == len(language.windows)
    assert not {tuple(row) for row in test.batch.inputs.tolist()} & {tuple(row) for row in drawn.inputs.tolist()}
    torch.testing.assert_close(drawn.inputs[:, 1:], drawn.targets[:, :-1])
    assert sizes.vocab_size == 26
    assert max(sizes.steps) * 2 <= len(language.windows)


@pytest.mark.slow
def test_every_study_of_rows_runs_on_a_file_and_its_command_names_it(numbers: str, texts: str, tmp_path: Path):
    for study in (
        study_bias_variance(data=numbers, sizes=BIAS),
        study_double_descent(data=texts, sizes=DESCENT),
        study_stability(data=texts, sizes=STABILITY),
    ):
        assert len(study.findings) >= 3
        assert all(table.rows for table in study.tables)
        assert STUDIES.find(study.name).reads
    (tmp_path / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    study = study_scaling(data=str(tmp_path / "a.txt"), sizes=SCALING)
    assert "The fitted floor E is" in study.findings[0]
    assert study.settings["entropy"] is None
