"""Selecting a model honestly: what was evaluated on which rows, and what the best score then guarantees.

`ledger` records each evaluation on held-out rows in an append-only file; `sealed` stores test rows that nothing reads
before they are opened; `siblings` finds other runs that were evaluated on the same rows; `bounds` bounds the true score
of the best of M candidates; `releases` decides what is shown of scores, so that a bound holds though they decide what
is tried next; `certificate` states all of it for one run. `space` is the search space of a sweep.
"""

from regard.selection.certificate import Certificate, CertifiedScore, certify
from regard.selection.ledger import Ledger
from regard.selection.releases import Ladder, Release, ReleasedScores, Thresholdout, bound_released
from regard.selection.siblings import Siblings, read_ledgers
from regard.selection.space import Range, Space, read_space

__all__ = [
    "Certificate",
    "CertifiedScore",
    "Ladder",
    "Ledger",
    "Range",
    "Release",
    "ReleasedScores",
    "Siblings",
    "Space",
    "Thresholdout",
    "bound_released",
    "certify",
    "read_ledgers",
    "read_space",
]
