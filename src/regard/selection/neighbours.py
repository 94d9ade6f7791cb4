"""Who else was judged by the same rows: the runs that lie beside a run, whose looks are looks as well.

Who trains ten runs one after the other on the same file and keeps the best has chosen among ten, though each ledger
tells of one. Sets are cut by content, so these runs have the same validation rows and the same test rows; the first
lines of a ledger have the hash of both, and by those the runs find each other. What was deleted, or lies elsewhere,
is not found.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import RunError
from regard.selection.ledger import (
    Ledger,
    Line,
    files,
    hypotheses,
    judged_keys,
    openings,
    replaced_openings,
    set_hash,
    tested,
)

LEDGER = "ledger.jsonl"
GROUP_MARKS = ("plan.json", "sweep.json")
"""What the folder of a comparison, or of a sweep, is known by."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """What the runs beside a run, and itself, have seen of its rows."""

    others: Sequence[str] = ()
    """Runs, comparisons and sweeps that the same validation rows have judged."""
    num_hypotheses: int = 0
    """All that these rows have judged, this run's own among them."""
    openers: Sequence[str] = ()
    """Those others that have opened the same test rows, and runs of the same comparison or sweep that have."""
    num_tested: int = 0
    """Scores on the test rows, this run's own among them."""
    num_by_file: Mapping[str, int] = field(default_factory=dict)
    """Of each hash of rows from elsewhere that this run was scored on, how many hypotheses here they have judged."""
    unread: Sequence[str] = ()
    """Those whose ledger cannot be read, so that nobody knows."""


def look_around(run: Path) -> Neighbours:
    """Read the ledgers of the runs in the folder that `run` lies in, or that its comparison or sweep lies in."""
    run = run.resolve()
    own = Ledger(run / LEDGER).read()
    home = home_of(run)
    count = _Count(run, home, set_hash(own, "valid"), set_hash(own, "test"), {file: set() for file in files(own)})
    for entry in _entries(home):
        count.add(entry)
    return count.result()


@dataclass
class _Count:
    run: Path
    home: Path
    valid_hash: str | None
    test_hash: str | None
    file_keys: dict[str, set[str]]
    keys: set[str] = field(default_factory=set)
    num_more: int = 0
    """Hypotheses that a sweep tells of, and whose runs are not here."""
    chains: set[str] = field(default_factory=set)
    num_replaced: int = 0
    others: list[str] = field(default_factory=list)
    openers: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def add(self, entry: Path) -> None:
        """Count what lies in a folder beside the run, or in the one that the run is or is part of."""
        is_own = self.run.is_relative_to(entry)
        keys, is_judged = set[str](), False
        for path in _ledgers(entry):
            name = str(path.parent.relative_to(self.home))
            try:
                lines = Ledger(path).read()
            except (RunError, OSError):
                self.unread.append(name)
                continue
            if self.valid_hash is not None and set_hash(lines, "valid") == self.valid_hash:
                keys |= judged_keys(lines)
                is_judged = True
            for file, known in self.file_keys.items():
                known |= judged_keys(lines, file)
            if self.test_hash is not None and set_hash(lines, "test") == self.test_hash:
                self._note_test(lines, None if path.parent == self.run else name if is_own else entry.name)
        if is_judged:
            self.num_more += max(0, _told_by_sweep(entry) - len(keys))
        self.keys |= keys
        if is_judged and not is_own:
            self.others.append(entry.name)

    def _note_test(self, lines: Sequence[Line], name: str | None) -> None:
        times, looks = replaced_openings(lines)
        self.chains |= {line["chain"] for line in tested(lines)}
        self.num_replaced += looks
        if name is not None and name not in self.openers and (times or openings(lines)):
            self.openers.append(name)

    def result(self) -> Neighbours:
        return Neighbours(
            others=self.others,
            num_hypotheses=len(self.keys) + self.num_more,
            openers=self.openers,
            num_tested=len(self.chains) + self.num_replaced,
            num_by_file={file: len(known) for file, known in self.file_keys.items()},
            unread=self.unread,
        )


def home_of(run: Path) -> Path:
    """The folder around a run, or around the comparison or sweep that it is part of."""
    home = run.parent
    for above in (run.parent, run.parent.parent):
        if _is_group(above):
            home = above.parent
    return home


def _entries(home: Path) -> Iterator[Path]:
    try:
        found = sorted(home.iterdir())
    except OSError:
        return
    yield from (path for path in found if _is_group(path) or (path / LEDGER).is_file())


def _ledgers(entry: Path) -> Iterator[Path]:
    """Of a run its own; of a group those of the runs in it, which a sweep has a folder deeper."""
    if not _is_group(entry):
        yield entry / LEDGER
        return
    for pattern in (f"*/{LEDGER}", f"*/*/{LEDGER}"):
        yield from sorted(entry.glob(pattern))


def _told_by_sweep(entry: Path) -> int:
    """How many hypotheses the ledger of a sweep tells of, those of other machines among them."""
    if not _is_group(entry) or not (entry / LEDGER).is_file():
        return 0
    try:
        return len(hypotheses(Ledger(entry / LEDGER).read()))
    except (RunError, OSError):
        return 0


def _is_group(path: Path) -> bool:
    return any((path / name).is_file() for name in GROUP_MARKS)
