"""The `[train]` settings, and all settings of a run: `run.toml`."""

from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from regard.data.settings import DataConfig
from regard.errors import ConfigError
from regard.generation.config import GenerationConfig
from regard.models.family import ModelConfig, read_model_config
from regard.models.heads import HeadConfig
from regard.selection.releases import Mechanism, make_mechanism
from regard.settings import Settings, require_table
from regard.tasks.registry import find_task
from regard.tasks.task import Task, TaskSettings
from regard.training.finetuning import FinetuneConfig
from regard.training.optimizers import OptimizerName
from regard.training.precision import DeviceName, PrecisionName
from regard.training.schedules import ScheduleName

Compile = Literal["auto", "always", "never"]
SelectBy = Literal["auto", "score", "loss"]
ReleaseStep = float | Literal["auto"] | None

_EVALUATE_EVERY = 200
"""Steps between evaluations where the budget is not a time limit."""
_RELEASED_ROWS = 1_000
"""Validation rows that released scores are computed on, at least, if there are as many: few make wide bounds."""


class TrainConfig(Settings):
    """How a model is trained. What is unset is chosen for the task, the model and the device, and reported."""

    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many steps."""
    max_epochs: float | None = Field(default=None, gt=0)
    """Stop after this many passes over the training rows."""
    minutes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Stop after this many minutes of training."""
    patience: int = Field(default=10, ge=0)
    """Early stopping: after this many evaluations in which neither the validation loss nor, with select_by = score,
    the score has improved, the learning rate decays to 0 within a fifth of the steps, or of the time, so far, and
    training ends; 0 disables it. Unset: 10, but 0 for fine-tuning, and for Transformers of pairs on a GPU with a budget
    of at most about 300 epochs."""
    select_by: SelectBy = "auto"
    """Which evaluated weights are kept. score: those with the best headline score on validation rows, and among nearly
    equal ones (closer than 2 / rows of the score) those with the lowest loss; loss: those with the lowest validation
    loss. auto: score for tasks whose predictions are compared with targets, on a GPU except for generated ones;
    otherwise loss."""
    batch_tokens: int = Field(ge=1)
    """The largest batch: rows times the tokens of the longest one. Unset: 1,024 on a CPU and 4,096 on a GPU; on a
    GPU 8,192 for language models and for 20,000 pairs or more, 2,048 for fine-tuned taggers; 32 and 512
    images, or a twentieth of fewer."""
    accumulate: int = Field(default=1, ge=1)
    """Batches of one step; the loss is normalized by the targets of all of them."""
    optimizer: OptimizerName
    """adamw, adam, muon (for matrices; adamw for the rest), sgd, momentum, nesterov, adagrad or rmsprop. Unset: adamw,
    but muon for language models that are Transformers, and for those of pairs on a GPU."""
    learning_rate: float = Field(gt=0)
    """The peak of the schedule. Unset: 0.03 / sqrt(model_dim), or 0.2 / sqrt(model_dim) for muon (0.064 for pairs);
    for sgd, momentum, nesterov, adagrad and rmsprop the one that is printed; half of it for post-norm Transformers
    and for the recurrent cell rnn. For fine-tuning: by width and method."""
    schedule: ScheduleName
    """How the learning rate decays: inverse-sqrt, cosine, linear, trapezoid or constant. Unset: cosine, but trapezoid
    for language models and for muon, and linear for fine-tuning."""
    warmup_steps: int = Field(ge=0)
    """Steps of linear warmup. Unset: 200 (running text: 40, post-norm Transformers: 4,000), at most a tenth of
    max_steps; for fine-tuning 6 % of all steps. Under a time limit the warmup ends with a tenth of the time at the
    latest."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the optimizer's mean gradient; the momentum of momentum and nesterov."""
    beta2: float = Field(ge=0.0, lt=1.0)
    """Decay of the optimizer's mean squared gradient. Unset: 0.98, but 0.95 for language models and 0.999 for
    fine-tuning."""
    epsilon: float = Field(default=1e-9, gt=0)
    """Added to the root of the squared gradients in Adam, AdaGrad and RMSProp."""
    weight_decay: float = Field(ge=0)
    """Weight decay of AdamW, Muon and SGD on matrices; biases and gains have none. Unset: 0.01, but 0.1 for language
    models and 0.05 for images."""
    label_smoothing: float = Field(ge=0.0, lt=1.0)
    """The share of the target's probability that is spread over all classes. Unset: 0.1 for sequence-to-sequence
    models and for 10,000 images or more, otherwise 0."""
    rdrop: float = Field(default=0.0, ge=0.0)
    """Weight of the R-Drop term: the divergence between two forward passes with different dropout. A step takes twice
    as long. Unset: 0, but on a GPU 5 for translation with time for about 20 epochs, 4 for models of words with time for
    about 40, and 4 or 1 for fine-tuning on 1,000 texts or questions or more."""
    float8: bool = False
    """On a GPU with float8 support, compute products with the vocabulary in float8; its size must be a multiple of
    16."""
    clip_norm: float = Field(default=1.0, ge=0)
    """The largest norm of the gradient; 0 disables clipping."""
    ema_decay: float = Field(ge=0.0, lt=1.0)
    """Decay of the exponential moving average of the weights, which is evaluated and saved; 0 keeps the last weights.
    Unset: 0.998 for sequence-to-sequence models and for images on a GPU, 0.98 for language models, 0.99 for others; for
    fine-tuning 0, but on a GPU with 1,000 rows or more an average over 0.4 of the steps, at most 500."""
    seed: int = 0
    """The seed of the initial weights, of dropout and of the order of the rows."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the validation rows. Unset: 200; for fine-tuning a twelfth of all steps; under a
    time limit by the clock, about 25 evaluations that take at most a tenth of the time."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; there is one every five minutes in any case. Unset: 500, and under a time limit more,
    where saving would take more than a fiftieth of the time."""
    keep_checkpoints: int = Field(default=2, ge=2)
    """The newest checkpoints that are kept: one, and another in case it is damaged; more to measure what changes in
    training (`regard lab curvature`)."""
    max_rollbacks: int = Field(default=3, ge=0)
    """How often training that diverges (a loss or weights that are not finite, or a loss that has exploded) returns to
    the last checkpoint, each time at half the learning rate; 0 makes the first divergence an error."""
    device: DeviceName = "auto"
    """auto, cpu, cuda, or cuda:1 and so on."""
    precision: PrecisionName = "auto"
    """auto, float32 or bfloat16."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a CPU in training, on which the last bits of sums depend. Unset: under a time limit one or all,
    whichever is faster at the time; otherwise one for each core that other programs leave free at the start."""
    compile: Compile = "auto"
    """auto, always or never: torch.compile. It takes up to a minute before the first step; auto uses it on a GPU for
    runs that are long enough to gain from it."""
    cuda_graphs: bool = True
    """On a GPU, capture the work of a step as a CUDA graph and replay it."""
    sharding: Literal["none", "full"] = "none"
    """What several processes keep of a Transformer in training. none: each has all weights, gradients and the state of
    the optimizer. full: each has a part of them (FSDP2, or ZeRO 3), and gathers the weights of one block at a time."""
    tensor_parallel: int = Field(default=1, ge=1)
    """The number of consecutive processes that share the attention heads and the feed-forward network of each
    Transformer block, and compute the same rows; it must divide the number of all processes. With sharding, each of
    them keeps a part of its share."""
    activation_checkpointing: bool = False
    """Keep only the input of each Transformer block, and compute the rest again for its gradient: less memory, and
    about a third more time."""
    auto_batch: bool = True
    """Where memory runs out, split each batch into parts and accumulate their gradients."""
    tensorboard: bool = False
    """Also write the curves for TensorBoard."""
    baseline: bool = True
    """After training, fit a simple model on the same rows in seconds, and test whether the trained one is better."""

    ladder: ReleaseStep = None
    """Show and use only released validation scores, by the Ladder with this step: the best score so far, which changes
    where a candidate is better by more than the step. The certificate then holds although scores decide what is tried
    next. auto: 1 / sqrt(validation rows)."""
    thresholdout: ReleaseStep = None
    """The same by Thresholdout with this threshold: the score on training rows, unless that on validation rows differs
    from it by more than the threshold. auto: 4 / sqrt(validation rows)."""

    @model_validator(mode="after")
    def _has_one_mechanism(self) -> Self:
        if self.ladder is not None and self.thresholdout is not None:
            raise ConfigError("scores are released by one mechanism, got both train.ladder and train.thresholdout")
        _ = self.mechanism
        return self

    @property
    def release(self) -> tuple[str, ReleaseStep] | None:
        """The name of the mechanism that releases scores, and its step or threshold; None where all are shown."""
        names = [name for name in ("ladder", "thresholdout") if getattr(self, name) is not None]
        return (names[0], getattr(self, names[0])) if names else None

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism that releases scores, once its step or threshold is resolved."""
        if self.release is None or isinstance(self.release[1], str | None):
            return None
        return make_mechanism(self.release[0], self.release[1])

    @property
    def evaluation_steps(self) -> int | None:
        """Steps between evaluations; None where they are timed by the clock."""
        return _EVALUATE_EVERY if self.evaluate_every is None and self.minutes is None else self.evaluate_every


class Provenance(Settings):
    """What a run was made from and with; written by regard, not by hand."""

    version: str
    torch: str
    data_hash: str
    num_parameters: int
    created: str
    hardware: str
    notes: list[str]
    """What was detected, chosen, left out or found in two sets before training, with the reasons."""
    columns: list[str] = Field(default_factory=list)
    """The columns of the training table that were used, by name, in the order in which the task needs them."""


class ResolvedSettings(Settings):
    """All settings of a run, each with a value: `run.toml` without its `[provenance]`."""

    preset: str
    """The preset that [model] is based on."""
    task: SerializeAsAny[TaskSettings]
    model: SerializeAsAny[ModelConfig]
    head: HeadConfig
    data: DataConfig
    train: TrainConfig
    generate: GenerationConfig = Field(default_factory=GenerationConfig)
    finetune: FinetuneConfig | None = None
    """Only for `regard finetune`, which sets the base."""

    @property
    def is_probe_alone(self) -> bool:
        """Whether the run is a linear probe without gradient steps."""
        tuned, train = self.finetune, self.train
        is_head = tuned is not None and tuned.probe and tuned.method == "head"
        return is_head and train.max_steps is None and train.max_epochs is None

    @field_validator("task", mode="before")
    @classmethod
    def _read_task(cls, values: Any) -> Any:
        return values if isinstance(values, TaskSettings) else read_task_settings(values)

    @field_validator("model", mode="before")
    @classmethod
    def _read_model(cls, values: Any) -> Any:
        return values if isinstance(values, ModelConfig) else read_model_config(values)


class DraftSettings(ResolvedSettings):
    """Settings as far as the user has given them: what is resolved later is None."""

    @field_validator("task", mode="before")
    @classmethod
    def _read_task(cls, values: Any) -> Any:
        return values if isinstance(values, TaskSettings) else read_task_settings(values, is_draft=True)

    @field_validator("head", mode="before")
    @classmethod
    def _read_head(cls, values: Any) -> Any:
        return values if isinstance(values, HeadConfig) else HeadConfig.draft(values, section="head")

    @field_validator("train", mode="before")
    @classmethod
    def _read_train(cls, values: Any) -> Any:
        return values if isinstance(values, TrainConfig) else TrainConfig.draft(values, section="train")

    def with_train(self, **values: Any) -> Self:
        """A copy with some training settings replaced; those that the user has not set stay unset."""
        given = self.train.model_dump(exclude_unset=True)
        return self.model_copy(update={"train": TrainConfig.draft({**given, **values}, section="train")})


def num_released_rows(task: Task[Any], num_rows: int) -> int:
    """The number of validation rows that released scores are computed on, of so many."""
    return min(num_rows, max(task.selection_rows, _RELEASED_ROWS))


def read_task_settings(values: Any, *, is_draft: bool = False) -> TaskSettings:
    """The settings class of the named task, with these values."""
    if "name" not in require_table(values, "task"):
        raise ConfigError("task.name is missing")
    settings = find_task(values["name"]).Settings
    return (settings.draft if is_draft else settings.read)(values, section="task")
