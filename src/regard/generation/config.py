"""How tokens are chosen, one after the other."""

from typing import Literal

from pydantic import Field, model_validator

from regard.errors import ConfigError
from regard.settings import Settings

Stopping = Literal["enough", "exact"]


class GenerationConfig(Settings):
    """The way to write. The defaults are greedy: always the likeliest next token."""

    beam_size: int = Field(default=1, ge=1)
    """Hypotheses kept side by side; 1 is greedy or sampled writing."""
    length_penalty: float = Field(default=1.0, ge=0.0)
    """Beam search ranks by log-probability / length ** length_penalty; 0 ranks by probability alone."""
    stopping: Stopping = "enough"
    """enough: stop when beam_size have ended and no open one looks better; exact: when none can still win."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 takes the likeliest token; 1 samples from the model's distribution; more is bolder."""
    top_k: int | None = Field(default=None, ge=1)
    """Sample among the k likeliest tokens only."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Sample among the fewest tokens that hold this share of the probability."""
    min_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Sample among tokens at least this likely, as a share of the likeliest one's probability."""
    max_length: int | None = Field(default=None, ge=1)
    """The most tokens to write; unset, twice as many as were read and 50 more, or 200 for a language model."""
    seed: int = 0
    """The same seed and input give the same sample, whatever else is in the batch."""

    @model_validator(mode="after")
    def _beam_or_sample(self) -> "GenerationConfig":
        samples = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        if self.beam_size > 1 and self.temperature > 0:
            raise ConfigError(
                "beam search does not sample: beam_size must be 1 or temperature 0, "
                f"got {self.beam_size=} and {self.temperature=}"
            )
        if samples and self.temperature == 0:
            raise ConfigError(f"{samples[0]} has a meaning only when sampling: set a temperature above 0")
        return self

    def limit(self, num_read: int) -> int:
        """The most tokens to write for an input of `num_read` tokens."""
        return self.max_length or 2 * num_read + 50
