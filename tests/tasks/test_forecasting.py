"""Forecasting: what is read, how it is split and scored, intervals, and errors in one line."""

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.tables import write_csv
from tests.tiny import tiny

import regard
from regard.baselines.sequences import SmoothingWeights, exponential_smoothing, seasonal_naive
from regard.cli.main import main
from regard.data.builtin import find_builtin
from regard.data.builtin.sales import NOISE, generate_sales
from regard.data.codecs.series import find_season
from regard.data.formats.series import Clock, read_series
from regard.errors import ConfigError, DataError, RunError
from regard.explanation.pages import page_data
from regard.models.family import find_family, read_model_config
from regard.models.presets import find_preset
from regard.models.series import SeriesShape
from regard.tasks.capabilities import Forecaster, capability
from regard.tasks.forecasting.model import conformal_margins, quantile_losses

WINDOW = {"horizon": 5, "input_length": 14}


def days(count: int, **more: Any) -> list[dict[str, Any]]:
    noise = np.random.default_rng(0).normal(0, 0.3, count)
    first = date(2024, 1, 1)
    return [
        {"date": str(first + timedelta(days=day)), "load": round(float(day % 7 + noise[day]), 3), **more}
        for day in range(count)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("forecasting")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        return regard.train(
            write_csv(folder / "days.csv", days(160)), out=folder / "run", steps=20, device="cpu", show_progress=False,
            settings={"task": WINDOW},
        )  # fmt: skip


def test_a_table_with_a_column_of_time_and_numbers_is_recognized(run: Any):
    assert run.task.name == "forecasting"
    assert run.settings.task.horizon == 5
    assert run.baseline.name in ("seasonal naive, a season of 7 steps", "exponential smoothing, a season of 7 steps")
    assert set(run.baseline.scores) == {"mse", "mae", "mase", "weighted_quantile_loss", "coverage"}
    drawing = page_data(run.path / "report.html")["sections"][0]["figure"]
    assert drawing.count("<svg") == 1


def test_the_parts_follow_each_other_in_time_and_statistics_are_of_the_first():
    rows = days(100)
    found = tiny(
        "forecasting", [dict_row(row) for row in rows], preset="linear-tiny", **WINDOW, split_rows=[50, 20, 25]
    )
    values = [row["load"] for row in rows]
    codec = found.task.codec
    assert codec.means == pytest.approx((np.mean(values[:50]),))
    assert codec.stds == pytest.approx((np.std(values[:50]),))
    ((_, first, text),) = found.data.held_out["valid"]
    assert first == rows[50 - 14]["date"]
    assert [float(step) for step in text.split()] == pytest.approx(values[36:70])
    ((_, _, text),) = found.data.held_out["test"]
    assert [float(step) for step in text.split()] == pytest.approx(values[56:95])


def dict_row(row: dict[str, Any]) -> Any:
    return tuple(row.values())


def test_evaluation_is_from_every_origin():
    found = tiny("forecasting", [dict_row(row) for row in days(100)], preset="linear-tiny", **WINDOW)
    model = found.build(std=0.1)
    rows = found.data.held_out["test"]
    likelihoods = found.likelihoods(model, rows)
    assert len(likelihoods.losses) == 20 - 5 + 1
    values = found.task.codec.read(rows[0][-1])[0]
    errors = []
    for origin in range(14, 34 - 5 + 1):
        point = model(torch.from_numpy(values[None, origin - 14 : origin])).point[0].detach().numpy()
        errors.append(((point - values[origin : origin + 5]) ** 2).mean())
    scores = {score.name: score.value for score in found.task.scores(_data(rows, likelihoods))}
    assert scores["mse"] == pytest.approx(np.mean(errors), rel=1e-5)
    apart = found.task.with_stride(5)
    assert len(apart.likelihoods(model, apart.row_batches(rows), torch.device("cpu")).losses) == 4


def test_scaled_errors_quantile_losses_and_coverage_are_those_computed_by_hand():
    rows = [dict_row({**row, "other": row["load"] ** 2}) for row in days(100)]
    rows[90] = (rows[90][0], None, rows[90][2])
    found = tiny("forecasting", rows, preset="linear-tiny", **WINDOW, split_rows=[60, 20, 20], stride=3)
    model, held_out = found.build(std=0.1), found.data.held_out["test"]
    scores = {
        score.name: score.value for score in found.task.scores(_data(held_out, found.likelihoods(model, held_out)))
    }
    values = np.array([[np.nan if cell is None else cell for cell in row[1:]] for row in rows])
    train, codec = values[:60], found.task.codec
    mean, std = train.mean(axis=0), train.std(axis=0)
    scale = np.abs(train[codec.season :] - train[: -codec.season]).mean(axis=0)
    first = date.fromisoformat(rows[0][0])
    scaled, losses, sizes, inside = [], [], [], []
    for origin in range(80, 100 - 5 + 1, 3):
        past = values[origin - 14 : origin].copy()
        for step in range(1, 14):
            past[step] = np.where(np.isnan(past[step]), past[step - 1], past[step])
        text = " ".join(f"{one:.9g},{other:.9g}" for one, other in past)
        (got,) = found.predict(model, [f"@{first + timedelta(days=origin - 14)} {text}"])
        point, lower, upper = (
            np.array([[float(n) for n in step.split(",")] for step in (part or "").split()])
            for part in (got.output, got.lower, got.upper)
        )
        features = codec.features(str(first + timedelta(days=origin - 14)), np.empty((19, 0)))
        features = torch.from_numpy(features[None, :, : found.task.num_features]) if found.task.num_features else None
        read = torch.from_numpy((past - mean) / std).float()[None]
        quantiles = model(read, features).quantiles[0].detach().double().numpy() * std[:, None] + mean[:, None]
        for step, column in np.argwhere(np.isfinite(values[origin : origin + 5])):
            truth = values[origin + step, column]
            scaled.append(abs(point[step, column] - truth) / scale[column])
            errors = truth - quantiles[step, column]
            losses.append(2 * np.mean([max(q * e, (q - 1) * e) for q, e in zip((0.1, 0.5, 0.9), errors, strict=True)]))
            sizes.append(abs(truth))
            inside.append(lower[step, column] <= truth <= upper[step, column])
    assert scores["mase"] == pytest.approx(np.mean(scaled), rel=1e-3)
    assert scores["weighted_quantile_loss"] == pytest.approx(np.sum(losses) / np.sum(sizes), rel=1e-4)
    assert scores["coverage"] == pytest.approx(np.mean(inside), abs=0.011)


def _data(rows: Any, likelihoods: Any) -> Any:
    from regard.tasks.task import EvaluationData

    return EvaluationData(rows, [], likelihoods)


def test_missing_values_and_rows_are_filled_forward_and_not_scored():
    rows = days(60)
    rows[3]["load"] = None
    del rows[10]
    table = read_series(rows)
    series = table.series[0]
    assert len(series.values) == 60
    assert series.values[3, 0] == series.values[2, 0]
    assert np.flatnonzero(~series.observed[:, 0]).tolist() == [3, 10]
    assert any("1 missing value" in note for note in table.inferred)
    assert any("1 step without a row" in note for note in table.inferred)


def test_a_masked_value_has_no_effect_on_the_loss():
    rows = days(60)
    rows[55]["load"] = None
    found = tiny("forecasting", [dict_row(row) for row in rows], preset="linear-tiny", **WINDOW)
    model = found.build(std=0.1)
    batch = next(iter(found.task.row_batches(found.data.held_out["test"])))
    assert not bool(batch.known.all())
    changed = batch.with_tensors(
        [batch.values, torch.where(batch.known, batch.targets, 1e6), batch.known, batch.features]
    )
    assert found.task.loss(model, batch).item() == found.task.loss(model, changed).item()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [*rows, rows[5]], "has two rows for 2024-01-06"),
        (lambda rows: [{**row, "load": "much" if n == 7 else row["load"]} for n, row in enumerate(rows)],
         "line 9: load must have numbers, got 'much'"),
        (lambda rows: [{**row, "load": 3} for row in rows], "load is always 3 in the training part"),
        (lambda rows: rows[:20], "fewer than a window of 14 steps that are read and 5 that are forecast"),
        (lambda rows: [{**row, "date": row["date"] + ("T01:30" if n == 7 else "")} for n, row in enumerate(rows)],
         "must be a step of 1 day apart, or several, got 2024-01-08 01:30:00 after 2024-01-07"),
        (lambda rows: [{**row, "date": "soon" if n == 7 else row["date"]} for n, row in enumerate(rows)],
         "must be a number or a date"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(change: Any, message: str, tmp_path: Path):
    path = write_csv(tmp_path / "days.csv", change(days(100)))
    with pytest.raises(DataError) as error:
        regard.train(
            path, out=tmp_path / "run", task="forecasting", settings={"task": {**WINDOW, "time_column": "date"}}
        )
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_score_on_a_few_steps_is_reported_as_unreliable(tmp_path: Path):
    made = tiny("forecasting", days(60), **WINDOW)
    assert any("a score on so few is not reliable" in each for each in made.data.notes)
    assert not any("not reliable" in each for each in tiny("forecasting", days(260), **WINDOW).data.notes)


def test_unsorted_rows_are_sorted():
    rows = days(30)
    table = read_series(rows[::-1])
    assert any("sorted" in note for note in table.inferred)
    assert np.array_equal(table.series[0].values, read_series(rows).series[0].values)


def test_settings_without_an_effect_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"data\.stratify has no effect on series"):
        tiny(
            "forecasting", [dict_row(row) for row in days(60)], preset="linear-tiny", data={"stratify": True}, **WINDOW
        )
    found = tiny("forecasting", [dict_row(row) for row in days(60)], preset="linear-tiny", **WINDOW)
    with pytest.raises(ConfigError, match="a model that reads series, such as patchtst"):
        found.build(read_model_config(find_preset("lstm-tiny")[1]))


def test_months_are_steps_of_their_own():
    months = [{"month": f"{2000 + n // 12}-{n % 12 + 1:02d}", "sold": n % 5} for n in range(40)]
    table = read_series(months)
    assert table.clock == Clock("months", 1.0)
    assert len(table.series[0].values) == 40
    assert str(Clock("seconds", 7200.0)) == "2 hours"


def test_several_series_are_found_by_a_column_of_text(tmp_path: Path):
    table = read_series([*days(30, store="a"), *days(20, store="b")[5:]])
    assert [(each.name, each.start, len(each.values)) for each in table.series] == [("a", 0, 30), ("b", 5, 15)]


def test_a_forecast_is_a_table_with_a_row_for_each_step(run: Any, tmp_path: Path):
    path = write_csv(tmp_path / "new.csv", days(40))
    found = run.forecast(path, out=tmp_path / "f.jsonl", plot=tmp_path / "f.png")
    records = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert records == [row for each in found for row in each.to_records()]
    assert list(records[0]) == ["id", "time", "column", "point", "lower", "upper"]
    assert [row["time"] for row in records] == [str(date(2024, 2, 10) + timedelta(days=day)) for day in range(5)]
    assert all(row["lower"] <= row["upper"] for row in records)
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    values = " ".join(["@2024-01-01", *(str(row["load"]) for row in days(40))])
    assert [float(step) for step in run.predict(values).split()] == pytest.approx(
        [r["point"] for r in records], rel=1e-3
    )


def test_a_longer_horizon_is_forecast_from_forecasts(run: Any, caplog: pytest.LogCaptureFixture):
    short, long = (run.forecast(days(40), horizon=horizon)[0] for horizon in (5, 12))
    assert len(long.point) == 12
    assert long.point[:5] == pytest.approx(short.point)
    assert run.forecast(days(40), horizon=2)[0].point == pytest.approx(short.point[:2])


def test_errors_of_forecasts_are_one_line(run: Any, tmp_path: Path):
    with pytest.raises(DataError, match="has 9 steps, and a forecast is made from 14"):
        run.forecast(days(9))
    with pytest.raises(DataError, match="none called load"):
        run.forecast([{"date": row["date"], "other": 1} for row in days(30)])
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        run.forecast(days(30), plot=tmp_path / "f.gif")
    with pytest.raises(DataError, match="made from 14 steps, got 2"):
        run.predict("1 2")
    with pytest.raises(ConfigError, match="onnx can represent it"):
        regard.export_model(run.path, tmp_path / "model", to="hf")


def test_the_command_prints_a_table(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    path = write_csv(tmp_path / "new.csv", days(40))
    monkeypatch.setattr("sys.argv", ["regard", "forecast", str(run.path), str(path), "--horizon", "3", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "id,time,column,point,lower,upper"
    assert len(lines) == 4


def test_a_model_for_text_makes_no_forecasts():
    found = tiny("regression", [(f"word {n}", str(n)) for n in range(40)], tokenizer="words")
    with pytest.raises(RunError, match="forecasts are for series"):
        capability(found.task, Forecaster)


def test_margins_give_the_coverage_that_was_asked_for():
    rng = torch.Generator().manual_seed(0)
    scores, new = torch.randn(400, 3, 2, generator=rng), torch.randn(4_000, 3, 2, generator=rng)
    margins = conformal_margins(scores, 0.9)
    assert float((new <= margins).double().mean()) == pytest.approx(0.9, abs=0.02)
    few = conformal_margins(torch.tensor([[[1.0]], [[3.0]], [[torch.nan]]]), 0.9)
    assert few.item() == 3.0


def test_the_quantile_loss_is_smallest_at_the_quantile():
    values = torch.linspace(0, 1, 1_001)
    candidates = torch.linspace(0, 1, 101)
    for level in (0.1, 0.5, 0.9):
        losses = [float(quantile_losses(q.expand(1_001, 1), values, torch.tensor([level])).mean()) for q in candidates]
        assert float(candidates[int(np.argmin(losses))]) == pytest.approx(level, abs=0.011)


def test_exponential_smoothing_continues_a_season_and_a_trend_exactly():
    season = np.tile([3.0, -1.0, 2.0, -4.0], 20)[None, :, None]
    found = exponential_smoothing(season, SmoothingWeights(0.2, 0.0, 0.1), horizon=6, season=4)
    np.testing.assert_allclose(found[0, :, 0], [3, -1, 2, -4, 3, -1], atol=1e-9)
    np.testing.assert_allclose(seasonal_naive(season, horizon=6, season=4), found, atol=1e-9)
    level = exponential_smoothing(np.full((1, 9, 1), 2.5), SmoothingWeights(0.5, 0.1, 0.0), horizon=2, season=1)
    np.testing.assert_allclose(level, 2.5)


def test_a_season_is_found_by_its_autocorrelation():
    steps = np.arange(400)
    rng = np.random.default_rng(0)
    assert find_season([np.sin(2 * np.pi * steps / 24)[:, None]]) == 24
    assert find_season([rng.normal(size=(400, 1)).cumsum(axis=0)]) == 1


@pytest.mark.parametrize("kind", ["patchtst", "itransformer", "lstm-series", "linear", "series-seq2seq"])
def test_columns_are_independent_unless_they_are_tokens(kind: str):
    config = read_model_config({**find_preset(kind)[1], **({} if kind == "linear" else {"dropout": 0.0})})
    family: Any = find_family(config.family)
    torch.manual_seed(0)
    body = family.build(config, shape=SeriesShape(37, 3)).eval()
    values = torch.randn(2, 37, 3)
    found = body.encode(values).hidden_states
    assert found.shape == (2, 3 * body.num_positions, body.width)
    changed = values.clone()
    changed[:, 5, 1] += 1.0
    parts = [each.unflatten(1, (3, -1)) for each in (found, body.encode(changed).hidden_states)]
    assert not torch.allclose(parts[0][:, 1], parts[1][:, 1])
    assert torch.allclose(parts[0][:, 0], parts[1][:, 0]) == (kind != "itransformer")


def test_the_noise_of_the_built_in_series_is_known():
    rows = list(generate_sales(4_000, 0))
    assert find_builtin("sales").columns == ("date", "store", "sales")
    again = list(generate_sales(400, 0))
    assert rows[:400] == again
    from regard.data.builtin.sales import _means

    errors = [float(row[2]) - mean for row, (_, _, mean) in zip(rows, _means(4_000, 0), strict=True)]
    assert np.std(errors) == pytest.approx(NOISE, rel=0.03)


def test_a_text_that_varies_in_one_series_is_no_name_of_series(tmp_path: Path):
    rows = [{"date": f"2024/1/{day}", "rain": day % 7, "weather": "wet" if day % 7 else "dry"} for day in range(1, 29)]
    table = read_series(rows)
    assert [series.name for series in table.series] == [""]
    assert (table.columns, table.inferred[1]) == (("rain",), "not used: weather, a text that varies in one series")
    stores = [{**row, "weather": name} for name in ("A", "B") for row in rows]
    assert [series.name for series in read_series(stores).series] == ["A", "B"]
