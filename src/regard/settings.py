"""Settings: declared once, validated strictly, stored as TOML.

A settings class is a frozen pydantic model. An unknown key is an error that
names the nearest known one, and `"12"` is not 12. A field without a default is
chosen for the data and the hardware: a *draft* holds what a user has set, with
None for each such field, and is resolved to settings in which every field has a
value.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Optional, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from regard.errors import ConfigError

_MOST_PARTS = 100
_LONG_KEY = re.compile(rf"(?<![\w\"'.-])(?:[\w\"'-]+[ \t]*\.[ \t]*){{{_MOST_PARTS}}}")
"""A key with so many dots: `tomllib` needs memory that grows with the square of their number."""


class Settings(BaseModel):
    """The root of every settings class: frozen, strict, extra keys forbidden."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, **values: Any) -> None:
        """Validate `values` and build the settings; an invalid one is a `ConfigError`, as it is in `read`."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_sentence(type(self), error, "")) from None

    # Without this mark, validation of a nested class would call `__init__` and lose the location of an error.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]  pydantic's own mark

    @classmethod
    def read(cls, values: Mapping[str, Any], *, section: str = "") -> Self:
        """Validate `values` and build the settings; `section` is the prefix of names in messages."""
        require_table(values, section or "the settings")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_sentence(cls, error, section)) from None

    @classmethod
    def draft(cls, values: Mapping[str, Any], *, section: str = "") -> Self:
        """Validate `values` as `read` does, except that fields without a default may be missing: they are None."""
        return _draft_type(cls).read(values, section=section)

    def changed(self, **values: Any) -> Self:
        """Return a validated copy with some values replaced."""
        return self.read({**self.model_dump(), **values})


def require_table(values: Any, name: str) -> Mapping[str, Any]:
    """The values of a section; raise if they are a single value."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name} must be a section with settings, got {values!r}")
    return values


@cache
def _draft_type(settings: type[Any]) -> type[Any]:
    """The same class with None as the default of each field that has none."""
    optional: dict[str, Any] = {}
    for name, info in settings.model_fields.items():
        if info.is_required():
            field: Any = Field(default=None, description=info.description)
            field.metadata = info.metadata
            optional[name] = (Optional[info.annotation], field)  # noqa: UP045  built at run time
    return create_model(settings.__name__, __base__=settings, **optional) if optional else settings


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        if _LONG_KEY.search(text):
            raise ConfigError(f"{path} has a key of more than {_MOST_PARTS} parts")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"no settings file at {path}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except ConfigError:
        raise
    except ValueError as error:  # also of bytes that are no UTF-8, and of numbers with thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None


def to_toml(values: Mapping[str, Any]) -> str:
    """Format nested tables as TOML; None values are omitted, since TOML has no null.

    Example:
        >>> print(to_toml({"preset": "tiny", "train": {"seed": 1, "minutes": None}}), end="")
        preset = "tiny"
        <BLANKLINE>
        [train]
        seed = 1
    """
    return "\n".join(_table_lines(values, name="")).strip("\n") + "\n"


def override(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Apply `section.name=value` assignments to nested tables.

    A value is read as TOML where it is TOML (`3e-4`, `true`, `[1, 2]`), and as a
    plain string otherwise, so that `model.positions=rotary` needs no quotes.

    Example:
        >>> override({"train": {"seed": 1}}, ["train.learning_rate=3e-4", "model.positions=rotary"])
        {'train': {'seed': 1, 'learning_rate': 0.0003}, 'model': {'positions': 'rotary'}}
    """
    result = merge_tables(values, {})
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise ConfigError(f"a setting is given as section.name=value, got {assignment!r}")
        nested: dict[str, Any] = {path[-1]: _parse_value(text.strip())}
        for part in reversed(path[:-1]):
            nested = {part: nested}
        result = merge_tables(result, nested)
    return result


def merge_tables(first: Mapping[str, Any], second: Mapping[str, Any], *, section: str = "") -> dict[str, Any]:
    """Merge nested tables: the second value wins where both have one; `section` prefixes names in errors."""
    result = {key: merge_tables(value, {}) if isinstance(value, Mapping) else value for key, value in first.items()}
    for key, value in second.items():
        mine, name = result.get(key), f"{section}.{key}".lstrip(".")
        if isinstance(value, Mapping):
            if mine is not None and not isinstance(mine, dict):
                raise ConfigError(f"{name} is a single value, {mine!r}, and has no setting {next(iter(value), '')!r}")
            result[key] = merge_tables(mine or {}, value, section=name)
        else:
            result[key] = value
    return result


OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning_rate",),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), ("max_epochs",)),
    **dict.fromkeys(("steps", "num_steps"), ("max_steps",)),
    **dict.fromkeys(("batch_size", "batch"), ("batch_tokens",)),
    **dict.fromkeys(("warmup", "num_warmup_steps"), ("warmup_steps",)),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "gradient_clipping"), ("clip_norm",)),
    **dict.fromkeys(("early_stopping", "early_stopping_patience"), ("patience",)),
    **dict.fromkeys(("ema", "ema_rate"), ("ema_decay",)),
    **dict.fromkeys(("dim", "d_model", "hidden_size", "hidden_dim", "n_embd", "width"), ("model_dim",)),
    **dict.fromkeys(("layers", "n_layers", "n_layer", "num_hidden_layers", "depth"), ("num_layers",)),
    **dict.fromkeys(("heads", "n_heads", "n_head", "num_attention_heads"), ("num_heads",)),
    **dict.fromkeys(("d_ff", "ffn_dim", "intermediate_size", "mlp_dim"), ("feedforward_dim",)),
    **dict.fromkeys(("max_len", "max_seq_length", "max_seq_len"), ("max_length", "context_length")),
    **dict.fromkeys(("vocab", "vocabulary_size"), ("vocab_size",)),
    **dict.fromkeys(("beam", "beams", "num_beams"), ("beam_size",)),
    **dict.fromkeys(("max_new_tokens", "num_tokens"), ("max_tokens",)),
    **dict.fromkeys(("char", "chars", "character"), ("characters",)),
    "byte": ("bytes",),
    **dict.fromkeys(("word", "whitespace"), ("words",)),
    **dict.fromkeys(("wordpiece", "subword", "subwords"), ("bpe",)),
    **dict.fromkeys(("sentencepiece", "spm"), ("unigram",)),
    **dict.fromkeys(("bert", "roberta", "distilbert", "t5", "bart", "encoder"), ("transformer",)),
    **dict.fromkeys(("cnn", "conv"), ("convolution",)),
    **dict.fromkeys(("bilstm", "bi_lstm"), ("lstm",)),
}
"""What settings, tokenizers and presets are called elsewhere, and here. None of these names is accepted: an error names
the right one."""


def nearest(name: str, known: Sequence[str]) -> str:
    """`"; did you mean X?"`, or the list of known names when none is similar.

    Example:
        >>> nearest("lr", ["learning_rate", "seed"]), nearest("sed", ["learning_rate", "seed"])
        ('; did you mean learning_rate?', '; did you mean seed?')
    """
    if other := [each for each in OTHER_NAMES.get(name.lower().replace("-", "_"), ()) if each in known]:
        return f"; did you mean {other[0]}?"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"


def template(settings: Settings, *, section: str = "") -> str:
    """Format the settings as a commented TOML file to be edited; a setting or section without a value is a comment."""
    lines, nested = [], []
    for name, info in type(settings).model_fields.items():
        value, path = getattr(settings, name, None), f"{section}.{name}".lstrip(".")
        if isinstance(value, Settings):
            nested.append(template(value, section=path))
            continue
        description = [f"# {line}" for line in _description(type(settings), name).splitlines()]
        if value is None and (inner := _section_type(info.annotation)) is not None:
            unset = template(inner.model_construct(), section=path).splitlines()
            commented = [line if not line or line.startswith("#") else f"# {line}" for line in unset]
            nested.append("\n".join([*description, *commented, ""]))
            continue
        lines += description
        lines.append(f"# {name} =" if value is None else f"{name} = {_scalar(value)}")
    head = [f"[{section}]"] if section and lines else []
    return "\n".join([*head, *lines, "", *nested])


def _description(section: type[Settings], name: str) -> str:
    """The help of a field: its docstring in the class, or in the nearest one that the class overrides."""
    fields = [
        base.model_fields[name] for base in section.__mro__ if issubclass(base, Settings) and name in base.model_fields
    ]
    return next((field.description for field in fields if field.description), "")


def _section_type(annotation: Any) -> type[Settings] | None:
    """The section that a field of this type has, if it has a value."""
    types = (each for each in get_args(annotation) if isinstance(each, type))
    return next((each for each in types if issubclass(each, Settings)), None)


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _table_lines(values: Mapping[str, Any], *, name: str) -> list[str]:
    plain = [f"{key} = {_scalar(v)}" for key, v in values.items() if v is not None and not isinstance(v, Mapping)]
    lines = ["", f"[{name}]", *plain] if name and plain else plain
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += _table_lines(value, name=f"{name}.{key}".lstrip("."))
    return lines


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(_scalar(item) for item in value) + "]"
    raise TypeError(f"a setting must be a number, a string, a truth value or a list of them, got {value!r}")


def _sentence(settings: type[Settings], error: ValidationError, section: str) -> str:
    """The first of pydantic's complaints as one line: the rule, the value, the nearest name."""
    problem = error.errors(include_url=False)[0]
    path, known = _place(settings, [str(part) for part in problem["loc"]])
    name = ".".join([section, *path] if section else path)
    if problem["type"] == "extra_forbidden":
        prefix = name.removesuffix(path[-1])
        return f"unknown setting {name}{nearest(path[-1], known)}".replace("mean ", f"mean {prefix}", 1)
    if problem["type"] == "missing":
        return f"{name} is missing"
    context = problem.get("ctx", {})
    if problem["type"] == "union_tag_invalid":
        expected = context["expected_tags"].replace("'", "")
        return f"{name}.{context['discriminator'].strip(chr(39))} must be one of {expected}, got {context['tag']!r}"
    cause = context.get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    message = problem["msg"].removeprefix("Value error, ")
    rule = message[0].lower() + message[1:]
    return f"{name}: {rule}, got {problem['input']!r}" if name else rule


def _place(settings: type[BaseModel], location: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that lead to where pydantic complains, and those that are known there.

    Where a setting may be of several kinds, pydantic names the kind behind it;
    a user does not.
    """
    path: list[str] = []
    inside: type[BaseModel] | None = settings
    rest = list(location)
    while rest:
        path.append(rest.pop(0))
        if not rest or inside is None:
            continue
        info = inside.model_fields.get(path[-1])
        kinds = {} if info is None else _kinds(info)
        inside = kinds.get(rest[0]) or kinds.get("")
        if rest[0] in kinds:
            rest.pop(0)
    return path, [] if inside is None else list(inside.model_fields)


def _kinds(info: FieldInfo) -> dict[str, type[BaseModel]]:
    """The settings classes that a field may hold, by the tag that tells them apart; by "" where there is one."""
    classes = [one for one in (info.annotation, *get_args(info.annotation)) if isinstance(one, type)]
    settings = [one for one in classes if issubclass(one, BaseModel)]
    if not isinstance(info.discriminator, str):
        return {"": settings[0]} if settings else {}
    return {str(one.model_fields[info.discriminator].default): one for one in settings}
