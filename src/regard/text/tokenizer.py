"""Strings to token ids and back.

    bpe         byte-level byte-pair encoding: any text at all, no unknown token   Sennrich et al. (2016)
    unigram     pieces of a unigram language model                                 Kudo (2018)
    characters  one token a character
    bytes       one token a byte
    words       one token a whitespace-separated word

Hugging Face's `tokenizers` does the work underneath, so any public
`tokenizer.json` loads as well.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import ConfigError, DataError
from regard.settings import nearest

TokenizerKind = Literal["bpe", "unigram", "characters", "bytes", "words"]
Role = Literal["pad", "start", "end", "mask"]
Roles = Mapping[Role, str | Sequence[str]]
"""The token of each role; of several that end a text, the first is the one that is written."""

PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
SPECIALS = (PAD, START, END, UNKNOWN)
_FOREIGN_SPECIALS = {
    PAD: ("[PAD]", "<|pad|>", "<|endoftext|>", END),
    START: ("[CLS]", "<bos>", "<|begin_of_text|>", "<|im_start|>", "<|endoftext|>", PAD),
    END: ("[SEP]", "<eos>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
}
"""What others call these, in order of preference."""
_MASKS, _UNKNOWNS = ("<mask>", "[MASK]"), (UNKNOWN, "[UNK]")
_ROLE = "regard."
"""What the names of roles begin with."""

_REPLACEMENT = "\ufffd"
"""What decoding writes for bytes that are no character, or not yet."""
_MOST_UNFINISHED = 3
"""Bytes that a character can have and be unfinished."""
_TAIL = 8
"""Tokens to decode the next one by: more than a character has bytes."""


class Tokenizer:
    """A vocabulary, and the rules that cut text into its tokens.

    `encode` adds no special tokens of its own: who calls it knows whether a
    sequence starts and ends there.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_padding()
        inner.no_truncation()
        # A text that spells "</s>" is a text, not the end of a sequence.
        inner.encode_special_tokens = True
        self._inner = inner
        roles = _roles_of(inner)
        self.pad, self.start, self.end = (
            roles[role][0] if role in roles else self._special(name)
            for role, name in (("pad", PAD), ("start", START), ("end", END))
        )
        self.ends: frozenset[int] = frozenset(roles.get("end", [self.end]))
        """All that end a text: others' models may have been taught several."""
        self.mask: int | None = roles["mask"][0] if "mask" in roles else _first_known(inner, _MASKS)
        """The token that stands for a hidden one, where there is such a token."""
        around = inner.encode("", add_special_tokens=True)
        self.specials: frozenset[int] = frozenset({self.pad, self.start, *self.ends, *around.ids})
        """What is no text: these, and what the file has put around one."""
        self._special_names = [inner.id_to_token(token) or "" for token in self.specials]
        self._unknown = _first_known(inner, _UNKNOWNS)
        self._is_foreign = bool(roles)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id; others' vocabularies may have holes."""
        return 1 + max(self._inner.get_vocab(with_added_tokens=True).values())

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """What the file has put before each text that is read; nothing for the kinds that are trained here."""
        encoding = self._inner.encode("a", add_special_tokens=True)
        is_added = [*encoding.special_tokens_mask, 0]
        return tuple(encoding.ids[: is_added.index(0)])

    @property
    def opening(self) -> tuple[int, ...]:
        """What a model that others have trained is given before each text, by the rule of its file.

        Nothing for models of our own, whatever their tokenizer: they have learned what their task puts there.
        """
        return self.prefix if self._is_foreign else ()

    def prompt(self, text: str) -> list[int]:
        """The tokens that a language model goes on from: the start token, where the model's own rule is no other."""
        before = self.opening if self._is_foreign and text else (self.start,)
        return [*before, *self.encode([text])[0]] or [self.start]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._as_text(encoding.ids, text) for encoding, text in zip(encodings, texts, strict=True)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The token ids of each text, and for each token the first of its characters and the one behind its last.

        Tokens that are parts of one character have the same offsets.
        """
        encodings = self._inner.encode_batch(list(texts), add_special_tokens=False)
        return [
            (self._as_text(encoding.ids, text), encoding.offsets)
            for encoding, text in zip(encodings, texts, strict=True)
        ]

    def decode(self, sequences: Iterable[Sequence[int]]) -> list[str]:
        """The text of each sequence, special tokens left out."""
        kept = [[token for token in ids if token not in self.specials] for ids in sequences]
        return self._inner.decode_batch(kept, skip_special_tokens=False)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself.

        A token that holds only part of a character shows as its name in the vocabulary.
        """
        names = [self._inner.id_to_token(token) or "" for token in ids]
        texts = self._inner.decode_batch([[token] for token in ids], skip_special_tokens=False)
        return [
            name if token in self.specials or _REPLACEMENT in text or not text else text
            for token, name, text in zip(ids, names, texts, strict=True)
        ]

    def count_unknown(self, sequences: Iterable[Sequence[int]]) -> int:
        """How many tokens stand for something the vocabulary does not have."""
        return 0 if self._unknown is None else sum(list(ids).count(self._unknown) for ids in sequences)

    def to_json(self) -> str:
        """The whole tokenizer in the public `tokenizer.json` layout."""
        return self._inner.to_str(pretty=False)

    @classmethod
    def from_json(cls, text: str, *, name: str = "tokenizer.json", roles: Roles | None = None) -> "Tokenizer":
        """Read the public layout; `roles` are those of `with_roles`, for a file whose tokens have other names."""
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for whatever it cannot parse
            raise DataError(f"{name} is not a tokenizer: {error}") from None
        return cls(_with_roles(inner, roles) if roles else inner)

    def with_roles(self, roles: Roles) -> "Tokenizer":
        """The same tokenizer, in which these tokens pad, start, end and mask; `to_json` keeps that."""
        return Tokenizer(_with_roles(self._inner, roles)) if roles else self

    def _as_text(self, ids: list[int], text: str) -> list[int]:
        """The ids without special ones: what is spelled as one, and has no other id, is unknown."""
        if self._unknown is None or not any(name in text for name in self._special_names):
            return ids
        return [self._unknown if token in self.specials else token for token in ids]

    def _special(self, name: str) -> int:
        for candidate in (name, *_FOREIGN_SPECIALS[name]):
            token = self._inner.token_to_id(candidate)
            if token is not None:
                return token
        raise DataError(
            f"the tokenizer has no token for {name}, under that name or {', '.join(_FOREIGN_SPECIALS[name])}"
        )


class TextStreamer:
    """Text while it is being written, token by token.

    A token may hold part of a character only, so `add` returns what no later token can
    change, and `flush` the rest; all of it together is what `decode` makes of the whole
    sequence. Only a short tail of the tokens is kept to decode the next one by.

    Example:
        >>> tokenizer = train_tokenizer([], "bytes", 300)
        >>> streamer = TextStreamer(tokenizer)
        >>> [streamer.add(token) for token in tokenizer.encode(["né"])[0]]
        ['n', '', 'é']
        >>> streamer.flush()
        ''
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tail: list[int] = []
        self._num_shown = 0
        """Characters of the tail's text that were returned."""

    def add(self, token: int) -> str:
        """The text that is certain now and was not before."""
        if token in self._tokenizer.specials:
            return ""
        self._tail.append(token)
        waiting = self._text(self._tail)[self._num_shown :]
        num_certain = max(len(waiting.rstrip(_REPLACEMENT)), len(waiting) - _MOST_UNFINISHED)
        self._num_shown += num_certain
        if len(self._tail) > 2 * _TAIL:
            self._shorten_tail(waiting[num_certain:])
        return waiting[:num_certain]

    def flush(self) -> str:
        """What was held back; another sequence may begin afterwards."""
        rest = self._text(self._tail)[self._num_shown :]
        self._tail, self._num_shown = [], 0
        return rest

    def _shorten_tail(self, waiting: str) -> None:
        """Forget what no longer matters: without it the tail may begin inside a character, but ends the same."""
        text = self._text(self._tail[-_TAIL:])
        if text.endswith(waiting):
            self._tail = self._tail[-_TAIL:]
            self._num_shown = len(text) - len(waiting)

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode([ids])[0]


def _first_known(inner: tokenizers.Tokenizer, names: Iterable[str]) -> int | None:
    return next((token for token in map(inner.token_to_id, names) if token is not None), None)


def _with_roles(inner: tokenizers.Tokenizer, roles: Roles) -> tokenizers.Tokenizer:
    """The same tokenizer, whose file says which tokens have these roles.

    The public layout has no place for that. So there stands a template in it that
    knows these tokens by their roles, and puts none of them anywhere.
    """
    layout = json.loads(inner.to_str())
    parts = _processors(layout["post_processor"])
    table = next((part["special_tokens"] for part in parts if _names_roles(part)), {})
    for role, given in roles.items():
        tokens = [given] if isinstance(given, str) else list(given)
        ids = [inner.token_to_id(token) for token in tokens]
        if None in ids:
            raise DataError(f"{tokens[ids.index(None)]!r} is the {role} token, but the tokenizer has no such token")
        table[_ROLE + role] = {"id": _ROLE + role, "ids": ids, "tokens": tokens}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    template = {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": table}
    others = [part for part in parts if not _names_roles(part)]
    layout["post_processor"] = {"type": "Sequence", "processors": [template, *others]}
    return tokenizers.Tokenizer.from_str(json.dumps(layout, ensure_ascii=False))


def _roles_of(inner: tokenizers.Tokenizer) -> dict[str, list[int]]:
    """The tokens that `_with_roles` has named."""
    if inner.post_processor is None:
        return {}
    parts = _processors(json.loads(inner.post_processor.__getstate__()))
    table = next((part["special_tokens"] for part in parts if _names_roles(part)), {})
    return {name.removeprefix(_ROLE): entry["ids"] for name, entry in table.items()}


def _processors(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What stands around texts, part by part."""
    if part is None:
        return []
    return part["processors"] if part["type"] == "Sequence" else [part]


def _names_roles(part: dict[str, Any]) -> bool:
    return any(name.startswith(_ROLE) for name in part.get("special_tokens", {}))


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a public `tokenizer.json`."""
    try:
        return Tokenizer.from_json(path.read_text(encoding="utf-8"), name=str(path))
    except FileNotFoundError:
        raise DataError(f"no tokenizer at {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read a tokenizer from {path}: {error}") from None


def train_tokenizer(
    texts: Iterable[str], kind: TokenizerKind, vocab_size: int, *, is_lowercased: bool = False
) -> Tokenizer:
    """Learn a vocabulary of at most `vocab_size` tokens, the special ones included.

    Example:
        >>> train_tokenizer(["To be"], "words", 10, is_lowercased=True).encode(["TO BE", "to be"])
        [[5, 4], [5, 4]]
    """
    kinds = get_args(TokenizerKind)
    if kind not in kinds:
        raise ConfigError(f"no kind of tokenizer is called {kind!r}{nearest(kind, kinds)}")
    if vocab_size <= len(SPECIALS):
        raise ConfigError(f"vocab_size must exceed the {len(SPECIALS)} special tokens, got {vocab_size}")
    inner, trainer = _UNTRAINED[kind](vocab_size)
    if is_lowercased:
        inner.normalizer = normalizers.Lowercase()
    if trainer is None:
        inner.add_special_tokens(list(SPECIALS))
    else:
        texts = map(_without_specials, texts) if kind == "words" else texts
        _learn(inner, trainer, texts, kind, vocab_size)
    return Tokenizer(inner)


def _without_specials(text: str) -> str:
    """The text without the words that spell special tokens: these have ids, and would be given others."""
    if not any(name in text for name in SPECIALS):
        return text
    return " ".join(word for word in text.split() if word not in SPECIALS)


def _learn(inner: tokenizers.Tokenizer, trainer: Any, texts: Iterable[str], kind: str, vocab_size: int) -> None:
    try:
        inner.train_from_iterator(texts, trainer)
    except Exception as error:
        if "not large enough" not in str(error):  # the library raises bare Exception
            raise
        raise ConfigError(
            f"a {kind} vocabulary needs a token for each character of the data, vocab_size={vocab_size} is too small"
        ) from None


def _bpe(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(SPECIALS):
        raise ConfigError(
            f"byte-level BPE needs a vocab_size of at least {len(alphabet) + len(SPECIALS)}, "
            f"one for each byte and special token, got {vocab_size}"
        )
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIALS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    return inner, trainer


def _unigram(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    inner.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIALS), unk_token=UNKNOWN, show_progress=False
    )
    return inner, trainer


def _characters(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=list(SPECIALS), show_progress=False)
    return inner, trainer


def _bytes(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIALS, *alphabet])}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner, None


def _words(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=list(SPECIALS), show_progress=False)
    return inner, trainer


_UNTRAINED = {"bpe": _bpe, "unigram": _unigram, "characters": _characters, "bytes": _bytes, "words": _words}
