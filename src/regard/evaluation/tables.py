"""Scores as tables: a row for each metric with its interval, and a row for each label with precision and recall."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from regard.evaluation.metrics.classes import LabelCounts, f1, precision, recall
from regard.evaluation.registry import find_metric_of
from regard.evaluation.scores import Score

SCORE_HEADER = ("metric", "value", "95 % interval")
LABEL_HEADER = ("label", "precision", "recall", "F1", "support")
_NO_INTERVAL = "-"
_SAME_SCORE = "-: no interval, since every resample of the rows has the same score"


def main_scores(scores: Mapping[str, Score], *, has_labels: bool) -> list[Score]:
    """The scores, without those of single labels where a table of labels has these."""
    return [score for name, score in scores.items() if not has_labels or find_metric_of(name).name == name]


def score_cells(scores: Iterable[Score]) -> list[tuple[str, str, str]]:
    """The cells of a table with a row for each score."""
    return [(score.name, f"{score.value:.{score.digits}f}", _interval(score)) for score in scores]


def label_records(counts: LabelCounts) -> list[dict[str, Any]]:
    """Precision, recall, F1 and the number of actual occurrences of each label that occurs or was predicted.

    Example:
        >>> from regard.evaluation.metrics.classes import count_classes
        >>> label_records(count_classes(["a", "b", "b", "b"], ["a", "a", "b", "b"]))[0]
        {'label': 'a', 'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666, 'support': 2}
    """
    sums = counts.counts.sum(axis=0)
    measured = zip(counts.labels, *(measure(sums).tolist() for measure in (precision, recall, f1)), sums, strict=True)
    return [
        {"label": str(label), "precision": one, "recall": other, "f1": both, "support": int(total[2])}
        for label, one, other, both, total in measured
        if total[1:].any()
    ]


def label_cells(counts: LabelCounts) -> list[tuple[str, ...]]:
    """The cells of a table with a row for each label."""
    return [
        (each["label"], *(f"{each[name]:.3f}" for name in ("precision", "recall", "f1")), f"{each['support']:,}")
        for each in label_records(counts)
    ]


def format_scores(scores: Mapping[str, Score], counts: LabelCounts | None, *, num_rows: int | None) -> str:
    """The tables as text, in aligned columns; running text has no number of rows."""
    shown = main_scores(scores, has_labels=counts is not None)
    parts = [align_columns(SCORE_HEADER, score_cells(shown))]
    if any(score.interval is not None and not score.has_width for score in shown):
        parts.append(_SAME_SCORE)
    if num_rows is not None:
        parts.append(f"rows: {num_rows:,}")
    if counts is not None:
        parts += ["", align_columns(LABEL_HEADER, label_cells(counts))]
    return "\n".join(parts)


def align_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells in columns of equal width, separated by two spaces: the first one to the left, the others to the right.

    Example:
        >>> print(align_columns(["label", "F1"], [["sport", "0.75"], ["arts", "1"]]))
        label    F1
        sport  0.75
        arts      1
    """
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = (
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    )
    return "\n".join(line.rstrip() for line in lines)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells as an HTML table, for notebooks."""
    lines = [*([header] if header else []), *rows]
    cells = [
        "".join(f"<{tag} style='text-align:left'>{escape(text)}</{tag}>" for tag, text in _tagged(line, line is header))
        for line in lines
    ]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _tagged(cells: Sequence[str], is_header: bool) -> list[tuple[str, str]]:
    """The first cell of a row names it, as the header names columns."""
    return [("th" if is_header or not number else "td", text) for number, text in enumerate(cells)]


def _interval(score: Score) -> str:
    if score.interval is None or not score.has_width:
        return _NO_INTERVAL
    return " to ".join(f"{end:.{score.digits}f}" for end in score.interval)
