"""A run is a folder that stands alone.

run.toml             every setting, resolved, and what the run was made from
tokenizer.json       in the public layout
model.safetensors    the best weights so far
checkpoints/         what training goes on from
metrics.jsonl        the figures of training, a line each
ledger.jsonl         each look at held-out data, a line each; ledger.head: how many, and the last link of their chain
held_out/            the validation rows
sealed/              the test rows, until they are opened, and marks by which they are known
report.html          the page to look at
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, DeviceError, RunError, RunExistsError
from regard.files import partial_path, write_atomically
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
    Line,
    cut_to_whole_lines,
    files,
    judged_keys,
    openings,
    replaced_openings,
    set_hash,
    tested,
)
from regard.selection.neighbours import home_of, look_around
from regard.selection.sealed import Marks, rows_digest, seal, unseal
from regard.settings import read_toml, to_toml
from regard.text.tokenizer import Tokenizer, load_tokenizer
from regard.training.settings import RunSettings


class RunFolder:
    """The files of a run, by what they mean."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.settings_path = self.path / "run.toml"
        self.model_path = self.path / "model.safetensors"
        self.checkpoints = self.path / "checkpoints"
        self.metrics_path = self.path / "metrics.jsonl"
        self.ledger = Ledger(self.path / "ledger.jsonl")
        self.report_path = self.path / "report.html"
        self.tensorboard_path = self.path / "tensorboard"
        self.tokenizer_path = self.path / "tokenizer.json"
        self.chat_template_path = self.path / "chat_template.jinja"
        self._held_out = self.path / "held_out"
        self._sealed = self.path / "sealed"
        self._rows_path, self._marks_path = self._sealed / "test.rows", self._sealed / "test.marks"

    @property
    def exists(self) -> bool:
        return self.settings_path.is_file()

    def require(self) -> None:
        """Raise if this is not the folder of a run."""
        if not self.path.exists():
            raise RunError(f"no run at {self.path}: there is no such folder")
        if not self.exists:
            inside = sorted(path for pattern in ("*/run.toml", "*/*/run.toml") for path in self.path.glob(pattern))
            such = f"; it holds runs, such as {inside[-1].parent}" if inside else ""
            raise RunError(f"{self.path} is not the folder of a run: it has no run.toml{such}")

    def require_vacant(self, *, overwrite: bool) -> None:
        """Raise if no new run may be made here."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file, a run needs a folder")
        if self.exists and not overwrite:
            raise RunExistsError(f"{self.path} already holds a run: resume it, overwrite it, or name another folder")
        made_by_training = (self.checkpoints, self.model_path, self.metrics_path, self.ledger.path)
        if not self.exists and (found := [path.name for path in made_by_training if path.exists()]):
            raise RunError(f"{self.path} holds {', '.join(found)} but no run.toml: name another folder")

    def create(
        self, settings: RunSettings, tokenizer: Tokenizer, held_out: Mapping[str, Sequence[Sequence[str]]]
    ) -> None:
        """Start a new run here; an old one in its place is removed."""
        is_new = not self.path.exists()
        before = self._looks_before()
        try:
            self._remove()
            self._held_out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make a run in {self.path}: {error.strerror or error}") from None
        try:
            write_atomically(self.tokenizer_path, tokenizer.to_json().encode())
            self._write_held_out(held_out)
            # From here on the folder is a run.
            self.write_settings(settings)
            self._note_sets()
            self._note_replaced(before)
        except BaseException:
            if is_new:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def write_settings(self, settings: RunSettings) -> None:
        write_atomically(self.settings_path, to_toml(settings.model_dump()).encode())

    def read_settings(self) -> RunSettings:
        """The settings without gaps, as `write_settings` wrote them."""
        self.require()
        values = read_toml(self.settings_path)
        try:
            settings = RunSettings.read(values)
        except ConfigError as error:
            raise ConfigError(f"{self.settings_path}: {error}") from None
        train = settings.train
        has_budget = any(each is not None for each in (train.max_steps, train.max_epochs, train.minutes))
        found = {
            "record": settings.record is not None,
            "data.tokenizer": settings.data.tokenizer is not None,
            "train.learning_rate": train.learning_rate is not None,
            "train.warmup_steps": train.warmup_steps is not None,
            "train.batch_tokens": train.batch_tokens is not None,
            **{
                f"train.{name}": getattr(train, name) is not None
                for name in ("optimizer", "schedule", "label_smoothing", "beta2", "weight_decay", "average")
            },
            "train.max_steps, train.max_epochs or train.minutes": has_budget,
        }
        if missing := [name for name, is_there in found.items() if not is_there]:
            raise ConfigError(f"{self.settings_path} has no {missing[0]}, which every run is written with")
        return settings

    def read_chat_template(self) -> str | None:
        """How a conversation is put to the model, where it was trained for one."""
        return self.chat_template_path.read_text(encoding="utf-8") if self.chat_template_path.is_file() else None

    def read_tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer_path)

    def read_held_out(self, role: str) -> list[tuple[str, ...]]:
        """The rows of a set that is not sealed: `valid`."""
        return [tuple(row) for row in _json_lines(self._held_out / f"{role}.jsonl")]

    @property
    def has_test(self) -> bool:
        """Whether there are test rows, sealed or opened."""
        return self._rows_path.is_file()

    @property
    def num_test(self) -> int:
        """How many test rows were sealed."""
        return next((line["rows"] for line in self.read_looks() if line["what"] == SEALED), 0)

    def open_test(self, why: str, hypothesis: str) -> list[tuple[str, ...]]:
        """Break the seal of the test rows; that is written down before anybody sees one."""
        rows = self._unsealed()
        self.ledger.add("test", OPENED, hypothesis, {}, why=why)
        return rows

    def read_rows(self, role: str) -> list[tuple[str, ...]]:
        """The rows of a set: of the `test` set once they were opened."""
        if role != "test":
            return self.read_held_out(role)
        if not any(line["what"] == OPENED for line in self.read_looks()):
            raise RunError(f"the test set of {self.path} is sealed: nothing reads it before it is opened")
        return self._unsealed()

    def test_marks(self) -> Marks:
        """By which test rows are known when they turn up elsewhere."""
        return Marks.read(self._marks_path.read_bytes()) if self._marks_path.is_file() else Marks(frozenset())

    def copy_sealed_to(self, other: "RunFolder") -> None:
        """Hand on the test set as it is, and the ledger that tells of it."""
        if self._sealed.is_dir():
            shutil.copytree(self._sealed, other._sealed, dirs_exist_ok=True)
        self.ledger.copy_to(other.ledger)

    def _write_held_out(self, held_out: Mapping[str, Sequence[Sequence[str]]]) -> None:
        for role, rows in held_out.items():
            if role == "test":
                self._sealed.mkdir(exist_ok=True)
                write_atomically(self._rows_path, seal(rows))
                write_atomically(self._marks_path, Marks.of(rows).to_bytes())
                continue
            lines = "".join(json.dumps(list(row), ensure_ascii=False) + "\n" for row in rows)
            write_atomically(self._held_out / f"{role}.jsonl", lines.encode())

    def _note_sets(self) -> None:
        """The first lines of a ledger: what was sealed and what held out, before anything was looked at."""
        known = {line["what"] for line in self.read_looks()}
        if self._rows_path.is_file() and SEALED not in known:
            rows = unseal(self._rows_path.read_bytes())
            self.ledger.add("test", SEALED, "", {}, rows=len(rows), hash=rows_digest(rows))
        if HELD_OUT not in known and (rows := self.read_held_out("valid")):
            self.ledger.add("valid", HELD_OUT, "", {}, rows=len(rows), hash=rows_digest(rows))

    def _looks_before(self) -> list[Line]:
        """What a run that is to be overwritten has seen; one whose ledger is broken is forgotten."""
        try:
            return self.read_looks() if self.exists else []
        except RunError:
            return []

    def _note_replaced(self, before: Sequence[Line]) -> None:
        """Overwriting a run does not undo what was chosen by it, where the rows are the same."""
        now = self.read_looks()
        if (keys := judged_keys(before)) and set_hash(before, "valid") == set_hash(now, "valid") is not None:
            self.ledger.add("valid", REPLACED, "", {}, keys=sorted(keys))
        for file in files(before):
            self.ledger.add(FILE, REPLACED, "", {}, hash=file, keys=sorted(judged_keys(before, file)))
        times, looks = replaced_openings(before)
        times, looks = times + len(openings(before)), looks + len(tested(before))
        if times and set_hash(before, "test") == set_hash(now, "test") is not None:
            self.ledger.add("test", REPLACED, "", {}, openings=times, looks=looks)

    def _unsealed(self) -> list[tuple[str, ...]]:
        wanted = next((line["hash"] for line in self.read_looks() if line["what"] == SEALED), None)
        if wanted is None or not self._rows_path.is_file():
            raise RunError(f"{self.path} has no test rows of its own: evaluate it on a file")
        try:
            rows = unseal(self._rows_path.read_bytes())
        except RunError as error:
            raise RunError(f"the sealed test set {self._rows_path} cannot be opened: {error}") from None
        if rows_digest(rows) != wanted:
            raise RunError(f"the sealed test set {self._rows_path} was changed: it is not the one in the ledger")
        return rows

    def read_metrics(self) -> list[dict[str, Any]]:
        return _json_lines(self.metrics_path)

    def rewind(self, step: int) -> None:
        """Drop the figures behind a checkpoint, which will be written again, and what a crash left half-written."""
        self._note_sets()
        for path in (self.model_path, self.metrics_path, self.settings_path):
            partial_path(path).unlink(missing_ok=True)
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        write_atomically(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        _append(self.metrics_path, line)

    def read_looks(self) -> list[dict[str, Any]]:
        """The lines of the ledger, whose chain is whole."""
        return self.ledger.read()

    def certificate(self, metric: str | None = None, *, delta: float = DELTA) -> Certificate:
        """What can be promised of the headline score, or of another, by all that was looked at here and beside it."""
        looks, path = self.read_looks(), self.path.resolve()
        name = str(path.relative_to(home_of(path)))
        return certify(name, looks, metric, neighbours=look_around(self.path), delta=delta)

    def note_selection(self, *, by: str, models: int, hypotheses: int) -> None:
        """Write down, once, that a set has judged this run beside others: whoever takes the best has chosen."""
        what = {"by": by, "models": models, "hypotheses": hypotheses}
        noted = [{name: line[name] for name in what} for line in self.read_looks() if line["what"] == SELECTION]
        if what not in noted:
            self.ledger.add(by, SELECTION, "", {}, **what)

    def _remove(self) -> None:
        """Remove the run, and nothing else that lies here; its settings last, so that half a run is one still."""
        if not self.exists:
            return
        for folder in (self.checkpoints, self.tensorboard_path, self._held_out, self._sealed):
            if folder.exists():
                shutil.rmtree(folder)
        self.ledger.remove()
        files = (self.model_path, self.metrics_path, self.report_path, self.tokenizer_path)
        for path in (*files, self.chat_template_path, self.settings_path):
            path.unlink(missing_ok=True)


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        with open(path, "a+b") as file:
            cut_to_whole_lines(file)
            file.write(json.dumps(line).encode() + b"\n")
    except OSError as error:
        raise DeviceError(f"cannot write {path}: {error.strerror or error}; the existing file is unchanged") from None


def _json_lines(path: Path) -> list[Any]:
    """The lines of a file; a last one that a crash cut short is passed over."""
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1] if line]
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
