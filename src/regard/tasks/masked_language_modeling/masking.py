"""Which tokens of a text are masked, and what they are replaced by.

    tokens  each on its own                       Devlin et al., "BERT" (2018), section 3.1, task 1
    words   all tokens of a word together         whole-word masking, in the authors' later models
    spans   spans of words, or of tokens          Joshi et al., "SpanBERT" (2019), section 3.1

https://arxiv.org/abs/1810.04805, https://arxiv.org/abs/1907.10529

Of the masked tokens, 80 % are replaced by the mask token, 10 % by a random token and 10 % are kept, so that a model
cannot tell which input tokens are the original ones. For spans this is drawn once for each span.

Whether a token begins a word is decided by its text: a word is a run of letters and digits. In scripts without spaces
each token is a word.

Dimensions: `rows` texts, `time` positions, `hidden` masked ones, `vocab` tokens.
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
"""The word index of a special token, which is never masked."""
PART_OF_CHARACTER = "\ufffd"
"""The text of a token with only some bytes of a character."""
_SHOWN_AS_MASK, _SHOWN_AS_OTHER = 0.8, 0.1
_SPAN_END, _LONGEST_SPAN = 0.2, 10
"""The probability that a span ends after a word, and its largest number of words."""
_SPAN_LENGTHS = np.arange(1, _LONGEST_SPAN + 1)
_SPAN_SHARES = (1 - _SPAN_END) ** _SPAN_LENGTHS / ((1 - _SPAN_END) ** _SPAN_LENGTHS).sum()
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese characters."""


@dataclass(frozen=True, eq=False)
class MaskingVocabulary:
    """Properties of each token that masking needs."""

    mask: int
    ordinary: Int[np.ndarray, " ordinary"]
    """The tokens that are not special."""
    is_ordinary: Bool[np.ndarray, " vocab"]
    begins_inside: Bool[np.ndarray, " vocab"]
    """Whether a token may continue a word; False for special tokens."""
    ends_inside: Bool[np.ndarray, " vocab"]
    """Whether a word may continue after the token; False for special tokens."""


@dataclass(frozen=True)
class Masking:
    """How much is masked, and in which units."""

    share: float
    has_spans: bool
    has_words: bool

    def budget(self, num_tokens: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
        """The largest number of masked tokens: the share of them, but at least one.

        Example:
            >>> Masking(0.15, has_spans=False, has_words=True).budget(np.array([0, 1, 100])).tolist()
            [0, 1, 15]
        """
        return np.minimum(num_tokens, np.maximum(1, np.round(self.share * num_tokens))).astype(np.int64)

    def hide(
        self,
        tokens: Int[np.ndarray, "rows time"],
        vocabulary: MaskingVocabulary,
        rng: np.random.Generator,
        *,
        is_plain: bool = False,
    ) -> tuple[Int[np.ndarray, "rows time"], Bool[np.ndarray, "rows time"]]:
        """The model's input, and which positions are masked; with `is_plain` all of them become the mask token."""
        words = number_words(tokens, vocabulary, is_whole=self.has_words)
        budgets = self.budget((words != NOT_HIDDEN).sum(axis=1))
        spans = choose_spans(words, budgets, rng, has_spans=self.has_spans)
        is_hidden = spans != NOT_HIDDEN
        shown = tokens.copy()
        if is_plain:
            shown[is_hidden] = vocabulary.mask
        else:
            groups = spans[is_hidden] if self.has_spans else np.flatnonzero(is_hidden)
            shown[is_hidden] = disguise(tokens[is_hidden], groups, vocabulary, rng)
        return shown, is_hidden


def number_words(
    tokens: Int[np.ndarray, "rows time"], vocabulary: MaskingVocabulary, *, is_whole: bool = True
) -> Int[np.ndarray, "rows time"]:
    """The index of each position's word, counted from 0 through all rows; `NOT_HIDDEN` for special tokens.

    Without `is_whole` each token is a word.
    """
    is_ordinary = vocabulary.is_ordinary[tokens]
    begins = is_ordinary.copy()
    if is_whole:
        begins[:, 1:] &= ~(vocabulary.ends_inside[tokens[:, :-1]] & vocabulary.begins_inside[tokens[:, 1:]])
    return np.where(is_ordinary, np.cumsum(begins).reshape(tokens.shape) - 1, NOT_HIDDEN)


def choose_spans(
    words: Int[np.ndarray, "rows time"], budgets: Int[np.ndarray, " rows"], rng: np.random.Generator, *, has_spans: bool
) -> Int[np.ndarray, "rows time"]:
    """The span that masks each position, or `NOT_HIDDEN`; in each row whole words are masked, up to its budget.

    Spans begin at words in random order and end early at the budget, at masked words and at special tokens. A word that
    is longer than the whole budget is split into tokens, since it could never be masked.

    Example:
        >>> words = np.array([[-1, 0, 1, 1, 2, 3, -1], [4, 5, 5, 5, 6, 7, -1]])
        >>> (choose_spans(words, np.array([2, 1]), np.random.default_rng(0), has_spans=False) >= 0).astype(int).tolist()
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
    vocabulary: MaskingVocabulary,
    rng: np.random.Generator,
) -> Int[np.ndarray, " hidden"]:
    """What masked tokens are replaced by; the tokens of a group are treated alike."""
    kinds, group = np.unique(groups, return_inverse=True)
    draws = rng.random(len(kinds))[group]
    others = rng.choice(vocabulary.ordinary, size=len(tokens))
    shown = np.where(draws < _SHOWN_AS_MASK + _SHOWN_AS_OTHER, others, tokens)
    return np.where(draws < _SHOWN_AS_MASK, vocabulary.mask, shown)


@lru_cache(maxsize=8)
def vocabulary_of(tokenizer: Tokenizer) -> MaskingVocabulary:
    """Properties of a tokenizer's tokens."""
    if tokenizer.mask is None:
        raise DataError("the tokenizer has no mask token, such as [MASK] or <mask>")
    size = tokenizer.vocab_size
    ordinary = np.array([token for token in range(size) if token not in tokenizer.specials | {tokenizer.mask}])
    is_ordinary = np.zeros(size, bool)
    is_ordinary[ordinary] = True
    begins_inside, ends_inside = np.zeros(size, bool), np.zeros(size, bool)
    for token, text in zip(ordinary.tolist(), texts_within(tokenizer, ordinary.tolist()), strict=True):
        begins_inside[token], ends_inside[token] = _is_inside(text[:1]), _is_inside(text[-1:])
    return MaskingVocabulary(tokenizer.mask, ordinary, is_ordinary, begins_inside, ends_inside)


def texts_within(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The text of each token after another one: with a space before it, where it begins a word.

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
    """Whether a character is part of a word, marks such as accents and vowel signs included."""
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
    """The span that masks each word, or `NOT_HIDDEN`; plain lists, which are faster to iterate over.

    `ends` are the ends of each row's words in `order`.
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
