"""One cache of prepared data for all tests of tasks: its folders are named by the content of rows and settings."""

import pytest


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _use_cache(_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", _cache)
