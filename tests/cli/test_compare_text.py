"""`regard compare` on running text: bits per byte (lower is better) on the same spans of text for all models."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "dogs", "ran", "to", "doors", "while", "birds", "sang")
TINY = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "train.batch_tokens=64",
        "--set", "train.evaluate_every=4", "--tokenizer", "characters", "--device", "cpu"]  # fmt: skip
SMALL = [*TINY, "--set", "task.window=16"]
COMPARED = ["--models", "gpt,lstm", "--steps", 8, "--seeds", 2, *SMALL]


def story(num_words: int) -> str:
    rng = random.Random(0)
    return " ".join(rng.choice(WORDS) for _ in range(num_words)) + "\n"


def table_of(answer: Any) -> dict[str, Any]:
    return json.loads(answer.succeeds().out.splitlines()[-1])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(story(1500), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def compared(regard, jobs_inside, text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("compared") / "comparison"
    with jobs_inside():
        return folder, table_of(regard("compare", text, *COMPARED, "--out", folder, "--json"))


@pytest.mark.slow
def test_the_scores_are_those_of_the_test_of_each_run(compared):
    """What `regard test` writes to the ledger is the reference."""
    folder, table = compared
    assert (table["task"], table["is_text"], table["metric"]) == ("language-modeling", True, "bits_per_byte")
    for model in table["models"]:
        assert model["scores"].keys() == {"perplexity"}
        low, high = model["score"]["interval"]
        assert low <= model["score"]["value"] <= high
        for seed, value in enumerate(model["seed_scores"]):
            ledger = (folder / f"{model['name']}-{seed}" / "ledger.jsonl").read_text().splitlines()
            lines = [line for line in map(json.loads, ledger) if line["set"] == "test"]
            assert [line["event"] for line in lines] == ["sealed", "opened", "evaluation", "selection"]
            assert (lines[1]["reason"], lines[3]["models"]) == ("comparison", 4)
            line = lines[2]
            assert value == pytest.approx(line["scores"]["bits_per_byte"]["value"], rel=1e-12)
            assert f"n:{table['rows']}|" in line["scores"]["bits_per_byte"]["signature"]
        for part in ("bytes:", "seeds:2", "stride:16", "window:16"):
            assert part in model["score"]["signature"]


def test_the_difference_has_the_sign_of_its_scores_and_the_lowest_is_best(compared):
    from regard.explanation.report import ComparisonView

    _, table = compared
    (pair,) = table["pairs"]
    first, second = (model["score"]["value"] for model in table["models"])
    assert pair["difference"] == pytest.approx(first - second)
    assert "window:16" in pair["signature"]
    lowest = min(table["models"], key=lambda model: model["score"]["value"])
    assert ComparisonView(table).ranking[0]["name"] == lowest["name"]
    assert ComparisonView(table).verdict.startswith(f"{lowest['name']} scores best, with the lowest bits per byte, ")


def test_the_folder_has_the_table_the_page_and_the_figure(compared):
    folder, table = compared
    assert json.loads((folder / "compare.json").read_text()) == table
    page = (folder / "compare.html").read_text()
    for words in ("with the lowest bits per byte", "text spans", "paired test of likelihoods", "perplexity"):
        assert words in page
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert len(table["samples"]) > 1
    for sample in table["samples"]:
        assert sample["outputs"].keys() == {"gpt", "lstm"}


@pytest.mark.slow
def test_models_and_seeds_are_added_and_nothing_is_trained_again(compared, regard, jobs_inside, text: Path):
    folder, before = compared
    kept = (folder / "gpt-0" / "result.json").stat().st_mtime_ns
    more = ["--models", "gpt,gru", "--steps", 8, "--seeds", "0,2", *SMALL]
    with jobs_inside():
        after = table_of(regard("compare", text, *more, "--out", folder, "--json"))
    assert [model["name"] for model in after["models"]] == ["gpt", "gru"]
    assert (folder / "gpt-0" / "result.json").stat().st_mtime_ns == kept
    assert after["models"][0]["seed_scores"][0] == before["models"][0]["seed_scores"][0]
    again = regard("compare", text, *COMPARED, "--out", folder, "--json")
    assert table_of(again) == before
    assert "4 of 4 runs are already finished" in again.err


def test_a_text_that_has_changed_is_an_error(compared, regard, text: Path):
    folder, _ = compared
    kept, plan = text.read_text(), (folder / "manifest.json").read_text()
    try:
        text.write_text(kept.replace("cat", "cow"))
        more = ["--models", "gpt,llama", *COMPARED[2:], "--quiet"]
        regard("compare", text, *more, "--out", folder).fails_with("a comparison on other data (of gpt-0)")
    finally:
        text.write_text(kept)
    assert (folder / "manifest.json").read_text() == plan


def test_the_terminal_shows_the_direction(compared, regard, text: Path):
    out = regard("compare", text, *COMPARED, "--out", compared[0]).succeeds().out
    assert "lower is better" in out
    assert "lower by" in out


@pytest.mark.slow
def test_windows_of_different_lengths_are_compared_where_they_end_together(regard, jobs_inside, tmp_path: Path):
    text, short = tmp_path / "long.txt", tmp_path / "short.toml"
    text.write_text(story(9000))
    short.write_text('preset = "gpt2"\n[model]\ncontext_length = 48\n')
    options = ["--models", f"gpt,{short}", "--steps", 2, "--json", *TINY]
    with jobs_inside():
        table = table_of(regard("compare", text, *options, "--out", tmp_path / "c"))
    windows = [model["score"]["signature"].split("window:")[1].split("|")[0] for model in table["models"]]
    assert windows == ["128", "48"]
    assert "window:128,48" in table["pairs"][0]["signature"]
    tokens = int(table["pairs"][0]["signature"].split("tokens:")[1].split("|")[0])
    assert table["rows"] == -(-tokens // 384)  # the least common multiple
    assert any("windows differ (gpt 128, short 48 tokens)" in note for note in table["notes"])


@pytest.mark.slow
def test_from_python_documents_equal_sizes_and_fewer_of_them(jobs_inside, tmp_path: Path):
    import regard

    documents = [(f"{number} {story(12 + number % 7)}",) for number in range(240)]
    settings = {"task": {"tokenizer": "bytes", "window": 8}, "train": {"device": "cpu", "batch_tokens": 64}}
    with jobs_inside():
        found = regard.compare(
            documents, ["gru", "gpt"], flops=1e9, params=34_000, sizes=[60], settings=settings,
            out=tmp_path / "compared", show_progress=False,
        )  # fmt: skip
    first, second = found.table["models"]
    assert all(abs(model["params"] - 34_000) <= 1_700 for model in (first, second))
    assert first["steps"] != second["steps"]
    num_training = first["by_size"][1]["rows"]
    assert all([part["rows"] for part in model["by_size"]] == [60, num_training] for model in (first, second))
    assert 60 < num_training < 240
    assert first["by_size"][1]["value"] == first["score"]["value"]
    assert any("not for gru, which cannot isolate them" in note for note in found.table["notes"])


def test_rows_must_have_equally_many_columns(tmp_path: Path):
    import regard

    with pytest.raises(regard.RegardError, match="1 in row 1 and 2 in row 2"):
        regard.compare([("a text",), ("one", "two")], ["gru", "gpt"], steps=1, out=tmp_path / "compared")


@pytest.mark.parametrize(
    ("num_words", "options", "parts"),
    [
        (400, ["--beam", "3"], ["compared by likelihoods", "beam_size=3 has no effect"]),
        (1500, ["--sizes", "10,20"], ["this text is continuous", "got 10, 20"]),
        (400, ["--set", "task.window=90"], ["at least two", "have 1 for windows of 90", "give more text"]),
        (40, ["--set", "task.window=900"], ["too few for one window of 900"]),
        (400, ["--set", "task.window=8", "--set", "task.stride=9"], ["model gpt: task.stride must be at most"]),
        (1500, ["--flops", "10"], ["less than one step of gpt, which needs"]),
        (400, ["--task", "seq2seq"], ["needed (source, target)"]),
        (400, ["--models", "gpt,pairs.toml"], ["one task, here language-modeling, but pairs.toml is for seq2seq"]),
        (400, ["--models", "gpt,long.toml", "--set", "task.window=32"], ["model long: learned positions must cover"]),
        (400, ["--models", "gpt,deep.toml"], ["model deep: a language model is decoder-only"]),
    ],
)
def test_what_cannot_be_compared_is_an_error_before_training(
    regard, tmp_path: Path, monkeypatch, num_words: int, options: list[str], parts: list[str]
):
    monkeypatch.chdir(tmp_path)
    Path("story.txt").write_text(story(num_words))
    Path("pairs.toml").write_text('[task]\nname = "seq2seq"\n')
    Path("long.toml").write_text('preset = "gpt2"\n[model]\ncontext_length = 16\n')
    Path("deep.toml").write_text("[model]\nencoder_layers = 1\n")
    models = [] if "--models" in options else ["--models", "gpt,lstm"]
    budget = [] if "--flops" in options else ["--steps", "3"]
    regard("compare", "story.txt", "--quiet", "--tokenizer", "characters", *models, *budget, *options).fails_with(
        *parts
    )
    assert not list(tmp_path.rglob("run.toml"))


def test_sizes_must_be_those_of_the_training_set(regard, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"text": " ".join(random.Random(number).choices(WORDS, k=12))}) for number in range(80)]
    Path("posts.jsonl").write_text("\n".join(rows) + "\n")
    options = ["--models", "gpt,llama", "--steps", 2, "--quiet", "--tokenizer", "bytes", "--set", "task.window=8"]
    regard("compare", "posts.jsonl", *options, "--sizes", 999).fails_with("1 to 64 documents, got 999")
    few = [*options, "--set", "task.window=70", "--sizes", 1]
    regard("compare", "posts.jsonl", *few).fails_with("too few for one window of 70")


@pytest.mark.slow
def test_a_comparison_of_mixtures_with_ngrams_says_so(regard, jobs_inside, text: Path, tmp_path: Path):
    options = ["--models", "gpt,lstm", "--steps", 2, *SMALL, "--set", "task.ngrams=2", "--json"]
    with jobs_inside():
        table = table_of(regard("compare", text, *options, "--out", tmp_path / "c"))
    note = "scores are of mixtures (gpt with 2-grams, lstm with 2-grams); task.ngrams=0 compares the networks alone"
    assert note in table["notes"]
    assert "ngrams:2" in table["pairs"][0]["signature"]
