"""The files of a run: a folder that is complete in itself.

run.toml             every setting, resolved, and the provenance of the run
codecs/              tokenizers, labels and other codecs, a file each; a tokenizer is in the public layout
model.safetensors    the best weights so far
checkpoints/         the newest states of training, to resume from
metrics.jsonl        the figures of training, a line each
releases.jsonl       what a mechanism has released of validation scores; for trials it is in the folder of their sweep
ledger.jsonl         each evaluation on held-out data, a line each; ledger.head: their number and last hash
held_out/            the validation rows, and hashes by which training rows are recognized
sealed/              the test rows, until they are opened, and hashes by which they are recognized
baseline.json        the scores of a baseline on the validation rows, and the test of the difference
report.html          the report
"""

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.codecs.codec import Codec, read_codecs, write_codecs
from regard.data.formats.messages import format_names
from regard.errors import ConfigError, RegardError, RunError, RunExistsError, WriteError
from regard.files import load_json, partial_path, require_own_files, require_writable, write_atomically
from regard.logging import log_warning
from regard.runs.baseline import BaselineResult
from regard.selection.bounds import DELTA
from regard.selection.certificate import Certificate, certify
from regard.selection.ledger import (
    FILE,
    HELD_OUT,
    OPENED,
    REPLACED,
    SEALED,
    SELECTION,
    Ledger,
    LedgerLine,
    candidate_keys,
    drop_partial_line,
    evaluations,
    file_hashes,
    openings_in,
    replaced_openings,
    set_hash,
)
from regard.selection.releases import RELEASES, Mechanism, ReleasedScores, num_unreleased
from regard.selection.sealed import Fingerprints, as_row, rows_digest, seal, unseal
from regard.selection.siblings import group_folder, read_ledgers, siblings_folder
from regard.settings import read_toml, to_toml
from regard.tasks.registry import make_task
from regard.training.settings import Provenance, ResolvedSettings

IMPORTED = "none: imported"
"""The hardware of a run that was imported, in its provenance."""
_MOST_OF_HOLDER = 200
"""Bytes of a lock file that are read."""
_MOST_SEARCHED = 1_000
"""Entries of a folder that are searched for imported runs."""


class RunFolder:
    """The files of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.settings_path = self.path / "run.toml"
        self.model_path = self.path / "model.safetensors"
        self.checkpoints = self.path / "checkpoints"
        self.metrics_path = self.path / "metrics.jsonl"
        self.ledger = Ledger(self.path / "ledger.jsonl")
        self.report_path = self.path / "report.html"
        self.baseline_path = self.path / "baseline.json"
        self.tensorboard_path = self.path / "tensorboard"
        self.codecs_path = self.path / "codecs"
        self.chat_template_path = self.path / "chat_template.jinja"
        self._held_out = self.path / "held_out"
        self._sealed = self.path / "sealed"
        self._rows_path, self._fingerprints_path = self._sealed / "test.rows", self._sealed / "test.fingerprints"
        self._training_path = self._held_out / "train.fingerprints"

    @property
    def exists(self) -> bool:
        return os.path.isfile(self.settings_path)

    def require(self) -> None:
        """Raise if this is not a run folder."""
        if not os.path.exists(self.path):
            raise RunError(f"no run at {self.path}: there is no such folder")
        if not self.exists:
            inside = sorted(path for pattern in ("*/run.toml", "*/*/run.toml") for path in self.path.glob(pattern))
            such = f"; it has runs, such as {inside[-1].parent}" if inside else ""
            raise RunError(f"{self.path} is not a run folder: it has no run.toml{such}")
        require_own_files(self.path)

    def require_vacant(self, *, overwrite: bool) -> None:
        """Raise if no new run can be created here."""
        if os.path.exists(self.path) and not self.path.is_dir():
            raise RunError(f"{self.path} is a file, and a run needs a folder")
        if self.exists and not overwrite:
            raise RunExistsError(f"{self.path} already has a run: resume it, overwrite it, or name another folder")
        made_by_training = (self.checkpoints, self.model_path, self.metrics_path, self.ledger.path)
        if not self.exists and (found := [path.name for path in made_by_training if os.path.exists(path)]):
            raise RunError(f"{self.path} has {', '.join(found)} but no run.toml: name another folder")
        self._require_empty()
        require_own_files(self.path)
        require_writable(self.path)

    def _require_empty(self) -> None:
        """Raise if a folder that is not a run has files of others; what an interrupted command left is no obstacle."""
        if self.exists or not os.path.isdir(self.path):
            return
        own = (self.codecs_path, self._held_out, self._sealed, self.path / "lock", partial_path(self.settings_path),
               self.path / RELEASES)  # fmt: skip
        found = sorted(path.name for path in self.path.iterdir() if path not in own and not path.name.startswith("."))
        if found:
            raise RunError(f"{self.path} is neither empty nor a run folder, it has {format_names(found)}: name another")

    def create(
        self,
        settings: ResolvedSettings,
        provenance: Provenance,
        codecs: Mapping[str, Codec],
        held_out: Mapping[str, Sequence[Sequence[str]]],
        training: Sequence[Sequence[str]] = (),
    ) -> None:
        """Start a new run here; an old one in its place is removed. Of the training rows only hashes are stored."""
        is_new = not self.path.exists()
        before = self._ledger_before()
        try:
            self._remove()
            self._held_out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create a run in {self.path}: {error.strerror or error}") from None
        try:
            write_codecs(self.codecs_path, codecs)
            self._write_held_out(held_out)
            if training:
                write_atomically(self._training_path, Fingerprints.of(training).to_bytes())
            # From here on the folder is a run.
            self.write_settings(settings, provenance)
            self._record_sets()
            self._record_replaced(before)
        except BaseException:
            if is_new:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def write_settings(self, settings: ResolvedSettings, provenance: Provenance | None = None) -> None:
        """Write run.toml; unset, the provenance stays what it is."""
        provenance = provenance or self.read_provenance()
        values = {**settings.model_dump(), "provenance": provenance.model_dump()}
        write_atomically(self.settings_path, to_toml(values).encode())

    def read_settings(self) -> ResolvedSettings:
        """The settings that `write_settings` wrote."""
        values = {name: value for name, value in self._read_toml().items() if name != "provenance"}
        try:
            return ResolvedSettings.read(values)
        except ConfigError as error:
            raise ConfigError(f"{self.settings_path}: {error}") from None

    def read_provenance(self) -> Provenance:
        """What the run was made from and with."""
        try:
            return Provenance.read(self._read_toml()["provenance"], section="provenance")
        except ConfigError as error:
            raise ConfigError(f"{self.settings_path}: {error}") from None

    def _read_toml(self) -> dict[str, Any]:
        self.require()
        values = read_toml(self.settings_path)
        if not values:
            raise RunError(f"{self.settings_path} is empty: the run was not written completely, train it again")
        if "record" in values or not isinstance(values.get("provenance"), Mapping):
            version = values.get("record", {}).get("version", "0.1")
            raise RunError(
                f"{self.path} was written by regard {version}: use that version to read it, or train it again"
            )
        return values

    def read_codecs(self, settings: ResolvedSettings) -> dict[str, Codec]:
        """The codecs that the run was trained with."""
        return read_codecs(self.codecs_path, make_task(settings.task).fitted_codec_types())

    def read_chat_template(self) -> str | None:
        """The chat template, where the model was trained for conversations."""
        if not self.chat_template_path.is_file():
            return None
        try:
            return self.chat_template_path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise RunError(f"{self.chat_template_path} cannot be read: {error}") from None

    def read_held_out(self, role: str) -> list[tuple[str, ...]]:
        """The rows of a set that is not sealed: `valid`."""
        path = self._held_out / f"{role}.jsonl"
        try:
            return [tuple(as_row(row)) for row in _json_lines(path)]
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}") from None

    @property
    def has_test(self) -> bool:
        """Whether there are test rows, sealed or opened."""
        return self._rows_path.is_file()

    @property
    def num_test(self) -> int:
        """The number of sealed test rows."""
        return next((line["rows"] for line in self.read_ledger() if line["event"] == SEALED), 0)

    def open_test(self, reason: str, candidate: str) -> list[tuple[str, ...]]:
        """Open the sealed test rows; this is recorded before they are read."""
        rows = self._unsealed()
        self.record_opening(reason, candidate)
        return rows

    def record_opening(self, reason: str, candidate: str) -> None:
        """Record that the test set was opened, or that some of its rows were evaluated on."""
        self.ledger.add("test", OPENED, candidate, {}, reason=reason)

    def read_rows(self, role: str) -> list[tuple[str, ...]]:
        """The rows of a set; of the `test` set once it was opened."""
        if role != "test":
            return self.read_held_out(role)
        if not any(line["event"] == OPENED for line in self.read_ledger()):
            raise RunError(f"the test set of {self.path} is sealed")
        return self._unsealed()

    def test_fingerprints(self) -> Fingerprints:
        """Hashes of the sealed rows."""
        return _read_fingerprints(self._fingerprints_path)

    def training_fingerprints(self) -> Fingerprints:
        """Hashes of the training rows; none for running text, and where the run was not trained on rows."""
        return _read_fingerprints(self._training_path)

    def copy_sealed_to(self, other: "RunFolder") -> None:
        """Copy the sealed test set, the hashes of the training rows and the ledger."""
        if self._sealed.is_dir():
            shutil.copytree(self._sealed, other._sealed, dirs_exist_ok=True)
        if self._training_path.is_file():
            other._held_out.mkdir(exist_ok=True)
            shutil.copy(self._training_path, other._training_path)
        self.ledger.copy_to(other.ledger)

    def _write_held_out(self, held_out: Mapping[str, Sequence[Sequence[str]]]) -> None:
        for role, rows in held_out.items():
            if role == "test":
                self._sealed.mkdir(exist_ok=True)
                write_atomically(self._rows_path, seal(rows))
                write_atomically(self._fingerprints_path, Fingerprints.of(rows).to_bytes())
                continue
            lines = "".join(json.dumps(list(row), ensure_ascii=False) + "\n" for row in rows)
            write_atomically(self._held_out / f"{role}.jsonl", lines.encode())

    def _record_sets(self) -> None:
        """The first lines of a ledger: which rows were sealed and held out, before anything was evaluated."""
        known = {line["event"] for line in self.read_ledger()}
        if self._rows_path.is_file() and SEALED not in known:
            rows = unseal(self._rows_path.read_bytes())
            self.ledger.add("test", SEALED, "", {}, rows=len(rows), hash=rows_digest(rows))
        if HELD_OUT not in known and (rows := self.read_held_out("valid")):
            self.ledger.add("valid", HELD_OUT, "", {}, rows=len(rows), hash=rows_digest(rows))

    def _ledger_before(self) -> list[LedgerLine]:
        """The ledger of a run that is to be overwritten; empty where it is damaged."""
        try:
            return self.read_ledger() if self.exists else []
        except RunError:
            return []

    def _record_replaced(self, before: Sequence[LedgerLine]) -> None:
        """Overwriting a run does not undo selections by the same rows."""
        now = self.read_ledger()
        if (keys := candidate_keys(before)) and set_hash(before, "valid") == set_hash(now, "valid") is not None:
            self.ledger.add("valid", REPLACED, "", {}, keys=sorted(keys), unreleased=num_unreleased(before))
        for file in file_hashes(before):
            self.ledger.add(FILE, REPLACED, "", {}, hash=file, keys=sorted(candidate_keys(before, file)))
        times, num_evaluations = replaced_openings(before)
        times += len(openings_in(before))
        num_evaluations += len(evaluations(before, "test"))
        if times and set_hash(before, "test") == set_hash(now, "test") is not None:
            self.ledger.add("test", REPLACED, "", {}, openings=times, evaluations=num_evaluations)

    def _unsealed(self) -> list[tuple[str, ...]]:
        wanted = next((line["hash"] for line in self.read_ledger() if line["event"] == SEALED), None)
        if wanted is None or not self._rows_path.is_file():
            raise RunError(f"{self.path} has no test rows of its own: evaluate it on a file")
        try:
            rows = unseal(self._rows_path.read_bytes())
        except RunError as error:
            raise RunError(f"the sealed test set {self._rows_path} cannot be opened: {error}") from None
        if rows_digest(rows) != wanted:
            raise RunError(f"the sealed test set {self._rows_path} was changed: it is not the one in the ledger")
        return rows

    def released_scores(self, mechanism: Mechanism, rows: Sequence[Sequence[str]], *, seed: int) -> ReleasedScores:
        """The record of a mechanism for these validation rows; an error where another one has begun it.

        It is that of the sweep which the run is a trial of. It stays where a run is overwritten: its rows are the same.
        """
        digest = rows_digest(rows)
        found = ReleasedScores(group_folder(self.path) / RELEASES, mechanism, rows=digest, seed=seed)
        found.check()
        before = self._ledger_before()
        if set_hash(before, "valid") == digest and (count := num_unreleased(before)):
            raise RunError(
                f"{self.path} has {count:,} evaluations on its validation rows whose scores were shown as measured: "
                f"{mechanism.name} cannot be added, so name another folder"
            )
        return found

    def read_metrics(self) -> list[dict[str, Any]]:
        found = _json_lines(self.metrics_path)
        if wrong := next((line for line in found if not isinstance(line, dict) or "step" not in line), None):
            raise RunError(
                f"{self.metrics_path} is damaged: a line must be an object with a step, got {str(wrong)[:60]}"
            )
        return found

    def write_baseline(self, baseline: BaselineResult | None) -> None:
        """Write the result of a baseline, or remove an earlier one."""
        if baseline is None:
            self.baseline_path.unlink(missing_ok=True)
        else:
            write_atomically(self.baseline_path, json.dumps(baseline.to_json(), ensure_ascii=False).encode())

    def read_baseline(self) -> BaselineResult | None:
        """The result that `write_baseline` wrote."""
        if not self.baseline_path.is_file():
            return None
        try:
            return BaselineResult.from_json(load_json(self.baseline_path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.baseline_path} is damaged: {error}") from None

    def rewind(self, step: int, rollbacks: int = 0, *, kept: tuple[int, int] | None = None) -> None:
        """Remove the figures after a checkpoint, which will be written again, and partial files.

        Args:
            step: The step of the checkpoint.
            rollbacks: How often training has returned to an earlier one before it.
            kept: The step of the kept weights, and that number then: their evaluation stays, also if it is later.
        """
        self._record_sets()
        for path in (self.model_path, self.metrics_path, self.settings_path):
            partial_path(path).unlink(missing_ok=True)
        for path in self.checkpoints.glob("*.part"):
            path.unlink(missing_ok=True)

        def is_kept(line: Mapping[str, Any]) -> bool:
            before = line.get("rollbacks", 0)
            is_of_kept = ("valid_loss" in line or "valid_score" in line) and (line["step"], before) == kept
            return before <= rollbacks and (line["step"] <= step or is_of_kept)

        lines = [json.dumps(line) + "\n" for line in self.read_metrics() if is_kept(line)]
        write_atomically(self.metrics_path, "".join(lines).encode())

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        _append(self.metrics_path, line)

    def read_ledger(self) -> list[dict[str, Any]]:
        """The lines of the ledger, whose hash chain is verified."""
        return self.ledger.read()

    def certificate(self, metric: str | None = None, *, delta: float = DELTA) -> Certificate:
        """Confidence bounds on the headline score or another, by the ledgers of this run and of its siblings."""
        looks, path = self.read_ledger(), self.path.resolve()
        name = str(path.relative_to(siblings_folder(path)))
        return certify(name, looks, metric, siblings=read_ledgers(self.path), delta=delta)

    def record_selection(self, *, by: str, models: int, candidates: int) -> None:
        """Record, once, that a set has evaluated this run among others: taking the best of them is a selection."""
        what = {"by": by, "models": models, "candidates": candidates}
        noted = [{name: line[name] for name in what} for line in self.read_ledger() if line["event"] == SELECTION]
        if what not in noted:
            self.ledger.add(by, SELECTION, "", {}, **what)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run folder for one process; a second one gets a RunError that names the first.

        The lock belongs to an open file, so it ends with its process, however that ends. Commands that only read a run
        or add lines to its ledger, which has a lock of its own, do not need it. A folder that is created for the lock
        is removed where no run is created in it.
        """
        is_new, path = not self.path.exists(), self.path / "lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            require_own_files(self.path)
            file = open(path, "a+b", buffering=0)  # without truncating: it names its holder
        except OSError as error:
            raise RunError(f"cannot create a run in {self.path}: {error.strerror or error}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_free = os.fstat(file.fileno()).st_nlink > 0  # otherwise removed by the process that held it
            except BlockingIOError:
                is_free = False
            except OSError as error:
                log_warning(f"{self.path} cannot be locked ({error.strerror}): let no other process train there")
                is_free = True
            if not is_free:
                file.seek(0)
                found = file.read(_MOST_OF_HOLDER).decode(errors="replace").strip()
                holder = f", {found}," if found else ""
                raise RunError(f"another process{holder} is training in {self.path}: name another folder")
            try:
                with suppress(OSError):  # such as on a full disk, where training says so
                    file.truncate(0)
                    file.write(f"{os.getpid()} on {platform.node()}\n".encode())
                yield
            finally:
                path.unlink(missing_ok=True)
                if is_new and not self.exists:
                    shutil.rmtree(self.path, ignore_errors=True)

    def _remove(self) -> None:
        """Remove the files of the run and no others; its settings last, so that a partly removed run is still one."""
        if not self.exists:
            return
        for folder in (self.checkpoints, self.tensorboard_path, self.codecs_path, self._held_out, self._sealed):
            if folder.exists():
                shutil.rmtree(folder)
        self.ledger.remove()
        file_hashes = (self.model_path, self.metrics_path, self.report_path, self.baseline_path)
        for path in (*file_hashes, self.chat_template_path, self.settings_path):
            path.unlink(missing_ok=True)


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        with open(path, "a+b") as file:
            drop_partial_line(file)
            file.write(json.dumps(line).encode() + b"\n")
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror or error}; the existing file is unchanged") from None


def imported_runs() -> Iterator[RunFolder]:
    """The imported models in the current folder and in `runs/` that can be read."""
    for place in filter(os.path.isdir, (".", "runs")):
        for entry in islice(sorted(os.listdir(place)), _MOST_SEARCHED):
            folder = RunFolder(Path(place) / entry)
            with suppress(RegardError, OSError):
                if IMPORTED in folder.settings_path.read_text(encoding="utf-8", errors="replace"):
                    folder.read_settings()
                    yield folder


def _read_fingerprints(path: Path) -> Fingerprints:
    return Fingerprints.from_bytes(path.read_bytes()) if path.is_file() else Fingerprints(frozenset())


def _json_lines(path: Path) -> list[Any]:
    """The lines of a file; a last line that a crash cut short is skipped."""
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [load_json(line) for line in lines[:-1] if line]
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
