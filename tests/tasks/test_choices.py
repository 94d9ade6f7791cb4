"""What tasks choose for a sample of the data: tokenizers, vocabularies and model families."""

import random
from typing import Any

import pytest

from regard.runs.train import with_choices, with_task
from regard.training.defaults import draft

RNG = random.Random(0)
NOUNS = ["".join(RNG.choices("abdegiklmnoprstu", k=RNG.randint(3, 9))) for _ in range(4_000)]
SENTENCES = [" ".join(RNG.choices(NOUNS, k=12)) for _ in range(300)]
PAIRS = [(text, text.upper()) for text in SENTENCES]
SPELLED = [(" ".join(RNG.choices(NOUNS, k=2)), RNG.choice(NOUNS)) for _ in range(300)]
SOUNDS = [(noun, " ".join(noun.upper())) for noun in NOUNS[:300]]
UNSPACED = [("".join(text.split()), text) for text in SENTENCES]
LABELED = [(text, RNG.choice(["up", "down"])) for text in SENTENCES]
LONG = [(" ".join(SENTENCES[number : number + 10]), label) for number, (_, label) in enumerate(LABELED[:200])]
TAGGED = [(text.split(), ["N"] * 6 + ["V"] * 6) for text in SENTENCES]


def chosen(rows: Any, **settings: Any) -> dict[str, Any]:
    return with_choices(with_task(settings, rows), rows)


@pytest.mark.parametrize(
    ("rows", "task", "preset"),
    [
        (PAIRS, {"tokenizer": "bpe"}, None),
        (SPELLED, {"tokenizer": "characters"}, None),
        (SOUNDS, {"tokenizer": "characters", "target_tokenizer": "words"}, None),
        (UNSPACED, {"tokenizer": "unigram", "target_tokenizer": None}, None),
        (LABELED, {"tokenizer": "wordpunct", "lowercase": True}, "lstm"),
        (LONG, {"tokenizer": "wordpunct", "lowercase": True, "max_length": 4096}, "bag"),
        (TAGGED, {"tokenizer": "words", "lowercase": True}, "lstm"),
    ],
    ids=["sentences", "spelled", "sounds", "without spaces", "labels", "long texts", "tags"],
)
def test_a_task_chooses_for_the_data(rows: Any, task: dict[str, Any], preset: str | None):
    found = chosen(rows)
    assert {name: found["task"].get(name) for name in task} == task
    assert found.get("preset") == preset
    assert draft(found).task.tokenizer == task["tokenizer"]  # pyright: ignore[reportAttributeAccessIssue]  of text


def test_short_runs_on_a_cpu_have_a_small_vocabulary_and_an_lstm_for_spelling():
    budget = {"train": {"minutes": 2.0, "device": "cpu"}}
    num_characters = sum(len(text) for row in PAIRS for text in row)
    assert chosen(PAIRS, **budget)["task"]["vocab_size"] == max(512, num_characters // 1_600)
    assert chosen(SPELLED, **budget)["preset"] == "lstm-attention"
    assert "vocab_size" not in chosen(PAIRS, train={"minutes": 60.0, "device": "cpu"})["task"]


def test_what_the_user_has_set_takes_precedence():
    found = chosen(LABELED, task={"tokenizer": "bpe"}, preset="gru")
    assert (found["task"]["tokenizer"], found["preset"]) == ("bpe", "gru")
    assert "vocab_size" not in found["task"]
    assert "preset" not in chosen(TAGGED, model={"family": "transformer"})
    assert chosen(SOUNDS, task={"target_tokenizer": "bpe"})["task"]["target_tokenizer"] == "bpe"


def test_the_sample_of_a_sorted_file_has_rows_from_all_of_it(tmp_path):
    short = [("hi", "salut")] * 3_000
    path = tmp_path / "sorted.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in [*short, *PAIRS * 10]))
    assert chosen(None, data={"train": [str(path)]}, task="seq2seq")["task"]["tokenizer"] == "bpe"


def test_names_of_few_parts_are_read_in_pieces():
    tens, units = ("twenty", "thirty", "forty", "fifty", "sixty"), ("one", "two", "three", "four", "five", "six")
    names = [(f"{ten}-{unit} thousand {other}", f"{i}{j}00{k}") for i, ten in enumerate(tens, 2)
             for j, unit in enumerate(units, 1) for k, other in enumerate(units, 1)]  # fmt: skip
    found = chosen(names, task={"name": "seq2seq"}, train={"minutes": 2.0, "device": "cpu"})
    assert (found["task"]["tokenizer"], found["task"]["target_tokenizer"]) == ("bpe", "characters")
    assert found["preset"] == "lstm-attention"
