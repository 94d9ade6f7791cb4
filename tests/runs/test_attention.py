"""Attention of models that read: the maps are those of the text as the task puts it to the model."""

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.errors import ConfigError, DataError
from regard.explanation.record import record_attention
from regard.runs.launch import train
from regard.runs.run import Run

TEXTS = [f"{word} film number {number}" for number in range(30) for word in ("good", "bad")]
DATA = {
    "classification": [(text, text.split()[0]) for text in TEXTS],
    "regression": [(text, str(number)) for number, text in enumerate(TEXTS)],
    "tagging": [(text.split(), ["B-X", "O", "O", "O"]) for text in TEXTS],
    "masked": [(f"Once a {text} came to town.",) for text in TEXTS],
    "embedding": [(text, text[::-1]) for text in TEXTS],
}
HEADS = 3
TINY = {
    "model": {"num_layers": 2, "model_dim": 12, "num_heads": HEADS, "feedforward_dim": 17, "positions": "sinusoidal"},
    "train": {"max_steps": 2, "batch_tokens": 300, "precision": "float32"},
    "data": {"tokenizer": "words"},
}


def tiny_run(folder: Path, monkeypatch: pytest.MonkeyPatch, task: str, **model: object) -> Run:
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    torch.set_default_dtype(torch.float32)
    settings = {**TINY, "task": task, **model}
    return train(DATA[task], out=folder / "run", settings=settings, show_progress=False)


@pytest.mark.parametrize("task", DATA)
def test_the_maps_are_those_of_the_text_between_its_ends(tmp_path: Path, monkeypatch, task: str):
    run = tiny_run(tmp_path, monkeypatch, task)
    maps = run.attention("good film number 7")
    ids = [run.tokenizer.start, *run.tokenizer.encode(["good film number 7"])[0], run.tokenizer.end]
    model: torch.nn.Module = run.model
    with torch.inference_mode(), record_attention(model) as weights:
        model.body.encode(torch.tensor([ids]))  # pyright: ignore
    assert maps.kinds == ("encoder",)
    assert len(maps.source_tokens) == len(ids) == 6
    assert maps.source_tokens[1:3] == ("good", "film")
    assert maps.weights["encoder"].shape == (2, HEADS, 6, 6)
    np.testing.assert_allclose(maps.weights["encoder"], np.stack([found[0].numpy() for found in weights.values()]))
    assert maps.prediction == (
        "a vector of 12 numbers" if task in ("masked", "embedding") else run.predict("good film number 7")
    )


def test_a_blank_is_seen_as_the_model_sees_it(tmp_path: Path, monkeypatch):
    run = tiny_run(tmp_path, monkeypatch, "masked")
    maps = run.attention("Once a ____ film")
    assert "<mask>" in maps.source_tokens
    assert maps.prediction == run.predict("Once a ____ film")


def test_a_model_without_attention_and_a_text_of_nothing_are_told(tmp_path: Path, monkeypatch):
    transformer = tiny_run(tmp_path / "transformer", monkeypatch, "classification")
    with pytest.raises(DataError, match="input 1 is empty"):
        transformer.attention(" ")
    lstm = tiny_run(tmp_path / "lstm", monkeypatch, "classification", model={"model_dim": 12}, preset="lstm-tiny")
    with pytest.raises(ConfigError, match="no attention to look at in this model: it is of family recurrent"):
        lstm.attention("good film")
