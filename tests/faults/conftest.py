"""Faults that come from outside: signals, a full disk, a crash in the middle of a write."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def killing() -> ModuleType:
    """The functions of `kill_at_random.py`, which is a program of its own."""
    spec = importlib.util.spec_from_file_location("kill_at_random", Path(__file__).with_name("kill_at_random.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
