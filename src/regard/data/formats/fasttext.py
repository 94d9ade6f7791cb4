"""The format of fastText: each line begins with the labels of a text, which have a prefix.

    __label__sauce __label__cheese How much does potato starch affect a cheese sauce recipe?

Joulin et al., "Bag of Tricks for Efficient Text Classification" (2016). https://arxiv.org/abs/1607.01759
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from regard.data.formats.files import iter_lines
from regard.data.formats.layouts import BLANK, TABLE_FORMATS, Layout, ReadOptions, Record

LABEL_PREFIX = "__label__"
LABEL_SEPARATOR = " "
"""Between the labels of a row; no label contains a space."""
_COLUMNS = ("label", "text")
_NEARLY_ALL = 0.95


def is_fasttext(lines: Sequence[str]) -> bool:
    """Whether nearly all lines, of which none is blank, begin with a label."""
    return bool(lines) and sum(line.startswith(LABEL_PREFIX) for line in lines) >= _NEARLY_ALL * len(lines)


def fasttext_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of a file: a column with the labels of each text, and one with the text."""
    read = partial(_read, path, options.encoding)
    return Layout(format="fasttext", label=TABLE_FORMATS["fasttext"], names=_COLUMNS, read=read)


def _read(path: Path, encoding: str | None, picks: Sequence[int]) -> Iterator[Record]:
    for number, line in enumerate(iter_lines(path, encoding=encoding), 1):
        if not line.strip():
            yield number, (), BLANK
            continue
        labels, text = list[str](), line.strip()
        while text.startswith(LABEL_PREFIX):
            label, *rest = text.split(maxsplit=1)
            labels.append(label.removeprefix(LABEL_PREFIX))
            text = "".join(rest)
        cells = (LABEL_SEPARATOR.join(labels), text)
        if labels:
            yield number, tuple(cells[pick] for pick in picks), ""
        else:
            yield number, (), f"no {LABEL_PREFIX} at its beginning"
