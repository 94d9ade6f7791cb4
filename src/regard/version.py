"""The version of the package."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """The version of the installed package, or `dev` in a bare source tree."""
    try:
        return metadata.version("regard")
    except metadata.PackageNotFoundError:
        return "dev"
