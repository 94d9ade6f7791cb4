"""Text to token ids."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, get_args

from regard.data.codecs.codec import Codec
from regard.errors import ConfigError
from regard.text.tokenizer import Tokenizer, TokenizerKind, load_tokenizer, train_tokenizer

CHARACTERS_PER_TOKEN, FEWEST_TOKENS, MOST_TOKENS = 400, 512, 32_000
"""The default vocabulary has one token for each 400 characters of data, within these limits."""
_FEWEST_OF_KIND = {"characters": 8_192, "words": 1_024}
"""A script such as Chinese has thousands of characters, and each that is left out cannot be read."""


class TextCodec(Codec):
    """A tokenizer. Its JSON is a `tokenizer.json` in the public layout."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        *,
        kind: str = "bpe",
        num_characters: int | None = None,
        vocab_size: int | None = None,
        complete: Mapping[str, int] | None = None,
        lowercase: bool = False,
    ) -> Self:
        """Train a tokenizer on `texts`, or load the one in the file that `kind` names.

        Args:
            texts: Training texts, or a sample of them.
            kind: bpe, unigram, characters, bytes, words, wordpunct, smiles, selfies, nucleotides,
                amino-acids, or the path of a tokenizer.json.
            num_characters: The size of the data, by which the vocabulary is sized; unset, that of `texts`.
            vocab_size: The largest vocabulary; unset, by `num_characters`.
            complete: Default vocabulary sizes of kinds that are meant to cover all of the data.
            lowercase: Whether texts are lower-cased first.
        """
        if kind not in get_args(TokenizerKind) and Path(kind).suffix == ".json":
            if lowercase:
                raise ConfigError(f"task.lowercase is for tokenizers that are trained, and {kind} is a trained one")
            return cls(load_tokenizer(Path(kind)))
        if num_characters is None:
            texts = list(texts)
            num_characters = sum(map(len, texts))
        fewest = _FEWEST_OF_KIND.get(kind, FEWEST_TOKENS)
        by_amount = min(MOST_TOKENS, max(fewest, num_characters // CHARACTERS_PER_TOKEN))
        size = vocab_size or (complete or {}).get(kind, by_amount)
        known_kind: Any = kind  # validated by train_tokenizer
        # Read back from JSON, which has one digit less of the log-probabilities of unigram.
        return cls.from_json(train_tokenizer(texts, known_kind, size, is_lowercased=lowercase).to_json())

    def describe(self, kind: str) -> str:
        """One line for the log: the kind of tokenizer and the size of its vocabulary."""
        return f"tokenizer {kind}: {self.tokenizer.vocab_size:,} tokens"

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode(values)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.tokenizer.decode(ids)

    def to_json(self) -> str:
        return self.tokenizer.to_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(Tokenizer.from_json(text))
