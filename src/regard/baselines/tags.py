"""A linear-chain CRF with the usual features of words, or the most frequent tag of each word.

Lafferty et al., "Conditional Random Fields: Probabilistic Models for Segmenting and Labeling Sequence Data" (2001).
Sha & Pereira, "Shallow Parsing with Conditional Random Fields" (2003), for features of neighboring words.
Weinberger et al., "Feature Hashing for Large Scale Multitask Learning" (2009): features are hashed to a fixed number
of weights for each tag.

Dimensions: `words` of all sentences, one after the other; `features` of each word; `tags`.
"""

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.baselines.baseline import Baseline, BaselinePredictions, limit_rows
from regard.errors import DataError
from regard.nn.crf import ConditionalRandomField, transition_mask

_MOST_SENTENCES, _MOST_WORDS = 20_000, 300_000
_MOST_COST = 1.5e8
"""Words times squared tags in one epoch, which bounds the time of the fit where there are many tags."""
_FEWEST_SENTENCES = 20
"""For fewer sentences, the most frequent tag of each word."""
_NUM_BUCKETS = 1 << 18
"""Weights for each tag; bucket 0 is the absence of a feature."""
_EPOCHS, _BATCH_WORDS, _LEARNING_RATE = 4, 3_000, 0.3
_AFFIX = 4
"""The longest prefix and suffix."""
_REACH = 2
"""Neighbors on each side whose features a word has."""

Sentence = Sequence[str]
MayFollow = Callable[[str | None, str | None], bool]


def fit_tagger(sentences: Sequence[Sentence], tags: Sequence[Sentence], *, may_follow: MayFollow | None) -> Baseline:
    """A CRF, or for few sentences the most frequent tag of each word; inputs are words separated by spaces.

    Args:
        sentences: The words of the training sentences.
        tags: The tag of each word.
        may_follow: Which tag may follow which, None being the boundary of a sentence; None for any.

    Raises:
        DataError: If all words have the same tag.
    """
    rows = [row for row in zip(sentences, tags, strict=True) if row[0]]
    labels = sorted({tag for _, some in rows for tag in some})
    if len(labels) < 2:
        raise DataError(f"a tagger needs at least two tags, got {', '.join(labels) or 'none'}")
    if len(rows) < _FEWEST_SENTENCES:
        most_frequent = FrequentTags(rows)
        return _baseline(
            "most frequent tag of each word", lambda some: [most_frequent(words) for words in some], len(rows)
        )
    num_words = sum(len(words) for words, _ in rows)
    share = min(1.0, _MOST_WORDS / num_words, _MOST_COST / (num_words * len(labels) ** 2))
    kept = limit_rows(rows, max(_FEWEST_SENTENCES, min(_MOST_SENTENCES, int(share * len(rows)))))
    tagger = LinearChain(labels, may_follow)
    tagger.fit(kept)
    return _baseline("linear CRF", tagger.predict, len(kept))


def _baseline(name: str, tag: Callable[[list[Sentence]], list[list[str]]], num_used: int) -> Baseline:
    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        sentences: list[Sentence] = [[word for word in text.split(" ") if word] for text in inputs]
        return BaselinePredictions([" ".join(found) for found in tag(sentences)])

    return Baseline(name, predict, num_used, "sentences")


class FrequentTags:
    """The tag that each word has most often; for an unknown word, the most frequent tag of all."""

    def __init__(self, rows: Sequence[tuple[Sentence, Sentence]]) -> None:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for words, tags in rows:
            for word, tag in zip(words, tags, strict=True):
                counts[word][tag] += 1
        self._known = {word: some.most_common(1)[0][0] for word, some in counts.items()}
        self._other = sum(counts.values(), Counter()).most_common(1)[0][0]

    def __call__(self, words: Sentence) -> list[str]:
        return [self._known.get(word, self._other) for word in words]


class LinearChain:
    """A CRF whose logits are sums of the weights of a word's features, trained by Adagrad (Duchi et al., 2011)."""

    def __init__(self, labels: Sequence[str], may_follow: MayFollow | None) -> None:
        self.labels = list(labels)
        allowed = None if may_follow is None else transition_mask(self.labels, may_follow)
        self._crf = ConditionalRandomField(len(labels), allowed=allowed).float()
        self._weights = torch.zeros(_NUM_BUCKETS, len(labels), dtype=torch.float32)

    def fit(self, rows: Sequence[tuple[Sentence, Sentence]]) -> None:
        """Train for a few epochs, on batches of sentences of similar length in a fixed random order."""
        indices = {label: index for index, label in enumerate(self.labels)}
        tags = [torch.tensor([indices[tag] for tag in some]) for _, some in rows]
        batches = _batches([words for words, _ in rows])
        optimizer = torch.optim.Adagrad(self._crf.parameters(), lr=_LEARNING_RATE)
        squares = torch.full_like(self._weights, 1e-10)
        rng = np.random.default_rng(0)
        for epoch in range(_EPOCHS):
            rate = _LEARNING_RATE * (1 - epoch / _EPOCHS)
            optimizer.param_groups[0]["lr"] = rate
            for number in rng.permutation(len(batches)):
                batch = batches[number]
                # The weights of most features have no gradient: those of the batch are trained as a matrix of its own.
                used = self._weights[batch.buckets].requires_grad_()
                targets = nn.utils.rnn.pad_sequence([tags[row] for row in batch.rows], batch_first=True)
                optimizer.zero_grad()
                likelihood = self._crf.log_likelihood(batch.logits(used), targets, batch.lengths).sum()
                (-likelihood / batch.lengths.sum()).backward()
                optimizer.step()
                assert used.grad is not None
                sums = squares[batch.buckets].addcmul_(used.grad, used.grad)
                squares[batch.buckets] = sums
                self._weights[batch.buckets] = used.detach().addcdiv_(used.grad, sums.sqrt_(), value=-rate)

    @torch.no_grad()
    def predict(self, sentences: Sequence[Sentence]) -> list[list[str]]:
        """The most probable tags of each sentence."""
        found: dict[int, list[str]] = {}
        for batch in _batches(sentences):
            paths = self._crf.viterbi(batch.logits(self._weights[batch.buckets]), batch.lengths)
            found |= {row: [self.labels[tag] for tag in path.tags] for row, path in zip(batch.rows, paths, strict=True)}
        return [found.get(number, []) for number in range(len(sentences))]


@dataclass(frozen=True)
class _Batch:
    """Sentences of similar length, by the buckets of their features."""

    rows: list[int]
    lengths: Int[Tensor, " batch"]
    buckets: Int[Tensor, " different"]
    features: Int[Tensor, "words features"]
    """Places in `buckets`."""

    def logits(self, weights: Float[Tensor, "different tags"]) -> Float[Tensor, "batch time tags"]:
        flat = F.embedding_bag(self.features, weights, mode="sum")
        return nn.utils.rnn.pad_sequence(list(flat.split(self.lengths.tolist())), batch_first=True)


def _batches(sentences: Sequence[Sentence]) -> list[_Batch]:
    """Sentences of similar length, in batches of about equally many words; those without words are left out."""
    features, lengths = word_features(sentences), [len(words) for words in sentences]
    groups: list[list[int]] = []
    size = _BATCH_WORDS
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: lengths[row]):
        size += lengths[row]
        if size > _BATCH_WORDS:
            groups.append([])
            size = lengths[row]
        groups[-1].append(row)
    found = []
    for rows in groups:
        buckets, places = torch.cat([features[row] for row in rows]).unique(return_inverse=True)
        found.append(_Batch(rows, torch.tensor([lengths[row] for row in rows]), buckets, places))
    return found


def word_features(sentences: Sequence[Sentence]) -> list[Int[Tensor, "words features"]]:
    """The buckets of the features of each word: its own, those of its neighbors, and those of pairs of words."""
    types: dict[str, int] = {"": 0}  # the word beyond the ends of a sentence
    flat: list[int] = []
    for words in sentences:
        flat += [0] * _REACH
        flat += [types.setdefault(word, len(types)) for word in words]
    flat += [0] * _REACH
    ids = np.array(flat, np.int64)
    own = np.array([[_bucket(feature) for feature in own_features(word)] for word in types])
    seen = np.array([[_bucket(feature) for feature in neighbor_features(word)] for word in types])
    names = np.array([zlib.crc32(word.lower().encode()) for word in types], np.int64)
    middle = slice(_REACH, len(ids) - _REACH)

    def at(offset: int) -> Int[np.ndarray, " words"]:
        return ids[middle.start + offset : middle.stop + offset]

    columns = [own[at(0)]]
    for offset in (*range(-_REACH, 0), *range(1, _REACH + 1)):
        columns.append(_mixed(seen[at(offset)], offset + _REACH + 1))
    for number, (one, other) in enumerate([(-1, 0), (0, 1), (-1, 1)]):
        columns.append(_mixed(names[at(one)] * 31 + names[at(other)], 101 + number)[:, None])
    found = torch.from_numpy(np.concatenate(columns, axis=1))
    lengths = [part for words in sentences for part in (len(words), _REACH)][:-1]
    return list(found.split(lengths))[::2] if sentences else []


def own_features(word: str) -> list[str]:
    """The features of a word itself, as many for each word.

    Example:
        >>> own_features("Rome")[:4], own_features("U-2")[-2:]
        (['bias', 'word Rome', 'lower rome', 'prefix r'], ['short shape X-d', 'has digit'])
    """
    lower = word.lower()
    prefixes = [f"prefix {lower[:size]}" if len(word) >= size else "" for size in range(1, _AFFIX + 1)]
    suffixes = [f"suffix {lower[-size:]}" if len(word) >= size else "" for size in range(1, _AFFIX + 1)]
    case = "upper" if word.isupper() else "title" if word.istitle() else "capital" if word[:1].isupper() else "small"
    digits = "all digits" if word.isdigit() else "has digit" if any(map(str.isdigit, word)) else ""
    shapes = [f"shape {shape_of(word)}", f"short shape {short_shape(word)}"]
    return ["bias", f"word {word}", f"lower {lower}", *prefixes, *suffixes, f"case {case}", *shapes, digits]


def neighbor_features(word: str) -> list[str]:
    """The features of a word that its neighbors have as well."""
    lower = word.lower()
    return [f"lower {lower}", f"short shape {short_shape(word)}", f"suffix {lower[-3:]}"]


def shape_of(word: str) -> str:
    """A word with its letters and digits replaced by their kind.

    Example:
        >>> shape_of("McDonald's"), shape_of("B-52")
        ("XxXxxxxx'x", 'X-dd')
    """
    return "".join(
        "X" if sign.isupper() else "x" if sign.isalpha() else "d" if sign.isdigit() else sign for sign in word
    )


def short_shape(word: str) -> str:
    """The shape of a word without repetitions.

    Example:
        >>> short_shape("McDonald's")
        "XxXx'x"
    """
    return re.sub(r"(.)\1+", r"\1", shape_of(word))


def _bucket(feature: str) -> int:
    return 1 + zlib.crc32(feature.encode()) % (_NUM_BUCKETS - 1) if feature else 0


def _mixed(numbers: Int[np.ndarray, "*shape"], salt: int) -> Int[np.ndarray, "*shape"]:
    """Another bucket for each number, by a multiplicative hash of the number and the salt."""
    mixed = (numbers.astype(np.uint64) + np.uint64(salt << 40)) * np.uint64(0x9E3779B97F4A7C15)
    return (1 + (mixed >> np.uint64(40)) % np.uint64(_NUM_BUCKETS - 1)).astype(np.int64)
