"""Settings of a training run, and of a whole run."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from regard.data.config import DataConfig
from regard.errors import ConfigError
from regard.generation.config import GenerationConfig
from regard.models.families import ModelConfig
from regard.models.heads import HeadConfig
from regard.models.transformer import TransformerConfig
from regard.settings import Settings
from regard.training.finetuning import FinetuneConfig
from regard.training.optimizers import OptimizerName
from regard.training.precision import DeviceName, PrecisionName
from regard.training.schedules import ScheduleName

Compile = Literal["auto", "always", "never"]
TaskName = Literal[
    "translation",
    "language",
    "classification",
    "aspects",
    "regression",
    "tagging",
    "answering",
    "masked",
    "embedding",
    "recognition",
]


class TrainConfig(Settings):
    """How a model learns. What is unset is chosen for the data and the machine, and said aloud."""

    max_steps: int | None = Field(default=None, ge=1)
    """Stop after so many steps."""
    max_epochs: float | None = Field(default=None, gt=0)
    """Stop after so many passes over the training rows."""
    minutes: float | None = Field(default=None, gt=0)
    """Stop after so many minutes of training."""
    patience: int = Field(default=10, ge=0)
    """Stop after so many evaluations in a row without a better one; 0 never stops early."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Rows of a batch times its longest side: at most so many tokens. Unset: 1024 on a CPU and 4096 on a
    GPU, for language models 1024 and 8192."""
    accumulate: int = Field(default=1, ge=1)
    """Batches that make one step; the loss is normalised by the tokens of them all."""
    optimizer: OptimizerName | None = None
    """adamw, adam or muon (for matrices, beside adamw for the rest). Unset: adamw, but muon for language models that
    are Transformers."""
    learning_rate: float | None = Field(default=None, gt=0)
    """The peak. Unset: 0.03 / sqrt(model_dim), and half of it for post-norm blocks and the cell rnn; for muon
    0.2 / sqrt(model_dim)."""
    schedule: ScheduleName | None = None
    """How the rate falls from its peak: inverse-sqrt, cosine, linear, trapezoid or constant. Unset: cosine, but
    trapezoid for language models."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps in which the rate rises to its peak. Unset: 200 (post-norm blocks: 4000, language models: 40), at
    most a tenth of max_steps."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Memory of the optimizer's mean gradient."""
    beta2: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Memory of the optimizer's mean squared gradient. Unset: 0.98, but 0.95 for language models."""
    epsilon: float = Field(default=1e-9, gt=0)
    """What Adam adds to the root of the mean squared gradient before it divides by it."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Pull of AdamW and Muon on matrices; vectors (biases, gains) are left alone. Unset: 0.01, but 0.1 for language
    models."""
    label_smoothing: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Share of the target's probability that is spread over all tokens. Unset: 0.1, but 0 for language models."""
    consistency: float = Field(default=0.0, ge=0.0)
    """Read each batch twice, and ask that dropout change little (R-Drop): how much that weighs. A step takes twice as
    long."""
    contrast: float = Field(default=0.0, ge=0.0)
    """Of texts with one label each: how much it weighs that vectors of one label lie together and others apart. Where a
    base is fine-tuned on fewer than 1,000 rows it is 1 unless it is set."""
    activation_penalty: float = Field(default=0.0, ge=0.0)
    """Of language models: how much the mean square of the states that scores are computed from weighs in the loss."""
    change_penalty: float = Field(default=0.0, ge=0.0)
    """The same for how those states change from one position to the next."""
    float8: bool = False
    """On a GPU that can, multiply with the vocabulary in eight bits where its size is a multiple of 16."""
    carry_state: bool = False
    """Of recurrent language models: train on windows that go on where the last ones ended, with the state that was
    reached there. It starts anew in each epoch."""
    window_jitter: float = Field(default=0.0, ge=0.0, lt=0.5)
    """Where the state is carried: how far the cuts between windows are moved at random, as a share of data.window."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Longest gradient; a longer one is shortened to it. 0 lets all pass."""
    average: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Memory of the moving average of the weights, which is what is evaluated and kept; 0 keeps the last weights.
    Unset: 0.998, but 0.98 for language models."""
    seed: int = 0
    evaluate_every: int = Field(default=200, ge=1)
    """Steps between looks at the validation rows."""
    checkpoint_every: int = Field(default=500, ge=1)
    """Steps between checkpoints; there is one every five minutes in any case."""
    device: DeviceName = "auto"
    """auto, cpu, cuda, or cuda:1 and so on."""
    precision: PrecisionName = "auto"
    """auto, float32 or bfloat16."""
    compile: Compile = "auto"
    """auto, always or never: let torch.compile rewrite the model for the device. It takes up to a minute before the
    first step; auto does so on a GPU for runs that are long enough to gain from it."""
    record: bool = True
    """On a GPU, record the work of a step and replay it."""
    auto_batch: bool = True
    """Where memory runs out, read each batch in parts and go on."""
    tensorboard: bool = False
    """Also write the curves for TensorBoard."""

    @model_validator(mode="after")
    def _jitter_needs_a_carried_state(self) -> Self:
        if self.window_jitter and not self.carry_state:
            raise ConfigError(
                "train.window_jitter is for windows that go on where the last ones ended: "
                f"set train.carry_state to true, got {self.window_jitter=}"
            )
        return self


class Record(Settings):
    """What a run was made from and with; written by regard, not by hand."""

    version: str
    torch: str
    data_hash: str
    num_parameters: int
    created: str
    hardware: str
    notes: list[str]
    """What was guessed, left out or found in two sets when the data was read."""


class RunSettings(Settings):
    """Everything about a run: `run.toml`."""

    task: TaskName = "translation"
    """What the rows are for: translation of one sequence into another; language, running text; classification or
    regression of texts, or of pairs of them."""
    preset: str = "tiny"
    """The named shape that [model] started from."""
    model: ModelConfig = Field(default_factory=TransformerConfig)
    head: HeadConfig = Field(default_factory=HeadConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    generate: GenerationConfig = Field(default_factory=GenerationConfig)
    finetune: FinetuneConfig | None = None
    record: Record | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_the_family(cls, values: Any) -> Any:
        """A model whose family is not said is a Transformer."""
        model = values.get("model") if isinstance(values, dict) else None
        if isinstance(model, dict) and "family" not in model:
            values = {**values, "model": {**model, "family": "transformer"}}
        return values
