"""The ledger: one line for each look at held-out data, appended and never changed.

Whoever looks at a set twice and keeps the better model has chosen by that set; how often somebody looked is what the
bounds of this folder ask for. A line says when, which set, what for, which hypothesis, and what was seen:

    {"time": "2026-11-16T09:30:00Z", "set": "valid", "what": "training", "hypothesis": "step 200",
     "scores": {"loss": 0.7}, "chain": "5f2a..."}

`chain` is the SHA-256 of the line before it and of all that stands in this one, so that a line that was edited, taken
out or put in between breaks the chain from there on. Behind the last line nothing would be missed: so the number of
lines and the last link are kept beside the ledger as well, in `ledger.head`. Both files can be written anew by someone
who means to; who has noted the last link, which a certificate prints, will see it.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import DeviceError, RunError
from regard.files import write_atomically

Line = dict[str, Any]

SEALED, HELD_OUT, OPENED, SELECTION, REPLACED = "sealed", "held out", "opened", "selection", "replaced"
"""What a line says that tells of no score: of the two sets themselves, of the many that a run was chosen from, and of
what a run had seen that was overwritten by this one."""
FILE = "file"
"""The set of a line that tells of scores on rows from elsewhere; it has their `hash`, and a `name` for them."""
_NO_SCORES = (SEALED, HELD_OUT, OPENED, SELECTION, REPLACED)
_START = ""
"""The link before the first line."""


class Ledger:
    """The looks of a run, or of several that belong together, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head_path = path.with_name("ledger.head")

    def add(self, role: str, what: str, hypothesis: str, scores: Mapping[str, Any], **more: Any) -> Line:
        """Append a line, and hand it back: `hypothesis` is what was judged, the same name for the same weights."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"time": now, "set": role, "what": what, "hypothesis": hypothesis, "scores": dict(scores), **more}
        try:
            with open(self.path, "a+b", buffering=0) as file:
                # Two processes that look at once must not forge the same link.
                fcntl.flock(file, fcntl.LOCK_EX)
                cut_to_whole_lines(file)
                lines = self._checked(file)
                line["chain"] = link(lines[-1]["chain"] if lines else _START, line)
                end = file.seek(0, os.SEEK_END)
                try:
                    _write_all(file, json.dumps(line, ensure_ascii=False).encode() + b"\n")
                    os.fsync(file.fileno())
                    write_atomically(self._head_path, f"{len(lines) + 1} {line['chain']}\n".encode())
                except (OSError, DeviceError):
                    os.truncate(file.fileno(), end)  # all of a line or none of it
                    raise
        except OSError as error:
            raise DeviceError(f"cannot write {self.path}: {error.strerror or error}; the existing file is unchanged") from None
        return line

    def read(self) -> list[Line]:
        """All lines, whose chain is whole; one that a crash cut short is no line yet."""
        if not self.path.exists():
            if self._head_path.exists():
                raise RunError(f"{self.path} is gone: {self._head_path.name} tells of lines in it")
            return []
        with open(self.path, "rb") as file:
            # Whoever writes now has written the line, and not yet the head. Where nobody can lock, nobody writes.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_SH)
            return self._checked(file)

    @property
    def head(self) -> str:
        """The last link: who notes it will see whether anything before it is changed."""
        lines = self.read()
        return lines[-1]["chain"] if lines else _START

    def remove(self) -> None:
        """Take ledger and head away, with the run that they belong to."""
        self.path.unlink(missing_ok=True)
        self._head_path.unlink(missing_ok=True)

    def copy_to(self, other: "Ledger") -> None:
        """Let another ledger begin with all that stands in this one."""
        if self.path.exists():
            other.path.write_bytes(self.path.read_bytes())
            other._head_path.write_bytes(self._head_path.read_bytes())

    def _checked(self, file: BinaryIO) -> list[Line]:
        file.seek(0)
        texts = file.read().split(b"\n")[:-1]
        before, lines = _START, []
        for number, text in enumerate(texts, start=1):
            line = self._parsed(text, number)
            if line.get("chain") != link(before, line):
                raise RunError(f"{self.path} is not as it was written: line {number} does not fit the chain of hashes")
            before = line["chain"]
            lines.append(line)
        self._require_head(lines)
        return lines

    def _parsed(self, text: bytes, number: int) -> Line:
        try:
            line = json.loads(text)
        except ValueError as error:
            raise RunError(f"{self.path} is damaged: line {number}, {error}") from None
        if not isinstance(line, dict):
            raise RunError(f"{self.path} is damaged: line {number} is no look")
        return line

    def _require_head(self, lines: list[Line]) -> None:
        """A crash between two writes leaves the head a line behind, never ahead."""
        if not self._head_path.exists():
            if lines:
                raise RunError(f"{self.path} is not as it was written: {self._head_path.name} is missing")
            return
        number, _, chain = self._head_path.read_text(encoding="utf-8").strip().partition(" ")
        count = int(number) if number.isdecimal() else -1
        if not 0 < count <= len(lines) or lines[count - 1]["chain"] != chain:
            raise RunError(
                f"{self.path} is not as it was written: it has {len(lines)} lines, "
                f"and {self._head_path.name} tells of {number or 'none'}"
            )


def _write_all(file: FileIO, data: bytes) -> None:
    """Without a buffer, that a full disk would leave to be written later, a write may stop halfway."""
    while data:
        data = data[file.write(data) :]


def link(before: str, line: Mapping[str, Any]) -> str:
    """The hash of a line and of the link before it.

    Example:
        >>> link("", {"set": "valid"}) == link("", {"set": "valid", "chain": "whatever it says"})
        True
        >>> link("", {"set": "valid"}) == link("ab", {"set": "valid"})
        False
    """
    content = {name: value for name, value in line.items() if name != "chain"}
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()


def hypotheses(lines: Iterable[Line], role: str = "valid") -> set[str]:
    """What was judged by a set: M is how many there are."""
    return {line["hypothesis"] for line in scored(lines, role)}


def scored(lines: Iterable[Line], role: str) -> list[Line]:
    """The lines that tell of scores on a set."""
    return [line for line in lines if line["set"] == role and line["what"] not in _NO_SCORES]


def tested(lines: Iterable[Line]) -> list[Line]:
    """The lines that tell of scores on the test rows."""
    return scored(lines, "test")


def judged_keys(lines: Iterable[Line], file: str | None = None) -> set[str]:
    """What the validation rows judged, or those with the hash `file`, by keys that are the same in other ledgers.

    A key is made of a hypothesis and of the first scores that it had: two trainings
    have the same ones only where the second repeats the first. What an overwritten
    run had judged counts as well.
    """
    lines = list(lines)
    role = "valid" if file is None else FILE
    about = [line for line in lines if line["set"] == role and (file is None or line["hash"] == file)]
    first: dict[str, Line] = {}
    for line in scored(about, role):
        first.setdefault(line["hypothesis"], line)
    keys = {_key(line) for line in first.values()}
    return keys.union(*(line["keys"] for line in about if line["what"] == REPLACED))


def files(lines: Iterable[Line]) -> list[str]:
    """The hashes of rows from elsewhere that judged something, those of the last look last."""
    return list(dict.fromkeys(line["hash"] for line in reversed(list(lines)) if line["set"] == FILE))[::-1]


def openings(lines: Iterable[Line]) -> list[Line]:
    """How often the test set was opened."""
    return [line for line in lines if line["what"] == OPENED]


def replaced_openings(lines: Iterable[Line]) -> tuple[int, int]:
    """How often runs that this one has overwritten opened the same test rows, and how many scores they saw."""
    found = [line for line in lines if line["what"] == REPLACED and line["set"] == "test"]
    return sum(line["openings"] for line in found), sum(line["looks"] for line in found)


def set_hash(lines: Iterable[Line], role: str) -> str | None:
    """The hash of the rows of a set, which runs on the same rows have in common; None where there are none."""
    what = SEALED if role == "test" else HELD_OUT
    return next((line["hash"] for line in lines if line["what"] == what), None)


def _key(line: Line) -> str:
    text = json.dumps([line["hypothesis"], line["scores"]], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def cut_to_whole_lines(file: BinaryIO) -> None:
    """Drop a last line that a crash cut short, or the next one would be joined to it."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) in (b"", b"\n"):
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
