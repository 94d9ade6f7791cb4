"""Machines that share the storage of a sweep: each shows that it is there, and takes over from one that is gone.

A machine counts up in the storage while it works. Whoever waits for its trials watches that number by a clock of
their own, since those of two machines need not agree; where it has stood still for long, its trials are trained anew.
"""

import time
from typing import TYPE_CHECKING

from optuna.trial import Trial, TrialState

from regard.runs.sweep_study import OWNER, trials_of

if TYPE_CHECKING:
    from optuna.study import Study

_BEAT_SECONDS = 20.0
_SILENT_SECONDS = 300.0
"""A machine that has not counted for so long is gone."""


class Machines:
    """The folders that train trials of one study, as one of them, `owner`, sees them."""

    def __init__(self, study: "Study", owner: str) -> None:
        self._study, self._owner = study, owner
        self._last_beat, self._count = -_BEAT_SECONDS, 0
        self._seen: dict[str, tuple[int, float]] = {}
        """Of each other the number last seen, and when it was first seen."""

    def beat(self) -> None:
        """Show that this one is there."""
        if time.monotonic() - self._last_beat >= _BEAT_SECONDS:
            self._last_beat, self._count = time.monotonic(), self._count + 1
            self._study.set_user_attr(f"beat {self._owner}", self._count)

    def take_over(self) -> list[int]:
        """The trials of those that are gone, which are this one's from now on."""
        running = [trial for trial in trials_of(self._study) if trial.state == TrialState.RUNNING]
        gone = {trial.user_attrs.get(OWNER, "") for trial in running} - {self._owner}
        gone = {owner for owner in gone if self._is_silent(owner)}
        taken = [trial for trial in running if trial.user_attrs.get(OWNER, "") in gone]
        for trial in taken:
            Trial(self._study, trial._trial_id).set_user_attr(OWNER, self._owner)
        return [trial.number for trial in taken]

    def _is_silent(self, owner: str) -> bool:
        count = self._study.user_attrs.get(f"beat {owner}", 0)
        seen, since = self._seen.get(owner, (None, 0.0))
        if count != seen:
            self._seen[owner] = count, time.monotonic()
            return False
        return time.monotonic() - since > _SILENT_SECONDS
