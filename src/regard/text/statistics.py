"""Which kind of tokenizer suits some texts, by simple statistics of a sample of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.text.alphabets import SequenceKind, describe_kind, sequence_kind
from regard.text.tokenizer import TokenizerKind, train_tokenizer

_CLOSED_WORDS, _CLOSED_UNSEEN = 1_000, 0.001
"""A closed set of symbols has at most so many words, and words that the first half of the sample lacks are rarer."""
_ONE_WORD, _SHORT_CHARACTERS = 1.5, 20
"""Texts with fewer words on average are single words where they have fewer characters, and else lack their spaces."""
_UNSPACED_SHARE, _UNSPACED_CHARACTERS = 0.3, 60
_LEAST_TEXTS = 20
"""Fewer texts have no statistics to go by."""
# Chinese and Japanese characters, Thai, Lao, Khmer and Burmese: scripts that put no space between words.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")


@dataclass(frozen=True)
class TextStatistics:
    """Statistics of a sample of texts."""

    num_texts: int
    mean_words: float
    """Words separated by spaces."""
    mean_characters: float
    num_distinct: int
    """Distinct words."""
    unseen_share: float
    """The share of the words of every other text that none of the other texts has."""
    unspaced_share: float
    """The share of characters of scripts without spaces between words."""
    sequences: SequenceKind | None = None
    """What kind of sequences the texts are, where they are not words."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> "TextStatistics":
        """The statistics of these texts."""
        split = [text.split() for text in texts]
        known = {word for words in split[::2] for word in words}
        others = [word for words in split[1::2] for word in words]
        num_texts, num_characters = max(1, len(texts)), max(1, sum(map(len, texts)))
        return cls(
            num_texts=len(texts),
            mean_words=sum(map(len, split)) / num_texts,
            mean_characters=num_characters / num_texts,
            num_distinct=len(known.union(others)),
            unseen_share=sum(word not in known for word in others) / max(1, len(others)),
            unspaced_share=sum(len(_UNSPACED.findall(text)) for text in texts) / num_characters,
            sequences=sequence_kind(texts),
        )

    @property
    def are_symbols(self) -> bool:
        """Whether the words are a closed set of symbols, such as phonemes, commands or tags."""
        return (
            self.num_texts >= _LEAST_TEXTS
            and self.mean_words > _ONE_WORD
            and self.num_distinct <= _CLOSED_WORDS
            and self.unseen_share <= _CLOSED_UNSEEN
        )

    @property
    def are_single_words(self) -> bool:
        """Whether most texts are one word, or a number."""
        return self.mean_words <= _ONE_WORD and self.mean_characters <= _SHORT_CHARACTERS and not self.is_unspaced

    @property
    def is_unspaced(self) -> bool:
        """Whether the texts are in a script without spaces between words."""
        return self.unspaced_share > _UNSPACED_SHARE


def choose_tokenizer(statistics: TextStatistics) -> tuple[TokenizerKind, str]:
    """The kind of tokenizer for texts with these statistics, and the reason.

    Example:
        >>> choose_tokenizer(TextStatistics.of(["house", "mouse", "blouse"] * 10))
        ('characters', 'single words')
        >>> choose_tokenizer(TextStatistics.of(["jump twice", "walk", "walk twice", "jump"] * 10))
        ('characters', 'single words')
        >>> choose_tokenizer(TextStatistics.of(["jump twice and walk", "walk and jump"] * 10))
        ('words', 'a closed set of 4 words')
        >>> choose_tokenizer(TextStatistics.of(["thewordsofthissentence", "andthoseofanotherone"] * 10))
        ('unigram', 'long texts without spaces between words')
    """
    if statistics.sequences is not None:
        return statistics.sequences, describe_kind(statistics.sequences)
    if statistics.are_single_words:
        return "characters", "single words"
    if statistics.are_symbols:
        return "words", f"a closed set of {statistics.num_distinct:,} words"
    if statistics.is_unspaced:
        if statistics.mean_characters <= _UNSPACED_CHARACTERS:
            return "characters", "short texts without spaces between words"
        return "unigram", "texts without spaces between words"
    if statistics.mean_words <= _ONE_WORD:
        return "unigram", "long texts without spaces between words"
    return "bpe", "texts of several words"


def characters_per_token(texts: Sequence[str], vocab_size: int) -> float:
    """The characters of a token, on average, of a byte-level BPE that is trained on these texts.

    Names that are put together from a few words have long tokens.

    Example:
        >>> characters_per_token(["twenty-one", "twenty-two", "thirty-one", "thirty-two"] * 9, 300)
        3.3333333333333335
    """
    tokenizer = train_tokenizer(texts, "bpe", vocab_size)
    return sum(map(len, texts)) / max(1, sum(map(len, tokenizer.encode(texts))))
