"""What no reader may do with the file of a stranger, watched by an audit hook.

The hook of Python sees every file that Python code opens, creates, removes or renames, every program that is started,
every connection, and every import. It cannot be removed, so it is switched on around each execution only. Libraries in
other languages open files unseen: safetensors and pyarrow are given paths that regard has opened before.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.startfile")
_FORBIDDEN = (*_PROGRAMS, "socket.connect", "socket.bind", "pickle.find_class", "ctypes.dlopen")
_CHANGES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.symlink": (1,), "os.link": (0, 1),
    "os.chmod": (0,), "os.chown": (0,), "os.truncate": (0,), "shutil.rmtree": (0,), "os.utime": (0,),
}  # fmt: skip
_READABLE = ("/usr/", "/lib", "/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/localtime", "/etc/timezone")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class EscapeError(BaseException):
    """A reader did what none may do. It is no `Exception`, so that no reader catches it."""


class Guard:
    """Watches what happens between `watched` and its end."""

    def __init__(self, folder: str, readable: tuple[str, ...] = ()) -> None:
        self._folder = os.path.realpath(folder)
        roots = {sys.prefix, sys.base_prefix, *(path for path in sys.path if path), *readable}
        self._readable = (*_READABLE, *(os.path.realpath(root) for root in roots))
        self._data = b""
        self._is_on = False
        self.escape = ""
        sys.addaudithook(self._hook)

    @contextmanager
    def watched(self, data: bytes) -> Iterator[None]:
        """Watch while `data` is read."""
        self._data, self.escape, self._is_on = data, "", True
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # of modules that a reader imports late
        try:
            yield
        finally:
            self._is_on, sys.dont_write_bytecode = False, before

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event == "open":
            self._check_open(*arguments[:3])
        elif event == "import":
            self._check_import(str(arguments[0]))
        elif event in _FORBIDDEN:
            self._raise(f"{event} {arguments[:2]!r}")
        elif event in _CHANGES:
            for place in _CHANGES[event]:
                self._check_change(event, arguments[place])

    def _check_open(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, str | bytes):
            return
        name = os.path.realpath(os.fsdecode(path))
        is_writing = bool(flags & _WRITING) if isinstance(flags, int) else False
        if self._is_inside(name) or name == os.devnull:
            return
        if is_writing or not name.startswith(self._readable):
            self._raise(f"{'wrote to' if is_writing else 'read'} {name}")

    def _check_change(self, event: str, path: Any) -> None:
        if isinstance(path, str | bytes):
            # The last part of a path is not followed by these calls.
            head, tail = os.path.split(os.fsdecode(path))
            if not self._is_inside(os.path.join(os.path.realpath(head), tail)):
                self._raise(f"{event} {path!r}")

    def _check_import(self, name: str) -> None:
        top = name.partition(".")[0]
        if top not in sys.modules and top.encode() in self._data and top not in ("regard", "pandas"):
            self._raise(f"imported {name}")

    def _is_inside(self, name: str) -> bool:
        return name == self._folder or name.startswith(self._folder + os.sep)

    def _raise(self, what: str) -> None:
        self.escape = what
        raise EscapeError(what)
