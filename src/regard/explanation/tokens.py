"""Tokens as text in which every character can be seen."""

import unicodedata

_SYMBOLS = {" ": "·", "\u00a0": "·", "\u3000": "·", "\n": "↵", "\t": "⇥", "\x7f": "␡"}


def visible(piece: str) -> str:
    """Returns `piece` with its invisible characters replaced by symbols.

    Spaces become middle dots, line ends and tabs arrows, and other control characters their Unicode pictures. A
    combining mark at the beginning gets a dotted circle as its base, and a piece of format characters only (such as
    joiners) is written as code points.

    Example:
        >>> visible(" the"), visible("\\n")
        ('·the', '↵')
    """
    if piece and all(unicodedata.category(character) == "Cf" for character in piece):
        return " ".join(f"U+{ord(character):04X}" for character in piece)
    shown = "".join(map(_symbol, piece))
    return f"◌{shown}" if shown and unicodedata.category(shown[0]).startswith("M") else shown


def _symbol(character: str) -> str:
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    # A lone surrogate cannot be encoded as UTF-8, nor a control character as XML.
    return "\ufffd" if unicodedata.category(character) in {"Cc", "Cs"} else character
