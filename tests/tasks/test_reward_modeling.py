"""Reward models: pairs and ratings as data, rewards and comparisons as outputs, agreement of raters."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tiny import tiny

import regard
from regard.data.builtin import find_builtin
from regard.data.builtin.ratings import RATERS, generate_answers, generate_ratings, preference_ceiling, utility
from regard.data.preference_sources import open_preferences
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows
from regard.errors import BadRowsError, ConfigError, DataError
from regard.evaluation.agreement import agreement_on_pairs, krippendorff_alpha
from regard.tasks.preference_optimization.task import PreferenceOptimization, PreferenceOptimizationSettings
from regard.tasks.registry import detect_task
from regard.tasks.task import EvaluationData, Likelihoods

SMALL = {"model": {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 16}}


def ratings(count: int = 90) -> list[tuple[str, ...]]:
    return list(generate_ratings(count, 3))


def read(data, **config) -> list[tuple[str, ...]]:
    source = open_preferences(DataConfig(**config), data)
    return [row.values for row in source.train]


def test_krippendorffs_own_example():
    """Computing Krippendorff's Alpha-Reliability (2011), table C: nominal data, four observers, 12 units."""
    table = ["1 2 3 3 2 1 4 1 2 . . .", "1 2 3 3 2 2 4 1 2 5 . 3", ". 3 3 3 2 3 4 2 2 5 1 .", "1 2 3 3 2 4 4 1 2 5 1 ."]
    units = [[value for value in unit if value != "."] for unit in zip(*map(str.split, table), strict=True)]

    assert krippendorff_alpha(units)[0] == pytest.approx(0.743, abs=5e-4)


def test_agreement_does_not_depend_on_which_answer_was_chosen():
    rows = [("p", "a", "b", "x"), ("p", "a", "b", "y"), ("q", "d", "c", "x"), ("q", "d", "c", "y")]
    found = agreement_on_pairs(rows)

    assert found is not None
    assert (found.alpha, found.share, found.num_units, found.num_raters) == (1.0, 1.0, 2, 2)
    assert agreement_on_pairs(rows[:1]) is None


def test_raters_of_the_built_in_data_follow_the_utility_with_their_noise():
    rows = list(generate_ratings(6_000, 0))
    assert rows == list(find_builtin("ratings").generate(6_000, 0))
    for rater, temperature in RATERS.items():
        own = [row for row in rows if row[3] == rater]
        gaps = np.array([utility(p, chosen) - utility(p, rejected) for p, chosen, rejected, _ in own])
        expected = (1 / (1 + np.exp(-np.abs(gaps) / temperature)))[gaps != 0]
        error = np.sqrt((expected * (1 - expected)).sum()) / len(expected)
        assert (gaps[gaps != 0] > 0).mean() == pytest.approx(expected.mean(), abs=4 * error), rater
    assert preference_ceiling(rows) == pytest.approx(0.78, abs=0.02)


def test_ratings_of_answers_become_pairs_of_the_same_rater_and_prompt():
    table = NamedRows(
        [
            {"prompt": "p", "answer": "good", "rating": 5, "rater": "x"},
            {"prompt": "p", "answer": "bad", "rating": 1, "rater": "x"},
            {"prompt": "p", "answer": "fair", "rating": 5, "rater": "x"},
            {"prompt": "p", "answer": "other", "rating": 9, "rater": "y"},
            {"prompt": "q", "answer": "alone", "rating": 2, "rater": "x"},
        ]
    )
    assert read(table) == [("p", "good", "bad", "x"), ("p", "fair", "bad", "x")]


def test_columns_have_usual_names_or_those_that_are_set():
    table = NamedRows([{"question": "p", "winner": "a", "loser": "b"}, {"question": "q", "winner": "c", "loser": "d"}])
    assert read(table) == [("p", "a", "b", "-"), ("q", "c", "d", "-")]
    odd = NamedRows([{"x": "p", "y": "a", "z": "b", "who": "r"}, {"x": "q", "y": "c", "z": "d", "who": "s"}])
    assert read(odd, columns=["x", "y", "z", "who"])[1] == ("q", "c", "d", "s")
    assert detect_task(DataConfig(train=["ratings"]))[0] == "reward-modeling"
    assert detect_task(DataConfig(train=["answers"]))[0] == "language-modeling"


def test_prompts_and_answers_may_be_messages():
    question, one, other = ({"role": role, "content": text} for role, text in
                            (("user", "Hi"), ("assistant", "Hello."), ("assistant", "Go away.")))  # fmt: skip
    system = {"role": "system", "content": "Be kind."}
    table = NamedRows([{"prompt": [question], "chosen": [one], "rejected": [other]}])
    assert read(table) == [("Hi", "Hello.", "Go away.", "-")]
    whole = NamedRows([{"chosen": [system, question, one], "rejected": [system, question, other]}])
    [(prompt, *answers, _)] = read(whole)
    assert (json.loads(prompt), answers) == ([system, question], ["Hello.", "Go away."])
    with pytest.raises(DataError, match="conversations that differ before their last answers"):
        read(NamedRows([{"chosen": [question, one], "rejected": [system, question, other]}]))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([{"prompt": "p", "chosen": "a", "rejected": "a"}, {"prompt": "p", "chosen": "a", "rejected": "b"}],
         BadRowsError, "a chosen answer that is equal to the rejected one: row 1"),
        ([{"prompt": "p", "chosen": " ", "rejected": "a"}, {"prompt": "p", "chosen": "a", "rejected": "b"}],
         BadRowsError, "an empty chosen answer: row 1"),
        ([{"prompt": "p", "answer": "", "rating": 3}, {"prompt": "p", "answer": "b", "rating": 4}],
         DataError, "no two differ there"),
        ([{"prompt": "p", "answer": "a", "rating": 3}, {"prompt": "p", "answer": "b", "rating": 3}],
         DataError, "two answers to a prompt need different ratings by the same rater"),
        ([{"prompt": "p", "answer": "a", "rating": "good"}, {"prompt": "p", "answer": "b", "rating": 3},
          {"prompt": "p", "answer": "c", "rating": 4}], BadRowsError, "no finite number in rating: row 1"),
        ([{"prompt": "p", "text": "a"}], DataError, "need the columns prompt, chosen and rejected"),
    ],
)  # fmt: skip
def test_bad_preferences_are_one_line(rows, error, message):
    with pytest.raises(error) as caught:
        read(NamedRows(rows))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_without_effect_on_preferences_are_errors():
    with pytest.raises(ConfigError, match=r"data\.stratify has no effect on preferences"):
        read(NamedRows([{"prompt": "p", "chosen": "a", "rejected": "b"}]), stratify=True)


def test_the_loss_depends_on_differences_of_rewards_alone():
    found = tiny("reward-modeling", ratings(), tokenizer="words", **SMALL)
    model = found.build(std=0.3)
    before = found.validation(model)
    with torch.no_grad():
        model.head.output.bias += 7.0
    after = found.validation(model)

    np.testing.assert_allclose(before.losses, after.losses)


def test_a_pair_is_compared_by_the_rewards_of_its_answers():
    found = tiny("reward-modeling", ratings(), tokenizer="words", **SMALL)
    model, (prompt, chosen, rejected, _) = found.build(std=0.3), ratings()[0]
    one, other, both, swapped = found.predict(
        model, [f"{prompt}\t{chosen}", f"{prompt}\t{rejected}", f"{prompt}\t{chosen}\t{rejected}",
                f"{prompt}\t{rejected}\t{chosen}"],
    )  # fmt: skip
    gap = float(one.output) - float(other.output)
    assert both.probabilities["first"] == pytest.approx(1 / (1 + np.exp(-gap)), abs=1e-5)
    assert swapped.probabilities["first"] == pytest.approx(both.probabilities["second"])
    assert {both.output, swapped.output} == {"first", "second"}
    assert found.task.rewards(model, [prompt], [chosen]) == [float(one.output)]
    with pytest.raises(DataError, match="got 1 part in input 1"):
        found.predict(model, ["no answer"])


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }} so {% endfor %}"])
def test_a_reward_model_of_a_language_model_reads_what_the_policy_writes(template):
    found = tiny("reward-modeling", ratings(), tokenizer="words", continues=True, template=template, **SMALL)
    policy = PreferenceOptimization(
        PreferenceOptimizationSettings.draft({"tokenizer": "words", "template": template}), found.task.codecs
    )
    prompts, chosen, rejected = policy.encode_rows(ratings(5))
    for one, *own in zip(prompts, chosen, rejected, *found.task.encode_rows(ratings(5)), strict=True):
        assert own[2:] == [one + own[0], one + own[1]]


@pytest.mark.parametrize("most", [1, 5, 8, 11])
def test_of_a_long_pair_the_end_of_the_prompt_and_the_start_of_the_answer_are_read(most):
    found = tiny("reward-modeling", ratings(), tokenizer="words", continues=True, **SMALL)
    task = type(found.task)(found.task.settings.changed(max_length=max(2, most)), found.task.codecs)
    whole, cut = (each.encode_rows(ratings(1))[0][0] for each in (found.task, task))
    assert len(cut) == min(len(whole), max(2, most))
    assert cut[-1] == found.task.tokenizer.end


def test_both_answers_of_a_pair_are_read_in_one_pass_as_if_alone():
    found = tiny("reward-modeling", ratings(), tokenizer="words", **SMALL)
    model, (prompt, *_) = found.build(std=0.3), ratings()[0]
    columns = found.task.encode_rows(
        [(prompt, " purr", " purr nap storm thanks", "ada"), (prompt, " a b", " c", "ada")]
    )
    batch = found.task.collate([[np.array(ids) for ids in column] for column in columns])
    alone = [model(side.source, side.lengths, side.segments)[:, 0] for side in (batch.text, batch.other)]
    assert batch.text.source.size(1) != batch.other.source.size(1)
    for one, other in zip(found.task._rewards(model, batch), alone, strict=True):
        torch.testing.assert_close(one, other)


def test_accuracy_and_calibration_are_of_the_chosen_answers():
    found = tiny("reward-modeling", ratings(), tokenizer="words", **SMALL)
    rows = ratings(4)
    shares = [0.9, 0.4, 0.8, 0.5]
    predictions = [
        regard.Prediction(found.task.input_of(row), "", probabilities={"first": share, "second": 1 - share})
        for row, share in zip(rows, shares, strict=True)
    ]
    scores = {each.name: each for each in found.task.scores(EvaluationData(rows, predictions, Likelihoods([], [])))}

    assert scores["accuracy"].value == 0.5
    assert scores["accuracy"].interval is not None
    assert scores["calibration_error"].value > 0


@pytest.mark.slow
def test_a_reward_run_goes_through_every_command(tmp_path: Path):
    path = tmp_path / "prefs.jsonl"
    names = ("prompt", "chosen", "rejected", "rater")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in ratings(400)))
    small = {**SMALL, "task": {"tokenizer": "words"}}
    run = regard.train(path, out=tmp_path / "run", steps=3, device="cpu", settings=small, show_progress=False)

    assert run.task.name == "reward-modeling"
    assert any("Krippendorff" in note for note in run.folder.read_provenance().notes)
    assert run.baseline is not None
    assert run.baseline.name.startswith("TF-IDF differences")
    assert float(run.predict("write about cats and rain:\t purr")) == pytest.approx(
        float(run.predict(["write about cats and rain:\t purr"])[0])
    )
    assert 0 <= run.evaluate(path).scores["accuracy"].value <= 1
    assert run.certificate() is not None
    page = (run.path / "report.html").read_text()
    assert "accuracy by rater" in page
    lm = {**SMALL, "task": {"tokenizer": "words", "ngrams": 0, "window": 8}}
    base = regard.train(
        list(generate_answers(200, 0)), task="language-modeling", out=tmp_path / "lm", steps=2, device="cpu",
        model="gpt-tiny", settings=lm, show_progress=False,
    )  # fmt: skip
    tuned = regard.finetune(base.path, path, out=tmp_path / "tuned", steps=2, device="cpu", show_progress=False)
    assert tuned.task.name == "reward-modeling"
    assert tuned.settings.task.continues
    assert tuned.settings.head.pooling == "mean"
    assert tuned.settings.train.learning_rate == pytest.approx(0.03 / 16**0.5, rel=0.05)  # as from scratch
