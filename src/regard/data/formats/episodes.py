"""Episodes of an agent in an environment: what it observed, what it did, and the rewards.

JSON lines have an episode on each line, `{"observations": [[...], ...], "actions": [...], "rewards": [...],
"terminated": true}`. Observations are vectors of numbers, or single numbers. Actions are integers from 0 on, or numbers
and vectors of them with a decimal point. Arrays (`.npz`) are those of Minari and D4RL, all episodes one after the
other: `observations actions rewards terminations truncations`. Files with Python objects (pickle) are not read.

An observation after the last action, as Minari has it, is not used: no action follows it.

Dimensions: `time` steps of an episode, `features` of an observation, `width` of an action.
"""

import json
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import NDArray

from regard.data.formats.files import AnyPath, as_paths, check_archive, check_file, format_suffix
from regard.data.formats.json_lines import iter_json_lines
from regard.data.formats.layouts import BLANK, Record
from regard.data.formats.messages import format_count, format_names
from regard.data.formats.tables import Table
from regard.errors import DataError
from regard.files import load_json

EPISODE_ROLE = "episode"
EPISODE_FIELDS = ("observations", "actions", "rewards")
"""What every episode has; `terminated` may be missing, and is then true."""
_DAMAGED = (
    OSError, ValueError, NotImplementedError, RuntimeError, EOFError, struct.error, zlib.error, lzma.LZMAError,
    zipfile.BadZipFile, tokenize.TokenError,
)  # fmt: skip
"""What the readers of archives and of the headers of arrays raise."""
_ENDS = ("terminations", "truncations"), ("terminals", "timeouts")
"""The arrays that mark the last step of an episode: of Minari, and of D4RL."""


@dataclass(frozen=True)
class Episode:
    """One episode, or its first steps: a history has one observation more than actions."""

    observations: Float[np.ndarray, "time features"]
    actions: Shaped[np.ndarray, "steps ..."]
    """Integers, or a row of numbers for each step."""
    rewards: Float[np.ndarray, " steps"]
    terminated: bool = True
    """Whether the environment ended it, rather than a limit on its length."""

    @property
    def is_discrete(self) -> bool:
        """Whether actions are integers."""
        return self.actions.dtype.kind == "i"

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(
            {
                "observations": _rounded(self.observations),
                "actions": self.actions.tolist() if self.is_discrete else _rounded(self.actions),
                "rewards": _rounded(self.rewards),
                "terminated": self.terminated,
            }
        )


def parse_episode(record: Any, *, is_history: bool = False) -> Episode:
    """The episode of a JSON object, or with `is_history` one whose last action is to be chosen.

    Raises:
        DataError: With what is wrong, as the object of `the episode has ...`.

    Example:
        >>> parse_episode({"observations": [[1, 2], [3, 4]], "actions": [0, 1], "rewards": [1, 1]}).actions.tolist()
        [0, 1]
    """
    if not isinstance(record, Mapping):
        raise DataError("a value that is not an object with observations, actions and rewards")
    needed = EPISODE_FIELDS[:1] if is_history else EPISODE_FIELDS
    if missing := [name for name in needed if record.get(name) is None]:
        raise DataError(f"no {missing[0]}")
    observations, actions, rewards = (record.get(name, []) for name in EPISODE_FIELDS)
    seen = _numbers(observations, "observations")
    done = _actions(actions)
    given = _numbers(rewards, "rewards")
    if not seen.ndim or not done.ndim:
        raise DataError(f"{'actions' if seen.ndim else 'observations'} that are one number, and not one for each step")
    if seen.ndim > 2 or (given.ndim != 1 and given.size):
        raise DataError(f"{'observations' if seen.ndim > 2 else 'rewards'} that are not vectors: flatten them")
    seen = seen[:, None] if seen.ndim == 1 else seen
    length = len(seen) - 1 if is_history else len(done)
    if (length if not is_history else len(seen)) == 0:
        raise DataError("a length of 0")
    if len(done) != length or len(given) != length or len(seen) not in (length, length + 1):
        counts = f"{format_count(len(seen), 'observation')}, {format_count(len(done), 'action')}"
        wanted = "one observation more than actions and rewards" if is_history else "as many of each"
        raise DataError(f"{counts} and {format_count(len(given), 'reward')}: there must be {wanted}")
    terminated = record.get("terminated")
    return Episode(seen if is_history else seen[:length], done, given.reshape(-1), terminated is not False)


def open_episodes(
    paths: AnyPath | Sequence[AnyPath], *, skip_bad: bool | None = False, encoding: str | None = None
) -> Table:
    """The episodes of JSON lines or of arrays as a table with one row for each, as JSON."""
    files = tuple(check_file(path) for path in as_paths(paths))
    is_array = [format_suffix(path) == ".npz" for path in files]
    if any(is_array) and not all(is_array):
        raise DataError("episodes are read from JSON lines or from .npz files, got both")
    kind = "arrays" if all(is_array) else "JSON lines"
    return Table(
        paths=files,
        format="rows" if all(is_array) else "jsonl",
        roles=(EPISODE_ROLE,),
        columns=(EPISODE_ROLE,),
        inferred=[f"read {' and '.join(path.name for path in files)} as {kind} of episodes"],
        skip_bad=skip_bad,
        read=partial(_read_files, files, encoding),
    )


def episodes_in_memory(records: Sequence[Any], *, skip_bad: bool | None = False) -> Table:
    """A table of objects with observations, actions and rewards, or of JSON texts of them."""
    return Table(
        paths=(),
        format="rows",
        roles=(EPISODE_ROLE,),
        columns=(EPISODE_ROLE,),
        inferred=[],
        skip_bad=skip_bad,
        read=lambda: _read_records(enumerate(records, 1)),
    )


def _read_files(paths: Iterable[Path], encoding: str | None) -> Iterator[Record]:
    for path in paths:
        is_array = format_suffix(path) == ".npz"
        yield from _read_records(
            enumerate(_array_episodes(path) if is_array else iter_json_lines(path, encoding=encoding), 1)
        )


def _read_records(records: Iterable[tuple[int, Any]]) -> Iterator[Record]:
    """The records, those that are no episodes or are unlike the first one as faulty ones."""
    first: Episode | None = None
    for number, record in records:
        if isinstance(record, str) and not record.strip():
            yield number, (), BLANK
            continue
        try:
            episode = read_episode(record)
            first = first or episode
            require_alike(episode, first.observations.shape[1], action_width_of(first), first.is_discrete)
            yield number, (episode.to_json(),), ""
        except DataError as error:
            yield number, (), str(error)


def require_alike(episode: Episode, num_features: int, width: int, is_discrete: bool) -> None:
    """Raise where an episode has other observations or actions than others."""
    if episode.observations.shape[1] != num_features:
        raise DataError(
            f"observations of {format_count(episode.observations.shape[1], 'number')}, and those of others have "
            f"{num_features:,}"
        )
    if episode.is_discrete != is_discrete:
        kinds = ("numbers", "integers") if is_discrete else ("integers", "numbers")
        raise DataError(f"actions that are {kinds[0]}, and those of others are {kinds[1]}")
    if action_width_of(episode) != width:
        raise DataError(
            f"actions of {format_count(action_width_of(episode), 'number')}, and those of others have {width:,}"
        )


def action_width_of(episode: Episode) -> int:
    """The numbers of an action; 1 for an integer."""
    return 1 if episode.is_discrete else episode.actions.shape[1]


def read_episode(record: Any, *, is_history: bool = False) -> Episode:
    """The episode of an object or of its JSON."""
    if isinstance(record, str):
        try:
            record = load_json(record)
        except ValueError:
            raise DataError("invalid JSON") from None
    return parse_episode(record, is_history=is_history)


def _array_episodes(path: Path) -> Iterator[dict[str, Any]]:
    """The episodes of a file of arrays; steps after the last end are an episode that was cut off."""
    check_archive(path)
    try:
        with zipfile.ZipFile(path) as archive:
            known = {*EPISODE_FIELDS, *(name for names in _ENDS for name in names)}
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            arrays = {name: _read_array(archive, entry) for name, entry in entries.items() if name in known}
            others = [name for name in entries if name not in known]
    except _DAMAGED as error:
        raise DataError(f"{path.name} is not a file of arrays without Python objects: {error}") from None
    ends = next((names for names in _ENDS if names[0] in arrays), _ENDS[0])
    if missing := [name for name in (*EPISODE_FIELDS, ends[0]) if name not in arrays]:
        raise DataError(f"{path.name} has no array {missing[0]!r}, only {format_names([*arrays, *others]) or 'none'}")
    if scalar := next((name for name, array in arrays.items() if not array.ndim), None):
        raise DataError(f"the array {scalar!r} of {path.name} is a single number, and must have one for each step")
    if wide := next((name for names in _ENDS for name in names if name in arrays and arrays[name].ndim > 1), None):
        raise DataError(f"the array {wide!r} of {path.name} must be a vector, got {arrays[wide].ndim} dimensions")
    terminated = arrays[ends[0]].astype(bool)
    sizes = {name: len(arrays[name]) for name in (*EPISODE_FIELDS, *ends) if name in arrays}
    if len(set(sizes.values())) > 1:
        raise DataError(
            f"the arrays of {path.name} must be equally long, got "
            + ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        )
    is_last = terminated | arrays[ends[1]].astype(bool) if ends[1] in arrays else terminated
    stops = [*(np.flatnonzero(is_last) + 1).tolist()]
    stops += [len(is_last)] if not stops or stops[-1] < len(is_last) else []
    start = 0
    for stop in stops:
        steps = slice(start, stop)
        yield {**{name: arrays[name][steps] for name in EPISODE_FIELDS}, "terminated": bool(terminated[stop - 1])}
        start = stop


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """An array of numbers; its header is checked against the size of the entry before memory is allocated for it."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        try:
            shape, is_fortran, dtype = reader(file)
        except TypeError as error:  # of an expression that is no dictionary
            raise ValueError(str(error)) from None
        if dtype.kind not in "biuf":
            raise ValueError(f"{entry.filename} has values of the type {dtype}")
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > entry.file_size:
            raise ValueError(f"{entry.filename} has {entry.file_size:,} bytes, and its header requires more: {shape}")
        numbers = np.frombuffer(file.read(math.prod(shape) * dtype.itemsize), dtype)
    return numbers.reshape(shape, order="F" if is_fortran else "C")


def _numbers(values: Any, name: str) -> NDArray[np.float64]:
    try:
        found = np.asarray(values)
    except ValueError:
        raise DataError(f"{name} of different lengths") from None
    except OverflowError:
        raise DataError(f"{name} that are too large") from None
    if found.dtype.kind not in "iuf" and found.size:
        raise DataError(f"{name} that are not numbers")
    found = found.astype(np.float64)
    if not np.isfinite(found).all():
        raise DataError(f"{name} that are not finite")
    return found


def _actions(values: Any) -> NDArray:
    found = _numbers(values, "actions")
    if np.asarray(values).dtype.kind in "iu" and found.ndim == 1:
        if found.size and found.min() < 0:
            raise DataError(f"the action {int(found.min())}: actions are numbers from 0 on")
        return found.astype(np.int64)
    if found.ndim > 2:
        raise DataError("actions that are not vectors: flatten them")
    return found[:, None] if found.ndim == 1 else found


def _rounded(values: NDArray) -> Any:
    """Numbers with as many digits as float32 has."""
    texts = np.array([f"{number:.9g}" for number in values.reshape(-1)])
    return texts.astype(np.float64).reshape(values.shape).tolist()
