"""Chat templates: the text format in which a model was trained on conversations.

A template is a small Jinja program that comes with a tokenizer, often from an untrusted source. The dialect is that of
Hugging Face's `apply_chat_template`: blocks remove the line they are on, and `raise_exception`, `strftime_now`,
`tojson` and `{% generation %}` are defined.

A template runs in Jinja's sandbox, which gives access to strings and lists only; its run time and the length of its
output are limited. Special tokens are recognized only where the template itself writes them: a message that contains
the spelling of one is encoded as ordinary text.

For training, a conversation is cut where an answer begins: after the generation prompt, so that the model is trained to
predict exactly what it generates later, from the first token of the answer to the end token that the template writes.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from types import TracebackType
from typing import Any

import tokenizers
from jinja2 import Template, TemplateError, TemplateSyntaxError, meta, nodes
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
_MAX_COMPILED = 16
"""Compiled templates that are kept: a file of conversations is rendered by one of them."""
_GENERATION = "generation"
"""The block that marks the assistant's text in a template for training; its content is rendered unchanged."""
ASSISTANT = "assistant"
"""The role whose messages are answers."""
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ bos_token }}{{ message.role }}\n{{ message.content }}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
)
"""For models without a template of their own: each message between the start token and the end token."""


class RejectedMessagesError(DataError):
    """A chat template does not accept a conversation, such as one whose roles do not alternate."""


class TemplateLimitError(DataError):
    """A template exceeds its limits of time or length, or reaches for what is not its own."""


@dataclass(frozen=True)
class EncodedConversation:
    """The tokens of a conversation, and which of them the assistant writes."""

    tokens: list[int]
    is_answer: list[bool]
    """For each token, whether the model generates it: those of answers, and the end token after each."""


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
        compile_template(template)
        layout = tokenizer.to_json()
        self._with_specials = tokenizers.Tokenizer.from_str(layout)
        self._with_specials.encode_special_tokens = False
        self._names = [token["content"] for token in json.loads(layout)["added_tokens"] if token["special"]]

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The token ids of the conversation; no tokens are added to what the template writes.

        With `add_generation_prompt`, the ids end where the assistant's answer begins.
        """
        shielded, mark = self._shielded(messages)
        return self._tokens(self._render(shielded, add_generation_prompt=add_generation_prompt), mark)

    def encode_conversation(self, messages: Sequence[Message], *, last_only: bool = False) -> EncodedConversation:
        """The tokens of a conversation up to the end of its last answer, and which of them are answers.

        The prompt of each answer is encoded as `encode` does it, and the answer on its own, as it is generated.

        Args:
            messages: At least one of the assistant.
            last_only: Whether only the last answer is marked; earlier ones are part of its prompt.

        Raises:
            DataError: If the template writes no end token after an answer, or writes earlier messages in another way
                once an answer follows, so that the place of an answer is not defined.
        """
        shielded, mark = self._shielded(messages)
        places = [place for place, message in enumerate(shielded) if message["role"] == ASSISTANT]
        if not places:
            raise DataError("a conversation must have an answer of the assistant, got none")
        tokens: list[int] = []
        is_answer: list[bool] = []
        done = ""
        for place in places[-1:] if last_only else places:
            prompt = self._render(shielded[:place], add_generation_prompt=True) if place else ""
            whole = self._render(shielded[: place + 1], add_generation_prompt=False)
            if not prompt.startswith(done) or not whole.startswith(prompt):
                raise DataError(
                    f"the chat template writes the messages before answer {places.index(place) + 1} in another way "
                    "once it follows: only the last answer can be trained on (task.answers)"
                )
            answer = self._answer(whole[len(prompt) :])
            for text, is_written in ((prompt[len(done) :], False), (answer, True)):
                ids = self._tokens(text, mark)
                tokens += ids
                is_answer += [is_written] * len(ids)
            done = prompt + answer
        return EncodedConversation(tokens, is_answer)

    def _answer(self, written: str) -> str:
        """What a template writes after the generation prompt, up to its first end token."""
        ends = [written.find(name) + len(name) for name in self._end_names if name in written]
        if not ends:
            names = " or ".join(self._end_names)
            raise DataError(
                f"the chat template must write an end token ({names}) after an answer, since the model would not stop "
                "without one: {{ eos_token }}"
            )
        return written[: min(ends)]

    @cached_property
    def _end_names(self) -> list[str]:
        return self.tokenizer.pieces(sorted(self.tokenizer.ends))

    def _shielded(self, messages: Sequence[Message]) -> tuple[list[dict[str, Any]], str]:
        """The messages without spellings of special tokens, and the mark in their place."""
        plain = plain_messages(messages)
        mark = _unused_character(plain)
        return [self._shield(message, mark) for message in plain], mark

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        values = {**self.special_tokens, "add_generation_prompt": add_generation_prompt}
        return render_chat(self.template, messages, values)

    def _tokens(self, rendered: str, mark: str) -> list[int]:
        ids: list[int] = []
        for place, part in enumerate(re.split(f"{mark}([0-9]+){mark}", rendered)):
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
    return render_template(template, {"documents": None, "tools": None, **values, "messages": messages})


def render_template(source: str, values: Mapping[str, Any], *, what: str = "the chat template") -> str:
    """Run a template on plain JSON values, within the limits of time and length; errors name its line.

    Args:
        source: The source of the template.
        values: Its variables.
        what: What it is called in errors.
    """
    pieces, length = [], 0
    template = compile_template(source, what=what)
    template.environment.start_clock()  # pyright: ignore[reportAttributeAccessIssue]  it is a _Sandbox
    stream: Any = template.generate(**values)  # a generator, whose frame has the line
    try:
        for piece in stream:
            pieces.append(piece)
            length += len(piece)
            if length > _MAX_CHARACTERS:
                line = template.get_corresponding_lineno(stream.gi_frame.f_lineno)
                raise TemplateLimitError(
                    f"{what} does what is not allowed: a text of more than {_MAX_CHARACTERS:,} characters (line {line})"
                )
    except TemplateLimitError:
        raise
    except SecurityError as error:
        raise TemplateLimitError(
            f"{what} does what is not allowed: {str(error).rstrip('.')}{_line_of(error)}"
        ) from None
    except TemplateError as error:
        raise RejectedMessagesError(f"{what} rejects these messages: {error}{_line_of(error)}") from None
    except Exception as error:  # a template is a program and can raise anything
        raise DataError(f"{what} fails: {type(error).__name__}: {error}{_line_of(error)}") from None
    return "".join(pieces)


def template_variables(source: str) -> set[str]:
    """The names that a template reads and does not set itself."""
    return meta.find_undeclared_variables(_Sandbox().parse(source))


def silent_roles(template: str, roles: Sequence[str]) -> list[str]:
    """Those of the roles, of consecutive messages, whose messages a template does not write at all.

    A template that knows user and assistant only may leave out a message of another role without an error.
    """
    return list(_silent_roles(template, tuple(roles)))


@lru_cache(maxsize=1024)
def _silent_roles(template: str, roles: tuple[str, ...]) -> tuple[str, ...]:
    messages = [{"role": role, "content": f"probe{place}probe"} for place, role in enumerate(roles)]
    values = {"bos_token": "", "eos_token": "", "pad_token": "", "add_generation_prompt": False}
    text = render_chat(template, messages, values)
    return tuple(dict.fromkeys(m["role"] for m in messages if m["content"] not in text))


def _line_of(error: BaseException) -> str:
    """The innermost line of the template in a traceback, which Jinja has translated into lines of the template."""
    trace: TracebackType | None = error.__traceback__
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
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


@lru_cache(maxsize=_MAX_COMPILED)
def compile_template(source: str, *, what: str = "the chat template") -> Template:
    """The template, compiled once; each rendering has its own time limit."""
    environment = _Sandbox()
    try:
        tree = environment.parse(source)
        _check_time_in_loops(tree, environment)
        return environment.from_string(tree)
    except TemplateSyntaxError as error:
        raise DataError(f"{what} is not a Jinja template: {error.message} (line {error.lineno})") from None
    except RecursionError:
        raise DataError(f"{what} is nested too deeply") from None


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of templates; every call and every loop iteration checks the time limit."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        # Not optimized: constant expressions would be evaluated during compilation, without limits.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_reject, strftime_now=_now, namespace=_Namespace)
        self.start_clock()

    def start_clock(self) -> None:
        """Begin the time limit of one rendering."""
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
