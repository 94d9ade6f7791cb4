"""Event prediction: the next event of a subject, the time until it, and the risk of each event within horizons.

A row is a subject: its name, and its history as text (`data/formats/events.py`). After each entry of a history the
model has a distribution of the next event and its time; the loss is the negative log-likelihood of all events, and of
the time without an event until the end of the observation: right-censoring. An entry is to a history what a token is to
a text.

Dimensions: `batch` subjects, `time` entries of their histories.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.baselines.sequences import EventBaseline, count_transitions, markov_rates, poisson_rates
from regard.data.builtin import find_builtin
from regard.data.codecs.codec import Codec
from regard.data.codecs.events import EventCodec
from regard.data.codecs.labels import format_frequencies
from regard.data.formats.cells import Timestamp
from regard.data.formats.events import (
    EVENT_COLUMNS,
    EVENT_TIME_COLUMNS,
    SUBJECT_COLUMNS,
    EventColumns,
    EventHistory,
    has_numbers,
    parse_history,
    read_events,
    unit_size,
)
from regard.data.formats.layouts import ReadOptions
from regard.data.formats.messages import format_count, format_names
from regard.data.prepare import FitData, Prepared, prepare_rows
from regard.data.series_sources import EVENT_ROLES, open_events
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source, is_builtin
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.events import SIMULATION_METRICS, simulated_outcomes
from regard.evaluation.registry import find_metric
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.logging import log_info, log_warning
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.tasks.capabilities import ExportGraph
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import Curve, Panel, Plot, Prediction, ReportContent, Section, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.event_prediction.model import (
    ConstantRates,
    EventBatch,
    EventLikelihoods,
    EventPredictor,
    ExportedEvents,
    find_landmarks,
    judge_landmarks,
    log_likelihoods,
    make_event_batch,
    pad_event_batch,
)
from regard.tasks.event_prediction.process import EventMixture
from regard.tasks.event_prediction.simulation import EventSimulator, judge_simulation
from regard.tasks.feature_tables import is_factor
from regard.tasks.task import (
    PLAIN,
    ComparedRun,
    Detection,
    EvaluationData,
    Objective,
    Task,
    TaskSettings,
    to_device,
)

PATIENTS = ("subject", "time", "event", "marker")
"""The columns of the built-in data set."""
_LEVELS = (0.05, 0.5, 0.95)
"""The quantiles of the time until the next event that a prediction has."""
_DIGITS = 6
_NUM_DRAWN, _MOST_DRAWN, _FEWEST_DRAWN, _NUM_POINTS = 4, 12, 5, 300
"""Subjects that a report shows, the fewest events of one, and the times at which its risks are computed."""
_BEFORE = 1e-4
"""In units of the mean gap: the risk right before an event is drawn, too."""
_MOST_NAMED = 8
"""Kinds of events whose shares are printed."""
_BATCH_TOKENS: Mapping[str, int] = {"cpu": 1_024, "cuda": 2_048}
_EPOCHS, _FEWEST_STEPS = 15.0, 600
"""Passes over the subjects, and steps for few of them. On `patients`, and on a quarter of it, the distance to the true
process grew again from about 20 passes on."""
_TRAIN_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "label_smoothing": 0.0,
    "schedule": "cosine",
    "warmup_steps": 100,
    "beta2": 0.98,
    "weight_decay": 0.01,
    "ema_decay": 0.99,
}


class EventPredictionSettings(TaskSettings):
    """Settings of event prediction."""

    name: str = "event-prediction"
    horizons: list[float] = Field(min_length=1)
    """Times within which risks are predicted, in the unit of the data. Unset: quartiles of the time between events."""
    components: int = Field(default=16, ge=1)
    """Components of the mixture that the time until the next event has."""
    paths: int = Field(default=100, ge=0)
    """Continuations that are simulated for risks of events that need not be the next one; 0 for none."""
    max_events: int = Field(default=512, ge=2)
    """The number of events that are read; a longer history is cut to its last ones."""
    subject_column: str | None = None
    """The column of subjects. Unset: inferred and reported."""
    time_column: str | None = None
    """The column of time. Unset: inferred and reported."""
    event_column: str | None = None
    """The column of events. Unset: inferred and reported."""
    start_event: str | None = None
    """The event with which the observation of a subject starts. Unset: one called start, birth or similar."""
    end_event: str | None = None
    """The event with which the observation of a subject ends. Unset: one called end, censored or similar."""

    @model_validator(mode="after")
    def _horizons_are_ascending(self) -> Self:
        if self.paths == 1:
            raise ConfigError("task.paths must be 0 or at least 2, got 1: a single path has no standard error")
        if self.horizons and (min(self.horizons) <= 0 or sorted(set(self.horizons)) != self.horizons):
            raise ConfigError(f"task.horizons must be positive and ascend, got {self.horizons}")
        return self


class EventPrediction(Task[EventPredictionSettings]):
    """Events of subjects in continuous time, by a causal encoder and a mixture with exact likelihood."""

    name = "event-prediction"
    description = "event prediction"
    other_names = ("events", "survival", "survival-analysis", "point-process", "next-event", "risk")
    Settings = EventPredictionSettings
    roles = EVENT_ROLES
    codec_types: Mapping[str, type[Codec]] = {"events": EventCodec}
    metrics = ("event_log_likelihood", "next_event_accuracy", "integrated_brier_score", "risk_auroc")
    input_kind = "events"
    next_command = "predict {run} --file FILE --out predictions.csv"
    output_description = "the next event of each subject, its time and risks"
    default_preset = "transformer-events"
    has_targets = False
    unit = "subject"
    token_unit = "entries"
    attention_kind = None
    objectives = frozenset()

    def __init__(self, settings: EventPredictionSettings, codecs: Mapping[str, Codec] | None = None) -> None:
        super().__init__(settings, codecs)
        self.time_unit, self.values = self.codec.unit, self.codec.values
        self.scored_paths = 0
        """Continuations of each subject that an evaluation simulates and judges."""

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.names == PATIENTS and not summary.columns:
            return Detection("events of patients", confidence=0.9)
        columns = {column.plain_name: column for column in summary.columns}
        # A column that numbers the rows, as the first subject's do, is among the names and not among the columns.
        subject = next((name for name in SUBJECT_COLUMNS if name in summary.names), None)
        kinds = [name for name, column in columns.items() if column.kind == "labels" or is_factor(column)]
        event = next((name for name in EVENT_COLUMNS if name in kinds), None)
        times = [
            name
            for name, column in columns.items()
            if column.kind == "dates" or (column.kind == "numbers" and name in EVENT_TIME_COLUMNS)
        ]
        if subject is None or event is None or not times or subject == event:
            return None
        others = [column for name, column in columns.items() if name not in (subject, event)]
        if subject in columns and columns[subject].num_distinct == len(columns[subject].cells):
            return None  # which has one event only
        if any(column.kind == "text" and not has_numbers(column.cells) for column in others):
            return None
        return Detection(f"events ({event}) of subjects ({subject}) over time ({times[0]})", confidence=0.85)

    @property
    def codec(self) -> EventCodec:
        codec = self.codecs.get("events")
        return codec if isinstance(codec, EventCodec) else EventCodec()

    @property
    def store_columns(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]  one for each column of numbers
        return ("kinds", "high", "low", *(f"value{place}" for place in range(len(self.values))))

    # Data

    @property
    def _columns(self) -> EventColumns:
        settings = self.settings
        return EventColumns(
            settings.subject_column, settings.time_column, settings.event_column,
            settings.start_event, settings.end_event,
        )  # fmt: skip

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        if not self.codecs:
            return open_events(config, rows, self._columns)[0]
        return open_events(config, rows, self._columns, unit=self.codec.unit, values=self.codec.values)[0]

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        source, table = open_events(config, rows, self._columns)
        encoder = type(self)(self.settings)
        encoder.time_unit, encoder.values = table.unit, table.values
        data = prepare_rows(source, config, encoder)
        bound = self.with_codecs(data.codecs)
        for role, name in (("valid", "the validation set"), ("test", "the test set")):
            if warning := bound.unknown_labels(data.held_out[role], name):
                log_warning(warning)
        if rows is None and is_builtin(config) and (note := _true_likelihood(config.train[0], data)):
            log_info(note)
            data = replace(data, notes=[*data.notes, note])
        return data

    def cache_key(self) -> Mapping[str, Any]:
        return {"task": self.name, **self.settings.model_dump(exclude={"name", "horizons", "components", "paths"})}

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        return {"events": EventCodec.fit((row[-1] for row in data.rows()), unit=self.time_unit, values=self.values)}

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return self._encode([row[-1] for row in rows], is_strict=False)

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator[EventBatch]:
        for _, batch in self.indexed_batches(self.encode_rows(rows)):
            assert isinstance(batch, EventBatch)
            yield batch

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        return self._encode(inputs, is_strict=True)

    def _encode(self, histories: Sequence[str], *, is_strict: bool) -> list[list[list[int]]]:
        codec, most = self.codec, self.settings.max_events
        found = [codec.to_columns(codec.read(text, is_strict=is_strict, max_entries=most)) for text in histories]
        return [[columns[place] for columns in found] for place in range(len(self.store_columns))]

    def unknown_labels(self, rows: Sequence[Sequence[str]], where: str) -> str | None:
        found = Counter(event for row in rows for event in self.codec.unknown_events(row[-1]))
        if not found:
            return None
        return (
            f"{where} has events that no training subject has: {format_frequencies(found)}; the observation of a "
            "subject ends with such an event"
        )

    def notes(self) -> list[str]:
        codec = self.codec
        common = list(zip(codec.events, codec.counts, strict=True))[:_MOST_NAMED]
        shares = [f"{event} {100 * count / sum(codec.counts):.0f} %" for event, count in common]
        more = ", ..." if len(codec.events) > _MOST_NAMED else ""
        return [
            f"{format_count(len(codec.events), 'kind')} of events: {', '.join(shares)}{more}; "
            f"{self._time(codec.scale)} between events on average"
        ]

    def facts(self) -> dict[str, str]:
        codec = self.codec
        return {
            "events": f"{format_count(len(codec.events), 'kind')}, {self._time(codec.scale)} apart on average",
            "horizons": ", ".join(f"{each:g}" for each in self.settings.horizons) + (f" {codec.unit}".rstrip()),
        }

    def _time(self, value: float) -> str:
        return f"{value:.3g} {self.codec.unit}".rstrip()

    def input_of(self, row: Sequence[str]) -> str:
        return row[-1]

    # Settings

    def defaults(self, context: DefaultsContext) -> Defaults:
        codec = context.data.codecs["events"]
        assert isinstance(codec, EventCodec)
        train = {**_TRAIN_DEFAULTS, "batch_tokens": _BATCH_TOKENS[context.device]}
        reasons = {"task.horizons": f"{list(codec.horizons)}: quartiles of the time between events"}
        if context.max_steps is None and context.max_epochs is None:
            store: Any = context.data.train
            epoch = max(1.0, float(store.lengths().sum()) / train["batch_tokens"])
            train["max_epochs"] = max(_EPOCHS, math.ceil(_FEWEST_STEPS / epoch))
            reasons["train.max_epochs"] = f"{train['max_epochs']:g}: more passes over the subjects overfit them"
        return Defaults(train=train, task={"horizons": list(codec.horizons)}, reasons=reasons)

    def num_positions(self, data: Prepared) -> int:
        return 0  # positions are times

    # Model and training

    def build(self, model: ModelConfig, head: HeadConfig) -> EventPredictor:
        if head.hidden_layer or head.pooling != "mean":
            raise ConfigError(
                "head.hidden_layer and head.pooling have no effect on events, which are predicted at every position"
            )
        return EventPredictor(model, head, self.codec, num_components=self.settings.components)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> EventBatch:
        return make_event_batch(columns)

    def pad_batch(self, batch: EventBatch, num_rows: int, length: int) -> EventBatch:
        return pad_event_batch(batch, num_rows, length)

    def loss(self, model: Any, batch: EventBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The negative log-likelihood of the events in the unit of the data, and of the time without one at the end."""
        return self._losses(model(batch.source[:, :-1]), batch).sum()

    def _losses(self, mixture: EventMixture, batch: EventBatch) -> Float[Tensor, "batch time"]:
        is_event = batch.is_target & (batch.kinds > 0)
        # The density of a time in other units is divided by their size.
        return math.log(self.codec.scale) * is_event - log_likelihoods(mixture, batch)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[EventBatch], device: torch.device) -> EventLikelihoods:
        """The losses of subjects, their events that had the highest probability, and the risks after each."""
        losses: list[float] = []
        counts: list[int] = []
        correct: list[int] = []
        landmarks, simulated = [], []
        simulator = EventSimulator(model, self.codec, self.scored_paths, max_entries=self.settings.max_events)
        horizons = torch.tensor(self.settings.horizons, device=device, dtype=torch.float32) / self.codec.scale
        for batch in batches:
            batch = to_device(batch, device)
            mixture = model(batch.source[:, :-1])
            is_event = batch.is_target & (batch.kinds > 0)
            likeliest = mixture.event_probabilities(torch.zeros_like(batch.gaps)).argmax(dim=-1) + 1
            landmarks.append(find_landmarks(mixture, batch, horizons, first_subject=len(losses)))
            if self.scored_paths:
                simulated.append(judge_simulation(simulator, batch, horizons))
            losses += self._losses(mixture, batch).double().sum(dim=1).tolist()
            counts += is_event.sum(dim=1).tolist()
            correct += (is_event & (likeliest == batch.kinds)).sum(dim=1).tolist()
        return EventLikelihoods(
            losses, counts, num_correct=tuple(correct), landmarks=tuple(landmarks), simulated=tuple(simulated)
        )

    def with_paths(self, num_paths: int) -> Self:
        task = type(self)(self.settings.changed(paths=_checked(num_paths)), self.codecs)
        task.scored_paths = num_paths
        return task

    # Use

    def examples(self, data: EvaluationData) -> Examples:
        found = data.likelihoods
        assert isinstance(found, EventLikelihoods)
        if not sum(found.counts):
            raise DataError("no subject has an event that could be predicted")
        horizons = self.settings.horizons
        scaled = [horizon / self.codec.scale for horizon in horizons]
        brier_sums, risks = judge_landmarks(found.landmarks, len(found.losses), scaled)
        extras: dict[str, Sequence[Any]] = {"brier_sums": brier_sums, "risks": risks}
        if found.simulated:
            predicted, waits, observed = (
                np.concatenate([getattr(each, name) for each in found.simulated])
                for name in ("risks", "waits", "observed")
            )
            extras["simulated_risks"] = simulated_outcomes(predicted, waits, observed, scaled).round(_DIGITS).tolist()
        return Examples(
            losses=found.losses,
            num_tokens=found.counts,
            num_correct=list(found.num_correct),
            extras=extras,
            settings={"horizons": ",".join(f"{each:g}" for each in horizons), "unit": self.codec.unit or "data"},
        )

    def scores(self, data: EvaluationData) -> list[Score]:
        found = super().scores(data)
        if not self.scored_paths:
            return found
        examples, settings = self.examples(data), {"paths": self.scored_paths}
        simulated = [score for name in SIMULATION_METRICS for score in find_metric(name).scores(examples)]
        return [*found, *(replace(score, settings={**score.settings, **settings}) for score in simulated)]

    def predictor(self, model: Any, config: GenerationConfig) -> "HistoryPredictor":
        return HistoryPredictor(self, model, num_paths=self.settings.paths, seed=config.seed)

    def subject_outputs(self, model: Any, batch: EventBatch, *, num_paths: int, seed: int) -> list[dict[str, Any]]:
        """For each subject the probability of each next event, quantiles of the time until it, and risks."""
        places, elapsed = batch.last_events()
        mixture = model(batch.source).at((torch.arange(len(places), device=places.device), places))
        scale, events = self.codec.scale, self.codec.events
        horizons = torch.tensor(self.settings.horizons, device=elapsed.device, dtype=elapsed.dtype) / scale
        probabilities = mixture.event_probabilities(elapsed).tolist()
        times = [(mixture.quantile(level, elapsed) * scale).tolist() for level in _LEVELS]
        tables = {"risks": mixture.risks(elapsed, horizons)}
        if num_paths:
            simulator = EventSimulator(model, self.codec, num_paths, seed, self.settings.max_events)
            found = simulator.risks(batch.source, places + 1, elapsed, horizons)
            tables |= {"within": found.risks, "errors": found.errors}
        lists = {name: table.tolist() for name, table in tables.items()}
        return [
            {
                "probabilities": dict(zip(events, probabilities[row], strict=True)),
                "times": [some[row] for some in times],
                **{
                    name: {
                        f"{horizon:g}": dict(zip(events, some, strict=True))
                        for horizon, some in zip(self.settings.horizons, table[row], strict=True)
                    }
                    for name, table in lists.items()
                },
            }
            for row in range(len(probabilities))
        ]

    def prediction(self, text: str, output: Any) -> Prediction:
        probabilities: dict[str, float] = output["probabilities"]
        event = max(probabilities, key=lambda name: probabilities[name])
        lower, median, upper = (float(f"{time:.{_DIGITS}g}") for time in output["times"])
        risks = {horizon: {"any": sum(each.values()), **each} for horizon, each in output["risks"].items()}
        details = {"time": median, "lower": lower, "upper": upper, "unit": self.codec.unit, "risks": risks}
        if "within" in output:
            details |= {"risks_within": output["within"], "standard_errors": output["errors"]}
        return NextEvent(text, event, None, probabilities, probabilities[event], details)

    def predict_subjects(
        self,
        model: Any,
        data: Any,
        *,
        columns: Sequence[str] | None = None,
        encoding: str | None = None,
        num_paths: int | None = None,
        seed: int = 0,
    ) -> list[dict[str, Any]]:
        """For each subject of a table the next event, when it is expected, and risks from the end of observation on."""
        num_paths = self.settings.paths if num_paths is None else _checked(num_paths)
        histories = self._read_histories(data, columns, encoding)
        predict = HistoryPredictor(self, model, num_paths=num_paths, seed=seed)
        found = predict([history.to_text() for history in histories])
        return [self._record(history, each) for history, each in zip(histories, found, strict=True)]

    def plot_subjects(
        self, model: Any, data: Any, *, columns: Sequence[str] | None = None, encoding: str | None = None
    ) -> Plot:
        histories = self._read_histories(data, columns, encoding)
        return self._plot(model, [(each.subject, each.to_text()) for each in histories])

    def _read_histories(
        self, data: Any, columns: Sequence[str] | None, encoding: str | None
    ) -> tuple[EventHistory, ...]:
        """The histories of a table whose events are all known."""
        codec = self.codec
        table = read_events(
            data, self._columns, used=columns or (), unit=codec.unit, values=codec.values, keeps_single=True,
            options=ReadOptions(encoding=encoding),
        )  # fmt: skip
        for inferred in table.inferred:
            log_info(inferred)
        for history in table.histories:
            if unknown := [event for event in history.events if event not in codec.events]:
                raise DataError(
                    f"the subject {history.subject!r} has the event {unknown[0]!r}, which is not among those of "
                    f"training: {format_names(list(codec.events))}"
                )
        return table.histories

    def _record(self, history: EventHistory, prediction: Prediction) -> dict[str, Any]:
        assert isinstance(prediction, NextEvent)
        details, probabilities = prediction.details, prediction.probabilities or {}

        def moment(ahead: float) -> str | float:
            value = history.start.value + (history.end + ahead) * unit_size(self.codec.unit)
            is_number = history.start.kind == "number"
            return float(f"{value:.10g}") if is_number else str(Timestamp("date", round(value)))

        record: dict[str, Any] = {
            "subject": history.subject,
            "observed_until": moment(0.0),
            "event": prediction.output,
            "probability": _rounded(prediction.probability),
            "time": moment(details["time"]),
            "time_lower": moment(details["lower"]),
            "time_upper": moment(details["upper"]),
        }
        for horizon, risks in details["risks"].items():
            record |= {f"risk_{horizon}_{event}": _rounded(risk) for event, risk in risks.items()}
        for horizon, risks in details.get("risks_within", {}).items():
            errors = details["standard_errors"][horizon]
            for event, risk in risks.items():
                name = f"within_{horizon}_{event}"
                record |= {name: _rounded(risk), f"{name}_se": _rounded(errors[event])}
        return record | {f"probability_{event}": _rounded(each) for event, each in probabilities.items()}

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def export_graph(self, model: Any, rows: Sequence[Sequence[str]]) -> ExportGraph:
        """A history in, probabilities of the next event and its risks out; without simulated continuations."""
        codec, examples = self.codec, []
        for some in (rows[:3], rows[-1:], rows[:8]):
            columns = self.encode_inputs([row[-1] for row in some])
            batch = self.collate([[np.array(ids, np.int64) for ids in column] for column in columns])
            places, elapsed = batch.last_events()
            source = batch.source[:, : int(places.max()) + 1]
            numbers, known = source[..., 3::2], source[..., 4::2] > 0
            inputs = {
                "events": source[..., 0].long(),
                "gaps": source[..., 1] * codec.scale,
                "num_entries": places + 1,
                "elapsed": elapsed * codec.scale,
                "values": torch.where(known, numbers * torch.tensor(codec.stds) + torch.tensor(codec.means), torch.nan),
            }
            with torch.inference_mode():
                found = self.subject_outputs(model, batch, num_paths=0, seed=0)
            expected = (
                torch.tensor([list(each["probabilities"].values()) for each in found]),
                torch.tensor([[list(some.values()) for some in each["risks"].values()] for each in found]),
            )
            examples.append(({name: each for name, each in inputs.items() if each.numel()}, expected))
        axes = {"events": ("batch", "time"), "gaps": ("batch", "time"), "num_entries": ("batch",),
                "elapsed": ("batch",), "values": ("batch", "time")}  # fmt: skip
        return ExportGraph(
            module=ExportedEvents(model, codec, self.settings.horizons),
            axes={name: dict(enumerate(axes[name])) for name in examples[0][0]},
            outputs=("probabilities", "risks"),
            examples=examples,
            limits={"time": self.settings.max_events},
            config={"events": ["", *codec.events], "values": list(codec.values), "unit": codec.unit,
                    "horizons": list(self.settings.horizons)},
        )  # fmt: skip

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        event = self.codec.events[0] if self.codec.events else "visit"
        return ServerSchema(
            ("history",), placeholder=f'[[0, null], [{self.codec.scale:.3g}, "{event}"]]', labels=self.codec.events,
            output="label",
        )  # fmt: skip

    # The baseline

    def baseline(self, data: Prepared) -> Baseline:
        """The better of two on the validation subjects: constant rates, and rates that depend on the last event."""
        codec = self.codec
        rows = data.train_rows()
        read = (codec.read(row[-1], is_strict=False) for row in rows)
        counts, exposure = count_transitions(((each.kinds, each.gaps) for each in read), len(codec.events))  # pyright: ignore[reportArgumentType]  arrays
        candidates = {
            "constant rates (Poisson processes)": poisson_rates(counts, exposure),
            "rates that depend on the last event (Markov chain)": markov_rates(counts, exposure),
        }
        valid, cpu = data.held_out["valid"], torch.device("cpu")
        losses = {
            name: self.likelihoods(ConstantRates(rates), self.row_batches(valid), cpu).mean
            for name, rates in candidates.items()
        }
        name = min(losses, key=lambda name: losses[name])
        rates = candidates[name]

        def predict(inputs: Sequence[str]) -> BaselinePredictions:
            last = [codec.read(text).kinds for text in inputs]
            last = [int(kinds[kinds > 0][-1]) if (kinds > 0).any() else 0 for kinds in last]
            return BaselinePredictions(outputs=[codec.events[int(rates[kind].argmax())] for kind in last])

        return EventBaseline(name=name, predict=predict, rates=rates, num_used=len(rows), unit="subjects")

    def baseline_examples(self, baseline: Baseline, rows: Sequence[Sequence[str]]) -> Examples:
        assert isinstance(baseline, EventBaseline)
        found = self.likelihoods(ConstantRates(baseline.rates), self.row_batches(rows), torch.device("cpu"))
        return self.examples(EvaluationData(rows, [], found))

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        """Without the AUROC, which is not a sum over subjects and has no paired test."""
        return tuple(name for name in super().comparison_metrics(headline) if find_metric(name).is_additive)

    def comparison_notes(self, runs: Sequence[ComparedRun]) -> list[str]:
        (counts,) = runs[0].examples.require("num_tokens")
        return [
            f"scores are on the {runs[0].role} subjects, {format_count(len(counts), 'subject')} with "
            f"{format_count(sum(counts), 'event')}; intervals and tests are over subjects"
        ]

    def check_comparison(
        self, tasks: Mapping[str, Any], data: Prepared, config: DataConfig, *, batch_tokens: int,
        sizes: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Raise where models would be evaluated on different histories or horizons."""
        for name in ("horizons", "max_events", "start_event", "end_event"):
            if len({str(getattr(task.settings, name)) for task in tasks.values()}) > 1:
                raise ConfigError(f"models are compared on the same histories: task.{name} must be the same for all")
        super().check_comparison(tasks, data, config, batch_tokens=batch_tokens, sizes=sizes)

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        """The first subjects with a few events, or those that there are."""
        num_events = [sum(event is not None for event in parse_history(row[-1], 0)[1]) for row in data.rows]
        longer = [row for row, count in zip(data.rows, num_events, strict=True) if count >= _FEWEST_DRAWN]
        plot = self._plot(model, (longer or list(data.rows))[:_NUM_DRAWN])
        return ReportContent(facts=self.facts(), sections=[Section("Timelines", _TIMELINES_LEAD, plot)])

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        return []

    def _plot(self, model: Any, histories: Sequence[Sequence[str]]) -> Plot:
        panels = [self.timeline(model, *each) for each in histories[:_MOST_DRAWN]]
        return Plot(panels, description="Events of subjects, and predicted risks over time")

    @torch.no_grad()
    def timeline(self, model: Any, subject: str, history: str) -> Panel:
        """The risks of a subject while it was observed, within the longest of the horizons."""
        codec, horizon = self.codec, self.settings.horizons[-1]
        device = next(model.parameters()).device
        batch = to_device(next(iter(self.row_batches([(subject, history)]))), device)
        times = batch.source[0, :, 2]
        grid = torch.linspace(float(times[0]), float(times[-1]), _NUM_POINTS, device=device, dtype=times.dtype)
        kinds = batch.source[0, :, 0].long()
        is_end = bool(kinds[-1] == 0) and len(kinds) > 1
        read = times[: len(times) - is_end]
        grid = torch.cat([grid, read, (read - _BEFORE).clamp(min=float(times[0]))]).sort().values
        places = (torch.searchsorted(read.contiguous(), grid, right=True) - 1).clamp(min=0)
        mixture = model(batch.source).at((torch.zeros_like(places), places))
        ahead = torch.tensor([horizon / codec.scale], device=device, dtype=times.dtype)
        risks = mixture.risks((grid - read[places]).clamp(min=0.0), ahead)[:, 0].cpu()
        shown = [(float(time) * codec.scale, int(kind)) for time, kind in zip(times, kinds, strict=True) if kind]
        moments = (grid.cpu() * codec.scale).tolist()
        unit = f" ({codec.unit})" if codec.unit else ""
        return Panel(
            subject,
            [Curve(event, moments, risks[:, place].tolist()) for place, event in enumerate(codec.events)],
            {event: [time for time, kind in shown if kind == place] for place, event in enumerate(codec.events, 1)},
            end=float(times[-1]) * codec.scale,
            labels=(f"time since the start{unit}", f"risk within {horizon:g} {codec.unit}".rstrip()),
        )


@dataclass(frozen=True)
class NextEvent(Prediction):
    """The next event of a subject."""

    details: dict[str, Any] = field(default_factory=dict)
    """The time until the event, with an interval and its unit, and risks by horizon and event."""


_TIMELINES_LEAD = (
    "Held-out subjects: ticks are events; lines are the probability, at each time, that the next event is of this kind "
    "and comes within the horizon. The dotted line is the end of observation."
)


class HistoryPredictor:
    """Predicts for histories in batches of similar length; the seed is that of simulated paths."""

    def __init__(self, task: EventPrediction, model: Any, *, num_paths: int, seed: int) -> None:
        self._task, self._model, self._num_paths, self._seed = task, model, num_paths, seed
        self._device = next(model.parameters()).device

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        task, found = self._task, {}
        for rows, batch in task.indexed_batches(task.encode_inputs(inputs)):
            batch = to_device(batch, self._device)
            with torch.inference_mode():
                outputs = task.subject_outputs(self._model, batch, num_paths=self._num_paths, seed=self._seed)
            found |= dict(zip(rows, outputs, strict=True))
        return [task.prediction(text, found[number]) for number, text in enumerate(inputs)]


def _checked(num_paths: int) -> int:
    if num_paths == 1 or num_paths < 0:
        raise ConfigError(f"risks are simulated by at least 2 paths, or not at all by 0, got {num_paths}")
    return num_paths


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _true_likelihood(name: str, data: Prepared) -> str | None:
    """What the process that generated the data gives the held-out subjects, where it is known."""
    log_likelihood = find_builtin(name).log_likelihood
    if log_likelihood is None:
        return None
    parts = []
    for role, what in (("valid", "validation"), ("test", "test")):
        histories = []
        for row in data.held_out[role]:
            times, events, values = parse_history(row[-1], 1)
            known = [place for place, event in enumerate(events) if event is not None]
            markers = [None if values[place][0] != values[place][0] else values[place][0] for place in known]
            histories.append(
                ([times[place] for place in known], [events[place] for place in known], markers, times[-1])
            )
        totals, counts = log_likelihood(histories)
        if sum(counts):
            parts.append(f"{sum(totals) / sum(counts):.4f} on the {what} subjects")
    return f"log-likelihood per event of the true process: {', '.join(parts)}" if parts else None
