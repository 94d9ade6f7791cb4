"""A run is a folder that stands alone.

run.toml             every setting, resolved, and what the run was made from
tokenizer.json       in the public layout
model.safetensors    the best weights so far
checkpoints/         what training goes on from
metrics.jsonl        the figures of training, a line each
ledger.jsonl         each look at held-out data, a line each
held_out/            the validation and the test rows
report.html          the page to look at
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config import read_toml, to_toml
from regard.errors import RunError
from regard.text.tokenizer import Tokenizer, load_tokenizer
from regard.training.checkpoints import write_atomically
from regard.training.settings import RunSettings


class RunFolder:
    """The files of a run, by what they mean."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.settings_path = self.path / "run.toml"
        self.model_path = self.path / "model.safetensors"
        self.checkpoints = self.path / "checkpoints"
        self.metrics_path = self.path / "metrics.jsonl"
        self.ledger_path = self.path / "ledger.jsonl"
        self.report_path = self.path / "report.html"

    @property
    def exists(self) -> bool:
        return self.settings_path.is_file()

    def require(self) -> None:
        """Raise if this is not the folder of a run."""
        if not self.path.exists():
            raise RunError(f"no run at {self.path}: there is no such folder")
        if not self.exists:
            raise RunError(f"{self.path} is not the folder of a run: it has no run.toml")

    def create(
        self, settings: RunSettings, tokenizer: Tokenizer, held_out: Mapping[str, Sequence[Sequence[str]]]
    ) -> None:
        """Start a new run here; an old one in its place is removed."""
        if self.path.is_file():
            raise RunError(f"{self.path} is a file, a run needs a folder")
        if self.exists:
            shutil.rmtree(self.path)
        try:
            (self.path / "held_out").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {self.path}: {error.strerror}") from None
        write_atomically(self.path / "tokenizer.json", tokenizer.to_json().encode())
        for role, rows in held_out.items():
            lines = "".join(json.dumps(list(row), ensure_ascii=False) + "\n" for row in rows)
            write_atomically(self.path / "held_out" / f"{role}.jsonl", lines.encode())
        # Last: from here on the folder is a run.
        self.write_settings(settings)

    def write_settings(self, settings: RunSettings) -> None:
        write_atomically(self.settings_path, to_toml(settings.model_dump()).encode())

    def read_settings(self) -> RunSettings:
        self.require()
        return RunSettings.read(read_toml(self.settings_path))

    def read_tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.path / "tokenizer.json")

    def read_held_out(self, role: str) -> list[tuple[str, ...]]:
        """The rows of the `valid` or `test` set."""
        path = self.path / "held_out" / f"{role}.jsonl"
        return [tuple(row) for row in _json_lines(path)]

    def read_metrics(self) -> list[dict[str, Any]]:
        return _json_lines(self.metrics_path)

    def forget_metrics_after(self, step: int) -> None:
        """Drop the lines behind a checkpoint: they will be written again."""
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        write_atomically(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        _append(self.metrics_path, line)

    def add_look(self, role: str, what: str, scores: Mapping[str, Any]) -> None:
        """Write down that held-out data was looked at."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        _append(self.ledger_path, {"time": now, "set": role, "what": what, "scores": dict(scores)})

    def read_looks(self) -> list[dict[str, Any]]:
        return _json_lines(self.ledger_path)


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _json_lines(path: Path) -> list[Any]:
    """The lines of a file; a last one that a crash cut short is passed over."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
