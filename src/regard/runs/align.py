"""Alignment: from a language model and preferences, or a reward, to a run."""

import os
from collections.abc import Mapping
from typing import Any, Unpack

from regard.data.builtin import find_builtin
from regard.data.settings import DataConfig
from regard.data.sources import is_builtin
from regard.runs.finetune import TuningOptions, finetune
from regard.runs.run import Run, split_paths_and_rows
from regard.runs.train import Data, given_values
from regard.settings import merge_tables
from regard.tasks.registry import alignment_task


def align(
    base: str | os.PathLike[str],
    data: Data | None = None,
    *,
    method: str = "dpo",
    reward: str | os.PathLike[str] | None = None,
    true_reward: str | os.PathLike[str] | None = None,
    beta: float | None = None,
    samples: int | None = None,
    prompts: int | None = None,
    max_tokens: int | None = None,
    lora: bool = False,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[TuningOptions],
) -> Run:
    """Align a language model with preferences, or with a reward.

    Args:
        base: The run folder of a language model, which is also the reference.
        data: A table of prompts with a chosen and a rejected answer, or with rated answers; or rows in memory.
        method: dpo, ipo, simpo or orpo, which learn from the pairs; reinforce, ppo or grpo, which learn from answers
            that the model samples to the prompts, and need a reward.
        reward: The run folder of a reward model, or a function `module:function` of a prompt and an answer.
        true_reward: The same, measured in each evaluation and never optimized; unset, that of a built-in data set.
        beta: The weight of the KL divergence from the base; unset, by the method.
        samples: Answers to each prompt, for reinforce, ppo and grpo.
        prompts: Prompts of a batch, for reinforce, ppo and grpo.
        max_tokens: Tokens of a sampled answer.
        lora: Train low-rank updates, and store only these; the reference is then the base itself, not a copy.
        settings: Any setting, nested as in `run.toml`; the arguments take precedence.
        options: Those of `regard.finetune`, such as `out`, `columns`, `minutes` and `seed`.
    """
    paths, _ = split_paths_and_rows(data)
    config = DataConfig(train=paths)
    if true_reward is None and paths and is_builtin(config):
        true_reward = find_builtin(paths[0]).true_reward
    task = alignment_task()
    chosen = given_values(
        task={
            "method": method,
            "reward": None if reward is None else _absolute(reward),
            "true_reward": None if true_reward is None else _absolute(true_reward),
            "beta": beta,
            "samples": samples,
            "prompts": prompts,
            "max_tokens": max_tokens,
        }
    )
    task.Settings.draft({**chosen["task"], "name": task.name}, section="task")  # a wrong value is reported at once
    return finetune(
        base, data, task=task.name, method="lora" if lora else "all",
        settings=merge_tables(settings or {}, chosen), **options,
    )  # fmt: skip


def _absolute(source: str | os.PathLike[str]) -> str:
    """The path of a run, independent of the current folder; a function as it is."""
    return os.path.abspath(source) if os.path.isdir(source) else str(source)
