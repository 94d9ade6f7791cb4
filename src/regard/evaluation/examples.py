"""What a model produced for each example of a set, from which every metric counts."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from regard.errors import DataError

_SET = "set"
"""The key under which JSON, which has no sets, stores one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Outputs, targets and losses of the examples of a set; a task fills in what it has.

    The type of `outputs` and `targets` states what is scored:

        text             a string per example; a target may be a list of references
        one label        a string or an integer
        several labels   a set of labels (order and repetition have no meaning)
        tags of words    a list of tags, one for each word of a sentence
        numbers          a float
        answers          a string, and as target the list of right answers, empty for none

    Example:
        >>> examples = Examples(outputs=[{"a"}, {"a", "b"}], targets=[{"a"}, {"b"}], labels=["a", "b"])
        >>> Examples.from_json(examples.to_json()).outputs[0]
        frozenset({'a'})
    """

    outputs: Sequence[Any] | None = None
    targets: Sequence[Any] | None = None
    labels: Sequence[str | int] | None = None
    """All labels, those that do not occur in this set included."""
    confidences: Sequence[float] | None = None
    """The probability that the model assigned to each output."""
    losses: Sequence[float] | None = None
    """The negative log-likelihood of each whole sequence, in nats."""
    num_tokens: Sequence[int] | None = None
    """The number of predicted tokens of each sequence."""
    num_bytes: int | None = None
    """The number of bytes, in UTF-8, of the text that all sequences cover together."""
    num_correct: Sequence[int] | None = None
    """The number of tokens of each sequence that were predicted correctly."""
    extras: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """What only some metrics read, under the names that these state: one item for each example, or `references`."""
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    """How the outputs were made, such as the window of a language model; part of every signature."""

    def get(self, name: str) -> Any:
        """A field, or one of `extras`; None where it is not set."""
        return self.extras[name] if name in self.extras else getattr(self, name, None)

    def require(self, *names: str) -> tuple[Any, ...]:
        """The values of these fields or extras; a `DataError` names those that are not set."""
        found = tuple(self.get(name) for name in names)
        if missing := [name for name, value in zip(names, found, strict=True) if value is None]:
            raise DataError(f"the examples must have {', '.join(names)}, got none of {', '.join(missing)}")
        return found

    def to_json(self) -> dict[str, Any]:
        """The fields that are set, as JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _to_json(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Examples":
        """The examples that `to_json` wrote."""
        if unknown := set(values) - {each.name for each in fields(cls)}:
            raise DataError(f"examples have no field {', '.join(sorted(unknown))}")
        mappings = ("settings", "extras")
        sequences = {name: _from_json(value) for name, value in values.items() if name not in mappings}
        extras = {name: _from_json(value) for name, value in values.get("extras", {}).items()}
        return cls(**sequences, extras=extras, settings=dict(values.get("settings", {})))


def _to_json(value: Any) -> Any:
    match value:
        case Set():
            return {_SET: sorted(value, key=lambda label: (isinstance(label, str), label))}
        case Mapping():
            return {name: _to_json(each) for name, each in value.items()}
        case np.ndarray() | np.generic():
            return value.tolist()
        case list() | tuple():
            return [_to_json(each) for each in value]
        case _:
            return value


def _from_json(value: Any) -> Any:
    match value:
        case dict():
            return frozenset(value[_SET])
        case list():
            return [_from_json(each) for each in value]
        case _:
            return value
