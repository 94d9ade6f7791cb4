"""FASTA: biological sequences, each after a line with `>` and its name.

Pearson & Lipman, "Improved tools for biological sequence comparison" (1988).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from regard.data.formats.files import iter_lines
from regard.data.formats.layouts import TABLE_FORMATS, Layout, ReadOptions, Record
from regard.errors import DataError
from regard.text.alphabets import AMINO_ACIDS, NUCLEOTIDES

_COLUMNS = ("name", "sequence")
_LETTERS = frozenset(AMINO_ACIDS + NUCLEOTIDES)
_MOST_SHOWN = 5


def fasta_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of a FASTA file: a column with the first word of each name, and one with the sequence.

    Letters are read as capitals; a final `*`, which marks the end of a protein, is left out.
    """
    read = partial(_read, path, options.encoding)
    return Layout(format="fasta", label=TABLE_FORMATS["fasta"], names=_COLUMNS, read=read)


def _read(path: Path, encoding: str | None, picks: Sequence[int]) -> Iterator[Record]:
    first, name, parts = 0, "", list[str]()
    for number, line in enumerate(iter_lines(path, encoding=encoding), 1):
        if line.startswith(">"):
            if first:
                yield _record(first, name, parts, picks)
            first, name, parts = number, line[1:].strip(), []
        elif line.strip() and not line.startswith(";"):  # an old form of comments
            if not first:
                raise DataError(f"{path} is not FASTA: line {number} comes before the first line that begins with >")
            parts.append(line)
    if first:
        yield _record(first, name, parts, picks)


def _record(line: int, name: str, parts: Sequence[str], picks: Sequence[int]) -> Record:
    sequence = "".join("".join(parts).split()).upper().removesuffix("*")
    if not sequence:
        return line, (), "a name without a sequence"
    if unknown := sorted(set(sequence) - _LETTERS):
        shown = " ".join(unknown[:_MOST_SHOWN])
        return line, (), f"letters that neither amino acids nor nucleotides have ({shown})"
    cells = (name.split()[0] if name else str(line), sequence)
    return line, tuple(cells[pick] for pick in picks), ""
