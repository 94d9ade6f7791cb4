"""What some tasks can do and others cannot: forecast, embed, score texts, generate images, act in an environment.

Each capability is a protocol, which a task of this package or of another
satisfies by having its methods. What needs one calls `capability(task, Forecaster)`,
which is the task typed as such, or an error that says what kind of model can do it.

Dimensions: `inputs` that are embedded, `model` width.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.formats.images import ImageConfig
from regard.data.prepare import Prepared
from regard.errors import RunError
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.models.heads import HeadConfig
from regard.tasks.content import Attribution, Curve, DrawnImage, Panel, Plot, Section
from regard.tasks.task import PLAIN, Batches, Objective, Task

CapabilityT = TypeVar("CapabilityT")


def capability(task: Task[Any], protocol: type[CapabilityT]) -> CapabilityT:
    """The task as one that has a capability; a `RunError` says which models have it."""
    if not isinstance(task, protocol):
        rule = _RULES.get(protocol, f"this needs a task with the methods of {protocol.__name__}")
        raise RunError(f"{rule}, and this is a model for {task.description}")
    return task


@runtime_checkable
class Embedder(Protocol):
    """Embeds inputs: texts, images, graphs."""

    def embed(self, model: Any, inputs: Sequence[str]) -> Float[np.ndarray, "inputs model"]:
        """A vector of length 1 for each input."""
        ...


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


@runtime_checkable
class TextScorer(Protocol):
    """Computes the probability of texts."""

    def score_text(self, model: Any, text: str) -> TextScore:
        """The log-probability of a text, token by token."""
        ...


@runtime_checkable
class MessageAnswerer(Protocol):
    """Answers conversations."""

    def answer_messages(
        self, predictor: Any, messages: Sequence[Mapping[str, Any]], template: str | None
    ) -> Iterator[str]:
        """The answer to a conversation, piece by piece; `template` is the model's chat template."""
        ...


@runtime_checkable
class SampleScorer(Protocol):
    """Scores generated texts as a whole."""

    def score_samples(self, texts: Sequence[str], known: Sequence[str]) -> list[Score]:
        """Metrics of generated texts, given those that the model was trained on."""
        ...


@dataclass(frozen=True)
class SeriesForecast:
    """The forecast of one column of a series, with an interval at each step."""

    names: ClassVar[tuple[str, ...]] = ("id", "time", "column", "point", "lower", "upper")
    """The columns of a table of forecasts."""

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
    coverage: float | None = None
    """The share of values that the intervals are made to contain."""

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary for each step."""
        return [
            dict(zip(self.names, (self.id, time, self.column, *numbers), strict=True))
            for time, *numbers in zip(self.times, self.point, self.lower, self.upper, strict=True)
        ]

    def panel(self) -> Panel:
        """The forecast after the last steps before it."""
        num_past, num_steps = len(self.past), len(self.point)
        ahead = list(range(num_past, num_past + num_steps))
        band = "interval" if self.coverage is None else f"{100 * self.coverage:g} % interval"
        forecast = Curve("forecast", ahead, self.point, lower=self.lower, upper=self.upper, band=band)
        past = Curve("observed", list(range(num_past)), self.past, is_observed=True)
        actual = [Curve("observed", ahead, self.actual, is_observed=True)] if self.actual else []
        title = " · ".join(filter(None, (self.id, self.column)))
        return Panel(title, [past, *actual, forecast], ticks=[*self.past_times, *self.times])


def forecast_plot(forecasts: Sequence[SeriesForecast]) -> Plot:
    """Each forecast in a panel of its own."""
    panels = [each.panel() for each in forecasts]
    return Plot(panels, per_row=2, description="Forecasts with intervals, and observed values")


@runtime_checkable
class Forecaster(Protocol):
    """Continues series."""

    def forecast(
        self, model: Any, data: Any, *, horizon: int | None = None, encoding: str | None = None
    ) -> list[SeriesForecast]:
        """The continuation of each series of a table."""
        ...


@runtime_checkable
class SubjectPredictor(Protocol):
    """Predicts for subjects each of which has several rows of a table, so that a table is read as a whole."""

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
        """A row with the prediction for each subject of a table.

        Args:
            model: The model, in evaluation mode.
            data: A path, or rows in memory.
            columns: The columns to read.
            encoding: That of a text file; None to detect it.
            num_paths: How many continuations of an input are simulated; None for the number that the task has set.
            seed: That of the simulation.
        """
        ...

    def with_paths(self, num_paths: int) -> Task[Any]:
        """The task that simulates and judges so many continuations of each subject in an evaluation."""
        ...

    def plot_subjects(
        self, model: Any, data: Any, *, columns: Sequence[str] | None = None, encoding: str | None = None
    ) -> Plot:
        """The events and the risks of the first subjects of a table."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExportGraph:
    """A network whose inputs are arrays, to be exported as one graph from numbers of the data to predictions."""

    module: nn.Module
    """Its `forward` takes the inputs by name and returns a tuple of outputs, in the units of the data."""
    axes: Mapping[str, Mapping[int, str]]
    """For each input the axes that may have any size, by name: axes with one name have one size."""
    outputs: tuple[str, ...]
    """The names of the outputs; all have a row for each row of the inputs."""
    examples: Sequence[tuple[Mapping[str, Tensor], tuple[Tensor, ...]]]
    """Inputs of different sizes, and what the run predicts for them; the graph is traced with the first."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The largest sizes of axes that have one."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What a program must know of inputs and outputs: names of columns, labels, and so on."""


@runtime_checkable
class GraphExporter(Protocol):
    """Has models with arrays as inputs, which can be exported as one graph."""

    def export_graph(self, model: Any, rows: Sequence[Sequence[str]]) -> ExportGraph | None:
        """The model as a graph; None where this one cannot be exported.

        Args:
            model: The model in evaluation mode, on the CPU.
            rows: Rows of the run, from which examples are made.
        """
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


@runtime_checkable
class PolicyProvider(Protocol):
    """Acts in environments."""

    def policy(
        self, model: Any, *, target_return: float | None = None, temperature: float = 0.0, seed: int = 0
    ) -> Policy:
        """What chooses actions in an environment, so that the sum of rewards becomes `target_return`."""
        ...


@runtime_checkable
class ImageGenerator(Protocol):
    """Generates images."""

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
        ...


@runtime_checkable
class ImageExplainer(Protocol):
    """Predicts labels of images, from which maps over an image are computed."""

    def image_output(self, output: str) -> tuple[ImageConfig, int]:
        """What the model reads of an image, and the index of a label among its logits."""
        ...


@runtime_checkable
class PictureExplainer(Protocol):
    """Describes images by texts, each of whose tokens has weights over the image."""

    def picture_attention(
        self, model: Any, image: str, caption: str
    ) -> tuple[list[str], list[Float[np.ndarray, "heads target cells"]], int]:
        """The tokens of a caption and its end, by layers the weights of the image's cells, and its side in pixels."""
        ...


@dataclass(frozen=True)
class GraphDrawing:
    """A graph whose nodes are shaded by attention."""

    names: tuple[str, ...]
    """What each node is called."""
    edges: tuple[tuple[int, int, float], ...]
    """The two nodes of each edge, and the order of the bond: 1 where it is none of a molecule."""
    positions: tuple[tuple[float, ...], ...] | None = None
    """The coordinates of the nodes; None where a layout is to be found."""


@runtime_checkable
class GraphReader(Protocol):
    """Reads graphs, on which attention is drawn."""

    def drawing(self, text: str) -> GraphDrawing:
        """The graph of an input."""
        ...


@runtime_checkable
class OutputDrawer(Protocol):
    """Predicts structures, such as trees, which are easier to read when they are drawn."""

    def output_as_text(self, output: str) -> str:
        """The drawing of an output over several lines, for a terminal."""
        ...

    def output_as_svg(self, output: str) -> str:
        """The drawing of an output as an SVG file."""
        ...


@runtime_checkable
class RecordReader(Protocol):
    """Reads inputs that are whole rows of a table, such as lists of nodes and edges, beside cells of text."""

    def input_of_record(self, record: Mapping[str, Any]) -> str | None:
        """The input in a row of a table; None where it is in columns of text."""
        ...


@runtime_checkable
class AspectPredictor(Protocol):
    """Predicts for each of several aspects of a text, with the weight of each word."""

    def expand_input(self, text: str, aspect: str | None) -> list[str]:
        """The inputs that predictions are made for: the text with an aspect, or with each known one."""
        ...

    def attribution(self, prediction: Any, target: str | None = None) -> Attribution:
        """The weights of the words in one of its predictions, with the right label where it is known."""
        ...

    def unseen_in(self, inputs: Iterable[str]) -> list[str]:
        """The aspects of inputs that no training row has, for a warning."""
        ...


@runtime_checkable
class StridedEvaluator(Protocol):
    """Evaluates windows of running text or series."""

    def with_stride(self, stride: int) -> Task[Any]:
        """The task with another distance between evaluation windows."""
        ...


@dataclass(frozen=True)
class LabeledVectors:
    """Inputs of a linear head, and what it should predict from each."""

    vectors: Float[Tensor, "rows model"]
    targets: Shaped[Tensor, "rows ..."]
    """Class indices, rows of zeros and ones for several labels, or numbers."""
    weights: Float[Tensor, " rows"]
    """The weight of each row in the loss; one of weight 0 is not a row of the data."""


@runtime_checkable
class LinearProber(Protocol):
    """Has a head that can be solved as a linear probe."""

    def has_linear_head(self, head: HeadConfig) -> bool:
        """Whether the logits are `model.head.output` of vectors that only the base computes."""
        ...

    def head_inputs(self, model: Any, batch: Any) -> LabeledVectors:
        """What the linear head reads, and should predict, for a batch."""
        ...


@runtime_checkable
class PartSolver(Protocol):
    """Has models with parts that are not trained by steps, such as counts of n-grams.

    They have no effect on a model in training mode, and are weighted by `blend` in one that is evaluated.
    """

    def solve(self, model: Any, data: Prepared, *, seconds: float | None = None) -> bool:
        """Solve these parts of a new model.

        Args:
            model: A new model.
            data: The rows.
            seconds: What solving may take, roughly.

        Returns:
            Whether the model has such parts; it is then evaluated before the first step.
        """
        ...

    def blend(self, model: Any, batches: Iterator[Any], device: torch.device) -> None:
        """Fit the weights of the network and of the solved parts in the model's output, before each evaluation.

        Args:
            model: A model in evaluation mode.
            batches: The validation rows.
            device: Where the model is.
        """
        ...


@runtime_checkable
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


class ReferenceModel(Protocol):
    """The model that training started from, with frozen weights."""

    def applied(self) -> AbstractContextManager[Any]:
        """A context with the model to call; inside of it, the trained model must not be called."""
        ...


@runtime_checkable
class RolloutTask(Protocol):
    """A task whose training batches need models: a reference, rewards, and answers that the trained model samples.

    The model that training starts from is the first candidate: it is evaluated before the first step.
    """

    def reward_sources(self) -> Mapping[str, str]:
        """By name, the runs or functions `module:function` that score answers in training."""
        ...

    def reward_seconds(self) -> float:
        """The longest time that a function may take to score one answer."""
        ...

    def evaluation_rewards(self) -> Mapping[str, str]:
        """Those of `reward_sources` that scores after training need as well."""
        ...

    def with_rewards(self, rewards: Mapping[str, Any]) -> Task[Any]:
        """The task with functions of texts for `evaluation_rewards`."""
        ...

    def bind(self, reference: ReferenceModel, rewards: Mapping[str, Any]) -> Task[Any]:
        """The task with what its loss needs beside the model: for each of `reward_sources`, a function of texts."""
        ...

    def roll_out(self, model: Any, batch: Any, number: int, seed: int) -> Any:
        """Training batch `number` with what only models can add to it, such as answers that `model` samples now."""
        ...

    def state_tensors(self) -> dict[str, Tensor]:
        """What `roll_out` keeps from batch to batch, for checkpoints."""
        ...

    def restore_state(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore what `state_tensors` returned."""
        ...

    def reason_to_stop(self) -> str | None:
        """Why training must stop, as a sentence; the last weights are then not kept."""
        ...


@runtime_checkable
class RewardProvider(Protocol):
    """Scores answers."""

    def rewards(self, model: Any, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        """The reward of each answer to its prompt."""
        ...


@runtime_checkable
class TrainingReporter(Protocol):
    """Measures more than a loss and a score at the evaluations of training: `Likelihoods.figures`."""

    def training_sections(self, lines: Sequence[Mapping[str, Any]]) -> list[Section]:
        """What a report shows of them, given the lines of `metrics.jsonl`."""
        ...


_RULES: Mapping[type, str] = {
    RewardProvider: "rewards are for reward models",
    Embedder: "embeddings are for models that read a text, an image or a graph as one vector",
    TextScorer: "log-probabilities of texts are for language models",
    MessageAnswerer: "conversations are for models that write text",
    SampleScorer: "metrics of generated texts are for language models",
    Forecaster: "forecasts are for series",
    SubjectPredictor: "subjects and their simulated continuations are for events",
    PolicyProvider: "rollouts are for control",
    ImageGenerator: "images are drawn by models that generate images",
    ImageExplainer: "maps over images are for labels of images",
    PictureExplainer: "maps over a picture are for captions",
    OutputDrawer: "outputs are drawn where they are trees",
    AspectPredictor: "aspects and weights of words are for aspect sentiment",
    StridedEvaluator: "a stride is for running text and series",
}
"""What a model must be for, in messages."""
