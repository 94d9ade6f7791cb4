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

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Shaped
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
from regard.data.stores.tokens import TokenStream
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

EVALUATION_TOKENS = 8_192
"""Tokens in a batch when no gradient is needed."""
_QUICK_MINUTES = 15.0
NUM_SAMPLES = 200
"""Rows that a report shows."""

Architecture = Literal["encoder-decoder", "decoder", "encoder"]
HeadKind = Literal[
    "next-token", "target-tokens", "masked-tokens", "labels", "number", "tags", "spans", "vector", "image-labels"
]
AttentionKind = Literal["cross", "causal", "encoder", "words", "image", "picture"]
"""The attention maps that can be drawn; `words`: the weight of each word of the input instead; `image`: maps over the
image; `picture`: the weights of the cells of an image for each word of the output."""


class TaskSettings(Settings):
    """The `[task]` section of run.toml: the name of the task, and the settings of its own."""

    name: str


@dataclass(frozen=True)
class Detection:
    """That a task recognizes a source, with the reason that is printed."""

    reason: str
    confidence: float = 0.5
    """From 0 to 1: the task with the highest confidence is chosen."""


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

    @property
    def mean(self) -> float:
        """The mean loss per target."""
        return sum(self.losses) / max(1, sum(self.counts))


@dataclass(frozen=True)
class TaggedSpan:
    """A part of an input with a label: an entity, or a word with its tag."""

    text: str
    label: str
    start: int
    """The position of its first character in the input, from 0."""
    end: int
    """The position after its last character."""
    probability: float | None
    """Of the tag of a word; of an entity, the smallest one of its words. None for words beyond `task.max_length`."""

    def to_json(self) -> dict[str, Any]:
        return vars(self)


@dataclass(frozen=True)
class Prediction:
    """The model's output for one input."""

    input: str
    output: str
    score: float | None = None
    """The length-normalized log-probability, for beam search."""
    probabilities: dict[str, float] | None = None
    """The probability of each label, for classifiers; of the likeliest fillers, for masked models."""
    aspect: str | None = None
    """The aspect of the input that the output is about, for aspect sentiment."""
    weights: list[tuple[str, float]] | None = None
    """The attention weight of each word of the input, for aspect sentiment."""
    probability: float | None = None
    """The probability of the output, where the model has one: of a label, of a set of labels, of a sequence of tags."""
    words: list[TaggedSpan] | None = None
    """Each word of the input with its tag, for taggers."""
    spans: list[TaggedSpan] | None = None
    """The entities of the input, for taggers; all words, where tags are not those of entities."""
    lower: str | None = None
    """The lower ends of the intervals of a forecast, in the form of the output."""
    upper: str | None = None
    """Their upper ends."""
    details: dict[str, Any] | None = None
    """Further figures of the output, as JSON: for events the time until the next one, and risks."""
    properties: dict[str, float] | None = None
    """The value of each property that was predicted, where these are numbers."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `--json` prints and a server returns."""
        found = {"input": self.input, "output": self.output, "score": self.score}
        more = {
            "probabilities": self.probabilities,
            "aspect": self.aspect,
            "weights": self.weights,
            "probability": self.probability,
            "words": _as_dicts(self.words),
            "spans": _as_dicts(self.spans),
            "lower": self.lower,
            "upper": self.upper,
            "details": self.details,
            "properties": self.properties,
        }
        return found | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True)
class TextScore:
    """The log-probability of a text, and of each of its tokens given those before it."""

    text: str
    tokens: list[str]
    """The tokens as text; the last one is the end of the text."""
    log_probabilities: list[float]
    """In nats; they sum to the log-probability of the whole text, its end included."""

    @property
    def log_probability(self) -> float:
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_probability / len(self.log_probabilities))

    @property
    def bits_per_byte(self) -> float:
        return -self.log_probability / math.log(2) / len(self.text.encode())

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "log_probability": self.log_probability,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
        }


class Predictor(Protocol):
    """Predicts the outputs of inputs; it is kept between calls with its compiled and packed state."""

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """One prediction for each input, in order."""
        ...


class Policy(Protocol):
    """Chooses actions in several episodes that are stepped together; they are numbered from 0."""

    target_return: float

    def check_spaces(self, *, num_features: int, num_actions: int | None, action_width: int) -> None:
        """Raise where an environment has other observations or actions than the model."""
        ...

    def reset(self, num_episodes: int) -> None:
        """Begin this many episodes."""
        ...

    def act(self, episodes: NDArray[np.int64], observations: NDArray) -> NDArray:
        """The actions of the episodes that are still running."""
        ...

    def observe(self, episodes: NDArray[np.int64], actions: NDArray, rewards: NDArray) -> None:
        """The actions that were done in these episodes, and the reward for each."""
        ...


@dataclass(frozen=True)
class ChoiceContext:
    """What settings may depend on that are chosen before the data is encoded."""

    rows: Sequence[Sequence[str]]
    """A sample of the training rows."""
    num_characters: int
    """Of all rows that were read for the sample."""
    device: Literal["cpu", "cuda"]
    minutes: float | None
    """The budget, where it is a time."""

    @property
    def is_quick(self) -> bool:
        """Whether the run takes at most 15 minutes on a CPU."""
        return _is_quick(self.device, self.minutes)


@dataclass(frozen=True)
class Choices:
    """Settings that are chosen for the data before it is encoded; what the user has set takes precedence."""

    task: Mapping[str, Any] = field(default_factory=dict)
    """Values of the `[task]` section."""
    preset: str | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    """For each setting that is printed, its value and why: `task.tokenizer` -> `characters: single words`."""


@dataclass(frozen=True)
class DefaultsContext:
    """What defaults may depend on."""

    data: Prepared
    model: ModelConfig
    device: Literal["cpu", "cuda"]
    is_finetuned: bool = False
    method: str | None = None
    """Which weights are fine-tuned: `finetune.method`."""
    minutes: float | None = None
    """The budget as far as it is set, with `max_steps` and `max_epochs`."""
    max_steps: int | None = None
    max_epochs: float | None = None

    @property
    def num_rows(self) -> int:
        return len(self.data.train)

    def num_epochs(self, *, tokens_per_second: float, batch_tokens: int) -> float | None:
        """Roughly how many passes over the training data the budget allows; None without a budget.

        Args:
            tokens_per_second: The rough speed of training on this device, with the terms of the loss in question.
            batch_tokens: The size of a batch.
        """
        store: Any = self.data.train
        num_tokens = len(store) if isinstance(store, TokenStream) else int(store.lengths().sum())
        found = [
            None if self.minutes is None else 60 * self.minutes * tokens_per_second / max(1, num_tokens),
            None if self.max_steps is None else self.max_steps * batch_tokens / max(1, num_tokens),
            self.max_epochs,
        ]
        return min((each for each in found if each is not None), default=None)

    @property
    def is_quick(self) -> bool:
        """Whether the run takes at most 15 minutes on a CPU."""
        return _is_quick(self.device, self.minutes)


@dataclass(frozen=True)
class Defaults:
    """Values for settings that the user left unset, by section."""

    train: Mapping[str, Any] = field(default_factory=dict)
    """A learning rate is used only with the optimizer beside it."""
    task: Mapping[str, Any] = field(default_factory=dict)
    head: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    """In place of values of the preset, except those of a size that the user has named."""
    finetune: Mapping[str, Any] = field(default_factory=dict)
    finetune_train: Mapping[str, Any] = field(default_factory=dict)
    """Values of the `[train]` section for fine-tuning, in place of those that all tasks share."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """For each setting that is printed, its value and why: `train.rdrop` -> `5: the budget allows many epochs`."""


FORECAST_COLUMNS: tuple[str, ...] = ("id", "time", "column", "point", "lower", "upper")
"""The columns of a table of forecasts."""


@dataclass(frozen=True)
class SeriesForecast:
    """The forecast of one column of a series, with an interval at each step."""

    id: str
    """The name of the series; empty where there is one only."""
    column: str
    times: list[str]
    point: list[float]
    lower: list[float]
    upper: list[float]
    past_times: list[str] = field(default_factory=list)
    """The last steps before the forecast, for plots."""
    past: list[float | None] = field(default_factory=list)
    """None where a value is missing."""
    actual: list[float | None] = field(default_factory=list)
    """What was observed at the steps of the forecast, where it is known."""

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary for each step."""
        return [
            {"id": self.id, "time": time, "column": self.column, "point": point, "lower": lower, "upper": upper}
            for time, point, lower, upper in zip(self.times, self.point, self.lower, self.upper, strict=True)
        ]


@dataclass(frozen=True)
class EventTimeline:
    """The events of a subject, and the risk of each next event while it was observed."""

    subject: str
    unit: str
    """The unit of times; empty where it is not known."""
    times: list[float]
    events: list[str]
    end: float
    """When the observation ends."""
    horizon: float
    risk_times: list[float]
    risks: dict[str, list[float]]
    """For each event, the probability at each of these times that the next event is this one, within the horizon."""


@dataclass(frozen=True)
class DrawnImage:
    """An image that a model has drawn, or a training image beside it."""

    png: str
    """The image as a PNG file, in base64."""
    label: str = ""
    """The class that it was drawn for, or has; empty for none."""
    distance: float | None = None
    """Of a training image: the root of the mean squared difference from the drawn one, in levels of 256."""
    nearest: "list[DrawnImage]" = field(default_factory=list)
    """The training images that differ least from it, where they are at hand."""


@dataclass(frozen=True)
class GraphDrawing:
    """A graph whose nodes are shaded by attention."""

    names: tuple[str, ...]
    """What each node is called."""
    edges: tuple[tuple[int, int, float], ...]
    """The two nodes of each edge, and the order of the bond: 1 where it is none of a molecule."""
    positions: tuple[tuple[float, ...], ...] | None = None
    """The coordinates of the nodes; None where a layout is to be found."""


@dataclass(frozen=True)
class ReportContent:
    """What a report shows of a task, beside scores and curves."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    """Rows with `source`, `target`, `prediction` and `right`; errors first."""
    confusion: dict[str, Any] | None = None
    """`labels`, and `counts` with a row for each true label and a column for each predicted one."""
    predictions: list[tuple[list[Prediction], str]] = field(default_factory=list)
    """Predictions with word weights, and the true label of each: words are shaded by their weights."""
    facts: dict[str, str] = field(default_factory=dict)
    """Short facts for the head of the report, such as the size of the vocabulary."""
    attention_inputs: list[tuple[str, str]] = field(default_factory=list)
    """Inputs whose attention can be drawn, and the output of each; the first one that is short enough is drawn."""
    forecasts: list[SeriesForecast] = field(default_factory=list)
    """Forecasts of held-out steps, which are drawn with what was observed."""
    coverage: float | None = None
    """The share of values that the intervals of forecasts are made to contain."""
    timelines: list[EventTimeline] = field(default_factory=list)
    """Subjects whose events and risks are drawn."""
    drawn: list[DrawnImage] = field(default_factory=list)
    """Images that the model has drawn, with their nearest training images."""
    drawn_note: str = ""
    """What their distances are to be compared with."""
    trees: list[tuple[str, str]] = field(default_factory=list)
    """Captions, and trees in brackets, which are drawn."""


@dataclass(frozen=True)
class ServerSchema:
    """What a server accepts for a task."""

    inputs: tuple[str, ...] = ("text",)
    """The names of the parts of an input, which are separated by tabs."""
    placeholder: str = ""
    """An example of an input, or how to write one."""
    labels: tuple[str, ...] = ()
    output: Literal["text", "label", "tags", "span", "vector", "tree"] = "text"
    """How an output is displayed: a text, a label or number with probabilities, tags of words, a span, a vector, a tree
    in brackets."""
    streams: bool = False
    """Whether text is generated from a prompt, piece by piece."""
    has_beam_search: bool = False
    reads_files: bool = False
    """Whether inputs are paths of images. A server accepts data URIs instead, since clients could read its files."""


@dataclass(frozen=True)
class ExportSpec:
    """What an export needs to know of a model, whatever its task is called."""

    head: HeadKind
    labels: tuple[str, ...] = ()
    """In the order of the logits."""
    is_multi_label: bool = False
    scale: float = 1.0
    """With `shift`, the map from the model's output to a number in the units of the data."""
    shift: float = 0.0
    max_length: int | None = None
    """The largest number of tokens of a text."""
    unsupported: Mapping[str, bool | int] = field(default_factory=dict)
    """Settings in use that are not part of the network's logits, such as `task.crf`, with their values."""
    only_onnx: tuple[str, ...] = ()
    """Settings in use that only a graph of the whole model can represent, such as `task.ngrams`."""
    pooling: str | None = None
    """How hidden states become one vector."""
    has_hidden_layer: bool = False
    """Whether the head has a hidden layer with tanh."""


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

    @property
    def quality(self) -> float:
        """The value, negated where lower is better."""
        return self.value if find_metric(self.metric).higher_is_better else -self.value


@dataclass(frozen=True)
class LabeledVectors:
    """Inputs of a linear head, and what it should predict from each."""

    vectors: Float[Tensor, "rows model"]
    targets: Shaped[Tensor, "rows ..."]
    """Class indices, rows of zeros and ones for several labels, or numbers."""
    weights: Float[Tensor, " rows"]
    """The weight of each row in the loss; one of weight 0 is not a row of the data."""


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
    reads_tables: ClassVar[bool] = False
    """Whether several rows of a table are one input, so that a table is read as a whole: see `predict_subjects`."""
    has_targets: ClassVar[bool] = True
    """Whether rows have targets that predictions are compared with."""
    selection_rows: ClassVar[int] = 2_000
    """The most validation rows that `selection_score` predicts."""
    has_labels: bool = False
    """Whether rows have labels, by which splits can be stratified and shots are drawn."""
    supports_shots: ClassVar[bool] = False
    supports_comparison: ClassVar[bool] = True
    draws_images: ClassVar[bool] = False
    """Whether `draw` has the model generate images."""
    unit: ClassVar[str] = "row"
    """What an example is called."""
    attention_kind: ClassVar[AttentionKind | None] = "encoder"
    """None where nothing can be drawn."""
    head_kind: ClassVar[HeadKind | None] = None
    """What the model's head predicts, for exports and imports; None where it cannot be exported."""
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
            log_warning(f"{source.train.bad_rows}; they are skipped")
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

    def input_of_record(self, record: Mapping[str, Any]) -> str | None:
        """The input in a row of a table that is not made of columns of text; None where it is."""
        return None

    def expand_input(self, text: str, aspect: str | None) -> list[str]:
        """The inputs that a prediction is made for: the text itself, unless it is judged for several aspects."""
        if aspect is not None:
            raise RunError(f"only a run for aspect sentiment takes an aspect, this one is for {self.description}")
        return [text]

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

    def has_linear_head(self, head: HeadConfig) -> bool:
        """Whether the logits are `model.head.output` of vectors that only the base computes: see `head_inputs`."""
        return False

    def head_inputs(self, model: Any, batch: Any) -> LabeledVectors:
        """What the linear head reads, and should predict, for a batch."""
        raise NotImplementedError

    def solve(self, model: Any, data: Prepared, *, seconds: float | None = None) -> bool:
        """Solve the parts of a new model that are not trained by steps, such as counts of n-grams.

        They have no effect on a model in training mode, and are weighted by `blend` in one that is evaluated.

        Args:
            model: A new model.
            data: The rows.
            seconds: What solving may take, roughly.

        Returns:
            Whether the model has such parts; it is then evaluated before the first step.
        """
        return False

    def blend(self, model: Any, batches: Iterator[Any], device: torch.device) -> None:
        """Fit the weights of the network and of the solved parts in the model's output, before each evaluation.

        Args:
            model: A model in evaluation mode.
            batches: The validation rows.
            device: Where the model is.
        """

    @property
    def carries_state(self) -> bool:
        """Whether training carries a recurrent state from each batch to the next: see `StatefulTask`."""
        return False

    def likelihoods(self, model: Any, batches: Iterator[Any], device: torch.device) -> Likelihoods:
        """The negative log-likelihoods of all targets."""
        raise NotImplementedError

    # Use

    def predictor(self, model: Any, config: GenerationConfig) -> Predictor:
        """An object that predicts with this model."""
        return BatchPredictor(self, model)

    def unseen_in(self, inputs: Iterable[str]) -> list[str]:
        """The aspects of inputs that no training row has, for a warning; none where inputs have no aspect."""
        return []

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        """Inputs encoded as rows are, with placeholders for targets."""
        raise NotImplementedError

    def outputs(self, model: Any, batch: Any) -> Sequence[Any]:
        """The model's output for each row of a batch, for `prediction`."""
        raise NotImplementedError

    def prediction(self, text: str, output: Any) -> Prediction:
        """An output as a prediction."""
        raise NotImplementedError

    def output_for(self, model: Any, text: str) -> str:
        """The output for one text, beside the attention maps of an encoder."""
        return self.predictor(model, GenerationConfig())([text])[0].output

    def drawing(self, text: str) -> GraphDrawing | None:
        """The graph of an input, on which attention is drawn; None where inputs are no graphs."""
        return None

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

    def selection_score(self, model: Any, rows: Sequence[Sequence[str]]) -> SelectionScore | None:
        """The headline score of a model in evaluation mode on the first of these rows; None where there are none."""
        rows = rows[: self.selection_rows]
        if not rows:
            return None
        inputs = [text for row in rows for text in self.expand_input(self.input_of(row), None)]
        predictions = self.predictor(model, self.selection_generation(rows))(inputs)
        examples = self.examples(EvaluationData(rows, predictions, Likelihoods([], [])))
        metric = find_metric(self.headline(rows))
        return SelectionScore(metric.name, metric.value(examples), len(rows))

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
        """A simple model, fitted on the training rows in seconds, that a trained one must beat; None for none."""
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

    def with_stride(self, stride: int) -> Self:
        """The task with another distance between evaluation windows."""
        raise ConfigError(f"stride is for running text, got {stride} for {self.description}")

    def score_text(self, model: Any, text: str) -> Any:
        """The log-probability of a text, token by token."""
        raise RunError(
            f"log-probabilities of texts are for language models, and this is a model for {self.description}"
        )

    def score_samples(self, texts: Sequence[str], known: Sequence[str]) -> list[Score]:
        """Metrics of generated texts, given those that the model was trained on."""
        raise RunError(f"a model for {self.description} has no metrics of generated texts")

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
    def imported_settings(cls, *, max_length: int, window: int) -> dict[str, Any]:
        """Values of the `[task]` section for an imported model with this head."""
        return {}

    @classmethod
    def imported_codecs(cls, imported: "ImportedCodecs") -> dict[str, Codec]:
        """The codecs of an imported model with this head."""
        raise NotImplementedError

    def picture_attention(
        self, model: Any, image: str, caption: str
    ) -> tuple[list[str], list[Float[np.ndarray, "heads target cells"]]]:
        """The tokens of a caption and its end, and by layers the weights of the image's cells for each of them."""
        raise RunError(f"maps over a picture are for captions, and this is a model for {self.description}")

    def forecast(self, model: Any, data: Any, *, horizon: int | None = None) -> list[SeriesForecast]:
        """The continuation of each series of a table."""
        raise RunError(f"forecasts are for series, and this is a model for {self.description}")

    def predict_subjects(
        self, model: Any, data: Any, *, columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]] | None:
        """Predictions for a table of which several rows are one input; None where each row is an input."""
        return None

    def subject_timelines(self, model: Any, data: Any, *, columns: Sequence[str] | None = None) -> list[EventTimeline]:
        """The events and the risks of each subject of a table, to be drawn."""
        raise RunError(f"timelines are for events, and this is a model for {self.description}")

    def policy(
        self, model: Any, *, target_return: float | None = None, temperature: float = 0.0, seed: int = 0
    ) -> Policy:
        """What chooses actions in an environment, so that the sum of rewards becomes `target_return`."""
        raise RunError(f"rollouts are for control, and this is a model for {self.description}")

    def draw(
        self,
        model: Any,
        config: GenerationConfig,
        *,
        count: int,
        label: str | None = None,
        training: Prepared | None = None,
    ) -> list[DrawnImage]:
        """Images that the model generates.

        Args:
            model: The model, in evaluation mode.
            config: How values are sampled; image i has the seed `config.seed` + i.
            count: The number of images.
            label: The class of all of them; None for the distribution of all classes.
            training: The training data, for the nearest training images of each.
        """
        raise RunError(f"images are drawn by models that generate images, and this is a model for {self.description}")

    def embed(self, model: Any, inputs: Sequence[str]) -> Float[np.ndarray, "inputs model"]:
        """A vector of length 1 for each input."""
        raise RunError(f"a model for {self.description} has no embeddings")


class StatefulTask(Protocol):
    """A task whose batches continue the previous ones: truncated backpropagation through time."""

    def stateful_batches(self, data: Prepared, *, batch_tokens: int, seed: int) -> Batches:
        """Batches each of whose rows continues the same row of the previous batch."""
        ...

    def stateful_loss(
        self, model: Any, batch: Any, state: list[Tensor] | None, objective: Objective = PLAIN
    ) -> tuple[Float[Tensor, ""], list[Tensor]]:
        """The loss of a batch that continues from `state`, and the detached state after it."""
        ...


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


BATCH_TOKENS: Mapping[str, int] = {"cpu": 1_024, "cuda": 4_096}
"""A CPU gains nothing from larger batches, and many small steps learn more than few large ones."""
MUON_REASON = "muon: on a GPU, a Transformer learns more by it than by adamw in as many steps"
TRAIN_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "label_smoothing": 0.1,
    "schedule": "cosine",
    "warmup_steps": 200,
    "beta2": 0.98,
    "weight_decay": 0.01,
    "ema_decay": 0.998,
}
"""For sequence-to-sequence models, by the experiments in docs/log.md."""
READING_DEFAULTS: dict[str, Any] = {**TRAIN_DEFAULTS, "label_smoothing": 0.0, "ema_decay": 0.99}
"""For encoders with a head: few steps, so a shorter moving average."""


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


def _is_quick(device: Literal["cpu", "cuda"], minutes: float | None) -> bool:
    return device == "cpu" and minutes is not None and minutes <= _QUICK_MINUTES


def _as_dicts(spans: Sequence[TaggedSpan] | None) -> list[dict[str, Any]] | None:
    return None if spans is None else [span.to_json() for span in spans]


def _columns_of(store: TokenStore, rows: NDArray[np.int64]) -> list[list[NDArray[np.int64]]]:
    return [store.sequences(column, rows) for column in range(len(store.columns))]
