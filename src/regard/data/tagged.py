"""Tagged sentences as rows of two texts: the words, and the tag of each, with spaces between.

A row is a row of a table like any other, so it is split, hashed and kept like one. A
space inside a word becomes a no-break space.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from regard.data.coding import Columns, Learned, Row
from regard.data.columns import count_of, listing
from regard.data.config import DataConfig
from regard.data.conll import ROLES, TaggedSentences, document_starts, open_tagged, tagged_from_rows
from regard.data.files import content_hash
from regard.data.folders import text_files
from regard.data.keys import ordered, refuse_columns
from regard.data.records import Record
from regard.data.sources import IN_MEMORY, Source, hash_with_held_out
from regard.data.tables import Table, rows_hash
from regard.errors import ConfigError, DataError
from regard.text.tokenizer import Tokenizer

Words = Sequence[str]

_NO_BREAK_SPACE = "\u00a0"
_DOCUMENT = "document"
"""What sentences can be grouped by."""
NUM_FORMS = 9
"""Ways to write a word that `form_of` tells apart."""
_TWO_WORDS = ("a", "b")
"""What a tokenizer is asked by whether it tells a word that follows another from one that stands first."""


def open_sentences(config: DataConfig, rows: Sequence[Any] | None = None) -> Source:
    """Find the sentences that the settings name, or those in memory, and how to read them.

    A row in memory is a list of words and one of tags, or each of these as one text with
    spaces between.
    """
    if rows is not None:
        sentences = tagged_from_rows([tuple(map(_cut, row)) for row in rows], skip_bad=config.skip_bad)
        refuse_columns(config, "sentences in memory")
        train = _table(sentences)
        hash_of_train = partial(_hash_of_rows, train)
        return _with_held_out(config, ordered(train, config), hash_of_train)
    if not config.train:
        raise DataError("no data to train on: name a file of tagged sentences, or a folder of them")
    if config.train == [IN_MEMORY]:
        raise DataError("this run was trained on rows in memory: hand in the same rows to go on")
    if len(config.train) == 1 and Path(config.train[0]).is_dir():
        found = {role: [str(path) for path in paths] for role, paths in text_files(config.train[0]).items()}
        given = {"valid": config.valid, "test": config.test}
        config = config.changed(
            train=found["train"], **{role: paths or found.get(role, []) for role, paths in given.items()}
        )
    refuse_columns(config, "a file of tagged sentences", group=_DOCUMENT)
    train = ordered(_open(config, config.train), config)
    train = train if config.group is None else _by_document(train)
    return _with_held_out(config, train, lambda: content_hash(train.paths))


class TagCoding:
    """Sentences in four columns: tokens, where each word begins among them, the tags of words, how they are written.

    Args:
        max_length: Tokens of a sentence, start and end included; words that do not fit are left out.
        written: How tags are to be written before they are counted, such as in another scheme.
        outside: The tag of a word that is nothing, where there is one; it gets the number 0, and else the commonest.
    """

    columns: tuple[str, ...] = ("tokens", "places", "tags", "forms")

    def __init__(
        self, *, max_length: int, written: Callable[[Sequence[str]], Sequence[str]], outside: str | None = None
    ) -> None:
        self._max_length, self._written, self._outside = max_length, written, outside
        self._counts: Counter[str] = Counter()

    def see(self, row: Row) -> None:
        self._counts.update(self._written(words_of(row[1])))

    def texts(self, row: Row) -> Sequence[str]:
        return row[:1]

    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Columns:
        numbers = {tag: number for number, tag in enumerate(self.learned().labels)}
        tokens, places, forms = encode_sentences([words_of(row[0]) for row in rows], tokenizer, self._max_length)
        tags = [tag_numbers(self._written(words_of(row[1])), numbers) for row in rows]
        return [tokens, places, [some[: len(kept)] for some, kept in zip(tags, places, strict=True)], forms]

    def learned(self) -> Learned:
        if len(self._counts) == 1:
            (tag, count) = next(iter(self._counts.items()))
            raise DataError(f"all {count_of(count, 'word')} have the tag {tag!r}: there is nothing to tell apart")
        counts = self._counts.copy()
        if self._outside is not None:
            # A type whose entities all have one word may have longer ones among rows that were held back.
            counts.update({f"I{tag[1:]}": 0 for tag in counts if tag.startswith("B")} | {self._outside: 0})
        first = sorted(counts, key=lambda tag: (tag != self._outside, -counts[tag], tag))
        return Learned({tag: counts[tag] for tag in first})


def words_of(text: str) -> list[str]:
    """The words, or the tags, of a text that has spaces between them.

    Example:
        >>> words_of(" A  cat ")
        ['A', 'cat']
    """
    return [word for word in text.split(" ") if word]


def tag_numbers(tags: Sequence[str], numbers: dict[str, int]) -> list[int]:
    """The number of each tag."""
    for tag in tags:
        if tag not in numbers:
            raise DataError(f"the tag {tag!r} does not occur among the training rows, which have {listing([*numbers])}")
    return [numbers[tag] for tag in tags]


def encode_sentences(
    sentences: Sequence[Words], tokenizer: Tokenizer, max_length: int
) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Each sentence's tokens between a start and an end, where each word begins, and each token's `form_of` its word.

    Words are cut into tokens one by one, as they are inside of a text. A space that is
    a token by itself is none of the word; a word without any token, which a tokenizer
    may make of odd characters, has the place of the token before it. Of a sentence
    with more than `max_length` tokens the last words are left out, but never the first.
    """
    has_spaces = tells_words_apart(tokenizer)
    flat = [f" {word}" if has_spaces and place else word for words in sentences for place, word in enumerate(words)]
    encoded = iter(tokenizer.encode(flat))
    (space,) = tokenizer.encode([" "])
    all_tokens, all_places, all_forms = [], [], []
    for words in sentences:
        cut = [next(encoded) for _ in words]
        tokens, places = _joined(cut, space, tokenizer.start, max_length - 1)
        forms = [form_of(word) for word, some in zip(words, cut, strict=True) for _ in some]
        all_tokens.append([*tokens, tokenizer.end])
        all_places.append(places)
        all_forms.append([0, *forms[: len(tokens) - 1], 0])
    return all_tokens, all_places, all_forms


def form_of(word: str) -> int:
    """How a word is written: 0 is for what is no word, such as the start of a sentence.

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


def ignores_case(tokenizer: Tokenizer) -> bool:
    """Whether capitals are small letters to a tokenizer, as far as a word of its vocabulary tells."""
    names = (piece.strip() for piece in tokenizer.pieces(list(range(tokenizer.vocab_size))))
    known = next((name for name in names if name.isascii() and name.isalpha() and name.islower()), None)
    if known is None:
        return False
    small, capital = tokenizer.encode([known, known.upper()])
    return small == capital


def tells_words_apart(tokenizer: Tokenizer) -> bool:
    """Whether a word is cut otherwise behind a space, as byte-level tokenizers do, than at the beginning."""
    first, second = _TWO_WORDS
    whole, start, plain, spaced = tokenizer.encode([f"{first} {second}", first, second, f" {second}"])
    return whole != start + plain and whole == start + spaced


def _joined(words: list[list[int]], space: list[int], start: int, room: int) -> tuple[list[int], list[int]]:
    """The tokens of words one behind the other, up to `room`, and the place of each word."""
    tokens, places = [start], []
    for number, word in enumerate(words):
        if number == 0:
            word = word[: room - 1]
        elif len(tokens) + len(word) > room:
            break
        skipped = len(space) if len(word) > len(space) and word[: len(space)] == space else 0
        places.append(len(tokens) + skipped if word else len(tokens) - 1)
        tokens += word
    return tokens, places


def _cut(cell: Any) -> Any:
    return words_of(cell) if isinstance(cell, str) else cell


def _open(config: DataConfig, paths: Sequence[str]) -> Table:
    if len(paths) != 1:
        raise ConfigError(f"tagged sentences are read from one file, got {len(paths)}: {listing(paths)}")
    options = {"columns": config.columns or None, "format": config.format, "skip_bad": config.skip_bad}
    return _table(open_tagged(paths[0], **options))


def _table(sentences: TaggedSentences) -> Table:
    return Table(
        paths=() if sentences.path is None else (sentences.path,),
        format=sentences.format,
        roles=ROLES,
        columns=sentences.columns,
        guesses=sentences.guesses,
        skip_bad=sentences.skip_bad,
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


def _by_document(table: Table) -> Table:
    """The table with the number of its document for the key of each sentence."""
    (path,) = table.paths
    starts = [] if table.format == "jsonl" else document_starts(path)
    if not starts:
        raise DataError(
            f"data.group = {_DOCUMENT!r} needs lines that say where documents begin, -DOCSTART- or # newdoc, "
            f"and {path.name} has none"
        )
    return replace(table, key=_DOCUMENT, read=partial(_with_documents, table.read, starts))


def _with_documents(read: Callable[[], Iterator[Record]], starts: Sequence[int]) -> Iterator[Record]:
    for line, values, fault in read():
        yield line, values if fault else (*values, str(bisect_right(starts, line))), fault


def _hash_of_rows(table: Table) -> str:
    return rows_hash(values for _, values, _ in table.read())


def _with_held_out(config: DataConfig, train: Table, hash_of_train: Callable[[], str]) -> Source:
    valid, test = (_open(config, paths) if paths else None for paths in (config.valid, config.test))
    held_out = {role: table.paths for role, table in (("valid", valid), ("test", test)) if table is not None}
    return Source(train, valid, test, lambda: hash_with_held_out(hash_of_train(), held_out))
