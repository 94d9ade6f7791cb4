"""The plug-in in `plugin/` as if it were installed, inside this process."""

import importlib
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"


@contextmanager
def installed_plugin(folder: Path) -> Iterator[None]:
    """The entry points of the plug-in are found inside the context; `folder` is where their metadata is written."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths = [str(folder), str(PLUGIN)]
    sys.path[:0] = paths
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for path in paths:
            sys.path.remove(path)
