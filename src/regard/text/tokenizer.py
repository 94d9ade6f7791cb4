"""Tokenizers: strings to token ids and back.

    bpe         byte-level byte-pair encoding: encodes any text, no unknown token   Sennrich et al. (2016)
    unigram     pieces of a unigram language model                                  Kudo (2018)
    characters  one token for each character
    bytes       one token for each byte
    words       one token for each whitespace-separated word
    wordpunct   one token for each word and each punctuation mark; other words are split into frequent pieces
    smiles      one token for each atom, bond, branch and ring of a molecule
    selfies     one token for each symbol in brackets
    nucleotides, amino-acids
                one token for each letter of a fixed alphabet

They are implemented by Hugging Face's `tokenizers`, so any public `tokenizer.json` can be loaded.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import ConfigError, DataError
from regard.settings import nearest
from regard.text.alphabets import AMINO_ACIDS, NUCLEOTIDES, SELFIES_TOKEN, SMILES_TOKEN

TokenizerKind = Literal[
    "bpe", "unigram", "characters", "bytes", "words", "wordpunct", "smiles", "selfies", "nucleotides", "amino-acids"
]
TokenRole = Literal["pad", "start", "end", "mask"]
TokenRoles = Mapping[TokenRole, str | Sequence[str]]
"""The token of each role. Several tokens may end a text; the first of them is the one that is written."""

PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
SPECIAL_TOKENS = (PAD, START, END, UNKNOWN)
_FOREIGN_SPECIALS = {
    PAD: ("[PAD]", "<|pad|>", "<|endoftext|>", END),
    START: ("[CLS]", "<bos>", "<|begin_of_text|>", "<|im_start|>", "<|endoftext|>", PAD),
    END: ("[SEP]", "<eos>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
}
"""Names of the same tokens in public tokenizers, in order of preference."""
_MASKS, _UNKNOWNS = ("<mask>", "[MASK]"), (UNKNOWN, "[UNK]")
_ROLE = "regard."
"""Prefix of the names under which roles are stored in `tokenizer.json`."""

CONTINUED = "##"
"""Prefix of the pieces inside a word."""
_FEWEST_WORDS, _LONGEST_PIECE, _PIECES_SHARE = 3, 5, 4
"""Pieces are shared by so many words, have at most so many characters, and are a fourth of a vocabulary."""

_ALPHABETS = {"nucleotides": NUCLEOTIDES, "amino-acids": AMINO_ACIDS}
_PATTERNS = {"characters": "", "smiles": f"{SMILES_TOKEN}|", "selfies": f"{SELFIES_TOKEN}|"}
"""What a token is, where it is not a single character."""
_REPLACEMENT = "\ufffd"
"""Decoded in place of bytes that are not, or not yet, a complete character."""
_MAX_INCOMPLETE = 3
"""The most bytes of an incomplete UTF-8 character."""
_TAIL = 8
"""Tokens decoded together with the next one: more than the bytes of a character."""


class Tokenizer:
    """A vocabulary, and the rules that split text into its tokens.

    `encode` adds no special tokens: the caller decides whether a sequence starts and ends there.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_padding()
        inner.no_truncation()
        # The text "</s>" is ordinary text, not the end of a sequence.
        inner.encode_special_tokens = True
        self._inner = inner
        roles = _roles_of(inner)
        self.pad, self.start, self.end = (
            roles[role][0] if role in roles else self._special(name)
            for role, name in (("pad", PAD), ("start", START), ("end", END))
        )
        self.ends: frozenset[int] = frozenset(roles.get("end", [self.end]))
        """All tokens that end a text; imported models may have several."""
        self.mask: int | None = roles["mask"][0] if "mask" in roles else _first_known(inner, _MASKS)
        """The token that replaces a masked one, if the vocabulary has it."""
        around = inner.encode("", add_special_tokens=True)
        self.specials: frozenset[int] = frozenset({self.pad, self.start, *self.ends, *around.ids})
        """Ids that are not text: the above, and the tokens that the post-processor of the file adds."""
        self._special_names = [inner.id_to_token(token) or "" for token in self.specials]
        self._unknown = _first_known(inner, _UNKNOWNS)
        self._is_foreign = bool(roles)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id; the ids of a public vocabulary need not be contiguous."""
        return 1 + max(self._inner.get_vocab(with_added_tokens=True).values())

    @cached_property
    def never_generated(self) -> tuple[int, ...]:
        """Ids that no generated text has: special tokens that do not end a text, the mask and the unknown token."""
        others = {token for token in (self.mask, self._unknown) if token is not None}
        return tuple(sorted((self.specials | others) - self.ends))

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that the post-processor of the file adds before each text; none for tokenizers trained here."""
        encoding = self._inner.encode("a", add_special_tokens=True)
        is_added = [*encoding.special_tokens_mask, 0]
        return tuple(encoding.ids[: is_added.index(0)])

    @property
    def opening(self) -> tuple[int, ...]:
        """The tokens that an imported model expects before each text, by the rule of its file.

        Empty for models trained here, whatever their tokenizer: their task adds the tokens they were trained with.
        """
        return self.prefix if self._is_foreign else ()

    def prompt(self, text: str) -> list[int]:
        """The tokens from which a language model generates: `opening` or the start token, and the text."""
        before = self.opening if self._is_foreign and text else (self.start,)
        return [*before, *self.encode([text])[0]] or [self.start]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._as_text(encoding.ids, text) for encoding, text in zip(encodings, texts, strict=True)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The token ids of each text, and for each token the range `[start, end)` of its characters.

        Tokens that are parts of one character have the same range.
        """
        encodings = self._inner.encode_batch(list(texts), add_special_tokens=False)
        return [
            (self._as_text(encoding.ids, text), encoding.offsets)
            for encoding, text in zip(encodings, texts, strict=True)
        ]

    def decode(self, sequences: Iterable[Sequence[int]]) -> list[str]:
        """The text of each sequence, without special tokens."""
        kept = [[token for token in ids if token not in self.specials] for ids in sequences]
        return self._inner.decode_batch(kept, skip_special_tokens=False)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each single token.

        For a token that is only part of a character, this is its name in the vocabulary.
        """
        names = [self._inner.id_to_token(token) or "" for token in ids]
        texts = self._inner.decode_batch([[token] for token in ids], skip_special_tokens=False)
        return [
            name if token in self.specials or _REPLACEMENT in text or not text else text
            for token, name, text in zip(ids, names, texts, strict=True)
        ]

    def count_unknown(self, sequences: Iterable[Sequence[int]]) -> int:
        """The number of unknown tokens."""
        return 0 if self._unknown is None else sum(list(ids).count(self._unknown) for ids in sequences)

    def to_json(self) -> str:
        """The tokenizer as the content of a public `tokenizer.json`."""
        return self._inner.to_str(pretty=False)

    @classmethod
    def from_json(cls, text: str, *, name: str = "tokenizer.json", roles: TokenRoles | None = None) -> "Tokenizer":
        """Read a public `tokenizer.json`; `roles` name its special tokens, and are kept by `to_json`."""
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for whatever it cannot parse
            raise DataError(f"{name} is not a tokenizer: {error}") from None
        return cls(_with_roles(inner, roles) if roles else inner)

    def _as_text(self, ids: list[int], text: str) -> list[int]:
        """The ids without special ones: text that spells a special token, and has no other id, is unknown."""
        if self._unknown is None or not any(name in text for name in self._special_names):
            return ids
        return [self._unknown if token in self.specials else token for token in ids]

    def _special(self, name: str) -> int:
        for candidate in (name, *_FOREIGN_SPECIALS[name]):
            token = self._inner.token_to_id(candidate)
            if token is not None:
                return token
        raise DataError(f"the tokenizer must have a token {name}, or one of {', '.join(_FOREIGN_SPECIALS[name])}")


class TextStreamer:
    """Decodes a sequence while it is generated, token by token.

    A token may be only part of a character, so `add` returns the text that no later token can change, and `flush` the
    rest; concatenated, they equal the result of `decode` for the whole sequence. Only a short tail of the tokens is
    kept for decoding the next one.

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
        """Characters of the tail that were returned already."""

    def add(self, token: int) -> str:
        """Add a token and return the text that it completes."""
        if token in self._tokenizer.specials:
            return ""
        self._tail.append(token)
        waiting = self._text(self._tail)[self._num_shown :]
        num_certain = max(len(waiting.rstrip(_REPLACEMENT)), len(waiting) - _MAX_INCOMPLETE)
        self._num_shown += num_certain
        if len(self._tail) > 2 * _TAIL:
            self._shorten_tail(waiting[num_certain:])
        return waiting[:num_certain]

    def flush(self) -> str:
        """Return the remaining text and reset, so that another sequence may begin."""
        rest = self._text(self._tail)[self._num_shown :]
        self._tail, self._num_shown = [], 0
        return rest

    def _shorten_tail(self, waiting: str) -> None:
        """Drop old tokens if the text still ends the same; the shorter tail may begin inside a character."""
        text = self._text(self._tail[-_TAIL:])
        if text.endswith(waiting):
            self._tail = self._tail[-_TAIL:]
            self._num_shown = len(text) - len(waiting)

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode([ids])[0]


def _first_known(inner: tokenizers.Tokenizer, names: Iterable[str]) -> int | None:
    return next((token for token in map(inner.token_to_id, names) if token is not None), None)


def _with_roles(inner: tokenizers.Tokenizer, roles: TokenRoles) -> tokenizers.Tokenizer:
    """The same tokenizer, with the roles of these tokens stored in its file.

    The public layout has no field for roles, so they are stored in a post-processing template that lists these tokens
    under the names of their roles and adds none of them.
    """
    layout = json.loads(inner.to_str())
    table, others = _split_processors(layout["post_processor"])
    for role, given in roles.items():
        tokens = [given] if isinstance(given, str) else list(given)
        ids = [inner.token_to_id(token) for token in tokens]
        if None in ids:
            raise DataError(f"the {role} token {tokens[ids.index(None)]!r} is not in the vocabulary of the tokenizer")
        table[_ROLE + role] = {"id": _ROLE + role, "ids": ids, "tokens": tokens}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    template = {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": table}
    layout["post_processor"] = {"type": "Sequence", "processors": [template, *others]}
    return tokenizers.Tokenizer.from_str(json.dumps(layout, ensure_ascii=False))


def _roles_of(inner: tokenizers.Tokenizer) -> dict[str, list[int]]:
    """The roles that `_with_roles` stored."""
    state = None if inner.post_processor is None else json.loads(inner.post_processor.__getstate__())
    return {name.removeprefix(_ROLE): entry["ids"] for name, entry in _split_processors(state)[0].items()}


def _split_processors(whole: dict[str, Any] | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The table of roles in a post-processor, and its other parts."""
    parts = [] if whole is None else whole["processors"] if whole["type"] == "Sequence" else [whole]
    tables = [part.get("special_tokens", {}) for part in parts]
    has_roles = [any(name.startswith(_ROLE) for name in table) for table in tables]
    table = next((table for table, has in zip(tables, has_roles, strict=True) if has), {})
    return table, [part for part, has in zip(parts, has_roles, strict=True) if not has]


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a public `tokenizer.json`."""
    try:
        return Tokenizer.from_json(path.read_text(encoding="utf-8"), name=str(path))
    except FileNotFoundError:
        raise DataError(f"there is no tokenizer {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the tokenizer {path}: {error}") from None


def train_tokenizer(
    texts: Iterable[str], kind: TokenizerKind, vocab_size: int, *, is_lowercased: bool = False
) -> Tokenizer:
    """Train a tokenizer with a vocabulary of at most `vocab_size` tokens, including the special ones.

    Example:
        >>> train_tokenizer(["To be"], "words", 10, is_lowercased=True).encode(["TO BE", "to be"])
        [[5, 4], [5, 4]]
    """
    kinds = get_args(TokenizerKind)
    if kind not in kinds:
        raise ConfigError(f"unknown kind of tokenizer {kind!r}{nearest(kind, kinds)}")
    if vocab_size <= len(SPECIAL_TOKENS):
        raise ConfigError(f"vocab_size must exceed the {len(SPECIAL_TOKENS)} special tokens, got {vocab_size}")
    inner, trainer = _untrained(kind, vocab_size)
    if is_lowercased:
        inner.normalizer = normalizers.Lowercase()
    if trainer is None:
        inner.add_special_tokens(list(SPECIAL_TOKENS))
        return Tokenizer(inner)
    try:
        inner.train_from_iterator(map(_without_specials, texts) if kind in ("words", "wordpunct") else texts, trainer)
    except Exception as error:
        if "not large enough" not in str(error):  # the library raises bare Exception
            raise
        raise ConfigError(
            f"a {kind} vocabulary needs one token for each distinct character of the data, got {vocab_size=}"
        ) from None
    if kind == "wordpunct":
        _add_pieces(inner, vocab_size)
    return Tokenizer(inner)


def size_with_pieces(num_words: int) -> int:
    """The size of a `wordpunct` vocabulary that has at least so many words, beside special tokens and pieces.

    Example:
        >>> size = size_with_pieces(18)
        >>> size - size // 4 - len(SPECIAL_TOKENS) >= 18
        True
    """
    return -(-_PIECES_SHARE * (num_words + len(SPECIAL_TOKENS)) // (_PIECES_SHARE - 1))


def _add_pieces(inner: tokenizers.Tokenizer, vocab_size: int) -> None:
    """Beside words, the vocabulary gets pieces that many of them share, for words that it does not have.

    Wu et al., "Google's Neural Machine Translation System" (2016), section 4.1, for how a word is split.
    https://arxiv.org/abs/1609.08144
    """
    ids = inner.get_vocab(with_added_tokens=True)
    names = sorted(ids, key=lambda name: ids[name])
    words = [name for name in names if name not in SPECIAL_TOKENS]
    counts = Counter(piece for word in words for piece in _pieces_of(word))
    known = set(words)
    frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
    shared = [piece for piece in frequent if counts[piece] >= _FEWEST_WORDS and piece not in known]
    pieces = shared[: vocab_size // _PIECES_SHARE]
    kept = [*SPECIAL_TOKENS, *words[: vocab_size - len(SPECIAL_TOKENS) - len(pieces)], *pieces]
    inner.model = models.WordPiece(
        vocab={name: index for index, name in enumerate(kept)}, unk_token=UNKNOWN, continuing_subword_prefix=CONTINUED
    )
    inner.decoder = decoders.WordPiece(prefix=CONTINUED, cleanup=False)


def _pieces_of(word: str) -> set[str]:
    """The beginnings of a word, and its other parts, which are marked."""
    longest = range(1, _LONGEST_PIECE + 1)
    first = {word[:size] for size in longest if size < len(word)}
    return first | {
        CONTINUED + word[start : start + size] for size in longest for start in range(1, len(word) - size + 1)
    }


def _without_specials(text: str) -> str:
    """The text without words that spell special tokens, which have ids and would get a second one."""
    if not any(name in text for name in SPECIAL_TOKENS):
        return text
    return " ".join(word for word in text.split() if word not in SPECIAL_TOKENS)


def _untrained(kind: TokenizerKind, vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    """A tokenizer without a vocabulary and its trainer; None for bytes and letters, whose vocabulary is fixed."""
    alphabet, specials = pre_tokenizers.ByteLevel.alphabet(), list(SPECIAL_TOKENS)
    options: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": specials, "show_progress": False}
    if kind == "bpe":
        if vocab_size < len(alphabet) + len(specials):
            raise ConfigError(
                f"vocab_size of byte-level BPE must be at least {len(alphabet) + len(specials)}, one for each byte and "
                f"special token, got {vocab_size}"
            )
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        return inner, trainers.BpeTrainer(min_frequency=2, initial_alphabet=alphabet, **options)
    if kind == "bytes":
        vocabulary = {token: index for index, token in enumerate([*specials, *sorted(alphabet)])}
        inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        return inner, None
    if kind == "unigram":
        inner = tokenizers.Tokenizer(models.Unigram())
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        inner.decoder = decoders.Metaspace(prepend_scheme="always")
        return inner, trainers.UnigramTrainer(unk_token=UNKNOWN, **options)
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    if kind in _ALPHABETS:
        letters = {token: index for index, token in enumerate([*specials, *_ALPHABETS[kind]])}
        inner = tokenizers.Tokenizer(models.WordLevel(letters, unk_token=UNKNOWN))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        inner.decoder = decoders.Fuse()
        return inner, None
    if kind in _PATTERNS:
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{_PATTERNS[kind]}[\s\S]"), behavior="isolated")
        inner.decoder = decoders.Fuse()
    elif kind == "wordpunct":
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner, trainers.WordLevelTrainer(**options)
