"""Text as one long array of token ids on disk, memory-mapped.

The array begins with the tokenizer's `end` token and has one after every document, so that each token of the text has
a predecessor, and a model learns where documents begin and end.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.formats.plain_text import Piece
from regard.data.stores.arrays import complete_folder, flush_to_disk, map_array, token_dtype
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

_CHUNK_CHARACTERS, _CHUNK_PIECES = 1 << 20, 4096
"""Text encoded at a time: enough to use every core, little enough for memory."""


class TokenStream:
    """The token ids of a text, read by memory mapping.

    Raises:
        DataError: If the size of the file does not match its description.
    """

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / "stream.json").read_text())
        self.folder = folder
        self.num_tokens: int = description["num_tokens"]
        """Length of the array: the tokens of the text, one `end` for each document, and the first `end`."""
        self.num_bytes: int = description["num_bytes"]
        """Bytes of the text in UTF-8, independent of the tokenizer: the unit of bits per byte."""
        self.num_documents: int = description["num_documents"]
        self.ids: NDArray[np.unsignedinteger] = map_array(folder / "ids", np.dtype(description["dtype"]))
        if len(self.ids) != self.num_tokens:
            raise DataError(f"{folder} is damaged: the size of its file does not match its {self.num_tokens:,} tokens")

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def num_text_tokens(self) -> int:
        """The number of tokens without the `end` tokens."""
        return self.num_tokens - self.num_documents - 1


def write_stream(folder: Path, pieces: Iterable[Piece], tokenizer: Tokenizer) -> TokenStream:
    """Encode documents into a new stream, in constant memory."""
    dtype = token_dtype(tokenizer.vocab_size)
    end = np.array([tokenizer.end], dtype).tobytes()
    num_tokens, num_bytes, num_documents = 1, 0, 0
    with complete_folder(folder) as work:
        with open(work / "ids", "wb") as file:
            file.write(end)
            for (text, is_last), ids in _encode(pieces, tokenizer):
                file.write(np.array(ids, dtype).tobytes())
                if is_last:
                    file.write(end)
                num_tokens += len(ids) + is_last
                num_bytes += len(text.encode("utf-8"))
                num_documents += is_last
            flush_to_disk(file)
        description = {"num_tokens": num_tokens, "num_bytes": num_bytes, "num_documents": num_documents,
                       "dtype": dtype.name}  # fmt: skip
        (work / "stream.json").write_text(json.dumps(description))
    return TokenStream(folder)


def count_tokens(pieces: Iterable[Piece], tokenizer: Tokenizer) -> int:
    """The number of tokens of the text, computed in constant memory."""
    return sum(len(ids) for _, ids in _encode(pieces, tokenizer))


def _encode(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[tuple[Piece, list[int]]]:
    for chunk in _chunks(_cut_at_words(pieces)):
        yield from zip(chunk, tokenizer.encode([piece.text for piece in chunk]), strict=True)


def _cut_at_words(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same text in pieces that end before a word and its preceding space.

    Every kind of tokenizer has a boundary there, so the tokens do not depend on the length of the pieces. A piece
    without such a position is left unchanged.
    """
    before = ""
    for text, is_last in pieces:
        text = before + text
        end = len(text) if is_last else _last_word(text) or len(text)
        yield Piece(text[:end], is_last)
        before = text[end:]


def _last_word(text: str) -> int:
    """The position of the space before the last word; 0 if there is none."""
    place = text.rfind(" ", 0, -1)
    while place > 0 and text[place + 1].isspace():
        place = text.rfind(" ", 0, place)
    return max(0, place)


def _chunks(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    chunk: list[Piece] = []
    num_characters = 0
    for piece in pieces:
        chunk.append(piece)
        num_characters += len(piece.text)
        if num_characters >= _CHUNK_CHARACTERS or len(chunk) >= _CHUNK_PIECES:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk
