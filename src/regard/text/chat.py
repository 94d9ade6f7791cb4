"""Chat templates: the text format in which a model was trained on conversations.

A template is a small Jinja program that comes with a tokenizer, often from an untrusted source. The dialect is that of
Hugging Face's `apply_chat_template`: blocks remove the line they are on, and `raise_exception`, `strftime_now`,
`tojson` and `{% generation %}` are defined.

A template runs in Jinja's sandbox, which gives access to strings and lists only; its run time and the length of its
output are limited. Special tokens are recognized only where the template itself writes them: a message that contains
the spelling of one is encoded as ordinary text.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from typing import Any

import tokenizers
from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""At least a `role` (system, user, assistant) and a `content`."""

_MAX_CHARACTERS = 1_000_000
"""Limit of a rendered conversation, and of a string that a template makes by repetition."""
_MAX_SECONDS = 10.0
_GENERATION = "generation"
"""The block that marks the assistant's text in a template for training; its content is rendered unchanged."""


class Chat:
    """Encodes conversations by a chat template and a tokenizer.

    Example:
        >>> from regard.text.tokenizer import train_tokenizer
        >>> template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        >>> tokenizer = train_tokenizer([], "bytes", 300)
        >>> ids = Chat(template, tokenizer).encode([{"role": "user", "content": "Hi"}])
        >>> tokenizer.decode([ids]), ids[-1] == tokenizer.end
        (['user: Hi'], True)
    """

    def __init__(self, template: str, tokenizer: Tokenizer, *, special_tokens: Mapping[str, str] | None = None) -> None:
        """`special_tokens` are variables of the template such as `bos_token`; the tokenizer's own by default."""
        self.template, self.tokenizer = template, tokenizer
        start, end, pad = tokenizer.pieces([tokenizer.start, tokenizer.end, tokenizer.pad])
        self.special_tokens = {"bos_token": start, "eos_token": end, "pad_token": pad, **(special_tokens or {})}
        _compile(template)
        layout = tokenizer.to_json()
        self._with_specials = tokenizers.Tokenizer.from_str(layout)
        self._with_specials.encode_special_tokens = False
        self._names = [token["content"] for token in json.loads(layout)["added_tokens"] if token["special"]]

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The token ids of the conversation; no tokens are added to what the template writes.

        With `add_generation_prompt`, the ids end where the assistant's answer begins.
        """
        plain = _plain(messages)
        mark = _unused_character(plain)
        shielded = [self._shield(message, mark) for message in plain]
        values = {**self.special_tokens, "add_generation_prompt": add_generation_prompt}
        ids: list[int] = []
        for place, part in enumerate(re.split(f"{mark}([0-9]+){mark}", render_chat(self.template, shielded, values))):
            if place % 2:
                ids += self.tokenizer.encode([self._names[int(part)]])[0]
            else:
                ids += self._with_specials.encode(part, add_special_tokens=False).ids
        return ids

    def _shield(self, message: Message, mark: str) -> dict[str, Any]:
        """The message with the spelling of each special token replaced by its index between two marks."""
        if not self._names:
            return dict(message)
        spelled = re.compile("|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True)))

        def number(found: re.Match[str]) -> str:
            return f"{mark}{self._names.index(found[0])}{mark}"

        return {key: spelled.sub(number, value) if isinstance(value, str) else value for key, value in message.items()}


def render_chat(template: str, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
    """Run a template on messages that consist of plain JSON values.

    Args:
        template: The source of the template.
        messages: The conversation.
        values: Variables of the template, such as `bos_token` and `add_generation_prompt`.

    Raises:
        DataError: If the template rejects the messages, fails, or exceeds its limits.
    """
    pieces, length = [], 0
    variables = {"documents": None, "tools": None, **values}
    try:
        for piece in _compile(template).generate(messages=messages, **variables):
            pieces.append(piece)
            length += len(piece)
            if length > _MAX_CHARACTERS:
                raise SecurityError(f"a text of more than {_MAX_CHARACTERS:,} characters")
    except SecurityError as error:
        raise DataError(f"the chat template does what is not allowed: {str(error).rstrip('.')}") from None
    except TemplateError as error:
        raise DataError(f"the chat template rejects these messages: {error}") from None
    except Exception as error:  # a template is a program and can raise anything
        raise DataError(f"the chat template fails: {type(error).__name__}: {error}") from None
    return "".join(pieces)


def _plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A copy of strings, numbers, lists and dictionaries only, without methods that a template could call."""
    if not messages:
        raise DataError("a conversation must have at least one message, got none")
    try:
        plain = json.loads(json.dumps([dict(message) for message in messages]))
    except (TypeError, ValueError) as error:
        raise DataError(f"a message must consist of JSON values: {error}") from None
    for number, message in enumerate(plain, start=1):
        if not isinstance(message.get("role"), str) or "content" not in message:
            has = ", ".join(message) or "nothing"
            raise DataError(f"a message must have a role and a content, message {number} has {has}")
    return plain


def _unused_character(messages: Sequence[Message]) -> str:
    """A Unicode noncharacter that does not occur in the messages."""
    text = json.dumps(messages, ensure_ascii=False)
    found = next((chr(code) for code in range(0xFDD0, 0xFDF0) if chr(code) not in text), None)
    if found is None:
        raise DataError("the messages contain all 32 noncharacters U+FDD0 to U+FDEF, one of which must be free")
    return found


def _compile(source: str) -> Any:
    """The template, compiled for a single rendering: its time limit starts here."""
    environment = _Sandbox()
    try:
        tree = environment.parse(source)
        _check_time_in_loops(tree, environment)
        return environment.from_string(tree)
    except TemplateSyntaxError as error:
        raise DataError(f"the chat template is not a Jinja template: {error.message} (line {error.lineno})") from None
    except RecursionError:
        raise DataError("the chat template is nested too deeply") from None


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of templates; every call and every loop iteration checks the time limit."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        # Not optimized: constant expressions would be evaluated during compilation, without limits.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_reject, strftime_now=_now, namespace=_Namespace)
        self._deadline = time.monotonic() + _MAX_SECONDS

    def call(self, context: Context, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        if time.monotonic() > self._deadline:
            raise SecurityError(f"more than {_MAX_SECONDS:g} seconds")
        return super().call(context, callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("a power")
        for some, times in ((left, right), (right, left)):
            if isinstance(some, Sized) and isinstance(times, int) and len(some) * times > _MAX_CHARACTERS:
                raise SecurityError(f"{times:,} times {len(some):,} characters")
        return super().call_binop(context, operator, left, right)


def _check_time_in_loops(tree: nodes.Template, environment: _Sandbox) -> None:
    """Insert a call into the body of each loop, so that `_Sandbox.call` checks the time limit."""
    for loop in tree.find_all(nodes.For):
        no_op = nodes.ExtensionAttribute(_Generation.identifier, "no_op", lineno=loop.lineno)
        call = nodes.Call(no_op, [], [], None, None, lineno=loop.lineno)
        loop.body.insert(0, nodes.ExprStmt(call, lineno=loop.lineno))
    tree.set_environment(environment)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, rendered as its content."""

    tags = {_GENERATION}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements((f"name:end{_GENERATION}",), drop_needle=True), lineno=line)

    def no_op(self) -> None:
        """Does nothing; calling it checks the time limit."""


class _Namespace(Namespace):
    """Variables of a template; names that begin with an underscore are reserved to Python."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        for name in dict(*args, **kwargs):
            _check_name(name)
        super().__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a variable of the name {name!r}")


def _reject(message: str) -> None:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
