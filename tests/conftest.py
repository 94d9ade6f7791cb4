"""Every test runs in float64, from one seed, on one thread."""

import gc
import os
from collections.abc import Generator, Iterator

import hypothesis
import pytest
import torch
from tests.browser import Browser, find_chromium, start_browser
from tests.command_line import same_logger
from tests.shape_checks import check_shapes_once, forget_checked_calls

from regard.startup import collect_rarely

check_shapes_once()  # before a module is imported whose functions are decorated
# An example may take any time: on a busy machine it takes much longer than alone.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")
collect_ignore_glob = ["*/remake*.py"]  # scripts that need other libraries than the tests
torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # the kernels are read by an interpreter, which needs no GPU


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the modules and thousands of tests, which live to the end, out of each garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        collect_rarely()  # as commands and their child processes do


@pytest.hookimpl(trylast=True)  # after those that were not asked for are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each worker begin with files that have slow tests, so that none of these is left for the end.

    A worker is first given an equal share of the list, in its order, and takes from the end of another's when it has
    none left; the tests of a file stay together, since they share fixtures.
    """
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if not num_workers:
        return
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = {path for path, own in files.items() if any(item.get_closest_marker("slow") for item in own)}
    quick = [item for path, own in files.items() if path not in slow for item in own]
    ordered: list[pytest.Item] = []
    share = len(items) / num_workers
    for worker in range(num_workers):
        for path in [path for path in files if path in slow][worker::num_workers]:
            ordered += files[path]
        missing = round(share * (worker + 1)) - len(ordered)
        ordered += quick[:missing] if missing > 0 else []
        quick = quick[missing:] if missing > 0 else quick
    items[:] = ordered + quick


@pytest.fixture(autouse=True)
def exact_and_repeatable() -> Iterator[None]:
    """Run each test in float64 from one seed.

    In float64 two right implementations agree to about 1e-12, so tests keep
    PyTorch's default tolerances and a loosened one is a finding, not a fix.
    """
    # Without a GPU `torch.manual_seed` records where it was called from, which takes as long as a small test.
    torch.manual_seed(0) if torch.cuda.is_available() else torch.default_generator.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def checked_shapes() -> None:
    """Check the shapes of each test's calls whatever ran before."""
    forget_checked_calls()


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    with same_logger():
        yield


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that all tests of a process share; without Chromium and ChromeDriver they are skipped."""
    found = find_chromium()
    if found is None:
        pytest.skip("Chromium and ChromeDriver are not installed")
    with start_browser(*found, profile=tmp_path_factory.mktemp("profile")) as started:
        yield started
