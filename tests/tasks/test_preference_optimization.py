"""Preference optimization: references, masks, sampling in training, checkpoints, and bad input."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.data.builtin.ratings import generate_answers, generate_ratings, utility
from regard.data.sources import NamedRows
from regard.errors import ConfigError, DataError, RunError, StoppedError
from regard.nn.losses import IGNORED
from regard.runs.finetune import set_up_finetuning
from regard.runs.rewards import load_reward
from regard.tasks.content import Panel, Section
from regard.tasks.preference_optimization.progress import alignment_sections
from regard.tasks.preference_optimization.rollouts import Critic, answer_log_probs, join_answers, sample_answers
from regard.tasks.preference_optimization.task import PreferencePairs
from regard.training.checkpoints import load_checkpoint

MODEL = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 16}
UTILITY = "regard.data.builtin.ratings:utility"
NAMES = ("prompt", "chosen", "rejected", "rater")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "base"
    texts = list(generate_answers(400, 0))
    settings = {"model": MODEL, "task": {"tokenizer": "words", "ngrams": 0, "window": 16}}
    regard.train(texts, task="language-modeling", model="llama-tiny", out=path, steps=60, device="cpu", baseline=False,
                 settings=settings, show_progress=False)  # fmt: skip
    return path


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return [dict(zip(NAMES, row, strict=True)) for row in generate_ratings(400, 1)]


def aligned(base: Path, rows: list[dict[str, str]], out: Path, **options):
    task = {"max_tokens": 12, "evaluation_answers": 16, **options.pop("task", {})}
    settings = {"task": task, "train": {"precision": "float32", **options.pop("train", {})}}
    return regard.align(base, rows, out=out, device="cpu", settings=settings, show_progress=False, **options)


def trainer_of(base: Path, rows: list[dict[str, str]], method: str, *, how: str = "all", **task):
    values = {
        "task": {
            "name": "preference-optimization",
            "method": method,
            "max_tokens": 12,
            "evaluation_answers": 8,
            **task,
        },
        "train": {"max_steps": 4, "device": "cpu", "precision": "float32"},
        "data": {"train": ["(rows in memory)"]},
    }
    return set_up_finetuning(base, values, method=how, rows=NamedRows(rows))[2]


def test_only_the_tokens_of_the_answer_are_targets():
    tokens, targets = join_answers([[1, 5], [1, 7, 3]], [[4, 8, 2], [2]], 0)

    assert tokens.tolist() == [[1, 5, 4, 8], [1, 7, 3, 0]]
    assert targets.tolist() == [[4, 8, 2], [IGNORED, 2, IGNORED]]  # from the end of the shortest prompt on


@pytest.mark.parametrize("how", ["all", "lora"])
def test_the_reference_stays_the_base_while_the_model_is_trained(base, rows, how):
    trainer = trainer_of(base, rows, "dpo", how=how)
    batch = trainer.training_batch(0)
    assert isinstance(batch, PreferencePairs)
    assert batch.reference is not None
    before = batch.reference.clone()
    losses = [float(trainer._step(step)[0]) for step in range(1, 4)]
    flat, targets = (each.flatten(0, 1) for each in (batch.tokens, batch.targets))
    with torch.no_grad():
        own = answer_log_probs(trainer.model.eval(), flat, targets).sum(1).unflatten(0, (-1, 2))

    torch.testing.assert_close(trainer.training_batch(0).reference, before)
    assert losses[0] / batch.num_targets == pytest.approx(np.log(2), abs=1e-5)  # the model is its reference
    assert not torch.allclose(own, before, atol=1e-6)


def test_lora_needs_no_second_copy_of_the_model(base, rows):
    trainer = trainer_of(base, rows, "dpo", how="lora")
    with trainer.task._reference.applied() as frozen:
        assert frozen is trainer.model


def test_a_loss_with_a_reference_fails_without_one(base, rows):
    trainer = trainer_of(base, rows, "dpo")
    with pytest.raises(RunError, match="dpo needs the log-probabilities of a reference"):
        trainer.task.loss(trainer.model, trainer.batches.batch(0))


def test_the_order_of_the_pair_decides_the_sign(base, rows):
    trainer = trainer_of(base, rows, "dpo")
    trainer.fit()
    batch = trainer.training_batch(0)
    swapped = batch.with_tensors([None if each is None else each.flip(1) for each in batch.tensors()])

    assert trainer.task.loss(trainer.model, batch) < trainer.task.loss(trainer.model, swapped)


@pytest.mark.slow
def test_sampled_answers_are_from_the_distribution_of_the_model(base):
    """The frequencies of first tokens against their probabilities."""
    run = regard.load(base, device="cpu")
    prompt = run.tokenizer.prompt("write about cats and rain:")
    answers = sample_answers(run.model, run.tokenizer, [prompt] * 1_000, seed=3, max_tokens=1)
    counts = np.bincount([answer[0] for answer in answers], minlength=run.tokenizer.vocab_size)
    with torch.no_grad():
        expected = run.model(torch.tensor([prompt]))[0, -1].softmax(-1).numpy()

    errors = np.sqrt(expected * (1 - expected) / 1_000)
    assert (np.abs(counts / 1_000 - expected) < 5 * errors + 1e-3).all()
    assert all(len(answer) == 1 for answer in answers)


@pytest.mark.parametrize("method", ["reinforce", "ppo", "grpo"])
def test_rollouts_have_the_log_probabilities_and_advantages_of_their_samples(base, rows, method):
    trainer = trainer_of(base, rows, method, reward=UTILITY, samples=3, prompts=5)
    batch = trainer.training_batch(0)
    counts = batch.targets != IGNORED
    with torch.no_grad():
        own = answer_log_probs(trainer.model, batch.tokens, batch.targets)

    assert batch.tokens.size(0) == 15
    torch.testing.assert_close(own, batch.log_probs)
    torch.testing.assert_close(batch.reference, batch.log_probs)  # before the first step
    assert (batch.advantages[~counts] == 0).all()
    by_text = batch.advantages.sum(1) / counts.sum(1)
    if method == "ppo":
        assert batch.advantages[counts].mean() == pytest.approx(0, abs=1e-5)
        assert batch.advantages[counts].std(correction=0) == pytest.approx(1, abs=1e-3)
        assert batch.num_targets == counts.sum()
    elif method == "grpo":
        groups = by_text.view(5, 3)
        torch.testing.assert_close(groups.mean(1), torch.zeros(5), atol=1e-5, rtol=0)
        assert (groups.std(1) < 1 + 1e-5).all()
        assert (groups.std(1) > 0.9).any()
    else:
        texts = trainer.task.tokenizer.decode(
            [[int(t) for t in row[c]] for row, c in zip(batch.targets, counts, strict=True)]
        )
        prompts = trainer.task.tokenizer.decode([p for p in trainer.batches.batch(0).prompts for _ in range(3)])
        worth = torch.tensor([utility(*each) for each in zip(prompts, texts, strict=True)]).view(5, 3)
        expected = torch.stack([worth[:, i] - worth[:, [j for j in range(3) if j != i]].mean(1) for i in range(3)], 1)
        torch.testing.assert_close(by_text.view(5, 3), expected.to(by_text), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_the_first_evaluation_measures_how_long_the_next_ones_take(base, rows):
    """Under a time limit they are timed by it: that of a pass over all rows would leave no time for any."""
    trainer, seconds = trainer_of(base, rows, "reinforce", reward=UTILITY, prompts=3), []
    trainer.fit(lambda line: seconds.append(trainer.progress.evaluation_seconds))
    assert seconds[0] == 0.0
    assert all(each > 0.0 for each in seconds[1:])


def test_samples_are_used_for_several_updates_and_then_replaced(base, rows):
    trainer = trainer_of(base, rows, "ppo", reward=UTILITY, updates=2, prompts=3)
    first, second, third = (trainer.training_batch(number) for number in range(3))

    assert second is first
    assert not torch.equal(third.tokens, first.tokens) if third.tokens.shape == first.tokens.shape else True


def test_the_critic_finds_a_linear_value_of_earlier_states():
    states, weights = torch.randn(5_000, 7), torch.randn(7)
    critic = Critic(7, torch.device("cpu"))
    assert (critic.values(states) == 0).all()
    critic.add(states, states @ weights + 3.0)
    found = critic.values(torch.eye(7)) - critic.values(torch.zeros(1, 7))

    torch.testing.assert_close(found, weights, atol=0.1, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "ppo"])
def test_a_resumed_alignment_is_bit_for_bit_the_same(base, rows, tmp_path, method):
    """Also where it was interrupted between two updates with the same samples."""
    options = {"method": method, "prompts": 4, **({"reward": UTILITY} if method == "ppo" else {})}
    train = {"checkpoint_every": 1, "evaluate_every": 100, "schedule": "constant", "warmup_steps": 0}
    parts = aligned(base, rows, tmp_path / "parts", steps=3, train=train, task={"updates": 4}, **options)
    whole = aligned(base, rows, tmp_path / "whole", steps=6, train=train, task={"updates": 4}, **options)
    regard.train(rows, out=parts.path, steps=6, resume=True, show_progress=False)
    (one, _), (other, _) = (load_checkpoint(run.folder.checkpoints) for run in (whole, parts))

    assert one.keys() == other.keys()
    assert ("task:gram" in one) == (method == "ppo")
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.slow
def test_an_aligned_run_is_an_ordinary_run(base, rows, tmp_path):
    run = aligned(base, rows, tmp_path / "run", method="reinforce", reward=UTILITY, true_reward=UTILITY, steps=4,
                  prompts=4, train={"evaluate_every": 2})  # fmt: skip
    lines = [line for line in run.folder.read_metrics() if "kl" in line]

    assert [line["step"] for line in lines] == [0, 2, 4]
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert lines[0]["win_rate"] == 0.5
    assert {"reward", "true_reward", "length", "repetition", "diversity", "win_p", "gain_low"} <= lines[-1].keys()
    assert run.generate("write about cats and rain:", max_tokens=5, temperature=1.0)
    assert set(run.evaluate(rows).scores) == {"accuracy", "perplexity"}
    assert run.score(["write about cats and rain: purr"])[0].log_probability < 0
    page = (run.path / "report.html").read_text()
    assert "Rewards against the KL divergence from the base" in page
    regard.export_model(run.path, tmp_path / "hf", to="hf")
    again = aligned(run.path, rows, tmp_path / "again", method="dpo", steps=1, lora=True)
    assert again.settings.finetune.method == "lora"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["lines", "messages"])
def test_methods_that_sample_need_prompts_alone(base, rows, tmp_path, form):
    """The score is then the mean reward of sampled answers, which the reward of the run gives again."""
    prompts = list(dict.fromkeys(row["prompt"] for row in rows))
    data, task = tmp_path / "prompts.txt", {}
    if form == "lines":
        data.write_text("\n".join(prompts) + "\n")
    else:
        data, task = tmp_path / "prompts.jsonl", {"template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
        asked = [{"messages": [{"role": "user", "content": prompt}]} for prompt in prompts]
        data.write_text("".join(json.dumps(row) + "\n" for row in asked))
    run = aligned(base, data, tmp_path / "run", method="grpo", reward=UTILITY, steps=2, prompts=3, task=task)
    scores = run.evaluate().scores
    held_out = run.folder.read_held_out("valid")
    encoded = [prompt for batch in run.task.row_batches(held_out) for prompt in batch.prompts]
    answers = sample_answers(run.model, run.tokenizer, encoded, seed=1, max_tokens=12)
    found = [utility(*each) for each in zip(*map(run.tokenizer.decode, (encoded, answers)), strict=True)]

    assert {len(row) for row in held_out} == {1}
    assert set(scores) == {"mean_reward"}
    assert run.settings.task.has_answers is False
    assert scores["mean_reward"].value == pytest.approx(np.mean(found))
    assert "mean reward" in (run.path / "report.html").read_text().lower()
    assert run.evaluate(rows).scores["mean_reward"].value  # of their prompts


@pytest.mark.slow
@pytest.mark.parametrize("messages", [1, 2])
def test_a_reward_reads_prompts_as_the_rows_have_them_not_as_the_template_writes_them(
    base, rows, tmp_path, monkeypatch, messages
):
    """In training, in evaluations of training, and in those of the run."""
    seen: set[str] = set()
    monkeypatch.setattr("regard.data.builtin.ratings.utility", lambda prompt, answer: float(bool(seen.add(prompt))))
    template = "{% for m in messages %}note and {{ m.content }} {% endfor %}"
    prompts = [[{"role": "system", "content": "tell"}, {"role": "user", "content": row["prompt"]}] for row in rows[:60]]
    asked = [{"prompt": each[-messages:]} for each in prompts]
    run = aligned(
        base, asked, tmp_path / "run", method="grpo", reward=UTILITY, steps=1, prompts=3, task={"template": template}
    )
    expected = {each[-1]["content"] if messages == 1 else json.dumps(each) for each in prompts}

    assert seen
    assert {json.dumps(json.loads(each)) if messages > 1 else each for each in seen} <= expected
    seen.clear()
    assert run.evaluate().scores["mean_reward"].value == 0.0
    assert {json.dumps(json.loads(each)) if messages > 1 else each for each in seen} <= expected


def test_prompts_alone_teach_no_method_that_learns_from_pairs(base, tmp_path):
    rows = [{"prompt": f"write about cats and rain {number}:"} for number in range(20)]
    with pytest.raises(DataError, match="prompts alone are for methods that sample answers"):
        aligned(base, rows, tmp_path / "run", method="dpo", steps=1)
    assert not (tmp_path / "run").exists()


def test_answers_are_sampled_up_to_twice_the_longest_of_the_data(base, rows, tmp_path):
    run = regard.align(base, rows, out=tmp_path / "run", method="dpo", steps=1, device="cpu", show_progress=False,
                       settings={"task": {"evaluation_answers": 4}})  # fmt: skip
    longest = max(len(row[side].split()) for row in rows for side in ("chosen", "rejected")) + 1
    assert run.settings.task.max_tokens == 2 * longest


@pytest.mark.slow
def test_an_interrupted_alignment_keeps_its_state(base, rows, tmp_path, monkeypatch):
    import os
    import signal

    from regard.training.loop import Trainer

    step = Trainer._step

    def interrupt(self, number):
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, number)

    monkeypatch.setattr(Trainer, "_step", interrupt)
    with pytest.raises(StoppedError, match="stopped at step 2"):
        aligned(base, rows, tmp_path / "run", method="grpo", reward=UTILITY, steps=5, prompts=3)
    monkeypatch.setattr(Trainer, "_step", step)
    run = regard.train(rows, out=tmp_path / "run", resume=True, show_progress=False)
    assert run.folder.read_metrics()[-1]["step"] == 5


@pytest.mark.slow
def test_training_stops_where_the_kl_divergence_explodes(base, rows, tmp_path):
    """The rate is absurd; the base, which was evaluated first, is kept, and no later checkpoint is written."""
    run = aligned(base, rows, tmp_path / "run", method="reinforce", reward=UTILITY, steps=40, prompts=4,
                  task={"max_kl": 5.0}, train={"learning_rate": 1.0, "checkpoint_every": 100, "evaluate_every": 100,
                                               "clip_norm": 0.0})  # fmt: skip
    steps = [line["step"] for line in run.folder.read_metrics()]
    original = regard.load(base, device="cpu").model

    assert max(steps) < 40
    assert [path.stem for path in (run.path / "checkpoints").iterdir()] == ["step-000000000"], "that of the start"
    for one, other in zip(run.model.parameters(), original.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "dop"}, "unknown method 'dop'; did you mean dpo?"),
        ({"method": "ppo"}, "method ppo needs a reward"),
        ({"method": "ppo", "reward": "nowhere"}, "'nowhere' is neither a run nor has a colon"),
        ({"method": "ppo", "reward": "no_such_module:f"}, "cannot be imported"),
        ({"method": "ppo", "reward": "math:no_such"}, "has no function 'no_such'"),
        ({"method": "grpo", "reward": UTILITY, "samples": 1}, "task.samples must be at least 2, got 1"),
    ],
)  # fmt: skip
def test_wrong_options_are_one_line(base, rows, tmp_path, options, message):
    with pytest.raises(ConfigError) as caught:
        aligned(base, rows, tmp_path / "run", steps=1, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_only_language_models_are_aligned_and_only_reward_models_reward(base, rows, tmp_path):
    settings = {"model": MODEL, "task": {"tokenizer": "characters"}}
    reward = regard.train(
        rows, out=tmp_path / "reward", steps=1, device="cpu", baseline=False, settings=settings, show_progress=False
    )
    with pytest.raises(ConfigError, match="preference optimization needs a"):
        aligned(reward.path, rows, tmp_path / "run", steps=1)
    with pytest.raises(RunError, match="rewards are for reward models"):
        aligned(base, rows, tmp_path / "run", method="ppo", reward=base, steps=1)
    run = aligned(base, rows, tmp_path / "run", method="ppo", reward=reward.path, steps=1, prompts=2)
    assert run.settings.task.reward == "../reward"  # it reads text, whatever its tokenizer
    best = regard.load(base, device="cpu").best_of("write about cats and rain:", 5, reward=reward.path, max_tokens=5)
    assert best.reward >= best.mean_reward


@pytest.fixture
def reward_module(tmp_path, monkeypatch):
    (tmp_path / "odd_rewards.py").write_text(
        "import time\n"
        "def nan(prompt, answer): return float('nan')\n"
        "def text(prompt, answer): return 'good'\n"
        "def forever(prompt, answer): time.sleep(3600)\n"
        "def fails(prompt, answer): raise KeyError(answer)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "odd_rewards"
    sys.modules.pop("odd_rewards", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "must be a finite number, got nan for the answer 'a' to 'p'"),
        ("text", "must be a finite number, got 'good' for the answer 'a' to 'p'"),
        ("forever", "took longer than 0.1 s"),
        ("fails", "raised KeyError: 'a', for the answer 'a' to 'p'"),
    ],
)
def test_a_reward_function_that_misbehaves_is_named(reward_module, name, message):
    with pytest.raises(RunError) as caught:
        load_reward(f"{reward_module}:{name}", seconds=0.1)(["p", "q"], ["a", "b"])
    assert message in str(caught.value)


def lines_of(true: list[float], proxy: list[float]) -> list[dict]:
    return [
        {"step": 10 * n, "kl": float(n), "kl_error": 0.1, "reward": p, "reward_error": 0.1, "true_reward": t,
         "true_reward_error": 0.1, "win_rate": 0.6, "win_p": 0.01, "length": 7.0, "repetition": 0.1, "diversity": 0.5}
        for n, (t, p) in enumerate(zip(true, proxy, strict=True))
    ]  # fmt: skip


def test_the_point_where_the_rewards_part_is_marked():
    [parted] = alignment_sections(lines_of([0, 1, 2, 1.5, 1], [0, 1, 2, 3, 4]))
    [together] = alignment_sections(lines_of([0, 1, 2, 2.1, 2.2], [0, 1, 2, 3, 4]))
    [noise] = alignment_sections(lines_of([0, 1, 2, 1.95, 1.9], [0, 1, 2, 3, 4]))

    assert panel_of(parted).line == pytest.approx(np.sqrt(2.0))
    assert "Beyond a KL divergence of 2.0 nats (step 20)" in parted.lead
    assert panel_of(together).line is None
    assert panel_of(noise).line is None  # within the errors
    assert [curve.name for curve in panel_of(parted).curves] == ["reward that is optimized", "true reward"]
    assert len(parted.rows) == 5
    assert {len(row) for row in parted.rows} == {len(parted.columns)}


def panel_of(section: Section) -> Panel:
    assert section.plot is not None
    return section.plot.panels[0]


@pytest.mark.slow
def test_prompts_of_messages_are_written_by_the_chat_template(base, rows, tmp_path):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    asked = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    run = aligned(base, asked, tmp_path / "run", method="simpo", steps=1, task={"template": template})
    assert "".join(run.chat("write about cats and rain:", max_tokens=3))
    spoken = [{**row, "prompt": [{"role": "system", "content": "x"}, *row["prompt"]]} for row in asked]
    with pytest.raises(DataError, match=r"the base has no chat template: set task\.template"):
        aligned(base, spoken, tmp_path / "other", method="simpo", steps=1)


def test_settings_of_a_run_are_stored(base, rows, tmp_path):
    run = aligned(base, rows, tmp_path / "run", method="simpo", steps=1)
    stored = json.loads(json.dumps(run.settings.task.model_dump()))
    assert (stored["method"], stored["beta"], stored["updates"]) == ("simpo", 2.0, 1)


def test_the_baseline_is_the_model_before_training(base, rows, tmp_path):
    good, bad = [" warm scarf", " purr", " thanks", " rocket comet"], [" cold loaf", " loaf", " cold", " dough with"]
    preferred = [
        {"prompt": row["prompt"], "chosen": good[n % 4], "rejected": bad[n // 4 % 4]} for n, row in enumerate(rows)
    ]
    run = aligned(base, preferred, tmp_path / "run", steps=12, method="dpo", train={"learning_rate": 0.01})
    found, valid = run.baseline, run.folder.read_held_out("valid")
    assert found is not None
    assert (found.name, found.headline) == ("the model before training", "accuracy")

    # The base itself, by its own weights: which of two answers it finds more probable per token.
    before, right = regard.load(base, device="cpu"), []
    task = run.task
    for batch in task.row_batches(valid):
        with torch.no_grad():
            log_probs = answer_log_probs(before.model, batch.tokens.flatten(0, 1), batch.targets.flatten(0, 1))
        means = log_probs.sum(1) / (batch.targets.flatten(0, 1) != IGNORED).sum(1)
        right += (means.view(-1, 2)[:, 0] > means.view(-1, 2)[:, 1]).tolist()
    assert found.score == pytest.approx(np.mean(right))
    assert found.model_score == run.evaluate().scores["accuracy"].value
    assert found.model_score > found.score
    assert found.verdict == "better"
    assert found.p is not None
    assert found.p < 0.05


def test_without_a_step_the_model_equals_its_baseline_and_it_can_be_turned_off(base, rows, tmp_path):
    task = {"reward": UTILITY, "samples": 2, "prompts": 3}
    prompts = [{"prompt": row["prompt"]} for row in rows]
    run = aligned(base, prompts, tmp_path / "run", steps=1, method="grpo", task=task, train={"learning_rate": 1e-12})
    found = run.baseline
    assert found is not None
    assert found.headline == "mean_reward"
    assert found.difference == pytest.approx(0.0, abs=1e-6)
    assert found.verdict == "not significant"

    off = aligned(base, rows, tmp_path / "off", steps=1, method="dpo", baseline=False)
    assert off.baseline is None
    assert not (off.path / "baseline.json").exists()
