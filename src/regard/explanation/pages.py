"""Self-contained HTML pages: a template of `html/` into which its styles and scripts, and the data, are embedded.

A page is one file without references to others. Its script inserts text as text, never as HTML.
"""

import html
import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from regard.files import write_atomically

ICON = "data:image/svg+xml," + quote(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="16" rx="3.5" fill="#3450b8"/>'
    '<g fill="#fff"><rect x="3" y="3" width="3" height="3" rx=".7"/>'
    '<rect x="6.5" y="6.5" width="3" height="3" rx=".7"/><rect x="10" y="10" width="3" height="3" rx=".7"/></g>'
    '<g fill="#fff" fill-opacity=".4"><rect x="6.5" y="3" width="3" height="3" rx=".7"/>'
    '<rect x="3" y="6.5" width="3" height="3" rx=".7"/><rect x="10" y="6.5" width="3" height="3" rx=".7"/>'
    '<rect x="6.5" y="10" width="3" height="3" rx=".7"/></g></svg>'
)
COMPONENTS = {
    "attention": ["attention", "picture_attention"],
    "highlights": ["highlights"],
    "image-maps": ["attention", "image-maps"],
    "summary": ["summary"],
    "report": ["charts", "attention", "picture_attention", "highlights", "summary", "samples", "report"],
    "comparison": ["charts", "samples", "models", "comparison"],
}
"""For each kind of page its components after `common`: a script, and a style sheet where there is one."""
_DATA = re.compile(r'<script type="application/json" id="page-data">(.*?)</script>', re.DOTALL)


def write_page(path: str | os.PathLike[str], kind: str, *, title: str, data: Any) -> None:
    """Writes a page of a kind of `COMPONENTS`, atomically: a reader never sees an unfinished page."""
    write_atomically(Path(path), page_html(kind, title=title, data=data).encode("utf-8", errors="replace"))


def page_html(kind: str, *, title: str, data: Any) -> str:
    """Returns the page; `data` is what its scripts read: anything JSON can represent, and NumPy numbers."""
    names = ["common", *COMPONENTS[kind]]
    parts = {
        "kind": kind,
        "title": html.escape(title),
        "icon": ICON,
        "style": "\n".join(page_file(f"{name}.css") for name in names if has_page_file(f"{name}.css")),
        "script": "\n".join(page_file(f"{name}.js") for name in names),
        "data": embed_json(data),
    }
    # In one pass, so that braces inside a part are not taken for places to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], page_file("page.html"))


def page_data(path: str | os.PathLike[str]) -> Any:
    """Returns the data that is embedded in a page; None where the file is not such a page."""
    found = _DATA.search(Path(path).read_text(encoding="utf-8"))
    return None if found is None else json.loads(found[1])


def frame(page: str, *, height: int = 720) -> str:
    """Returns a page as a frame for the output of a notebook cell."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: {height}px; border: 0"></iframe>'


def embed_json(data: Any) -> str:
    """Returns JSON that is safe inside a script element: no text in it can end the element or open another."""
    text = json.dumps(plain(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    unsafe = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
    return text.translate(unsafe)


def plain(data: Any) -> Any:
    """Returns `data` in the types of JSON; a number that is not finite becomes None, since JSON has none."""
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, np.generic):
        return plain(data.item())
    if isinstance(data, float) and not np.isfinite(data):
        return None
    return data


def page_file(name: str) -> str:
    """Returns the content of a template, style sheet or script of this folder."""
    return (resources.files("regard.explanation") / "html" / name).read_text(encoding="utf-8")


def has_page_file(name: str) -> bool:
    return (resources.files("regard.explanation") / "html" / name).is_file()
