"""Converting the vocabularies of GGUF and llama2.c files to tokenizers, and back.

    gpt2    byte-level byte-pair encoding: tokens, merges and a pre-tokenizer              Radford et al. (2019)
    llama   SentencePiece's byte-pair encoding: pieces with scores, bytes as a fallback    Kudo & Richardson (2018)
    bert    WordPiece: the longest prefix of a word, then the longest of the rest          Devlin et al. (2018)

A SentencePiece vocabulary has no merges: of all adjacent tokens whose concatenation
is a piece, those of the piece with the best score are joined first. The equivalent
merges are all ways to split a piece into two, in the order of the scores.
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
from regard.text.tokenizer import Tokenizer, TokenRole

_SPACE = "\u2581"
"""The space in SentencePiece."""
_PREFIX = "tokenizer.ggml."
_ROLES: dict[TokenRole, tuple[str, ...]] = {
    "start": ("bos_token_id", "cls_token_id"),
    "end": ("eos_token_id", "seperator_token_id"),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
}
"""The fields for the token of each role; the spelling is GGUF's."""


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GGUFVocabulary:
    """The tokens in the order of their ids, with their types, and merges or scores."""

    tokens: list[str]
    types: list[int]
    merges: list[tuple[str, str]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.types) != len(self.tokens):
            raise DataError(f"each token needs a type, got {len(self.tokens):,} tokens and {len(self.types):,} types")
        token, times = Counter(self.tokens).most_common(1)[0] if self.tokens else ("", 0)
        if times != 1:
            raise DataError(f"the tokens of a vocabulary must be distinct, got {token!r} {times} times")

    @property
    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def of_type(self, *types: TokenType) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]


_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), byte_level])


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer that GGUF calls `name`: it splits a text into parts that merges do not cross."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    match name:
        case "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais":
            return byte_level
        case "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone":
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        case "llama-bpe" | "llama3" | "llama-v3":
            return _split(_LLAMA3_PATTERN.format(digits=r"\p{N}{1,3}"))
        case "qwen2" | "stablelm2" | "deepseek-r1-qwen":
            return _split(_LLAMA3_PATTERN.format(digits=r"\p{N}"))
    raise ConfigError(f"unknown pre-tokenizer {name!r}{nearest(name, PRE_TOKENIZERS)}")


PRE_TOKENIZERS = ("gpt-2", "smollm", "llama-bpe", "qwen2")
"""The names that are written; the names of other models are synonyms of these."""


def byte_level_tokenizer(vocabulary: GGUFVocabulary, pre_tokenizer: str) -> tokenizers.Tokenizer:
    """Byte-level byte-pair encoding; `pre_tokenizer` is its name in GGUF."""
    pre = _pre_tokenizer(pre_tokenizer)
    # Llama 3 encodes a part that is a token as that token, without merges.
    ignore_merges = pre_tokenizer.startswith("llama")
    inner = tokenizers.Tokenizer(_bpe(vocabulary, vocabulary.merges, ignore_merges=ignore_merges))
    inner.normalizer = normalizers.NFC() if pre_tokenizer == "qwen2" else None
    inner.pre_tokenizer = pre
    inner.decoder = decoders.ByteLevel()
    return _with_added(inner, vocabulary)


def sentencepiece_tokenizer(vocabulary: GGUFVocabulary, *, has_prefix: bool = True) -> tokenizers.Tokenizer:
    """SentencePiece's byte-pair encoding; with `has_prefix`, a space is added before each text."""
    unknown = next(iter(vocabulary.of_type(TokenType.UNKNOWN)), None)
    has_bytes = bool(vocabulary.of_type(TokenType.BYTE))
    model = _bpe(vocabulary, _merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    inner = tokenizers.Tokenizer(model)
    spaces: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    inner.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", _SPACE)])
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return _with_added(inner, vocabulary)


def wordpiece_tokenizer(vocabulary: GGUFVocabulary, *, first: str, last: str) -> tokenizers.Tokenizer:
    """BERT's tokenizer, which adds `first` and `last` to a text.

    GGUF marks the first pieces of words, BERT the others. A vocabulary without capital letters is a lower-case one.
    """
    tokens = [_as_bert(token) for token in vocabulary.tokens]
    is_lowercase = not any(token[:1].isupper() for token in tokens)
    unknown = next(iter(vocabulary.of_type(TokenType.UNKNOWN)), "[UNK]")
    ids = {token: index for index, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(models.WordPiece(vocab=ids, unk_token=unknown))
    inner.normalizer = normalizers.BertNormalizer(lowercase=is_lowercase)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    around = [(token, vocabulary.ids[token]) for token in (first, last)]
    pair = [first, "$A", last, "$B:1", f"{last}:1"]
    inner.post_processor = processors.TemplateProcessing(single=pair[:3], pair=pair, special_tokens=around)
    return _with_added(inner, vocabulary)


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file."""
    name = metadata.get(f"{_PREFIX}model")
    if name not in _READERS:
        raise ConfigError(f"the tokenizer model {name!r} cannot be imported; known: {', '.join(_READERS)}")
    tokens = _list(metadata, "tokens", str)
    has_types = f"{_PREFIX}token_type" in metadata
    types = _list(metadata, "token_type", int) if has_types else [int(TokenType.NORMAL)] * len(tokens)
    roles = _roles(metadata, tokens)
    inner = _READERS[name](GGUFVocabulary(tokens, types), metadata, roles)
    return Tokenizer.from_json(inner.to_str(), roles=roles)


def _read_byte_level(
    vocabulary: GGUFVocabulary, metadata: Mapping[str, Any], roles: Mapping[TokenRole, str]
) -> tokenizers.Tokenizer:
    pre_tokenizer = metadata.get(f"{_PREFIX}pre")
    if pre_tokenizer is None:
        log_warning(f"the file has no {_PREFIX}pre: the pre-tokenizer of GPT-2 is used")
    merges = [_pair(merge) for merge in _list(metadata, "merges", str)]
    inner = byte_level_tokenizer(replace(vocabulary, merges=merges), str(pre_tokenizer or "gpt-2"))
    adds_start = metadata.get(f"{_PREFIX}add_bos_token", str(pre_tokenizer).startswith("llama"))
    return with_start_token(inner, roles.get("start")) if adds_start else inner


def _read_sentencepiece(
    vocabulary: GGUFVocabulary, metadata: Mapping[str, Any], roles: Mapping[TokenRole, str]
) -> tokenizers.Tokenizer:
    scores, has_prefix = _list(metadata, "scores", float), metadata.get(f"{_PREFIX}add_space_prefix", True)
    inner = sentencepiece_tokenizer(replace(vocabulary, scores=scores), has_prefix=bool(has_prefix))
    return with_start_token(inner, roles.get("start")) if metadata.get(f"{_PREFIX}add_bos_token", True) else inner


def _read_wordpiece(
    vocabulary: GGUFVocabulary, metadata: Mapping[str, Any], roles: Mapping[TokenRole, str]
) -> tokenizers.Tokenizer:
    if "start" not in roles or "end" not in roles:
        raise DataError("the file names no tokens for the start and the end of a text")
    return wordpiece_tokenizer(vocabulary, first=roles["start"], last=roles["end"])


_READERS = {"gpt2": _read_byte_level, "llama": _read_sentencepiece, "bert": _read_wordpiece}
"""By the value of `tokenizer.ggml.model`."""


def with_start_token(inner: tokenizers.Tokenizer, start: str | None) -> tokenizers.Tokenizer:
    """Let a tokenizer add the start token, if there is one, before each text."""
    if start is not None:
        known = [(start, inner.token_to_id(start))]
        inner.post_processor = processors.TemplateProcessing(
            single=[start, "$A"], pair=[start, "$A", "$B"], special_tokens=known
        )
    return inner


def metadata_from_tokenizer(tokenizer: Tokenizer, *, adds_start: bool) -> dict[str, Any]:
    """The metadata of a GGUF file for a tokenizer; with `adds_start`, readers add the start token before a text."""
    layout = json.loads(tokenizer.to_json())
    model, added = layout["model"], layout["added_tokens"]
    if model["type"] != "BPE":
        raise ConfigError(f"the tokenizer of a GGUF file must be byte-pair encoding, got {model['type']}")
    tokens = _in_order({**model["vocab"], **{token["content"]: token["id"] for token in added}})
    types = dict.fromkeys(tokens, TokenType.NORMAL)
    types |= {token["content"]: TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED for token in added}
    merges = [_pair(merge) for merge in model["merges"]]
    if layout["decoder"] is not None and layout["decoder"]["type"] == "ByteLevel":
        if not merges:
            raise ConfigError("the tokenizer of a GGUF file must have merges, got none")
        own = {"model": "gpt2", "pre": _pre_tokenizer_name(layout), "merges": [" ".join(merge) for merge in merges]}
    elif model["byte_fallback"]:
        types |= {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)} | {model["unk_token"]: TokenType.UNKNOWN}
        has_prefix = '"Prepend"' in json.dumps(layout["normalizer"])
        own = {"model": "llama", "scores": _scores(tokens, merges), "add_space_prefix": has_prefix}
    else:
        raise ConfigError("the tokenizer of a GGUF file must be byte-level or have a byte fallback, got neither")
    roles = {_ROLES[role][0]: getattr(tokenizer, role) for role in ("start", "end", "pad")}
    found = {"tokens": tokens, "token_type": [int(types[token]) for token in tokens], "add_bos_token": adds_start}
    return {f"{_PREFIX}{key}": value for key, value in {**own, **found, **roles}.items()}


def _as_bert(token: str) -> str:
    """A piece in BERT's notation: all pieces of a word but the first are marked."""
    if token.startswith(_SPACE):
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") else f"##{token}"


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], " ", merge[1])
    if not left or not right:
        raise DataError(f"a merge must have two tokens, got {merge!r}")
    return left, right


def _in_order(ids: Mapping[str, int]) -> list[str]:
    """The tokens in the order of their ids; an id without a token gets one that no text contains."""
    tokens = {index: token for token, index in ids.items()}
    return [tokens.get(index, f"[unused {index}]") for index in range(max(tokens) + 1)]


def _roles(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[TokenRole, str]:
    """The tokens that start, end and pad sequences; the end token has the roles that no token has."""
    roles: dict[TokenRole, str] = {}
    for role, keys in _ROLES.items():
        for key in (key for key in keys if f"{_PREFIX}{key}" in metadata):
            index = metadata[f"{_PREFIX}{key}"]
            if not isinstance(index, int) or not 0 <= index < len(tokens):
                raise DataError(f"{_PREFIX}{key} must be the id of one of {len(tokens):,} tokens, got {index}")
            roles.setdefault(role, tokens[index])
    if "end" in roles:
        roles = {"start": roles["end"], "pad": roles["end"], **roles}
    return roles


def _list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    found = metadata.get(f"{_PREFIX}{name}")
    if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
        raise DataError(f"the file has no list of {kind.__name__} for {_PREFIX}{name}, which its tokenizer requires")
    return found


def _bpe(vocabulary: GGUFVocabulary, merges: Sequence[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocabulary.ids, merges=list(merges), **options)
    except Exception as error:  # the library raises bare Exception for merges of unknown tokens
        raise DataError(f"the merges do not fit the vocabulary: {error}") from None


def _with_added(inner: tokenizers.Tokenizer, vocabulary: GGUFVocabulary) -> tokenizers.Tokenizer:
    """Add the tokens that are matched before pre-tokenization; control tokens are special."""
    controls = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    inner.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    users = vocabulary.of_type(TokenType.USER_DEFINED)
    inner.add_tokens([AddedToken(token, normalized=False) for token in users])
    return inner


def _merges(vocabulary: GGUFVocabulary) -> list[tuple[str, str]]:
    """All ways to split a piece into two pieces, in the order of the scores."""
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise DataError(
            f"each piece needs a score, got {len(vocabulary.tokens):,} pieces and {len(vocabulary.scores):,} scores"
        )
    ids = vocabulary.ids
    pieces = {piece: ids[piece] for piece in vocabulary.of_type(TokenType.NORMAL, TokenType.USER_DEFINED)}
    splits = [
        (-vocabulary.scores[index], index, pieces[piece[:middle]], pieces[piece[middle:]])
        for piece, index in pieces.items()
        for middle in range(1, len(piece))
        if piece[:middle] in pieces and piece[middle:] in pieces
    ]
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for _, _, left, right in sorted(splits)]


def _scores(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> list[float]:
    """Scores with the order of the merges: the later the first merge that makes a piece, the lower."""
    ranks: dict[str, int] = {}
    for left, right in merges:
        ranks.setdefault(left + right, len(ranks))
    return [-float(ranks.get(token, 0)) for token in tokens]


def _pre_tokenizer_name(layout: Mapping[str, Any]) -> str:
    """GGUF's name of the pre-tokenizer."""
    own = layout["pre_tokenizer"]
    for name in PRE_TOKENIZERS:
        if own == _as_json(_pre_tokenizer(name)):
            return name
    raise ConfigError(f"GGUF has no name for this pre-tokenizer: {json.dumps(own)}")


def _as_json(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Any:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizer
    return json.loads(inner.to_str())["pre_tokenizer"]
