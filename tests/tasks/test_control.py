"""Control: what is read, how it is split into windows and scored, rollouts, and errors in one line."""

import json
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli.conftest import call
from tests.tiny import tiny

import regard
from regard.data.codecs.episodes import EpisodeCodec
from regard.data.formats.episodes import Episode, open_episodes, parse_episode
from regard.data.sources import NamedRows
from regard.errors import ConfigError, DataError, RunError
from regard.models.family import find_family, read_model_config
from regard.models.presets import find_preset
from regard.models.trajectories import TrajectoryShape
from regard.runs.rollout import EnvironmentMissingError, Environments
from regard.tasks import find_task, make_task
from regard.tasks.capabilities import PolicyProvider, capability

gymnasium = pytest.importorskip("gymnasium")
TRAIN: dict[str, Any] = {"device": "cpu", "show_progress": False}


def episodes(count: int, *, is_discrete: bool = True, length: int = 9) -> list[dict[str, Any]]:
    """Episodes in which the action is given by the observation, and its reward by the action."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        seen = rng.normal(size=(int(rng.integers(1, length + 1)), 4)).round(4)
        chosen = (seen[:, 0] > 0).astype(int) if is_discrete else (seen[:, :1] * 2 + 1).round(4)
        rewards = rng.normal(size=len(seen)).round(3)
        found.append({"observations": seen.tolist(), "actions": chosen.tolist(), "rewards": rewards.tolist()})
    return found


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run for CartPole-v1 on random actions."""
    folder = tmp_path_factory.mktemp("control")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        regard.rollout(env="CartPole-v1", episodes=40, record=folder / "random.jsonl")
        return regard.train(
            folder / "random.jsonl", out=folder / "run", steps=4, settings={"task": {"window": 5}}, **TRAIN
        )


def test_a_file_of_episodes_is_recognized_and_has_a_baseline(run: Any):
    assert run.task.name == "control"
    assert run.settings.preset == "decision-transformer-tiny"
    assert run.baseline.name == "logistic regression on observations"
    scores = run.evaluate(log=False).scores
    assert set(scores) == {"action_accuracy", "episode_accuracy", "action_loss"}
    assert run.task.codec.num_actions == 2
    assert run.task.target_return == run.task.codec.best_return


def test_a_certificate_bounds_the_mean_over_episodes_of_the_share_of_right_actions(run: Any):
    """Chernoff's bound from the mean alone: KL(mean, bound) = ln(2M / delta) / n, solved for the bound."""
    certificate = run.certificate()
    found = certificate.validation
    assert found is not None
    assert found.metric == "episode_accuracy"
    evaluation = run.evaluate(log=False)
    rows, examples = evaluation.rows, evaluation.examples
    assert len(rows) > 1
    assert found.value == pytest.approx(np.mean(np.divide(examples.num_correct, examples.num_tokens)), abs=1e-6)
    assert found.value != pytest.approx(evaluation.scores["action_accuracy"].value, abs=1e-4)
    assert found.num_examples == len(rows)
    assert found.best is not None
    limit = math.log(2 * found.num_candidates / certificate.delta) / len(rows)
    for bound in found.best.interval:
        if 0 < bound < 1:
            divergence = found.value * math.log(found.value / bound)
            divergence += (1 - found.value) * math.log((1 - found.value) / (1 - bound))
            assert divergence == pytest.approx(limit, rel=1e-6)
    answer = call("certificate", str(run.path))
    assert answer.code == 0
    assert "action accuracy of an episode" in answer.out
    assert run.certificate("action_accuracy").validation.best is None


def test_returns_to_go_are_sums_of_the_rewards_that_follow():
    records = episodes(7)
    codec = EpisodeCodec.fit(json.dumps(record) for record in records)
    steps = codec.read_steps([json.dumps(record) for record in records])
    wanted = [sum(record["rewards"][step:]) for record in records for step in range(len(record["rewards"]))]
    np.testing.assert_allclose(steps.returns * codec.return_scale, wanted, atol=1e-5)
    assert codec.return_scale == pytest.approx(np.abs(wanted).max())
    observations = np.concatenate([record["observations"] for record in records])
    np.testing.assert_allclose(steps.observations.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(
        steps.observations * observations.std(axis=0) + observations.mean(axis=0), observations, atol=1e-5
    )


@pytest.mark.parametrize("is_discrete", [True, False])
def test_a_codec_restores_episodes(is_discrete: bool):
    texts = [json.dumps(record) for record in episodes(3, is_discrete=is_discrete)]
    codec = EpisodeCodec.fit(texts)
    assert codec.is_discrete is is_discrete
    restored = EpisodeCodec.from_json(codec.to_json()).decode(codec.encode(texts))
    for text, again in zip(texts, restored, strict=True):
        one, other = json.loads(text), json.loads(again)
        for name, values in one.items():
            np.testing.assert_allclose(values, other[name], rtol=1e-6)


def test_every_action_is_scored_once_and_with_the_steps_before_it():
    """By a model whose output is read from a single history."""
    found = tiny("control", NamedRows(episodes(20)), preset="decision-transformer-tiny", window=4)
    model = found.build(std=0.2)
    rows = found.data.held_out["valid"]
    batches = found.task.row_batches(rows)
    assert sum(int(batch.known.sum()) for batch in batches) == sum(len(json.loads(row[0])["actions"]) for row in rows)
    losses = []
    for row in rows:
        record = json.loads(row[0])
        total = sum(record["rewards"])
        nll = 0.0
        for step, action in enumerate(record["actions"]):
            history = {
                "observations": record["observations"][: step + 1], "actions": record["actions"][:step],
                "rewards": record["rewards"][:step], "return": total,
            }  # fmt: skip
            (prediction,) = found.predict(model, [json.dumps(history)])
            assert prediction.probabilities is not None
            nll -= np.log(prediction.probabilities[str(action)])
        losses.append(nll)
    assert found.likelihoods(model, rows).losses == pytest.approx(losses, rel=1e-3)


@pytest.mark.parametrize("preset", ["decision-transformer-tiny", "lstm-control-tiny"])
def test_a_hidden_state_depends_on_earlier_steps_only(preset: str):
    torch.manual_seed(0)
    shape = TrajectoryShape(3, 5, num_steps=7)
    config = read_model_config({**find_preset(preset)[1], "dropout": 0.0})
    family: Any = find_family(config.family)
    model = family.build(config, shape=shape).eval()
    steps = torch.randn(2, 7, sum(shape.widths))
    other = steps.clone()
    other[:, 4:] += 1.0
    one, two = model.encode(steps).hidden_states, model.encode(other).hidden_states
    torch.testing.assert_close(one[:, :4], two[:, :4])
    assert (one[:, 4:] - two[:, 4:]).abs().min(dim=-1).values.max() > 0
    changed = steps.clone()
    changed[:, 3, 3] += 1.0  # the return-to-go
    assert not torch.equal(one[:, 3], model.encode(changed).hidden_states[:, 3])


@pytest.mark.slow
def test_the_best_return_is_reached_by_conditioning_on_it(tmp_path: Path):
    """Two policies, one with a reward: a model with returns imitates the one whose return it is told."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(200):
        action = number % 2
        seen = rng.normal(size=(4, 2)).round(3).tolist()
        records.append({"observations": seen, "actions": [action] * 4, "rewards": [float(action)] * 4})
    run = regard.train(
        records, task="control", out=tmp_path / "run", steps=60, settings={"task": {"window": 4}}, **TRAIN
    )
    start = {"observations": [[0.0, 0.0]]}
    assert run.predict(json.dumps(start)) == "1"
    assert run.predict(json.dumps({**start, "return": 0})) == "0"
    assert run.predict(json.dumps({**start, "return": 4})) == "1"


@pytest.mark.slow
def test_actions_of_numbers_are_learned_and_stay_in_their_range(tmp_path: Path):
    records = episodes(120, is_discrete=False)
    run: Any = regard.train(
        records, out=tmp_path / "run", steps=150, model="lstm-control-tiny",
        settings={"task": {"window": 3, "use_returns": False}}, **TRAIN,
    )  # fmt: skip
    assert run.baseline.name == "ridge regression on observations"
    assert run.baseline.score < 1e-3
    scores = run.evaluate(log=False).scores
    spread = np.var(np.concatenate([record["actions"] for record in records]))
    assert scores["action_mse"].value < 0.2 * spread
    codec = run.task.codec
    (value,) = json.loads(run.predict(json.dumps({"observations": [[0.5, 0, 0, 0]]})))
    assert codec.action_low[0] < value < codec.action_high[0]
    assert codec.restore_actions(np.array([[1e3], [-1e3]])).tolist() == [[codec.action_high[0]], [codec.action_low[0]]]


def test_a_rollout_reports_returns_and_records_episodes_that_can_be_read(run: Any, tmp_path: Path):
    found = run.rollout("CartPole-v1", episodes=6, seed=5, record=tmp_path / "more.jsonl", epsilon=0.3)
    assert found.returns == [float(length) for length in found.lengths]
    low, high = found.interval
    assert low <= found.mean_return <= high
    table = open_episodes(tmp_path / "more.jsonl")
    read = [parse_episode(json.loads(row.values[0])) for row in table]
    assert [len(each.actions) for each in read] == found.lengths
    again = run.rollout("CartPole-v1", episodes=6, seed=5, epsilon=0.3)
    assert again.returns == found.returns
    assert run.rollout("CartPole-v1", episodes=6, seed=6, epsilon=0.3).returns != found.returns


def test_episodes_that_are_stepped_together_are_those_that_are_stepped_alone(run: Any, monkeypatch: pytest.MonkeyPatch):
    together = run.rollout("CartPole-v1", episodes=5, seed=1)
    monkeypatch.setattr("regard.runs.rollout._MOST_TOGETHER", 1)
    alone = run.rollout("CartPole-v1", episodes=5, seed=1)
    assert alone.returns == together.returns
    for one, other in zip(alone.episodes, together.episodes, strict=True):
        np.testing.assert_array_equal(one.actions, other.actions)
        np.testing.assert_allclose(one.observations, other.observations)


def test_a_rollout_chooses_what_predict_returns_for_the_same_history(run: Any):
    (episode,) = run.rollout("CartPole-v1", episodes=1, seed=2, target_return=60).episodes
    for step in range(len(episode.actions)):
        history = Episode(episode.observations[: step + 1], episode.actions[:step], episode.rewards[:step])
        text = json.dumps({**json.loads(history.to_json()), "return": 60})
        assert run.predict(text) == str(episode.actions[step]), step


def test_actions_are_drawn_with_the_probabilities_of_the_model(run: Any):
    start = np.tile([0.0, 0.1, 0.02, -0.1], (4_000, 1))
    policy = run.task.policy(run.model, target_return=60, temperature=1.0)
    policy.reset(len(start))
    share = policy.act(np.arange(len(start)), start).mean()
    text = json.dumps({"observations": start[:1].tolist(), "return": 60})
    assert share == pytest.approx(run.predict_full([text])[0].probabilities["1"], abs=0.04)
    again = [run.rollout("CartPole-v1", episodes=3, temperature=1.0, seed=seed).lengths for seed in (3, 3)]
    assert again[0] == again[1]


def test_actions_of_numbers_in_an_environment(tmp_path: Path):
    regard.rollout(env="Pendulum-v1", episodes=8, record=tmp_path / "swings.jsonl")
    run = regard.train(
        tmp_path / "swings.jsonl", out=tmp_path / "run", steps=2, settings={"task": {"window": 3}}, **TRAIN
    )
    assert run.task.metric_names()[0] == "action_mse"
    found = run.rollout("Pendulum-v1", episodes=2)
    assert found.lengths == [200, 200]
    assert all(abs(each.actions).max() <= 2 for each in found.episodes)
    with pytest.raises(DataError, match="observations of the environment have 4 numbers, those of training 3"):
        run.rollout("CartPole-v1", episodes=1)


def test_an_animation_has_the_frames_of_the_first_episode(run: Any, tmp_path: Path):
    found = run.rollout("CartPole-v1", episodes=3, gif=tmp_path / "cart.gif")
    with Image.open(tmp_path / "cart.gif") as picture:
        assert picture.width == 300
        assert getattr(picture, "n_frames", 1) == pytest.approx(found.lengths[0] // 2, abs=1)


def test_arrays_of_minari_are_the_same_episodes(tmp_path: Path):
    records = episodes(5)
    arrays = {name: np.concatenate([record[name] for record in records]) for name in records[0]}
    ends = np.cumsum([len(record["actions"]) for record in records]) - 1
    terminations, truncations = np.zeros((2, len(arrays["rewards"])), bool)
    terminations[ends[::2]], truncations[ends[1::2]] = True, True
    np.savez(tmp_path / "all.npz", **arrays, terminations=terminations, truncations=truncations)  # pyright: ignore[reportArgumentType]  names
    rows = [json.loads(row.values[0]) for row in open_episodes(tmp_path / "all.npz")]
    assert [row["actions"] for row in rows] == [record["actions"] for record in records]
    assert [row["terminated"] for row in rows] == [True, False, True, False, True]
    np.savez(tmp_path / "objects.npz", observations=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="without Python objects"):
        list(open_episodes(tmp_path / "objects.npz"))


def test_behavior_cloning_reads_no_return(tmp_path: Path):
    found = tiny("control", NamedRows(episodes(20)), preset="decision-transformer-tiny", window=3, use_returns=False)
    model = found.build(std=0.2)
    texts = [json.dumps({"observations": [[1, 2, 3, 4]], "return": goal}) for goal in (0, 100)]
    one, other = found.predict(model, texts)
    assert one.probabilities == other.probabilities
    with pytest.raises(ConfigError, match="behavior cloning reads no return"):
        found.task.policy(model, target_return=3.0)


GOOD = {"observations": [[0.0, 1.0], [2.0, 3.0]], "actions": [0, 1], "rewards": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": None}, "no rewards"),
        ({"observations": [], "actions": [], "rewards": []}, "a length of 0"),
        ({"actions": [0]}, "2 observations, 1 action and 2 rewards"),
        ({"actions": [0, -1]}, "the action -1"),
        ({"actions": ["left", "right"]}, "actions that are not numbers"),
        ({"rewards": [1.0, float("nan")]}, "rewards that are not finite"),
        ({"observations": [[0.0], [1.0, 2.0]]}, "observations of different lengths"),
        ({"observations": [[[0.0]], [[1.0]]]}, "observations that are not vectors"),
        ({"observations": [[0.0], [1.0]]}, "observations of 1 number, and those of others have 2"),
        ({"actions": [0.5, 1.5]}, "actions that are numbers, and those of others are integers"),
    ],
)
def test_a_bad_episode_is_reported_with_its_line(change: dict[str, Any], message: str, tmp_path: Path):
    path = write(tmp_path / "some.jsonl", [GOOD, {**GOOD, **change}])
    with pytest.raises(DataError, match=rf"1 of 2 rows of some.jsonl has {message}.*: line 2"):
        list(open_episodes(path))


def test_bad_input_is_one_line_on_the_command_line(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    call("rollout", "--env", "CartPol-v1", "--random").fails_with(
        "there is no environment 'CartPol-v1'", "CartPole-v1?"
    )
    call("rollout", "--random").fails_with("name an environment")
    call("rollout", "--env", "CartPole-v1").fails_with("name a run, or --random")
    call("rollout", run.path, "--env", "Acrobot-v1").fails_with("have 6 numbers, those of training 4")
    call("rollout", "--env", "FrozenLake-v1", "--random").fails_with("must be vectors of numbers")
    call("rollout", run.path, "--env", "CartPole-v1", "--gif", "cart.mp4").fails_with(".gif")
    mixed = write(tmp_path / "mixed.jsonl", [*episodes(30), *episodes(30, is_discrete=False)])
    call("train", mixed, "--out", tmp_path / "none", "--quiet").fails_with("actions that are")
    assert not (tmp_path / "none").exists()
    call("predict", run.path, '{"observations": [[1, 2]]}').fails_with("the history has observations of 2 numbers")
    call("predict", run.path, "left").fails_with("the history has invalid JSON")
    call("export", run.path, "--to", "gguf", "--out", tmp_path / "m.gguf").fails_with("onnx can represent it")


def test_without_gymnasium_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    import builtins

    original = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "gymnasium":
            raise ImportError
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(EnvironmentMissingError, match=r"regard\[control\]"):
        regard.rollout(env="CartPole-v1", episodes=1)


def test_models_of_other_tasks_cannot_act():
    task = make_task(find_task("seq2seq").Settings.read({"name": "seq2seq", "tokenizer": "words"}))
    with pytest.raises(RunError, match="rollouts are for control"):
        capability(task, PolicyProvider)


def test_an_interrupted_rollout_reports_the_episodes_that_are_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    original, count = Environments.step, 0

    def step(self: Environments, number: int, action: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3_000:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, number, action)

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(Environments, "step", step)
    answer = call("rollout", "--env", "CartPole-v1", "--random", "--episodes", 500, "--record", tmp_path / "some.jsonl")
    assert answer.code == 130
    assert "of 500 episodes are complete" in answer.err
    complete = len((tmp_path / "some.jsonl").read_text().splitlines())
    assert 0 < complete < 500
    assert f"over {complete} episodes of CartPole-v1" in answer.out
