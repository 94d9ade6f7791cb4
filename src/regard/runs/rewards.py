"""Rewards of answers: by a run of a reward model, or by a Python function."""

import importlib
import math
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.data.builtin import builtin_names, find_builtin
from regard.data.prepare import cache_folder
from regard.errors import ConfigError, RunError, WriteError
from regard.files import write_atomically
from regard.runs.folder import RunFolder
from regard.runs.run import Run
from regard.tasks.capabilities import RewardProvider, capability
from regard.training.precision import threads

TRUSTED_REWARDS = "REGARD_REWARDS"
"""The variable with functions, separated by commas, that runs of others may name as rewards."""
_REMEMBERED = "rewards.txt"
"""The file in the cache folder with the functions that the user has named."""
_MOST_SHOWN = 60


def load_reward(
    source: str,
    *,
    folder: Path | None = None,
    seconds: float = math.inf,
    device: str = "auto",
    is_named: bool = True,
) -> Callable[[Sequence[str], Sequence[str]], list[float]]:
    """A function of prompts and answers that returns the reward of each.

    A reward model reads texts, so it may have another tokenizer than the model that it scores.

    Args:
        source: A run of a reward model, or `module:function`, which is called with a prompt and an answer.
        folder: Relative paths are relative to it.
        seconds: The longest time that a function may take for one answer.
        device: Of a reward model.
        is_named: Whether the user of this machine has named it; one that only the settings of a run name is not called
            unless the user has named it before, since calling it runs its code.
    """
    path = Path(source) if folder is None or Path(source).is_absolute() else folder / source
    if RunFolder(path).settings_path.exists():
        run = Run(path, device=device)
        task = capability(run.task, RewardProvider)

        def by_run(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
            with threads(1):
                found = task.rewards(run.model, prompts, answers)
            return _require_finite(source, found, prompts, answers)

        return by_run
    if is_named:
        _remember(source)
    else:
        _require_known(source, folder)
    function = _find_function(source)

    def by_function(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        found = _call_each(source, function, prompts, answers, seconds)
        return _require_finite(source, found, prompts, answers)

    return by_function


def _require_known(source: str, folder: Path | None) -> None:
    """Raise if a function that a run names was never named by the user of this machine."""
    named = {name.strip() for name in os.environ.get(TRUSTED_REWARDS, "").split(",")}
    if source not in {*named, *_remembered(), *(find_builtin(name).true_reward for name in builtin_names())}:
        raise ConfigError(
            f"the settings of {folder} name the function {source!r} as a reward, and calling it runs code that has "
            f"not been named on this machine: if you trust it, set {TRUSTED_REWARDS}={source}"
        )


def _remember(source: str) -> None:
    """Note that the user has named a function, so that runs trained with it can be evaluated and resumed."""
    known = _remembered()
    if ":" in source and source not in known:
        path = cache_folder() / _REMEMBERED
        with suppress(OSError, WriteError):  # without a cache, the user names it again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, "".join(f"{one}\n" for one in [*known, source]).encode())


def _remembered() -> list[str]:
    try:
        return (cache_folder() / _REMEMBERED).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []


def _find_function(source: str) -> Callable[[str, str], Any]:
    module_name, colon, name = source.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(
            f"a reward is a run of a reward model or module:function, and {source!r} is neither a run nor has a colon"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a function in a file of the current folder is found, as by `python -m`
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"the module of the reward {source!r} cannot be imported: {error}") from None
    except AttributeError:
        raise ConfigError(f"the module {module_name} has no function {name!r}") from None
    if not callable(function):
        raise ConfigError(f"the reward {source!r} must be a function of a prompt and an answer, got {function!r}")
    return function


def _call_each(
    source: str, function: Callable[[str, str], Any], prompts: Sequence[str], answers: Sequence[str], seconds: float
) -> list[Any]:
    """Call the function in a thread, which a call that does not end cannot keep the process from ending."""
    done: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()

    def work() -> None:
        for prompt, answer in zip(prompts, answers, strict=True):
            try:
                done.put((function(prompt, answer), None))
            except Exception as error:  # a function of the user may raise anything
                done.put((None, error))
                return

    threading.Thread(target=work, daemon=True).start()
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        try:
            value, error = done.get(timeout=None if math.isinf(seconds) else seconds)
        except queue.Empty:
            raise RunError(
                f"the reward {source} took longer than {seconds:g} s (task.reward_seconds) for {_shown(prompt, answer)}"
            ) from None
        if error is not None:
            raise RunError(f"the reward {source} raised {type(error).__name__}: {error}, for {_shown(prompt, answer)}")
        found.append(value)
    return found


def _require_finite(source: str, found: Sequence[Any], prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    for value, prompt, answer in zip(found, prompts, answers, strict=True):
        try:
            is_finite = math.isfinite(value)
        except TypeError:
            is_finite = False
        if not is_finite:
            raise RunError(f"the reward {source} must be a finite number, got {value!r} for {_shown(prompt, answer)}")
    return [float(value) for value in found]


def _shown(prompt: str, answer: str) -> str:
    prompt, answer = (text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..." for text in (prompt, answer))
    return f"the answer {answer!r} to {prompt!r}"
