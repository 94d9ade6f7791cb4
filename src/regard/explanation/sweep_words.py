"""What a sweep comes to, in words: who won, how much of that was luck, which settings matter, and the certificate."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.explanation.comparison_words import metric_name, say, say_count, say_score, say_seconds


def title_of(table: Mapping[str, Any]) -> str:
    """What was searched."""
    return f"{table['num_trials']:,} trials of {len(table['space'])} settings: {table['model']} on {table['data']}"


def lead_of(table: Mapping[str, Any]) -> str:
    """For what, and how."""
    goals = " and ".join(
        f"{'highest' if goal['direction'] == 'maximize' else 'lowest'} {metric_name(goal['name'])}"
        for goal in table["objectives"]
    )
    pruned = "" if table["pruner"] == "none" else f", pruned by {table['pruner'].capitalize()}"
    return f"{goals}; {table['budget']} a trial, proposed by {_SAMPLERS[table['sampler']]}{pruned}"


_SAMPLERS = {"random": "chance", "tpe": "TPE", "grid": "a grid"}


def findings_of(table: Mapping[str, Any]) -> Iterator[str]:
    """The sentences that matter, the certificate last."""
    yield _winner_sentence(table)
    if (luck := luck_of(table)) is not None:
        yield luck
    if len(table["objectives"]) > 1:
        numbers = sorted(trial["number"] for trial in table["trials"] if trial["is_front"])
        yield f"No trial beats trial {_listed(list(map(str, numbers)))} in one objective without losing in another."
    if table["importance"]:
        shares = sorted(table["importance"].items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares)
        yield f"What decides whether a trial is among the best quarter: {told}."
    ended = {state: sum(trial["state"] == state for trial in table["trials"]) for state in ("pruned", "failed")}
    if any(ended.values()):
        yield f"{' and '.join(f'{count} {state}' for state, count in ended.items() if count)} of the trials."
    yield certificate_of(table)


def certificate_of(table: Mapping[str, Any]) -> str:
    """Score, N, M and what that promises, in one line."""
    goal, value = table["objectives"][0]["name"], table["winner"]["value"]
    chosen = (
        f"{metric_name(goal)} {say(value, digits_of(table))} on N = {table['rows']:,} validation rows, "
        f"chosen among M = {table['hypotheses']:,} looks"
    )
    bound = table["bound"]
    if bound is None:
        return f"Certificate: {chosen}; it is no share of right rows, and so has no bound."
    ends = f"{bound['lower']:.3f} to {bound['upper']:.3f} with probability {1 - bound['delta']:g}"
    learns = table["sampler"] == "tpe" or table["pruner"] != "none"
    so_far = "; a guide and no promise, since earlier scores decided what was tried next" if learns else ""
    return f"Certificate: {chosen}: the true value lies in {ends} ({bound['name']}){so_far}."


def luck_of(table: Mapping[str, Any]) -> str | None:
    """What the winner's settings reach with other seeds; None where that was not tried."""
    winner, digits = table["winner"], digits_of(table)
    if winner["mean"] is None:
        return None
    count = len(winner["again"])
    reached = say_score(winner["mean"], winner["interval"], digits)
    seeds = "one other seed" if count == 1 else f"{count} other seeds"
    says = f"Trained again with {seeds}, its settings reach {reached}{'' if count == 1 else ' on average'}"
    luck, interval = winner["luck"], winner["interval"]
    if luck <= 0:
        return f"{says}: no worse than what won."
    is_sure = interval is not None and not interval[0] <= winner["value"] <= interval[1]
    doubt = "" if is_sure else f"; {'one seed' if count == 1 else f'{count} seeds'} cannot say how much of it is chance"
    return f"{says}: what won is {say(luck, digits)} better than that (the winner's curse){doubt}."


def columns_of(table: Mapping[str, Any]) -> list[str]:
    """The header of the table of trials."""
    goals = [metric_name(goal["name"]) for goal in table["objectives"]]
    return ["trial", *goals, *table["space"], "loss", "steps", "time", "parameters"]


def rows_of(table: Mapping[str, Any]) -> Iterator[list[str]]:
    """A row for each trial, best first."""
    digits, goals = digits_of(table), [goal["name"] for goal in table["objectives"]]
    for trial in table["trials"]:
        values = [say_value(trial["values"][goal], goal, digits) for goal in goals]
        if trial["state"] != "finished":
            values = [trial["state"], *("-" for _ in goals[1:])]
        tried = [say_setting(trial["settings"].get(name)) for name in table["space"]]
        loss = "-" if trial["loss"] is None else f"{trial['loss']:.4g}"
        size = [f"{trial['steps']:,}", say_seconds(trial["seconds"]), say_count(trial["parameters"])]
        yield [str(trial["number"]), *values, *tried, loss, *size]


def command_of(table: Mapping[str, Any], folder: Path) -> str:
    """What to type for the same sweep."""
    words = ["regard", "sweep", *table["paths"], str(folder / "space.toml"), "--trials", str(table["num_trials"])]
    words += ["--sampler", table["sampler"], "--pruner", table["pruner"], "--seed", str(table["seed"])]
    words += [word for goal in table["objectives"] for word in ("--objective", goal["name"])]
    words += [word for name, value in table["shared"].items() for word in ("--set", f"{name}={value}")]
    return shlex.join(words)


def digits_of(table: Mapping[str, Any]) -> int:
    """Decimals of the first objective: 3, or 2 from ten on."""
    return 2 if abs(table["winner"]["value"]) >= 10 else 3


def say_value(value: float | None, goal: str, digits: int) -> str:
    """A value of an objective, each in its own manner."""
    if goal == "parameters":
        return say_count(value)
    return say_seconds(value) if goal == "seconds" else say(value, digits)


def say_setting(value: object) -> str:
    """The value of a setting, in four digits."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _winner_sentence(table: Mapping[str, Any]) -> str:
    winner, goal = table["winner"], table["objectives"][0]["name"]
    tried = ", ".join(f"{name} {say_setting(value)}" for name, value in winner["settings"].items())
    reached = f"{metric_name(goal)} {say_value(winner['value'], goal, digits_of(table))}"
    return f"Trial {winner['number']} won with {reached}: {tried}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
