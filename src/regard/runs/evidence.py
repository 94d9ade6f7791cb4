"""What the runs of a comparison are judged by: answers to rows, or how probable they hold a text."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from regard.data.columns import count_of
from regard.data.questions import read_answers
from regard.data.tagged import words_of
from regard.evaluation.answers import tally_answer_exact_match, tally_answer_f1
from regard.evaluation.classes import tally_matthews
from regard.evaluation.regression import tally_pearson, tally_rmse
from regard.evaluation.seeds import score_over_seeds
from regard.evaluation.stretches import shared_ends, sum_between
from regard.evaluation.tallies import Tally, tally, tally_bits_per_byte, tally_perplexity
from regard.runs.job import Job
from regard.runs.plan import Plan
from regard.tasks import find_task
from regard.tasks.answering import Answering
from regard.tasks.masked import Masked, tally_hidden
from regard.tasks.tagging import TAG_METRICS, Tagging, tally_tags
from regard.text.tokenizer import Tokenizer
from regard.training.folder import RunFolder

_NUM_BINS, _NUM_SAMPLES = 5, 40
_FEW_STRETCHES = 50
"""From fewer the bootstrap's intervals are too narrow."""

_COMPARED = (
    ("exact_match", "bleu", "chrf"),
    ("accuracy", "matthews"),
    ("pearson", "rmse"),
    ("entity_f1", "entity_precision", "entity_recall"),
    ("answer_f1", "answer_exact_match"),
)
"""Scores that are told together, by the one of them that says most."""
_OF_NUMBERS = {"pearson": tally_pearson, "rmse": tally_rmse}
_OF_QUESTIONS = {"answer_f1": tally_answer_f1, "answer_exact_match": tally_answer_exact_match}

Results = Mapping[str, Mapping[str, Any]]
"""By the path of its run, what each job wrote down."""


class Evidence(Protocol):
    """What was counted for each example, whatever the task."""

    metrics: tuple[str, ...]
    """The score that is compared, and others beside it."""
    num_examples: int
    num_training: int
    """How many rows, or documents, there were to train on."""

    def tallies(self, jobs: Sequence[Job], metric: str) -> list[Tally]:
        """One for each of these jobs, which have the same training set."""
        ...

    def circumstances(self, jobs: Sequence[Job]) -> dict[str, str | int]:
        """What else the scores of these jobs depend on, for their signature."""
        ...

    def by_length(self, tallies: Sequence[Tally]) -> list[dict[str, Any]]:
        """The score of rows of like length; none where rows have none."""
        ...

    def samples(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """What these jobs wrote, side by side."""
        ...

    def notes(self) -> list[str]:
        """What a reader should know of the scores."""
        ...


def gather(plan: Plan, results: Results) -> Evidence:
    """The evidence of a comparison whose jobs are done."""
    task = find_task(plan.contenders[0].resolved().task)
    if task.name == Masked.name:
        return Windows(plan, results)
    return Answers(plan, results) if task.has_answers else Stretches(plan, results)


def metrics_beside(metric: str) -> tuple[str, ...]:
    """A score, and those that are told with it."""
    alike = next((some for some in _COMPARED if metric in some), ())
    return (metric, *(each for each in alike if each != metric))


def tally_answers(
    metric: str, answers: Sequence[Sequence[str]], targets: Sequence[str], said: Collection[str] = ()
) -> list[Tally]:
    """What is counted of the answers of each of some models to the same rows; `said` is all that any of them said."""
    if metric in _OF_NUMBERS:
        numbers = [float(target) for target in targets]
        return [_OF_NUMBERS[metric]([float(output) for output in outputs], numbers) for outputs in answers]
    if metric in _OF_QUESTIONS:
        right = [[answer.text for answer in read_answers(target)] for target in targets]
        return [_OF_QUESTIONS[metric](outputs, right) for outputs in answers]
    if metric.startswith("entity_"):
        return [tally_tags(metric, outputs, targets) for outputs in answers]
    if metric == "matthews":
        labels = sorted({*targets, *said, *(output for outputs in answers for output in outputs)})
        return [tally_matthews(outputs, targets, labels=labels) for outputs in answers]
    return [tally(metric, outputs, targets) for outputs in answers]


class Answers:
    """What models wrote for the same rows."""

    def __init__(self, plan: Plan, results: Results) -> None:
        first = results[plan.jobs[0].path]
        self._results, self._role = results, first["set"]
        self._task = find_task(plan.contenders[0].resolved().task)
        self._rows = RunFolder(plan.jobs[0].path).read_rows(self._role)
        self._targets = [row[-1] for row in self._rows]
        self._said = {output for result in results.values() for output in result.get("outputs", ())}
        self._bins = _length_bins(plan.data.tokenizer, [row[0] for row in self._rows])
        self._has_plain_tags = self._task.name == Tagging.name and first["metric"] in TAG_METRICS
        self.metrics: tuple[str, ...] = TAG_METRICS if self._has_plain_tags else metrics_beside(first["metric"])
        self.num_examples, self.num_training = len(self._rows), len(plan.data.train)

    def tallies(self, jobs: Sequence[Job], metric: str) -> list[Tally]:
        if self._has_plain_tags:
            labels = sorted({tag for tags in (*self._targets, *self._said) for tag in words_of(tags)})
            outputs = [self._results[job.path]["outputs"] for job in jobs]
            return [tally_tags(metric, some, self._targets, labels=labels) for some in outputs]
        return tally_answers(metric, [self._results[job.path]["outputs"] for job in jobs], self._targets, self._said)

    def circumstances(self, jobs: Sequence[Job]) -> dict[str, str | int]:
        return {}

    def by_length(self, tallies: Sequence[Tally]) -> list[dict[str, Any]]:
        return [_bin_score(tallies, bounds, rows) for bounds, rows in self._bins]

    def samples(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        return [
            {
                "source": self._task.question(row),
                "target": self._shown(row[-1]),
                "outputs": {job.model: self._results[job.path]["outputs"][index] for job in jobs},
            }
            for index, row in enumerate(self._rows[:_NUM_SAMPLES])
        ]

    def notes(self) -> list[str]:
        return [f"scores are on the {self._role} rows"]

    def _shown(self, target: str) -> str:
        """What should have come out, as a model would write it; of several right answers the first."""
        if self._task.name != Answering.name:
            return target
        return next((answer.text for answer in read_answers(target)), "")


class Stretches:
    """How probable models hold the stretches of the same text."""

    def __init__(self, plan: Plan, results: Results) -> None:
        self.metrics: tuple[str, ...] = ("bits_per_byte", "perplexity")
        self._plan, self._results = plan, results
        self._role = results[plan.jobs[0].path]["set"]
        self._texts = [row[0] for row in RunFolder(plan.jobs[0].path).read_rows(self._role)]
        self._num_bytes = sum(len(text.encode()) for text in self._texts)
        self._ends = self._shared_ends([job for job in plan.jobs if job.train_rows is None])
        self.num_examples, self.num_training = len(self._ends), plan.data.train.num_documents

    def tallies(self, jobs: Sequence[Job], metric: str) -> list[Tally]:
        """Those of the whole training set over the stretches that all such jobs share, others over their own."""
        ends = self._ends if jobs[0].train_rows is None else self._shared_ends(jobs)
        tallies = []
        for result in (self._results[job.path] for job in jobs):
            losses, counts = (sum_between(result[key], result["counts"], ends).tolist() for key in ("losses", "counts"))
            by_token, by_byte = tally_perplexity(losses, counts), tally_bits_per_byte(losses, counts, self._num_bytes)
            tallies.append(by_token if metric == "perplexity" else by_byte)
        return tallies

    def circumstances(self, jobs: Sequence[Job]) -> dict[str, str | int]:
        """Window, stride, and whether a state is carried from window to window; several where models differ."""
        ways = [self._results[job.path]["circumstances"] for job in jobs]
        names = dict.fromkeys(name for way in ways for name in way)
        found = {name: list(dict.fromkeys(way.get(name, "none") for way in ways)) for name in names}
        return {name: some[0] if len(some) == 1 else ",".join(map(str, some)) for name, some in found.items()}

    def by_length(self, tallies: Sequence[Tally]) -> list[dict[str, Any]]:
        return []

    def samples(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """Beginnings that all of them had; one whose positions end early has shorter ones."""
        written = {job.model: self._results[job.path]["continuations"] for job in jobs}
        outputs = {model: {each["source"]: each["prediction"] for each in some} for model, some in written.items()}
        return [
            {
                "source": each["source"],
                "target": each["target"],
                "outputs": {model: some[each["source"]] for model, some in outputs.items()},
            }
            for each in written[jobs[0].model]
            if all(each["source"] in some for some in outputs.values())
        ]

    def notes(self) -> list[str]:
        notes = [f"scores are on the {self._role} text, {count_of(self._num_bytes, 'byte')}"]
        if self.num_examples < _FEW_STRETCHES:
            notes.append(f"{self.num_examples} stretches of text are few: the intervals are too narrow")
        return [*notes, *self._notes_on_reading(), *self._notes_on_vocabularies()]

    def _notes_on_reading(self) -> Iterator[str]:
        """How models differ in what they have before them when they are asked for a token."""
        families = {contender.name: contender.resolved().model.family for contender in self._plan.contenders}
        mixing = [name for name, family in families.items() if family != "transformer"]
        if self._plan.data.is_isolated and mixing:
            yield f"documents are read by themselves, but run on into one another for {', '.join(mixing)}"
        ways = {job.model: self._results[job.path]["circumstances"] for job in self._plan.jobs}
        carrying = [name for name, way in ways.items() if "state" in way]
        if 0 < len(carrying) < len(ways):
            yield f"{', '.join(carrying)}: the state is carried from window to window; other models begin anew in each"
        windows = {name: way["window"] for name, way in ways.items()}
        if len(set(windows.values())) > 1:
            told = ", ".join(f"{name} {window:,}" for name, window in windows.items())
            yield f"windows differ ({told} tokens): a stretch ends where those of all models do"

    def _notes_on_vocabularies(self) -> Iterator[str]:
        """Whether bits per byte are of all of the text; runs on equally many documents share a tokenizer."""
        for rows, job in {job.train_rows: job for job in self._plan.jobs}.items():
            if not _keeps(RunFolder(job.path).read_tokenizer(), self._texts):
                which = "the vocabulary" if rows is None else f"the vocabulary of {rows:,} documents"
                yield f"{which} does not hold all of the text: bits per byte compare only where it is the same"

    def _shared_ends(self, jobs: Sequence[Job]) -> Any:
        return shared_ends([self._results[job.path]["counts"] for job in jobs])


class Windows:
    """How well models tell what is hidden in the same windows of a text."""

    def __init__(self, plan: Plan, results: Results) -> None:
        self.metrics: tuple[str, ...] = ("pseudo_perplexity", "masked_accuracy")
        self._plan, self._results = plan, results
        self._role = results[plan.jobs[0].path]["set"]
        self.num_examples = len(results[plan.jobs[0].path]["counts"])
        self.num_training = plan.data.train.num_documents

    def tallies(self, jobs: Sequence[Job], metric: str) -> list[Tally]:
        found = [self._results[job.path] for job in jobs]
        assert all(each["counts"] == found[0]["counts"] for each in found), "models are asked for the same tokens"
        if metric == "masked_accuracy":
            return [tally_hidden(each["right"], each["counts"]) for each in found]
        return [replace(tally_perplexity(each["losses"], each["counts"]), name=metric) for each in found]

    def circumstances(self, jobs: Sequence[Job]) -> dict[str, str | int]:
        return self._results[jobs[0].path]["circumstances"]

    def by_length(self, tallies: Sequence[Tally]) -> list[dict[str, Any]]:
        return []

    def samples(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """Texts with a blank, which is the same for all."""
        written = {job.model: self._results[job.path]["samples"] for job in jobs}
        outputs = {model: {each["source"]: each["prediction"] for each in some} for model, some in written.items()}
        first = written[jobs[0].model]
        return [
            {
                "source": each["source"],
                "target": each["target"],
                "outputs": {model: some[each["source"]] for model, some in outputs.items()},
            }
            for each in first[:_NUM_SAMPLES]
            if all(each["source"] in some for some in outputs.values())
        ]

    def notes(self) -> list[str]:
        notes = [f"scores are on the {self._role} text, the same tokens hidden for all models"]
        if self._plan.row_counts:
            notes.append("fewer documents may give another vocabulary, whose perplexities do not compare")
        return notes


def _keeps(tokenizer: Tokenizer, texts: Sequence[str]) -> bool:
    """Whether the texts can be had back from their tokens, to the letter."""
    return tokenizer.decode(tokenizer.encode(texts)) == list(texts)


def _length_bins(tokenizer: Tokenizer, sources: Sequence[str]) -> list[tuple[tuple[int, int], list[int]]]:
    """Rows of like source length, in tokens, about as many in each bin."""
    lengths = np.array([len(ids) for ids in tokenizer.encode(list(sources))])
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, _NUM_BINS + 1)[1:], method="higher"))
    bins, low = [], int(lengths.min())
    for edge in edges.astype(int).tolist():
        chosen = np.flatnonzero((lengths >= low) & (lengths <= edge)).tolist()
        if chosen:
            bins.append(((int(lengths[chosen].min()), edge), chosen))
        low = edge + 1
    return bins


def _bin_score(tallies: Sequence[Tally], bounds: tuple[int, int], rows: Sequence[int]) -> dict[str, Any]:
    score = score_over_seeds([each.subset(rows) for each in tallies])
    return {"low": bounds[0], "high": bounds[1], "rows": len(rows), "value": score.value, "interval": score.interval}
