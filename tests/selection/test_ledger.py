import errno
import json
import threading
from pathlib import Path

import pytest

from regard.errors import DeviceError, RunError
from regard.selection.ledger import OPENED, SEALED, Ledger, candidates_in, chain_hash, openings_in


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.jsonl")
    made.add("test", SEALED, "", {}, rows=9, hash="ab")
    for step in (10, 20, 30):
        made.add("valid", "training", f"step {step}", {"loss": 1 / step})
    made.add("valid", "report", "step 30", {"accuracy": 0.9}, rows=40)
    return made


def test_what_was_written_is_read(ledger: Ledger):
    lines = ledger.read()
    assert [line["event"] for line in lines] == [SEALED, "training", "training", "training", "report"]
    assert lines[-1]["rows"] == 40
    assert ledger.head == lines[-1]["chain"]


def test_the_same_weights_count_once(ledger: Ledger):
    assert candidates_in(ledger.read()) == {"step 10", "step 20", "step 30"}
    assert candidates_in(ledger.read(), "test") == set()
    ledger.add("test", OPENED, "step 30", {}, reason="test")
    ledger.add("test", "evaluation", "step 30", {"accuracy": 0.8})
    assert candidates_in(ledger.read(), "test") == {"step 30"}
    assert len(openings_in(ledger.read())) == 1


def edited(line: bytes) -> bytes:
    return line.replace(b'"step 20"', b'"step 10"')


CHANGES = {
    "a line is edited": (lambda lines: [edited(line) for line in lines], "line 3 does not match"),
    "a line is taken out": (lambda lines: lines[:2] + lines[3:], "line 3 does not match"),
    "lines change places": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2 does not match"),
    "a line is repeated": (lambda lines: [*lines, lines[-1]], "line 6 does not match"),
    "the last line is taken away": (lambda lines: lines[:-1], "has 4 lines, and ledger.head records 5"),
    "all lines are taken away": (lambda lines: [], "has 0 lines, and ledger.head records 5"),
    "a line is not an object": (lambda lines: [*lines, b"7"], "line 6 is not an object"),
    "a line is no JSON": (lambda lines: [b"{]", *lines], "damaged: line 1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen_by_readers_and_writers(ledger: Ledger, change: str):
    change_lines, message = CHANGES[change]
    lines = ledger.path.read_bytes().splitlines()
    ledger.path.write_bytes(b"".join(line + b"\n" for line in change_lines(lines)))
    for act in (ledger.read, lambda: ledger.add("valid", "training", "step 40", {})):
        with pytest.raises(RunError, match=message):
            act()


def test_a_missing_ledger_or_head_is_noticed(ledger: Ledger):
    whole = ledger.path.read_bytes()
    ledger.path.unlink()
    with pytest.raises(RunError, match=r"is missing, but ledger\.head exists"):
        ledger.read()
    ledger.path.write_bytes(whole)
    (ledger.path.parent / "ledger.head").unlink()
    with pytest.raises(RunError, match=r"ledger\.head is missing"):
        ledger.read()


def test_a_crash_between_the_two_files_or_inside_of_a_line_is_not_a_change(ledger: Ledger):
    head = (ledger.path.parent / "ledger.head").read_bytes()
    ledger.add("valid", "training", "step 40", {})
    (ledger.path.parent / "ledger.head").write_bytes(head)
    assert len(ledger.read()) == 6
    ledger.path.write_bytes(ledger.path.read_bytes() + b'{"time": "2026-')
    assert len(ledger.read()) == 6
    ledger.add("valid", "training", "step 50", {})
    assert [json.loads(line)["candidate"] for line in ledger.path.read_text().splitlines()][-2:] == [
        "step 40",
        "step 50",
    ]


def test_a_crash_between_the_first_line_and_its_head_is_not_a_change(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add("valid", "training", "step 10", {})
    (tmp_path / "ledger.head").unlink()
    assert len(ledger.read()) == 1
    ledger.add("valid", "training", "step 20", {})
    assert (tmp_path / "ledger.head").read_text().startswith("2 ")


def test_lines_of_several_writers_at_once_make_one_chain(tmp_path: Path):
    writers = [
        threading.Thread(
            target=lambda: [Ledger(tmp_path / "ledger.jsonl").add("valid", "x", "y", {}) for _ in range(9)]
        )
        for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Ledger(tmp_path / "ledger.jsonl").read()) == 36


@pytest.mark.parametrize("fails", ["os.fsync", "write_atomically"])
def test_a_line_that_cannot_be_written_leaves_the_ledger_as_it_was(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, fails: str
):
    before = ledger.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(f"regard.selection.ledger.{fails}", full)
        with pytest.raises(
            DeviceError, match=r"cannot write .*ledger.jsonl: No space left on device; the existing file"
        ):
            ledger.add("test", OPENED, "step 30", {}, reason="test")
    assert ledger.path.read_bytes() == before
    assert not openings_in(ledger.read())
    ledger.add("test", OPENED, "step 30", {}, reason="test")
    assert len(openings_in(ledger.read())) == 1


def test_a_ledger_of_another_version_is_refused_in_one_line(ledger: Ledger):
    old = {"time": "2026-01-01T00:00:00Z", "set": "valid", "what": "training", "hypothesis": "step 1", "scores": {}}
    line = {**old, "chain": chain_hash("", old)}
    ledger.path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(RunError, match=r"ledger version 1, written by regard 0\.1; this regard reads version 2$"):
        ledger.read()
    ledger.remove()
    assert ledger.add("valid", "training", "step 1", {})["version"] == 2
