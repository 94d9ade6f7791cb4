"""The comparison of several models: its findings, tables for the terminal, an interactive page, and a figure.

A comparison is the content of `compare.json`: the data and the budget, a score with its interval for each of the
`models`, a test of each of the `pairs`, and `samples` of the outputs. Models keep the user's order, and with it their
colors. `baseline`, where there is one, is the result of a simple model on the same rows, with the name of the best
`model`, which was tested against it. The `difference` of a pair is the score of `a` minus that of `b`: where lower is
better, it is negative where `a` is better. Where `is_text`, the models were not scored on rows but on spans of a text,
which `rows` then counts, and training sets are counted in documents.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.errors import ConfigError
from regard.evaluation.paired import SIGNIFICANCE
from regard.evaluation.registry import find_metric_of, score_label
from regard.explanation.colors import PALETTE
from regard.explanation.pages import write_page
from regard.explanation.report.formatting import (
    format_list,
    format_magnitude,
    format_memory,
    format_number,
    format_p,
    format_score,
    format_seconds,
    is_finite,
    label_of,
)
from regard.explanation.report.summary import FIGURE_SUFFIXES, SummaryTable
from regard.files import check_suffix

_LONGEST_TITLE = 64
"""A title lists the names of the models up to this length, and counts the models otherwise."""
_MOST_EQUALS = 3
"""The verdict names up to this many models that do not differ from the best one, and counts them otherwise."""
_MANY_PAIRS = 15
"""With more pairs than this, the terminal prints only those of the best model."""
_NARROWEST_BAR, _WIDEST_BAR = 12, 36


@dataclass(frozen=True, eq=False)
class ComparisonView:
    """A comparison with all that is derived from it; a rich console can print it."""

    comparison: Mapping[str, Any]

    def __post_init__(self) -> None:
        names = [model["name"] for model in self.models]
        if not names:
            raise ConfigError("a comparison needs at least one model, got none")
        if len(set(names)) < len(names):
            raise ConfigError(f"the models of a comparison must have different names, got {', '.join(names)}")
        for pair in self.comparison["pairs"]:
            if not {pair["a"], pair["b"]} <= set(names):
                raise ConfigError(f"a pair must be of {', '.join(names)}, got {pair['a']!r} and {pair['b']!r}")

    @property
    def models(self) -> Sequence[Mapping[str, Any]]:
        return self.comparison["models"]

    @property
    def baseline(self) -> Mapping[str, Any] | None:
        return self.comparison.get("baseline")

    @property
    def metric(self) -> str:
        return score_label(self.comparison["metric"])

    @property
    def is_lower_better(self) -> bool:
        return not find_metric_of(self.comparison["metric"]).higher_is_better

    @property
    def unit(self) -> str:
        """What scores are computed on."""
        return "text spans" if self.comparison["is_text"] else "rows"

    @property
    def size_unit(self) -> str:
        """What training sets are counted in."""
        return "documents" if self.comparison["is_text"] else "rows"

    @property
    def ranking(self) -> list[Mapping[str, Any]]:
        """The models, best first; one whose score is not finite comes last."""
        sign = 1.0 if self.is_lower_better else -1.0

        def order(model: Mapping[str, Any]) -> float:
            value = model["score"]["value"]
            return sign * value if is_finite(value) else math.inf

        return sorted(self.models, key=order)

    @property
    def leaders(self) -> list[str]:
        """The name of the best model and of those that do not differ significantly from it, best first."""
        best, *others = self.ranking
        tested = self._tests_of(best["name"])
        equals = [
            model for model in others if not tested.get(model["name"], True) and is_finite(model["score"]["value"])
        ]
        return [model["name"] for model in (best, *equals)]

    @property
    def digits(self) -> int:
        """Decimals of every score: 3 below 10 and 2 from there on, and one more where an interval is narrower."""
        intervals = [model["score"]["interval"] for model in self.models]
        values = [model["score"]["value"] for model in self.models]
        usual = 2 if max((abs(value) for value in values if is_finite(value)), default=0.0) >= 10 else 3
        narrowest = min((high - low for low, high in filter(None, intervals) if high > low), default=1.0)
        return usual if narrowest >= 2 * 10.0**-usual else usual + 1

    @property
    def title(self) -> str:
        names = [model["name"] for model in self.models]
        together = format_list(names, last="and")
        models = together if len(together) <= _LONGEST_TITLE else f"{len(names)} models"
        return f"{models} on {self.comparison['data']}, {self.comparison['budget']}"

    @property
    def subtitle(self) -> str:
        num_seeds = len(self.comparison["seeds"])
        seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
        metric = self.metric + (" (lower is better)" if self.is_lower_better else "")
        examples = f"{self.comparison['rows']:,} {self.unit}"
        return f"{self.comparison['task']}, {metric} on the same {examples}, {seeds} per model"

    @property
    def verdict(self) -> str:
        """Which model scores best, whether its lead is significant, and whether it is better than the baseline."""
        if self.baseline is None:
            return self._lead
        result = {"better": "significantly better than", "worse": "significantly worse than"}
        how = result.get(self.baseline["verdict"], "not significantly better than")
        value = format_number(self._baseline_score["value"], self.digits)
        return f"{self._lead} {self.baseline['model']} is {how} the baseline, {self.baseline['name']}: {value}."

    @property
    def _baseline_score(self) -> Mapping[str, Any]:
        assert self.baseline is not None
        return self.baseline["scores"][self.comparison["metric"]]

    @property
    def _lead(self) -> str:
        best, *equals = self.leaders
        value = self.ranking[0]["score"]["value"]
        if not is_finite(value):
            return "No model has a finite score."
        number = format_number(value, self.digits)
        score = f"with the lowest {self.metric}, {number}" if self.is_lower_better else f"{number} {self.metric}"
        sentence = f"{best} scores best, {score}"
        num_others = len(self.models) - 1
        if not equals and (num_others == 0 or len(self._tests_of(best)) < num_others):
            return f"{sentence}."
        if not equals:
            others = "the other" if num_others == 1 else "each of the others"
            return f"{sentence}; its lead over {others} is significant."
        if len(equals) <= _MOST_EQUALS:
            named = format_list(equals, last="or")
        else:
            named = f"{len(equals)} of the others" if len(equals) < num_others else "any of the others"
        if (reason := self._not_comparable(best, equals)) is not None:
            return f"{sentence}, but is not comparable with {named}: {reason}."
        return f"{sentence}, but not significantly better than {named}."

    @property
    def method(self) -> str:
        """How the pairs were tested, and what a significant difference means."""
        num_pairs, is_text = len(self.comparison["pairs"]), self.comparison["is_text"]
        compared = "likelihoods" if is_text else "outputs"
        corrected = f", with Holm's correction for {num_pairs} pairs" if num_pairs > 1 else ""
        seeds = (
            "The interval also covers the variation between seeds."
            if len(self.comparison["seeds"]) > 1
            else "With one seed, the result holds for the models as trained, not for other seeds."
        )
        dependence = " Spans of one text are not independent: intervals are too narrow, and p too small."
        return (
            f"Each pair was tested on the same {self.comparison['rows']:,} {self.unit} by a paired test of {compared}; "
            f"p is the probability of a difference this large between equal models{corrected}. A difference is "
            f"significant where p < {SIGNIFICANCE:g} and the interval excludes 0. {seeds}"
            f"{dependence if is_text else ''}"
        )

    @property
    def pairs(self) -> list[Mapping[str, Any]]:
        """The pairs, each with its better model as `a`, best models first."""
        rank = {model["name"]: place for place, model in enumerate(self.ranking)}
        turned = [pair if rank[pair["a"]] < rank[pair["b"]] else turned_pair(pair) for pair in self.comparison["pairs"]]
        return sorted(turned, key=lambda pair: (rank[pair["a"]], rank[pair["b"]]))

    def model_table(self, star: str = "★") -> SummaryTable:
        """The scores and the costs, a row for each model; `star` marks the best one and its equals."""
        digits, leaders, has_seeds = self.digits, self.leaders, len(self.comparison["seeds"]) > 1
        columns: dict[str, list[str]] = {
            "  model": [f"{star if model['name'] in leaders else ' '} {model['name']}" for model in self.models],
            self.metric: [format_score(m["score"]["value"], m["score"]["interval"], digits) for m in self.models],
        }
        if has_seeds:
            columns["seeds"] = [_format_range(model["seed_scores"], digits) for model in self.models]
        if self.comparison["is_text"]:
            columns["perplexity"] = [format_number(m["scores"]["perplexity"]["value"], 2) for m in self.models]
        columns |= {
            "parameters": [format_magnitude(model["params"]) for model in self.models],
            "tokens/s": [format_magnitude(model["tokens_per_s"]) for model in self.models],
            "time": [format_seconds(model["seconds"]) for model in self.models],
            "memory": [format_memory(model["memory_mib"]) for model in self.models],
        }
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        if self.baseline is not None:
            score = self._baseline_score
            shown = {"  model": "  baseline", self.metric: format_score(score["value"], score["interval"], digits)}
            rows.append([shown.get(name, "") for name in columns])
        return SummaryTable(
            name="scores",
            columns=list(columns),
            rows=rows,
            bold=[number for number, model in enumerate(self.models) if model["name"] in leaders],
            optional=[
                name for name in ("seeds", "memory", "time", "tokens/s", "parameters", "perplexity") if name in columns
            ],
        )

    def pair_table(self, *, with_intervals: bool = True) -> tuple[SummaryTable, str]:
        """The tests, a row for each pair, and a sentence on the pairs that are left out.

        Where lower is better, the difference is that of `b` minus `a`: by how much the first model is lower.
        """
        pairs, best, omitted = self.pairs, self.ranking[0]["name"], ""
        if len(pairs) > _MANY_PAIRS:
            others = [pair for pair in pairs if pair["a"] != best]
            num_significant = sum(pair["is_significant"] for pair in others)
            pairs = [pair for pair in pairs if pair["a"] == best]
            omitted = f" {len(others)} pairs of other models are not shown; {num_significant} differ significantly."
        leads = [turned_pair(pair) for pair in pairs] if self.is_lower_better else pairs
        intervals = [pair["interval"] if with_intervals else None for pair in leads]
        columns = {
            "  model": [f"  {pair['a']}" for pair in pairs],
            "vs.": [pair["b"] for pair in pairs],
            "lower by" if self.is_lower_better else "difference": [
                format_score(pair["difference"], interval, self.digits)
                for pair, interval in zip(leads, intervals, strict=True)
            ],
            "p": [format_p(pair["p"]) for pair in pairs],
            "": [_finding(pair) for pair in pairs],
        }
        table = SummaryTable(
            name="pairs",
            columns=list(columns),
            rows=list(zip(*columns.values(), strict=True)),
            left=(0, 1, 4),
            names=(0, 1),
            faint=[number for number, pair in enumerate(pairs) if not pair["is_significant"]],
        )
        return table, omitted

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        star, signs = ("*", "|-|o") if options.ascii_only else ("★", "├─┤●")
        yield Text(self.title, style="bold")
        yield Text(self.subtitle, style="dim")
        yield Text()
        table, left_out = self.model_table(star).fitted(width)
        yield self._with_bars(table, width, signs).draw(width)
        yield Text()
        legend = f"{star} the best{'' if len(self.leaders) == 1 else ', and models not significantly worse'}"
        legend += "; brackets: 95 % interval" + ("; lower is better" if self.is_lower_better else "")
        missing = [name for name in left_out if name != "seeds"]
        yield Text(legend + (f"; too narrow for {', '.join(missing)}" if missing else ""), style="dim")
        if self.comparison["pairs"]:
            yield Text()
            pairs, omitted = self.pair_table()
            yield (pairs if pairs.least_width() <= width else self.pair_table(with_intervals=False)[0]).draw(width)
            yield Text()
            yield Text(self.method + omitted, style="dim")
        yield Text()
        yield Text(self.verdict, style="bold")

    def _with_bars(self, table: SummaryTable, width: int, signs: str) -> SummaryTable:
        """The table with a column of scores and intervals on one axis, where there is space for it."""
        scores = [model["score"] for model in self.models] + ([self._baseline_score] if self.baseline else [])
        known = [end for score in scores for end in (score["value"], *(score["interval"] or ())) if is_finite(end)]
        room = min(_WIDEST_BAR, table.spare_width(width) - 2)
        if room < _NARROWEST_BAR or not known or min(known) == max(known):
            return table
        low, high = min(known), max(known)
        left, line, right, point = signs

        def place(number: float) -> int:
            return round((number - low) / (high - low) * (room - 1))

        def bar(value: float | None, interval: Sequence[float] | None) -> str:
            cells = [" "] * room
            if interval is not None and all(map(is_finite, interval)):
                start, end = map(place, interval)
                cells[start : end + 1] = line * (end + 1 - start)
                cells[start], cells[end] = left, right
            if is_finite(value):
                cells[place(value)] = point
            return "".join(cells)

        ends = format_number(low, self.digits), format_number(high, self.digits)
        axis = ends[0] + " " * (room - sum(map(len, ends))) + ends[1]
        bars = [bar(score["value"], score["interval"]) for score in scores]
        return replace(
            table,
            columns=[*table.columns[:2], axis, *table.columns[2:]],
            left=(0, 2),
            rows=[[*row[:2], bar, *row[2:]] for row, bar in zip(table.rows, bars, strict=True)],
        )

    def _not_comparable(self, name: str, others: Sequence[str]) -> str | None:
        """Why the scores of a model and of one of the others are artifacts of the metric; None where none is."""
        sides = [{name, other} for other in others]
        pairs = [pair for pair in self.comparison["pairs"] if {pair["a"], pair["b"]} in sides]
        return next((pair["not_comparable"] for pair in pairs if pair.get("not_comparable")), None)

    def _tests_of(self, name: str) -> dict[str, bool]:
        """For each model that was compared with the one called `name`, whether they differ significantly."""
        pairs = self.comparison["pairs"]
        return {pair["b"]: pair["is_significant"] for pair in pairs if pair["a"] == name} | {
            pair["a"]: pair["is_significant"] for pair in pairs if pair["b"] == name
        }


def write_comparison(path: str | os.PathLike[str], comparison: Mapping[str, Any]) -> None:
    """Writes the comparison as one HTML file."""
    view = ComparisonView(comparison)
    metrics = [comparison["metric"], *(name for model in view.models for name in model.get("scores", ()))]
    data = {
        **comparison,
        "title": view.title,
        "lead": view.subtitle,
        "verdict": view.verdict,
        "method": view.method,
        "metric_labels": {metric: label_of(metric) for metric in metrics},
        "ranking": [model["name"] for model in view.ranking],
        "leaders": view.leaders,
        "is_lower_better": view.is_lower_better,
        "unit": view.unit,
        "size_unit": view.size_unit,
        "digits": view.digits,
        "costs": _costs(view),
        "palette": PALETTE,
    }
    write_page(path, "comparison", title=view.title, data=data)


def draw_curves(comparison: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a figure (`.png`, `.svg`) of the validation loss and of the scores.

    Its panels are the validation loss over the seconds of training; the score by the length of the source or, where
    there is none, as a whole; and the score by the size of the training set, if several were tried.
    """
    path = check_suffix(path, FIGURE_SUFFIXES)
    view = ComparisonView(comparison)
    # Imported here, since importing matplotlib takes longer than printing a table.
    from regard.explanation.figures import save_figure
    from regard.explanation.report.plots import plot_comparison

    score = f"{view.metric} (lower is better)" if view.is_lower_better else view.metric
    save_figure(plot_comparison(view.models, title=view.title, score=score, size_unit=view.size_unit), path)


def turned_pair(pair: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the pair with its models exchanged."""
    interval = None if pair["interval"] is None else [-end for end in reversed(pair["interval"])]
    return {**pair, "a": pair["b"], "b": pair["a"], "difference": -pair["difference"], "interval": interval}


def _finding(pair: Mapping[str, Any]) -> str:
    if pair.get("not_comparable"):
        return "not comparable"
    return "significant" if pair["is_significant"] else "not significant"


def _costs(view: ComparisonView) -> list[dict[str, Any]]:
    """The columns of costs on the page: for each model a text, and its share of the largest."""
    columns = {
        "parameters": ("params", format_magnitude),
        "tokens/s": ("tokens_per_s", format_magnitude),
        "time": ("seconds", format_seconds),
        "memory": ("memory_mib", format_memory),
    }
    costs = []
    for name, (key, write) in columns.items():
        values = [model[key] for model in view.models]
        if known := [value for value in values if is_finite(value)]:
            shares = [value / (max(known) or 1.0) if is_finite(value) else 0.0 for value in values]
            costs.append({"name": name, "texts": [write(value) for value in values], "shares": shares})
    return costs


def _format_range(values: Sequence[float | None], digits: int) -> str:
    """Returns the lowest and the highest of the scores of the seeds."""
    known = [value for value in values if is_finite(value)]
    if not known:
        return "-"
    low, high = format_number(min(known), digits), format_number(max(known), digits)
    return low if low == high else f"{low} to {high}"
