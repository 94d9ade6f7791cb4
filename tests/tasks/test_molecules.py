"""Properties of molecules: detection, missing properties, spellings, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.tables import write_csv
from tests.tiny import CPU, Tiny, tiny

import regard
from regard.data.chemistry import spellings
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows
from regard.errors import BadRowsError, ConfigError, DataError
from regard.evaluation import find_metric
from regard.tasks.registry import detect_task
from regard.tasks.task import EvaluationData, Likelihoods

pytest.importorskip("rdkit")
ENDS = ("O", "N", "c1ccccc1", "C(=O)O", "Cl", "C1CCCCC1")
MOLECULES = ["C" * (1 + row // 6) + ENDS[row % 6] for row in range(60)]
SMALL: dict[str, Any] = {"spellings": 3, "averaged": 2, "tokenizer": "smiles"}


def numbers() -> list[tuple[str, str]]:
    return [(text, f"{row % 6 + row / 20:.3f}") for row, text in enumerate(MOLECULES)]


def labels() -> NamedRows:
    return NamedRows(
        [
            {"smiles": text, "toxic": int(row % 6 in (2, 5)), "soluble": None if row % 4 == 0 else int(row % 6 < 2)}
            for row, text in enumerate(MOLECULES)
        ]
    )


@pytest.fixture(scope="module")
def made() -> Tiny:
    return tiny("molecule-properties", numbers(), data={"splits": [0.7, 0.2, 0.1], "split": "random"}, **SMALL)


@pytest.fixture(scope="module")
def labeled() -> Tiny:
    return tiny("molecule-properties", labels(), data={"splits": [0.7, 0.2, 0.1], "split": "random"}, **SMALL)


def test_a_long_molecule_is_read_as_a_whole():
    """Cut to the part of a cell that other tokenizers are trained on, it would have an open parenthesis."""
    # Atoms of five letters each: descriptors of a thousand atoms take seconds.
    long = [(f"C({'[CH2]' * (200 + number)})N", "0.5") for number in range(12)]
    made = tiny("molecule-properties", [*numbers()[:20], *long], data={"splits": [0.7, 0.2, 0.1], "split": "random"},
                **SMALL)  # fmt: skip
    assert any(len(row[0]) > 1000 for row in made.data.held_out["valid"])


@pytest.mark.parametrize(
    ("header", "row", "columns"),
    [
        ("smiles,exp", "{0},{1}.5", ["smiles", "exp"]),
        ("Compound ID,predicted,measured log S,smiles", "m{1},{1}.25,{1}.5,{0}", ["smiles", "measured log S"]),
        ("a,b,name,mol", "{2},{3},x{1},{0}", ["mol", "a", "b"]),
        ("smiles,Class,pIC50,Model", "{0},{2},{1}.5,Train", ["smiles", "Class"]),
    ],
)
def test_molecules_and_their_properties_are_recognized(tmp_path: Path, header: str, row: str, columns: list[str]):
    lines = [row.format(text, n, n % 2, n // 2 % 2) for n, text in enumerate(MOLECULES)]
    (tmp_path / "data.csv").write_text("\n".join([header, *lines]))
    config = DataConfig(train=[str(tmp_path / "data.csv")])
    assert detect_task(config)[0] == "molecule-properties"
    settings = {"data": {"train": config.train, "split": "random"}, **SMALL}
    assert list(tiny("molecule-properties", tmp_path / "data.csv", **settings).data.columns) == columns


def test_other_tables_are_not_molecules(tmp_path: Path):
    lines = [f"the film number {n} is good,{n % 2}" for n in range(60)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label", *lines]))
    assert detect_task(DataConfig(train=[str(tmp_path / "data.csv")]))[0] == "text-classification"


def test_columns_that_are_not_clear_are_asked_for(tmp_path: Path):
    lines = [f"{text},{n}.5,{n % 2}" for n, text in enumerate(MOLECULES)]
    (tmp_path / "data.csv").write_text("\n".join(["smiles,one,two", *lines]))
    with pytest.raises(DataError, match=r"which columns of data\.csv are properties\? It may be one, two"):
        tiny("molecule-properties", tmp_path / "data.csv", **SMALL)


def test_missing_properties_have_no_loss_and_no_gradient(labeled: Tiny):
    batch = next(iter(labeled.task.validation_batches(labeled.data)))
    assert 0 < batch.known.sum() < batch.known.numel()
    model = labeled.build(std=0.3)
    loss = labeled.task.loss(model, batch)
    changed = batch.with_tensors(
        [*batch.tensors()[:3], torch.where(batch.known, batch.targets, 1 - batch.targets), batch.known]
    )
    torch.testing.assert_close(labeled.task.loss(model, changed), loss)
    assert batch.num_targets == int(batch.known.sum())


def test_the_spelling_of_an_input_does_not_matter(made: Tiny):
    model = made.build(std=0.3)
    found = made.predict(model, spellings("CCc1ccccc1C(=O)O", 5))
    assert len({each.output for each in found}) == 1


def test_predictions_are_averages_over_spellings(made: Tiny):
    model = made.build(std=0.3)
    task = made.task
    ((_, batch),) = task.indexed_batches(task.encode_inputs(["CCc1ccccc1C(=O)O"]))
    assert batch.source.shape[0] == 3
    alone = [model(batch.source[[row]], batch.lengths[[row]], batch.features) for row in range(3)]
    torch.testing.assert_close(model(batch.source, batch.lengths, batch.features), torch.stack(alone).mean(dim=0))


def test_training_reads_other_spellings_in_each_epoch(made: Tiny):
    batches = made.batches(batch_tokens=2_000)
    assert batches.per_epoch == 1
    first, second = (sorted(map(tuple, batches.batch(number).source.tolist())) for number in (0, 1))
    assert first != second
    assert batches.batch(0).targets.sum() == pytest.approx(float(batches.batch(1).targets.sum()), abs=1e-4)


@pytest.mark.parametrize("which", ["made", "labeled"])
def test_a_solved_process_is_better_than_chance_before_the_first_step(which: str, request: pytest.FixtureRequest):
    made: Tiny = request.getfixturevalue(which)
    model = made.build()
    assert made.task.solve(model, made.data)
    made.task.blend(model, made.task.validation_batches(made.data), CPU)
    rows = made.data.held_out["valid"]
    predictions = made.predict(model, [row[0] for row in rows])
    scores = {
        each.name: each.value for each in made.task.scores(EvaluationData(rows, predictions, Likelihoods([], [])))
    }
    assert scores["r_squared"] > 0.5 if which == "made" else scores["auroc"] > 0.6
    model.train()
    batch = next(iter(made.task.validation_batches(made.data)))
    assert model.parts(batch.source, batch.lengths, batch.features)[1] is None


def test_examples_have_probabilities_and_none_where_a_label_is_missing(labeled: Tiny):
    rows = labeled.data.held_out["valid"]
    predictions = labeled.predict(labeled.build(std=0.3), [row[0] for row in rows])
    examples = labeled.task.examples(EvaluationData(rows, predictions, Likelihoods([], [])))
    assert examples.targets is not None
    assert any(None in row for row in examples.targets)
    assert [each.name for each in find_metric("auroc").scores(examples)] == ["auroc", "auroc_toxic", "auroc_soluble"]
    assert predictions[0].output.startswith("toxic=")


def test_several_numbers_are_scored_in_standard_deviations():
    rows = [(text, value, f"{1000 * float(value):.1f}") for text, value in numbers()]
    made = tiny("molecule-properties", rows, data={"split": "random"}, gaussian_process=False, **SMALL)
    assert made.build().process is None
    valid = made.data.held_out["valid"]
    predictions = made.predict(made.build(std=0.3), [row[0] for row in valid])
    examples = made.task.examples(EvaluationData(valid, predictions, Likelihoods([], [])))
    assert examples.targets is not None
    assert len(examples.targets) == 2 * len(valid)
    assert np.abs(examples.targets).max() < 5


def test_selfies_are_tokens_too():
    made = tiny("molecule-properties", numbers(), data={"split": "random"}, **{**SMALL, "tokenizer": "selfies"})
    pieces = made.task.tokenizer.pieces(range(made.task.tokenizer.vocab_size))
    assert "[Branch1]" in pieces or "[=Branch1]" in pieces
    one, other = made.predict(made.build(std=0.3), ["CCO", "[C][C][O]"])
    assert one.output == other.output


def test_bad_rows_are_reported_with_their_lines(tmp_path: Path):
    bad = ["C1CC,1.5", ",2.5", "CCO,", "CCN,many"]
    lines = [*(f"{text},{value}" for text, value in numbers()), *bad]
    (tmp_path / "data.csv").write_text("\n".join(["smiles,y", *lines]))
    with pytest.raises(
        BadRowsError, match=r"4 of 64 rows.*'C1CC' \(ring 1 is not closed\) \(line 62\).*an empty molecule"
    ):
        tiny("molecule-properties", tmp_path / "data.csv", **SMALL)
    made = tiny("molecule-properties", tmp_path / "data.csv", data={"skip_bad": True}, **SMALL)
    assert len(made.data.train) + sum(map(len, made.data.held_out.values())) == 60


def test_an_input_that_is_no_molecule_is_an_error(made: Tiny):
    with pytest.raises(DataError, match=r"invalid molecule 'C1CC' \(ring 1 is not closed\)"):
        made.predict(made.build(), ["C1CC"])


def test_an_input_of_a_table_that_is_no_molecule_is_named_by_its_row(tmp_path: Path):
    settings = {"task": SMALL, "model": {"num_layers": 1, "model_dim": 8}}
    table = write_csv(tmp_path / "data.csv", [{"smiles": text, "y": value} for text, value in numbers()])
    run = regard.train(
        table, out=tmp_path / "run", steps=2, settings=settings, device="cpu", show_progress=False, baseline=False
    )
    (tmp_path / "new.csv").write_text("smiles\nCCO\nCCN\nC1CC\nCCC\n")
    with pytest.raises(DataError, match=r"new.csv, row 3: the input has an invalid molecule 'C1CC'"):
        run.predict_table(tmp_path / "new.csv", out=tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lowercase": True}, "in which c and C differ"),
        ({"averaged": 4, "spellings": 3}, "task.averaged must be at most"),
    ],
)
def test_settings_that_cannot_be_combined_are_refused(settings: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        tiny("molecule-properties", numbers(), data={"split": "random"}, **{**SMALL, **settings})


def test_chains_are_split_at_random(caplog: pytest.LogCaptureFixture):
    rows = [("C" * (1 + row), f"{row}.5") for row in range(40)]
    made = tiny("molecule-properties", rows, **SMALL)
    assert made.data.held_out["test"]
