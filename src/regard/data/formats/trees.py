"""Constituency trees in brackets, as in the Penn Treebank: nested over several lines, or one tree a line.

    ( (S
        (NP-SBJ (NNP Ada) )
        (VP (VBD sang) (. .) )))

Marcus et al., "Building a Large Annotated Corpus of English: The Penn Treebank" (1993). https://aclanthology.org/J93-2004

A tree begins with a bracket in the first column of a line, or after the end of the tree before; lines that begin with
`#` between trees are comments. A tree is reduced to what parsers learn: empty elements (`-NONE-`), function tags
(`-SBJ`, `=2`) and an outer bracket without a label of its own (`TOP`, `ROOT`) are removed. A bracket that is a word is
written `-LRB-` or `-RRB-` in a tree, and `(` or `)` in a sentence.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.formats.files import (
    AnyPath,
    describe_encoding,
    file_encoding,
    format_suffix,
    iter_lines,
    sample_lines,
)
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_count
from regard.data.formats.tables import Table
from regard.errors import DataError

TREE_SUFFIXES = (".mrg", ".ptb")
TREE_ROLES = ("words", "tree")
_TOKEN = re.compile(r"[()]|[^()\s]+")
_EMPTY = "-NONE-"
_OUTER = ("", "TOP", "ROOT", "S1")
_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_OF_SYMBOL = {symbol: bracket for bracket, symbol in _BRACKETS.items()}
_SAMPLE_LINES = 200
_COMMENT = "#"


@dataclass(frozen=True, slots=True)
class Tree:
    """A constituent with its children, or a word with its tag."""

    label: str
    """The label of a constituent, or the part of speech of a word."""
    children: "tuple[Tree, ...]" = ()
    word: str | None = None
    """None for a constituent."""

    def leaves(self) -> "list[Tree]":
        """The words with their tags, from left to right."""
        found: list[Tree] = []
        stack: list[Tree] = [self]
        while stack:
            node = stack.pop()
            if node.word is not None:
                found.append(node)
            stack += reversed(node.children)
        return found

    def words(self) -> list[str]:
        """The words as in a sentence: brackets are not escaped."""
        return [_OF_SYMBOL.get(leaf.word or "", leaf.word or "") for leaf in self.leaves()]

    def __str__(self) -> str:
        """In one line.

        Example:
            >>> str(Tree("NP", (Tree("DT", word="the"), Tree("NN", word="sea"))))
            '(NP (DT the) (NN sea))'
        """
        pieces: list[str] = []
        stack: list[Tree | str] = [self]
        while stack:
            node = stack.pop()
            if isinstance(node, str):
                pieces.append(node)
            elif node.word is not None:
                pieces.append(f" ({node.label} {escape_word(node.word)})")
            else:
                pieces.append(f" ({node.label}")
                stack.append(")")
                stack += reversed(node.children)
        return "".join(pieces).lstrip()


class Constituent(NamedTuple):
    """A labeled span of words, `start` to `end - 1`, counted from 0."""

    label: str
    start: int
    end: int


def constituents_of(tree: Tree) -> list[Constituent]:
    """The constituents, each before those inside it; words are none.

    Example:
        >>> [tuple(each) for each in constituents_of(parse_tree("(S (NP (NNP Ada)) (VP (VBD sang)))"))]
        [('S', 0, 2), ('NP', 0, 1), ('VP', 1, 2)]
    """
    found: list[Constituent] = []
    place = 0
    stack: list[Tree | int] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            found[node] = found[node]._replace(end=place)
        elif node.word is not None:
            place += 1
        else:
            stack.append(len(found))
            found.append(Constituent(node.label, place, place))
            stack += reversed(node.children)
    return found


def build_tree(constituents: Sequence[Constituent], leaves: Sequence[Tree]) -> Tree:
    """The tree of nested constituents, each before those inside it, over words with tags.

    The first constituent has all words; without any, there is one word.
    """
    if not constituents:
        (leaf,) = leaves
        return leaf
    open_nodes: list[tuple[Constituent, list[Tree]]] = []
    root: list[Tree] = []
    rest = list(reversed(constituents))
    for place in range(len(leaves) + 1):
        while open_nodes and open_nodes[-1][0].end == place:
            closed, children = open_nodes.pop()
            (open_nodes[-1][1] if open_nodes else root).append(Tree(closed.label, tuple(children)))
        while rest and rest[-1].start == place:
            open_nodes.append((rest.pop(), []))
        if place < len(leaves):
            open_nodes[-1][1].append(leaves[place])
    (tree,) = root
    return tree


def escape_word(word: str) -> str:
    """A word as trees have it: a bracket, which would be read as one of the tree, by its symbol.

    Example:
        >>> escape_word("("), escape_word("f(x)"), escape_word("sea")
        ('-LRB-', 'f-LRB-x-RRB-', 'sea')
    """
    if word in _BRACKETS:
        return _BRACKETS[word]
    return word.replace("(", _BRACKETS["("]).replace(")", _BRACKETS[")"]) if "(" in word or ")" in word else word


def parse_tree(text: str) -> Tree:
    """The tree in a text, as it is written.

    Raises:
        DataError: If brackets are unbalanced, or there is not exactly one tree.

    Example:
        >>> str(parse_tree("(S (NP-SBJ (NNP Ada)) (VP (VBD sang)))"))
        '(S (NP-SBJ (NNP Ada)) (VP (VBD sang)))'
    """
    records = list(read_trees([text]))
    if len(records) != 1:
        raise DataError(f"a text with one tree in brackets is expected, got {format_count(len(records), 'tree')}")
    _, tree, fault = records[0]
    if tree is None:
        raise DataError(f"a tree in brackets is expected, got one with {fault}: {text[:60]!r}")
    return tree


def clean_tree(tree: Tree) -> Tree | None:
    """The tree without empty elements, function tags and the outer bracket; None if no word is left.

    Example:
        >>> str(clean_tree(parse_tree("( (S (NP-SBJ-1 (-NONE- *)) (VP (VB Go) (ADVP-DIR|PRT (RB on)))))")))
        '(S (VP (VB Go) (ADVP (RB on))))'
    """
    cleaned = _clean(tree)
    while cleaned is not None and cleaned.label in _OUTER and len(cleaned.children) == 1:
        cleaned = cleaned.children[0]
    if cleaned is not None and cleaned.label == "":
        return Tree(_OUTER[1], cleaned.children, cleaned.word)
    return cleaned


def read_trees(lines: Iterable[str]) -> Iterator[tuple[int, Tree | None, str]]:
    """The first line of each tree, the tree as it is written, and its fault, which completes "the row has".

    A bracket that opens a tree in the first column ends one that is not closed, so that one mistake spoils one tree.
    """
    stack: list[list[Tree | str]] = []
    start, fault = 0, ""
    for number, line in enumerate(lines, 1):
        if stack and line.startswith("("):
            yield start, None, f"unbalanced brackets: {format_count(len(stack), 'bracket')} not closed"
            stack, fault = [], ""
        if not stack and line.startswith(_COMMENT):
            continue
        for token in _TOKEN.findall(line):
            if token == "(":
                start = start if stack else number
                stack.append([])
            elif not stack:
                what = (
                    "unbalanced brackets: one is closed that is not open" if token == ")" else "text outside brackets"
                )
                yield number, None, what
                break
            elif token != ")":
                stack[-1].append(token)
            else:
                node = _node(stack.pop())
                fault = fault or (node if isinstance(node, str) else "")
                if stack:
                    stack[-1].append(Tree("") if isinstance(node, str) else node)
                else:
                    yield start, None if fault or isinstance(node, str) else node, fault
                    fault = ""
    if stack:
        yield start, None, f"unbalanced brackets: {format_count(len(stack), 'bracket')} not closed"


def is_tree_file(path: AnyPath, encoding: str | None = None) -> bool:
    """Whether a file has trees, by its suffix or by its first lines: a tree of several levels, and nothing else."""
    if format_suffix(Path(path)) in TREE_SUFFIXES:
        return True
    lines = sample_lines(path, _SAMPLE_LINES, encoding=encoding)
    first = next((line for line in lines if line.strip() and not line.startswith(_COMMENT)), "")
    if not first.lstrip().startswith("("):
        return False
    found = [tree for _, tree, _ in read_trees(lines)]
    num_good = sum(tree is not None for tree in found)
    # The sample may end inside a tree.
    return 2 * num_good >= len(found) and any(tree is not None and tree.children for tree in found)


def is_tree(text: str) -> bool:
    """Whether a text is one tree of several levels in brackets.

    Example:
        >>> is_tree("(NP (DT the) (NN sea))"), is_tree("(the sea)"), is_tree("the (NN sea)")
        (True, False, False)
    """
    found = [tree for _, tree, _ in read_trees([text])] if text.lstrip().startswith("(") else []
    return len(found) == 1 and found[0] is not None and bool(found[0].children)


def tree_table(path: AnyPath, *, encoding: str | None = None, skip_bad: bool | None = False) -> Table:
    """The trees of a file as a table of sentences and trees."""
    path = Path(path)
    inferred = describe_encoding([path], encoding)
    encoding = encoding or file_encoding(path)
    return Table(
        paths=(path,),
        format="trees",
        roles=TREE_ROLES,
        columns=("1", "2"),
        inferred=[*inferred, f"read {path.name} as trees in brackets, without empty elements and function tags"],
        skip_bad=skip_bad,
        read=partial(_read_file, path, encoding),
    )


def trees_in_memory(rows: Sequence[Any], *, skip_bad: bool | None = False) -> Table:
    """Trees in brackets as a table: each a text, or a row whose last value is the tree."""
    kept = [row if isinstance(row, str) else row[-1] for row in rows]
    return Table(
        paths=(),
        format="rows",
        roles=TREE_ROLES,
        columns=("1", "2"),
        inferred=[],
        skip_bad=skip_bad,
        read=partial(_read_rows, kept),
    )


def tree_record(line: int, tree: Tree | None, fault: str) -> Record:
    """A tree as a row of a table."""
    cleaned = None if tree is None else clean_tree(tree)
    if cleaned is None:
        return line, (), fault or "a tree without words"
    return line, (" ".join(cleaned.words()), str(cleaned)), ""


def _read_file(path: Path, encoding: str) -> Iterator[Record]:
    for record in read_trees(iter_lines(path, encoding=encoding)):
        yield tree_record(*record)


def _read_rows(rows: Sequence[Any]) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        found = list(read_trees([str(row)]))
        if len(found) == 1:
            yield tree_record(number, *found[0][1:])
        else:
            yield number, (), format_count(len(found), "tree")


def _node(parts: Sequence[Tree | str]) -> Tree | str:
    """What is between two brackets, or its fault."""
    label, rest = (parts[0], parts[1:]) if parts and isinstance(parts[0], str) else ("", parts)
    children = tuple(part for part in rest if isinstance(part, Tree))
    words = [part for part in rest if isinstance(part, str)]
    if not words:
        return Tree(str(label), children) if children else "a bracket without words"
    if children:
        return f"the word {words[0]!r} beside a bracket"
    if len(words) > 1:
        return f"{format_count(len(words), 'word')} in one bracket"
    return Tree(str(label), word=words[0].replace("\\/", "/").replace("\\*", "*"))


def _clean(tree: Tree) -> Tree | None:
    if tree.word is not None:
        return None if tree.label == _EMPTY else Tree(_plain_label(tree.label), word=tree.word)
    children = tuple(child for each in tree.children if (child := _clean(each)) is not None)
    return Tree(_plain_label(tree.label), children) if children else None


def _plain_label(label: str) -> str:
    """Without function tags, indices and alternatives; -LRB- and -RRB- are labels of their own."""
    return label if label.startswith("-") else re.split(r"[-=|]", label, maxsplit=1)[0]
