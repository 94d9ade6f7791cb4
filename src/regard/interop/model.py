"""The data that importers return and that exporters take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor, nn

from regard.adapters.lora import LoraConfig
from regard.data.formats.images import ImageConfig
from regard.errors import ConfigError
from regard.models.family import ModelConfig
from regard.models.heads import Pooling
from regard.models.transformer import Transformer
from regard.models.transformer.config import TransformerConfig
from regard.nn.positions import Sinusoidal
from regard.tasks.capabilities import ExportGraph
from regard.tasks.content import ExportSpec
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoints import load_weights, weights_of

FINAL_OUTPUTS: Mapping[str, str] = {"labels": "probabilities", "number": "numbers", "vector": "embeddings"}
"""What is finally computed from a text, for each head whose exports are compared from texts on."""
GENERATING_HEADS = ("next-token", "target-tokens")
"""Heads that are part of the model itself; the model of every other head has a `body` below it."""
UNKNOWN_TOKENS = ("<unk>", "[UNK]")
"""Names of the token for what is not in the vocabulary."""
EXPORT_TOLERANCE = 1e-4
"""The largest difference of outputs, relative to the largest output, in float32: only the order of sums differs."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_NUM_ROWS, _NUM_TOKENS = 4, 32
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class ImportedAdapter:
    """Low-rank corrections for the layers of a model that is not part of the file."""

    settings: Mapping[str, Any]
    """The values of `LoraConfig` without its targets."""
    tensors: Mapping[str, Tensor]
    """By the names of Hugging Face and peft."""


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A pretrained model in the names of this package, ready to be written as a run."""

    name: str
    """The name of the file or folder, without its path."""
    architecture: str
    """The architecture in the words of the format, such as `LlamaForCausalLM`."""
    content_hash: str
    """SHA-256 of the files that contain the weights."""
    head: str | None
    """None for an adapter without a head of its own."""
    model_type: str = "custom"
    """The short name of the architecture, such as `llama`."""
    config: ModelConfig | None = None
    """None for an adapter, whose base has it."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """By the names of a run's model, in float32; a model with a head on a body has the prefixes `body.` and `head.`."""
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    labels: tuple[str, ...] = ()
    pooling: Pooling | None = None
    context_length: int | None = None
    """The number of positions that the model was trained for."""
    max_length: int | None = None
    """The most tokens of a text that the model should read, if that is fewer."""
    image: ImageConfig | None = None
    """The preprocessing of images, for a model that reads them."""
    notes: tuple[str, ...] = ()
    """Decisions of the conversion that a user should see."""
    adapter: ImportedAdapter | None = None


@dataclass(frozen=True, kw_only=True)
class ExportableModel:
    """The model of a run on the CPU, in float32 and evaluation mode, with what a file needs besides its weights."""

    model: nn.Module
    config: ModelConfig
    tokenizer: Tokenizer
    spec: ExportSpec
    build: Callable[[Any], nn.Module]
    """Builds an untrained model with the same head from a model config."""
    chat_template: str | None = None
    lora: LoraConfig | None = None
    """The settings of the adapter, where the model has one that is not merged."""
    base_name: str | None = None
    """The name of the model that the adapter was trained on."""
    inputs: tuple[str, ...] = ()
    """Inputs of the run's validation rows, for which final outputs are compared; the texts of a pair are separated by
    a tab."""
    predict: Callable[[Sequence[str]], Tensor] | None = None
    """Computes the run's final outputs for inputs: probabilities of labels, numbers, or embeddings."""

    @property
    def body(self) -> Any:
        """The model without a head on top of it, or n-grams beside it."""
        return dict(self.model.named_children()).get("body", self.model)

    @property
    def transformer_config(self) -> TransformerConfig:
        """The config of a Transformer; a model of another family is a ConfigError."""
        if not isinstance(self.config, TransformerConfig):
            raise ConfigError(
                f"model.family must be transformer, got {self.config.family}: only onnx can represent other families"
            )
        if self.spec.only_onnx:
            raise ConfigError(f"{self.spec.only_onnx[0]} must be 0 to export to other formats than onnx")
        return self.config

    @property
    def max_positions(self) -> int | None:
        """The most positions of a sequence, where the model has a limit."""
        return self.config.max_positions

    def rebuild(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> nn.Module:
        """Return a model with the same head and these weights."""
        model = self.build(config)
        load_weights(model, weights)
        return model.float().eval()

    def example_tokens(self) -> Tensor:
        """Return random token ids, always the same ones, not longer than an exported file can read."""
        config = self.config
        limit = (with_position_tables(config) if isinstance(config, TransformerConfig) else config).max_positions
        length = min(_NUM_TOKENS, limit or _NUM_TOKENS)
        generator = torch.Generator().manual_seed(_SEED)
        return torch.randint(self.tokenizer.vocab_size, (_NUM_ROWS, length), generator=generator)

    @torch.no_grad()
    def outputs(self, model: nn.Module | None = None, *, is_scaled: bool = False) -> Tensor:
        """Compute the outputs of the model, or of another with the same head, for the example tokens.

        They are logits, embeddings, or numbers in the units of the data; with `is_scaled`, the head itself computes
        those units.
        """
        model, tokens = self.model if model is None else model, self.example_tokens()
        match self.spec.head:
            case "tags":
                return model(tokens, torch.arange(tokens.size(1)).expand_as(tokens))
            case "target-tokens":
                return model(tokens, tokens.flip(1))
            case "number" if not is_scaled:
                return model(tokens) * self.spec.scale + self.spec.shift
            case _:
                return model(tokens)


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """One format that models are exported to."""

    name: str
    write: Callable[..., str]
    """Writes a model to a file, or into an empty folder, and returns the name of the model in that format."""
    outputs: Callable[[ExportableModel, Path], tuple[Tensor, Tensor]]
    """Computes outputs from what was written, and the same outputs by the model itself."""
    predict: Callable[[ExportableModel, Path, Sequence[str]], Tensor | None] | None = None
    """Computes final outputs for inputs from what was written, in the runtime that it is for; None where that is not
    installed."""
    write_graph: Callable[[ExportGraph, Path], str] | None = None
    """Writes a network whose inputs are arrays, and returns its inputs; None for a format of texts only."""
    graph_outputs: Callable[[Path, Mapping[str, Tensor]], list[Tensor]] | None = None
    """Computes the outputs of what `write_graph` has written."""
    files: tuple[str, ...] = ()
    """What a folder of this format may contain: an export with other content is not overwritten."""
    suffix: str = ""
    """The suffix of the file; empty for a format that is a folder."""
    number_types: Mapping[str, float] = field(default_factory=dict)
    """The types of matrices to choose from, the default first, each with its tolerance."""
    heads: tuple[str, ...] = (
        "next-token", "target-tokens", "masked-tokens", "labels", "number", "tags", "spans", "vector"
    )  # fmt: skip
    """The heads of models that can be exported."""


def with_position_tables(config: TransformerConfig) -> TransformerConfig:
    """The config with learned positions in place of sinusoidal ones, which a file can store as a table.

    The table ends at `context_length`; sinusoids have no such limit.
    """
    names = ("positions", "encoder_positions", "decoder_positions")
    return config.changed(**{name: "learned" for name in names if getattr(config, name) == "sinusoidal"})


def weights_with_position_tables(model: Transformer) -> dict[str, Tensor]:
    """The weights of a model, with sinusoidal positions as tables, under the names of learned ones."""
    weights, positions = weights_of(model), torch.arange(model.config.context_length)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is not None and isinstance(stack.positions, Sinusoidal):
            table = stack.positions(positions, positions).embeddings
            assert table is not None, "sinusoids are added to embeddings"
            weights[f"{side}.positions.table.weight"] = table.to(model.embedding.weight)
    return weights


def scaled_head(model: ExportableModel) -> dict[str, Tensor]:
    """The weights of the head on a body; a number is computed in the units of the data."""
    weights = {name: weight for name, weight in weights_of(model.model).items() if name.startswith("head.")}
    if model.spec.head == "number":
        scale, shift = model.spec.scale, model.spec.shift
        weights["head.output.weight"] = weights["head.output.weight"] * scale
        weights["head.output.bias"] = weights["head.output.bias"] * scale + shift
    return weights


def final_outputs(spec: ExportSpec, outputs: Tensor) -> Tensor:
    """Probabilities from the logits of labels; other outputs are final."""
    if spec.head != "labels":
        return outputs
    return outputs.sigmoid() if spec.is_multi_label else outputs.softmax(dim=-1)


def copy_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """A copy of the underlying tokenizer of the `tokenizers` library."""
    return tokenizers.Tokenizer.from_str(tokenizer.to_json())


def token_names(tokenizer: Tokenizer) -> list[str]:
    """The tokens in the order of their ids; an id without a token gets a name that no text contains as a token."""
    names = {index: name for name, index in copy_tokenizer(tokenizer).get_vocab(with_added_tokens=True).items()}
    return [names.get(index, f"[unused {index}]") for index in range(tokenizer.vocab_size)]


def optional_package(name: str, *, extra: str) -> Any:
    """Import a package that only one format needs.

    Raises:
        ConfigError: If it is not installed; the message names the extra of this package that installs it.
    """
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"this format needs the package {name}: pip install 'regard[{extra}]'") from None
