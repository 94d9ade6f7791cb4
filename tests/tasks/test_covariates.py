"""Covariates of series: what is known in advance, static ones, the calendar, and errors in one line."""

import csv
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.tables import write_csv
from tests.tiny import CPU, tiny

import regard
from regard.cli.main import main
from regard.data.formats.series import Clock, read_series
from regard.data.sources import NamedRows
from regard.errors import DataError
from regard.models.family import find_family, read_model_config
from regard.models.presets import find_preset
from regard.models.series import SeriesShape
from regard.tasks.forecasting.linear import LinearForecast
from regard.tasks.forecasting.model import evaluation_batches

WINDOW = {"horizon": 6, "input_length": 12}
PLAIN = {**WINDOW, "calendar": False}
FAMILIES = ["patchtst", "itransformer", "lstm-series", "linear", "series-seq2seq"]


def shop(count: int, *, future: int = 0, seed: int = 3) -> list[dict[str, Any]]:
    """Sales that depend on a price, on a kind of day and on noise only; none of the last steps is known."""
    rng = np.random.default_rng(seed)
    first, rows = date(2024, 1, 1), []
    for day in range(count + future):
        price, kind = round(float(rng.uniform(1, 3)), 2), ("plain", "holiday")[int(rng.random() < 0.3)]
        sold = round(20 - 4 * price + 6 * (kind == "holiday") + float(rng.normal(0, 0.1)), 3)
        sold = None if day >= count else sold
        rows.append({"day": str(first + timedelta(days=day)), "sold": sold, "price": price, "kind": kind})
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("covariates")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        return regard.train(
            write_csv(folder / "shop.csv", shop(220)), out=folder / "run", steps=20, device="cpu", show_progress=False,
            settings={"task": {**WINDOW, "known": ["price", "kind"]}},
        )  # fmt: skip


@pytest.mark.slow
def test_a_series_that_depends_on_covariates_alone_is_forecast_well_only_with_them(run: Any, tmp_path: Path):
    error = run.test().scores["mse"].value
    rows = [{name: row[name] for name in ("day", "sold")} for row in shop(220)]
    settings = {"task": WINDOW}
    blind = regard.train(rows, out=tmp_path / "run", steps=20, device="cpu", show_progress=False, settings=settings)
    assert error < 0.05
    assert blind.test().scores["mse"].value > 0.5


def test_a_forecast_reads_the_covariates_of_rows_without_targets(
    run: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
):
    rows = shop(60, future=6, seed=5)
    path = write_csv(tmp_path / "new.csv", rows)
    monkeypatch.setattr("sys.argv", ["regard", "forecast", str(run.path), str(path), "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    found = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["time"] for row in found] == [row["day"] for row in rows[60:]]
    expected = [20 - 4 * row["price"] + 6 * (row["kind"] == "holiday") for row in rows[60:]]
    np.testing.assert_allclose([float(row["point"]) for row in found], expected, atol=1.2)
    cheaper = [{**row, "price": 1.0} if row["sold"] is None else row for row in rows]
    points = run.forecast(cheaper)[0].point
    assert all(point >= float(row["point"]) - 0.3 for point, row in zip(points, found, strict=True))


def test_a_text_has_the_covariates_of_the_steps_to_forecast(run: Any):
    rows = shop(30, future=6)
    categories = run.task.codec.covariates[1].categories
    steps = [f"{row['sold'] or 'nan'},{row['price']},{categories.index(row['kind'])}" for row in rows]
    text = f"@{rows[0]['day']} {' '.join(steps)}"
    points = [float(step) for step in run.predict(text).split()]
    assert points == pytest.approx(run.forecast(rows)[0].point, rel=1e-3)
    with pytest.raises(DataError, match=r"needs price, kind at each of the next 6 steps.*got 4"):
        run.predict(" ".join(text.split()[:-2]))


def test_a_longer_horizon_needs_and_uses_more_covariates(run: Any):
    rows = shop(60, future=11, seed=7)
    found = run.forecast(rows, horizon=11)[0].point
    expected = [20 - 4 * row["price"] + 6 * (row["kind"] == "holiday") for row in rows[60:]]
    np.testing.assert_allclose(found, expected, atol=1.5)


def test_a_missing_future_covariate_is_one_line_with_its_column_and_time(run: Any):
    rows = shop(60, future=6)
    with pytest.raises(DataError, match="price is known in advance and has no value for 2024-03-03"):
        run.forecast([{**row, "price": None} if n == 62 else row for n, row in enumerate(rows)])
    with pytest.raises(DataError, match=r"price .* no value for 2024-03-05: a forecast of 6 steps needs a row"):
        run.forecast(rows[:-2])
    with pytest.raises(DataError, match="price"):
        run.forecast([{name: row[name] for name in ("day", "sold", "kind")} for row in rows])


def test_a_category_that_was_not_in_the_training_part_has_no_effect(run: Any):
    rows = shop(60, future=6)
    new = [{**row, "kind": "strike"} if row["sold"] is None else row for row in rows]
    tables = [read_series(some, covariates=run.task.codec.covariates) for some in (rows, new)]
    features = [run.task.codec.features(None, table.series[0].covariates) for table in tables]
    assert run.task.codec.num_covariate_features == 3
    assert not features[1][-6:, 1:3].any()
    assert features[0][-6:, 1:3].any(axis=1).all()


def test_columns_of_text_that_are_constant_in_each_series_are_static():
    rows = [
        {"day": str(date(2024, 1, 1) + timedelta(days=day)), "region": region, "shop": name, "sold": day % 5 + n}
        for n, (name, region) in enumerate([("a", "north"), ("b", "south"), ("c", "north")])
        for day in range(70)
    ]
    table = read_series(rows)
    assert [(each.name, each.is_static, each.categories) for each in table.covariates] == [
        ("region", True, ("north", "south"))
    ]
    assert [each.name for each in table.series] == ["a", "b", "c"]
    assert any("static: region" in note for note in table.inferred)
    found = tiny("forecasting", NamedRows(rows), preset="linear-tiny", **PLAIN)
    assert found.task.num_features == 2
    sizes = [dict(row, size=day) for day, row in enumerate(rows)]
    with pytest.raises(DataError, match="size is a static covariate and must have one value for the series 'a'"):
        read_series(sizes, static=["size"])


def test_the_calendar_is_used_where_it_lowers_the_error_of_a_linear_forecast():
    rng = np.random.default_rng(0)
    first = datetime(2024, 1, 1)
    times = [first + timedelta(hours=6 * step) for step in range(400)]
    bumps = [5.0 * (time.weekday() == 5) + rng.normal(0, 0.3) for time in times]
    rows = NamedRows([{"time": time.isoformat(), "load": load} for time, load in zip(times, bumps, strict=True)])
    found = tiny("forecasting", rows, preset="linear-tiny", horizon=4, input_length=8)
    assert found.task.codec.calendar == ("day", "week")
    assert found.task.settings.calendar
    plain = NamedRows([{"time": time.isoformat(), "load": rng.normal()} for time in times])
    assert not tiny("forecasting", plain, preset="linear-tiny", horizon=4, input_length=8).task.settings.calendar
    batch = next(iter(found.task.row_batches(found.data.held_out["test"])))
    _, start, text = found.data.held_out["test"][0]
    saturdays = batch.features[0, :, 6 + 5]
    expected = [(datetime.fromisoformat(start) + timedelta(hours=6 * step)).weekday() == 5 for step in range(12)]
    assert saturdays.tolist() == [float(each) for each in expected]
    predictor = found.predict(found.build(std=0.1), [f"@{start.replace(' ', 'T')} {text}"])
    assert len(predictor[0].output.split()) == 4
    with pytest.raises(DataError, match="must begin with the time of its first step"):
        found.predict(found.build(std=0.1), [text])


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_reads_covariates_and_only_its_own_future(kind: str):
    rows = NamedRows(shop(90))
    found = tiny("forecasting", rows, preset=f"{kind}-tiny", known=["price", "kind"], **PLAIN)
    model = found.build(std=0.2)
    batch = next(iter(found.task.row_batches(found.data.held_out["test"])))
    outputs = model(batch.values, batch.features).point
    changed = batch.features.clone()
    changed[:, 12 + 2] += 1.0
    difference = (model(batch.values, changed).point - outputs).abs().amax(dim=(0, 2))
    assert difference[2] > 1e-3
    if kind != "series-seq2seq":
        assert difference[[0, 1, 3, 4, 5]].max() < 1e-9
    loss = found.task.loss(model.train(), batch)
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_decoder_has_a_position_for_each_patch_of_the_forecast():
    config = read_model_config({**find_preset("series-seq2seq")[1], "dropout": 0.0})
    family: Any = find_family(config.family)
    torch.manual_seed(0)
    body = family.build(config, shape=SeriesShape(37, 3, horizon=20, num_features=2)).eval()
    assert body.num_positions == -(-20 // 9)
    assert body.steps_per_position == 9
    values, features = torch.randn(2, 37, 3), torch.randn(2, 57, 2)
    found = body.encode(values, features=features).hidden_states
    assert found.shape == (2, 3 * 3, body.width)
    changed = features.clone()
    changed[:, :37] += 1.0
    assert torch.equal(body.encode(values, features=changed).hidden_states, found)


def test_the_linear_forecast_is_ridge_regression():
    rng = np.random.default_rng(1)
    values = rng.normal(size=150).cumsum()
    rows = NamedRows([{"time": step, "value": float(value)} for step, value in enumerate(values)])
    found = tiny("forecasting", rows, preset="linear-tiny", horizon=3, input_length=7)
    model, segments = found.build(), found.data.train.segments
    assert found.task.solve(model, found.data)
    starts = range(len(segments.values) - 9)
    x = np.stack([segments.values[start : start + 7, 0] for start in starts]).astype(np.float64)
    y = np.stack([segments.values[start + 7 : start + 10, 0] for start in starts]).astype(np.float64)
    x, y = x - x.mean(axis=1, keepdims=True), y - x.mean(axis=1, keepdims=True)
    gram = x.T @ x
    candidates = [
        np.linalg.solve(gram + strength * np.trace(gram) / 7 * np.eye(7), x.T @ y)
        for strength in (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0)
    ]
    weight = model.linear.weight.double().numpy()
    assert min(np.abs(weight - each).max() for each in candidates) < 1e-5
    errors = []
    for each in candidates:
        batches = evaluation_batches(found.data.valid.segments, found.task.codec, stride=1, num_features=0)
        (batch,) = batches
        read = batch.values.double().numpy()[..., 0]
        mean = read.mean(axis=1, keepdims=True)
        errors.append((((read - mean) @ each + mean - batch.targets.double().numpy()[..., 0]) ** 2).mean())
    assert np.abs(weight - candidates[int(np.argmin(errors))]).max() < 1e-5


def test_the_average_has_the_smallest_weight_of_the_network_within_a_standard_error_of_the_best():
    torch.manual_seed(0)
    linear = LinearForecast(SeriesShape(5, 2, 3))
    own, network, noise = (torch.randn(400, 3, 2) for _ in range(3))
    known = torch.rand(400, 3, 2) < 0.8
    spans = torch.arange(400) // 10
    for noise_std, lowest, highest in ((0.0, 0.79, 0.81), (0.5, 0.7, 0.85), (30.0, 0.0, 0.05)):
        targets = torch.where(known, 0.8 * network + 0.2 * own + noise_std * noise, 1e6)
        linear.fit_weight(network, own, targets, known, spans)
        assert lowest <= linear.network_weight.item() <= highest
    linear.fit_weight(network[:10], own[:10], (0.6 * network + 0.4 * own)[:10], known[:10] | True, spans[:10])
    assert linear.network_weight.item() == pytest.approx(0.6)
    average = network + linear.shift(network, own)
    weight = linear.network_weight
    torch.testing.assert_close(average, weight * network + (1 - weight) * own)


def test_a_model_in_training_is_the_network_alone():
    rows = NamedRows([{"time": step, "value": float(step % 7) + 0.1 * step} for step in range(90)])
    found = tiny("forecasting", rows, preset="linear-tiny", horizon=3, input_length=14)
    model = found.build(std=0.1)
    assert found.task.solve(model, found.data)
    found.task.blend(model, found.task.validation_batches(found.data), CPU)
    assert 0 <= model.linear.network_weight < 0.2
    batch = next(iter(found.task.validation_batches(found.data)))
    network = model.network(batch.values)[..., 0]
    assert torch.equal(model.train()(batch.values).point, network)
    blended = model.eval()(batch.values).point
    assert (blended - batch.targets).square().mean() < 0.1 * (network - batch.targets).square().mean()
    without = tiny("forecasting", rows, preset="linear-tiny", horizon=3, input_length=14, linear=False)
    assert not without.task.solve(without.build(), without.data)


def test_rows_are_averaged_to_equal_steps():
    rows = [
        {"time": "2024-01-01T00:10", "load": 1.0, "kind": "x"},
        {"time": "2024-01-01T00:50", "load": 3.0, "kind": "y"},
        {"time": "2024-01-01T01:05", "load": None, "kind": "x"},
        {"time": "2024-01-01T03:00", "load": 7.0, "kind": "x"},
    ]
    table = read_series(rows, known=["kind"], resample="1 hour")
    (series,) = table.series
    assert table.clock == Clock("seconds", 3600.0)
    assert series.first == "2024-01-01"
    assert series.values[:, 0].tolist() == [2.0, 2.0, 2.0, 7.0]
    assert series.observed[:, 0].tolist() == [True, False, False, True]
    assert series.covariates[[0, 1, 3], 0].tolist() == [1.0, 0.0, 0.0]
    assert any("resampled to steps of 1 hour: 4 rows are averaged to 3" in note for note in table.inferred)
    months = read_series([{"time": f"2024-0{1 + n // 3}-{10 + n % 3}", "load": n} for n in range(6)], resample="month")
    assert months.series[0].values[:, 0].tolist() == [1.0, 4.0]
    with pytest.raises(DataError, match=r"task\.resample must be a step such as 1 hour"):
        read_series(rows, known=["kind"], resample="1 fortnight")


def test_columns_in_memory_are_read_as_rows_are():
    rows = shop(30)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns["day"] = columns["day"].astype("datetime64[D]")
    one, other = read_series(rows, known=["price", "kind"]), read_series(columns, known=["price", "kind"])
    assert one.series[0].first == other.series[0].first
    assert one.covariates == other.covariates
    np.testing.assert_array_equal(one.series[0].values, other.series[0].values)
    np.testing.assert_array_equal(one.series[0].covariates, other.series[0].covariates)
    with pytest.raises(DataError, match="columns must be as long as each other"):
        read_series({"day": [1, 2], "sold": [1]})
