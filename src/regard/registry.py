"""Registries of plug-ins: tasks, models, metrics, importers, exporters and studies, found by entry point.

An installed package adds to a registry by declaring an entry point in its
`pyproject.toml`; the objects of this package are declared in the same way:

    [project.entry-points."regard.tasks"]
    forecasting = "my_package.forecasting:Forecasting"

Names are read from the metadata of installed packages without importing
anything; an object is imported when it is first needed.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any, Generic, TypeVar, cast

from regard.errors import ConfigError, PluginError
from regard.logging import log_warning
from regard.settings import nearest

Plugin = TypeVar("Plugin")


class Registry(Generic[Plugin]):
    """The objects that installed packages declare under one entry-point group.

    Args:
        group: The entry-point group, such as `regard.tasks`.
        kind: What an entry is called in messages, such as `task`.
        members: Attributes that every object must have.
    """

    def __init__(self, group: str, kind: str, *, members: Sequence[str] = ()) -> None:
        self.group, self.kind, self.members = group, kind, tuple(members)
        self._loaded: dict[str, Plugin] = {}
        self._broken: set[str] = set()

    def names(self) -> list[str]:
        """The registered names, sorted; nothing is imported."""
        return sorted({point.name for point in self._points()})

    def find(self, name: str) -> Plugin:
        """Return the object registered as `name`.

        Raises:
            ConfigError: If no package registers that name.
            PluginError: If two packages do, or if the object cannot be imported or lacks a member.
        """
        if not isinstance(name, str):
            raise ConfigError(f"the name of a {self.kind} must be a string, got {name!r}")
        if name in self._loaded:
            return self._loaded[name]
        points = [point for point in self._points() if point.name == name]
        if not points:
            raise ConfigError(f"unknown {self.kind} {name!r}{nearest(name, self.names())}")
        if len(points) > 1:
            packages = " and ".join(sorted(_package(point) for point in points))
            raise PluginError(f"two packages register the {self.kind} {name!r}: {packages}; uninstall one of them")
        self._loaded[name] = self._load(points[0])
        return self._loaded[name]

    def __iter__(self) -> Iterator[Plugin]:
        """Every object that can be loaded, by name; one that cannot is skipped with a warning, once."""
        for name in self.names():
            if name in self._broken:
                continue
            try:
                found = self.find(name)
            except PluginError as error:
                self._broken.add(name)
                log_warning(f"{error}; it is skipped")
                continue
            yield found

    def _points(self) -> list[metadata.EntryPoint]:
        return _entry_points(self.group, tuple(sys.path))

    def _load(self, point: metadata.EntryPoint) -> Plugin:
        where = f"the {self.kind} {point.name!r} of package {_package(point)} ({point.value})"
        try:
            found: Any = point.load()
        except (ImportError, AttributeError, SyntaxError) as error:
            raise PluginError(f"{where} cannot be imported: {error}") from error
        for member in self.members:
            if getattr(found, member, None) is None:
                raise PluginError(f"{where} has no member {member!r}")
        return cast("Plugin", found)


@lru_cache
def _entry_points(group: str, path: tuple[str, ...]) -> list[metadata.EntryPoint]:
    """Those of all packages on `path`, which is `sys.path`: reading the metadata of a hundred packages takes 10 ms."""
    # Two folders may contain the metadata of one package: the entry is the same.
    return list({(point.name, point.value): point for point in metadata.entry_points(group=group)}.values())


def _package(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module.partition(".")[0]
