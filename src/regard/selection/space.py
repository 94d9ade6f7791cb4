"""The search space of a sweep: which settings are searched, and which values each may take.

    [train.learning_rate]      # a range, sampled uniformly on a logarithmic scale
    low = 1e-4
    high = 1e-2
    log = true

    [model.dropout]            # 0, 0.1, 0.2, 0.3
    low = 0.0
    high = 0.3
    step = 0.1

    [model.num_layers]         # one of these
    choices = [1, 2, 4]

An unknown setting and a value that is not valid are errors before anything is trained. Values that are invalid only in
combination (a width that is not a multiple of the number of heads) make a trial fail.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, get_args

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from regard.errors import ConfigError
from regard.settings import Settings, nearest

Value = bool | int | float | str

_ROUNDING = 1e-9
"""The relative rounding error allowed between the last step of a range and its end."""
_MOST_POINTS = 1_000_000


class Range(Settings):
    """The values that one setting may take: all from `low` to `high`, or those of `choices`."""

    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = Field(default=None, gt=0)
    """The distance between values, from `low` on."""
    log: bool = False
    """Whether to sample uniformly on a logarithmic scale: as often from 0.001 to 0.01 as from 0.01 to 0.1."""
    choices: list[Value] | None = None

    @model_validator(mode="after")
    def _is_a_range_or_choices(self) -> Self:
        if self.choices is not None:
            if any(each is not None for each in (self.low, self.high, self.step)) or self.log:
                raise ConfigError("a setting must have either a range from low to high or choices, got both")
            if not self.choices or len({repr(choice) for choice in self.choices}) < len(self.choices):
                raise ConfigError(f"choices must be different values, at least one, got {self.choices}")
            return self
        if self.low is None or self.high is None:
            raise ConfigError(f"a setting needs low and high, or choices, got low={self.low!r} and high={self.high!r}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"low must be below high, got low={self.low!r} and high={self.high!r}")
        if self.log and self.low <= 0:
            raise ConfigError(f"low of a logarithmic range must be above 0, got low={self.low!r}")
        if self.log and self.step is not None:
            raise ConfigError(f"a logarithmic range must not have a step, got step={self.step!r}")
        return self

    @property
    def is_integer(self) -> bool:
        """Whether every value of the range is an integer, as its ends are."""
        return all(isinstance(end, int) for end in (self.low, self.high, self.step) if end is not None)

    @property
    def is_ordered(self) -> bool:
        """Whether values are numbers, which have an order."""
        return self.choices is None or all(_is_number(choice) for choice in self.choices)

    def points(self) -> list[Value] | None:
        """All values; None where the range is continuous.

        Example:
            >>> Range(low=0.0, high=0.3, step=0.1).points(), Range(low=1, high=4).points()
            ([0.0, 0.1, 0.2, 0.3], [1, 2, 3, 4])
        """
        if self.choices is not None:
            return list(self.choices)
        assert self.low is not None
        assert self.high is not None
        step = self.step if self.step is not None else 1 if self.is_integer else None
        if step is None:
            return None
        count = int((self.high - self.low) / step * (1 + _ROUNDING)) + 1
        # Rounded, since 3 * 0.1 is 0.30000000000000004.
        return [self.low + i * step if self.is_integer else round(self.low + i * step, 12) for i in range(count)]

    def probes(self) -> list[Value]:
        """Values that are valid for a setting only if all are: the choices, or the ends."""
        return (
            list(self.choices)
            if self.choices is not None
            else [end for end in (self.low, self.high) if end is not None]
        )


@dataclass(frozen=True)
class Space:
    """A range for each setting that is searched, by its full name such as `train.learning_rate`."""

    ranges: dict[str, Range]

    def to_json(self) -> dict[str, dict[str, Any]]:
        """The ranges by the full names of their settings."""
        return {name: one.model_dump(exclude_defaults=True) for name, one in self.ranges.items()}

    def grid(self) -> list[dict[str, Value]]:
        """Every combination of values; the last setting changes fastest."""
        points = {name: one.points() for name, one in self.ranges.items()}
        if continuous := [name for name, some in points.items() if some is None]:
            raise ConfigError(f"a grid needs choices, integers or a step, and {continuous[0]} is a continuous range")
        size = math.prod(len(some or ()) for some in points.values())
        if size > _MOST_POINTS:
            raise ConfigError(f"a grid may have at most {_MOST_POINTS:,} points, got {size:,}")
        return [
            dict(zip(points, values, strict=True)) for values in itertools.product(*(s or () for s in points.values()))
        ]


def read_space(
    values: Mapping[str, Any], known: Sequence[Settings], *, fixed: Mapping[str, str] | None = None
) -> Space:
    """The search space in the tables of a TOML file, checked against the settings of the runs.

    Args:
        values: Nested tables, with each setting in its section as in `run.toml`.
        known: The settings of a run; several where the runs of a sweep have different models.
        fixed: Settings that must be equal in all trials, with the reason; a section stands for all its settings.
    """
    ranges: dict[str, Range] = {}
    for name, given, infos in _leaves(values, known):
        reason = next((why for one, why in (fixed or {}).items() if name == one or name.startswith(f"{one}.")), None)
        if reason is not None:
            raise ConfigError(f"{name} cannot be searched: {reason}")
        if not isinstance(given, Mapping):
            raise ConfigError(f"{name} must be a table with low and high, or with choices, got {given!r}")
        try:
            one = Range.read(given, section=name)
        except ConfigError as error:
            raise ConfigError(str(error) if name in str(error) else f"{name}: {error}") from None
        for info in infos:
            _require_fit(name, one, info)
        ranges[name] = _with_fractions(one) if all(map(_takes_fractions, infos)) else one
    if not ranges:
        raise ConfigError("the search space must have at least one setting, got none")
    return Space(ranges)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their full names as nested tables.

    Example:
        >>> nested({"train.seed": 1, "preset": "lstm"})
        {'train': {'seed': 1}, 'preset': 'lstm'}
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        inside = result
        for part in path:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return result


def _leaves(
    values: Mapping[str, Any], known: Sequence[Settings], prefix: str = ""
) -> Iterator[tuple[str, Any, list[FieldInfo]]]:
    """Each setting in the space, with its value there and its field in each of `known`."""
    for name, given in values.items():
        for settings in known:
            if name not in type(settings).model_fields:
                close = nearest(name, list(type(settings).model_fields)).replace("mean ", f"mean {prefix}", 1)
                raise ConfigError(f"unknown setting {prefix}{name}{close}")
        inside = [getattr(settings, name) for settings in known]
        if all(isinstance(one, Settings) for one in inside):
            if not isinstance(given, Mapping):
                raise ConfigError(f"{prefix}{name} is a section: a space must name settings in it, got {given!r}")
            yield from _leaves(given, inside, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", given, [type(settings).model_fields[name] for settings in known]


def _require_fit(name: str, one: Range, info: FieldInfo) -> None:
    """Raise if a value is not valid for the setting, other settings aside."""
    kind: Any = Annotated[info.annotation, info]  # pyright: ignore[reportInvalidTypeForm]  # known at run time
    adapter = TypeAdapter(kind, config={"strict": True})
    for value in one.probes():
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            rule = error.errors(include_url=False)[0]["msg"]
            raise ConfigError(f"{name}: {rule[0].lower()}{rule[1:]}, got {value!r}") from None
    if one.choices is None and not one.is_integer and not _takes_fractions(info):
        raise ConfigError(f"{name} is an integer, and so must its range be, got {one.low} to {one.high}")


def _takes_fractions(info: FieldInfo) -> bool:
    return float in (info.annotation, *get_args(info.annotation))


def _with_fractions(one: Range) -> Range:
    """The same range over real numbers: 0 to 1 for a fraction does not mean the integers 0 and 1."""
    ends = {name: float(end) for name in ("low", "high", "step") if (end := getattr(one, name)) is not None}
    return one.changed(**ends)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
