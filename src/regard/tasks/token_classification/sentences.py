"""Tagged sentences as rows of two texts, the words and their tags, and how they are encoded.

A sentence is a row of a table like any other, so it is split, hashed and stored
like one. A space inside a word becomes a no-break space.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

from regard.data.codecs.text import FEWEST_TOKENS, MOST_TOKENS
from regard.data.formats.columns import choose_columns
from regard.data.formats.conll import TAG_ROLES, TaggedSentences, document_starts, open_tagged, tagged_from_rows
from regard.data.formats.files import content_hash
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_names
from regard.data.formats.tables import Table
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Source, hash_of_table, require_files, with_folder, with_held_out
from regard.data.splits.plan import reject_split_columns, with_split_keys
from regard.errors import ConfigError, DataError
from regard.tasks.choices import ChoiceContext, Choices
from regard.text.tokenizer import Tokenizer

Words = Sequence[str]

_NO_BREAK_SPACE = "\u00a0"
_DOCUMENT = "document"
"""What sentences can be grouped by."""
NUM_FORMS = 9
"""The number of values of `form_of`."""
AFFIXES = (slice(-2, None), slice(-3, None), slice(3))
"""The parts of a word that are features of it: its last two and three characters, and its first three."""
AFFIX_BUCKETS = 4_096
"""The number of values of each affix, which are hashed."""
_TWO_WORDS = ("a", "b")
"""Words by which `has_word_boundaries` tests a tokenizer."""


def open_sentences(config: DataConfig, rows: Sequence[Any] | None = None) -> Source:
    """Open the sentences that the settings name, or those in memory.

    A row in memory is a list of words and a list of tags, or each of these as one text with
    spaces between.
    """
    open_file = partial(_open, config)
    if rows is not None:
        if isinstance(rows, NamedRows):
            picks = choose_columns(rows.names, config.columns or None, TAG_ROLES, where="the table in memory")
            rows = [[row[pick] for pick in picks] for row in rows]
        sentences = tagged_from_rows([tuple(map(_cut, row)) for row in rows])
        reject_split_columns(config, "sentences in memory")
        train = _table(sentences, config)
        return with_held_out(config, with_split_keys(train, config), open_file, partial(hash_of_table, train))
    require_files(config, "a file of tagged sentences, or a folder of them")
    config = with_folder(config)
    reject_split_columns(config, "a file of tagged sentences", group=_DOCUMENT)
    train = with_split_keys(open_file(config.train), config)
    train = train if config.group is None else _by_document(train, config.encoding)
    return with_held_out(config, train, open_file, lambda: content_hash(train.paths))


def words_of(text: str) -> list[str]:
    """The words, or the tags, of a text with spaces between them.

    Example:
        >>> words_of(" A  cat ")
        ['A', 'cat']
    """
    return [word for word in text.split(" ") if word]


def encode_sentences(sentences: Sequence[Words], tokenizer: Tokenizer, max_length: int) -> list[list[list[int]]]:
    """Each sentence's tokens between a start and an end, the position of each word, and features of each token's word.

    The features are the form of the word and its affixes.

    Words are tokenized one by one, as inside a text. A space that is a token of its own does not belong to the word;
    a word without any token, as of unknown characters, has the position of the token before it. A sentence with more
    than `max_length` tokens loses its last words, but never the first.
    """
    has_spaces = has_word_boundaries(tokenizer)
    flat = [f" {word}" if has_spaces and place else word for words in sentences for place, word in enumerate(words)]
    encoded = iter(tokenizer.encode(flat))
    (space,) = tokenizer.encode([" "])
    columns: list[list[list[int]]] = [[] for _ in range(3 + len(AFFIXES))]
    for words in sentences:
        cut = [next(encoded) for _ in words]
        tokens, positions = _joined(cut, space, tokenizer.start, max_length - 1)
        features = [(form_of(word), *affixes_of(word)) for word, some in zip(words, cut, strict=True) for _ in some]
        columns[0].append([*tokens, tokenizer.end])
        columns[1].append(positions)
        for number, column in enumerate(columns[2:]):
            column.append([0, *(values[number] for values in features[: len(tokens) - 1]), 0])
    return columns


def form_of(word: str) -> int:
    """The capitalization of a word, and whether it has digits; 0 is for what is not a word, such as the start token.

    Example:
        >>> [form_of(word) for word in ("in", "A", "Ada", "UN", "U.N.", "iPhone", "1984", "B-52", "--")]
        [1, 2, 3, 4, 4, 5, 6, 7, 8]
    """
    letters = [letter for letter in word if letter.isalpha()]
    has_digit = any(letter.isdigit() for letter in word)
    if not letters:
        return 6 if has_digit else 8
    if has_digit:
        return 7
    if not any(letter.isupper() for letter in letters):
        return 1
    if len(letters) == 1:
        return 2
    if not any(letter.isupper() for letter in letters[1:]) and letters[0].isupper():
        return 3
    return 4 if all(letter.isupper() for letter in letters) else 5


def affixes_of(word: str) -> list[int]:
    """The buckets of the affixes of a word, lower-cased; 0 is for what is not a word.

    Example:
        >>> [a == b for a, b in zip(affixes_of("Walking"), affixes_of("talking"))]
        [True, True, False]
    """
    small = word.lower()
    return [1 + crc32(small[part].encode()) % (AFFIX_BUCKETS - 1) for part in AFFIXES]


def ignores_case(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer lower-cases texts, by the first lower-case word of its vocabulary."""
    names = (piece.strip() for piece in tokenizer.pieces(list(range(tokenizer.vocab_size))))
    known = next((name for name in names if name.isascii() and name.isalpha() and name.islower()), None)
    if known is None:
        return False
    small, capital = tokenizer.encode([known, known.upper()])
    return small == capital


def has_word_boundaries(tokenizer: Tokenizer) -> bool:
    """Whether a word after a space is tokenized differently from one at the beginning, as by byte-level tokenizers."""
    first, second = _TWO_WORDS
    whole, start, plain, spaced = tokenizer.encode([f"{first} {second}", first, second, f" {second}"])
    return whole != start + plain and whole == start + spaced


def _joined(words: list[list[int]], space: list[int], start: int, limit: int) -> tuple[list[int], list[int]]:
    """The tokens of the words, at most `limit`, and the position of each word."""
    tokens, positions = [start], []
    for number, word in enumerate(words):
        if number == 0:
            word = word[: limit - 1]
        elif len(tokens) + len(word) > limit:
            break
        skipped = len(space) if len(word) > len(space) and word[: len(space)] == space else 0
        positions.append(len(tokens) + skipped if word else len(tokens) - 1)
        tokens += word
    return tokens, positions


def _cut(cell: Any) -> Any:
    return words_of(cell) if isinstance(cell, str) else cell


def _open(config: DataConfig, paths: Sequence[str]) -> Table:
    if len(paths) != 1:
        raise ConfigError(f"tagged sentences are read from one file, got {len(paths)}: {format_names(paths)}")
    return _table(
        open_tagged(paths[0], columns=config.columns or None, format=config.format, encoding=config.encoding), config
    )


def _table(sentences: TaggedSentences, config: DataConfig) -> Table:
    return Table(
        paths=() if sentences.path is None else (sentences.path,),
        format=sentences.format,
        roles=TAG_ROLES,
        columns=sentences.columns,
        inferred=sentences.inferred,
        skip_bad=config.skip_bad,
        read=partial(_read, sentences),
    )


def _read(sentences: TaggedSentences) -> Iterator[Record]:
    for line, words, tags, fault in sentences.read():
        if not fault and any(" " in tag for tag in tags):
            fault = "a tag with a space in it"
        if fault:
            yield line, (), fault
        else:
            yield line, (" ".join(word.replace(" ", _NO_BREAK_SPACE) for word in words), " ".join(tags)), ""


def _by_document(table: Table, encoding: str | None) -> Table:
    """The table with the number of its document as the key of each sentence."""
    (path,) = table.paths
    starts = [] if table.format == "jsonl" else document_starts(path, encoding)
    if not starts:
        raise DataError(
            f"data.group = {_DOCUMENT!r} needs lines that mark the beginning of documents, -DOCSTART- or # newdoc, "
            f"and {path.name} has none"
        )
    return replace(table, key=_DOCUMENT, read=partial(_with_documents, table.read, starts))


def _with_documents(read: Callable[[], Iterator[Record]], starts: Sequence[int]) -> Iterator[Record]:
    for line, values, fault in read():
        yield line, values if fault else (*values, str(bisect_right(starts, line))), fault


def choose_words(
    tokenizer: str | None, context: ChoiceContext, *, characters_per_word: int, model: str, words: str
) -> Choices:
    """Words and an LSTM: with features of each word, they learn fastest from few sentences.

    Args:
        tokenizer: That of the user, which is kept.
        context: The data; the vocabulary has one word for each `characters_per_word` characters of it.
        characters_per_word: The rarer words are known by their features.
        model: Why an LSTM, for the message.
        words: Why words.
    """
    preset, reasons = "lstm", {"model": f"lstm: {model}"}
    if tokenizer is not None:
        return Choices(preset=preset, reasons=reasons)
    size = max(FEWEST_TOKENS, min(MOST_TOKENS, context.num_characters // characters_per_word))
    values = {"tokenizer": "words", "lowercase": True, "vocab_size": size}
    return Choices(values, preset, {**reasons, "tokenizer": f"words, lower-cased: {words}"})
