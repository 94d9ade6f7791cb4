"""The space of a sweep: which settings are tried, and which values each may take.

    [train.learning_rate]      # a range, tried evenly on a logarithmic scale
    low = 1e-4
    high = 1e-2
    log = true

    [model.dropout]            # 0, 0.1, 0.2, 0.3
    low = 0.0
    high = 0.3
    step = 0.1

    [model.num_layers]         # one of these
    choices = [1, 2, 4]

A name that no run has, and a value that a run would not take, are told before anything is trained. What only some
values of several settings together break (a width that is no multiple of the heads) is a trial that fails.
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
"""Of a range in steps, how far beside its end the last step may lie."""
_MOST_POINTS = 1_000_000


class Range(Settings):
    """The values that one setting may take: all from `low` to `high`, or those of `choices`."""

    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = Field(default=None, gt=0)
    """Only values that lie so far apart, from `low` on."""
    log: bool = False
    """Whether to try as many values from 0.001 to 0.01 as from 0.01 to 0.1."""
    choices: list[Value] | None = None

    @model_validator(mode="after")
    def _is_a_range_or_choices(self) -> Self:
        if self.choices is not None:
            if any(each is not None for each in (self.low, self.high, self.step)) or self.log:
                raise ConfigError("a setting has a range from low to high, or choices, and not both")
            if not self.choices or len({repr(choice) for choice in self.choices}) < len(self.choices):
                raise ConfigError(f"choices must be different values, at least one, got {self.choices}")
            return self
        if self.low is None or self.high is None:
            raise ConfigError(f"a setting needs low and high, or choices, got {self.low=} and {self.high=}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"low must lie below high, got {self.low=} and {self.high=}")
        if self.log and self.low <= 0:
            raise ConfigError(f"a logarithmic range must begin above 0, got {self.low=}")
        if self.log and self.step is not None:
            raise ConfigError(f"a logarithmic range has no steps of one length, got {self.step=}")
        return self

    @property
    def is_integer(self) -> bool:
        """Whether every value of the range is a whole number, as its ends are."""
        return all(isinstance(end, int) for end in (self.low, self.high, self.step) if end is not None)

    @property
    def is_ordered(self) -> bool:
        """Whether values are numbers, so that one lies beside another."""
        return self.choices is None or all(_is_number(choice) for choice in self.choices)

    def points(self) -> list[Value] | None:
        """All values, where they can be counted; None where there is one between any two.

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
        # Rounded, since 0.1 three times is 0.30000000000000004.
        return [self.low + i * step if self.is_integer else round(self.low + i * step, 12) for i in range(count)]

    def probes(self) -> list[Value]:
        """The values by which it shows whether a setting takes all of them."""
        return (
            list(self.choices)
            if self.choices is not None
            else [end for end in (self.low, self.high) if end is not None]
        )


@dataclass(frozen=True)
class Space:
    """What is searched: a range for each setting, by its full name such as `train.learning_rate`."""

    ranges: dict[str, Range]

    def to_json(self) -> dict[str, dict[str, Any]]:
        """What `read_space` reads, as flat names."""
        return {name: one.model_dump(exclude_defaults=True) for name, one in self.ranges.items()}

    def grid(self) -> list[dict[str, Value]]:
        """Every combination of values; the last setting changes fastest."""
        points = {name: one.points() for name, one in self.ranges.items()}
        if open_ones := [name for name, some in points.items() if some is None]:
            raise ConfigError(
                f"a grid needs choices, whole numbers or a step, and {open_ones[0]} is a range without one"
            )
        size = math.prod(len(some or ()) for some in points.values())
        if size > _MOST_POINTS:
            raise ConfigError(f"a grid may have {_MOST_POINTS:,} points, and this one has {size:,}")
        return [
            dict(zip(points, values, strict=True)) for values in itertools.product(*(s or () for s in points.values()))
        ]


def read_space(
    values: Mapping[str, Any], known: Sequence[Settings], *, fixed: Mapping[str, str] | None = None
) -> Space:
    """The space that tables of a TOML file describe, checked against the settings that runs will have.

    Args:
        values: Tables within tables, each setting at its place as in `run.toml`.
        known: The settings of a run; several where runs of one sweep have different models.
        fixed: Settings that must be the same in all trials, with the reason; a section stands for all in it.
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
        raise ConfigError("the space has no settings: there is nothing to search")
    return Space(ranges)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their full names, as tables within tables.

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
    """Each setting that is named, with what is said of it and what it is in each of `known`."""
    for name, given in values.items():
        for settings in known:
            if name not in type(settings).model_fields:
                close = nearest(name, list(type(settings).model_fields)).replace("mean ", f"mean {prefix}", 1)
                raise ConfigError(f"unknown setting {prefix}{name}{close}")
        inside = [getattr(settings, name) for settings in known]
        if all(isinstance(one, Settings) for one in inside):
            if not isinstance(given, Mapping):
                raise ConfigError(f"{prefix}{name} is a section, and a space names settings in it, got {given!r}")
            yield from _leaves(given, inside, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", given, [type(settings).model_fields[name] for settings in known]


def _require_fit(name: str, one: Range, info: FieldInfo) -> None:
    """A run takes each of the values, as far as one can be judged without the others."""
    kind: Any = Annotated[info.annotation, info]  # pyright: ignore[reportInvalidTypeForm]  # known when it runs
    adapter = TypeAdapter(kind, config={"strict": True})
    for value in one.probes():
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            rule = error.errors(include_url=False)[0]["msg"]
            raise ConfigError(f"{name}: {rule[0].lower()}{rule[1:]}, got {value!r}") from None
    if one.choices is None and not one.is_integer and not _takes_fractions(info):
        raise ConfigError(f"{name} is a whole number, and so must its range be, got {one.low} to {one.high}")


def _takes_fractions(info: FieldInfo) -> bool:
    return float in (info.annotation, *get_args(info.annotation))


def _with_fractions(one: Range) -> Range:
    """The same range of all numbers: who writes 0 to 1 for a share does not mean 0 and 1 alone."""
    ends = {name: float(end) for name in ("low", "high", "step") if (end := getattr(one, name)) is not None}
    return one.changed(**ends)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
