"""Aspects: what is asked, answered and highlighted, and that the aspect decides."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.tasks.test_classification import SHAPE

import regard
from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.errors import ConfigError, DataError, RunError
from regard.models.heads import HeadConfig
from regard.tasks import guess_task
from regard.tasks.aspects import Aspects, weights_of_words
from regard.tasks.objective import Objective
from regard.training.resolution import with_learned

PRAISE, BLAME = ("good", "great", "lovely", "superb"), ("cold", "rude", "awful", "poor")
THINGS = {"food": "soup", "service": "waiter", "price": "bill"}


def meals(count: int) -> list[tuple[str, str, str]]:
    """Texts about two things, each of them praised or blamed whatever the other is, and each asked for.

    So a text alone tells the label of three rows in four at best, and nothing about the other thing helps.
    """
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(count):
        chosen = [list(THINGS)[number] for number in torch.randperm(len(THINGS), generator=generator)[:2].tolist()]
        numbers = torch.randint(4, (2, 2), generator=generator).tolist()
        words = [((BLAME if side % 2 else PRAISE)[number]) for number, side in numbers]
        text = " but ".join(f"{word} {THINGS[aspect]}" for word, aspect in zip(words, chosen, strict=True))
        rows += [
            (text, aspect, "positive" if word in PRAISE else "negative")
            for word, aspect in zip(words, chosen, strict=True)
        ]
    return rows


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def prepared() -> tuple[Prepared, DataConfig]:
    config = DataConfig(tokenizer="characters")
    data = Aspects().prepare(config, meals(60))
    return data, with_learned(config, data)


def model_for(data: Prepared, config: DataConfig, **head):
    return Aspects().build_model(SHAPE, data.tokenizer, data=config, head=HeadConfig(dropout=0.0, **head))


def test_batches_filled_to_a_shape_cost_what_they_did(prepared):
    (data, config), task = prepared, Aspects()
    model = model_for(data, config)
    plain = task.batches(data, config, batch_tokens=400, seed=3)
    shaped = task.batches(data, config, batch_tokens=400, seed=3, has_few_shapes=True)
    for number in range(plain.per_epoch):
        one, other = plain.batch(number), shaped.batch(number)
        assert one.num_targets == other.num_targets
        torch.testing.assert_close(task.loss(model, one), task.loss(model, other))


@pytest.mark.parametrize("asking", ["query", "pair", "both"])
def test_rows_as_text_and_rows_of_the_store_are_the_same(prepared, asking):
    (data, config), task = prepared, Aspects()
    model = model_for(data, config, aspect=asking)
    stored = task.negative_log_likelihoods(model, task.held_out(data, config), torch.device("cpu"))
    batches = task.rows_as_batches(data.held_out["valid"], data.tokenizer, config)
    given = task.negative_log_likelihoods(model, batches, torch.device("cpu"))
    assert sorted(given.losses) == pytest.approx(sorted(stored.losses), rel=1e-5)


def test_agreement_of_two_readings_costs_nothing_where_they_agree(prepared):
    (data, config), task = prepared, Aspects()
    model = model_for(data, config)
    batch = task.batches(data, config, batch_tokens=400, seed=0).batch(0)
    torch.testing.assert_close(task.loss(model, batch, Objective(consistency=3.0)), task.loss(model, batch))


def test_words_have_the_weights_of_their_tokens_together(prepared):
    (data, config), task = prepared, Aspects()
    model = model_for(data, config).eval()
    for parameter in model.pooling.parameters():
        torch.nn.init.normal_(parameter)
    judge = task.writer(model, data.tokenizer, None, config)  # pyright: ignore[reportArgumentType]  it is not used
    (found,) = judge(["good soup, rude waiter\tservice"])
    assert found.aspect == "service"
    assert found.input == "good soup, rude waiter"
    assert [word for word, _ in found.weights or []] == ["good", "soup", ",", "rude", "waiter"]
    assert sum(weight for _, weight in found.weights or []) == pytest.approx(1.0)


def test_a_text_that_was_cut_has_words_without_weight():
    assert weights_of_words("ab cd", [0.25, 0.75], [(0, 1), (1, 2), (3, 4), (4, 5)]) == [("ab", 1.0), ("cd", 0.0)]
    assert weights_of_words("  ", [], []) == []


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("a.tsv", "text\taspect\tlabel\ngood soup\tfood\t+\nrude waiter\tservice\t-\n", "aspects"),
        ("b.csv", "review,category,sentiment\ngood soup,food,+\nrude waiter,service,-\n", "aspects"),
        ("c.jsonl", '{"sentence": "good soup", "target": "soup", "polarity": "+"}\n', "aspects"),
        ("d.xml.xz", "", "aspects"),
        ("e.csv", "text,category\ngood soup,food\nrude waiter,service\n", "classification"),
    ],
)
def test_the_task_is_read_off_the_columns(tmp_path, name: str, text: str, task: str):
    (tmp_path / name).write_text(text)
    assert guess_task(DataConfig(train=[str(tmp_path / name)])) == task


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A convolution of three words: a state knows its neighbours, and no more, so where the query looks decides."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("aspects")
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        torch.set_default_dtype(torch.float32)
        settings = {
            "task": "aspects",
            "head": {"aspect": "query"},
            "model": {"num_layers": 1, "model_dim": 32, "dropout": 0.0, "kernel_size": 3},
            "data": {"tokenizer": "words"},
            "train": {"max_steps": 150, "evaluate_every": 50, "learning_rate": 0.01},
        }
        return regard.train(meals(400), model="convolution", out=folder / "run", settings=settings, show_progress=False)


def test_no_model_without_the_aspect_can_solve_these_rows():
    by_text: dict[str, Counter[str]] = {}
    for text, _, label in meals(400):
        by_text.setdefault(text, Counter())[label] += 1
    best = sum(max(labels.values()) for labels in by_text.values())
    assert best / 800 < 0.8


@pytest.mark.slow
def test_the_aspect_decides_and_the_right_words_weigh(learned):
    torch.set_default_dtype(torch.float32)
    assert learned.evaluate().scores["accuracy"].value > 0.97
    text = "great soup but rude waiter"
    assert learned.predict(text, aspect="food") == "positive"
    assert learned.predict(text) | {"price": ""} == {"food": "positive", "service": "negative", "price": ""}
    food, service = (dict(learned.predictions([text], aspect=each)[0].weights) for each in ("food", "service"))
    assert food["great"] + food["soup"] > 0.7
    assert service["rude"] + service["waiter"] > 0.7
    highlights = learned.highlights(text, aspect="food")
    assert [each.aspect for each in highlights.judgements] == ["food"]


def test_what_cannot_be_asked_is_told(learned):
    torch.set_default_dtype(torch.float32)
    with pytest.raises(DataError, match=r"the model knows no aspect 'decor', it knows .*food"):
        learned.predict("great soup", aspect="decor")
    with pytest.raises(DataError, match="input 1 is empty"):
        learned.predict(" ", aspect="food")
    with pytest.raises(DataError, match="a text and an aspect with a tab"):
        learned.predict("\tfood")


def test_rows_that_cannot_be_learned_from_are_told(tmp_path):
    rows = [(text, aspect, "positive") for text, aspect, _ in meals(30)]
    settings = {"task": "aspects", "train": {"max_steps": 1}, "model": {"num_layers": 1, "model_dim": 8}}
    with pytest.raises(DataError, match="all 60 rows have the label 'positive': there is nothing to tell apart"):
        regard.train(rows, out=tmp_path / "one", settings=settings, show_progress=False)
    valid = tmp_path / "valid.tsv"
    valid.write_text("text\taspect\tlabel\nnice walls\tdecor\tpositive\n")
    settings["data"] = {"valid": [str(valid)]}
    with pytest.raises(DataError, match="the aspect 'decor' of a held-out row does not occur"):
        regard.train(meals(30), out=tmp_path / "two", settings=settings, show_progress=False)
    run = regard.train(
        meals(30), out=tmp_path / "three", settings={**settings, "head": {"aspect": "pair"}}, model="bag",
        show_progress=False,
    )  # fmt: skip
    assert run.predict("nice walls", aspect="decor") in ("positive", "negative")
    with pytest.raises(ConfigError, match=r"head\.aspect is for aspects of texts, got task=classification"):
        regard.train(
            [row[::2] for row in meals(30)],
            out=tmp_path / "four",
            settings={"task": "classification", "head": {"aspect": "pair"}},
            show_progress=False,
        )


def test_only_a_run_for_aspects_is_asked_for_one(tmp_path):
    rows = [(text, label) for text, _, label in meals(30)]
    settings = {"task": "classification", "train": {"max_steps": 1}, "data": {"tokenizer": "words"}}
    run = regard.train(rows, out=tmp_path / "run", model="bag", settings=settings, show_progress=False)
    assert json.loads((Path(run.path) / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1
    with pytest.raises(
        RunError, match=r"only a run for aspects can be asked for one: .* was trained for classification"
    ):
        run.predict("good soup", aspect="food")
