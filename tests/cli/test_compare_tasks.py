"""`regard compare` on tags, questions and hidden tokens: the scores are those of each run, and rows are paired."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.test_tasks import rows_of_trees

NAMES = {"Ada": "London", "Emmy": "Erlangen", "Kurt": "Brno", "Alan": "Maida"}
SMALL = ["--set", "model.model_dim=16", "--set", "model.num_layers=1", "--set", "train.evaluate_every=2",
         "--set", "train.batch_tokens=200", "--device", "cpu"]  # fmt: skip
MODELS = ["--models", "lstm,transformer", "--steps", 4, "--seeds", 2]


def sentences(tags: str) -> str:
    """Columns of words and tags, an empty line between sentences."""
    rows = [f"{name} lives in {town} {number}" for number in range(20) for name, town in NAMES.items()]
    lines = ("\n".join(" ".join(pair) for pair in zip(row.split(), tags.split(), strict=True)) for row in rows)
    return "\n\n".join(lines) + "\n"


def questions() -> str:
    articles = [
        {"title": name, "paragraphs": [{"context": f"{name} was born in {town} in {year}.", "qas": [
            {"id": f"{name}{year}", "question": f"Where was {name} born?",
             "answers": [{"text": town, "answer_start": len(name) + 13}]}]}]}
        for name, town in NAMES.items() for year in range(1900, 1920)
    ]  # fmt: skip
    return json.dumps({"version": "1.1", "data": articles})


def conversations() -> str:
    rows = [
        {"messages": [{"role": "user", "content": f"Where does {name} number {number} live?"},
                      {"role": "assistant", "content": f"In {town}."}]}
        for number in range(12) for name, town in NAMES.items()
    ]  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


DATA = {
    "entities": ("entities.conll", lambda: sentences("B-PER O O B-LOC O"), []),
    "words": ("words.conll", lambda: sentences("NOUN VERB ADP NAME NUM"), []),
    "questions": ("questions.json", questions, ["--tokenizer", "characters"]),
    "masked": (
        "text.txt",
        lambda: "".join(f"{name} lives in {town}.\n" for _ in range(60) for name, town in NAMES.items()),
        ["--task", "masked-language-modeling", "--set", "task.window=16", "--tokenizer", "words"],
    ),
    "conversations": (
        "chats.jsonl", conversations,
        ["--models", "lstm,gpt", "--tokenizer", "characters", "--set", "task.max_length=60"],
    ),
    "trees": ("trees.mrg", lambda: "\n".join(rows_of_trees(60)), ["--set", "task.span_dim=7"]),
}  # fmt: skip
METRICS = {
    "entities": "entity_f1", "words": "accuracy", "questions": "answer_f1", "masked": "pseudo_perplexity",
    "conversations": "bits_per_byte", "trees": "bracket_f1",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATA)
def test_scores_are_means_over_runs(regard, jobs_inside, tmp_path: Path, kind: str):
    name, write, options = DATA[kind]
    (tmp_path / name).write_text(write())
    out = tmp_path / "compared"
    with jobs_inside():
        answer = regard("compare", tmp_path / name, *MODELS, *options, "--out", out, "--json", *SMALL).succeeds()
    table = json.loads(answer.out.splitlines()[-1])
    assert table["metric"] == METRICS[kind]
    for model in table["models"]:
        runs = [json.loads(results_of(path)) for path in model["runs"]]
        for metric, score in {table["metric"]: model["score"], **model["scores"]}.items():
            own = [run["scores"][metric]["value"] for run in runs]
            assert score["value"] == pytest.approx(sum(own) / len(own)), metric
    (pair,) = table["pairs"]
    first, second = (model["score"]["value"] for model in table["models"])
    assert pair["difference"] == pytest.approx(first - second)
    assert table["samples"]
    names = {model["name"] for model in table["models"]}
    assert all(set(sample["outputs"]) == names for sample in table["samples"])
    check_samples(kind, table)
    assert (out / "compare.html").stat().st_size > 0


def check_samples(kind: str, table: dict[str, Any]) -> None:
    targets = {sample["target"] for sample in table["samples"]}
    if kind == "questions":
        assert targets <= set(NAMES.values())
    if kind == "masked":
        assert all("____" in sample["source"] for sample in table["samples"])


def results_of(run: str) -> str:
    (found,) = Path(run).glob("*result*.json")
    return found.read_text(encoding="utf-8")


def test_masked_models_need_windows_of_one_length(regard, tmp_path: Path):
    name, write, _ = DATA["masked"]
    (tmp_path / name).write_text(write())
    short = tmp_path / "short.toml"
    short.write_text('preset = "tiny"\n[model]\npositions = "learned"\ncontext_length = 17\n')
    task = ["--task", "masked-language-modeling", "--tokenizer", "words"]
    options = ["--models", f"lstm,{short}", "--steps", 2, *task, "--device", "cpu"]
    answer = regard("compare", tmp_path / name, *options, "--out", tmp_path / "compared", "--quiet")
    answer.fails_with("masked models are compared in windows of one length", "17 for short", "set task.window")
    assert not (tmp_path / "compared").exists()


def test_embeddings_are_not_compared_yet(regard, dates: Path):
    answer = regard("compare", dates, "--task", "sentence-embedding", *MODELS, "--quiet")
    answer.fails_with("models for sentence-embedding cannot be compared yet")
