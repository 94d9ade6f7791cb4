"""`regard align`: from a language model and preferences to a run."""

from typing import Annotated

import typer

from regard.cli.options import (
    Encoding,
    Epochs,
    Given,
    Minutes,
    RunOut,
    Seed,
    SettingsFile,
    SkipBad,
    Steps,
    TrainDevice,
    merge_settings,
    print_run,
    remedies,
    split_names,
)
from regard.cli.output import Json, Quiet, RunPath, argument, configure_logging, option
from regard.errors import ConfigError, RegardError, RunExistsError, StoppedError

_REMEDIES: dict[type[RegardError], str] = {
    RunExistsError: "the options are --overwrite and --out",
    StoppedError: "regard train --out RUN --resume resumes it",
}


def align_command(
    base: RunPath,
    data: Annotated[Given, argument("DATA", "A table of preferences, or the name of a built-in data set.")] = None,
    method: Annotated[str, option("dpo, ipo, simpo, orpo; or with a reward: reinforce, ppo, grpo.")] = "dpo",
    reward: Annotated[str | None, option("A run of a reward model, or a function module:function.")] = None,
    true_reward: Annotated[str | None, option("As --reward; it is measured, and never optimized.")] = None,
    beta: Annotated[float | None, option("The weight of the KL divergence from the base.")] = None,
    samples: Annotated[int | None, option("Answers to each prompt: reinforce, ppo, grpo.")] = None,
    prompts: Annotated[int | None, option("Prompts of a batch: reinforce, ppo, grpo.")] = None,
    max_tokens: Annotated[int | None, option("Tokens of a sampled answer.")] = None,
    out: RunOut = None,
    lora: Annotated[bool, typer.Option("--lora", help="Train low-rank updates, and store only these.")] = False,
    rank: Annotated[int | None, option("The rank of the updates, with --lora.")] = None,
    columns: Annotated[str | None, option("The columns: prompt,chosen,rejected[,rater]")] = None,
    encoding: Encoding = None,
    valid: Annotated[Given, option("A file of validation rows.")] = None,
    test: Annotated[Given, option("A file of test rows.")] = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    seed: Seed = None,
    device: TrainDevice = None,
    settings: SettingsFile = None,
    set_: Annotated[Given, option("Any setting: --set task.clip=0.1", "--set", metavar="NAME=VALUE")] = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Align a language model with preferences, or with a reward; the base is the reference.

    Examples:

      regard align runs/base prefs.jsonl --method dpo --lora

      regard align runs/base prefs.jsonl --method ppo --reward runs/reward

      regard align runs/base prefs.jsonl --method grpo --reward my_rewards:politeness --samples 8
    """
    configure_logging(quiet=quiet)
    if rank is not None and not lora:
        raise ConfigError(f"--rank needs --lora, got {rank} without it")
    from regard.runs.align import align

    with remedies(_REMEDIES):
        run = align(
            base, data or None, method=method, reward=reward, true_reward=true_reward, beta=beta, samples=samples,
            prompts=prompts, max_tokens=max_tokens, out=out, lora=lora, rank=rank, columns=split_names(columns),
            encoding=encoding, valid=valid, test=test, minutes=minutes, steps=steps, epochs=epochs, seed=seed,
            device=device, skip_bad=skip_bad, settings=merge_settings(settings, set_, {}), overwrite=overwrite,
            show_progress=not quiet,
        )  # fmt: skip
    print_run(run, json=json)
