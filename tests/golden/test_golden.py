"""Golden runs: the same seeds give the losses, predictions and scores that are recorded in `runs/`.

A commit that changes a number on purpose makes the files again with `python -m tests.golden.remake`, and says why.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.golden.cases import CASES
from tests.golden.remake import HEADER, RUNS, read

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""Other CPUs add the terms of a sum in another order, so that float32 differs in its last digits, and each step of
training carries the difference on; the absolute tolerance is for numbers near zero, such as a correlation of noise."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with a cache of its own, in the precision that users get."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)
    return tmp_path / "case"


def differences(found: Any, recorded: Any, path: str = "") -> Iterator[str]:
    """Where two values differ: numbers beyond the tolerance, anything else at all."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        # Keys in their order: predictions of one input come before those of the next.
        if list(found) != list(recorded):
            yield f"{path}: keys {list(found)}, recorded {list(recorded)}"
            return
        for key in recorded:
            yield from differences(found[key], recorded[key], f"{path}/{key}")
    elif isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        for number, pair in enumerate(zip(found, recorded, strict=True)):
            yield from differences(*pair, f"{path}/{number}")
    elif isinstance(found, float) and isinstance(recorded, float | int):
        if not math.isclose(found, recorded, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            yield f"{path}: {found}, recorded {recorded}"
    elif type(found) is not type(recorded) or found != recorded:
        yield f"{path}: {found!r}, recorded {recorded!r}"


QUICK = {"pairs-transformer", "pairs-lstm", "text-gpt", "text-convolution", "masked-transformer", "labels-transformer",
         "numbers-transformer", "tags-transformer", "answers-transformer", "vectors-bag", "aspects-query-transformer",
         "images-vit", "finetune-head"}  # fmt: skip
"""One run of each task, each family and fine-tuning; the others are slow."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_a_run_gives_the_recorded_numbers(name: str, place: Path):
    recorded = read(name)
    del recorded[HEADER]
    assert list(differences(CASES[name].observe(place), recorded)) == []


def test_there_is_a_file_for_each_run_and_no_other():
    assert set(CASES) >= QUICK
    assert {path.stem for path in RUNS.iterdir()} == set(CASES)


def test_every_difference_is_found():
    recorded = {"loss": [2.5, 1.0], "text": "red cat", "interval": None}
    assert list(differences({"loss": [2.5 * (1 + 9e-6), 1.0], "text": "red cat", "interval": None}, recorded)) == []
    for found in (
        {"loss": [2.5 * (1 + 2e-5), 1.0], "text": "red cat", "interval": None},
        {"loss": [2.5], "text": "red cat", "interval": None},
        {"loss": [2.5, math.nan], "text": "red cat", "interval": None},
        {"loss": [2.5, 1.0], "text": "red  cat", "interval": None},
        {"loss": [2.5, 1.0], "text": "red cat", "interval": [0.0, 1.0]},
        {"loss": [2.5, 1.0], "text": "red cat"},
    ):
        assert len(list(differences(found, recorded))) == 1
