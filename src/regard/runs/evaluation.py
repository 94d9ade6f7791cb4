"""The result of an evaluation: scores with what they were computed from, as tables, records and JSON."""

from dataclasses import dataclass
from typing import Any

from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts
from regard.evaluation.scores import Score
from regard.evaluation.tables import (
    LABEL_HEADER,
    SCORE_HEADER,
    format_scores,
    html_table,
    label_cells,
    label_records,
    main_scores,
    score_cells,
)
from regard.tasks.content import Prediction
from regard.tasks.task import Likelihoods


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Scores by name, and what they were computed from."""

    scores: dict[str, Score]
    headline: str
    """The name of the score that heads reports."""
    rows: list[tuple[str, ...]]
    predictions: list[Prediction]
    likelihoods: Likelihoods
    examples: Examples
    label_counts: LabelCounts | None = None
    """For each row and label the correct, predicted and actual occurrences, where targets are labels or entities."""
    has_rows: bool = True
    """Whether scores are over separate rows, whose number is printed."""

    @property
    def outputs(self) -> list[str]:
        return [prediction.output for prediction in self.predictions]

    def to_json(self) -> dict[str, Any]:
        """Each score under its name, and the number of rows."""
        return {**{name: score.to_json() for name, score in self.scores.items()}, "rows": len(self.rows)}

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary for each score, for `pandas.DataFrame`."""
        return [
            {"metric": name, "value": score.value, "low": score.interval and score.interval[0],
             "high": score.interval and score.interval[1], "rows": len(self.rows)}
            for name, score in self.scores.items()
        ]  # fmt: skip

    def label_records(self) -> list[dict[str, Any]]:
        """Precision, recall, F1 and support of each label, or of each type of entity; empty where there are none."""
        return [] if self.label_counts is None else label_records(self.label_counts)

    def __str__(self) -> str:
        """The tables that `regard evaluate` prints; signatures are in `to_json`."""
        return format_scores(self.scores, self.label_counts, num_rows=len(self.rows) if self.has_rows else None)

    def __repr__(self) -> str:
        shown = main_scores(self.scores, has_labels=self.label_counts is not None)
        values = ", ".join(f"{score.name}={score.value:.{score.digits}f}" for score in shown)
        return f"Evaluation({values}, rows={len(self.rows)})"

    def _repr_html_(self) -> str:
        """The tables that notebooks show."""
        shown = main_scores(self.scores, has_labels=self.label_counts is not None)
        tables = html_table(SCORE_HEADER, score_cells(shown))
        return (
            tables if self.label_counts is None else tables + html_table(LABEL_HEADER, label_cells(self.label_counts))
        )
