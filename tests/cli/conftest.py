"""The command line, run inside the test's process: a tenth of a second where a process of its own takes three."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from tests.command_line import Answer, call

from regard.experiments.compare import run as compare_run
from regard.experiments.jobs import Job, run_job

TINY = ["--set", "model.model_dim=22", "--set", "model.num_heads=1", "--set", "model.feedforward_dim=31",
        "--set", "model.num_layers=1", "--set", "generate.max_tokens=12", "--tokenizer", "bytes",
        "--device", "cpu"]  # fmt: skip


@pytest.fixture(autouse=True)
def single_precision(exact_and_repeatable: None) -> None:
    """The command line trains in what a user gets."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True, scope="session")
def short_samples() -> Iterator[None]:
    """Reports on text have two continuations, which saves time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.tasks.language_modeling._NUM_PROMPTS", 2)
        yield


@contextmanager
def _inside() -> Iterator[None]:
    def run_one_by_one(jobs: Sequence[Job], **_: object) -> None:
        for job in jobs:
            if not job.is_done:
                run_job(job)

    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_run, "run_jobs", run_one_by_one)
        yield


@pytest.fixture(scope="session")
def jobs_inside() -> Callable[[], AbstractContextManager[None]]:
    """Lets a new comparison train inside the test's process: a process of its own needs five seconds to start.

    That they are processes otherwise is shown by `test_each_run_is_a_process_of_its_own`.
    """
    return _inside


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own, in which nothing half-written is left."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "REGARD_CACHE", str(folder))
        yield folder
    assert not list(folder.rglob("*.part"))


@pytest.fixture(scope="session")
def regard() -> Callable[..., Answer]:
    return call


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Options for a model that trains in a second."""
    return TINY


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 300 rows with a header."""
    path = tmp_path_factory.mktemp("data") / "dates.tsv"
    path.write_text(call("data", "show", "dates", "--rows", 300).succeeds().out, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(dates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 30 steps. A test that changes it takes `run`."""
    folder = tmp_path_factory.mktemp("runs") / "dates"
    torch.set_default_dtype(torch.float32)
    every = ["--set", "train.evaluate_every=10", "--set", "train.checkpoint_every=10"]
    call("train", dates, "--out", folder, "--steps", 30, *TINY, *every).succeeds()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be broken."""
    return Path(shutil.copytree(trained, tmp_path / "run"))
