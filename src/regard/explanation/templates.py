"""Pages that stand alone: one skeleton for all, with a body, its style, its scripts and its data inside."""

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from regard.files import write_atomically

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="16" rx="3.5" fill="#3450b8"/>'
    '<g fill="#fff"><rect x="3" y="3" width="3" height="3" rx=".7"/>'
    '<rect x="6.5" y="6.5" width="3" height="3" rx=".7"/><rect x="10" y="10" width="3" height="3" rx=".7"/></g>'
    '<g fill="#fff" fill-opacity=".4"><rect x="6.5" y="3" width="3" height="3" rx=".7"/>'
    '<rect x="3" y="6.5" width="3" height="3" rx=".7"/><rect x="10" y="6.5" width="3" height="3" rx=".7"/>'
    '<rect x="6.5" y="10" width="3" height="3" rx=".7"/></g></svg>'
)


def write_page(
    path: str | os.PathLike[str], body: str, *, title: str, data: Any, styles: Sequence[str], scripts: Sequence[str]
) -> None:
    """Fill the skeleton of the folder `pages` and write it whole: a reader never sees half a page.

    Args:
        path: Where the page goes.
        body: The name of the file of its body.
        title: Text for the title bar.
        data: What the page's scripts read: anything JSON can hold, and numpy's numbers.
        styles: The names of its style sheets, in order.
        scripts: The names of its scripts, in order; the last of them starts the others.
    """
    parts = {
        "title": html.escape(title),
        "icon": "data:image/svg+xml," + quote(ICON),
        "style": "\n".join(map(page_file, styles)),
        "script": "\n".join(map(page_file, scripts)),
        "data": embed(data),
    }
    template = page_file("skeleton.html").replace("{{body}}", page_file(body).strip())
    # One pass, so that braces inside a part are never taken for places to fill.
    text = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)
    write_atomically(Path(path), text.encode("utf-8", errors="replace"))


def embed(data: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or open another."""
    text = json.dumps(_plain(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    unsafe = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
    return text.translate(unsafe)


def _plain(data: Any) -> Any:
    """`data` as JSON knows it; a number that is not finite becomes null, since JSON has no word for it."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, np.generic):
        return _plain(data.item())
    if isinstance(data, float) and not np.isfinite(data):
        return None
    return data


def page_file(name: str) -> str:
    """What a file of the folder `pages` holds."""
    return (resources.files("regard.explanation") / "pages" / name).read_text(encoding="utf-8")
