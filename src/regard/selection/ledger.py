"""The ledger: one line for each evaluation on held-out data, appended and never changed.

Evaluating on a set twice and keeping the better model is a selection by that set; how many candidates a set has
evaluated is what the bounds of this folder need. A line records when, which set, which event, which candidate (a
checkpoint with its decoding options), and the scores:

    {"version": 2, "time": "2026-11-16T09:30:00Z", "set": "valid", "event": "training", "candidate": "step 200",
     "scores": {"loss": 0.7}, "chain": "5f2a..."}

`chain` is the SHA-256 of the previous line's `chain` and of the content of this line, so that editing, removing or
inserting a line breaks the chain from there on. Removing lines from the end would not, so the number of lines and the
last hash are also stored beside the ledger, in `ledger.head`. Both files can be rewritten on purpose; a copy of the
last hash, which a certificate prints, reveals it.
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

from regard.errors import RunError, WriteError
from regard.files import load_json, write_atomically

LedgerLine = dict[str, Any]

LEDGER_VERSION = 2
"""The version of the fields of a line; a ledger with lines of another version is refused."""
TRAINING, RUN_REPORT, EVALUATION = "training", "report", "evaluation"
"""Events with scores: an evaluation during training, the one at its end, and a later one."""
SEALED, HELD_OUT, OPENED, SELECTION, REPLACED = "sealed", "held out", "opened", "selection", "replaced"
"""Events without scores: the test rows were sealed, the validation rows set aside, the test rows opened; the run was
one of several of which the best is selected; the run replaced another that had used the same rows."""
FILE = "file"
"""The set of a line with scores on rows of another file; the line has their `hash` and a `name` for them."""
_WITHOUT_SCORES = (SEALED, HELD_OUT, OPENED, SELECTION, REPLACED)
_FIELDS: Mapping[str, type] = {"set": str, "event": str, "candidate": str, "scores": dict}
_FIELDS_OF_EVENT: Mapping[str, Mapping[str, type]] = {
    SEALED: {"rows": int, "hash": str},
    HELD_OUT: {"rows": int, "hash": str},
    SELECTION: {"by": str, "models": int, "candidates": int},
}
"""What each line has, and what the line of an event has beside it."""
_OPTIONAL: Mapping[str, type] = {
    "rows": int,
    "headline": str,
    "name": str,
    "time": str,
    "keys": list,
    "unreleased": int,
}
_KINDS = {str: "a text", int: "an integer", dict: "an object", list: "a list"}
_MOST_DIGITS = 12
_START = ""
"""The hash before the first line."""


class Ledger:
    """The evaluations of a run, or of several runs that belong together, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head_path = path.with_name("ledger.head")

    def add(self, role: str, event: str, candidate: str, scores: Mapping[str, Any], **more: Any) -> LedgerLine:
        """Append a line and return it; `candidate` names what was evaluated, equal weights by equal names."""
        line = {
            "version": LEDGER_VERSION,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "set": role,
            "event": event,
            "candidate": candidate,
            "scores": dict(scores),
            **more,
        }
        try:
            with open(self.path, "a+b", buffering=0) as file:
                # Two processes that append at the same time must not compute the same hash.
                fcntl.flock(file, fcntl.LOCK_EX)
                drop_partial_line(file)
                lines = self._checked(file)
                line["chain"] = chain_hash(lines[-1]["chain"] if lines else _START, line)
                end = file.seek(0, os.SEEK_END)
                try:
                    _write_all(file, json.dumps(line, ensure_ascii=False).encode() + b"\n")
                    os.fsync(file.fileno())
                    write_atomically(self._head_path, f"{len(lines) + 1} {line['chain']}\n".encode())
                except (OSError, WriteError):
                    os.truncate(file.fileno(), end)  # the whole line or nothing
                    raise
        except OSError as error:
            reason = error.strerror or error
            raise WriteError(f"cannot write {self.path}: {reason}; the existing file is unchanged") from None
        return line

    def read(self) -> list[LedgerLine]:
        """All lines, after the chain was verified; a partial last line, left by a crash, is ignored."""
        if not self.path.exists():
            if self._head_path.exists():
                raise RunError(f"{self.path} is missing, but {self._head_path.name} exists")
            return []
        with open(self.path, "rb") as file:
            # A writer may have written the line, and not yet the head. Where locking is impossible, so is writing.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_SH)
            return self._checked(file)

    @property
    def head(self) -> str:
        """The last hash: a copy of it reveals any later change of the lines before."""
        lines = self.read()
        return lines[-1]["chain"] if lines else _START

    def remove(self) -> None:
        """Delete the ledger and its head, with the run that they belong to."""
        self.path.unlink(missing_ok=True)
        self._head_path.unlink(missing_ok=True)

    def copy_to(self, other: "Ledger") -> None:
        """Start another ledger with all lines of this one."""
        if self.path.exists():
            other.path.write_bytes(self.path.read_bytes())
            other._head_path.write_bytes(self._head_path.read_bytes())

    def _checked(self, file: BinaryIO) -> list[LedgerLine]:
        file.seek(0)
        texts = file.read().split(b"\n")[:-1]
        before, lines = _START, []
        for number, text in enumerate(texts, start=1):
            line = self._parsed(text, number)
            if line.get("chain") != chain_hash(before, line):
                raise RunError(f"{self.path} was changed: line {number} does not match the chain of hashes")
            before = line["chain"]
            lines.append(line)
        self._check_head(lines)
        return lines

    def _parsed(self, text: bytes, number: int) -> LedgerLine:
        try:
            line = load_json(text)
        except ValueError as error:
            raise RunError(f"{self.path} is damaged: line {number}, {error}") from None
        if not isinstance(line, dict):
            raise RunError(f"{self.path} is damaged: line {number} is not an object")
        if (version := line.get("version", 1)) != LEDGER_VERSION:
            other = "0.1" if version == 1 else "a later version"
            raise RunError(
                f"{self.path} has ledger version {version}, written by regard {other}; this regard reads version "
                f"{LEDGER_VERSION}"
            )
        if fault := _fault(line):
            raise RunError(f"{self.path} is damaged: line {number} has {fault}")
        return line

    def _check_head(self, lines: list[LedgerLine]) -> None:
        """A crash between the two writes leaves the head one line behind, never ahead; the first line without one."""
        if not self._head_path.exists():
            if len(lines) > 1:
                raise RunError(f"{self.path} was changed: {self._head_path.name} is missing")
            return
        number, _, chain = self._head_path.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
        count = int(number) if number.isascii() and number.isdecimal() and len(number) < _MOST_DIGITS else -1
        if not 0 < count <= len(lines) or lines[count - 1]["chain"] != chain:
            raise RunError(
                f"{self.path} was changed: it has {len(lines)} lines, and {self._head_path.name} records "
                f"{number[:_MOST_DIGITS] or 'none'}"
            )


def _fault(line: LedgerLine) -> str:
    """What a line lacks, as the object of `the line has`; empty where it has everything that its event needs."""
    needed = {**_FIELDS, **_FIELDS_OF_EVENT.get(str(line.get("event")), {})}
    if line.get("set") == FILE:
        needed["hash"] = str
    if line.get("event") == REPLACED:
        needed |= {"openings": int, "evaluations": int} if line.get("set") == "test" else {"keys": list}
    for name, kind in needed.items():
        if not isinstance(line.get(name), kind) or isinstance(line[name], bool):
            return f"no {name}, which must be {_KINDS[kind]}"
    for name, kind in _OPTIONAL.items():
        if name in line and not isinstance(line[name], kind):
            return f"a {name} that is not {_KINDS[kind]}"
    if any(not isinstance(key, str) for key in line.get("keys", ())):
        return "keys that are not texts"
    for name, score in line["scores"].items():
        fields = score if isinstance(score, dict) else {"value": score}
        if not all(_fits(key, fields.get(key)) for key in ("value", "interval", "signature")):
            return f"a score {name!r} that is neither a number nor one with its interval"
    return ""


def _fits(name: str, value: Any) -> bool:
    """Whether a field of a score has its type."""
    match name:
        case "interval":
            return value is None or (isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)))
        case "signature":
            return value is None or isinstance(value, str)
    return value is None or isinstance(value, str) or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _write_all(file: FileIO, data: bytes) -> None:
    """An unbuffered write may be partial; a buffer would be written later, when an error is no longer seen."""
    while data:
        data = data[file.write(data) :]


def chain_hash(before: str, line: Mapping[str, Any]) -> str:
    """The hash of a line's content and of the previous hash.

    Example:
        >>> chain_hash("", {"set": "valid"}) == chain_hash("", {"set": "valid", "chain": "ignored"})
        True
        >>> chain_hash("", {"set": "valid"}) == chain_hash("ab", {"set": "valid"})
        False
    """
    content = {name: value for name, value in line.items() if name != "chain"}
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()


def weights_name(step: int, rollbacks: int = 0) -> str:
    """The name of the weights of a step, as a candidate: after training has returned to a checkpoint, others.

    Example:
        >>> weights_name(200), weights_name(200, 2)
        ('step 200', 'step 200 after 2 rollbacks')
    """
    after = f" after {rollbacks} rollback{'' if rollbacks == 1 else 's'}" if rollbacks else ""
    return f"step {step}{after}"


def candidates_in(lines: Iterable[LedgerLine], role: str = "valid") -> set[str]:
    """The candidates that were evaluated on a set; their number is M."""
    return {line["candidate"] for line in evaluations(lines, role)}


def evaluations(lines: Iterable[LedgerLine], role: str) -> list[LedgerLine]:
    """The lines with scores on a set."""
    return [line for line in lines if line["set"] == role and line["event"] not in _WITHOUT_SCORES]


def candidate_keys(lines: Iterable[LedgerLine], file: str | None = None) -> set[str]:
    """Keys, equal across ledgers, of the candidates evaluated on the validation rows, or on those with the hash `file`.

    A key is computed from a candidate's name and its first scores: two trainings
    have the same keys only where the second repeats the first. Candidates of a
    run that was overwritten count as well.
    """
    role = "valid" if file is None else FILE
    lines = [line for line in lines if line["set"] == role and (file is None or line["hash"] == file)]
    first: dict[str, LedgerLine] = {}
    for line in evaluations(lines, role):
        first.setdefault(line["candidate"], line)
    keys = {_key(line) for line in first.values()}
    return keys.union(*(line["keys"] for line in lines if line["event"] == REPLACED))


def file_hashes(lines: Iterable[LedgerLine]) -> list[str]:
    """The hashes of rows of other files that something was evaluated on, the most recent last."""
    return list(dict.fromkeys(line["hash"] for line in reversed(list(lines)) if line["set"] == FILE))[::-1]


def openings_in(lines: Iterable[LedgerLine]) -> list[LedgerLine]:
    """The lines that record an opening of the test set."""
    return [line for line in lines if line["event"] == OPENED]


def replaced_openings(lines: Iterable[LedgerLine]) -> tuple[int, int]:
    """The numbers of openings of, and of evaluations on, the same test rows by runs that this one has overwritten."""
    found = [line for line in lines if line["event"] == REPLACED and line["set"] == "test"]
    return sum(line["openings"] for line in found), sum(line["evaluations"] for line in found)


def set_hash(lines: Iterable[LedgerLine], role: str) -> str | None:
    """The hash of the rows of a set, by which runs on the same rows are found; None where there are none."""
    event = SEALED if role == "test" else HELD_OUT
    return next((line["hash"] for line in lines if line["event"] == event), None)


def _key(line: LedgerLine) -> str:
    text = json.dumps([line["candidate"], line["scores"]], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def drop_partial_line(file: BinaryIO) -> None:
    """Remove a last line that a crash left incomplete, so that the next one is not appended to it."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) in (b"", b"\n"):
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
