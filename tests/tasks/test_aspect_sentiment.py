"""Aspect sentiment: predictions for each aspect, the weights of words, and that the aspect decides."""

from collections import Counter

import pytest
import torch
from tests.tiny import tiny

import regard
from regard.errors import ConfigError, DataError, RunError
from regard.tasks.aspect_sentiment import word_weights

PRAISE, BLAME = ("good", "great", "lovely", "superb"), ("cold", "rude", "awful", "poor")
THINGS = {"food": "soup", "service": "waiter", "price": "bill"}
BAG = {"model": {"model_dim": 8}, "train": {"max_steps": 1, "device": "cpu"}}


def meals(count: int) -> list[tuple[str, str, str]]:
    """Texts about two things, praised or blamed independently of each other, with a row for each.

    From the text alone, three labels in four can be predicted at best.
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


def trained(rows, out, *, model="bag", settings=BAG, **task):
    values = {**settings, "task": {"name": "aspect-sentiment", "tokenizer": "words", **task}}
    return regard.train(rows, out=out, model=model, settings=values, show_progress=False)


def test_a_word_has_the_summed_weight_of_its_tokens():
    made = tiny("aspect-sentiment", meals(60), tokenizer="characters")
    model = made.build()
    for parameter in model.pooling.parameters():
        torch.nn.init.normal_(parameter)
    (found,) = made.predict(model, ["good soup, rude waiter\tservice"])
    assert found.aspect == "service"
    assert found.input == "good soup, rude waiter"
    assert [word for word, _ in found.weights or []] == ["good", "soup", ",", "rude", "waiter"]
    assert sum(weight for _, weight in found.weights or []) == pytest.approx(1.0)


def test_truncated_words_have_no_weight():
    assert word_weights("ab cd", [0.25, 0.75], [(0, 1), (1, 2), (3, 4), (4, 5)]) == [("ab", 1.0), ("cd", 0.0)]
    assert word_weights("  ", [], []) == []


def test_a_text_and_its_aspect_are_one_sequence_and_unknown_aspects_have_the_last_index():
    rows = [row for n in range(20) for row in ((f"ab{n}", "b", "+"), (f"a{n}", "a", "-"), (f"b{n}", "b", "-"))]
    made = tiny("aspect-sentiment", rows, tokenizer="characters", query="text")
    task, tokenizer = made.task, made.task.tokenizer
    texts, known = task.encode_rows([("ab", "b", "+"), ("a", "a", "-"), ("b", "b", "-"), ("a", "new", "+")])
    a, b = tokenizer.encode(["a", "b"])
    start, end = tokenizer.start, tokenizer.end
    assert texts[0] == [start, *a, *b, end, *b, end]
    assert task.aspect_codec.labels == ["b", "a"], "the most frequent one is first"
    assert task.label_codec.labels == ["+", "-"]
    assert known == [[0, 0], [1, 1], [1, 0], [0, 2]]


@pytest.mark.parametrize("preset", ["lstm-tiny", "convolution-tiny", "bag-tiny", "gpt-tiny", "transformer-tiny"])
def test_every_family_is_trained(tmp_path, preset: str):
    torch.set_default_dtype(torch.float32)
    settings = {"model": {"model_dim": 16}, "train": {"max_steps": 1, "device": "cpu"}}
    run = trained(meals(30), tmp_path / "run", model=preset, settings=settings)
    assert run.predict("great soup", aspect="food") in ("positive", "negative")


@pytest.mark.parametrize("preset", ["lstm-tiny", "convolution-tiny", "transformer-tiny"])
def test_retrieval_and_temperature_have_an_effect(preset: str):
    weights = []
    for settings in ({}, {"attention_temperature": 0.2}, {"retrieval": "hard"}):
        made = tiny(
            "aspect-sentiment", meals(60), preset=preset, tokenizer="words", model={"model_dim": 12, **settings}
        )
        (found,) = made.predict(made.build(std=0.5), ["good soup but rude waiter\tfood"])
        weights.append([weight for _, weight in found.weights or []])
    assert len({tuple(some) for some in weights}) == 3
    assert sorted(weights[2]) == [0.0] * 4 + [1.0]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A convolution over three words: a hidden state depends on its neighbors only, so the attention decides."""
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("aspects")
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        settings = {
            "model": {"num_layers": 1, "model_dim": 32, "dropout": 0.0, "kernel_size": 3},
            "train": {"max_steps": 120, "evaluate_every": 60, "learning_rate": 0.01, "device": "cpu"},
            "data": {"splits": [0.9, 0.05, 0.05]},
        }
        return trained(meals(400), folder / "run", model="convolution", settings=settings, query="learned")


@pytest.mark.slow
def test_the_aspect_decides_and_its_words_have_the_largest_weights(learned):
    torch.set_default_dtype(torch.float32)
    by_text: dict[str, Counter[str]] = {}
    for text, _, label in meals(400):
        by_text.setdefault(text, Counter())[label] += 1
    assert sum(max(labels.values()) for labels in by_text.values()) / 800 < 0.8, "the text alone does not decide"
    assert learned.evaluate().scores["accuracy"].value > 0.97
    text = "great soup but rude waiter"
    assert learned.predict(text, aspect="food") == "positive"
    assert learned.predict(text) | {"price": ""} == {"food": "positive", "service": "negative", "price": ""}
    food, service = (dict(learned.predict_full([text], aspect=each)[0].weights) for each in ("food", "service"))
    assert food["great"] + food["soup"] > 0.7
    assert service["rude"] + service["waiter"] > 0.7
    assert [each.aspect for each in learned.highlights(text, aspect="food").attributions] == ["food"]


@pytest.mark.slow
def test_invalid_inputs_are_errors(learned):
    torch.set_default_dtype(torch.float32)
    with pytest.raises(DataError, match=r"'decor'; known: .*food"):
        learned.predict("great soup", aspect="decor")
    with pytest.raises(DataError, match=r"'prise'; did you mean 'price'\? known: .*food"):
        learned.evaluate([("good bill", "prise", "positive")], log=False)
    with pytest.raises(DataError, match="input 1 is empty"):
        learned.predict(" ", aspect="food")
    with pytest.raises(DataError, match="tab"):
        learned.predict("\tfood")


def test_rows_that_cannot_be_trained_on_are_errors(tmp_path):
    torch.set_default_dtype(torch.float32)
    with pytest.raises(DataError, match="'positive'"):
        trained([(text, aspect, "positive") for text, aspect, _ in meals(30)], tmp_path / "one")
    (tmp_path / "valid.tsv").write_text("text\taspect\tlabel\nnice walls\tdecor\tpositive\n")
    settings = {**BAG, "data": {"valid": [str(tmp_path / "valid.tsv")]}}
    with pytest.raises(DataError, match="'decor' of a held-out row"):
        trained(meals(30), tmp_path / "two", settings=settings, query="learned")


@pytest.mark.parametrize("query", ["text", "both"])
def test_an_aspect_that_training_did_not_see_is_read_as_text_with_a_warning(tmp_path, query: str, caplog):
    torch.set_default_dtype(torch.float32)
    (tmp_path / "valid.tsv").write_text("text\taspect\tlabel\nnice walls\tdecor\tpositive\n")
    settings = {**BAG, "data": {"valid": [str(tmp_path / "valid.tsv")]}}
    run = trained(meals(30), tmp_path / "run", settings=settings, query=query)
    warning = "no training row has 1 aspect of the input: decor;"
    for use in (
        lambda: run.predict("nice walls", aspect="decor") in ("positive", "negative"),
        lambda: run.evaluate([("nice walls", "decor", "positive")], log=False).scores["accuracy"].value in (0, 1),
        lambda: len(run.predict_table([("nice walls", "decor")] * 300, columns=["1", "2"])) == 300,
    ):
        caplog.clear()
        assert use()
        assert caplog.text.count(warning) == 1
    caplog.clear()
    run.predict("good soup", aspect="food")
    assert "no training row" not in caplog.text


def test_the_words_of_an_unseen_aspect_decide_where_its_learned_query_is_zero():
    made = tiny("aspect-sentiment", meals(60), tokenizer="words", query="both")
    model = made.build(std=0.5)
    unseen, known = made.predict(model, ["good soup but rude waiter\tsoup", "good soup but rude waiter\tfood"])
    assert unseen.weights != known.weights
    torch.nn.init.zeros_(model.pooling.queries.weight)
    again, _ = made.predict(model, ["good soup but rude waiter\tsoup", "good soup but rude waiter\tfood"])
    assert again.weights == unseen.weights


def test_an_aspect_is_for_aspect_sentiment_only(tmp_path):
    torch.set_default_dtype(torch.float32)
    rows = [(text, label) for text, _, label in meals(30)]
    run = regard.train(
        rows, out=tmp_path / "run", model="bag", task="text-classification", tokenizer="words", settings=BAG,
        show_progress=False,
    )  # fmt: skip
    with pytest.raises(RunError, match=r"aspect sentiment.*text classification"):
        run.predict("good soup", aspect="food")
    with pytest.raises(ConfigError, match=r"task\.query"):
        tiny("text-classification", rows, query="text")


def test_a_linear_model_of_ngrams_is_solved_and_added_to_the_network(tmp_path):
    """One step teaches the network nothing: what is right beyond chance is the linear model's."""
    rows = [(f"{word} {thing}", aspect, label) for aspect, thing in THINGS.items() for label, words in
            (("positive", PRAISE), ("negative", BLAME)) for word in words] * 6  # fmt: skip
    run = trained(rows, tmp_path / "run")
    model = run.model.eval()
    assert run.settings.task.ngrams == 2
    assert model.ngrams.is_solved
    (batch,) = run.task.row_batches(rows[:7])
    texts = batch.texts
    inputs = (texts.source, texts.lengths, texts.segments, batch.aspects)
    network, own = model.parts(*inputs)
    torch.testing.assert_close(model(*inputs), model.ngrams.scales[0] * network + model.ngrams.scales[1] * own)
    assert (own.argmax(dim=1) == texts.targets).all()
    assert model.train().parts(*inputs)[1] is None
    assert [each.output for each in run.predict_full(["superb soup\tfood", "rude waiter\tservice"])] == [
        "positive", "negative",
    ]  # fmt: skip
    assert trained(rows, tmp_path / "without", ngrams=0).model.ngrams is None
