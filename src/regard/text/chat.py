"""Chat templates: a conversation as the one text that a model was taught to read.

A template is a small Jinja program that comes with a tokenizer, and often from
a stranger. The dialect is that of Hugging Face's `apply_chat_template`: blocks
swallow the line they stand on, and `raise_exception`, `strftime_now`, `tojson`
and `{% generation %}` are known.

A template runs in Jinja's sandbox, which lets it see strings and lists and no
more; its time and the length of its text are bounded. What a message spells is
text: only the special tokens that the template itself writes become tokens.
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

_MOST_CHARACTERS = 1_000_000
"""Of a rendered conversation, and of a string that a template makes by repetition."""
_MOST_SECONDS = 10.0
_GENERATION = "generation"
"""The block that marks what an assistant wrote; it shows as what stands in it."""


class Chat:
    """Conversations as one model reads them: its template, and its tokenizer.

    Example:
        >>> from regard.text.tokenizer import train_tokenizer
        >>> template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        >>> chat = Chat(template, train_tokenizer([], "bytes", 300))
        >>> chat.render([{"role": "user", "content": "Hi"}])
        'user: Hi</s>'
        >>> chat.encode([{"role": "user", "content": "Hi"}])[-1] == chat.tokenizer.end
        True
    """

    def __init__(self, template: str, tokenizer: Tokenizer, *, special_tokens: Mapping[str, str] | None = None) -> None:
        """`special_tokens` are what a template may call by name, as `bos_token`; unset, they are the tokenizer's."""
        self.template, self.tokenizer = template, tokenizer
        start, end, pad = tokenizer.pieces([tokenizer.start, tokenizer.end, tokenizer.pad])
        self.special_tokens = {"bos_token": start, "eos_token": end, "pad_token": pad, **(special_tokens or {})}
        _compile(template)
        layout = tokenizer.to_json()
        self._marked = tokenizers.Tokenizer.from_str(layout)
        self._marked.encode_special_tokens = False
        self._names = [token["content"] for token in json.loads(layout)["added_tokens"] if token["special"]]

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as text; with `add_generation_prompt`, up to where the assistant is to go on."""
        return self._render(_plain(messages), add_generation_prompt)

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The token ids of the conversation; what the template writes at its beginning is all that stands there."""
        plain = _plain(messages)
        mark = _unused_character(plain)
        text = self._render([self._shielded(message, mark) for message in plain], add_generation_prompt)
        ids: list[int] = []
        for place, part in enumerate(re.split(f"{mark}([0-9]+){mark}", text)):
            if place % 2:
                ids += self.tokenizer.encode([self._names[int(part)]])[0]
            else:
                ids += self._marked.encode(part, add_special_tokens=False).ids
        return ids

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        values = {**self.special_tokens, "add_generation_prompt": add_generation_prompt, "tools": None}
        pieces, length = [], 0
        try:
            for piece in _compile(self.template).generate(messages=messages, documents=None, **values):
                pieces.append(piece)
                length += len(piece)
                if length > _MOST_CHARACTERS:
                    raise SecurityError(f"a text of more than {_MOST_CHARACTERS:,} characters")
        except SecurityError as error:
            raise DataError(f"the chat template asks for what no template gets: {str(error).rstrip('.')}") from None
        except TemplateError as error:
            raise DataError(f"the chat template does not take these messages: {error}") from None
        except Exception as error:  # a template is a program, and can go wrong as any program can
            raise DataError(f"the chat template goes wrong: {type(error).__name__}: {error}") from None
        return "".join(pieces)

    def _shielded(self, message: Message, mark: str) -> dict[str, Any]:
        """The message, with the number of each special token that it spells in place of the spelling."""
        if not self._names:
            return dict(message)
        spelled = re.compile("|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True)))

        def number(found: re.Match[str]) -> str:
            return f"{mark}{self._names.index(found[0])}{mark}"

        return {key: spelled.sub(number, value) if isinstance(value, str) else value for key, value in message.items()}


def _plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A copy that holds strings, numbers, lists and tables, and nothing whose methods a template could call."""
    if not messages:
        raise DataError("a conversation has at least one message, got none")
    try:
        plain = json.loads(json.dumps([dict(message) for message in messages]))
    except (TypeError, ValueError) as error:
        raise DataError(f"a message is a table of what JSON can hold: {error}") from None
    for number, message in enumerate(plain, start=1):
        if not isinstance(message.get("role"), str) or "content" not in message:
            has = ", ".join(message) or "nothing"
            raise DataError(f"a message has a role and a content, message {number} has {has}")
    return plain


def _unused_character(messages: Sequence[Message]) -> str:
    """A character that stands nowhere in the messages, of those that Unicode keeps free for such use."""
    text = json.dumps(messages, ensure_ascii=False)
    found = next((chr(code) for code in range(0xFDD0, 0xFDF0) if chr(code) not in text), None)
    if found is None:
        raise DataError("the messages hold each of the 32 characters from U+FDD0 on, which Unicode keeps free")
    return found


def _compile(source: str) -> Any:
    """The template, ready to be rendered once: its time runs from here."""
    environment = _Sandbox()
    try:
        tree = environment.parse(source)
        _watch_loops(tree, environment)
        return environment.from_string(tree)
    except TemplateSyntaxError as error:
        raise DataError(f"the chat template is not a Jinja template: {error.message} (line {error.lineno})") from None
    except RecursionError:
        raise DataError("the chat template is nested too deeply") from None


class _Sandbox(ImmutableSandboxedEnvironment):
    """Where templates run: each call, and each turn of a loop, looks at the clock."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        # Unoptimized, or what is constant would be computed while it is compiled, with no one watching.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_refuse, strftime_now=_now, namespace=_Namespace)
        self._deadline = time.monotonic() + _MOST_SECONDS

    def call(self, context: Context, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        if time.monotonic() > self._deadline:
            raise SecurityError(f"more than {_MOST_SECONDS:g} seconds")
        return super().call(context, callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("a power")
        for some, times in ((left, right), (right, left)):
            if isinstance(some, Sized) and isinstance(times, int) and len(some) * times > _MOST_CHARACTERS:
                raise SecurityError(f"{times:,} times {len(some):,} characters")
        return super().call_binop(context, operator, left, right)


def _watch_loops(tree: nodes.Template, environment: _Sandbox) -> None:
    """Let each turn of a loop make a call, so that `_Sandbox.call` sees it."""
    for loop in tree.find_all(nodes.For):
        look = nodes.ExtensionAttribute(_Generation.identifier, "look", lineno=loop.lineno)
        call = nodes.Call(look, [], [], None, None, lineno=loop.lineno)
        loop.body.insert(0, nodes.ExprStmt(call, lineno=loop.lineno))
    tree.set_environment(environment)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, which shows as what stands in it."""

    tags = {_GENERATION}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements((f"name:end{_GENERATION}",), drop_needle=True), lineno=line)

    def look(self) -> None:
        """Nothing: that it is called is what counts."""


class _Namespace(Namespace):
    """Variables of a template; names with an underscore in front are Python's own."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        for name in dict(*args, **kwargs):
            _require_plain(name)
        super().__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_plain(name)
        super().__setitem__(name, value)


def _require_plain(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a variable of the name {name!r}")


def _refuse(message: str) -> None:
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
    """JSON as Python writes it: Jinja's own escapes what HTML would take for markup."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
