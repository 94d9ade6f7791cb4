"""Events: an exact likelihood, censoring, what is read, how risks are scored, and errors in one line."""

import csv
import json
import math
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, roc_auc_score
from tests.tasks.tables import write_csv

import regard
from regard.cli.main import main
from regard.data.builtin import find_builtin
from regard.data.builtin.patients import EVENTS, generate_patients, patients_log_likelihood
from regard.data.codecs.events import EventCodec
from regard.data.formats.events import EventColumns, parse_history, read_events
from regard.data.settings import DataConfig
from regard.errors import DataError, UnknownTaskError
from regard.evaluation import Examples, find_metric
from regard.evaluation.metrics.events import (
    censoring_survival,
    censoring_weights,
    simulated_outcomes,
    weighted_auroc,
)
from regard.explanation.pages import page_data
from regard.models.events import EventShape
from regard.models.family import find_family, read_model_config
from regard.tasks import detect_task
from regard.tasks.event_prediction.model import (
    ConstantRates,
    Landmarks,
    judge_landmarks,
    log_likelihoods,
    make_event_batch,
)
from regard.tasks.event_prediction.process import EventMixture, make_mixture

FIRST = datetime(2024, 1, 1)


def visits(subjects: int, *, has_end: bool = True) -> list[dict[str, Any]]:
    """Patients whose relapses follow soon after a high marker, by date."""
    rng = np.random.default_rng(7)
    rows = []
    for subject in range(subjects):
        day = 0.0
        for _ in range(3 + subject % 6):
            day += float(rng.exponential(5.0))
            marker = round(float(rng.normal()), 2)
            rows.append(row_of(subject, day, "visit", marker))
            if marker > 0:
                day += float(rng.exponential(1.0))
                rows.append(row_of(subject, day, "relapse", None))
        if has_end:
            rows.append(row_of(subject, day + 4.0, "end", None))
    return rows


def row_of(subject: int, day: float, event: str, marker: float | None) -> dict[str, Any]:
    date = (FIRST + timedelta(days=subject + day)).isoformat(timespec="seconds")
    return {"patient": f"p{subject}", "date": date, "event": event, "marker": marker}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("events")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        return regard.train(
            write_csv(folder / "visits.csv", visits(120)),
            out=folder / "run",
            steps=20,
            device="cpu",
            show_progress=False,
        )


def command(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["regard", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def random_mixture(num_components: int = 5, num_events: int = 3) -> EventMixture:
    torch.manual_seed(1)
    outputs = torch.randn(7, num_components, 3 + num_events, dtype=torch.float64)
    return make_mixture(outputs, shortest=1e-4, num_events=num_events)


def at_times(mixture: EventMixture, times: torch.Tensor) -> EventMixture:
    return mixture.at((torch.zeros(len(times), dtype=torch.long),))


def test_the_density_of_all_events_and_times_integrates_to_one():
    mixture = random_mixture()
    logs = torch.linspace(-60.0, 12.0, 60_001, dtype=torch.float64)
    times = logs.exp()
    here = at_times(mixture, times)
    density = torch.stack([here.log_density(times, torch.full((len(times),), event)).exp() for event in range(3)])
    total = torch.trapezoid(density * times, logs, dim=1)
    torch.testing.assert_close(total.sum(), torch.tensor(1.0, dtype=torch.float64), rtol=1e-6, atol=0)
    probabilities = here.event_probabilities(torch.zeros_like(times))[0]
    torch.testing.assert_close(total, probabilities, rtol=1e-6, atol=1e-9)


def test_survival_risks_and_quantiles_are_integrals_of_the_density():
    mixture = random_mixture()
    logs = torch.linspace(-60.0, math.log(0.7), 60_001, dtype=torch.float64)
    times = logs.exp()
    here = at_times(mixture, times)
    density = torch.stack([here.log_density(times, torch.full((len(times),), event)).exp() for event in range(3)])
    within = torch.trapezoid(density * times, logs, dim=1)
    start = torch.zeros(7, dtype=torch.float64)
    risks = mixture.risks(start, torch.tensor([0.7], dtype=torch.float64))[0, 0]
    torch.testing.assert_close(risks, within, rtol=1e-6, atol=1e-9)
    survival = mixture.log_survival(torch.full((7,), 0.7, dtype=torch.float64)).exp()[0]
    torch.testing.assert_close(survival, 1 - within.sum(), rtol=1e-6, atol=1e-9)
    elapsed = torch.full((7,), 0.3, dtype=torch.float64)
    median = mixture.quantile(0.5, elapsed)
    conditional = (mixture.log_survival(elapsed + median) - mixture.log_survival(elapsed)).exp()
    torch.testing.assert_close(conditional, torch.full((7,), 0.5, dtype=torch.float64))
    ahead = mixture.risks(elapsed, median[:1])[0, 0].sum()
    torch.testing.assert_close(ahead, torch.tensor(0.5, dtype=torch.float64))


def histories_of(rows: list[tuple[str, ...]]) -> list[Any]:
    found = []
    for _, some in groupby(rows, key=lambda row: row[0]):
        *events, end = some
        markers = [float(row[3]) if row[3] else None for row in events]
        found.append(([float(row[1]) for row in events], [row[2] for row in events], markers, float(end[1])))
    return found


def test_the_likelihood_of_patients_is_that_of_the_intensity_that_is_documented():
    """Against the definition, integrated numerically."""
    from regard.data.builtin import patients

    base, decay, excitation = (np.array(each) for each in (patients._BASE, patients._DECAY, patients._EXCITATION))
    times, events, markers, end = histories_of(list(generate_patients(60, 3)))[0]
    kinds = [EVENTS.index(event) for event in events]

    def intensity(t: float) -> np.ndarray:
        before = [place for place, time in enumerate(times) if time < t]
        found = base.copy()
        for place in before:
            found += excitation[kinds[place]] * decay * np.exp(-decay * (t - times[place]))
        changes = [kinds[place] for place in before if kinds[place] in (1, 2)]
        measured = [marker for place in before if (marker := markers[place]) is not None]
        found[2] *= (0.3 if changes and changes[-1] == 1 else 1.0) * math.exp(0.7 * measured[-1] if measured else 0.0)
        return found

    expected = sum(math.log(intensity(time)[kind]) for time, kind in zip(times, kinds, strict=True))
    for start, stop in zip([0.0, *times], [*times, end], strict=True):
        grid = np.linspace(start + 1e-9, stop, 400)
        expected -= np.trapezoid([intensity(t).sum() for t in grid], grid)
    (found,), (count,) = patients_log_likelihood([(times, events, markers, end)])
    assert count == len(events)
    assert found == pytest.approx(expected, rel=1e-3)


def test_patients_are_the_same_for_the_same_seed_and_any_number_of_rows():
    data = find_builtin("patients")
    rows = list(data.generate(700, 5))
    assert rows[:300] == list(data.generate(300, 5))
    assert rows[:300] != list(data.generate(300, 6))
    assert {row[2] for row in rows} == {*EVENTS, "end"}


def encoded(*histories: str) -> tuple[EventCodec, Any]:
    codec = EventCodec.fit(histories, unit="", values=())
    columns = [codec.to_columns(codec.read(text)) for text in histories]
    return codec, make_event_batch([[np.array(each[place]) for each in columns] for place in range(3)])


def test_constant_rates_have_the_likelihood_of_poisson_processes_and_the_end_adds_its_survival():
    codec, batch = encoded(
        '[[0, null], [2, "a"], [3, "b"], [7, null]]', '[[0, null], [4, "a"], [5, "a"], [6, "b"], [9, "a"]]'
    )
    assert codec.events == ("a", "b")
    rates = np.tile([0.5, 0.25], (3, 1)) * codec.scale
    found = log_likelihoods(ConstantRates(rates)(batch.source[:, :-1]), batch).double().sum(dim=1)
    found = found - torch.tensor([2, 4]) * math.log(codec.scale)
    expected = [math.log(0.5) + math.log(0.25) - 0.75 * 7, 3 * math.log(0.5) + math.log(0.25) - 0.75 * 9]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", ["event-attention", "event-recurrence"])
def test_a_hidden_state_depends_on_no_later_event(family: str):
    torch.manual_seed(0)
    found = find_family(family)
    preset = next(iter(found.presets.values()))
    config = read_model_config({**preset.sizes["tiny"], **preset.shared, "family": family})
    model: Any = found.build(config, shape=EventShape(3, 1))
    source = torch.rand(2, 11, 5)
    source[..., 0] = torch.randint(0, 4, (2, 11))
    source[..., 2] = source[..., 1].cumsum(dim=1)
    changed = source.clone()
    changed[:, 7:] = 2 * changed[:, 7:].flip(1)
    changed[..., 0] = changed[..., 0].clamp(max=3).floor()
    one, other = (model.eval().encode(each).hidden_states for each in (source, changed))
    torch.testing.assert_close(one[:, :7], other[:, :7])
    assert not torch.allclose(one[:, 7:], other[:, 7:])


def test_a_table_of_events_is_recognized_and_beats_nothing_in_silence(run: Any):
    assert run.task.name == "event-prediction"
    assert run.task.codec.unit == "days"
    assert run.task.codec.values == ("marker",)
    assert run.settings.task.horizons == list(run.task.codec.horizons)
    assert {"event_log_likelihood", "next_event_accuracy", "integrated_brier_score", "risk_auroc"} <= set(
        run.baseline.scores
    )
    assert "rates" in run.baseline.name
    assert page_data(run.path / "report.html")["sections"][0]["figure"].count("<svg") == 1


def test_predictions_of_a_table_have_a_row_for_each_subject_from_the_end_of_its_observation(run: Any, tmp_path: Path):
    path = write_csv(tmp_path / "new.csv", [row for row in visits(4) if row["patient"] in ("p1", "p3")])
    assert command("predict", str(run.path), str(path), "--out", str(tmp_path / "next.csv")) == 0
    with open(tmp_path / "next.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["subject"] for row in rows] == ["p1", "p3"]
    until = max(row["date"] for row in visits(4) if row["patient"] == "p1")
    assert rows[0]["observed_until"] == until.replace("T", " ")
    assert until.replace("T", " ") < rows[0]["time_lower"] < rows[0]["time"] < rows[0]["time_upper"]
    probabilities = {event: float(rows[0][f"probability_{event}"]) for event in ("visit", "relapse")}
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-5)
    assert rows[0]["event"] == max(probabilities, key=lambda event: probabilities[event])
    risks = [float(rows[0][f"risk_{horizon:g}_any"]) for horizon in run.settings.task.horizons]
    assert 0 < risks[0] < risks[-1] < 1
    assert run.predict_table(str(path))[0]["event"] == rows[0]["event"]


def test_time_without_an_event_changes_a_prediction_as_the_process_says(run: Any):
    history = '[[0, null], [3, "visit", 1.5]'
    now, later = run.predict_full([f"{history}]", f"{history}, [8, null]]"])
    task = run.task
    columns = task.encode_inputs([f"{history}]"])
    (_, batch), *_ = task.indexed_batches(columns)
    mixture = run.model(batch.source).at((torch.tensor([0]), torch.tensor([1])))
    scale = task.codec.scale
    elapsed = torch.tensor([5.0 / scale], dtype=torch.float32)
    expected = mixture.event_probabilities(elapsed)[0].tolist()
    assert list(later.probabilities.values()) == pytest.approx(expected, rel=1e-4)
    horizon = run.settings.task.horizons[0]
    before, after = (mixture.log_survival((elapsed * scale + h) / scale).exp() for h in (0.0, horizon))
    assert later.details["risks"][f"{horizon:g}"]["any"] == pytest.approx(
        1 - float((after / before).detach()), rel=1e-4
    )
    assert now.details != later.details
    assert json.loads(json.dumps(later.to_json()))["details"]["unit"] == "days"


def test_evaluation_of_a_file_is_that_of_the_same_rows_in_memory(run: Any, tmp_path: Path):
    rows = visits(150)[-200:]
    found = run.evaluate(write_csv(tmp_path / "more.csv", rows), log=False)
    assert found.scores["event_log_likelihood"].interval is not None
    again = run.evaluate(rows, log=False)
    assert again.scores["event_log_likelihood"].value == pytest.approx(found.scores["event_log_likelihood"].value)


def columns() -> EventColumns:
    return EventColumns()


def test_rows_are_sorted_ties_keep_their_order_and_the_unit_is_that_of_the_distances():
    rows = [
        {"user": "u", "time": "2024-01-01 10:05:00", "event": "click"},
        {"user": "u", "time": "2024-01-01 10:00:00", "event": "open"},
        {"user": "u", "time": "2024-01-01 10:05:00", "event": "buy"},
        {"user": "v", "time": "2024-01-01 10:00:00", "event": "open"},
    ]
    table = read_events(rows, columns())
    (history,) = table.histories
    assert table.unit == "minutes"
    assert history.events == ("open", "click", "buy")
    assert history.times.tolist() == [0.0, 5.0, 5.0]
    assert history.is_given
    assert any("the rows of 1 subject are not in the order of time" in note for note in table.inferred)
    assert any("1 event at the same time" in note for note in table.inferred)
    assert any("1 subject with one event only" in note for note in table.inferred)
    codec = EventCodec.fit([history.to_text()], unit=table.unit, values=())
    gaps = codec.read(history.to_text()).gaps * codec.scale
    assert gaps.tolist() == pytest.approx([0.0, 5.0, codec.resolution / 2])


def test_times_of_a_clock_start_with_the_first_event_and_others_at_zero():
    clock = [{"id": n, "t": 1.7e9 + t, "event": "a"} for n in range(3) for t in (0, 60, 90)]
    assert read_events(clock, columns()).histories[0].is_given
    since = [{"id": n, "t": t, "event": "a"} for n in range(3) for t in (5, 60, 90)]
    history = read_events(since, columns()).histories[0]
    assert not history.is_given
    assert history.times.tolist() == [5, 60, 90]
    births = [{"id": 1, "t": 40, "event": "birth"}, *({"id": 1, "t": t, "event": "a"} for t in (45, 50))]
    history = read_events(births, columns()).histories[0]
    assert (history.start.value, history.times.tolist()) == (40, [5, 10])


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_format_is_recognized_and_gives_the_same_histories(suffix: str, tmp_path: Path):
    rows = [{**row, "patient": int(row["patient"][1:])} for row in visits(40)]
    path = tmp_path / f"visits.{suffix}"
    if suffix == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        write_csv(path, rows)
        text = path.read_text()
        path.write_text(text if suffix == "csv" else text.replace(",", "\t"))
    assert detect_task(DataConfig(train=[str(path)]))[0] == "event-prediction"
    expected = [each.to_text() for each in read_events(rows, columns()).histories]
    assert [each.to_text() for each in read_events(path, columns()).histories] == expected


@pytest.mark.parametrize(
    "header",
    [("user", "date", "label", "text"), ("date", "store", "sales"), ("id", "text", "label"), ("a", "time", "event")],
)
def test_other_tables_are_not_taken_for_events(header: tuple[str, ...], tmp_path: Path):
    made = {
        "date": lambda n: f"2024-01-{n % 28 + 1:02d}",
        "time": lambda n: n,
        "sales": lambda n: n / 7,
        "text": lambda n: f"a film of {n} words and some more of {n * n}",
        "id": lambda n: f"r{n}",
    }
    rows = [{name: made.get(name, lambda n: "xyz"[n % 3])(n) for name in header} for n in range(200)]
    config = DataConfig(train=[str(write_csv(tmp_path / "other.csv", rows))])
    if header == ("a", "time", "event"):
        with pytest.raises(UnknownTaskError, match=r"labels \(a, event\) and numbers \(time\)"):
            detect_task(config)
    else:
        assert detect_task(config)[0] != "event-prediction"


def events(**changes: Any) -> list[dict[str, Any]]:
    rows = [{"subject": f"s{n}", "time": t, "event": e, "dose": 1.5 * t} for n in range(40) for t, e in
            ((1, "visit"), (2.5, "relapse"), (4, "visit"), (6, "end"))]  # fmt: skip
    rows[9] |= changes
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (events(time=-3), "the subject 's2' has the event 'relapse' at -3, before the start of its observation at 0"),
        ([*events(), {"subject": "s1", "time": 0.5, "event": "birth", "dose": None},
          {"subject": "s1", "time": 0.25, "event": "visit", "dose": 1}],
         "the subject 's1' has the event 'visit' at 0.25, before its 'birth' at 0.5"),
        (events(time=9), "has the event 'relapse' at 9, after its 'end' at 6"),
        (events(dose="much"), "line 11: dose must have numbers, got 'much'"),
        (events(time="soon"), "line 11: time must be a number, got 'soon'"),
        ([{name: row[name] for name in ("subject", "time", "event")} for row in events(time="soon")],
         "line 11: time must be a number, got 'soon'"),
        (events(event=""), "line 11: event is empty"),
        ([{"time": row["time"], "event": row["event"]} for row in events()], "has no column of subjects among"),
        ([{"subject": f"s{n}", "time": f"2024-01-{n + 1:02d}", "event": "ab"[n % 2]} for n in range(28)],
         "every subject has one event only and no end of observation"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line_and_nothing_is_written(
    rows: Any, message: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = write_csv(tmp_path / "events.csv", rows)
    code = command("train", str(path), "--task", "event-prediction", "--out", str(tmp_path / "run"), "--steps", "2")
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert message in lines[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"event": "surgery"}, "the subject 'p0' has the event 'surgery', which is not among those of training"),
        ({"marker": "high"}, "marker must have numbers, got 'high'"),
        (None, "must have the columns of training, got none called marker"),
    ],
)
def test_a_table_that_cannot_be_predicted_leaves_no_file(
    run: Any, change: Any, message: str, tmp_path: Path, capsys: Any
):
    rows = visits(3)
    rows[1] |= change or {}
    if change is None:
        rows = [{name: row[name] for name in ("patient", "date", "event")} for row in rows]
    path = write_csv(tmp_path / "new.csv", rows)
    assert command("predict", str(run.path), "--file", str(path), "--out", str(tmp_path / "next.csv")) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "next.csv").exists()


def test_histories_in_text_are_checked(run: Any):
    for text, message in {
        "visit": "must be JSON",
        "[[1, null]]": "the first entry of a history must be at time 0",
        '[[0, null], [3, "visit"], [2, "visit"]]': "must not decrease, got 2 after 3",
        '[[0, null], [3, "fall"]]': "'fall' is not among those of training",
        '[[0, null], [3, null], [4, "visit"]]': "must be a time and an event",
    }.items():
        with pytest.raises(DataError, match=message):
            run.predict(text)


def test_an_event_that_training_did_not_see_ends_the_observation():
    codec = EventCodec.fit(['[[0, null], [2, "a", 1.0], [5, "b", 3.0], [6, null]]'], unit="", values=("x",))
    history = codec.read('[[0, null], [2, "a"], [4, "c"], [5, "b"]]', is_strict=False)
    assert history.kinds.tolist() == [0, 1, 0]
    (text,) = codec.decode(codec.encode(['[[0, null], [2, "a", 1.0], [5, "b"], [6, null]]']))
    assert [entry[:2] for entry in json.loads(text)] == [
        [0, None], [pytest.approx(2), "a"], [pytest.approx(5), "b"], [pytest.approx(6), None]
    ]  # fmt: skip
    assert json.loads(text)[1][2] == pytest.approx(1.0)
    assert EventCodec.from_json(codec.to_json()) == codec


def test_auroc_and_brier_of_uncensored_landmarks_are_those_of_scikit_learn():
    rng = np.random.default_rng(3)
    num, horizon = 400, 1.0
    gaps, kinds = rng.exponential(1.0, num), rng.integers(1, 3, num)
    risks = rng.dirichlet([1, 1, 2], num)[:, :2]
    grid = np.clip(rng.random((num, 1)) * np.linspace(0.05, 1, 20), 0, 1)
    landmarks = Landmarks(np.repeat(np.arange(100), 4), gaps, kinds, risks[:, None], grid)
    brier_sums, found = judge_landmarks([landmarks], 100, [horizon])
    examples = Examples(extras={"risks": found, "brier_sums": brier_sums})
    expected = [roc_auc_score((kinds == kind) & (gaps <= horizon), risks[:, kind - 1]) for kind in (1, 2)]
    score, of_horizon = find_metric("risk_auroc").scores(examples)
    assert score.value == of_horizon.value == pytest.approx(np.mean(expected), abs=1e-4)  # risks have six digits
    assert score.interval is not None
    assert score.interval[0] < score.value < score.interval[1]
    times = horizon * np.arange(1, 21) / 20
    each = [brier_score_loss(gaps <= time, risk) for time, risk in zip(times, grid.T, strict=True)]
    assert find_metric("integrated_brier_score").value(examples) == pytest.approx(np.mean(each))


def test_weighted_auroc_with_ties_is_that_of_scikit_learn():
    rng = np.random.default_rng(4)
    risks, cases, weights = rng.integers(0, 9, 200) / 9, rng.random(200) < 0.4, rng.random(200)
    expected = roc_auc_score(cases, risks, sample_weight=weights)
    assert float(weighted_auroc(risks, cases, weights)) == pytest.approx(expected)


def test_censoring_weights_restore_what_is_seen_without_censoring():
    rng = np.random.default_rng(5)
    gaps, ends = rng.exponential(1.0, 40_000), rng.exponential(2.0, 40_000)
    observed, is_censored = np.minimum(gaps, ends), ends < gaps
    times, probabilities = censoring_survival(observed, is_censored)
    place = np.searchsorted(times, 1.0) - 1
    assert probabilities[place] == pytest.approx(math.exp(-0.5), abs=0.01)
    weights = censoring_weights(observed, is_censored, 1.0)
    assert weights.mean() == pytest.approx(1.0, abs=0.01)
    share = (weights * ((observed <= 1.0) & ~is_censored)).mean()
    assert share == pytest.approx(1 - math.exp(-1.0), abs=0.01)
    naive = ((observed <= 1.0) & ~is_censored).mean()
    assert naive < share - 0.05


def test_simulated_risks_are_scored_as_scikit_learn_scores_them_where_nothing_is_censored():
    rng = np.random.default_rng(6)
    waits, risks, horizons = rng.exponential(1.0, (300, 2)), rng.random((300, 3, 2)), [0.3, 0.9, 1.7]
    table = simulated_outcomes(risks, waits, np.full(300, 99.0), horizons)
    examples = Examples(extras={"simulated_risks": table.tolist()})
    pairs = [
        (waits[:, event] <= horizon, risks[:, place, event])
        for place, horizon in enumerate(horizons) for event in range(2)
    ]  # fmt: skip
    (score,) = find_metric("simulated_risk_auroc").scores(examples)
    assert score.value == pytest.approx(np.mean([roc_auc_score(*pair) for pair in pairs]))
    expected = np.mean([brier_score_loss(*pair) for pair in pairs])
    assert find_metric("simulated_brier_score").value(examples) == pytest.approx(expected)


def test_a_subject_that_is_censored_before_the_horizon_is_not_judged_by_it():
    waits, observed = np.array([[0.5], [np.inf], [np.inf], [2.0]]), np.array([3.0, 0.4, 3.0, 3.0])
    table = simulated_outcomes(np.full((4, 1, 1), 0.25), waits, observed, [1.0])
    assert table[:, 0, 0, 1].tolist() == [1, 0, 0, 0]
    assert table[:, 0, 0, 0].tolist() == pytest.approx([4 / 3, 0, 4 / 3, 4 / 3])


def test_an_evaluation_with_paths_scores_what_followed_the_middle_of_each_history(run: Any, tmp_path: Path):
    assert "simulated_brier_score" not in run.evaluate().scores
    found = run.evaluate(num_paths=20)
    assert found.scores["simulated_brier_score"].settings["paths"] == 20
    assert found.scores["simulated_risk_auroc"].interval is not None
    assert command("evaluate", str(run.path), "--paths", "20") == 0
    assert command("evaluate", str(run.path), "--paths", "1") == 2
    (table,) = found.examples.require("simulated_risks")
    rows = run.folder.read_held_out("valid")
    assert len(table) == len(rows)
    events = run.task.codec.events
    last = run.settings.task.horizons[-1]
    expected = sorted(_within(parse_history(row[1], 1), events, last) for row in rows)
    assert sorted(tuple(int(each[1]) for each in subject[-1]) for subject in table) == expected


def _within(history: Any, events: tuple[str, ...], horizon: float) -> tuple[int, ...]:
    """Which events follow the one in the middle of a history within the horizon."""
    times, kinds, _ = history
    places = [place for place, kind in enumerate(kinds) if kind is not None]
    middle = places[-1] // 2 if places else 0
    after = [(kind, time - times[middle]) for kind, time in zip(kinds, times, strict=True)][middle + 1 :]
    return tuple(int(any(kind == event and time <= horizon for kind, time in after)) for event in events)


@pytest.mark.slow
def test_a_model_comes_close_to_the_true_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a few steps: most of what separates a Markov chain from the truth, which no model may exceed by chance."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run = regard.train(
        "patients", out=tmp_path / "run", steps=100, device="cpu", show_progress=False,
        settings={"preset": "lstm-events-tiny", "data": {"num_rows": 20_000}},
    )  # fmt: skip
    (note,) = [note for note in run.folder.read_provenance().notes if "true process" in note]
    truth = float(note.split(": ")[1].split()[0])
    assert run.baseline is not None
    score = run.baseline.model_score
    assert run.baseline.score + 0.15 < score < truth + 0.02


def test_the_encoding_of_a_table_of_events_is_read(run: Any, tmp_path: Path):
    rows = [{**row, "patient": f"Zoë {row['patient']}"} for row in visits(3)]
    path = write_csv(tmp_path / "visits.csv", rows)
    text = path.read_text(encoding="utf-8")
    path.write_bytes(text.encode("utf-16-le"))  # without a byte order mark
    found = run.predict_table(path, encoding="utf-16-le", num_paths=0)
    assert [each["subject"] for each in found] == [f"Zoë p{number}" for number in range(3)]
    assert command("predict", str(run.path), str(path), "--encoding", "utf-16-le", "--paths", "0",
                   "--plot", str(tmp_path / "risks.png"), "--out", str(tmp_path / "out.csv")) == 0  # fmt: skip
    assert command("predict", str(run.path), str(path), "--encoding", "utf-9", "--out", str(tmp_path / "no.csv")) == 2
    assert not (tmp_path / "no.csv").exists()
    path.write_bytes(text.encode("latin-1"))
    found = regard.train(path, out=tmp_path / "run", steps=1, device="cpu", show_progress=False,
                         settings={"data": {"encoding": "latin-1", "splits": [0.4, 0.3, 0.3]}})  # fmt: skip
    assert found.folder.read_held_out("valid")[0][0].startswith("Zoë")
