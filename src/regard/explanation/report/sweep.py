"""A sweep as a summary: its trials, the selected one, how much of its score was selection bias, and the bound.

A sweep is the content of `result.json`: its `trials`, best first, the `winner` with the scores of the same settings
under other seeds, the `importance` of each setting, N (`rows`), M (`hypotheses`) and the `bound`.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.evaluation.registry import score_label
from regard.explanation.report.formatting import (
    format_list,
    format_magnitude,
    format_number,
    format_score,
    format_seconds,
)
from regard.explanation.report.summary import Summary, SummaryTable
from regard.logging import format_duration

_NUM_PRINTED = 12
"""Trials that a terminal prints; the page has all of them."""
_SAMPLERS = {"random": "random search", "tpe": "TPE", "grid": "grid search"}


def sweep_summary(sweep: Mapping[str, Any], *, folder: Path = Path()) -> Summary:
    """Returns the summary of a sweep, whose space is in `folder`."""

    def figure():
        from regard.explanation.report.plots import plot_sweep

        return plot_sweep(sweep)

    columns, shares = _columns(sweep), _importance(sweep)
    importance = SummaryTable(
        name="importance of each setting",
        columns=["setting", "share"],
        rows=[[name, f"{100 * share:.1f} %"] for name, share in shares],
        note="The share of the variance of being among the best quarter that a setting explains (PED-ANOVA).",
        num_printed=0,
    )
    trials = SummaryTable(
        name="trials, best first",
        columns=columns,
        rows=list(_rows(sweep)),
        left=(),
        names=(),
        bold=(0,),
        optional=[name for name in ("loss", "steps", "time", "parameters") if name in columns],
        num_printed=_NUM_PRINTED,
    )
    return Summary(
        title=f"{sweep['num_trials']:,} trials of {len(sweep['space'])} settings: {sweep['model']} on {sweep['data']}",
        subtitle=_subtitle(sweep),
        findings=list(_findings(sweep)),
        tables=[trials, *([importance] if shares else [])],
        settings=list(_settings(sweep)),
        command=_command(sweep, folder),
        time=f"{format_duration(sum(trial['seconds'] or 0.0 for trial in sweep['trials']))} of training",
        figure=figure,
    )


def draw_sweep(sweep: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a figure (`.png`, `.svg`): the trials as parallel coordinates, and the score of the selected one."""
    from regard.explanation.figures import save_figure
    from regard.explanation.report.plots import plot_sweep

    summary = sweep_summary(sweep)
    save_figure(plot_sweep(sweep, title=summary.title, subtitle=summary.subtitle), Path(path))


def write_sweep(path: str | os.PathLike[str], sweep: Mapping[str, Any]) -> None:
    """Writes the sweep as one HTML file."""
    sweep_summary(sweep, folder=Path(path).parent).save(path)


def retraining_sentence(sweep: Mapping[str, Any]) -> str | None:
    """Returns what the selected settings reach with other seeds; None where they were not trained again."""
    winner, digits = sweep["winner"], digits_of(sweep)
    if winner["mean"] is None:
        return None
    count = len(winner["repeats"])
    seeds = "one other seed" if count == 1 else f"{count} other seeds"
    reached = format_score(winner["mean"], winner["interval"], digits)
    sentence = f"Trained again with {seeds}, these settings reach {reached}{'' if count == 1 else ' on average'}"
    optimism, interval = winner["optimism"], winner["interval"]
    if optimism <= 0:
        return f"{sentence}: no worse than the selected trial."
    is_sure = interval is not None and not interval[0] <= winner["value"] <= interval[1]
    doubt = "" if is_sure else f"; {'one seed is' if count == 1 else f'{count} seeds are'} too few to exclude chance"
    return f"{sentence}: the selected trial is {format_number(optimism, digits)} better (winner's curse){doubt}."


def format_objective(value: float | None, objective: str, digits: int) -> str:
    """Returns the value of an objective in its own unit."""
    if objective == "parameters":
        return format_magnitude(value)
    return format_seconds(value) if objective == "seconds" else format_number(value, digits)


def format_setting(value: object) -> str:
    """Returns the value of a setting, in four digits."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def digits_of(sweep: Mapping[str, Any]) -> int:
    """Returns the decimals of the first objective: 3, or 2 from ten on."""
    return 2 if abs(sweep["winner"]["value"]) >= 10 else 3


def _subtitle(sweep: Mapping[str, Any]) -> str:
    goals = " and ".join(
        f"{'highest' if goal['direction'] == 'maximize' else 'lowest'} {score_label(goal['name'])}"
        for goal in sweep["objectives"]
    )
    pruned = "" if sweep["pruner"] == "none" else f", pruned by {sweep['pruner'].capitalize()}"
    return f"{goals}; {sweep['budget']} per trial, proposed by {_SAMPLERS[sweep['sampler']]}{pruned}"


def _findings(sweep: Mapping[str, Any]) -> Iterator[str]:
    winner, goal = sweep["winner"], sweep["objectives"][0]["name"]
    tried = ", ".join(f"{name} {format_setting(value)}" for name, value in winner["settings"].items())
    value = format_objective(winner["value"], goal, digits_of(sweep))
    yield f"Trial {winner['number']} is best, with {score_label(goal)} {value}: {tried}."
    if (sentence := retraining_sentence(sweep)) is not None:
        yield sentence
    if len(sweep["objectives"]) > 1:
        numbers = [str(number) for number in sorted(t["number"] for t in sweep["trials"] if t["is_pareto_optimal"])]
        yield f"Pareto front: trial{'s' if len(numbers) > 1 else ''} {format_list(numbers, last='and')}."
    if shares := _importance(sweep):
        listed = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares)
        yield f"Importance of the settings (PED-ANOVA, best quarter of the trials): {listed}."
    ended = {state: sum(trial["state"] == state for trial in sweep["trials"]) for state in ("pruned", "failed")}
    if any(ended.values()):
        counts = " and ".join(f"{count} {state}" for state, count in ended.items() if count)
        yield f"{counts} of {sweep['num_trials']:,} trials."
    yield _bound_sentence(sweep)


def _bound_sentence(sweep: Mapping[str, Any]) -> str:
    goal, bound = sweep["objectives"][0]["name"], sweep["bound"]
    score = (
        f"{score_label(goal)} {format_number(sweep['winner']['value'], digits_of(sweep))} on N = {sweep['rows']:,} "
        f"validation rows, selected among M = {sweep['hypotheses']:,} candidates"
    )
    if bound is None:
        return f"Certificate: {score}; it is not a proportion of rows, so it has no bound."
    if (release := sweep.get("release")) is not None:
        score = (
            f"{score_label(goal)} {format_number(sweep['winner']['value'], digits_of(sweep))}, released by "
            f"{release['mechanism']} {release['parameter']:g} on N = {sweep['rows']:,} validation rows, one of "
            f"{sweep['hypotheses']:,} candidates"
        )
    ends = f"{bound['lower']:.3f} to {bound['upper']:.3f} with {100 * (1 - bound['delta']):g} % confidence"
    is_adaptive = (sweep["sampler"] == "tpe" or sweep["pruner"] != "none") and release is None
    caveat = "; a guide only, since earlier scores decided what was tried next" if is_adaptive else ""
    return f"Certificate: {score}: the true value lies in {ends} ({bound['name']}){caveat}."


def _columns(sweep: Mapping[str, Any]) -> list[str]:
    goals = [goal["name"] for goal in sweep["objectives"]]
    facts = [name for name in ("loss", "steps", "time", "parameters") if name not in goals]
    short = [name.rpartition(".")[2] for name in sweep["space"]]
    settings = short if len(set(short)) == len(short) else list(sweep["space"])
    return ["trial", *map(score_label, goals), *settings, *facts]


def _rows(sweep: Mapping[str, Any]) -> Iterator[list[str]]:
    digits, goals = digits_of(sweep), [goal["name"] for goal in sweep["objectives"]]
    for trial in sweep["trials"]:
        values = [format_objective(trial["values"][goal], goal, digits) for goal in goals]
        if trial["state"] != "finished":
            values = [trial["state"], *("-" for _ in goals[1:])]
        facts = {
            "loss": "-" if trial["loss"] is None else f"{trial['loss']:.4g}",
            "steps": f"{trial['steps']:,}",
            "time": format_seconds(trial["seconds"]),
            "parameters": format_magnitude(trial["parameters"]),
        }
        tried = [format_setting(trial["settings"].get(name)) for name in sweep["space"]]
        yield [str(trial["number"]), *values, *tried, *(text for name, text in facts.items() if name not in goals)]


def _importance(sweep: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Returns the share of each setting, largest first."""
    return sorted(sweep["importance"].items(), key=lambda item: -item[1])


def _settings(sweep: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "validation rows, N", f"{sweep['rows']:,}"
    yield "candidates, M", f"{sweep['hypotheses']:,}"
    if (release := sweep.get("release")) is None:
        yield "smallest decisive difference", f"{sweep['smallest_difference']:.3f}"
    else:
        yield release["mechanism"], f"{release['parameter']:g}, {release['query']:,} evaluations until the best"
    for name in ("sampler", "pruner", "budget", "seed"):
        yield name, str(sweep[name])
    yield "last hash of the ledger", sweep["ledger"][:16]


def _command(sweep: Mapping[str, Any], folder: Path) -> str:
    words = ["regard", "sweep", *sweep["paths"], str(folder / "space.toml"), "--trials", str(sweep["num_trials"])]
    words += ["--sampler", sweep["sampler"], "--pruner", sweep["pruner"], "--seed", str(sweep["seed"])]
    words += [word for goal in sweep["objectives"] for word in ("--objective", goal["name"])]
    words += [word for name, value in sweep["shared"].items() for word in ("--set", f"{name}={value}")]
    return shlex.join(words)
