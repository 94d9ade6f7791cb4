"""`regard compare` on running text: bits per byte, of which fewer are better, on the same stretches for all models."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "dogs", "ran", "to", "doors", "while", "birds", "sang")
TINY = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "train.batch_tokens=64",
        "--set", "train.evaluate_every=4", "--tokenizer", "characters", "--device", "cpu"]  # fmt: skip
SMALL = [*TINY, "--set", "data.window=16"]
COMPARED = ["--models", "gpt,lstm", "--steps", 8, "--seeds", 2, *SMALL]


def story(num_words: int) -> str:
    rng = random.Random(0)
    return " ".join(rng.choice(WORDS) for _ in range(num_words)) + "\n"


def table_of(answer: Any) -> dict[str, Any]:
    return json.loads(answer.is_well().out.splitlines()[-1])


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


def test_the_scores_are_those_of_the_test_of_each_run(compared):
    """What `regard test` writes to the ledger is the reference."""
    folder, table = compared
    assert (table["task"], table["is_text"], table["metric"]) == ("language", True, "bits_per_byte")
    for model in table["models"]:
        assert model["scores"].keys() == {"perplexity"}
        low, high = model["score"]["interval"]
        assert low <= model["score"]["value"] <= high
        for seed, value in enumerate(model["seed_scores"]):
            ledger = (folder / f"{model['name']}-{seed}" / "ledger.jsonl").read_text().splitlines()
            looks = [look for look in map(json.loads, ledger) if look["set"] == "test"]
            assert [look["what"] for look in looks] == ["sealed", "opened", "evaluation", "selection"]
            assert (looks[1]["why"], looks[3]["models"]) == ("comparison", 4)
            look = looks[2]
            assert value == pytest.approx(look["scores"]["bits_per_byte"]["value"], rel=1e-12)
            assert f"n:{table['rows']}|" in look["scores"]["bits_per_byte"]["signature"]
        for part in ("bytes:", "seeds:2", "stride:16", "window:16"):
            assert part in model["score"]["signature"]


def test_the_pair_is_signed_as_it_says_and_the_lowest_is_best(compared):
    from regard.explanation.comparison_words import ranked, verdict_of

    _, table = compared
    (pair,) = table["pairs"]
    first, second = (model["score"]["value"] for model in table["models"])
    assert pair["difference"] == pytest.approx(first - second)
    assert "window:16" in pair["signature"]
    lowest = min(table["models"], key=lambda model: model["score"]["value"])
    assert ranked(table)[0]["name"] == lowest["name"]
    assert verdict_of(table).startswith(f"{lowest['name']} scores best, with the lowest bits per byte, ")


def test_the_folder_holds_the_table_the_page_and_the_figure(compared):
    folder, table = compared
    assert json.loads((folder / "compare.json").read_text()) == table
    page = (folder / "compare.html").read_text()
    for words in ("with the lowest bits per byte", "stretches of text", "likelihood beside likelihood", "perplexity"):
        assert words in page
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert len(table["samples"]) > 1
    for sample in table["samples"]:
        assert sample["outputs"].keys() == {"gpt", "lstm"}


@pytest.mark.slow
def test_a_model_and_a_seed_may_join_and_nothing_is_trained_again(compared, regard, text: Path):
    folder, before = compared
    more = ["--models", "gpt,gru", "--steps", 8, "--seeds", "0,2", *SMALL]
    answer = regard("compare", text, *more, "--out", folder, "--json")
    after = table_of(answer)
    assert "1 of 4 runs are there already" in answer.err
    assert [model["name"] for model in after["models"]] == ["gpt", "gru"]
    assert after["models"][0]["seed_scores"][0] == before["models"][0]["seed_scores"][0]
    again = regard("compare", text, *COMPARED, "--out", folder, "--json")
    assert table_of(again) == before
    assert "4 of 4 runs are there already" in again.err


def test_a_text_that_has_changed_is_not_compared_with_what_it_was(compared, regard, text: Path):
    folder, _ = compared
    kept, plan = text.read_text(), (folder / "plan.json").read_text()
    try:
        text.write_text(kept.replace("cat", "cow"))
        more = ["--models", "gpt,llama", *COMPARED[2:], "--quiet"]
        regard("compare", text, *more, "--out", folder).says_no("holds a comparison on other data (of gpt-0)")
    finally:
        text.write_text(kept)
    assert (folder / "plan.json").read_text() == plan


def test_the_terminal_says_which_way_is_better(compared, regard, text: Path):
    out = regard("compare", text, *COMPARED, "--out", compared[0]).is_well().out
    assert "lower is better" in out
    assert "lower by" in out


@pytest.mark.slow
def test_windows_of_different_lengths_are_compared_where_they_end_together(regard, tmp_path: Path):
    text, short = tmp_path / "long.txt", tmp_path / "short.toml"
    text.write_text(story(9000))
    short.write_text('preset = "gpt2"\n[model]\ncontext_length = 48\n')
    options = ["--models", f"gpt,{short}", "--steps", 2, "--json", *TINY]
    table = table_of(regard("compare", text, *options, "--out", tmp_path / "c"))
    windows = [model["score"]["signature"].split("window:")[1].split("|")[0] for model in table["models"]]
    assert windows == ["128", "48"]
    assert "window:128,48" in table["pairs"][0]["signature"]
    tokens = int(table["pairs"][0]["signature"].split("tokens:")[1].split("|")[0])
    assert table["rows"] == -(-tokens // 384)  # the least common multiple
    assert any("windows differ (gpt 128, short 48 tokens)" in note for note in table["notes"])


@pytest.mark.slow
def test_from_python_documents_equal_sizes_and_fewer_of_them(tmp_path: Path):
    import regard

    documents = [(f"{number} {story(12 + number % 7)}",) for number in range(240)]
    settings = {"data": {"tokenizer": "bytes", "window": 8}, "train": {"device": "cpu", "batch_tokens": 64}}
    found = regard.compare(
        documents, ["gru", "gpt"], flops=1e9, params=34_000, sizes=[60], settings=settings, out=tmp_path / "compared",
        show_progress=False,
    )  # fmt: skip
    first, second = found.table["models"]
    assert all(abs(model["params"] - 34_000) <= 1_700 for model in (first, second))
    assert first["steps"] != second["steps"]
    num_training = first["by_size"][1]["rows"]
    assert all([part["rows"] for part in model["by_size"]] == [60, num_training] for model in (first, second))
    assert 60 < num_training < 240
    assert first["by_size"][1]["value"] == first["score"]["value"]
    assert "documents are read by themselves, but run on into one another for gru" in found.table["notes"]


def test_rows_of_one_and_of_two_columns_do_not_go_together(tmp_path: Path):
    import regard

    with pytest.raises(regard.RegardError, match="row 1 has 1 columns"):
        regard.compare([("a text",), ("one", "two")], ["gru", "gpt"], steps=1, out=tmp_path / "compared")


@pytest.mark.parametrize(
    ("num_words", "options", "parts"),
    [
        (400, ["--beam", "3"], ["text is judged by how probable a model holds it", "beam_size=3 has no use"]),
        (1500, ["--sizes", "10,20"], ["a text that runs on", "got 10, 20"]),
        (400, ["--set", "data.window=90"], ["two at least", "have 1 for windows of 90", "give more text"]),
        (40, ["--set", "data.window=900"], ["too few for one window of 900"]),
        (400, ["--set", "data.window=8", "--set", "data.stride=9"], ["model gpt: data.stride must be at most"]),
        (1500, ["--flops", "10"], ["cannot train a step of gpt, which costs"]),
        (400, ["--task", "translation"], ["needed (source, target)"]),
        (400, ["--models", "gpt,pairs.toml"], ["one task, here language, but pairs.toml is for translation"]),
        (400, ["--models", "gpt,long.toml", "--set", "data.window=32"], ["model long: learned positions must reach"]),
        (400, ["--models", "gpt,deep.toml"], ["model deep: a language model is a decoder alone"]),
    ],
)
def test_what_cannot_be_compared_is_told_before_any_training(
    regard, tmp_path: Path, monkeypatch, num_words: int, options: list[str], parts: list[str]
):
    monkeypatch.chdir(tmp_path)
    Path("story.txt").write_text(story(num_words))
    Path("pairs.toml").write_text('task = "translation"\n')
    Path("long.toml").write_text('preset = "gpt2"\n[model]\ncontext_length = 16\n')
    Path("deep.toml").write_text("[model]\nencoder_layers = 1\n")
    models = [] if "--models" in options else ["--models", "gpt,lstm"]
    budget = [] if "--flops" in options else ["--steps", "3"]
    regard("compare", "story.txt", "--quiet", "--tokenizer", "characters", *models, *budget, *options).says_no(*parts)
    assert not list(tmp_path.rglob("run.toml"))


def test_too_many_documents_are_asked_for(regard, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"text": " ".join(random.Random(number).choices(WORDS, k=12))}) for number in range(80)]
    Path("posts.jsonl").write_text("\n".join(rows) + "\n")
    options = ["--models", "gpt,llama", "--steps", 2, "--quiet", "--tokenizer", "bytes", "--set", "data.window=8"]
    regard("compare", "posts.jsonl", *options, "--sizes", 999).says_no("1 to 72 documents here, got 999")
    few = [*options, "--set", "data.window=70", "--sizes", 1]
    regard("compare", "posts.jsonl", *few).says_no("too few for one window of 70")


@pytest.mark.slow
def test_an_interrupted_comparison_of_text_goes_on_where_it_stopped(text: Path, tmp_path: Path):
    folder = tmp_path / "comparison"
    options = ["--models", "gru,gpt", "--steps", 400, "--out", folder, "--json", *SMALL]
    command = [str(part) for part in (sys.executable, "-m", "regard", "compare", text, *options)]
    # With Ctrl-C as a terminal would have it, whoever started these tests.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not list(folder.rglob("metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert not list(folder.rglob("result.json"))
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    table = json.loads(finished.stdout.splitlines()[-1])
    assert [model["steps"] for model in table["models"]] == [400, 400]
    assert any("going on from step" in log.read_text() for log in (folder / "logs").iterdir())
