"""Chat templates: the text format in which a model was trained on conversations.

A template is a small Jinja program that comes with a tokenizer, often from an untrusted source. The dialect is that of
Hugging Face's `apply_chat_template`: blocks remove the line they are on, and `raise_exception`, `strftime_now`,
`tojson` and `{% generation %}` are defined.

A template runs in Jinja's sandbox, which gives access to strings and lists only; its run time, the length of its output
and that of all values on the way are limited. Special tokens are recognized only where the template itself writes them:
a message that contains the spelling of one is encoded as ordinary text.

For training, a conversation is cut where an answer begins: after the generation prompt, so that the model is trained to
predict exactly what it generates later, from the first token of the answer to the end token that the template writes.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache, wraps
from itertools import islice
from types import TracebackType
from typing import Any

import tokenizers
from jinja2 import Template, TemplateError, TemplateSyntaxError, meta, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""At least a `role` (system, user, assistant) and a `content`."""

_MAX_CHARACTERS = 1_000_000
"""Limit of a rendered conversation, and of a string that a template makes by repetition."""
_MAX_WORK = 20 * _MAX_CHARACTERS
"""Limit of all values that a template makes in one rendering."""
_MAX_SECONDS = 10.0
_MAX_COMPILED = 16
"""Compiled templates that are kept: a file of conversations is rendered by one of them."""
_LEFT_OUT = (
    "batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "urlize", "wordcount", "wordwrap",
    "xmlattr",
)  # fmt: skip
"""Filters that no chat template needs, and whose time or result is out of proportion to what they are given."""
_TEXT_FILTERS = {"replace": "replace", "indent": "indent", "format": "%", "join": "joined"}
"""Filters of texts that can make a longer one, and what they do."""
_LONG_NUMBER, _STARRED = re.compile(r"\d{7}"), re.compile(r"%[^a-zA-Z%]*\*")
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
    compile_template(source)
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
    if len(source) > _MAX_CHARACTERS:
        raise DataError(f"{what} has {len(source):,} characters, more than {_MAX_CHARACTERS:,}")
    environment = _Sandbox()
    try:
        tree = _Limits().visit(environment.parse(source))
        tree.set_environment(environment)
        return environment.from_string(tree)
    except TemplateSyntaxError as error:
        raise DataError(f"{what} is not a Jinja template: {error.message} (line {error.lineno})") from None
    except (RecursionError, MemoryError):  # the second is what Python's compiler raises
        raise DataError(f"{what} is nested too deeply") from None
    except (SecurityError, ValueError, OverflowError, SyntaxError) as error:
        raise DataError(f"{what} is not a Jinja template: {error}") from None


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of templates: it limits the time, the length of each value, and the length of all together.

    Every loop iteration, call, filter and operation checks the time. No value has more than `_MAX_CHARACTERS`
    characters, elements and digits, however deep they are, so that no single operation of Python takes long; all values
    of a rendering have `_MAX_WORK` of them together, so that no variable can collect more.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        # Not optimized: constant expressions would be evaluated during compilation, without limits.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=self.finished,
            extensions=[_Generation, loopcontrols],
        )  # fmt: skip
        for name in _LEFT_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        self.filters = {name: self._limited(name, each) for name, each in self.filters.items()}
        self.tests = {name: self._limited("", each) for name, each in self.tests.items()}
        self.globals.update(raise_exception=_reject, strftime_now=_now, namespace=_Namespace)
        self.start_clock()

    def start_clock(self) -> None:
        """Begin the limits of one rendering."""
        self._deadline, self._work = time.monotonic() + _MAX_SECONDS, 0

    def check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise SecurityError(f"more than {_MAX_SECONDS:g} seconds")

    def count(self, value: Any) -> Any:
        """Return a value that a template has made, if it is within the limits."""
        self._work += _size(value)
        if self._work > _MAX_WORK:
            raise SecurityError(f"values of more than {_MAX_WORK:,} characters together")
        self.check_time()
        return value

    @pass_context  # so that constants are evaluated by the rendering, too
    def finished(self, _context: Context, value: Any) -> Any:
        """A value that is about to be written."""
        return self.count(value)

    def call(self, context: Context, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.check_time()
        inner = getattr(callee, "__wrapped__", callee)
        owner = getattr(inner, "__self__", None)
        values: list[Any] = [*args, *kwargs.values()]
        if callee is not self.globals["range"]:  # which has a limit of its own
            _require_small(values)
        if isinstance(owner, str | bytes):
            args = tuple(_materialized(each) for each in args)
            _check_text(owner, str(getattr(inner, "__name__", "")), [*args, *kwargs.values()])
        return self.count(super().call(context, callee, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("a power")
        if operator == "*":
            for some, times in ((left, right), (right, left)):
                if not isinstance(some, Sized) or not isinstance(times, int):
                    continue
                if (len(some) if isinstance(some, str) else _size(some)) * times > _MAX_CHARACTERS:
                    raise SecurityError(f"{times:,} times {len(some):,} characters")
        if operator == "%" and isinstance(left, str | bytes):
            _check_text(left, "%", [right])
        return self.count(super().call_binop(context, operator, left, right))

    def _limited(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        """A filter or a test that checks the limits before and after."""

        @wraps(inner)  # with the marks by which Jinja passes it a context
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.check_time()
            own = [_materialized(each) for each in args] if name == "join" else list(args)
            values = own[1:] if hasattr(inner, "jinja_pass_arg") else own
            _require_small([*values, *kwargs.values()])
            if name in _TEXT_FILTERS and values:
                _check_text(values[0], _TEXT_FILTERS[name], [*values[1:], *kwargs.values()])
            return self.count(inner(*own, **kwargs))

        return limited


def _size(value: Any) -> int:
    """The characters, elements and digits of a value, however deep; more than a value may have is an error."""
    size, stack = 0, [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str | bytes):
            size += len(each) + 1
        elif isinstance(each, int):
            size += 1 + each.bit_length() // 3
        elif isinstance(each, Mapping):
            size += 1
            stack += each.keys()
            stack += each.values()
        elif isinstance(each, list | tuple | set | frozenset):
            size += 1
            stack += each
        elif isinstance(each, _Namespace):
            size += 1
            stack += object.__getattribute__(each, "_Namespace__attrs").values()
        else:
            size += 1
        if size + len(stack) > _MAX_CHARACTERS + 1:
            raise SecurityError(f"a value of more than {_MAX_CHARACTERS:,} characters")
    return size


def _require_small(values: Sequence[Any]) -> None:
    """A number that is passed may be the length of the result."""
    for value in values:
        if isinstance(value, int | float) and abs(value) > _MAX_CHARACTERS:
            raise SecurityError(f"the number {value:,g} as an argument")


def _materialized(value: Any) -> Any:
    """A list for an iterator or a range, whose elements are then counted."""
    if isinstance(value, Iterator | range):
        value = list(islice(value, _MAX_CHARACTERS + 1))
        _size(value)
    return value


def _check_text(text: Any, method: str, values: Sequence[Any]) -> None:
    """Raise where a method of a text would make a longer one than is allowed."""
    if not isinstance(text, str | bytes | list):
        return
    size, first = len(text) + 1, values[0] if values else None
    match method:
        case "translate":
            raise SecurityError("translate")
        case "join":  # of a method: the separator, and the texts
            size = size * len(first) if isinstance(first, Sized) else 0
        case "joined":  # of a filter: the texts, and the separator
            size *= len(first) + 1 if isinstance(first, str) else 1
        case "replace":
            old, new = (values[place] if len(values) > place else "" for place in (0, 1))
            if isinstance(text, list) or not isinstance(old, type(text)) or not isinstance(new, Sized):
                return
            size += text.count(old) * len(new)  # pyright: ignore[reportArgumentType]  of the same type
        case "expandtabs":
            size *= first if isinstance(first, int) else 8
        case "indent" if not isinstance(text, list):
            width = len(first) if isinstance(first, str) else first if isinstance(first, int) else 4
            size += (text.count("\n" if isinstance(text, str) else b"\n") + 1) * width  # pyright: ignore[reportArgumentType]
        case "format" | "format_map" | "%":
            _size(list(values))
            plain = text if isinstance(text, str) else repr(text)
            if _LONG_NUMBER.search(plain) or (method == "%" and _STARRED.search(plain)) or _has_large(values):
                raise SecurityError("a width of many digits in a format")
    if size > _MAX_CHARACTERS:
        raise SecurityError(f"a text of {size:,} characters")


def _has_large(values: Sequence[Any]) -> bool:
    """Whether a number in the arguments of a format could be a width that is too large."""
    stack = list(values)
    while stack:
        each = stack.pop()
        if isinstance(each, int) and abs(each) > _MAX_CHARACTERS:
            return True
        if isinstance(each, Mapping):
            stack += each.values()
        elif isinstance(each, list | tuple):
            stack += each
    return False


class _Limits(NodeTransformer):
    """Inserts what checks the limits where Jinja calls nothing: in loops, lists, dictionaries and concatenations."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  Jinja's name of the visitor
        self.generic_visit(node)
        length = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        call = self._call("passed", [nodes.Const(length, lineno=node.lineno)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._call("joined", node.nodes, node.lineno)

    def _literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return self._call("made", [node], node.lineno) if getattr(node, "ctx", "load") == "load" else node

    visit_List = visit_Dict = visit_Tuple = _literal  # noqa: N815

    @staticmethod
    def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
        attribute = nodes.ExtensionAttribute(_Generation.identifier, name, lineno=line)
        return nodes.Call(attribute, arguments, [], None, None, lineno=line)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, rendered as its content."""

    tags = {_GENERATION}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements((f"name:end{_GENERATION}",), drop_needle=True), lineno=line)

    def passed(self, length: int) -> None:
        """Counts the text of a loop's body, which Jinja writes without asking."""
        self._sandbox.count(" " * length)

    def joined(self, *values: Any) -> str:
        """The operator `~`."""
        parts = [str(self._sandbox.count(value)) for value in values]
        if sum(map(len, parts)) > _MAX_CHARACTERS:
            raise SecurityError(f"a text of {sum(map(len, parts)):,} characters")
        return "".join(parts)

    def made(self, value: Any) -> Any:
        """A list, a tuple or a dictionary that the template writes; its call counts it."""
        return value

    @property
    def _sandbox(self) -> _Sandbox:
        assert isinstance(self.environment, _Sandbox)
        return self.environment


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
