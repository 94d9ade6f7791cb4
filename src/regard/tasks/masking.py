"""Which tokens of a text are hidden, and what is shown in their place.

    tokens  each by itself                        Devlin et al., "BERT" (2018), section 3.1, task 1
    words   all tokens of a word together         the same authors' later models: whole-word masking
    spans   stretches of words, or of tokens      Joshi et al., "SpanBERT" (2019), section 3.1

https://arxiv.org/abs/1810.04805, https://arxiv.org/abs/1907.10529

Of what is hidden, 80 % is shown as the mask token, 10 % as another token and 10 % as it is, so that a model cannot
know which of the tokens that it reads are true. For spans that is decided once for all of a span.

A token begins a word, or goes on with one, by what it looks like in a text: a word is a run of letters and digits. In
scripts that part no words each token is one.

Dimensions: `rows` texts, `time` positions, `hidden` ones that are hidden, `vocab` tokens.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int

from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

NOT_HIDDEN = -1
"""The word of a position that is none, such as the start of a text."""
PART_OF_CHARACTER = "\ufffd"
"""How a token reads that has some bytes of a character only."""
_SHOWN_AS_MASK, _SHOWN_AS_OTHER = 0.8, 0.1
_SPAN_END, _LONGEST_SPAN = 0.2, 10
"""The chance that a span ends behind a word, and the most words that it has."""
_SPAN_LENGTHS = np.arange(1, _LONGEST_SPAN + 1)
_SPAN_SHARES = (1 - _SPAN_END) ** _SPAN_LENGTHS / ((1 - _SPAN_END) ** _SPAN_LENGTHS).sum()
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese characters."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What is to be known of each token in order to hide it."""

    mask: int
    ordinary: Int[np.ndarray, " ordinary"]
    """The tokens that are text, and not special."""
    is_ordinary: Bool[np.ndarray, " vocab"]
    goes_on: Bool[np.ndarray, " vocab"]
    """Whether a token begins inside a word,"""
    leads_on: Bool[np.ndarray, " vocab"]
    """and whether it ends inside of one, where the next goes on; special tokens do neither."""


@dataclass(frozen=True)
class Masking:
    """How much is hidden, and what together."""

    share: float
    has_spans: bool
    has_words: bool

    def budget(self, num_tokens: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
        """How many of so many tokens are hidden, at most: the share of them, but one where there is one.

        Example:
            >>> Masking(0.15, has_spans=False, has_words=True).budget(np.array([0, 1, 100])).tolist()
            [0, 1, 15]
        """
        return np.minimum(num_tokens, np.maximum(1, np.round(self.share * num_tokens))).astype(np.int64)

    def hide(
        self,
        tokens: Int[np.ndarray, "rows time"],
        vocabulary: Vocabulary,
        rng: np.random.Generator,
        *,
        is_plain: bool = False,
    ) -> tuple[Int[np.ndarray, "rows time"], Bool[np.ndarray, "rows time"]]:
        """The texts as they are shown, and which places they hide; with `is_plain` all are shown as the mask token."""
        words = number_words(tokens, vocabulary, is_whole=self.has_words)
        budgets = self.budget((words != NOT_HIDDEN).sum(axis=1))
        spans = choose(words, budgets, rng, has_spans=self.has_spans)
        is_hidden = spans != NOT_HIDDEN
        shown = tokens.copy()
        if is_plain:
            shown[is_hidden] = vocabulary.mask
        else:
            groups = spans[is_hidden] if self.has_spans else np.flatnonzero(is_hidden)
            shown[is_hidden] = disguise(tokens[is_hidden], groups, vocabulary, rng)
        return shown, is_hidden


def number_words(
    tokens: Int[np.ndarray, "rows time"], vocabulary: Vocabulary, *, is_whole: bool = True
) -> Int[np.ndarray, "rows time"]:
    """The word that each position belongs to, counted from 0 through all rows; `NOT_HIDDEN` where a token is special.

    Without `is_whole` each token is a word.
    """
    is_ordinary = vocabulary.is_ordinary[tokens]
    begins = is_ordinary.copy()
    if is_whole:
        begins[:, 1:] &= ~(vocabulary.leads_on[tokens[:, :-1]] & vocabulary.goes_on[tokens[:, 1:]])
    return np.where(is_ordinary, np.cumsum(begins).reshape(tokens.shape) - 1, NOT_HIDDEN)


def choose(
    words: Int[np.ndarray, "rows time"], budgets: Int[np.ndarray, " rows"], rng: np.random.Generator, *, has_spans: bool
) -> Int[np.ndarray, "rows time"]:
    """The number of the span that hides each position, or `NOT_HIDDEN`; each row hides whole words up to its budget.

    Spans begin at words of a random order and end early where the budget does, at what is hidden already, and at
    what is no word. A word that is longer than the whole budget falls apart into tokens, for it would never be hidden.

    Example:
        >>> words = np.array([[-1, 0, 1, 1, 2, 3, -1], [4, 5, 5, 5, 6, 7, -1]])
        >>> (choose(words, np.array([2, 1]), np.random.default_rng(0), has_spans=False) >= 0).astype(int).tolist()
        [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 0, 0]]
    """
    places = np.flatnonzero(words != NOT_HIDDEN)
    rows, of_word = places // words.shape[1], words.ravel()[places]
    begins = np.ones(len(places), bool)
    begins[1:] = of_word[1:] != of_word[:-1]
    begins |= np.bincount(of_word)[of_word] > budgets[rows] if len(places) else False
    firsts = np.flatnonzero(begins)
    is_adjoining = (np.diff(places, prepend=-2) == 1) & (np.diff(rows, prepend=-1) == 0)
    order = np.lexsort((rng.random(len(firsts)), rows[firsts]))
    lengths = rng.choice(_SPAN_LENGTHS, size=len(firsts), p=_SPAN_SHARES) if has_spans else np.ones(len(firsts), int)
    spans = _fill(
        budgets.tolist(),
        np.cumsum(np.bincount(rows[firsts], minlength=len(words))).tolist(),
        order.tolist(),
        lengths.tolist(),
        np.diff(firsts, append=len(places)).tolist(),
        is_adjoining[firsts].tolist(),
    )
    result = np.full(words.size, NOT_HIDDEN, np.int64)
    result[places] = np.array(spans, np.int64)[np.cumsum(begins) - 1]
    return result.reshape(words.shape)


def disguise(
    tokens: Int[np.ndarray, " hidden"],
    groups: Int[np.ndarray, " hidden"],
    vocabulary: Vocabulary,
    rng: np.random.Generator,
) -> Int[np.ndarray, " hidden"]:
    """What is shown in the place of hidden tokens; those of a group are treated alike."""
    kinds, group = np.unique(groups, return_inverse=True)
    draws = rng.random(len(kinds))[group]
    others = rng.choice(vocabulary.ordinary, size=len(tokens))
    shown = np.where(draws < _SHOWN_AS_MASK + _SHOWN_AS_OTHER, others, tokens)
    return np.where(draws < _SHOWN_AS_MASK, vocabulary.mask, shown)


@lru_cache(maxsize=8)
def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """What a tokenizer's tokens look like inside a text."""
    if tokenizer.mask is None:
        raise DataError("the tokenizer has no token that stands for a hidden one, such as [MASK] or <mask>")
    size = tokenizer.vocab_size
    ordinary = np.array([token for token in range(size) if token not in tokenizer.specials | {tokenizer.mask}])
    is_ordinary = np.zeros(size, bool)
    is_ordinary[ordinary] = True
    goes_on, leads_on = np.zeros(size, bool), np.zeros(size, bool)
    for token, text in zip(ordinary.tolist(), texts_within(tokenizer, ordinary.tolist()), strict=True):
        goes_on[token], leads_on[token] = _is_inside(text[:1]), _is_inside(text[-1:])
    return Vocabulary(tokenizer.mask, ordinary, is_ordinary, goes_on, leads_on)


def texts_within(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The text of each token as it stands behind another: with a space before it, where it begins a word.

    Example:
        >>> from regard.text.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer(["to be or not to be"], "words", 100)
        >>> texts_within(tokenizer, tokenizer.encode(["not be"])[0])
        [' not', ' be']
    """
    before = (tokenizer.encode(["a"])[0] or [tokens[0]])[-1]
    (alone,) = tokenizer.decode([[before]])
    return [text.removeprefix(alone) for text in tokenizer.decode([before, token] for token in tokens)]


def _is_inside(character: str) -> bool:
    """Whether a character is part of a word; marks, such as accents and vowel signs, are."""
    if not character or _WITHOUT_SPACES.match(character):
        return False
    return character.isalnum() or character == PART_OF_CHARACTER or unicodedata.category(character)[0] == "M"


def _fill(
    budgets: list[int],
    ends: list[int],
    order: list[int],
    lengths: list[int],
    sizes: list[int],
    is_adjoining: list[bool],
) -> list[int]:
    """For each word the number of the span that hides it, or `NOT_HIDDEN`; lists, for they are walked one by one.

    `ends` say where in `order` the words of each row end.
    """
    spans = [NOT_HIDDEN] * len(order)
    for left, start, end in zip(budgets, [0, *ends], ends, strict=False):
        for number in range(start, end):
            if not left:
                break
            first = order[number]
            for word in range(first, min(first + lengths[number], len(order))):
                if spans[word] != NOT_HIDDEN or sizes[word] > left or (word > first and not is_adjoining[word]):
                    break
                spans[word] = number
                left -= sizes[word]
    return spans
