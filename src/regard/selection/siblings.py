"""Sibling runs: runs in the same folder that were evaluated on the same rows, whose evaluations count as well.

Training ten runs one after the other on the same file and keeping the best is a selection among ten, though each ledger
has only one. Splits are computed from content, so these runs have the same validation and the same test rows; the first
lines of a ledger have the hashes of both, by which siblings are found. Runs that were deleted or are elsewhere are not
found.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import RunError
from regard.selection.ledger import (
    Ledger,
    LedgerLine,
    candidate_keys,
    candidates_in,
    evaluations,
    file_hashes,
    openings_in,
    replaced_openings,
    set_hash,
)
from regard.selection.releases import Release, last_releases, num_unreleased, releases_in

LEDGER = "ledger.jsonl"
GROUP_MARKS = ("plan.json", "manifest.json", "sweep.json")
"""Files by which the folder of a comparison or of a sweep is recognized."""


@dataclass(frozen=True, kw_only=True)
class Siblings:
    """What a run and its siblings were evaluated on."""

    others: Sequence[str] = ()
    """Runs, comparisons and sweeps that were evaluated on the same validation rows."""
    num_candidates: int = 0
    """All candidates that were evaluated on these rows, those of this run included."""
    opened_by: Sequence[str] = ()
    """Siblings, and runs of the same comparison or sweep, that have opened the same test rows."""
    num_test_evaluations: int = 0
    """Evaluations on the test rows, those of this run included."""
    num_by_file: Mapping[str, int] = field(default_factory=dict)
    """For each hash of rows of another file that this run was evaluated on, the number of candidates they evaluated."""
    unreadable: Sequence[str] = ()
    """Runs whose ledger cannot be read, so that their evaluations are unknown."""
    unreleased: Sequence[str] = ()
    """Runs that have shown scores on these rows as they were measured, and not as a mechanism releases them."""
    releases: Sequence[Release] = ()
    """The last release of each record of a mechanism on these rows."""


def read_ledgers(run: Path) -> Siblings:
    """Read the ledgers of all runs in the folder of `run`, or in the folder of its comparison or sweep."""
    run = run.resolve()
    own = Ledger(run / LEDGER).read()
    folder = siblings_folder(run)
    files: dict[str, set[str]] = {file: set() for file in file_hashes(own)}
    count = _Count(run, folder, set_hash(own, "valid"), set_hash(own, "test"), files)
    for entry in _entries(folder):
        count.add(entry)
    return count.result()


@dataclass
class _Count:
    run: Path
    folder: Path
    valid_hash: str | None
    test_hash: str | None
    keys_by_file: dict[str, set[str]]
    keys: set[str] = field(default_factory=set)
    num_remote: int = 0
    """Candidates that the ledger of a sweep records, and whose runs are elsewhere."""
    chains: set[str] = field(default_factory=set)
    num_replaced: int = 0
    others: list[str] = field(default_factory=list)
    opened_by: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    unreleased: list[str] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)

    def add(self, entry: Path) -> None:
        """Count the evaluations of a run, comparison or sweep in the folder, which may be or contain the run itself."""
        is_own = self.run.is_relative_to(entry)
        keys, is_sibling = set[str](), False
        for path in _ledgers(entry):
            name = str(path.parent.relative_to(self.folder))
            try:
                lines = Ledger(path).read()
            except (RunError, OSError):
                self.unreadable.append(name)
                continue
            if self.valid_hash is not None and set_hash(lines, "valid") == self.valid_hash:
                keys |= candidate_keys(lines)
                is_sibling = True
                self.releases += releases_in(lines)
                if num_unreleased(lines):
                    self.unreleased.append(name)
            for file, known in self.keys_by_file.items():
                known |= candidate_keys(lines, file)
            if self.test_hash is not None and set_hash(lines, "test") == self.test_hash:
                self._add_test(lines, None if path.parent == self.run else name if is_own else entry.name)
        if is_sibling:
            self.num_remote += max(0, _num_in_sweep(entry) - len(keys))
        self.keys |= keys
        if is_sibling and not is_own:
            self.others.append(entry.name)

    def _add_test(self, lines: Sequence[LedgerLine], name: str | None) -> None:
        times, num_evaluations = replaced_openings(lines)
        self.chains |= {line["chain"] for line in evaluations(lines, "test")}
        self.num_replaced += num_evaluations
        if name is not None and name not in self.opened_by and (times or openings_in(lines)):
            self.opened_by.append(name)

    def result(self) -> Siblings:
        return Siblings(
            others=self.others,
            num_candidates=len(self.keys) + self.num_remote,
            opened_by=self.opened_by,
            num_test_evaluations=len(self.chains) + self.num_replaced,
            num_by_file={file: len(known) for file, known in self.keys_by_file.items()},
            unreadable=self.unreadable,
            unreleased=self.unreleased,
            releases=list(last_releases(self.releases).values()),
        )


def group_folder(run: Path) -> Path:
    """The folder of the comparison or sweep that a run is part of, or that of the run itself."""
    folder = run
    for above in (run.parent, run.parent.parent):
        if _is_group(above):
            folder = above
    return folder


def siblings_folder(run: Path) -> Path:
    """The parent folder of a run, or of the comparison or sweep that it is part of."""
    return group_folder(run).parent


def _entries(folder: Path) -> Iterator[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return
    yield from (path for path in found if _is_group(path) or (path / LEDGER).is_file())


def _ledgers(entry: Path) -> Iterator[Path]:
    """The ledger of a run; for a group those of its runs, which are one folder deeper in a sweep."""
    if not _is_group(entry):
        yield entry / LEDGER
        return
    for pattern in (f"*/{LEDGER}", f"*/*/{LEDGER}"):
        yield from sorted(entry.glob(pattern))


def _num_in_sweep(entry: Path) -> int:
    """The number of candidates in the ledger of a sweep, which includes those of other machines."""
    if not _is_group(entry) or not (entry / LEDGER).is_file():
        return 0
    try:
        return len(candidates_in(Ledger(entry / LEDGER).read()))
    except (RunError, OSError):
        return 0


def _is_group(path: Path) -> bool:
    return any((path / name).is_file() for name in GROUP_MARKS)
