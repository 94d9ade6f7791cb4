"""The baseline beside a run's scores: fitted on the same training rows, scored on the same validation rows, tested."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from regard.data.prepare import Prepared
from regard.data.stores.tokens import TokenStream
from regard.errors import DataError
from regard.evaluation.examples import Examples
from regard.evaluation.paired import compare_all
from regard.evaluation.registry import find_metric, score_examples, score_label
from regard.logging import log_info
from regard.tasks.task import Task
from regard.training.settings import ResolvedSettings

if TYPE_CHECKING:
    from regard.runs.evaluation import Evaluation
    from regard.runs.run import Run

_BASE = "the model before training"
_FEW_ROWS = 2_000
"""With fewer training rows, more of them are likely to help."""
_FEW_SCORED = 100
"""A test on fewer validation rows shows large differences only."""
_BUDGET_USED = 0.95
"""A run that used less of its budget stopped early, and would not have used more."""
_MOST_ADVICE = 3
_OTHER_MODELS = {"encoder-decoder": "lstm-attention", "encoder": "lstm", "decoder": "lstm"}


@dataclass(frozen=True, kw_only=True)
class BaselineResult:
    """The scores of the baseline on the rows of a run's report, and the difference of the model from it."""

    name: str
    """The method, and the number of rows that it was fitted on where these are not all."""
    seconds: float
    """Seconds of fitting and predicting."""
    headline: str
    """The name of the score by which both are compared."""
    scores: dict[str, dict[str, Any]]
    """The baseline's, by name, each with its value, interval and signature."""
    model_score: float
    difference: float
    """The headline score of the model minus that of the baseline."""
    interval: tuple[float, float] | None = None
    """The interval of the difference; like `p`, None where there are too few rows for a test."""
    p: float | None = None
    verdict: Literal["better", "worse", "not significant"]
    """The model against the baseline; `better` and `worse` are significant differences."""
    advice: tuple[str, ...] = ()
    """The changes most likely to help, where the model is not better."""

    @property
    def score(self) -> float:
        """The headline score of the baseline."""
        return self.scores[self.headline]["value"]

    @property
    def is_perfect(self) -> bool:
        """Whether the model and the baseline have the highest possible score, where there is one."""
        return find_metric(self.headline).higher_is_better and self.model_score == self.score == 1.0

    @property
    def is_beaten(self) -> bool:
        """Whether the model is significantly better."""
        return self.verdict == "better"

    @property
    def sentence(self) -> str:
        """How the model compares with the baseline, in one sentence."""
        verdicts = {"better": "significantly better than", "worse": "significantly worse than",
                    "not significant": "not significantly better than"}  # fmt: skip
        metric = find_metric(self.headline)
        values = f"{score_label(self.headline)} {metric.format(self.model_score)} against {metric.format(self.score)}"
        return f"the model is {verdicts[self.verdict]} the baseline, {self.name}: {values} ({_format_p(self.p)})"

    def to_json(self) -> dict[str, Any]:
        """The content of `baseline.json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "BaselineResult":
        """The result that `to_json` wrote; a ValueError for other values."""
        return TypeAdapter(cls).validate_python(values)


def compare_with_baseline(
    task: Task[Any], data: Prepared, rows: Sequence[Sequence[str]], examples: Sequence[Examples], headline: str
) -> BaselineResult | None:
    """Fit the task's baseline on the training rows, and test its scores on `rows` against those of a model.

    Args:
        task: The task, with the codecs of the model.
        data: The training rows.
        rows: The rows to score.
        examples: What the model produced for these rows, for each of its seeds.
        headline: The metric by which they are compared.

    Returns:
        None where the task has no baseline, or the data does not allow one, which is logged.
    """

    def fit() -> tuple[str, Examples]:
        baseline = task.baseline(data)
        if baseline is None:
            raise DataError(task.why_no_baseline or f"{task.description} has none")
        return baseline.name_for(len(data.train)), task.baseline_examples(baseline, rows)

    return _compare(task, fit, examples, headline)


def compare_with_base(run: "Run", evaluation: "Evaluation") -> BaselineResult | None:
    """The model that a run started from as its baseline, scored on the rows of an evaluation of the run."""
    return _compare(
        run.task,
        lambda: (_BASE, run.evaluate_base(evaluation.rows)),
        [evaluation.examples],
        evaluation.headline,
    )


def _compare(
    task: Task[Any], make: Callable[[], tuple[str, Examples]], examples: Sequence[Examples], headline: str
) -> BaselineResult | None:
    """Test what `make` returns, the name of a baseline and its examples, against a model; None where it fails."""
    start = time.perf_counter()
    try:
        name, found = make()
        seconds = time.perf_counter() - start
        names = [name for name in task.metric_names() if _has_needs(name, found)]
        scores = {score.name: score.to_json() for score in score_examples(names, found)}
        *ours, theirs = task.align([*examples, found])
        test = _test(headline, ours, theirs)
    except Exception as error:  # whatever a baseline fails by, the trained model is not to be lost by it
        log_info(f"no baseline: {' '.join(str(error).split()) or type(error).__name__}")
        return None
    return BaselineResult(name=name, seconds=seconds, headline=headline, scores=scores, **test)


def advise(
    settings: ResolvedSettings,
    task: Task[Any],
    data: Prepared,
    *,
    used: float,
    num_scored: int | None = None,
    is_perfect: bool = False,
) -> tuple[str, ...]:
    """The changes most likely to make a model better than its baseline, or to show that it is.

    Args:
        settings: Those of the run.
        task: Its task.
        data: Its training rows.
        used: The share of the budget that was used.
        num_scored: The number of validation rows, where these may be too few for a significant difference.
        is_perfect: Whether no higher score is possible: then only other validation rows can show a difference.
    """
    train, tuned, found = settings.train, settings.finetune, list[str]()
    if num_scored is not None and (is_perfect or num_scored < _FEW_SCORED):
        found.append(f"more validation rows than {num_scored:,} (--valid, or data.splits)")
    if is_perfect:
        return tuple(found)
    if used >= _BUDGET_USED:
        budgets = (("minute", train.minutes), ("step", train.max_steps), ("epoch", train.max_epochs))
        given = [f"{value:,g} {unit}{'' if value == 1 else 's'}" for unit, value in budgets if value is not None]
        found += [f"training for more than {budget}" for budget in given[:1]]
    if tuned is not None and tuned.method != "all":
        found.append(f"fine-tuning of all weights, finetune.method is {tuned.method}")
    if tuned is None and task.input_kind in ("tokens", "pixels"):
        found.append("fine-tuning of a pretrained model (regard import, regard finetune)")
    if not isinstance(data.train, TokenStream) and len(data.train) < _FEW_ROWS:
        found.append(f"more training rows than {len(data.train):,}")
    if tuned is None and task.input_kind == "tokens":
        other = _OTHER_MODELS[task.architecture]
        other = "transformer" if settings.preset.startswith(other) else other
        found.append(f"another model than {settings.preset}, such as {other}")
    return tuple(found[:_MOST_ADVICE])


def _has_needs(name: str, examples: Examples) -> bool:
    return all(examples.get(need) is not None for need in find_metric(name).needs)


def _test(headline: str, model: Sequence[Examples], baseline: Examples) -> dict[str, Any]:
    """The score of the model, its mean over seeds, the difference from the baseline, and whether it is significant."""
    metric = find_metric(headline)
    *values, theirs = [
        metric.count(each).value if metric.is_additive else metric.scores(each)[0].value for each in (*model, baseline)
    ]
    ours = sum(values) / len(values)
    found = {"model_score": ours, "difference": ours - theirs, "verdict": "not significant"}
    if not metric.is_additive:
        return found
    counts = {"model": [metric.count(each) for each in model], "baseline": [metric.count(baseline)] * len(model)}
    if len(counts["baseline"][0]) < 2:
        return found
    (pair,) = compare_all(counts)
    if pair.is_significant:
        found["verdict"] = "better" if metric.is_better(ours, theirs) else "worse"
    return {**found, "interval": pair.interval, "p": pair.p}


def _format_p(p: float | None) -> str:
    """A p-value in parentheses.

    Example:
        >>> _format_p(0.0001), _format_p(0.0312), _format_p(None)
        ('p < 0.001', 'p = 0.031', 'no test')
    """
    return "no test" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
