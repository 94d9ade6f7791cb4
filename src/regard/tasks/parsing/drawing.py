"""Drawings of constituency trees: as text for a terminal, and as SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from regard.data.formats.trees import Tree, escape_word, parse_tree

_ROW, _GAP, _MARGIN = 46, 14, 12
"""Pixels between levels, between words and at the border."""
_CHARACTER = 8.2
"""Width of a character, in pixels, of the widest letters that are frequent in words."""
_INK, _FAINT, _ACCENT = "#1d2733", "#8a97a6", "#2b6cb0"


def draw_as_text(tree: str | Tree) -> str:
    """The tree with a line for each constituent and each word.

    Example:
        >>> print(draw_as_text("(S (NP (DT the) (NN sea)) (VP (VBZ calls)))"))
        S
        ├─ NP
        │  ├─ DT the
        │  └─ NN sea
        └─ VP
           └─ VBZ calls
    """
    root = parse_tree(tree) if isinstance(tree, str) else tree
    lines: list[str] = []
    stack: list[tuple[Tree, str, str]] = [(root, "", "")]
    while stack:
        node, first, rest = stack.pop()
        lines.append(f"{first}{node.label}" + (f" {escape_word(node.word)}" if node.word is not None else ""))
        last = len(node.children) - 1
        stack += [
            (child, f"{rest}{'└─ ' if number == last else '├─ '}", f"{rest}{'   ' if number == last else '│  '}")
            for number, child in reversed(list(enumerate(node.children)))
        ]
    return "\n".join(lines)


@dataclass
class _Placed:
    """A node with its place in pixels and levels."""

    node: Tree
    x: float
    level: int
    children: "Sequence[_Placed]"


def draw_as_svg(tree: str | Tree) -> str:
    """The tree as an SVG image: words in a row at the bottom, and above each constituent its label."""
    root = parse_tree(tree) if isinstance(tree, str) else tree
    leaves, depth = root.leaves(), _depth(root)
    widths = [_CHARACTER * max(len(leaf.word or ""), len(leaf.label)) + _GAP for leaf in leaves]
    centers = [_MARGIN + sum(widths[:number]) + width / 2 for number, width in enumerate(widths)]
    placed = _place(root, iter(centers), 0)
    width, height = sum(widths) + 2 * _MARGIN, _ROW * depth + 2 * _MARGIN + 34
    title = escape(" ".join(leaf.word or "" for leaf in leaves))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="13" '
        f'text-anchor="middle"><title>{title}</title>'
    ]
    stack = [placed]
    while stack:
        each = stack.pop()
        is_word = each.node.word is not None
        top = _MARGIN + _ROW * (depth if is_word else each.level) + 12
        label = (
            f'<text x="{each.x:.1f}" y="{top}" fill="{_FAINT if is_word else _ACCENT}">{escape(each.node.label)}</text>'
        )
        parts.append(label)
        if is_word:
            word = escape(each.node.word or "")
            parts.append(f'<text x="{each.x:.1f}" y="{top + 18}" fill="{_INK}">{word}</text>')
        for child in each.children:
            below = _MARGIN + _ROW * (depth if child.node.word is not None else child.level)
            line = f'x1="{each.x:.1f}" y1="{top + 5}" x2="{child.x:.1f}" y2="{below - 1}"'
            parts.append(f'<line {line} stroke="{_FAINT}" stroke-width="1"/>')
        stack += each.children
    return "".join([*parts, "</svg>"])


def _depth(node: Tree) -> int:
    """The levels of constituents above the deepest word."""
    deepest, stack = 0, [(node, 0)]
    while stack:
        each, level = stack.pop()
        deepest = max(deepest, level)
        stack += [(child, level + 1) for child in each.children]
    return deepest


def _place(node: Tree, centers: Iterator[float], level: int) -> _Placed:
    if node.word is not None:
        return _Placed(node, next(centers), level, ())
    children = [_place(child, centers, level + 1) for child in node.children]
    return _Placed(node, (children[0].x + children[-1].x) / 2, level, children)
