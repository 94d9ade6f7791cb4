"""Every option of a command is an argument of the Python function, under the same name or a stated one."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli import align, compare, evaluate, finetune, predict, sweep, train
from regard.errors import BadRowsError, RegardError
from regard.experiments.manifest import shared_values
from regard.runs.finetune import TuningOptions
from regard.runs.run import Run

PRINTED = {"json", "quiet", "set_", "run"}
"""How results are printed; `--set` is the argument `settings`; the run is the object itself."""
GENERATION = {"beam", "temperature", "top_k", "top_p", "min_p", "max_tokens", "seed", "device"}
"""Options of generation are keyword arguments of `GenerationOptions`; the device is one of `regard.load`."""
FEW_SHOT = {"shots", "shot_seeds", "jobs"}
"""Arguments of `regard.few_shot`."""
OTHER_NAMES = {
    "no_auto_batch": "auto_batch", "no_baseline": "baseline",
    "lora": "method", "head": "method", "top": "top_layers", "given": "data",
    "objective": "objectives", "beam": "beam_size", "file": "data", "texts": "data", "also": "data",
    "paths": "num_paths", "processes": "num_processes",
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "function", "left_out"),
    [
        (train.train_command, regard.train, FEW_SHOT),
        (finetune.finetune_command, regard.finetune, FEW_SHOT),
        (align.align_command, regard.align, set(TuningOptions.__annotations__)),
        (compare.compare_command, regard.compare, set()),
        (sweep.sweep_command, regard.sweep, set()),
        (evaluate.evaluate_command, Run.evaluate, GENERATION),
        (predict.predict_command, Run.predict_table, {*GENERATION, "plot", "tree"}),
    ],
)
def test_options_of_commands_are_arguments(command: Callable[..., Any], function: Any, left_out: set[str]):
    options = set(inspect.signature(command).parameters) - PRINTED - left_out
    arguments = set(inspect.signature(function).parameters) | left_out
    assert {name for name in options if OTHER_NAMES.get(name, name) not in arguments} == set()


def test_what_alignment_shares_with_fine_tuning_are_arguments_of_fine_tuning():
    assert set(TuningOptions.__annotations__) <= set(inspect.signature(regard.finetune).parameters)


def test_the_package_shows_its_public_names_only():
    assert not hasattr(regard, "Any")
    assert not hasattr(regard, "import_module")


def test_options_of_experiments_become_settings():
    given = shared_values(task="seq2seq", columns=("a", "b"), encoding=None, tokenizer="bytes", device=None)
    assert given == {"task": {"name": "seq2seq", "tokenizer": "bytes"}, "data": {"columns": ["a", "b"]}}


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"encoding": "utf-17"}, "utf-17"),
        ({"device": "tpu"}, "tpu"),
        ({"columns": ["c"]}, r"\(c\)"),
        ({"tokenizer": "char"}, "char"),
    ],
)
def test_few_shot_experiments_take_the_options_of_data(tmp_path: Path, options: dict[str, Any], part: str):
    (tmp_path / "rows.tsv").write_text("".join(f"text {i}\t{'ab'[i % 2]}\n" for i in range(60)))
    with pytest.raises(RegardError, match=part):
        regard.few_shot(tmp_path / "rows.tsv", 3, out=tmp_path / "few", **options)
    assert not (tmp_path / "few").exists()


def test_bad_rows_are_skipped_from_python(tmp_path: Path):
    rows = [f"text {i}\t{'ab'[i % 2]}\n" for i in range(60)]
    (tmp_path / "rows.tsv").write_text("".join([*rows, "one column\n"]))
    shape = {"model": {"model_dim": 12, "num_heads": 1, "feedforward_dim": 17, "num_layers": 1}}
    options: dict[str, Any] = {"steps": 1, "tokenizer": "bytes", "device": "cpu", "settings": shape}
    with pytest.raises(BadRowsError, match="1 of 61"):
        regard.train(tmp_path / "rows.tsv", out=tmp_path / "run", skip_bad=False, **options)
    run = regard.train(tmp_path / "rows.tsv", out=tmp_path / "few", **options)
    assert run.settings.data.skip_bad is None
    (tmp_path / "rows.tsv").write_text("".join([*rows, *["one column\n"] * 4]))
    with pytest.raises(BadRowsError, match="4 of 64"):
        regard.train(tmp_path / "rows.tsv", out=tmp_path / "run", **options)
    run = regard.train(tmp_path / "rows.tsv", out=tmp_path / "run", skip_bad=True, auto_batch=False, **options)
    assert run.settings.data.skip_bad
    assert not run.settings.train.auto_batch
