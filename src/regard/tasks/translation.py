"""Translation: a sequence in, a sequence out.

The task of Sutskever et al. (2014), arXiv 1409.3215, and Vaswani et al. (2017):
languages, but as well dates to ISO 8601, words to pronunciations, or commands
to actions. The model is trained by teacher forcing: it is handed the true
prefix and asked for the next token, which maximises the likelihood of the whole
by the chain rule.

Dimensions: `batch` pairs, `source` and `target` positions.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import StoredBatches, batches_by_length, pad
from regard.data.config import DataConfig
from regard.data.permutation import mix
from regard.data.preparation import Prepared, prepare
from regard.data.sources import Rows, open_source
from regard.data.splits import row_hash
from regard.data.store import TokenStore
from regard.errors import ConfigError
from regard.evaluation import metrics
from regard.evaluation.scores import Score
from regard.generation.beam import BeamSearch, Hypothesis
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.logging import log_info
from regard.models.families import AnyConfig, AnyModel, make_model
from regard.models.heads import HeadConfig
from regard.nn.losses import IGNORED
from regard.tasks.objective import PLAIN, Objective, next_token_loss, row_losses
from regard.tasks.task import Likelihoods, Prediction, moved, twice
from regard.text.tokenizer import Tokenizer

ROLES = ("source", "target")
"""What a row of data must give."""
_BATCH_TOKENS = 8_192
"""Tokens read together when scoring."""
_SEARCHED_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""Tokens of sources that are searched together, each counted once for every hypothesis."""
_SLOTS = {"cpu": 64, "cuda": 256}
"""Sequences written side by side."""
_WIDTHS = 16
"""On a GPU the length of a batch of sources is a multiple of this."""


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

    def tensors(self) -> list[Tensor | None]:
        return [self.source, self.lengths, self.target_in, self.target_out]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "PairBatch":
        source, lengths, target_in, target_out = tensors
        assert source is not None
        assert target_in is not None
        assert target_out is not None
        return replace(self, source=source, lengths=lengths, target_in=target_in, target_out=target_out)


class Translation:
    """Pairs of sequences, by an encoder-decoder model."""

    name = "translation"
    description = "a sequence in, a sequence out"
    has_answers = True

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        return prepare(open_source(config, ROLES, rows), config, ROLES)

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = open_source(config, ROLES, rows)
        for guess in source.train.guesses:
            log_info(guess)
        return [row.values for row in source.train], source.content_hash()

    def question(self, row: Sequence[str]) -> str:
        return row[0]

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> AnyModel:
        if not (config.encoder_depth and config.decoder_depth):
            raise ConfigError(
                "translation needs an encoder and a decoder, "
                f"got encoder_layers={config.encoder_depth} and decoder_layers={config.decoder_depth}"
            )
        return make_model(config, tokenizer.vocab_size)

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> StoredBatches[PairBatch]:
        assert isinstance(data.train, TokenStore)
        make = partial(collate, data.train, tokenizer=data.tokenizer)
        fill = partial(filled, tokenizer=data.tokenizer) if has_few_shapes else None
        return StoredBatches(data.train, make, fill, batch_tokens=batch_tokens, seed=seed)

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[PairBatch]:
        assert isinstance(data.valid, TokenStore)
        for rows in batches_by_length(data.valid.lengths(), batch_tokens=_BATCH_TOKENS):
            yield collate(data.valid, rows, data.tokenizer)

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[PairBatch]:
        sources, targets = (
            [np.array(ids, np.int64) for ids in tokenizer.encode([row[side] for row in rows])] for side in (0, 1)
        )
        lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        for chosen in batches_by_length(lengths, batch_tokens=_BATCH_TOKENS):
            yield make_batch([sources[row] for row in chosen], [targets[row] for row in chosen], tokenizer)

    def loss(self, model: AnyModel, batch: PairBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the target tokens."""
        if objective.consistency:
            batch = twice(batch)
        states = model.states(batch.target_in, model.encode(batch.source, batch.lengths))
        return next_token_loss(model, states, batch.target_out, objective)

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: AnyModel, batches: Iterator[PairBatch], device: torch.device
    ) -> Likelihoods:
        """Of each target as a whole."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = moved(batch, device)
            states = model.states(batch.target_in, model.encode(batch.source, batch.lengths))
            some_losses, some_counts = row_losses(model, states, batch.target_out)
            losses += some_losses
            counts += some_counts
        return Likelihoods(losses, counts)

    def writer(
        self, model: AnyModel, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "Translator":
        return Translator(model, tokenizer, config)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        """BLEU counts runs of four words, so it says nothing of targets that have fewer."""
        num_words = [len(row[1].split()) for row in rows]
        return "bleu" if sum(num_words) >= 4 * len(num_words) else "exact_match"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        outputs, targets = [each.output for each in predictions], [row[1] for row in rows]
        return [
            metrics.exact_match(outputs, targets),
            metrics.bleu(outputs, targets),
            metrics.chrf(outputs, targets),
            metrics.perplexity(likelihoods.losses, likelihoods.counts),
        ]


def collate(store: TokenStore, rows: NDArray[np.int64], tokenizer: Tokenizer) -> PairBatch:
    """Rows of a store as one batch."""
    return make_batch(store.sequences(0, rows), store.sequences(1, rows), tokenizer)


def filled(batch: PairBatch, num_rows: int, length: int, tokenizer: Tokenizer) -> PairBatch:
    """The same batch, padded to so many rows and to `length` tokens and an end on both sides.

    Added rows repeat the first source and have no target that counts.
    """

    def pad_to(x: Tensor, padding: int, before: int = 0) -> Tensor:
        return F.pad(x, (0, before + length + 1 - x.size(1)), value=padding)

    more = num_rows - batch.source.size(0)
    lengths = batch.lengths if batch.lengths is not None else torch.full((batch.source.size(0),), batch.source.size(1))
    source = pad_to(batch.source, tokenizer.pad, len(tokenizer.opening))
    target_in = pad_to(batch.target_in, tokenizer.pad)
    return replace(
        batch,
        source=torch.cat([source, source[:1].expand(more, -1)]),
        lengths=torch.cat([lengths, lengths[:1].expand(more)]),
        target_in=torch.cat([target_in, target_in[:1].expand(more, -1)]),
        target_out=F.pad(pad_to(batch.target_out, IGNORED), (0, 0, 0, more), value=IGNORED),
    )


def make_batch(sources: list[NDArray[np.int64]], targets: list[NDArray[np.int64]], tokenizer: Tokenizer) -> PairBatch:
    """Pad pairs to rectangles; sources end with the end token, targets start and end with theirs.

    What a foreign tokenizer puts before a text stands before the sources of a foreign model.
    """
    ended = [np.array([*tokenizer.opening, *source, tokenizer.end], np.int64) for source in sources]
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


class Translator:
    """Writes the targets of sources; what it recorded for some serves others of about the same size."""

    def __init__(self, model: AnyModel, tokenizer: Tokenizer, config: GenerationConfig) -> None:
        self._model, self._tokenizer, self._config = model, tokenizer, config
        self._device = model.embedding.weight.device
        if config.beam_size > 1:
            self._search = BeamSearch(model, end=tokenizer.end, config=config)
        else:
            num_slots = _SLOTS[self._device.type]
            self._engine = Engine(model, config, end=tokenizer.ends, num_slots=num_slots)

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """What the model makes of each input, in order."""
        encoded = self._tokenizer.encode(inputs)
        written = self._by_beam(encoded) if self._config.beam_size > 1 else self._one_by_one(inputs, encoded)
        texts = self._tokenizer.decode(tokens for tokens, _ in written)
        rows = zip(inputs, texts, written, strict=True)
        return [Prediction(text, output, score) for text, output, (_, score) in rows]

    def _one_by_one(self, inputs: Sequence[str], encoded: Sequence[list[int]]) -> list[tuple[list[int], float | None]]:
        """Greedy or sampled; each has its own luck, which depends on the seed and the input alone."""
        start, end, config = self._tokenizer.start, self._tokenizer.end, self._config
        before = self._tokenizer.opening
        requests = [
            Request(
                [start], config.limit(len(ids)), seed=mix(config.seed, row_hash((text,))), source=[*before, *ids, end]
            )
            for text, ids in zip(inputs, encoded, strict=True)
        ]
        return [(tokens, None) for tokens in self._engine.run(requests)]

    def _by_beam(self, encoded: Sequence[list[int]]) -> list[tuple[list[int], float | None]]:
        """Long inputs first, so that a batch holds inputs of like length."""
        order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
        results: dict[int, tuple[list[int], float | None]] = {}
        place = 0
        while place < len(order):
            width = self._rounded(len(encoded[order[place]]) + 1)
            num_rows = self._num_rows(len(order) - place, width)
            chosen = order[place : place + num_rows]
            place += len(chosen)
            found = self._searched([encoded[i] for i in chosen], width, num_rows)
            for i, hypotheses in zip(chosen, found, strict=False):
                results[i] = (hypotheses[0].tokens, hypotheses[0].score)
        return [results[i] for i in range(len(encoded))]

    def _searched(self, encoded: list[list[int]], width: int, num_rows: int) -> list[list[Hypothesis]]:
        sources = [np.array(ids, np.int64) for ids in encoded]
        batch = make_batch(sources, [np.empty(0, np.int64)] * len(sources), self._tokenizer)
        limits = [self._config.limit(len(ids)) for ids in encoded]
        if self._device.type == "cuda":
            # Filled up to a size that comes again, which can be recorded.
            batch = filled(batch, num_rows, width - 1, self._tokenizer)
            limits += [1] * (num_rows - len(limits))
            batch = replace(batch, target_in=batch.target_in[:, :1])
        batch: PairBatch = moved(batch, self._device)
        with torch.inference_mode():
            state = self._model.start(self._model.encode(batch.source, batch.lengths))
        return self._search.search(state, batch.target_in, limits)

    def _num_rows(self, num_left: int, width: int) -> int:
        """How many of the sources that are left, of up to `width` tokens, are searched together.

        On a CPU such a number that all batches have about the same size, on a GPU a power of two, which comes again.
        """
        most = max(1, _SEARCHED_TOKENS[self._device.type] // (width * self._config.beam_size))
        if self._device.type == "cuda":
            return 1 << (min(most.bit_length() - 1, (num_left - 1).bit_length()))
        return math.ceil(num_left / math.ceil(num_left / most))

    def _rounded(self, width: int) -> int:
        return -(-width // _WIDTHS) * _WIDTHS if self._device.type == "cuda" else width
