"""Serving: runs behind an HTTP API, with a page to try them."""

from regard.serving.server import serve

__all__ = ["serve"]
