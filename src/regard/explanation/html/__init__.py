"""The template, the components, the styles and the scripts of every HTML page.

A page is one file without references to others. Its data is embedded as JSON, and its script inserts text as text,
never as HTML.
"""

from regard.explanation.html.pages import ICON, embed_json, frame, page_data, page_file, page_html, write_page

__all__ = ["ICON", "embed_json", "frame", "page_data", "page_file", "page_html", "write_page"]
