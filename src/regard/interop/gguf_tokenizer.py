"""Vocabularies as GGUF and llama2.c files hold them, as tokenizers of the public layout, and back.

    gpt2    byte-level byte-pair encoding: tokens, merges, and how a text is split before   Radford et al. (2019)
    llama   SentencePiece's byte-pair encoding: pieces with scores, bytes for the rest      Kudo & Richardson (2018)
    bert    WordPiece: the longest beginning of a word, then the longest of its rest        Devlin et al. (2018)

A SentencePiece vocabulary has no merges: two neighbors are joined where the
whole is a piece, the one with the best score first. The merges that say the
same are all ways to cut a piece into two, by the score of the piece.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import ConfigError, DataError
from regard.logging import log_warning
from regard.settings import nearest
from regard.text.tokenizer import Role, Tokenizer

_SPACE = "\u2581"
"""How SentencePiece writes a space."""
_PREFIX = "tokenizer.ggml."
_ROLES: dict[Role, tuple[str, ...]] = {
    "start": ("bos_token_id", "cls_token_id"),
    "end": ("eos_token_id", "seperator_token_id"),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
}
"""Where a file says which token has which role; the spelling is GGUF's."""


class Kind(IntEnum):
    """What a token is for, in GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The tokens in order of their ids, and what is known of them."""

    tokens: list[str]
    kinds: list[int]
    merges: list[tuple[str, str]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.kinds) != len(self.tokens):
            raise DataError(f"each token has a kind, got {len(self.tokens):,} tokens and {len(self.kinds):,} kinds")
        token, times = Counter(self.tokens).most_common(1)[0] if self.tokens else ("", 0)
        if times != 1:
            raise DataError(f"a vocabulary has each token once, got {token!r} {times} times")

    @property
    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def of_kind(self, *kinds: Kind) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]


_MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), byte_level])


def _splitting(name: str) -> pre_tokenizers.PreTokenizer:
    """What cuts a text into the stretches that merges do not cross."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    match name:
        case "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais":
            return byte_level
        case "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone":
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        case "llama-bpe" | "llama3" | "llama-v3":
            return _split(_MODERN.format(digits=r"\p{N}{1,3}"))
        case "qwen2" | "stablelm2" | "deepseek-r1-qwen":
            return _split(_MODERN.format(digits=r"\p{N}"))
    raise ConfigError(f"no way to split a text is known by the name {name!r}{nearest(name, SPLITTINGS)}")


SPLITTINGS = ("gpt-2", "smollm", "llama-bpe", "qwen2")
"""The names that are written; those of other models mean the same as one of these."""


def byte_level_tokenizer(vocabulary: Vocabulary, splitting: str) -> tokenizers.Tokenizer:
    """Byte-level byte-pair encoding; `splitting` is what GGUF calls the pre-tokenizer."""
    pre_tokenizer = _splitting(splitting)
    # Such tokenizers take a stretch that is a token as that token, whatever the merges say.
    whole = splitting.startswith("llama")
    inner = tokenizers.Tokenizer(_bpe(vocabulary, vocabulary.merges, ignore_merges=whole))
    inner.normalizer = normalizers.NFC() if splitting == "qwen2" else None
    inner.pre_tokenizer = pre_tokenizer
    inner.decoder = decoders.ByteLevel()
    return _with_added(inner, vocabulary)


def sentencepiece_tokenizer(vocabulary: Vocabulary, *, has_prefix: bool = True) -> tokenizers.Tokenizer:
    """SentencePiece's byte-pair encoding; with `has_prefix`, a text is read as if a space stood before it."""
    unknown = next(iter(vocabulary.of_kind(Kind.UNKNOWN)), None)
    has_bytes = bool(vocabulary.of_kind(Kind.BYTE))
    model = _bpe(vocabulary, _merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    inner = tokenizers.Tokenizer(model)
    spaces: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    inner.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", _SPACE)])
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return _with_added(inner, vocabulary)


def wordpiece_tokenizer(vocabulary: Vocabulary, *, first: str, last: str) -> tokenizers.Tokenizer:
    """BERT's tokenizer, which puts `first` and `last` around a text.

    GGUF marks the beginnings of words, BERT the rest. A vocabulary without capitals is one of small letters.
    """
    tokens = [_as_bert(token) for token in vocabulary.tokens]
    is_small = not any(token[:1].isupper() for token in tokens)
    unknown = next(iter(vocabulary.of_kind(Kind.UNKNOWN)), "[UNK]")
    ids = {token: index for index, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(models.WordPiece(vocab=ids, unk_token=unknown))
    inner.normalizer = normalizers.BertNormalizer(lowercase=is_small)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    around = [(token, vocabulary.ids[token]) for token in (first, last)]
    pair = [first, "$A", last, "$B:1", f"{last}:1"]
    inner.post_processor = processors.TemplateProcessing(single=pair[:3], pair=pair, special_tokens=around)
    return _with_added(inner, vocabulary)


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes."""
    name = metadata.get(f"{_PREFIX}model")
    if name not in _READERS:
        raise ConfigError(f"a tokenizer of the kind {name!r} cannot be read; known: {', '.join(_READERS)}")
    tokens = _list(metadata, "tokens", str)
    has_kinds = f"{_PREFIX}token_type" in metadata
    kinds = _list(metadata, "token_type", int) if has_kinds else [int(Kind.NORMAL)] * len(tokens)
    roles = _roles(metadata, tokens)
    inner = _READERS[name](Vocabulary(tokens, kinds), metadata, roles)
    return Tokenizer.from_json(inner.to_str(), roles=roles)


def _read_byte_level(
    vocabulary: Vocabulary, metadata: Mapping[str, Any], roles: Mapping[Role, str]
) -> tokenizers.Tokenizer:
    splitting = metadata.get(f"{_PREFIX}pre")
    if splitting is None:
        log_warning("the file does not say how a text is split before it is merged: it is split as GPT-2 does")
    merges = [_pair(merge) for merge in _list(metadata, "merges", str)]
    inner = byte_level_tokenizer(replace(vocabulary, merges=merges), str(splitting or "gpt-2"))
    is_started = metadata.get(f"{_PREFIX}add_bos_token", str(splitting).startswith("llama"))
    return started(inner, roles.get("start")) if is_started else inner


def _read_sentencepiece(
    vocabulary: Vocabulary, metadata: Mapping[str, Any], roles: Mapping[Role, str]
) -> tokenizers.Tokenizer:
    scores, has_prefix = _list(metadata, "scores", float), metadata.get(f"{_PREFIX}add_space_prefix", True)
    inner = sentencepiece_tokenizer(replace(vocabulary, scores=scores), has_prefix=bool(has_prefix))
    return started(inner, roles.get("start")) if metadata.get(f"{_PREFIX}add_bos_token", True) else inner


def _read_wordpiece(
    vocabulary: Vocabulary, metadata: Mapping[str, Any], roles: Mapping[Role, str]
) -> tokenizers.Tokenizer:
    if "start" not in roles or "end" not in roles:
        raise DataError("the file does not say which tokens stand before and behind a text")
    return wordpiece_tokenizer(vocabulary, first=roles["start"], last=roles["end"])


_READERS = {"gpt2": _read_byte_level, "llama": _read_sentencepiece, "bert": _read_wordpiece}
"""By what GGUF calls the kinds of tokenizers."""


def started(inner: tokenizers.Tokenizer, start: str | None) -> tokenizers.Tokenizer:
    """The tokenizer, which puts the start token before a text, where there is one."""
    if start is not None:
        known = [(start, inner.token_to_id(start))]
        inner.post_processor = processors.TemplateProcessing(
            single=[start, "$A"], pair=[start, "$A", "$B"], special_tokens=known
        )
    return inner


def metadata_from_tokenizer(tokenizer: Tokenizer, *, starts_texts: bool) -> dict[str, Any]:
    """What a GGUF file says of a tokenizer; with `starts_texts`, that a text is read with the start token before it."""
    layout = json.loads(tokenizer.to_json())
    model, added = layout["model"], layout["added_tokens"]
    if model["type"] != "BPE":
        raise ConfigError(f"a GGUF file holds a tokenizer of byte-pair encoding, got one of the type {model['type']}")
    tokens = _in_order({**model["vocab"], **{token["content"]: token["id"] for token in added}})
    kinds = dict.fromkeys(tokens, Kind.NORMAL)
    kinds |= {token["content"]: Kind.CONTROL if token["special"] else Kind.USER_DEFINED for token in added}
    merges = [_pair(merge) for merge in model["merges"]]
    if layout["decoder"] is not None and layout["decoder"]["type"] == "ByteLevel":
        if not merges:
            raise ConfigError("a GGUF file holds a tokenizer that merges tokens, got one without merges")
        own = {"model": "gpt2", "pre": _name_of_splitting(layout), "merges": [" ".join(merge) for merge in merges]}
    elif model["byte_fallback"]:
        kinds |= {f"<0x{byte:02X}>": Kind.BYTE for byte in range(256)} | {model["unk_token"]: Kind.UNKNOWN}
        has_prefix = '"Prepend"' in json.dumps(layout["normalizer"])
        own = {"model": "llama", "scores": _scores(tokens, merges), "add_space_prefix": has_prefix}
    else:
        raise ConfigError("a GGUF file holds a byte-level tokenizer, or one that falls back to bytes, got neither")
    roles = {_ROLES[role][0]: getattr(tokenizer, role) for role in ("start", "end", "pad")}
    found = {"tokens": tokens, "token_type": [int(kinds[token]) for token in tokens], "add_bos_token": starts_texts}
    return {f"{_PREFIX}{key}": value for key, value in {**own, **found, **roles}.items()}


def _as_bert(token: str) -> str:
    """A piece as BERT writes it: the rest of a word has a mark, and its beginning none."""
    if token.startswith(_SPACE):
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") else f"##{token}"


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], " ", merge[1])
    if not left or not right:
        raise DataError(f"a merge is of two tokens, got {merge!r}")
    return left, right


def _in_order(ids: Mapping[str, int]) -> list[str]:
    """The tokens by their ids; where an id is nobody's, a token stands that no text is cut into."""
    tokens = {index: token for token, index in ids.items()}
    return [tokens.get(index, f"[unused {index}]") for index in range(max(tokens) + 1)]


def _roles(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[Role, str]:
    """The tokens that start, end and pad sequences; the one that ends does what no other is said to do."""
    roles: dict[Role, str] = {}
    for role, keys in _ROLES.items():
        for key in (key for key in keys if f"{_PREFIX}{key}" in metadata):
            index = metadata[f"{_PREFIX}{key}"]
            if not isinstance(index, int) or not 0 <= index < len(tokens):
                raise DataError(f"{_PREFIX}{key} must be one of the {len(tokens):,} tokens, got {index}")
            roles.setdefault(role, tokens[index])
    if "end" in roles:
        roles = {"start": roles["end"], "pad": roles["end"], **roles}
    return roles


def _list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    found = metadata.get(f"{_PREFIX}{name}")
    if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
        raise DataError(f"the file has no list of {kind.__name__} as {_PREFIX}{name}, which its tokenizer needs")
    return found


def _bpe(vocabulary: Vocabulary, merges: Sequence[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocabulary.ids, merges=list(merges), **options)
    except Exception as error:  # the library raises bare Exception for merges of what is no token
        raise DataError(f"the vocabulary and its merges do not fit together: {error}") from None


def _with_added(inner: tokenizers.Tokenizer, vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokens that are found in a text before it is cut; those that steer a model only where they are asked for."""
    controls = vocabulary.of_kind(Kind.CONTROL, Kind.UNKNOWN)
    inner.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    users = vocabulary.of_kind(Kind.USER_DEFINED)
    inner.add_tokens([AddedToken(token, normalized=False) for token in users])
    return inner


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Each way to cut a piece into two pieces, the best piece first."""
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise DataError(
            f"each piece has a score, got {len(vocabulary.tokens):,} pieces and {len(vocabulary.scores):,} scores"
        )
    ids = vocabulary.ids
    pieces = {piece: ids[piece] for piece in vocabulary.of_kind(Kind.NORMAL, Kind.USER_DEFINED)}
    cuts = [
        (-vocabulary.scores[index], index, pieces[piece[:place]], pieces[piece[place:]])
        for piece, index in pieces.items()
        for place in range(1, len(piece))
        if piece[:place] in pieces and piece[place:] in pieces
    ]
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for _, _, left, right in sorted(cuts)]


def _scores(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> list[float]:
    """Scores that join in the order of the merges: the later a piece can first be made, the lower."""
    ranks: dict[str, int] = {}
    for left, right in merges:
        ranks.setdefault(left + right, len(ranks))
    return [-float(ranks.get(token, 0)) for token in tokens]


def _name_of_splitting(layout: Mapping[str, Any]) -> str:
    """What GGUF calls the way in which this tokenizer splits a text."""
    own = layout["pre_tokenizer"]
    for name in SPLITTINGS:
        if own == _as_json(_splitting(name)):
            return name
    raise ConfigError(f"no GGUF name is known for this way to split a text: {json.dumps(own)}")


def _as_json(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Any:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizer
    return json.loads(inner.to_str())["pre_tokenizer"]
