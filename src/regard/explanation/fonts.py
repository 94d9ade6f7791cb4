"""Fonts for tokens of any script: matplotlib draws with the first one of a list that has the sign."""

from collections.abc import Iterable
from functools import cache

from matplotlib import font_manager, ft2font

PREFERRED = (
    "DejaVu Sans",  # comes with matplotlib, so it is always there
    "Noto Sans",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Thai",
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Arial Unicode MS",
    "Segoe UI",
    "Nirmala UI",
    "Leelawadee UI",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans",
)
"""Plain faces that look well beside each other, tried before all others that are installed."""


def fonts_for(texts: Iterable[str]) -> list[str]:
    """Families, most preferred first, that together have the signs of `texts` as far as the machine has them."""
    missing = {ord(character) for text in texts for character in text}
    chosen: list[str] = []
    for family, path in _candidates():
        covered = missing & _signs(path)
        if covered or not chosen:
            chosen.append(family)
            missing -= covered
        if not missing:
            break
    return chosen


@cache
def _candidates() -> tuple[tuple[str, str], ...]:
    """Family and file of each upright face of ordinary weight: the preferred ones, other plain ones, the rest.

    A "last resort" face claims every sign and draws a box for each, so it comes at the end.
    """
    faces: dict[str, str] = {}
    for entry in font_manager.fontManager.ttflist:
        if entry.style == "normal" and entry.weight in {400, "normal", "regular"}:
            faces.setdefault(entry.name, entry.fname)
    ranks = {family: rank for rank, family in enumerate(PREFERRED)}

    def order(face: tuple[str, str]) -> tuple[bool, int, bool, str]:
        family = face[0]
        return family.startswith("Last Resort"), ranks.get(family, len(ranks)), "Sans" not in family, family

    return tuple(sorted(faces.items(), key=order))


@cache
def _signs(path: str) -> frozenset[int]:
    try:
        return frozenset(ft2font.FT2Font(path).get_charmap())
    except FileNotFoundError:  # matplotlib lists fonts once and does not notice when one is removed
        return frozenset()
