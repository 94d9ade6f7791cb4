"""The version of the package."""

from importlib import metadata


def version() -> str:
    """The version of the installed package, or `dev` in a bare source tree."""
    try:
        return metadata.version("regard")
    except metadata.PackageNotFoundError:
        return "dev"
