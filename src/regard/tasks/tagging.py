"""Tagging: a tag for each word of a sentence, such as the entities it names or its parts of speech.

Lample et al., "Neural Architectures for Named Entity Recognition" (2016). https://arxiv.org/abs/1603.01360
Devlin et al., "BERT" (2018), section 5.3: a word is judged by the state of its first token.
https://arxiv.org/abs/1810.04805

Tags of entities may be written in any scheme; the model learns and predicts them in BIO. Words behind the first
`max_length` tokens of a sentence are not read: for them the tag outside of any entity is predicted, and the commonest
tag where tags are no entities.

Dimensions: `batch` sentences, `time` tokens, `words` of a sentence, `tags` that there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import StoredBatches, batches_by_length, pad
from regard.data.config import DataConfig
from regard.data.conll import ROLES
from regard.data.preparation import Prepared, prepare
from regard.data.sources import Rows
from regard.data.store import TokenStore
from regard.data.tagged import TagCoding, encode_sentences, open_sentences, tag_numbers, words_of
from regard.errors import ConfigError, DataError
from regard.evaluation.classes import LabelCounts, f1, precision, recall
from regard.evaluation.entities import (
    OUTSIDE,
    convert_tags,
    count_entities,
    describe_faults,
    detect_scheme,
    find_faults,
    may_follow,
    score_entities,
)
from regard.evaluation.metrics import score_tally
from regard.evaluation.scores import Score
from regard.evaluation.tallies import Tally
from regard.generation.config import GenerationConfig
from regard.logging import log_info, log_warning
from regard.models.families import AnyConfig
from regard.models.heads import HeadConfig, Tagger
from regard.nn.crf import allowed_steps
from regard.tasks.objective import PLAIN, Objective
from regard.tasks.reading import BATCH_TOKENS
from regard.tasks.task import Likelihoods, Prediction, moved, twice
from regard.text.tokenizer import Tokenizer

SCHEME = "BIO"
"""What the tags of entities are learned and predicted in."""
TAG_METRICS = ("accuracy", "macro_f1")
"""Scores of tags that are not those of entities."""
_OF_ENTITIES = {"entity_f1": f1, "entity_precision": precision, "entity_recall": recall}


@dataclass(frozen=True)
class SentencesBatch:
    """Sentences, and the tags of their words."""

    source: Int[Tensor, "batch time"]
    lengths: Int[Tensor, " batch"] | None
    """In tokens; None where none is padded."""
    places: Int[Tensor, "batch words"]
    """Where each word begins among the tokens."""
    num_words: Int[Tensor, " batch"]
    tags: Int[Tensor, "batch words"]
    weights: Float[Tensor, " batch"]
    """How much each sentence counts: 0 for one that only fills a shape."""
    forms: Int[Tensor, "batch time"]
    """How the word of each token is written."""
    num_targets: int
    num_tokens: int

    def tensors(self) -> list[Tensor | None]:
        return [self.source, self.lengths, self.places, self.num_words, self.tags, self.weights, self.forms]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "SentencesBatch":
        names = ("source", "lengths", "places", "num_words", "tags", "weights", "forms")
        return replace(self, **dict(zip(names, tensors, strict=True)))  # pyright: ignore[reportArgumentType]  by name

    @property
    def is_word(self) -> Bool[Tensor, "batch words"]:
        """True where a sentence has not ended."""
        return torch.arange(self.places.size(1), device=self.places.device) < self.num_words[:, None]


class Tagging:
    """Sentences and the tags of their words, by a model that reads."""

    name = "tagging"
    description = "which tag each word of a sentence has"
    has_answers = True

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        if config.balance or config.label_separator is not None:
            raise ConfigError(
                "a word has one tag, and all words count alike: data.balance and data.label_separator are for "
                f"classification, got {config.balance} and {config.label_separator!r}"
            )
        source = open_sentences(config, rows)
        scheme = detect_scheme(words_of(row.values[1]) for row in source.train)
        notes = []
        if scheme is not None:
            notes.append(f"the tags are those of entities, written in {scheme}; they are learned in {SCHEME}")
            log_info(notes[0])
            if faults := find_faults((words_of(row.values[1]) for row in source.train), scheme):
                notes.append(f"{describe_faults(faults, scheme)}; they are read as if an entity began there")
                log_warning(notes[1])
        coding = TagCoding(
            max_length=config.max_length,
            written=_plain if scheme is None else _as_entities,
            outside=None if scheme is None else OUTSIDE,
        )
        prepared = prepare(source, config, ROLES, coding)
        return replace(prepared, notes=[*prepared.notes, *notes])

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = open_sentences(config, rows)
        for guess in source.train.guesses:
            log_info(guess)
        return [row.values for row in source.train], source.content_hash()

    def question(self, row: Sequence[str]) -> str:
        return row[0]

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> Tagger:
        assert data is not None, "tags are read off the data before a model is built"
        allowed = None
        if has_entities(data.labels):
            allowed = allowed_steps(data.labels, lambda before, after: may_follow(before, after, scheme=SCHEME))
        return Tagger(config, head or HeadConfig(), tokenizer.vocab_size, len(data.labels), allowed=allowed)

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> StoredBatches[SentencesBatch]:
        store, padding = data.train, data.tokenizer.pad
        assert isinstance(store, TokenStore)
        fill = partial(filled, padding=padding) if has_few_shapes else None
        make = partial(_stored, store, padding=padding)
        return StoredBatches(store, make, fill, batch_tokens=batch_tokens, seed=seed)

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[SentencesBatch]:
        store = data.valid
        assert isinstance(store, TokenStore)
        for rows in batches_by_length(store.lengths(), batch_tokens=BATCH_TOKENS):
            yield _stored(store, rows, data.tokenizer.pad)

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[SentencesBatch]:
        numbers = {tag: number for number, tag in enumerate(config.labels)}
        tags = [tag_numbers(_written(words_of(row[1]), config.labels), numbers) for row in rows]
        tokens, places, forms = encode_sentences([words_of(row[0]) for row in rows], tokenizer, config.max_length)
        for chosen in batches_by_length([len(some) for some in tokens], batch_tokens=BATCH_TOKENS):
            some_tokens, some_places, some_tags = (_arrays(column, chosen) for column in (tokens, places, tags))
            yield make_batch(some_tokens, some_places, some_tags, _arrays(forms, chosen), tokenizer.pad)

    def loss(self, model: Tagger, batch: SentencesBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the words; with a random field, that of all tags of a sentence together."""
        if model.crf is not None and (objective.label_smoothing or objective.consistency):
            raise ConfigError(
                "a random field has no label_smoothing or consistency, which speak of each word by itself, got "
                f"{objective.label_smoothing} and {objective.consistency}"
            )
        if objective.consistency:
            batch = twice(batch)
        scores = _scores(model, batch)
        loss = (_losses(model, scores, batch, objective.label_smoothing) * batch.weights).sum()
        if not objective.consistency:
            return loss
        disagreement = (_disagreement(scores) * batch.is_word.chunk(2)[0]).sum(dim=1)
        return loss / 2 + objective.consistency / 4 * (disagreement * batch.weights.chunk(2)[0]).sum()

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: Tagger, batches: Iterator[SentencesBatch], device: torch.device
    ) -> Likelihoods:
        """Of the tags of each sentence, the words that were read."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = moved(batch, device)
            losses += _losses(model, _scores(model, batch), batch).tolist()
            counts += batch.num_words.tolist()
        return Likelihoods(losses, counts)

    def writer(
        self, model: Tagger, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "WordTagger":
        assert data is not None, "tags are read off the data before a model is built"
        return WordTagger(model, tokenizer, data)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "accuracy" if detect_scheme(words_of(row[1]) for row in rows) is None else "entity_f1"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        """Of entities precision, recall and F1; of plain tags accuracy and macro F1 by words, drawn by sentences."""
        wanted = [_written(words_of(row[1]), config.labels) for row in rows]
        given = [words_of(each.output) for each in predictions]
        if has_entities(config.labels):
            return score_entities(given, wanted)
        return [score_tally(tally) for tally in _tallies(given, wanted, config.labels)]


class WordTagger:
    """Says which tag each word of a sentence has."""

    def __init__(self, model: Tagger, tokenizer: Tokenizer, data: DataConfig) -> None:
        self._model, self._tokenizer, self._data = model, tokenizer, data
        self._device = next(model.parameters()).device

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """What the model says of each sentence, in order: as many tags as there are words between spaces."""
        sentences = [words_of(text) for text in inputs]
        filled_ones = [number for number, words in enumerate(sentences) if words]
        tokens, places, forms = encode_sentences(
            [sentences[number] for number in filled_ones], self._tokenizer, self._data.max_length
        )
        found: dict[int, list[int]] = {}
        for chosen in batches_by_length([len(some) for some in tokens], batch_tokens=BATCH_TOKENS):
            some_tokens, some_places, some_forms = (_arrays(column, chosen) for column in (tokens, places, forms))
            nothing = [np.zeros_like(some) for some in some_places]
            paths = self._paths(make_batch(some_tokens, some_places, nothing, some_forms, self._tokenizer.pad))
            found |= {filled_ones[row]: path for row, path in zip(chosen.tolist(), paths, strict=True)}
        return [
            Prediction(text, " ".join(self._tags(found.get(number, []), len(sentences[number]))))
            for number, text in enumerate(inputs)
        ]

    @torch.inference_mode()
    def _paths(self, batch: SentencesBatch) -> list[list[int]]:
        batch = moved(batch, self._device)
        scores = _scores(self._model, batch)
        if self._model.crf is not None:
            return [path.tags for path in self._model.crf.viterbi(scores, batch.num_words)]
        best = scores.argmax(dim=2).tolist()
        return [tags[:length] for tags, length in zip(best, batch.num_words.tolist(), strict=True)]

    def _tags(self, path: list[int], num_words: int) -> list[str]:
        labels = self._data.labels
        return [labels[number] for number in path] + [labels[0]] * (num_words - len(path))


def tally_tags(metric: str, outputs: Sequence[str], targets: Sequence[str], *, labels: Sequence[str] = ()) -> Tally:
    """What is counted of the tags of each sentence; `labels` are all there can be where they are not those of entities.

    Metrics are entity_f1, entity_precision, entity_recall, or `TAG_METRICS`.
    """
    given, wanted = ([words_of(tags) for tags in some] for some in (outputs, targets))
    if metric in _OF_ENTITIES:
        return count_entities(given, [_as_entities(tags) for tags in wanted]).micro(_OF_ENTITIES[metric])
    return _tallies(given, wanted, labels)[TAG_METRICS.index(metric)]


def has_entities(labels: Sequence[str]) -> bool:
    """Whether all of these are tags of entities, in the scheme that is learned."""
    return all(may_follow(label, None, scheme=SCHEME) for label in labels)


def make_batch(
    tokens: list[NDArray[np.int64]],
    places: list[NDArray[np.int64]],
    tags: list[NDArray[np.int64]],
    forms: list[NDArray[np.int64]],
    padding: int,
) -> SentencesBatch:
    """Sentences as one rectangle; of each, the tags of words that were not read are left out."""
    lengths = [len(some) for some in tokens]
    num_words = [len(some) for some in places]
    return SentencesBatch(
        source=torch.from_numpy(pad(tokens, padding)),
        lengths=torch.tensor(lengths) if min(lengths) < max(lengths) else None,
        places=torch.from_numpy(pad(places, 0)),
        num_words=torch.tensor(num_words),
        tags=torch.from_numpy(pad([some[:count] for some, count in zip(tags, num_words, strict=True)], 0)),
        weights=torch.ones(len(tokens)),
        forms=torch.from_numpy(pad(forms, 0)),
        num_targets=sum(num_words),
        num_tokens=sum(lengths),
    )


def filled(batch: SentencesBatch, num_rows: int, length: int, padding: int) -> SentencesBatch:
    """The same batch, padded to so many sentences of so many tokens, and as many words.

    Added sentences repeat the first, and do not count.
    """
    have = batch.source.size(0)
    lengths = batch.lengths if batch.lengths is not None else torch.full((have,), batch.source.size(1))

    def with_rows(x: Tensor) -> Tensor:
        return torch.cat([x, x[:1].expand(num_rows - have, *x.shape[1:])])

    def wide(x: Tensor, value: int) -> Tensor:
        return with_rows(F.pad(x, (0, length - x.size(1)), value=value))

    return replace(
        batch,
        source=wide(batch.source, padding),
        lengths=with_rows(lengths),
        places=wide(batch.places, 0),
        num_words=with_rows(batch.num_words),
        tags=wide(batch.tags, 0),
        weights=F.pad(batch.weights, (0, num_rows - have)),
        forms=wide(batch.forms, 0),
    )


def _stored(store: TokenStore, rows: NDArray[np.int64], padding: int) -> SentencesBatch:
    tokens, places, tags, forms = (store.sequences(column, rows) for column in range(4))
    return make_batch(tokens, places, tags, forms, padding)


def _arrays(sequences: Sequence[Sequence[int]], chosen: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [np.array(sequences[row], np.int64) for row in chosen]


def _scores(model: Tagger, batch: SentencesBatch) -> Float[Tensor, "batch words tags"]:
    """In float32 at least."""
    scores = model(batch.source, batch.places, batch.lengths, batch.forms)
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _losses(
    model: Tagger, scores: Float[Tensor, "batch words tags"], batch: SentencesBatch, label_smoothing: float = 0.0
) -> Float[Tensor, " batch"]:
    """The negative log-likelihood of each sentence's tags."""
    if model.crf is not None:
        return -model.crf.log_likelihood(scores, batch.tags, batch.num_words)
    by_word = F.cross_entropy(scores.mT, batch.tags, reduction="none", label_smoothing=label_smoothing)
    return (by_word * batch.is_word).sum(dim=1)


def _disagreement(scores: Float[Tensor, "two words tags"]) -> Float[Tensor, "one words"]:
    r"""How far the two readings of each word are apart: $\mathrm{KL}(p \| q) + \mathrm{KL}(q \| p)$."""
    one, other = scores.log_softmax(dim=-1).chunk(2)
    return ((one.exp() - other.exp()) * (one - other)).sum(dim=-1)


def _plain(tags: Sequence[str]) -> Sequence[str]:
    return tags


def _as_entities(tags: Sequence[str]) -> Sequence[str]:
    return convert_tags(tags, SCHEME)


def _written(tags: Sequence[str], labels: Sequence[str]) -> Sequence[str]:
    """The tags as the model writes them."""
    return _as_entities(tags) if has_entities(labels) else tags


def _tallies(given: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], labels: Sequence[str]) -> list[Tally]:
    """Accuracy and macro F1 of words, counted by sentences: the words of one are not independent."""
    place = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(wanted), len(labels), 3), np.int32)
    for row, (said, true) in enumerate(zip(given, wanted, strict=True)):
        if len(said) != len(true):
            raise DataError(f"a sentence needs a tag for each word, got {len(said)} for {len(true)}")
        for one, other in zip(said, true, strict=True):
            counts[row, place[one], 1] += 1
            counts[row, place[other], 2] += 1
            counts[row, place[one], 0] += one == other
    statistics = counts[:, :, (0, 2)].sum(axis=1)
    settings = {"unit": "sentence"}
    # Not a proportion of examples, which are sentences: its interval is that of a ratio.
    accuracy = Tally(name="accuracy", statistics=statistics, compute=_ratio, settings=settings)
    return [accuracy, LabelCounts(labels=tuple(labels), counts=counts, settings=settings).macro(f1)]


def _ratio(sums: Float[np.ndarray, " statistics"]) -> float:
    return float(sums[0] / sums[1])
