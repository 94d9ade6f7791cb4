"""The networks of a study as a file, from which an interrupted study continues and a longer one takes its settings."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.errors import ConfigError, DataError
from regard.files import partial_path
from regard.lab.locality.search import LocalityJob, best_settings
from regard.lab.locality.sizes import LocalityMethod, Rates
from regard.lab.locality.training import TrainedNetwork

_NAME = "networks.json"


class NetworkStore:
    """Finished networks in a folder, with the settings that they share."""

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self.folder, self._path = folder, folder / _NAME
        self._key = json.loads(json.dumps(key))
        self.epochs: int | None = None
        self.networks: dict[LocalityJob, TrainedNetwork] = {}
        if self._path.is_file():
            found, self.epochs, self.networks = _read(self._path)
            self._compare(found)

    def _compare(self, key: Mapping[str, Any]) -> None:
        # The number of epochs is compared when it is known.
        different = [
            name for name in self._key if name not in ("epochs", "device") and key.get(name) != self._key[name]
        ]
        if different:
            name = different[0]
            raise ConfigError(
                f"{self.folder} has networks of another study: {name} was {key.get(name)} and is {self._key[name]}; "
                "name another folder"
            )

    def begin(self, epochs: int) -> None:
        """Check the number of epochs, or store it."""
        if self.epochs not in (None, epochs):
            raise ConfigError(
                f"{self.folder} has networks of another study: epochs was {self.epochs} and is {epochs}; "
                "name another folder"
            )
        self.epochs = epochs
        self._write()

    def add(self, job: LocalityJob, network: TrainedNetwork) -> None:
        """Store a finished network; its checkpoint is removed."""
        self.networks[job] = network
        self._write()
        (self.folder / f"{self.name(job)}.safetensors").unlink(missing_ok=True)

    def name(self, job: LocalityJob) -> str:
        """Returns the name of a network's checkpoint."""
        return hashlib.sha256(repr(job).encode()).hexdigest()[:16]

    def remove(self) -> None:
        """Remove what is stored."""
        for path in [self._path, *self.folder.glob("*.safetensors")]:
            path.unlink(missing_ok=True)

    def _write(self) -> None:
        rows = [
            {
                "method": list(job.method), "rates": list(job.rates), "seed": job.seed, "epochs": job.epochs,
                "network": _network_to_json(each),
            }
            for job, each in self.networks.items()
        ]  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        found = {"settings": self._key, "epochs": self.epochs, "networks": rows}
        partial_path(self._path).write_text(json.dumps(found) + "\n", encoding="utf-8")
        partial_path(self._path).replace(self._path)


def _read(path: Path) -> tuple[dict[str, Any], int, dict[LocalityJob, TrainedNetwork]]:
    """Returns the settings, the number of epochs and the networks of a study."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        networks = {
            LocalityJob(LocalityMethod(*row["method"]), Rates(*row["rates"]), row["seed"], row["epochs"]):
            _network_from_json(row["network"])
            for row in found["networks"]
        }  # fmt: skip
        return dict(found["settings"]), found["epochs"], networks
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not have the networks of a study: {error}") from None


def read_settings(folder: str, epochs: int) -> dict[LocalityMethod, Rates]:
    """Returns the best settings of a finished study, whose folder is named, for another number of epochs.

    The penalty times the number of epochs is kept: the penalty alone then moves a weight as far.
    """
    path = Path(folder) / _NAME
    if not path.is_file():
        raise DataError(f"--settings must be a folder of --results with {_NAME}, got {folder}")
    _, before, networks = _read(path)
    if not networks:
        raise DataError(f"{path} has no finished network whose settings could be taken")
    best = best_settings(networks)
    return {
        method: rates._replace(penalty=float(f"{rates.penalty * before / epochs:.3g}"))
        for method, rates in best.items()
    }


def _network_to_json(network: TrainedNetwork) -> dict[str, Any]:
    values = {each.name: getattr(network, each.name) for each in fields(network)}
    drawn = network.filters.to(torch.float16).numpy()
    values["filters"] = {"shape": list(drawn.shape), "float16": base64.b64encode(drawn.tobytes()).decode()}
    return values


def _network_from_json(values: Mapping[str, Any]) -> TrainedNetwork:
    drawn = values["filters"]
    numbers = np.frombuffer(base64.b64decode(drawn["float16"]), np.float16).reshape(drawn["shape"])
    return TrainedNetwork(**{**values, "filters": torch.from_numpy(numbers.astype(np.float32))})
