"""`regard align`: from a language model and preferences to a run."""

from typing import Annotated

from regard.cli.options import (
    TUNING_REMEDIES,
    Encoding,
    Epochs,
    Given,
    Lora,
    Minutes,
    NoBaseline,
    Overwrite,
    Rank,
    RunOut,
    Seed,
    SettingsFile,
    SkipBad,
    Steps,
    TestFile,
    TrainDevice,
    ValidFile,
    merge_settings,
    print_run,
    remedies,
    require_lora,
    training_options,
)
from regard.cli.output import Json, Quiet, RunPath, argument, configure_logging, option


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
    lora: Lora = False,
    rank: Rank = None,
    columns: Annotated[str | None, option("The columns: prompt,chosen,rejected[,rater]")] = None,
    encoding: Encoding = None,
    valid: ValidFile = None,
    test: TestFile = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    seed: Seed = None,
    device: TrainDevice = None,
    no_baseline: NoBaseline = False,
    settings: SettingsFile = None,
    set_: Annotated[Given, option("Any setting: --set task.clip=0.1", "--set", metavar="NAME=VALUE")] = None,
    skip_bad: SkipBad = None,
    overwrite: Overwrite = False,
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
    require_lora(rank, lora=lora)
    options = training_options(
        columns=columns, encoding=encoding, valid=valid, test=test, skip_bad=skip_bad, minutes=minutes, steps=steps,
        epochs=epochs, seed=seed, device=device,
    )  # fmt: skip
    from regard.runs.align import align

    with remedies(TUNING_REMEDIES):
        run = align(
            base, data or None, method=method, reward=reward, true_reward=true_reward, beta=beta, samples=samples,
            prompts=prompts, max_tokens=max_tokens, lora=lora, rank=rank, out=out,
            settings=merge_settings(settings, set_, options), baseline=not no_baseline,
            overwrite=overwrite, show_progress=not quiet,
        )  # fmt: skip
    print_run(run, json=json)
