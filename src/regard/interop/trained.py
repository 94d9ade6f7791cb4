"""A trained model as exports see it, and what it makes of some random rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.families import AnyModel, longest_sequence
from regard.models.heads import Tagger
from regard.models.transformer import Transformer
from regard.models.transformer_config import TransformerConfig
from regard.nn.positions import Sinusoidal
from regard.tasks import find_task
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoints import load_weights, weights_of
from regard.training.settings import RunSettings

NUM_ROWS, NUM_TOKENS = 4, 32
"""What a model is compared on with itself: so many rows of at most so many tokens."""
_SEED = 0
UNKNOWNS = ("<unk>", "[UNK]")
"""What the token is called that stands for what a vocabulary has not."""


@dataclass(frozen=True)
class Trained:
    """The model of a run, on the CPU, in float32, in evaluation mode."""

    name: str
    settings: RunSettings
    tokenizer: Tokenizer
    model: nn.Module
    chat_template: str | None = None

    @property
    def task(self) -> str:
        return self.settings.task

    @property
    def body(self) -> AnyModel:
        """The model without the head that may stand on it."""
        model: Any = self.model
        return model.body if hasattr(model, "body") else model

    @property
    def shape(self) -> TransformerConfig:
        """The settings of a Transformer; every other family is refused."""
        found = self.settings.model
        if not isinstance(found, TransformerConfig):
            raise ConfigError(f"model.family must be transformer, got {found.family}: only onnx has a place for others")
        return found

    def rebuilt(self, shape: TransformerConfig, weights: Mapping[str, Tensor]) -> nn.Module:
        """A model for the same task with weights that were read back."""
        settings = self.settings
        model = find_task(self.task).build_model(shape, self.tokenizer, data=settings.data, head=settings.head)
        load_weights(model, weights)
        return model.float().eval()

    def rows(self) -> Tensor:
        """Random rows that the model can read."""
        config = self.settings.model
        limit = longest_sequence(with_tables(config) if isinstance(config, TransformerConfig) else config)
        length = min(NUM_TOKENS, limit or NUM_TOKENS)
        generator = torch.Generator().manual_seed(_SEED)
        return torch.randint(self.tokenizer.vocab_size, (NUM_ROWS, length), generator=generator)

    def scores(self, model: nn.Module | None = None) -> Tensor:
        """What the model, or another for the same task, makes of these rows; numbers in the units of the data."""
        model, rows = self.model if model is None else model, self.rows()
        with torch.no_grad():
            if isinstance(model, Tagger):
                return model(rows, torch.arange(rows.size(1)).expand_as(rows))
            if has_both(model):
                return model(rows, rows.flip(1))
            scores = model(rows)
        if self.task == "regression":
            return scores * self.settings.data.spread + self.settings.data.center
        return scores


def has_both(model: nn.Module) -> bool:
    """Whether a model reads a source and writes a target."""
    found: Any = model
    return not hasattr(found, "body") and found.encoder is not None and found.decoder is not None


def with_tables(shape: TransformerConfig) -> TransformerConfig:
    """The same shape with learned positions in the place of sinusoidal ones: these can be written out as a table.

    The table ends at `context_length`, where sinusoids do not.
    """
    names = ("positions", "encoder_positions", "decoder_positions")
    return shape.changed(**{name: "learned" for name in names if getattr(shape, name) == "sinusoidal"})


def weights_with_tables(model: Transformer) -> dict[str, Tensor]:
    """The weights of a model, and sinusoidal positions as if they had been learned."""
    weights, places = weights_of(model), torch.arange(model.config.context_length)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is not None and isinstance(stack.positions, Sinusoidal):
            added = stack.positions(places, places).added
            assert added is not None, "sinusoids are added"
            weights[f"{side}.positions.table.weight"] = added.to(model.embedding.weight)
    return weights


def inner_of(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """A copy of what does the work in a tokenizer."""
    return tokenizers.Tokenizer.from_str(tokenizer.to_json())


def token_names(tokenizer: Tokenizer) -> list[str]:
    """The tokens in the order of their ids; where an id is nobody's, a name stands that no text is cut into."""
    names = {index: name for name, index in inner_of(tokenizer).get_vocab(with_added_tokens=True).items()}
    return [names.get(index, f"[unused {index}]") for index in range(tokenizer.vocab_size)]
