"""Defaults by budget, data and device: which recipes they are, and what takes precedence over them."""

import random
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.data.settings import DataConfig
from regard.runs.train import set_up, with_choices, with_task
from regard.tasks.choices import ChoiceContext, Defaults, DefaultsContext
from regard.tasks.registry import make_task
from regard.training.defaults import draft

RNG = random.Random(0)
WORDS = ["".join(RNG.choices("abdegiklmnoprstu", k=RNG.randint(3, 9))) for _ in range(500)]
SENTENCES = [" ".join(RNG.choices(WORDS, k=12)) for _ in range(1_200)]
PAIRS = [(text, text.upper()) for text in SENTENCES[:100]]
LABELED = [(text, RNG.choice(["up", "down"])) for text in SENTENCES]
TAGGED = [(text.split(), ["O", "B-X", "I-X"] * 4) for text in SENTENCES]
ASPECTS = [(f"the {word} was {'good' if n % 2 else 'bad'}", "food", "yes" if n % 2 else "no")
           for n, word in enumerate(WORDS[:60])]  # fmt: skip


def defaults(rows: Any, preset: str, device: Any, *, task: dict[str, Any], **budget: Any) -> Defaults:
    """What a task chooses for these rows, or this file, on a device that need not be there."""
    settings = draft({"task": task, "preset": preset})
    bound, is_file = make_task(settings.task), isinstance(rows, Path)
    config = DataConfig(train=[str(rows)] if is_file else [], splits=[0.9, 0.05, 0.05])
    data = bound.prepare(config, None if is_file else rows)
    return bound.defaults(DefaultsContext(data, settings.model, device, **budget))


def test_pairs_on_a_gpu_are_trained_by_muon_and_regularized_where_there_is_time():
    def found(minutes: float | None, device: Any = "cuda", tokenizer: str = "bpe", preset: str = "small", **more: Any):
        task = {"name": "seq2seq", "tokenizer": tokenizer, "vocab_size": 512}
        return defaults(PAIRS, preset, device, task=task, minutes=minutes, **more)

    long, short = found(0.05), found(1e-3)
    expected = {"optimizer": "muon", "learning_rate": 0.004, "schedule": "trapezoid", "batch_tokens": 4_096}
    for chosen in (long, short):
        assert {name: chosen.train[name] for name in expected} == expected
    assert (long.train["rdrop"], short.train.get("rdrop")) == (5.0, None)
    assert "epochs" in long.reasons["train.rdrop"]
    assert long.train["patience"] == 0
    assert "patience" not in found(None).train  # without a budget, early stopping ends the run
    assert "patience" not in found(600.0).train
    for plain in (found(0.05, "cpu"), found(0.05, preset="lstm-small"), found(0.05, is_finetuned=True, method="all")):
        assert plain.train["optimizer"] == "adamw"
        assert not plain.train.keys() & {"rdrop", "learning_rate", "patience"}
    assert "rdrop" not in found(0.05, tokenizer="characters").train


@pytest.mark.slow
def test_fine_tuning_on_a_gpu_is_regularized_where_there_are_rows_and_time():
    def found(rows: Any, name: str, method: str = "all", device: Any = "cuda", **budget: Any) -> Defaults:
        task = {"name": name, "tokenizer": "words"}
        return defaults(rows, "tiny", device, task=task, is_finetuned=True, method=method, **budget)

    labels = found(LABELED, "text-classification", max_epochs=100.0)
    assert labels.finetune == {"layer_decay": 0.85}
    assert labels.finetune_train == {"rdrop": 4.0, "ema_decay": pytest.approx(0.9929, abs=1e-3)}
    assert labels.reasons.keys() == {"train.rdrop", "train.ema_decay", "finetune.layer_decay"}
    adapters = found(LABELED, "text-classification", "lora", max_epochs=100.0)
    assert (adapters.finetune, adapters.finetune_train["rdrop"]) == ({}, 4.0)
    tags = found(TAGGED, "token-classification", max_steps=4_000)
    assert tags.task["crf"]
    assert tags.head["hidden_layer"]
    assert tags.finetune_train == {"batch_tokens": 2_048, "ema_decay": 0.998}
    for plain in (
        found(LABELED, "text-classification", device="cpu", max_epochs=100.0),
        found(LABELED, "text-classification", "head"),
        found(LABELED, "text-classification", minutes=1e-4),
        found(LABELED[:500], "text-classification", max_epochs=100.0),
        found(TAGGED, "token-classification", device="cpu"),
    ):
        assert not plain.finetune
        assert not plain.finetune_train
        assert not plain.task.get("crf")


def test_few_texts_are_learned_in_small_batches_on_a_gpu_and_taggers_with_many_epochs_are_regularized():
    def found(rows: Any, name: str, device: Any = "cuda", preset: str = "lstm-tiny", **more: Any) -> Defaults:
        return defaults(rows, preset, device, task={"name": name, "tokenizer": "words"}, **more)

    num_tokens = sum(len(words) for words, _ in TAGGED)
    many = 10 * num_tokens / 28_000 / 60  # minutes in which a GPU has time for ten epochs
    for rows, name in ((LABELED, "text-classification"), (TAGGED, "token-classification")):
        assert found(rows, name).train["batch_tokens"] == 1_024
        assert found(rows, name, "cpu").train["batch_tokens"] == 1_024
        assert found(rows, name, is_finetuned=True, method="all").train["batch_tokens"] == 4_096
    tags = found(TAGGED, "token-classification", minutes=many)
    assert tags.model == {"dropout": 0.5}
    assert tags.train["ema_decay"] == 0.998
    assert "epochs" in tags.reasons["model.dropout"]
    for plain in (
        found(TAGGED, "token-classification", minutes=many / 2),
        found(TAGGED, "token-classification", "cpu", minutes=many),
        found(TAGGED, "token-classification", preset="tiny", minutes=many),
        found(TAGGED, "token-classification", is_finetuned=True, method="all", minutes=many),
    ):
        assert not plain.model


def marked(num_lines: int) -> str:
    return "\n".join(" ".join(RNG.choices([*WORDS, "<unk>"], k=40)) for _ in range(num_lines))


def test_a_text_that_marks_rare_words_is_cut_into_words_on_a_gpu():
    task = make_task(draft({"task": {"name": "language-modeling"}}).task).__class__
    unset = task(task.Settings.draft({"name": "language-modeling"}))
    rows = [(marked(50),)]
    assert unset.choose(ChoiceContext(rows, 10_000, "cuda", 9.5)).task == {"tokenizer": "words"}
    for context in (
        ChoiceContext(rows, 10_000, "cuda", 2.0),
        ChoiceContext(rows, 10_000, "cpu", 60.0),
        ChoiceContext([(" ".join(WORDS),)], 10_000, "cuda", 9.5),
    ):
        assert not unset.choose(context).task


def test_a_model_of_words_is_regularized_where_a_gpu_has_time_for_many_epochs(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(marked(6_000))

    def found(preset: str, minutes: float, device: Any = "cuda", **task: Any) -> Defaults:
        own = {"name": "language-modeling", "tokenizer": "words", **task}
        return defaults(text, preset, device, task=own, minutes=minutes)

    gpt, lstm = found("gpt-small", 5.0), found("lstm-small", 5.0)
    assert (gpt.model["dropout"], gpt.task["window"], gpt.task["stride"], gpt.train["rdrop"]) == (0.55, 256, 64, 4.0)
    assert gpt.train["optimizer"] == "muon"
    assert lstm.model["hidden_dim"] == 1_024
    assert lstm.task["carry_state"]
    assert (lstm.task["window"], lstm.train["optimizer"], lstm.train["learning_rate"]) == (70, "adamw", 0.002)
    assert found("gpt-small", 5.0, window=32).task["stride"] == 32
    assert "window_jitter" not in found("lstm-small", 5.0, carry_state=False).task
    for plain in (found("gpt-small", 0.5), found("lstm-small", 5.0, "cpu"), found("convolution-small", 5.0)):
        assert not plain.model
        assert "rdrop" not in plain.train


def test_what_is_set_takes_precedence_over_a_recipe():
    def model_and_rate(**values: Any) -> tuple[int, float, int]:
        values = {"task": "language-modeling", **values}
        values["train"] = {"minutes": 0.2, "device": "cpu", **values.get("train", {})}
        _, settings, _ = set_up(values, [(text,) for text in SENTENCES])
        shape, task = settings.model.model_dump(), settings.task.model_dump()
        return shape["num_layers"], settings.train.learning_rate, task["window"]

    assert model_and_rate() == (2, 0.0088, 64)
    assert model_and_rate(preset="gpt-tiny") == (4, 0.0088, 64)
    assert model_and_rate(model={"num_layers": 3}, task={"name": "language-modeling", "window": 32}) == (3, 0.0088, 32)
    assert model_and_rate(train={"learning_rate": 0.1}) == (2, 0.1, 64)
    assert model_and_rate(train={"optimizer": "adamw"}) == (2, 0.0027, 64)  # the recipe's rate is for muon
    assert model_and_rate(train={"minutes": 2.0}) == (4, 0.018, 128)


def test_aspects_with_given_embeddings_have_a_layer_of_their_width(tmp_path):
    base = regard.train(
        ASPECTS, task="aspect-sentiment", model="lstm", steps=1, out=tmp_path / "base", show_progress=False,
        settings={"model": {"num_layers": 2, "model_dim": 64}, "train": {"device": "cpu"}},
    )  # fmt: skip
    assert with_choices(with_task({"task": "aspect-sentiment"}, ASPECTS), ASPECTS)["preset"] == "lstm"
    values = {"task": {"name": "aspect-sentiment", "embeddings": str(base.path)}, "train": {"device": "cpu"}}
    _, settings, _ = set_up(values, ASPECTS)
    shape = settings.model.model_dump()
    assert (settings.preset, shape["num_layers"], shape["model_dim"], shape["dropout"]) == ("lstm-tiny", 1, 64, 0.4)
    assert (settings.head.dropout, settings.train.label_smoothing) == (0.5, 0.1)
