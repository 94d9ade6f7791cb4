"""What tasks on text have in common: settings, tokenization, batches of texts, and the next-token loss.

Dimensions: `batch` texts, `time` positions, `model` width, `vocab` tokens.
"""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from regard.data.batches import TensorBatch, pad
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.text import FEWEST_TOKENS, TextCodec
from regard.data.prepare import FitData
from regard.models.protocols import Decoder
from regard.nn.losses import (
    IGNORED,
    cross_entropy,
    linear_cross_entropy,
    linear_log_likelihoods,
    linear_log_probs,
    rdrop_cross_entropy,
)
from regard.tasks.choices import BATCH_TOKENS, ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import ExportSpec
from regard.tasks.task import PLAIN, ImportedCodecs, Objective, Task, TaskSettings
from regard.text.statistics import TextStatistics, choose_tokenizer
from regard.text.tokenizer import Tokenizer

SEPARATOR = "\t"
"""Between the texts of a pair, where they are written as one input."""
_QUICK_CHARACTERS_PER_TOKEN = 1_600
"""On a CPU, a short run learns more with a vocabulary of one token for each 1,600 characters of data."""
_QUICK_TOKENS_PER_MINUTE = 1_000
"""The output layer takes time in proportion to its tokens: Tatoeba in two minutes, BLEU 9.6 with 2,000 of them and 6.9
with 7,000."""
_TUNED_ROWS, _TUNED_EPOCHS, _TUNED_TOKENS_PER_SECOND = 1_000, 2.0, 100_000
"""Fine-tuning on so many rows or more is regularized where a GPU, at roughly this speed, has time for such epochs."""
_AVERAGED_SHARE, _LONGEST_AVERAGE, _FEWEST_STEPS = 0.4, 500, 200
"""The moving average of fine-tuned weights is over this share of the steps, at most so many; shorter runs have none."""
_STEPS_WITHOUT_BUDGET, _EPOCHS_WITHOUT_BUDGET = 300, 3.0
_FEW_TOKENS, _SMALL_BATCH = 1_000_000, 1_024
"""Fewer tokens are learned in small batches on a GPU, too: of ten sets of 30,000 to 250,000 tokens, each had a better
validation score after a minute with 1,024 tokens than with 4,096, by 0.002 to 0.026 (docs/log.md)."""
_TILE = 8
"""The width of a matrix is padded to a multiple of this, as tensor cores need it."""


class TextSettings(TaskSettings):
    """Settings of tasks that read text."""

    tokenizer: str
    """bpe, unigram, characters, bytes, words (separated by spaces) or wordpunct (words and punctuation marks), trained
    on the training rows; smiles or selfies for molecules, nucleotides or amino-acids; or the path of a tokenizer.json.
    Unset: characters for single words, words for a closed set of symbols, otherwise bpe; for short texts without spaces
    between words characters; molecules and biological sequences are recognized."""
    vocab_size: int | None = Field(default=None, ge=5)
    """The largest vocabulary of a tokenizer that is trained. Unset: one token for each 400 characters of data, within
    512 to 32,000 (1,600 characters in runs of up to 15 minutes on a CPU, and at most 1,000 tokens for each minute), but
    at least 8,192 characters; for running text all characters, or the 50,000 most frequent words. Where a source and a
    target have tokenizers of different kinds, of the one into pieces of words, if there is one."""
    lowercase: bool = False
    """Lower-case texts before they are tokenized: a smaller vocabulary where rows are few."""
    max_length: int = Field(default=512, ge=1)
    """Tokens of a text. Longer texts are truncated; longer pairs of a source and a target are left out of training,
    and counted."""
    embeddings: str | None = None
    """A run folder, imported or trained, whose tokenizer is used and whose token embeddings the model is initialized
    with; those of another width are projected onto their first principal components."""


TextSettingsT = TypeVar("TextSettingsT", bound=TextSettings)


class TextTask(Task[TextSettingsT], ABC):
    """A task whose inputs are tokenized by one tokenizer, the codec `text`."""

    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec}

    @property
    def tokenizer(self) -> Tokenizer:
        return codec_of(self.codecs, "text", TextCodec).tokenizer

    @property
    def tokenizer_kind(self) -> str:
        return self.settings.tokenizer

    def cache_key(self) -> dict[str, Any]:
        key = {"task": self.name, **self.settings.model_dump(include=set(TextSettings.model_fields) - {"name"})}
        if (path := Path(self.settings.tokenizer)).is_file():
            key["tokenizer"] = path.read_text(encoding="utf-8")
        return key

    @classmethod
    def imported_settings(cls, *, max_length: int, window: int) -> dict[str, Any]:
        return {"tokenizer": "codecs/text.json", "max_length": max_length}

    @classmethod
    def imported_codecs(cls, imported: ImportedCodecs) -> dict[str, Codec]:
        return {"text": TextCodec(imported.tokenizer)}

    def export_spec(self) -> ExportSpec:
        return replace(super().export_spec(), max_length=self.settings.max_length)

    def texts_of(self, row: Sequence[str]) -> Sequence[str]:
        """The texts of a row that the tokenizer is trained on."""
        return row[:-1]

    def choose(self, context: ChoiceContext) -> Choices:
        texts = [text for row in context.rows for text in self.texts_of(row)]
        if self.settings.tokenizer is not None:
            return Choices()
        kind, reason = choose_tokenizer(TextStatistics.of(texts))
        return Choices(
            {"tokenizer": kind, **self.vocabulary(kind, context)}, reasons={"tokenizer": f"{kind}: {reason}"}
        )

    def vocabulary(self, kind: str, context: ChoiceContext) -> dict[str, Any]:
        """The size of the vocabulary, where the budget is short and it would be larger by the amount of data."""
        if kind not in ("bpe", "unigram") or not context.is_quick or self.settings.vocab_size is not None:
            return {}
        most = int(_QUICK_TOKENS_PER_MINUTE * (context.minutes or 0))
        return {"vocab_size": max(FEWEST_TOKENS, min(most, context.num_characters // _QUICK_CHARACTERS_PER_TOKEN))}

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        texts = (text for row in data.sample() for text in self.texts_of(row))
        return {"text": fit_tokenizer(texts, self.settings, data)}

    def notes(self) -> list[str]:
        kind = f"{self.settings.tokenizer}, lower-cased" if self.settings.lowercase else self.settings.tokenizer
        return [f"tokenizer {kind}: {self.tokenizer.vocab_size:,} tokens"]

    def facts(self) -> dict[str, str]:
        kind = Path(self.settings.tokenizer).name
        return {"vocabulary": f"{self.tokenizer.vocab_size:,} tokens ({kind})"}


def small_batches(context: DefaultsContext) -> dict[str, int]:
    """The size of a batch for few texts on a GPU, where a model of them is trained from scratch; empty otherwise."""
    store: Any = context.data.train
    if context.is_finetuned or context.device != "cuda" or store.lengths().sum() >= _FEW_TOKENS:
        return {}
    return {"batch_tokens": _SMALL_BATCH}


def regularized_tuning(
    context: DefaultsContext,
    *,
    rdrop: float = 0.0,
    layer_decay: float = 1.0,
    averages: bool = True,
    batch_tokens: int | None = None,
) -> Defaults | None:
    """Regularization for fine-tuning: R-Drop, smaller rates for lower layers, an average of the weights.

    None where there are too few rows, or no GPU that has time for two passes over them.

    Args:
        context: What defaults may depend on.
        rdrop: The weight of the R-Drop term.
        layer_decay: The learning rate of a layer, as a share of that of the layer above it.
        averages: Whether the weights are averaged.
        batch_tokens: The size of a batch, if not that of all tasks.
    """
    if context.method in (None, "head") or context.device != "cuda" or context.num_rows < _TUNED_ROWS:
        return None
    size = batch_tokens or BATCH_TOKENS["cuda"]
    epochs = context.num_epochs(tokens_per_second=_TUNED_TOKENS_PER_SECOND, batch_tokens=size)
    if epochs is not None and epochs < _TUNED_EPOCHS:
        return None
    store: Any = context.data.train
    per_epoch = int(store.lengths().sum()) / size
    steps = max(_STEPS_WITHOUT_BUDGET, _EPOCHS_WITHOUT_BUDGET * per_epoch) if epochs is None else epochs * per_epoch
    train: dict[str, Any] = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
    tuned: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    if rdrop:
        train["rdrop"] = rdrop
        reasons["train.rdrop"] = f"{rdrop:g}: a GPU has time for two passes over each of {context.num_rows:,} rows"
    if averages and steps >= _FEWEST_STEPS:
        train["ema_decay"] = round(1 - 1 / min(_LONGEST_AVERAGE, _AVERAGED_SHARE * steps), 4)
        reasons["train.ema_decay"] = f"{train['ema_decay']:g}: an average over a part of about {steps:,.0f} steps"
    if layer_decay != 1.0 and context.method in ("all", "top"):
        tuned["layer_decay"] = layer_decay
        reasons["finetune.layer_decay"] = f"{layer_decay:g}: lower layers need smaller changes"
    return Defaults(finetune=tuned, finetune_train=train, reasons=reasons)


def fit_tokenizer(texts: Any, settings: TextSettings, data: FitData, *, kind: str | None = None) -> TextCodec:
    """A tokenizer as the settings describe it."""
    return TextCodec.fit(
        texts,
        kind=kind or settings.tokenizer,
        num_characters=data.num_characters,
        vocab_size=settings.vocab_size,
        complete=data.complete_vocabularies,
        lowercase=settings.lowercase,
    )


@dataclass(frozen=True)
class TextBatch(TensorBatch):
    """Texts, and a target for each."""

    tensor_names = ("source", "lengths", "segments", "targets", "weights")
    source: Int[Tensor, "batch time"]
    lengths: Int[Tensor, " batch"] | None
    """None where nothing is padded."""
    segments: Int[Tensor, "batch time"]
    """Which text of its row each position belongs to."""
    targets: Shaped[Tensor, "batch ..."]
    weights: Float[Tensor, " batch"]
    """The weight of each row in the loss: 0 for one that only pads the batch."""
    num_targets: int
    num_tokens: int


def make_text_batch(
    texts: Sequence[NDArray[np.int64]], targets: Tensor, tokenizer: Tokenizer, weights: Tensor | None = None
) -> TextBatch:
    """Pad encoded texts to one length; unset, all rows have weight 1."""
    lengths = [len(text) for text in texts]
    source = torch.from_numpy(pad(list(texts), tokenizer.pad))
    return TextBatch(
        source=source,
        lengths=torch.tensor(lengths) if min(lengths) < max(lengths) else None,
        segments=segments_of(source, tokenizer.end),
        targets=targets,
        weights=torch.ones(len(texts)) if weights is None else weights,
        num_targets=len(texts),
        num_tokens=sum(lengths),
    )


def pad_text_batch(batch: TextBatch, num_rows: int, length: int, padding: int) -> TextBatch:
    """The batch padded to a shape; added rows repeat the first and have weight 0."""
    have = batch.source.size(0)
    whole = torch.full((have,), batch.source.size(1), device=batch.source.device)
    lengths = batch.lengths if batch.lengths is not None else whole
    return replace(
        batch,
        source=pad_rows(pad_time(batch.source, length, padding), num_rows),
        lengths=pad_rows(lengths, num_rows),
        segments=pad_rows(pad_time(batch.segments, length, 0), num_rows),
        targets=pad_rows(batch.targets, num_rows),
        weights=F.pad(batch.weights, (0, num_rows - have)),
    )


def pad_rows(x: Shaped[Tensor, "rows *more"], num_rows: int) -> Shaped[Tensor, "all_rows *more"]:
    """Repeat the first row until there are `num_rows`."""
    return torch.cat([x, x[:1].expand(num_rows - x.size(0), *x.shape[1:])])


def pad_time(x: Shaped[Tensor, "rows time"], length: int, value: int) -> Shaped[Tensor, "rows length"]:
    return F.pad(x, (0, length - x.size(1)), value=value)


def segments_of(source: Int[Tensor, "batch time"], end: int) -> Int[Tensor, "batch time"]:
    """0 up to the first end token, 1 after it, padding included.

    Example:
        >>> segments_of(torch.tensor([[1, 7, 2, 8, 9, 2]]), end=2).tolist()
        [[0, 0, 0, 1, 1, 1]]
    """
    ends = (source == end).long()
    return (ends.cumsum(dim=1) - ends).clamp(max=1)


def encode_texts(rows: Sequence[Sequence[str]], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """Each row's texts as one sequence: the start token, and an end token after each text.

    A row with more than `max_length` tokens is truncated, its longest text first.
    """
    width = len(rows[0]) if rows else 1
    flat = tokenizer.encode([text for row in rows for text in row])
    return [join_texts(flat[place : place + width], tokenizer, max_length) for place in range(0, len(flat), width)]


def join_texts(parts: Sequence[list[int]], tokenizer: Tokenizer, max_length: int) -> list[int]:
    """Encoded texts as one sequence, as `encode_texts` returns it."""
    limit = max(0, max_length - 1 - len(parts))
    lengths = [len(part) for part in parts]
    while sum(lengths) > limit:
        longest = max(range(len(lengths)), key=lambda number: lengths[number])
        others = max((length for number, length in enumerate(lengths) if number != longest), default=0)
        lengths[longest] = max(min(others, lengths[longest] - 1), lengths[longest] - (sum(lengths) - limit))
    ids = [tokenizer.start]
    for part, length in zip(parts, lengths, strict=True):
        ids += [*part[:length], tokenizer.end]
    return ids


def next_token_loss(
    model: Decoder,
    hidden_states: Float[Tensor, "batch time model"],
    targets: Int[Tensor, "batch time"],
    objective: Objective = PLAIN,
) -> Float[Tensor, ""]:
    """Cross-entropy summed over all targets but `IGNORED` ones.

    With R-Drop the second half of the rows repeats the first half.
    """
    assert model.output is not None, "a model that generates has an output projection"
    return output_loss(model.output, hidden_states.flatten(0, 1), targets.flatten(), objective)


def output_loss(
    output: nn.Module,
    hidden_states: Float[Tensor, "rows model"],
    targets: Int[Tensor, " rows"],
    objective: Objective = PLAIN,
) -> Float[Tensor, ""]:
    """`next_token_loss` of positions whose hidden states are known, by an output layer."""
    smoothing = objective.label_smoothing
    if objective.rdrop:
        return rdrop_cross_entropy(output(hidden_states), targets, label_smoothing=smoothing, weight=objective.rdrop)
    if not isinstance(output, nn.Linear):  # it has an adapter
        return cross_entropy(output(hidden_states), targets, label_smoothing=smoothing)
    rows, weight = append_bias(hidden_states, output)
    return linear_cross_entropy(rows, weight, targets, label_smoothing=smoothing, is_float8=objective.is_float8)


def output_log_probs(
    output: nn.Module, hidden_states: Float[Tensor, "rows model"], targets: Int[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    """The log-probability of each target by an output layer, with its gradient; 0 where it is `IGNORED`."""
    if isinstance(output, nn.Linear):
        return linear_log_probs(*append_bias(hidden_states, output), targets)
    logits = output(hidden_states)  # it has an adapter
    wide = torch.promote_types(logits.dtype, torch.float32)
    return -F.cross_entropy(logits.to(wide), targets, reduction="none", ignore_index=IGNORED)


def append_bias(
    hidden_states: Float[Tensor, "rows model"], output: nn.Linear
) -> tuple[Float[Tensor, "rows wider"], Float[Tensor, "vocab wider"]]:
    """Hidden states and a matrix whose product is the logits; the bias is a column of the matrix for a constant 1."""
    if output.bias is None:
        return hidden_states, output.weight
    ones = hidden_states.new_ones(len(hidden_states), 1)
    one, bias = (F.pad(column, (0, _TILE - 1)) for column in (ones, output.bias[:, None]))
    return torch.cat([hidden_states, one], dim=1), torch.cat([output.weight, bias], dim=1)


@torch.no_grad()
def row_losses(
    model: Decoder, hidden_states: Float[Tensor, "*rows model"], targets: Int[Tensor, "batch time"]
) -> tuple[list[float], list[int]]:
    """The negative log-likelihood of each row of targets, and the number of targets that count."""
    losses = -target_log_likelihoods(model, hidden_states, targets).sum(dim=1)
    return losses.tolist(), (targets != IGNORED).sum(dim=1).tolist()


@torch.no_grad()
def target_log_likelihoods(
    model: Decoder, hidden_states: Float[Tensor, "*rows model"], targets: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time"]:
    """The log-probability of each target; 0 where it is `IGNORED`."""
    assert model.output is not None, "a model that generates has an output projection"
    rows, flat = hidden_states.flatten(0, -2), targets.flatten()
    if isinstance(model.output, nn.Linear):
        return linear_log_likelihoods(*append_bias(rows, model.output), flat).view(targets.shape)
    return output_log_probs(model.output, rows, flat).view(targets.shape)
