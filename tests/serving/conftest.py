"""Tiny runs of several tasks, and an application that serves them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from regard.runs.run import Run, load
from regard.runs.train import train
from regard.serving.app import make_app

ADJECTIVES = (("good", "+"), ("bad", "-"))
TOWNS = {"Ada": "London", "Emmy": "Erlangen", "Kurt": "Brno"}
LABELLED = [(f"{word} film number {number}", label) for number in range(40) for word, label in ADJECTIVES]
PAIRS = [(f"{word} {number}", f"{number} {word}") for number in range(40) for word, _ in ADJECTIVES]
DATA: dict[str, Any] = {
    "text-classification": LABELLED,
    "regression": [(text, str(number / 7)) for number, (text, _) in enumerate(LABELLED)],
    "seq2seq": PAIRS,
    "sentence-embedding": PAIRS,
    "token-classification": [
        ([name, "lives", "in", town, str(number)], ["B-PER", "O", "O", "B-LOC", "O"])
        for number in range(20)
        for name, town in TOWNS.items()
    ],
    "language-modeling": [(f"Once {text} came, and then another one.",) for text, _ in LABELLED],
    "masked-language-modeling": [(f"Once {text} came, and then another one.",) for text, _ in LABELLED],
}
INPUTS = {
    "text-classification": ["good film number 3", "a bad film"],
    "regression": ["good film number 3"],
    "seq2seq": ["good 3", "bad 17"],
    "sentence-embedding": ["good 3", "3 good"],
    "token-classification": ["Ada lives in Brno", "Kurt"],
    "language-modeling": ["Once good"],
    "masked-language-modeling": ["Once good ____ number 3 came"],
    "question-answering": ["Where was Ada born?\tAda was born in London in 1900."],
}
TINY = {
    "model": {"num_layers": 1, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17},
    "train": {"max_steps": 3, "batch_tokens": 300, "precision": "float32"},
    "generate": {"max_tokens": 17},
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run of each task, trained for a moment."""
    folder = tmp_path_factory.mktemp("runs")
    questions = folder / "questions.json"
    questions.write_text(json.dumps({"version": "1.1", "data": [_article(*each) for each in TOWNS.items()]}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        patch.setattr("regard.tasks.language_modeling._NUM_PROMPTS", 1)
        torch.set_default_dtype(torch.float32)
        for task, rows in {**DATA, "question-answering": str(questions)}.items():
            tokenizer = "words" if task == "masked-language-modeling" else "characters"
            train(rows, out=folder / task, task=task, tokenizer=tokenizer, settings=TINY, show_progress=False)
    return {task: load(folder / task, device="cpu") for task in INPUTS}


@pytest.fixture
def client(runs: dict[str, Run], single_precision: None) -> TestClient:
    """Asks an application that serves all of them; the first is that of classification."""
    return TestClient(make_app(list(runs.values())))


@pytest.fixture
def single_precision(exact_and_repeatable: None) -> None:
    """A server computes in what a user gets."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def classifier(runs: dict[str, Run]) -> Path:
    return runs["text-classification"].path


def _article(name: str, town: str) -> dict[str, Any]:
    start = len(f"{name} was born in ")
    paragraphs = [
        {
            "context": f"{name} was born in {town} in {year}.",
            "qas": [
                {
                    "id": f"{name}{year}",
                    "question": f"Where was {name} born?",
                    "answers": [{"text": town, "answer_start": start}],
                }
            ],
        }
        for year in range(1900, 1915)
    ]
    return {"title": name, "paragraphs": paragraphs}
