"""Small attention maps, of prime sizes, in several scripts; comparisons; and pages as a browser draws them."""

import copy
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser import Browser

from regard.explanation import AttentionMaps
from regard.explanation.pages import page_data
from regard.explanation.tokens import visible

LAYERS, HEADS = 2, 3
SCORES = {"rnn": 0.41, "lstm": 0.67, "lstm-attention": 0.977, "transformer": 0.981}
TRICKY = "</script><b>&\"' {{data}} \u2028$x$"


def attention_of(source: str, target: str) -> AttentionMaps:
    """Random maps over the characters of two texts, each row summing to one and the decoder looking back only."""
    rng = np.random.default_rng(0)
    read, produced = (*source, "</s>"), (*target, "</s>")

    def weights(rows: int, columns: int, *, is_causal: bool = False) -> np.ndarray:
        scores = rng.exponential(size=(LAYERS, HEADS, rows, columns))
        scores *= np.tri(rows, columns) if is_causal else 1.0
        return (scores / scores.sum(axis=-1, keepdims=True)).astype(np.float32)

    return AttentionMaps(
        source_tokens=tuple(map(visible, read)),
        target_tokens=tuple(map(visible, produced)),
        target_inputs=("<s>", *map(visible, target)),
        weights={
            "encoder": weights(len(read), len(read)),
            "decoder": weights(len(produced), len(produced), is_causal=True),
            "cross": weights(len(produced), len(read)),
        },
        source=source,
        prediction=target,
    )


@pytest.fixture
def make_maps() -> Callable[[str, str], AttentionMaps]:
    return attention_of


@pytest.fixture
def maps() -> AttentionMaps:
    return attention_of("4 mars 2025", "2025-03-04")


@pytest.fixture
def tricky_text() -> str:
    """Text that would break out of HTML, of a script, of a template or of mathematical typesetting."""
    return TRICKY


def comparison_of(scores: dict[str, float], *, num_seeds: int = 2, metric: str = "exact_match") -> dict[str, Any]:
    """Models with these scores; a difference of more than a hundredth of the scale is significant."""
    scale = 100.0 if metric == "bleu" else 1.0
    seeds = list(range(num_seeds))
    models = [model_of(name, value, number, seeds, scale) for number, (name, value) in enumerate(scores.items())]
    pairs = [
        {
            "a": a,
            "b": b,
            "difference": scores[a] - scores[b],
            "interval": [scores[a] - scores[b] - 0.013 * scale, scores[a] - scores[b] + 0.011 * scale],
            "p": 0.0004 if abs(scores[a] - scores[b]) > 0.01 * scale else 0.227,
            "p_uncorrected": 0.0001,
            "is_significant": abs(scores[a] - scores[b]) > 0.01 * scale,
        }
        for a, b in combinations(scores, 2)
    ]
    return {
        "data": "dates",
        "task": "translation",
        "is_text": False,
        "metric": metric,
        "budget": "1 minute a run",
        "seeds": seeds,
        "rows": 2003,
        "hardware": "CPU, 1 thread a run, 2 runs at a time, float32",
        "version": "0.1.0",
        "notes": ["the rnn stopped early"],
        "models": models,
        "pairs": pairs,
        "samples": [
            {"source": "4 mars 2025", "target": "2025-03-04", "outputs": dict.fromkeys(scores, "2025-03-04")},
            {
                "source": "٤ مارس ٢٠٢٥",
                "target": "2025-03-04",
                "outputs": {
                    name: "2025-03-04" if value > 0.5 * scale else "2025-04-03" for name, value in scores.items()
                },
            },
        ],
    }


def model_of(name: str, value: float, number: int, seeds: list[int], scale: float) -> dict[str, Any]:
    interval = [value - 0.011 * scale, min(scale, value + 0.009 * scale)]
    parts = [{"value": value, "interval": interval}, {"value": value * 0.9, "interval": [value * 0.8, value]}]
    losses = [(step, 3.0 / step + 0.1 * number) for step in range(1, 14)]
    return {
        "name": name,
        "description": f"model {number}, 128 wide",
        "score": {"value": value, "interval": interval, "signature": "n:2003|version:0.1.0"},
        "seed_scores": [value - 0.002 * scale * seed for seed in seeds],
        "params": 246_000 * (number + 1),
        "tokens_per_s": 10_234.0 / (number + 1),
        "seconds": 61.2,
        "steps": 903,
        "memory_mib": 512.0 * (number + 1),
        "scores": {"chrf": {"value": 99.1 - number, "interval": [97.2 - number, 99.4 - number], "signature": "nc:6"}},
        "by_length": [
            {"low": 3, "high": 9, "rows": 1009, **parts[0]},
            {"low": 10, "high": 31, "rows": 994, **parts[1]},
        ],
        "by_size": [{"rows": 1000, **parts[1]}, {"rows": 10_000, **parts[0]}],
        "curves": [
            {
                "seed": seed,
                "points": [
                    {"step": 100 * step, "seconds": 4.7 * step, "tokens": 9001 * step, "valid_loss": loss + 0.01 * seed}
                    for step, loss in losses
                ],
            }
            for seed in seeds
        ],
        "runs": [f"runs/compare/{name}-{seed}" for seed in seeds],
    }


@pytest.fixture(scope="session")
def scores() -> dict[str, float]:
    """Of four models, two of which do not differ significantly."""
    return SCORES


@pytest.fixture(scope="session")
def make_comparison() -> Callable[..., dict[str, Any]]:
    return comparison_of


@pytest.fixture
def comparison() -> dict[str, Any]:
    return comparison_of(SCORES)


@pytest.fixture
def of_text() -> dict[str, Any]:
    """Language models by bits per byte: gpt is best, and not significantly better than llama."""
    of_text = comparison_of({"lstm": 2.71, "llama": 2.307, "gpt": 2.3}, metric="bits_per_byte")
    of_text |= {"data": "play.txt", "task": "language", "is_text": True, "rows": 97}
    of_text["samples"] = [
        {
            "source": "ROMEO: But soft",
            "target": ", what light",
            "outputs": {"lstm": " and", "llama": " is", "gpt": ", what light"},
        }
    ]
    for model in of_text["models"]:
        value = model["score"]["value"]
        model |= {
            "by_length": [],
            "scores": {"perplexity": {"value": 2**value, "interval": [1.5, 9.5], "signature": ""}},
        }
        model["score"]["interval"] = [value - 0.05, value + 0.05]
    return of_text


@pytest.fixture
def crowd() -> dict[str, Any]:
    """Twelve models with names that differ at their ends, three seeds, another scale."""
    scores = {f"transformer-of-the-kind-{letter}": 30.0 + 0.7 * place for place, letter in enumerate("abcdefghijkl")}
    return comparison_of(scores, num_seeds=3, metric="bleu")


@pytest.fixture
def odd() -> dict[str, Any]:
    """All that can be missing is missing, and what can fail to be finite does."""
    odd = comparison_of({"lost": float("nan"), "alone": 0.5})
    odd |= {"notes": [], "samples": [{"source": "ROMEO:", "target": None, "outputs": {"alone": ""}}]}
    odd["pairs"] = [{**odd["pairs"][0], "difference": float("nan"), "interval": None, "p": float("nan")}]
    for model in odd["models"]:
        model |= {"description": "", "by_length": [], "by_size": [], "scores": {}, "runs": [], "memory_mib": None}
        model["score"] |= {"interval": None}
        model["curves"] = [{"seed": 0, "points": []}]
    odd["models"][0]["curves"][0]["points"] = [
        {"step": 1, "seconds": 1.0, "tokens": 5, "valid_loss": loss} for loss in (float("inf"), 0.0)
    ]
    return odd


def in_foreign_words(comparison: dict[str, Any], text: str) -> dict[str, Any]:
    """The comparison with every text in it replaced, all but the names of metrics."""
    names = {model["name"]: f"{text}{number}" for number, model in enumerate(comparison["models"])}
    foreign = copy.deepcopy(comparison)
    foreign |= dict.fromkeys(("data", "task", "budget", "hardware", "version"), text)
    foreign["notes"] = [text]
    for model in foreign["models"]:
        model["name"] = names[model["name"]]
        model |= {"description": text, "runs": [text]}
        model["score"]["signature"] = text
    for pair in foreign["pairs"]:
        pair |= {side: names[pair[side]] for side in "ab"}
    foreign["samples"] = [{"source": text, "target": text, "outputs": {name: text + name for name in names.values()}}]
    return foreign


@pytest.fixture
def foreign() -> Callable[[dict[str, Any], str], dict[str, Any]]:
    return in_foreign_words


@pytest.fixture
def data_of() -> Callable[[Path], Any]:
    return page_data


@pytest.fixture(scope="session")
def drawn(browser: Browser) -> Callable[..., str]:
    """Opens a page and runs the JavaScript `then`; returns what is drawn, without the style and the data."""

    def draw(page: Path, *, then: str = "", width: int = 1000) -> str:
        browser.open(page.as_uri(), width=width)
        browser.settled_html()
        browser.run(then)
        html = browser.settled_html()
        error = re.search(r'<html[^>]* data-error="([^"]*)"', html)
        assert error is None, error and error[1]
        return html.split("<body>")[1].split('id="page-data"')[0]

    return draw
