"""Attention maps of encoders: those of the text as the task encodes it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.errors import ConfigError, DataError
from regard.explanation import record_attention
from regard.runs.run import Run
from regard.runs.train import train

TEXTS = [f"{word} film number {number}" for number in range(30) for word in ("good", "bad")]
DATA = {
    "text-classification": [(text, text.split()[0]) for text in TEXTS],
    "regression": [(text, str(number)) for number, text in enumerate(TEXTS)],
    "token-classification": [(text.split(), ["B-X", "O", "O", "O"]) for text in TEXTS],
    "masked-language-modeling": [(f"Once a {text} came to town.",) for text in TEXTS],
    "sentence-embedding": [(text, text[::-1]) for text in TEXTS],
}
HEADS = 3
TINY = {
    "model": {"num_layers": 2, "model_dim": 12, "num_heads": HEADS, "feedforward_dim": 17, "positions": "sinusoidal"},
    "train": {"max_steps": 2, "batch_tokens": 300, "precision": "float32"},
    "task": {"tokenizer": "words"},
}


def tiny_run(folder: Path, task: str, **settings: object) -> Run:
    own = {"features": False} if task == "token-classification" else {}
    values = {**TINY, "task": {**TINY["task"], **own}, **settings}
    return train(DATA[task], out=folder / "run", task=task, settings=values, show_progress=False)


@pytest.mark.parametrize("task", DATA)
def test_maps_are_of_the_text_with_its_start_and_end_tokens(tmp_path: Path, task: str):
    run = tiny_run(tmp_path, task)
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
    has_vector = task in ("masked-language-modeling", "sentence-embedding")
    assert maps.prediction == ("a vector of 12 numbers" if has_vector else run.predict("good film number 7"))


def test_a_blank_is_the_mask_token(tmp_path: Path):
    run = tiny_run(tmp_path, "masked-language-modeling")
    maps = run.attention("Once a ____ film")
    assert "<mask>" in maps.source_tokens
    assert maps.prediction == run.predict("Once a ____ film")


def test_a_model_without_attention_and_an_empty_text_are_errors(tmp_path: Path):
    transformer = tiny_run(tmp_path / "transformer", "text-classification")
    with pytest.raises(DataError, match="input 1 is empty"):
        transformer.attention(" ")
    lstm = tiny_run(tmp_path / "lstm", "text-classification", model={"model_dim": 12}, preset="lstm-tiny")
    with pytest.raises(ConfigError, match="Recurrent"):
        lstm.attention("good film")
