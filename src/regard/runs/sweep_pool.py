"""The workers of a sweep, from outside: started, watched and stopped, and each look that they took written down."""

import fcntl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress, TaskID

from regard.errors import RunError, StoppedError
from regard.explanation.comparison_words import metric_name
from regard.logging import log_info
from regard.runs.processes import last_words, progress_bars, start_process, stop_processes
from regard.runs.sweep_machines import Machines
from regard.runs.sweep_objectives import best_loss, figures, looks_of
from regard.runs.sweep_plan import SweepPlan
from regard.runs.sweep_study import FACTS, FAILURE, LOOKS, OWNER, trials_of
from regard.runs.sweep_worker import Order
from regard.selection.ledger import Ledger
from regard.training.folder import RunFolder
from regard.training.interruption import Interruption, listen

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

_POLL_SECONDS = 0.5
_LOCK_SECONDS = 60.0
"""In which workers whose parent was killed have saved their state and left."""


@dataclass
class Workers:
    """Processes that do what was ordered; they hold the lock of the folder along with this one."""

    folder: Path
    lock: int
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, order: Order) -> None:
        log = self._log(len(self.processes))
        module = "regard.runs.sweep_worker"
        self.processes.append(start_process(module, order.to_json(), log, threads=1, pass_fds=[self.lock]))

    @property
    def are_busy(self) -> bool:
        """Whether any still works; raises if one has failed."""
        codes = [process.poll() for process in self.processes]
        for number, code in enumerate(codes):
            if code not in (None, 0):
                raise RunError(f"a worker failed: {last_words(self._log(number))}")
        return None in codes

    def _log(self, number: int) -> Path:
        return self.folder / "logs" / f"worker-{number}.log"


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Hold the folder: no other process sweeps in it, and no worker of one that was killed is still there."""
    with open(folder / "sweep.lock", "a") as file:
        deadline, is_said = time.monotonic() + _LOCK_SECONDS, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_said:
                    log_info(f"waiting until others have left {folder}")
                    is_said = True
                if time.monotonic() > deadline:
                    raise RunError(f"another process sweeps in {folder}: name another folder, or wait for it") from None
                time.sleep(_POLL_SECONDS)
        yield file.fileno()


def run_search(
    study: "Study", plan: SweepPlan, unfinished: Sequence[int], *, lock: int, workers: int, show_progress: bool
) -> None:
    """Finish all trials of the sweep; raise if a worker fails or the user stops them, with all state saved."""
    ledger = Ledger(plan.path / "ledger.jsonl")
    pool = Workers(plan.path, lock)
    with listen() as interruption, progress_bars(is_shown=show_progress) as progress:
        watch = _Watch(study, plan, ledger, progress)
        try:
            watch.note(is_new=False)
            taken = list(unfinished)
            while watch.num_finished < plan.num_trials:
                for number in range(workers):
                    pool.start(Order(plan.to_json(), unfinished=taken[number::workers]))
                while pool.are_busy:
                    _wait(interruption, pool)
                    watch.note()
                watch.note()
                taken = []
                while watch.num_finished < plan.num_trials and not taken:
                    taken = watch.wait_for_others()
                    _wait(interruption, pool)
                    watch.note()
        finally:
            stop_processes(pool.processes)


def run_again(plan: SweepPlan, orders: Sequence[Order], *, lock: int, show_progress: bool) -> None:
    """Train what is ordered, and write down its looks."""
    pool = Workers(plan.path, lock)
    runs = [Path(path) for order in orders for path, _ in order.again]
    with listen() as interruption, progress_bars(is_shown=show_progress) as progress:
        bar = progress.add_task(f"the winner again, {len(runs)} times", total=len(runs))
        try:
            for order in orders:
                pool.start(order)
            while pool.are_busy:
                _wait(interruption, pool)
                progress.update(bar, completed=sum(_share(path, plan) for path in runs))
        finally:
            stop_processes(pool.processes)


def note_looks(ledger: Ledger, name: str, looks: Sequence[dict], known: set[tuple[str, str]]) -> None:
    """Copy the looks of a run into the ledger of the sweep, each once."""
    for look in looks:
        hypothesis = f"{name}, {look['hypothesis']}"
        if (look["what"], hypothesis) not in known:
            ledger.add("valid", look["what"], hypothesis, look["scores"], looked=look["time"])
            known.add((look["what"], hypothesis))


def known_looks(ledger: Ledger) -> set[tuple[str, str]]:
    return {(line["what"], line["hypothesis"]) for line in ledger.read()}


class _Watch:
    """What is seen of the trials from outside: said when one ends, written down, and shown while they run."""

    def __init__(self, study: "Study", plan: SweepPlan, ledger: Ledger, progress: Progress) -> None:
        self._study, self._plan, self._ledger, self._progress = study, plan, ledger, progress
        self._known = known_looks(ledger)
        self._ended: set[int] = set()
        self._whole = progress.add_task("trials", total=plan.num_trials)
        self._bars: dict[int, TaskID] = {}
        self._machines = Machines(study, plan.owner)
        self._is_waiting = False

    @property
    def num_finished(self) -> int:
        return len(self._ended)

    def note(self, *, is_new: bool = True) -> None:
        """See what has changed."""
        self._machines.beat()
        trials = trials_of(self._study)
        for trial in trials:
            if trial.state.is_finished() and trial.number not in self._ended:
                self._ended.add(trial.number)
                note_looks(self._ledger, f"trial {trial.number}", trial.user_attrs.get(LOOKS, []), self._known)
                if is_new:
                    log_info(told(trial, self._plan))
        if not is_new and self._ended:
            log_info(f"{len(self._ended)} of {self._plan.num_trials} trials are there already")
        self._show([trial for trial in trials if not trial.state.is_finished()])

    def wait_for_others(self) -> list[int]:
        """The trials of machines that are gone; none while those that train the rest are there."""
        if not self._is_waiting:
            log_info("waiting for trials that run on other machines")
            self._is_waiting = True
        if taken := self._machines.take_over():
            log_info(f"taking over {len(taken)} trials of a machine that is gone")
        return taken

    def _show(self, running: Sequence["FrozenTrial"]) -> None:
        shares = {}
        for trial in running:
            if trial.user_attrs.get(OWNER, self._plan.owner) == self._plan.owner:
                shares[trial.number] = _share(self._plan.trial_path(trial.number), self._plan)
        for number in [number for number in self._bars if number not in shares]:
            self._progress.remove_task(self._bars.pop(number))
        for number, share in shares.items():
            if number not in self._bars:
                self._bars[number] = self._progress.add_task(f"trial {number}", total=1.0)
            self._progress.update(self._bars[number], completed=share)
        self._progress.update(self._whole, completed=len(self._ended) + sum(shares.values()))


def told(trial: "FrozenTrial", plan: SweepPlan) -> str:
    """What became of a trial, in a line."""
    tried = ", ".join(f"{name} {say_value(value)}" for name, value in trial.params.items())
    if FAILURE in trial.user_attrs:
        return f"trial {trial.number} failed: {trial.user_attrs[FAILURE]} ({tried})"
    if FACTS not in trial.user_attrs:
        loss = best_loss(trial.user_attrs.get(LOOKS, []))
        return f"trial {trial.number}: pruned at step {trial.user_attrs.get('steps', 0):,}, loss {loss:.4g} ({tried})"
    facts = trial.user_attrs[FACTS]
    reached = ", ".join(f"{metric_name(goal.name)} {facts[goal.name]:.4g}" for goal in plan.goals)
    return f"trial {trial.number}: {reached} after {facts['seconds']:.0f} s ({tried})"


def say_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _wait(interruption: Interruption, pool: Workers) -> None:
    time.sleep(_POLL_SECONDS)
    if interruption:
        assert interruption.signal is not None
        stop_processes(pool.processes)
        raise StoppedError(
            "stopped; every trial has saved its state, and the same command goes on from there",
            signal=interruption.signal,
        )


def _share(path: Path, plan: SweepPlan) -> float:
    """How much of its budget a run has used."""
    folder, train = RunFolder(path), plan.settings["train"]
    last = figures(folder)
    shares = [last["step"] / train["max_steps"]] if train.get("max_steps") else []
    shares += [last["seconds"] / (60 * train["minutes"])] if train.get("minutes") else []
    return min(0.99, max(shares, default=0.0))


def note_again(plan: SweepPlan, winner: int) -> None:
    """Write down the looks of the runs that trained the winner anew."""
    ledger = Ledger(plan.path / "ledger.jsonl")
    known = known_looks(ledger)
    for number in range(1, plan.again + 1):
        note_looks(ledger, f"trial {winner} again, seed {number}", looks_of(RunFolder(plan.again_path(number))), known)
