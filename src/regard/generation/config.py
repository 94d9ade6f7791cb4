"""How tokens are generated."""

from typing import Literal

from pydantic import Field, model_validator

from regard.errors import ConfigError
from regard.nn.inference import Quantization
from regard.settings import Settings

Stopping = Literal["enough", "exact"]


class GenerationConfig(Settings):
    """How tokens are generated. The default is greedy: always the most probable next token."""

    beam_size: int = Field(default=1, ge=1)
    """Hypotheses of beam search; 1 is greedy decoding or sampling."""
    length_penalty: float = Field(default=1.0, ge=0.0)
    """Beam search ranks by log-probability / length ** length_penalty; 0 ranks by log-probability alone."""
    stopping: Stopping = "enough"
    """When beam search ends. enough: beam_size hypotheses have ended and no open one is better; exact: no open
    hypothesis can become better."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Divides the logits before sampling: 1 samples from the model's distribution, 0 is greedy."""
    top_k: int | None = Field(default=None, ge=1)
    """Sample among the k most probable tokens."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Sample among the fewest tokens whose probabilities sum to p (nucleus sampling)."""
    min_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Sample among the tokens with at least this fraction of the highest probability."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The most tokens to generate. Unset: twice the length of the input plus 50, and 200 for a language model."""
    seed: int = 0
    """The same seed and input give the same sample, whatever else is in the batch."""
    quantization: Quantization | None = None
    """int8: generate with weights of 8 bits, on an x86 CPU; faster, and the outputs may differ. Unset: as trained."""

    @model_validator(mode="after")
    def _beam_or_sample(self) -> "GenerationConfig":
        samples = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        if self.beam_size > 1 and self.temperature > 0:
            raise ConfigError(
                "beam search does not sample: beam_size must be 1 or temperature 0, "
                f"got beam_size={self.beam_size} and temperature={self.temperature}"
            )
        if samples and self.temperature == 0:
            raise ConfigError(f"{samples[0]} needs a temperature above 0, got {self.temperature}")
        return self

    def limit(self, num_inputs: int) -> int:
        """Return the most tokens to generate for an input of `num_inputs` tokens."""
        return self.max_tokens or 2 * num_inputs + 50
