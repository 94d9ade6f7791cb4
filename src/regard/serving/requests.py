"""What a server may be asked, and how much of it at once."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import Field, field_validator, model_validator
from starlette.exceptions import HTTPException

from regard.errors import ConfigError
from regard.settings import Settings

MOST_INPUTS, MOST_CHARACTERS = 256, 20_000
"""Texts in a request, and characters in each."""
MOST_TOKENS, MOST_BEAMS, MOST_SAMPLES = 4_096, 64, 16
"""Tokens to be written for an input; hypotheses of a beam search; texts for a prompt."""
MOST_BYTES = 8 << 20
"""Of the body of a request."""


class _Request(Settings):
    """What both kinds of requests have: which model, and how it is to write."""

    model: str | None = None
    """The name of its folder; unset, the first that is served."""
    top_k: int | None = None
    """Sample among the k likeliest tokens."""
    top_p: float | None = None
    """Sample among the tokens that hold this probability."""
    min_p: float | None = None
    """Sample among tokens at least this share as likely as the best."""
    max_length: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """The most tokens to write."""


class PredictRequest(_Request):
    """Inputs that are to be answered."""

    inputs: list[str]
    """The texts; of two that belong together, a tab parts them."""
    beam_size: int | None = Field(default=None, ge=1, le=MOST_BEAMS)
    """Hypotheses of beam search; 1 is greedy."""
    temperature: float | None = None
    """Sample; 1 is the model's own distribution."""
    seed: int | None = None
    """The same seed gives the same sample."""

    @field_validator("inputs")
    @classmethod
    def _are_within_limits(cls, inputs: list[str]) -> list[str]:
        if not 1 <= len(inputs) <= MOST_INPUTS:
            raise ConfigError(f"inputs must hold 1 to {MOST_INPUTS} texts, got {len(inputs):,}")
        for number, text in enumerate(inputs, start=1):
            _require_short(f"input {number}", text)
        return inputs

    def options(self) -> dict[str, Any]:
        """What of the way of writing was set."""
        return self.model_dump(exclude={"model", "inputs"}, exclude_none=True)


class GenerateRequest(_Request):
    """A prompt that is to be continued."""

    prompt: str = ""
    """How the text begins; unset, the model begins it."""
    chat: bool = False
    """Answer the prompt as a question."""
    temperature: float = 0.8
    """0: the likeliest token; 1: as the model has it."""
    seed: int = 0
    """The same seed gives the same text."""
    samples: int = Field(default=1, ge=1, le=MOST_SAMPLES)
    """How many texts to write, each with the next seed."""
    stream: bool = False
    """Send the text as it is written, as server-sent events: `text` with the next piece, `end` or `error`."""

    @model_validator(mode="after")
    def _is_within_limits(self) -> "GenerateRequest":
        _require_short("the prompt", self.prompt)
        if self.stream and self.samples > 1:
            raise ConfigError(f"one text can be streamed at a time, got samples={self.samples}")
        return self

    def options(self) -> dict[str, Any]:
        """What of the way of writing was set; the seed, which each sample has its own of, is left out."""
        return self.model_dump(exclude={"model", "prompt", "chat", "seed", "samples", "stream"}, exclude_none=True)


Wish = TypeVar("Wish", bound=_Request)


async def read_request(request: Request, kind: type[Wish]) -> Wish:
    """What is wished for, checked.

    Other types of content are refused: a page of another site may send those without being asked first.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HTTPException(415, f"the content-type must be application/json, got {content_type or 'none'}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"a request may have {MOST_BYTES:,} bytes at most")
    try:
        values = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the request is not JSON: {error}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"a request is a JSON object, got {type(values).__name__}")
    return kind.read(values)


def _require_short(name: str, text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{name} may have {MOST_CHARACTERS:,} characters at most, got {len(text):,}")
