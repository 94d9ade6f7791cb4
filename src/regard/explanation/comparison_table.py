"""A comparison in the terminal: a table of the models, and one of their pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from regard.explanation.comparison_words import (
    digits_for,
    explanation_of,
    is_finite,
    is_lower_better,
    lead_of,
    leaders,
    metric_name,
    ranked,
    say,
    say_chance,
    say_count,
    say_memory,
    say_score,
    say_seconds,
    title_of,
    verdict_of,
)

MANY_PAIRS = 15
"""Of more pairs than this, only those of the best model are shown."""
NARROWEST_NAME = 14
NARROWEST_BAR, WIDEST_BAR = 12, 36
GAP = 2
"""Cells between two columns."""


@dataclass(frozen=True, eq=False)
class TerminalComparison:
    """The tables of a comparison, which a rich console can print."""

    comparison: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        comparison, width = self.comparison, options.max_width
        star, signs = ("*", "|-|o") if options.ascii_only else ("★", "├─┤●")
        yield Text(title_of(comparison), style="bold")
        yield Text(lead_of(comparison), style="dim")
        yield Text()
        columns, left_out = _fitted(_columns(comparison), _name_width(comparison), width)
        yield _model_table(comparison, columns, width, star=star, signs=signs)
        yield Text()
        yield Text(_legend(comparison, star, left_out), style="dim")
        if comparison["pairs"]:
            yield Text()
            shown, others = _chosen_pairs(comparison)
            yield _pair_table(shown, width, digits=digits_for(comparison), is_lower_better=is_lower_better(comparison))
            yield Text()
            yield Text(explanation_of(comparison) + _omission(others), style="dim")
        yield Text()
        yield Text(verdict_of(comparison), style="bold")


def _columns(comparison: Mapping[str, Any]) -> dict[str, list[str]]:
    """Header to cells, of all columns but that of the names."""
    models, digits = comparison["models"], digits_for(comparison)
    scores = [say_score(model["score"]["value"], model["score"]["interval"], digits) for model in models]
    columns = {metric_name(comparison["metric"]): scores}
    if len(comparison["seeds"]) > 1:
        columns["seeds"] = [_say_range(model["seed_scores"], digits) for model in models]
    if comparison["is_text"]:
        columns["perplexity"] = [say(model["scores"]["perplexity"]["value"], 2) for model in models]
    return columns | {
        "parameters": [say_count(model["params"]) for model in models],
        "tokens/s": [say_count(model["tokens_per_s"]) for model in models],
        "time": [say_seconds(model["seconds"]) for model in models],
        "memory": [say_memory(model["memory_mib"]) for model in models],
    }


def _fitted(columns: dict[str, list[str]], name_width: int, width: int) -> tuple[dict[str, list[str]], list[str]]:
    """The columns for which there is room beside the names, and the headers of what is left out.

    Names are cut short before a column is left out, except for the seeds, whose
    column is there only where nothing has to give way for it.
    """
    kept = dict(columns)
    left_out = []
    for header in ("seeds", "memory", "time", "tokens/s", "parameters", "perplexity"):
        names = name_width if header == "seeds" else min(name_width, NARROWEST_NAME)
        if header in kept and names + _total_width(kept) > width:
            del kept[header]
            left_out.append(header)
    return kept, [header for header in left_out if header != "seeds"]


def _model_table(
    comparison: Mapping[str, Any], columns: Mapping[str, Sequence[str]], width: int, *, star: str, signs: str
) -> Table:
    """One row for each model; what is left of the width goes to a bar of its interval, on one axis for all."""
    models, best = comparison["models"], leaders(comparison)
    room = width - _total_width(columns)
    name_width = max(1, min(_name_width(comparison), room))
    bars = _bars(models, room - _name_width(comparison) - GAP, digits=digits_for(comparison), signs=signs)
    table = _bare_table()
    _add_column(table, "  model", min_width=name_width)
    for number, header in enumerate(columns):
        _add_column(table, header, justify="right")
        if number == 0 and bars:
            _add_column(table, bars[0])
    for row, model in enumerate(models):
        cells = [cells[row] for cells in columns.values()]
        if bars:
            cells.insert(1, bars[row + 1])
        is_best = model["name"] in best
        name = f"{star if is_best else ' '} {_shortened(model['name'], name_width - 2)}"
        table.add_row(Text(name), *map(Text, cells), style="bold" if is_best else "")
    return table


def _bars(models: Sequence[Mapping[str, Any]], room: int, *, digits: int, signs: str) -> list[str]:
    """The ends of an axis, and for each model its interval and score on it; nothing where there is no room."""
    ends = [number for model in models for number in (model["score"]["value"], *(model["score"]["interval"] or ()))]
    known = [number for number in ends if is_finite(number)]
    if room < NARROWEST_BAR or not known or min(known) == max(known):
        return []
    width, low, high = min(room, WIDEST_BAR), min(known), max(known)
    left, line, right, point = signs

    def place(number: float) -> int:
        return round((number - low) / (high - low) * (width - 1))

    def bar(value: float | None, interval: Sequence[float] | None) -> str:
        cells = [" "] * width
        if interval is not None and all(map(is_finite, interval)):
            start, end = map(place, interval)
            cells[start : end + 1] = line * (end + 1 - start)
            cells[start], cells[end] = left, right
        if value is not None and is_finite(value):
            cells[place(value)] = point
        return "".join(cells)

    ends = say(low, digits), say(high, digits)
    axis = ends[0] + " " * (width - sum(map(len, ends))) + ends[1]
    return [axis, *(bar(model["score"]["value"], model["score"]["interval"]) for model in models)]


def _legend(comparison: Mapping[str, Any], star: str, left_out: Sequence[str]) -> str:
    is_alone = len(leaders(comparison)) == 1
    says = f"{star} the best{'' if is_alone else ', and what cannot be told apart from it'}; brackets: 95 % interval"
    says += "; lower is better" if is_lower_better(comparison) else ""
    return says + (f"; no room for {', '.join(left_out)}" if left_out else "")


def _chosen_pairs(comparison: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The pairs to show and the others, best models first, each pair with its better model as `a`."""
    names = [model["name"] for model in ranked(comparison)]
    rank = {name: place for place, name in enumerate(names)}
    turned = [pair if rank[pair["a"]] < rank[pair["b"]] else _turned(pair) for pair in comparison["pairs"]]
    turned.sort(key=lambda pair: (rank[pair["a"]], rank[pair["b"]]))
    if len(turned) <= MANY_PAIRS:
        return turned, []
    return [pair for pair in turned if pair["a"] == names[0]], [pair for pair in turned if pair["a"] != names[0]]


def _turned(pair: Mapping[str, Any]) -> Mapping[str, Any]:
    interval = None if pair["interval"] is None else [-end for end in reversed(pair["interval"])]
    return {**pair, "a": pair["b"], "b": pair["a"], "difference": -pair["difference"], "interval": interval}


def _pair_table(pairs: Sequence[Mapping[str, Any]], width: int, *, digits: int, is_lower_better: bool) -> Table:
    """One row for each pair; a model that is the first of all of them is named in the header only.

    Where lower is better it says by how much the first is lower, so that no sign has to be made out.
    """
    header = "lower by" if is_lower_better else "difference"
    leads = [_turned(pair) for pair in pairs] if is_lower_better else pairs
    tests = _tests(header, leads, digits, with_intervals=True)
    if width - _total_width(tests) < 2 * NARROWEST_NAME:
        tests = _tests(header, leads, digits, with_intervals=False)
    firsts = {pair["a"] for pair in pairs}
    names = {"model": [pair["a"] for pair in pairs], "against": [pair["b"] for pair in pairs]}
    if len(firsts) == 1:
        names = {f"{firsts.pop()} against": names["against"]}
    margin = 2
    name_width = max(3, (width - margin - _total_width(tests) + GAP) // len(names) - GAP)
    table = _bare_table()
    for number, header in enumerate(names):
        _add_column(table, " " * margin * (number == 0) + _shortened(header, name_width))
    for header, cells in tests.items():
        _add_column(table, header, justify="right" if header else "left", min_width=max(map(len, cells)))
    for row, pair in enumerate(pairs):
        first, *others = (_shortened(column[row], name_width) for column in names.values())
        cells = [" " * margin + first, *others, *(column[row] for column in tests.values())]
        table.add_row(*map(Text, cells), style="" if pair["is_real"] else "dim")
    return table


def _tests(
    header: str, pairs: Sequence[Mapping[str, Any]], digits: int, *, with_intervals: bool
) -> dict[str, list[str]]:
    """Header to cells, of all columns but those of the names; `header` is that of the differences."""
    return {
        header: [say_score(pair["difference"], pair["interval"] if with_intervals else None, digits) for pair in pairs],
        "p": [say_chance(pair["p"]) for pair in pairs],
        "": ["real" if pair["is_real"] else "not told apart" for pair in pairs],
    }


def _omission(pairs: Sequence[Mapping[str, Any]]) -> str:
    if not pairs:
        return ""
    num_real = sum(pair["is_real"] for pair in pairs)
    return f" Not shown are {len(pairs)} pairs of the others, {num_real} with a real difference."


def _bare_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="dim")


def _add_column(table: Table, header: str, **look: Any) -> None:
    """A column whose texts stay on one line, and are never taken for markup."""
    table.add_column(Text(header), no_wrap=True, overflow="ellipsis", **look)


def _total_width(columns: Mapping[str, Sequence[str]]) -> int:
    """Cells that the columns take, each with the gap before it."""
    return sum(max(map(cell_len, (header, *cells))) + GAP for header, cells in columns.items())


def _name_width(comparison: Mapping[str, Any]) -> int:
    """Cells of the longest name, with the place of the star before it."""
    return max(cell_len(model["name"]) for model in comparison["models"]) + 2


def _shortened(name: str, width: int) -> str:
    """`name` in at most `width` cells; its middle gives way, since names are often told apart by their ends."""
    if cell_len(name) <= width:
        return name
    head = set_cell_size(name, width // 2).rstrip()
    tail = name[::-1]
    while cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[:-1]
    return f"{head}…{tail[::-1]}"


def _say_range(values: Sequence[float | None], digits: int) -> str:
    """The lowest and the highest of the seeds' scores."""
    known = [value for value in values if value is not None and is_finite(value)]
    if not known:
        return "-"
    low, high = say(min(known), digits), say(max(known), digits)
    return low if low == high else f"{low} to {high}"
