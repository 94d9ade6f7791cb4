"""Translation: a sequence in, a sequence out.

The task of Sutskever et al. (2014), arXiv 1409.3215, and Vaswani et al. (2017):
languages, but as well dates to ISO 8601, words to pronunciations, or commands
to actions. The model is trained by teacher forcing: it is handed the true
prefix and asked for the next token, which maximises the likelihood of the whole
by the chain rule.

Dimensions: `batch` pairs, `source` and `target` positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import pad
from regard.data.permutation import mix
from regard.data.splits import row_hash
from regard.data.store import TokenStore
from regard.errors import ConfigError
from regard.evaluation import metrics
from regard.evaluation.scores import Score
from regard.generation.beam import beam_search
from regard.generation.config import GenerationConfig
from regard.generation.sampling import sample
from regard.models.families import AnyConfig, AnyModel, make_model
from regard.nn.losses import IGNORED, cross_entropy
from regard.tasks.task import Prediction
from regard.text.tokenizer import Tokenizer

_BATCH_TOKENS = 8_192
"""Tokens read together when predicting."""


@dataclass(frozen=True)
class PairBatch:
    """Sources, and targets shifted by one: `target_in[t]` is read when `target_out[t]` is to be said."""

    source: Int[Tensor, "batch source"]
    lengths: Int[Tensor, " batch"] | None
    """Of the sources; None where none is padded."""
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    """Padded with `IGNORED`."""
    num_targets: int
    num_tokens: int

    def to(self, device: torch.device) -> "PairBatch":
        moved = {
            name: tensor.to(device, non_blocking=True)
            for name in ("source", "lengths", "target_in", "target_out")
            if (tensor := getattr(self, name)) is not None
        }
        return replace(self, **moved)


class Translation:
    """Pairs of sequences, by an encoder-decoder model."""

    name = "translation"
    description = "a sequence in, a sequence out"
    roles: tuple[str, ...] = ("source", "target")

    def build_model(self, config: AnyConfig, tokenizer: Tokenizer) -> AnyModel:
        if not (config.encoder_depth and config.decoder_depth):
            raise ConfigError(
                "translation needs an encoder and a decoder, "
                f"got encoder_layers={config.encoder_depth} and decoder_layers={config.decoder_depth}"
            )
        return make_model(config, tokenizer.vocab_size)

    def collate(self, store: TokenStore, rows: NDArray[np.int64], tokenizer: Tokenizer) -> PairBatch:
        return make_batch(store.sequences(0, rows), store.sequences(1, rows), tokenizer)

    def batch(self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer) -> PairBatch:
        sources, targets = (
            [np.array(ids, np.int64) for ids in tokenizer.encode([row[side] for row in rows])] for side in (0, 1)
        )
        return make_batch(sources, targets, tokenizer)

    def loss(self, model: nn.Module, batch: PairBatch, *, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """Cross-entropy summed over the target tokens."""
        scores = model(batch.target_in, batch.source, batch.lengths)
        return cross_entropy(scores.flatten(0, 1), batch.target_out.flatten(), label_smoothing=label_smoothing)

    def negative_log_likelihoods(self, model: nn.Module, batch: PairBatch) -> tuple[list[float], list[int]]:
        scores = model(batch.target_in, batch.source, batch.lengths)
        losses = F.cross_entropy(
            scores.transpose(1, 2).float() if scores.dtype == torch.bfloat16 else scores.transpose(1, 2),
            batch.target_out,
            ignore_index=IGNORED,
            reduction="none",
        )
        return losses.sum(dim=1).tolist(), (batch.target_out != IGNORED).sum(dim=1).tolist()

    def predict(
        self, model: AnyModel, tokenizer: Tokenizer, inputs: Sequence[str], config: GenerationConfig
    ) -> list[Prediction]:
        """Long inputs first, so that a batch holds inputs of like length; the order of the answer is the input's."""
        encoded = tokenizer.encode(inputs)
        order = sorted(range(len(inputs)), key=lambda i: -len(encoded[i]))
        results: list[Prediction | None] = [None] * len(inputs)
        place = 0
        while place < len(order):
            width = (len(encoded[order[place]]) + 1) * config.beam_size
            chosen = order[place : place + max(1, _BATCH_TOKENS // width)]
            place += len(chosen)
            outputs = _write(model, tokenizer, [encoded[i] for i in chosen], [inputs[i] for i in chosen], config)
            texts = tokenizer.decode(tokens for tokens, _ in outputs)
            for i, text, (_, score) in zip(chosen, texts, outputs, strict=True):
                results[i] = Prediction(inputs[i], text, score)
        return [result for result in results if result is not None]

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        """BLEU counts runs of four words, so it says nothing of targets that have fewer."""
        num_words = [len(row[1].split()) for row in rows]
        return "bleu" if sum(num_words) >= 4 * len(num_words) else "exact_match"

    def scores(self, outputs: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Score]:
        targets = [row[1] for row in rows]
        return [
            metrics.exact_match(outputs, targets),
            metrics.bleu(outputs, targets),
            metrics.chrf(outputs, targets),
        ]


def make_batch(sources: list[NDArray[np.int64]], targets: list[NDArray[np.int64]], tokenizer: Tokenizer) -> PairBatch:
    """Pad pairs to rectangles; sources end with the end token, targets start and end with theirs."""
    ended = [np.append(source, tokenizer.end) for source in sources]
    lengths = [len(source) for source in ended]
    is_padded = min(lengths) < max(lengths)
    source = torch.from_numpy(pad(ended, tokenizer.pad))
    target_in = torch.from_numpy(pad([np.insert(t, 0, tokenizer.start) for t in targets], tokenizer.pad))
    target_out = torch.from_numpy(pad([np.append(t, tokenizer.end) for t in targets], IGNORED))
    num_targets = sum(len(target) + 1 for target in targets)
    return PairBatch(
        source=source,
        lengths=torch.tensor(lengths) if is_padded else None,
        target_in=target_in,
        target_out=target_out,
        num_targets=num_targets,
        num_tokens=num_targets + sum(lengths),
    )


def _write(
    model: AnyModel, tokenizer: Tokenizer, encoded: list[list[int]], inputs: list[str], config: GenerationConfig
) -> list[tuple[list[int], float | None]]:
    device = next(model.parameters()).device
    batch = make_batch([np.array(ids, np.int64) for ids in encoded], [np.empty(0, np.int64)] * len(encoded), tokenizer)
    batch = batch.to(device)
    limits = [config.limit(len(ids)) for ids in encoded]
    with torch.inference_mode():
        state = model.start(model.encode(batch.source, batch.lengths))
    if config.beam_size > 1:
        found = beam_search(model, state, batch.target_in, end=tokenizer.end, limits=limits, config=config)
        return [(hypotheses[0].tokens, hypotheses[0].score) for hypotheses in found]
    seeds = [mix(config.seed, row_hash((text,))) for text in inputs]
    written = sample(model, state, batch.target_in, end=tokenizer.end, limits=limits, seeds=seeds, config=config)
    return [(tokens, None) for tokens in written]
