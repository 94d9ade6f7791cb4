"""Risks of events that need not be the next one: against processes whose risks are known."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from tests.cli.conftest import call

import regard
from regard.data.builtin import patients
from regard.data.codecs.events import EventCodec
from regard.data.formats.events import EventColumns, EventHistory, read_events
from regard.tasks.event_prediction.model import ConstantRates, make_event_batch
from regard.tasks.event_prediction.simulation import EventSimulator
from regard.tasks.event_prediction.task import HistoryPredictor

EVENTS = ("a", "b", "c")
RATES = np.array([[0.3, 0.2, 0.1], [0.1, 0.9, 0.2], [0.7, 0.1, 0.4], [0.2, 0.5, 0.3]])
"""Of each event after the start, and after each event."""
HORIZONS = torch.tensor([0.7, 2.3])


def simulated(histories: list[str], *, paths: int = 4_000, seed: int = 0, max_entries: int = 512) -> Any:
    codec = EventCodec(events=EVENTS, counts=(1, 1, 1))
    encoded = [codec.to_columns(codec.read(text)) for text in histories]
    batch = make_event_batch([[np.array(each[place]) for each in encoded] for place in range(3)])
    model = ConstantRates(RATES)
    simulator = EventSimulator(model, codec, paths, seed, max_entries)
    return simulator.risks(batch.source, batch.lengths, torch.zeros(len(histories)), HORIZONS.to(batch.source.dtype))


def chain_risk(last: int, event: int, horizon: float) -> float:
    """The probability that a Markov chain in continuous time reaches an event: the event is made absorbing."""
    generator = RATES @ np.eye(4)[1:]
    generator[np.arange(4), np.arange(4)] = 0.0  # an event that repeats itself changes nothing
    generator[event] = 0.0
    first = RATES[last, event - 1] if last == event else 0.0
    size = 5  # where the event was the last one already, its next occurrence is another state
    whole = np.zeros((size, size))
    whole[:4, :4] = generator
    if last == event:
        whole[event, :4] = RATES[last] @ np.eye(4)[1:]
        whole[event, event] = 0.0
        whole[:, 4] = np.where(np.arange(size) == event, first, whole[:, event])
        whole[np.arange(size) != event, event] = 0.0
        goal = 4
    else:
        goal = event
    whole[np.arange(size), np.arange(size)] -= whole.sum(axis=1)
    return float(expm(whole * horizon)[last, goal])


@pytest.mark.parametrize("last", [1, 3])
def test_a_markov_chain_has_the_risks_of_its_generator(last: int):
    history = f'[[0, null], [1, "{EVENTS[last - 1]}"]]'
    found = simulated([history])
    for place, horizon in enumerate(HORIZONS.tolist()):
        for event in (1, 2, 3):
            risk, error = float(found.risks[0, place, event - 1]), float(found.errors[0, place, event - 1])
            assert 0 < error < 0.009
            assert abs(risk - chain_risk(last, event, horizon)) < 4 * error


def test_the_standard_error_is_the_spread_of_estimates_with_other_seeds():
    history = '[[0, null], [1, "b"]]'
    estimates = [simulated([history], paths=50, seed=seed) for seed in range(60)]
    spread = torch.stack([each.risks for each in estimates]).std(dim=0)
    stated = torch.stack([each.errors for each in estimates]).mean(dim=0)
    # The standard deviation of 60 estimates is itself known to about 9 %.
    torch.testing.assert_close(spread, stated, rtol=0.35, atol=0.0)


def test_paths_depend_on_the_seed_and_not_on_the_rest_of_the_batch():
    one, other = '[[0, null], [1, "b"]]', '[[0, null], [0.5, "a"], [0.75, "c"], [2, "a"]]'
    alone, together = simulated([one], paths=20), simulated([other, one], paths=20)
    torch.testing.assert_close(alone.risks[0], together.risks[1])
    assert not torch.equal(simulated([one], paths=20, seed=1).risks, alone.risks)


def test_of_a_long_history_the_last_entries_are_read():
    """The rates depend on the last event alone, so that nothing changes."""
    history = '[[0, null], [1, "a"], [2, "c"], [3, "b"]]'
    torch.testing.assert_close(
        simulated([history], paths=20, max_entries=4).risks, simulated([history], paths=20).risks
    )


def test_values_of_drawn_events_are_an_autoregression_of_the_training_values():
    rng = np.random.default_rng(3)
    histories = []
    for _ in range(300):
        value, entries = rng.normal(), [[0, None]]
        for place in range(20):
            value = 0.8 * value + 0.6 * rng.normal()
            entries.append([place + 1, "a", 5 + 2 * value] if place % 2 else [place + 1, "b", None])
        histories.append(str(entries).replace("None", "null").replace("'", '"'))
    codec = EventCodec.fit(histories, unit="", values=("x",))
    of_a = codec.events.index("a")
    assert (codec.value_shares[of_a], codec.value_shares[1 - of_a]) == (1.0, 0.0)
    assert codec.value_memories[of_a] == pytest.approx(0.8**2, abs=0.05)
    assert codec.value_stds[of_a] == pytest.approx(1.0, abs=0.01)
    assert EventCodec.from_json(codec.to_json()) == codec


def true_risks(history: EventHistory, horizon: float, paths: int, seed: int) -> list[float]:
    """By simulation of the process of `patients`, one path after the other."""
    rng, decay = random.Random(seed), patients._DECAY
    state: tuple[Any, ...] = ([0.0] * 4, False, 0.0)

    def after(state: tuple[Any, ...], wait: float) -> tuple[Any, ...]:
        return ([each * math.exp(-rate * wait) for each, rate in zip(state[0], decay, strict=True)], *state[1:])

    def with_event(state: tuple[Any, ...], kind: int, marker: float) -> tuple[Any, ...]:
        caused = zip(state[0], patients._EXCITATION[kind], decay, strict=True)
        excited = [each + more * rate for each, more, rate in caused]
        return excited, kind == 1 or (state[1] and kind != 2), marker if kind == 0 else state[2]

    now = 0.0
    for time, event, value in zip(history.times, history.events, history.values[:, 0], strict=True):
        state, now = with_event(after(state, time - now), patients.EVENTS.index(event), value), time
    state, counts = after(state, history.end - now), [0] * 4
    for _ in range(paths):
        current, now, seen = state, 0.0, set()
        while True:
            rates = [base + each for base, each in zip(patients._BASE, current[0], strict=True)]
            bound = sum(rates) * 10  # above every intensity, whatever the marker
            wait = rng.expovariate(bound)
            now, current = now + wait, after(current, wait)
            if now > horizon:
                break
            rates = [base + each for base, each in zip(patients._BASE, current[0], strict=True)]
            rates[2] *= (patients._TREATED if current[1] else 1.0) * math.exp(patients._MARKER_EFFECT * current[2])
            drawn, kind = rng.random() * bound, 0
            while kind < 4 and drawn >= rates[kind]:
                drawn, kind = drawn - rates[kind], kind + 1
            if kind < 4:
                marker = patients._MARKER_MEMORY * current[2] + patients._MARKER_NOISE * rng.gauss(0, 1)
                current = with_event(current, kind, marker)
                seen.add(kind)
        counts = [count + (kind in seen) for kind, count in enumerate(counts)]
    return [count / paths for count in counts]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("events")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        settings = {"task": {"horizons": [30.0]}, "data": {"num_rows": 3_000}}
        return regard.train("patients", out=folder / "run", steps=120, settings=settings, device="cpu",
                            show_progress=False)  # fmt: skip


@pytest.mark.slow
def test_a_trained_model_is_near_the_risks_of_the_true_process(run: Any):
    rows = [dict(zip(("subject", "time", "event", "marker"), row, strict=True))
            for row in patients.generate_patients(500, 5)]  # fmt: skip
    codec = run.task.codec
    whole = read_events(rows, EventColumns(), values=codec.values, unit=codec.unit).histories
    cut = [replace(each, times=each.times[:n], events=each.events[:n], values=each.values[:n],
                   end=float(each.times[n]) - 0.01)
           for each in whole for n in (5, 9) if len(each.events) > n]  # fmt: skip
    predict: Any = HistoryPredictor(run.task, run.model, num_paths=60, seed=0)
    found = predict([each.to_text() for each in cut])
    truth = np.array([true_risks(each, 30.0, 150, place) for place, each in enumerate(cut)])
    within, next_one = (
        np.array([[each.details[name]["30"][event] for event in patients.EVENTS] for each in found])
        for name in ("risks_within", "risks")
    )
    assert len(cut) > 10
    assert np.abs(within - truth).mean() < 0.5 * np.abs(next_one - truth).mean()
    np.testing.assert_allclose(within.mean(axis=0), truth.mean(axis=0), atol=0.12)
    assert (within >= next_one - 1e-6).all()


@pytest.mark.slow
def test_the_table_has_risks_and_standard_errors_unless_no_path_is_drawn(run: Any, tmp_path: Path):
    rows = [dict(zip(("subject", "time", "event", "marker"), row, strict=True))
            for row in patients.generate_patients(60, 5)]  # fmt: skip
    first = run.predict_table(rows, num_paths=8, seed=3)
    assert first == run.predict_table(rows, num_paths=8, seed=3)
    assert first != run.predict_table(rows, num_paths=8, seed=4)
    assert all(0 <= row["within_30_relapse"] <= 1 and row["within_30_relapse_se"] > 0 for row in first)
    assert not any(name.startswith("within") for name in run.predict_table(rows, num_paths=0)[0])
    path = tmp_path / "new.csv"
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    answer = call("predict", str(run.path), str(path), "--paths", "8", "--seed", "3", "--out", str(tmp_path / "n.csv"))
    assert answer.code == 0
    assert f"{first[0]['within_30_relapse']}" in (tmp_path / "n.csv").read_text().splitlines()[1]
    call("predict", str(run.path), str(path), "--paths", "1").fails_with("at least 2 paths, or not at all by 0, got 1")
    call("predict", str(run.path), "[[0, null]]", "--paths", "9").fails_with("--paths needs --file")
