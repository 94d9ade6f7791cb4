"""What a task is: everything that training, evaluation, reports and servers do not know.

A task is a subclass of `Task` in one file or folder of this package, or of
another package that registers it under the entry-point group `regard.tasks`. It
owns its settings, its codecs, its head, its defaults, its loss, its predictor,
its metrics, what its report shows, what its server accepts, and what can be
exported. `Task` has a default for each member that tasks have in common.

An instance is bound to the task's settings, and to codecs once these are
fitted. What a task declares for the layers above (`ReportContent`,
`ServerSchema`, `ExportSpec`) is plain data, which those layers render.

Dimensions: `batch` rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.baselines.baseline import Baseline
from regard.data.batches import StoredBatches, batches_by_length
from regard.data.codecs.codec import Codec
from regard.data.codecs.labels import LabelCodec, describe_unknown
from regard.data.prepare import FitData, Prepared, prepare_rows
from regard.data.settings import DataConfig
from regard.data.sources import Rows
from regard.data.stores.rows import TokenStore
from regard.errors import ConfigError, RunError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts, count_labels
from regard.evaluation.registry import PAIRS, find_metric, score_label
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.logging import log_info, log_warning
from regard.models.family import InputKind, ModelConfig
from regard.models.heads import HeadConfig
from regard.settings import Settings
from regard.tasks.choices import BATCH_TOKENS, READING_DEFAULTS, ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import ExportSpec, Prediction, ReportContent, ServerSchema

EVALUATION_TOKENS = 8_192
"""Tokens in a batch when no gradient is needed."""
NUM_SAMPLES = 200
"""Rows that a report shows."""

Architecture = Literal["encoder-decoder", "decoder", "encoder"]
AttentionKind = Literal["cross", "causal", "encoder"]


class TaskSettings(Settings):
    """The `[task]` section of run.toml: the name of the task, and the settings of its own."""

    name: str
    """The task, as `--task` takes it."""


@dataclass(frozen=True)
class Detection:
    """That a task recognizes a source, with the reason that is printed."""

    reason: str
    confidence: float = 0.5
    """From 0 to 1: the task with the highest confidence is chosen."""
    columns: tuple[str, ...] = ()
    """The columns that the task needs, by name or by position; none where their order or names determine them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the task that the data requires, where the user has not set them."""


@dataclass(frozen=True)
class Objective:
    """Terms of the training loss that several tasks have in common."""

    label_smoothing: float = 0.0
    rdrop: float = 0.0
    """Weight of the R-Drop term: the divergence between two forward passes with different dropout."""
    is_float8: bool = False
    """Whether products with the vocabulary are computed in float8."""


PLAIN = Objective()


class Batch(Protocol):
    """Rows as tensors."""

    @property
    def num_targets(self) -> int:
        """The number of targets that the loss is summed over, by which it is divided."""
        ...

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding, in which speed is measured."""
        ...

    def tensors(self) -> list[Tensor | None]:
        """The tensors, in a fixed order."""
        ...

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> Self:
        """The same batch with other tensors."""
        ...


class Batches(Protocol):
    """Training batches by number, in a shuffled order that the seed determines."""

    @property
    def per_epoch(self) -> int: ...

    def batch(self, number: int) -> Batch:
        """Batch `number`, counted from 0 through all epochs."""
        ...


@dataclass(frozen=True)
class Likelihoods:
    """Negative log-likelihoods of the targets of some rows, or of spans of text."""

    losses: list[float]
    """In nats, one for each row."""
    counts: list[int]
    """The number of targets that each is summed over."""
    num_correct: tuple[int, ...] = ()
    """Where the task counts them: targets to which the model gave the highest probability."""
    ranks: tuple[int, ...] = ()
    """Where the task retrieves: the rank of the right candidate."""
    carries_state: bool = False
    """Whether a recurrent model read everything as one text, its state carried from span to span."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else was measured in an evaluation during training, for `capabilities.TrainingReporter`."""

    @property
    def mean(self) -> float:
        """The mean loss per target."""
        return sum(self.losses) / max(1, sum(self.counts))


class Predictor(Protocol):
    """Predicts the outputs of inputs; it is kept between calls with its compiled and packed state."""

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """One prediction for each input, in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One run of a comparison, for `Task.comparison_notes`."""

    name: str
    """The name of its model."""
    train_rows: int | None
    """The size of its training set; None for all rows."""
    task: "Task[Any]"
    model: ModelConfig
    role: str
    """The set that it was evaluated on: `test` or `valid`."""
    rows: Sequence[Sequence[str]]
    """The rows of that set."""
    examples: Examples
    """Aligned with those of the other runs."""


@dataclass(frozen=True)
class ImportedCodecs:
    """What an imported model has to make codecs of."""

    tokenizer: Any = None
    labels: tuple[str, ...] = ()
    image: Any = None


@dataclass(frozen=True)
class EvaluationData:
    """What scores are computed from."""

    rows: Sequence[Sequence[str]]
    predictions: Sequence[Prediction]
    likelihoods: Likelihoods
    training: Prepared | None = None
    """The training data, where a report can compare outputs with it."""


@dataclass(frozen=True)
class SelectionScore:
    """The headline score of some weights on validation rows, by which the best weights are chosen."""

    metric: str
    value: float
    num_rows: int
    is_proportion: bool = False
    """Whether each row is right or wrong, and the score is the share of right ones."""

    @property
    def quality(self) -> float:
        """The value, negated where lower is better."""
        return self.value if find_metric(self.metric).higher_is_better else -self.value


TaskSettingsT = TypeVar("TaskSettingsT", bound=TaskSettings)


class Task(Generic[TaskSettingsT]):
    """One kind of job. Subclasses override what differs."""

    name: ClassVar[str]
    description: ClassVar[str]
    """A noun phrase for titles, such as `text classification`."""
    other_names: ClassVar[tuple[str, ...]] = ()
    """What the task is called elsewhere; such a name is not accepted, and its error has the right one."""
    Settings: ClassVar[type[TaskSettings]]
    roles: ClassVar[tuple[str, ...]] = ("source", "target")
    """What the columns of a row are."""
    codec_types: Mapping[str, type[Codec]]
    store_columns: tuple[str, ...]
    metrics: ClassVar[tuple[str, ...]]
    """Registered metrics, in the order of tables; `headline` names the one that heads the report."""
    architecture: ClassVar[Architecture] = "encoder"
    """The stacks that a model must have; `encoder` also accepts a decoder-only model, which reads causally."""
    input_kind: ClassVar[InputKind] = "tokens"
    default_preset: ClassVar[str] = "transformer"
    next_command: ClassVar[str | None] = None
    """What is suggested after training, such as `forecast {run} FILE`. None: predict, generate or embed."""
    output_description: ClassVar[str | None] = None
    """What that command prints or writes, for messages; None where the kind of output says it."""
    has_targets: bool = True
    """Whether rows have targets that predictions are compared with."""
    has_rows: ClassVar[bool] = True
    """Whether a score is over separate rows, whose number is stated with it; not over parts of a text or a series."""
    answers_prompts: ClassVar[bool] = False
    """Whether text is generated as the answer to a prompt, rather than as its continuation."""
    selection_rows: ClassVar[int] = 2_000
    """The most validation rows that `selection_score` predicts."""
    has_labels: bool = False
    """Whether rows have labels, by which splits can be stratified and shots are drawn."""
    supports_shots: ClassVar[bool] = False
    supports_comparison: ClassVar[bool] = True
    prediction_columns: ClassVar[Mapping[str, str]] = {"prediction": "text", "probability": "number"}
    """The columns of a table of predictions that `Prediction.to_row` fills in, and the type of each."""
    unit: ClassVar[str] = "row"
    """What an example is called."""
    token_unit: ClassVar[str] = "tokens"
    """What `Batch.num_tokens` counts, in which speed is reported."""
    attention_kind: ClassVar[AttentionKind | None] = "encoder"
    """The attention maps of texts that can be drawn; None where there are none."""
    head_kind: ClassVar[str | None] = None
    """What the model's head predicts, for exports and imports; None where it cannot be exported."""
    needs_base: ClassVar[bool] = False
    """Whether it continues the training of a model that another task has trained: neither detected nor imported."""
    why_no_baseline: ClassVar[str] = ""
    """Why `baseline` returns None, where it does; a task that needs a base is compared with it instead."""
    receives_imports: ClassVar[bool] = True
    """Whether an imported model with this head is a run of this task; one task for each head is."""
    objectives: ClassVar[frozenset[str]] = frozenset({"label_smoothing", "rdrop"})
    """Terms of `Objective` that the loss implements; `objective_terms` has those that the settings allow."""

    def __init__(self, settings: TaskSettingsT, codecs: Mapping[str, Codec] | None = None) -> None:
        self.settings, self.codecs = settings, dict(codecs or {})

    def with_codecs(self, codecs: Mapping[str, Codec]) -> Self:
        """The same task with fitted codecs."""
        return type(self)(self.settings, codecs)

    # Data

    @classmethod
    def detect(cls, summary: Any) -> Detection | None:
        """Whether the task recognizes a source by its description; None if it does not."""
        return None

    def open(self, config: DataConfig, rows: Rows | None = None) -> Any:
        """Open the data that `config` names, or `rows` in memory."""
        raise NotImplementedError

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        """Split, encode and store the data, or find it in the cache."""
        return prepare_rows(self.open(config, rows), config, self)

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        """The rows of the data that `config` names, to be evaluated on, and the hash of their content."""
        source = self.open(config, rows)
        for inferred in source.train.inferred:
            log_info(inferred)
        found = [row.values for row in source.train]
        if source.train.bad_rows.total:
            log_warning(f"skipped: {source.train.bad_rows}")
        return found, source.content_hash()

    @property
    def target_tokenizer(self) -> Any:
        """The tokenizer of targets, where the task generates them."""
        raise RunError(f"{self.description} generates no targets")

    @property
    def tokenizer_kind(self) -> str:
        """The kind of tokenizer, or the path of one; empty where rows have no text."""
        return ""

    @property
    def max_row_length(self) -> int | None:
        """Training rows with a longer column are left out; None for no limit."""
        return None

    def cache_key(self) -> Mapping[str, Any]:
        """The settings that change what is stored."""
        return {"task": self.name, **self.settings.model_dump(exclude={"name"})}

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        """Fit the codecs on training rows."""
        raise NotImplementedError

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """For each column of the store, the ids of each row."""
        raise NotImplementedError

    def labels_of(self, row: Sequence[str]) -> Sequence[str]:
        """The labels of a row, where `has_labels`."""
        return (row[-1].strip(),)

    def unknown_labels(self, rows: Sequence[Sequence[str]], where: str) -> str | None:
        """A warning about rows of a set, `where`, whose labels training did not see; None if there are none."""
        codec = self.codecs.get("label")
        if not self.has_labels or not isinstance(codec, LabelCodec):
            return None
        return describe_unknown(codec.counts, map(self.labels_of, rows), where)

    def fitted_codec_types(self) -> Mapping[str, type[Codec]]:
        """Those of `codec_types` that `fit_codecs` returns with these settings."""
        return self.codec_types

    def notes(self) -> list[str]:
        """What the fitted codecs are, for the log."""
        return []

    def input_of(self, row: Sequence[str]) -> str:
        """The input of a row, as `predict` takes it."""
        return row[0]

    def target_of(self, row: Sequence[str]) -> str:
        """The target of a row, as `predict` would return it."""
        return row[-1]

    # Settings

    def choose(self, context: ChoiceContext) -> Choices:
        """Settings for data like this; `self.settings` has None where the user has set nothing."""
        return Choices()

    def defaults(self, context: DefaultsContext) -> Defaults:
        """Values for what the user left unset."""
        return Defaults(train=READING_DEFAULTS | {"batch_tokens": BATCH_TOKENS[context.device]})

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """Raise ConfigError where settings cannot be combined; called when all are resolved."""

    def objective_terms(self) -> frozenset[str]:
        """The terms of `Objective` that have an effect with these settings; setting another one is an error."""
        return self.objectives

    @classmethod
    def check_base(cls, base: "Task[Any]", model: ModelConfig, where: str) -> None:
        """Raise ConfigError where a model of another task cannot be fine-tuned for this one."""
        has_encoder, has_decoder = bool(model.encoder_depth), bool(model.decoder_depth)
        if model.input_kind != cls.input_kind:
            raise ConfigError(
                f"{cls.description} needs a model that reads {cls.input_kind}, and {where} reads {model.input_kind}"
            )
        if cls.architecture == "encoder-decoder" and not (has_encoder and has_decoder):
            raise ConfigError(f"{cls.description} needs an encoder and a decoder, which {where} does not have")
        if cls.architecture == "decoder" and has_encoder:
            raise ConfigError(f"{cls.description} needs a decoder-only model, and {where} has an encoder")

    def num_positions(self, data: Prepared) -> int:
        """The positions of the longest input, which learned positions must cover."""
        return max(data.train.max_length, data.valid.max_length)

    # Model and training

    def build(self, model: ModelConfig, head: HeadConfig) -> nn.Module:
        """A new model for this task."""
        raise NotImplementedError

    def batches(self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False) -> Batches:
        """Training batches; with `has_fixed_shapes`, padded to shapes that recur, as CUDA graphs need."""
        store: Any = data.train
        fill = self.pad_batch if has_fixed_shapes else None

        def make(rows: NDArray[np.int64]) -> Batch:
            return self.collate(_columns_of(store, rows), is_training=True)

        return StoredBatches(store, make, fill, batch_tokens=batch_tokens, seed=seed)

    def validation_batches(self, data: Prepared) -> Iterator[Batch]:
        """All validation rows, once."""
        store: Any = data.valid
        for rows in batches_by_length(store.lengths(), batch_tokens=EVALUATION_TOKENS):
            yield self.collate(_columns_of(store, rows))

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator[Batch]:
        """All of these rows, once, ordered by length."""
        for _, batch in self.indexed_batches(self.encode_rows(rows)):
            yield batch

    def indexed_batches(self, columns: Sequence[Sequence[Sequence[int]]]) -> Iterator[tuple[list[int], Batch]]:
        """Encoded rows in batches of similar length, each with the numbers of its rows."""
        lengths = [max(len(column[row]) for column in columns) for row in range(len(columns[0]))]
        for rows in batches_by_length(lengths, batch_tokens=EVALUATION_TOKENS):
            yield rows.tolist(), self.collate([[np.array(column[row], np.int64) for row in rows] for column in columns])

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> Batch:
        """Encoded rows as a batch."""
        raise NotImplementedError

    def pad_batch(self, batch: Any, num_rows: int, length: int) -> Any:
        """The batch padded to this many rows of this many tokens; added rows have no weight in the loss.

        Without padding, a CUDA graph is captured for each shape that occurs.
        """
        return batch

    def loss(self, model: Any, batch: Any, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The loss summed over the batch's targets."""
        raise NotImplementedError

    @property
    def uses_whole_batch(self) -> bool:
        """Whether rows of a batch are examples for each other, so that its loss is not a sum over rows."""
        return False

    @property
    def carries_state(self) -> bool:
        """Whether training carries a recurrent state from each batch to the next: see `capabilities.StatefulTask`."""
        return False

    def likelihoods(self, model: Any, batches: Iterator[Any], device: torch.device) -> Likelihoods:
        """The negative log-likelihoods of all targets."""
        raise NotImplementedError

    # Use

    def predictor(self, model: Any, config: GenerationConfig) -> Predictor:
        """An object that predicts with this model."""
        return BatchPredictor(self, model)

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        """Inputs encoded as rows are, with placeholders for targets."""
        raise NotImplementedError

    def outputs(self, model: Any, batch: Any) -> Sequence[Any]:
        """The model's output for each row of a batch, for `prediction`."""
        raise NotImplementedError

    def prediction(self, text: str, output: Any) -> Prediction:
        """An output as a prediction."""
        raise NotImplementedError

    @property
    def chat_template(self) -> str | None:
        """The chat template that the model was trained with; None where it was not trained on conversations."""
        return None

    def output_for(self, model: Any, text: str) -> str:
        """The output for one text, beside the attention maps of an encoder."""
        return self.predictor(model, GenerationConfig())([text])[0].output

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        """The metric that heads a report on rows like these."""
        return self.metrics[0]

    def metric_names(self) -> tuple[str, ...]:
        """The metrics that this task, with its settings and codecs, is evaluated by."""
        return self.metrics

    def examples(self, data: EvaluationData) -> Examples:
        """What the metrics are computed from."""
        return Examples(
            outputs=[each.output for each in data.predictions],
            targets=[self.target_of(row) for row in data.rows],
            losses=data.likelihoods.losses,
            num_tokens=data.likelihoods.counts,
        )

    def selects_by_score(self, device: Literal["cpu", "cuda"]) -> bool:
        """Whether `train.select_by = "auto"` is score: predictions are compared with targets, and cheap to make."""
        return self.has_targets

    def selection_generation(self, rows: Sequence[Sequence[str]]) -> GenerationConfig:
        """How the predictions of `selection_score` are generated."""
        return GenerationConfig()

    def selection_score(
        self,
        model: Any,
        rows: Sequence[Sequence[str]],
        *,
        num_rows: int | None = None,
        metric: str | None = None,
        spread: Callable[[Predictor, Sequence[str]], list[Prediction]] | None = None,
    ) -> SelectionScore | None:
        """The headline score of a model in evaluation mode, or another, on the first rows; None where there are none.

        Unset, `num_rows` is `selection_rows`. `spread` calls a predictor on inputs, which several processes may share.
        """
        rows = rows[: num_rows or self.selection_rows]
        if not rows:
            return None
        predictor, inputs = self.predictor(model, self.selection_generation(rows)), [self.input_of(row) for row in rows]
        predictions = predictor(inputs) if spread is None else spread(predictor, inputs)
        examples = self.examples(EvaluationData(rows, predictions, Likelihoods([], [])))
        found = find_metric(metric or self.headline(rows))
        if not found.is_additive:
            return SelectionScore(found.name, found.value(examples), len(rows))
        counts = found.count(examples)
        return SelectionScore(found.name, counts.value, len(counts), counts.is_proportion)

    def label_counts(self, examples: Examples) -> LabelCounts | None:
        """The occurrences of each label, or type of entity, for tables; None where targets are not labels."""
        if examples.labels is None:
            return None
        return count_labels(*examples.require(*PAIRS), labels=examples.labels)

    def scores(self, data: EvaluationData) -> list[Score]:
        """All metrics, each with its interval."""
        examples = self.examples(data)
        return [score for name in self.metric_names() for score in find_metric(name).scores(examples)]

    def baseline(self, data: Prepared) -> Baseline | None:
        """A simple model, fitted on the training rows in seconds, that a trained one must beat; None for none.

        Then `why_no_baseline` has the reason.
        """
        return None

    def baseline_examples(self, baseline: Baseline, rows: Sequence[Sequence[str]]) -> Examples:
        """What the metrics are computed from for the baseline; what it does not predict is None."""
        inputs = [self.input_of(row) for row in rows]
        found = baseline.predict(inputs)
        tables = found.probabilities or [None] * len(found.outputs)
        predicted = zip(inputs if found.outputs else [], found.outputs, tables, strict=True)
        predictions = [Prediction(text, output, probabilities=table) for text, output, table in predicted]
        likelihoods = Likelihoods(list(found.losses), list(found.num_tokens))
        examples = self.examples(EvaluationData(rows, predictions, likelihoods))
        return examples if found.losses else replace(examples, losses=None, num_tokens=None)

    def failure(self, scores: Mapping[str, Score], counts: LabelCounts | None, headline: str) -> str:
        """By what it shows that a model has learned nothing, such as a score of 0; empty where it has."""
        if counts is not None:
            predicted = [label for label, (_, given, _) in counts.totals.items() if given]
            if len(predicted) == 1 and sum(gold > 0 for _, _, gold in counts.totals.values()) > 1:
                return f"{predicted[0]!r} is predicted for every {self.unit}"
        is_zero = scores[headline].value == 0 and find_metric(headline).higher_is_better
        return f"{score_label(headline)} is 0" if is_zero else ""

    def align(self, examples: Sequence[Examples]) -> list[Examples]:
        """Make the examples of several runs on the same rows comparable unit by unit."""
        return list(examples)

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        """The metric by which runs are compared, and those shown beside it."""
        return (headline, *(name for name in self.metric_names() if name != headline))

    def comparison_notes(self, runs: Sequence["ComparedRun"]) -> list[str]:
        """What a reader of a comparison should know about the scores."""
        return [f"scores are on the {runs[0].role} rows"]

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """The texts by whose length scores are shown; none where inputs are not texts."""
        return [row[0] for row in rows]

    def train_size(self, data: Prepared) -> int:
        """The size of the training set, in units of the task."""
        return len(data.train)

    def check_comparison(
        self,
        tasks: Mapping[str, Any],
        data: Prepared,
        config: DataConfig,
        *,
        batch_tokens: int,
        sizes: Sequence[int] = (),
    ) -> None:
        """Raise where models cannot be compared on the data, or on smaller training sets of these sizes.

        Args:
            tasks: The task with the settings of each model, by the names of the models.
            data: Prepared with the settings that all share.
            config: The data settings that all share.
            batch_tokens: The largest batch of any model.
            sizes: Sizes of smaller training sets, in units of the task.
        """
        for size in sizes:
            if not 1 <= size <= self.train_size(data):
                total = self.train_size(data)
                raise ConfigError(f"the size of a training set must be 1 to {total:,} {self.unit}s, got {size:,}")

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        """What the report of a run shows."""
        return ReportContent(samples=self.samples(model, data), facts=self.facts())

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        """Rows with targets and predictions: errors first, then correct ones."""
        rows = [
            {"source": self.input_of(row), "target": self.target_of(row), "prediction": each.output,
             "right": self.target_of(row) == each.output}
            for row, each in zip(data.rows, data.predictions, strict=True)
        ]  # fmt: skip
        wrong, right = ([row for row in rows if row["right"] is is_right] for is_right in (False, True))
        return [*wrong[: NUM_SAMPLES // 2], *right[: NUM_SAMPLES // 2]]

    def facts(self) -> dict[str, str]:
        """Short facts for the head of the report."""
        return {}

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        """What a server accepts and returns."""
        return ServerSchema()

    def export_spec(self) -> ExportSpec:
        """What exports need to know of the model."""
        if self.head_kind is None:
            raise ConfigError(f"a model for {self.description} cannot be exported")
        return ExportSpec(self.head_kind)

    @classmethod
    def inherited_settings(cls, base: "Task[Any]") -> dict[str, Any]:
        """Values of the `[task]` section by the task of the model that is fine-tuned."""
        return {}

    @classmethod
    def imported_settings(cls, *, max_length: int, window: int) -> dict[str, Any]:
        """Values of the `[task]` section for an imported model with this head."""
        return {}

    @classmethod
    def imported_codecs(cls, imported: "ImportedCodecs") -> dict[str, Codec]:
        """The codecs of an imported model with this head."""
        raise NotImplementedError


class BatchPredictor:
    """Predicts in batches of similar length by `encode_inputs`, `outputs` and `prediction` of a task."""

    def __init__(self, task: Task[Any], model: nn.Module) -> None:
        self._task, self._model = task, model
        self._device = next(model.parameters()).device

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        found: dict[int, Any] = {}
        for rows, batch in self._task.indexed_batches(self._task.encode_inputs(inputs)):
            with torch.inference_mode():
                outputs = self._task.outputs(self._model, to_device(batch, self._device))
            found |= dict(zip(rows, outputs, strict=True))
        return [self._task.prediction(text, found[number]) for number, text in enumerate(inputs)]


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch on a device; the copy to a GPU is asynchronous."""

    def move(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or device.type == tensor.device.type:
            return tensor
        return tensor.pin_memory().to(device, non_blocking=True)

    return batch.with_tensors([move(tensor) for tensor in batch.tensors()])


def repeat_batch(batch: Any) -> Any:
    """The batch twice, one copy above the other, so that each gets a dropout mask of its own (R-Drop)."""
    return batch.with_tensors([None if tensor is None else torch.cat([tensor, tensor]) for tensor in batch.tensors()])


def symmetric_kl(log_probs: Float[Tensor, "two *outputs"]) -> Float[Tensor, "one *outputs"]:
    r"""The terms of $\mathrm{KL}(p \| q) + \mathrm{KL}(q \| p)$ between the two halves of a repeated batch."""
    one, other = log_probs.chunk(2)
    return (one.exp() - other.exp()) * (one - other)


def _columns_of(store: TokenStore, rows: NDArray[np.int64]) -> list[list[NDArray[np.int64]]]:
    return [store.sequences(column, rows) for column in range(len(store.columns))]
