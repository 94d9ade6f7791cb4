"""A conversation with a run: its messages, and what can be done with them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from regard.errors import ConfigError, DataError
from regard.files import write_atomically
from regard.text.chat import ASSISTANT

if TYPE_CHECKING:
    from regard.runs.run import GenerationOptions, Run

_SYSTEM, _USER = "system", "user"


class Conversation:
    """The messages so far; each answer is added to them, as far as it was generated.

    Example:
        talk = regard.load("smollm2").conversation(temperature=0)
        print("".join(talk.ask("What is the capital of France?")))
    """

    def __init__(self, run: "Run", *, system: str | None = None, **options: Unpack["GenerationOptions"]) -> None:
        self._run, self._options, self._num_retries = run, options, 0
        self.messages: list[dict[str, Any]] = []
        if system is not None:
            self.set_system(system)

    def ask(self, text: str) -> Iterator[str]:
        """The answer to a message, piece by piece.

        Where it is closed or interrupted before its end, what was generated until then is the answer; without any, the
        message is removed.
        """
        if not text.strip():
            raise DataError("a message must not be empty")
        self.messages.append({"role": _USER, "content": text})
        self._num_retries = 0
        yield from self._answer()

    def retry(self) -> Iterator[str]:
        """Another answer to the last message, by the next seed; greedy decoding gives the same one."""
        asked = next((place for place, each in reversed(list(enumerate(self.messages))) if each["role"] == _USER), None)
        if asked is None:
            raise ConfigError("there is no message to answer again")
        del self.messages[asked + 1 :]
        self._num_retries += 1
        yield from self._answer()

    def set_system(self, text: str) -> None:
        """Replace the system message; an empty text removes it."""
        others = [message for message in self.messages if message["role"] != _SYSTEM]
        self.messages = [*([{"role": _SYSTEM, "content": text}] if text.strip() else []), *others]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation as one line of JSON, in the form that training reads."""
        if not self.messages:
            raise ConfigError("there is no message to save")
        line = json.dumps({"messages": self.messages}, ensure_ascii=False)
        write_atomically(Path(path), f"{line}\n".encode())

    def _answer(self) -> Iterator[str]:
        options: Any = {**self._options, "seed": self._options.get("seed", 0) + self._num_retries}
        text = ""
        try:
            for piece in self._run.chat(self.messages, **options):
                text += piece
                yield piece
        finally:
            if text.strip():
                self.messages.append({"role": ASSISTANT, "content": text})
            else:
                self.messages.pop()
