"""`regard rollout`: a model, or random actions, in an environment."""

from typing import Annotated

import typer

from regard.cli.output import Device, Json, Quiet, argument, configure_logging, option, print_json
from regard.errors import ConfigError

_INTERRUPTED = 130


def rollout_command(
    run: Annotated[str | None, argument("RUN", "A run folder; unset with --random.")] = None,
    env: Annotated[str, option("The name of an environment of gymnasium, such as CartPole-v1.")] = "",
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 100,
    target_return: Annotated[
        float | None, option("The return to reach. Unset: the best of the training episodes.", "--return")
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Random actions, without a run.")] = False,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0: the most probable action; 1: drawn from the model's distribution.")
    ] = 0.0,
    epsilon: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability of a random action.")] = 0.0,
    record: Annotated[str | None, option("Write the episodes to this file of JSON lines.")] = None,
    gif: Annotated[str | None, option("Write an animation of the first episode to this file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the environment and of random actions.")] = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> int:  # fmt: skip
    """Let a model act in an environment, and print its mean return with a 95 % interval.

    Episodes are stepped together, with one forward pass for all that are running. --record writes what `regard train`
    reads. --json prints the return and the length of each episode as well. Ctrl-C ends the rollout, and reports the
    episodes that are complete.

    Examples:

      regard rollout --env CartPole-v1 --random --episodes 200 --record random.jsonl

      regard rollout runs/cartpole --env CartPole-v1 --episodes 100 --return 500 --gif cartpole.gif

      regard rollout runs/cartpole --env CartPole-v1 --epsilon 0.3 --record more.jsonl
    """
    configure_logging(quiet=quiet)
    if not env:
        raise ConfigError("name an environment: --env CartPole-v1")
    if random == (run is not None):
        raise ConfigError("name a run, or --random for random actions" + (", not both" if random else ""))
    if random and epsilon:
        raise ConfigError("--epsilon is for the actions of a run, and with --random all are random")
    from regard.runs.rollout import rollout

    found = rollout(
        run,
        env=env,
        episodes=episodes,
        target_return=target_return,
        temperature=temperature,
        epsilon=epsilon,
        seed=seed,
        record=record,
        gif=gif,
        device=device,
    )
    if json:
        print_json({**found.to_json(), "record": record, "gif": gif})
    else:
        print(found)
    return 0 if found.is_complete else _INTERRUPTED
