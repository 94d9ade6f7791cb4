"""The HTTP API of one or more runs.

    GET  /            a page to try the models
    GET  /health      whether the server is up, and the names of its models
    GET  /model       the description of a model: its task, labels, size and scores
    POST /predict     the predictions that `regard predict --json` prints
    POST /generate    the texts that `regard generate --json` prints, or one text as server-sent events
    POST /v1/chat/completions, GET /v1/models
                      the answer to a conversation, in the form of the OpenAI API, as one object or as events

One thread does all the work of the models, one unit after another, so that a response does not depend on concurrent
requests. A unit is the inputs of one request, or the next few characters of a text: texts of several requests are
generated side by side, each as if it were alone.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import resources
from typing import Any, TypeVar
from uuid import uuid4

import torch
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import Field, field_validator, model_validator
from starlette.exceptions import HTTPException

from regard.data.conversation_sources import read_messages
from regard.data.formats.images import is_data_uri
from regard.errors import ConfigError, RegardError
from regard.evaluation.registry import find_metric, score_label
from regard.explanation.pages import ICON, page_file
from regard.files import load_json
from regard.runs.report import summarize
from regard.runs.run import Run
from regard.settings import Settings, nearest
from regard.tasks.capabilities import OutputDrawer, capability
from regard.text.chat import ASSISTANT
from regard.version import version

MOST_INPUTS, MOST_CHARACTERS = 256, 20_000
"""Texts in a request, and characters in each."""
MOST_TOKENS, MOST_BEAMS, MOST_SAMPLES = 4_096, 64, 16
"""Tokens generated for an input; hypotheses of beam search; texts for a prompt."""
MOST_BYTES = 8 << 20
"""The largest body of a request."""
_LONGEST_MESSAGE = 300
"""Characters of an error message, which may repeat parts of the request."""


class _GenerationRequest(Settings):
    """What both kinds of requests have: the model, and how it generates."""

    model: str | None = None
    """The name of its run folder; by default the first one that is served."""
    top_k: int | None = None
    """Sample among the k most probable tokens."""
    top_p: float | None = None
    """Sample among the most probable tokens that together have this probability."""
    min_p: float | None = None
    """Sample among the tokens that have at least this share of the largest probability."""
    max_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """The largest number of tokens to generate."""


class PredictRequest(_GenerationRequest):
    """A request for predictions."""

    inputs: list[str]
    """The texts; where a task has several texts per input, they are separated by tabs."""
    beam_size: int | None = Field(default=None, ge=1, le=MOST_BEAMS)
    """Hypotheses of beam search; 1 is greedy decoding."""
    temperature: float | None = None
    """Sample with this temperature; 1 samples from the distribution of the model."""
    seed: int | None = None
    """The seed of the sampling."""
    draw: bool = False
    """Whether each prediction has a drawing of its output as SVG, for outputs that are trees."""

    @field_validator("inputs")
    @classmethod
    def _are_within_limits(cls, inputs: list[str]) -> list[str]:
        if not 1 <= len(inputs) <= MOST_INPUTS:
            raise ConfigError(f"inputs must contain 1 to {MOST_INPUTS} texts, got {len(inputs):,}")
        for number, text in enumerate(inputs, start=1):
            _require_short(f"input {number}", text)
        return inputs

    def options(self) -> dict[str, Any]:
        """Returns the options of generation that were given."""
        return self.model_dump(exclude={"model", "inputs", "draw"}, exclude_none=True)


class GenerateRequest(_GenerationRequest):
    """A request for texts that continue a prompt."""

    prompt: str = ""
    """The beginning of the text; by default the start token alone."""
    chat: bool = False
    """Whether the prompt is a message to be answered by the model's chat template."""
    temperature: float = 0.8
    """0 takes the most probable token; 1 samples from the distribution of the model."""
    seed: int = 0
    """The seed of the sampling."""
    samples: int = Field(default=1, ge=1, le=MOST_SAMPLES)
    """How many texts to generate, each with the next seed."""
    stream: bool = False
    """Send the text while it is generated, as server-sent events: `text` with the next piece, `end` or `error`."""

    @model_validator(mode="after")
    def _is_within_limits(self) -> "GenerateRequest":
        _require_short("the prompt", self.prompt)
        if self.stream and self.samples > 1:
            raise ConfigError(f"one text can be streamed at a time, got samples={self.samples}")
        return self

    def options(self) -> dict[str, Any]:
        """Returns the options of generation that were given, without the seed, which differs between samples."""
        return self.model_dump(exclude={"model", "prompt", "chat", "seed", "samples", "stream"}, exclude_none=True)


class ChatRequest(_GenerationRequest):
    """A request for the answer to a conversation, as the OpenAI API has it."""

    messages: list[dict[str, Any]]
    """Each with a `role` and a `content`."""
    temperature: float = 0.8
    """0 takes the most probable token; 1 samples from the distribution of the model."""
    seed: int = 0
    """The seed of the sampling."""
    stream: bool = False
    """Send the answer while it is generated, as server-sent events."""

    @model_validator(mode="after")
    def _is_a_conversation(self) -> "ChatRequest":
        _require_short("the conversation", "".join(str(message.get("content", "")) for message in self.messages))
        return self

    def options(self) -> dict[str, Any]:
        """Returns the options of generation that were given."""
        return self.model_dump(exclude={"model", "messages", "stream"}, exclude_none=True)


AnyRequest = TypeVar("AnyRequest", bound=_GenerationRequest)


def make_app(runs: Run | Sequence[Run]) -> FastAPI:
    """Returns an application that serves these runs; a request without a model is for the first one."""
    models = _by_name([runs] if isinstance(runs, Run) else runs)
    descriptions = {name: _describe(run, list(models)) for name, run in models.items()}
    page = _page()
    worker = ThreadPoolExecutor(1, "models", initializer=torch.set_num_threads, initargs=(1,))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.shutdown(wait=False, cancel_futures=True)

    # The usual pages of documentation load scripts from other hosts; /openapi.json has the same content.
    app = FastAPI(title="regard", version=version(), docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_exception_handler(RegardError, _respond_to_error)
    app.add_exception_handler(HTTPException, _respond_to_refusal)

    def find(name: str | None) -> Run:
        if name is not None and name not in models:
            raise ConfigError(f"no model has the name {name!r}{nearest(name, list(models))}")
        return models[name or next(iter(models))]

    @app.get("/", response_class=HTMLResponse)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": list(models)}

    @app.get("/model")
    async def describe(name: str | None = None) -> dict[str, Any]:
        return descriptions[find(name).path.resolve().name]

    @app.post("/predict", openapi_extra=_body_of(PredictRequest))
    async def predict(request: Request) -> dict[str, Any]:
        wanted = await _read(request, PredictRequest)
        run = find(wanted.model)
        if run.task.server_schema([]).reads_files:
            _require_data_uris(wanted.inputs)
        drawer = capability(run.task, OutputDrawer) if wanted.draw else None
        work = partial(run.predict_full, wanted.inputs, **wanted.options())
        found = await asyncio.get_running_loop().run_in_executor(worker, work)
        drawings = [{} if drawer is None else {"svg": drawer.output_as_svg(each.output)} for each in found]
        return {"predictions": [each.to_json() | drawn for each, drawn in zip(found, drawings, strict=True)]}

    @app.post("/generate", openapi_extra=_body_of(GenerateRequest), response_model=None)
    async def generate(request: Request) -> dict[str, Any] | StreamingResponse:
        wanted = await _read(request, GenerateRequest)
        run = find(wanted.model)
        start = run.chat if wanted.chat else run.stream
        texts = [
            _pieces(worker, start(wanted.prompt, **wanted.options(), seed=wanted.seed + number))
            for number in range(wanted.samples)
        ]
        if wanted.stream:
            first = await anext(texts[0], "")  # an error in the request is reported before the response begins
            return StreamingResponse(_events(first, texts[0]), media_type="text/event-stream")
        found = [
            {"seed": wanted.seed + number, "text": "".join([piece async for piece in text])}
            for number, text in enumerate(texts)
        ]
        return {"prompt": wanted.prompt, "texts": found}

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "regard"} for name in models]}

    @app.post("/v1/chat/completions", openapi_extra=_body_of(ChatRequest), response_model=None)
    async def complete(request: Request) -> dict[str, Any] | StreamingResponse:
        wanted = await _read(request, ChatRequest)
        run = find(wanted.model)
        pieces = _pieces(worker, run.chat(read_messages(wanted.messages), **wanted.options()))
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": run.path.resolve().name}
        if wanted.stream:
            first = await anext(pieces, "")  # an error in the request is reported before the response begins
            return StreamingResponse(_completion_events(head, first, pieces), media_type="text/event-stream")
        text = "".join([piece async for piece in pieces])
        choice = {"index": 0, "message": {"role": ASSISTANT, "content": text}, "finish_reason": "stop"}
        return {**head, "object": "chat.completion", "choices": [choice]}

    return app


def _by_name(runs: Sequence[Run]) -> dict[str, Run]:
    if not runs:
        raise ConfigError("there is no run to serve")
    models: dict[str, Run] = {}
    for run in runs:
        name = run.path.resolve().name
        if name in models:
            raise ConfigError(f"models have the names of their folders, which must be different, got {name!r} twice")
        models[name] = run
    return models


def _describe(run: Run, names: list[str]) -> dict[str, Any]:
    """Returns the description of a run; it loads the model, so that a damaged one is not served."""
    rows = run.folder.read_held_out("valid")
    schema = run.task.server_schema(rows)
    reports = [line for line in run.folder.read_ledger() if line["event"] == "report"]
    scores = reports[-1]["scores"] if reports else {}
    headline, digits = run.task.headline(rows) if rows else None, None
    if headline is not None and headline in scores:
        digits = find_metric(headline).digits_for(scores[headline]["value"])
    return {
        "name": run.path.resolve().name,
        "models": names,
        "task": run.task.name,
        "description": run.task.description,
        "inputs": list(schema.inputs),
        "placeholder": schema.placeholder,
        "labels": list(schema.labels),
        "output": schema.output,
        "reads_images": schema.reads_files,
        "streams": schema.streams,
        "has_beam_search": schema.has_beam_search,
        "has_chat": run.chat_template is not None,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "summary": summarize(run),
        "headline": headline,
        "headline_label": None if headline is None else f"Validation {score_label(headline)}",
        "headline_digits": digits,
        "has_rows": run.task.has_rows,
        "scores": scores,
        "limits": {"inputs": MOST_INPUTS, "characters": MOST_CHARACTERS, "tokens": MOST_TOKENS, "bytes": MOST_BYTES},
    }


async def _read(request: Request, kind: type[AnyRequest]) -> AnyRequest:
    """Returns the validated request.

    Other content types are refused, since a browser sends them for pages of other sites without a preflight request.
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
        values = load_json(bytes(body))
    except ValueError as error:
        raise ConfigError(f"the request is not JSON: {error}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"a request is a JSON object, got {type(values).__name__}")
    return kind.read(values)


def _require_data_uris(inputs: Sequence[str]) -> None:
    """Raise unless images are in the request itself: a path would be that of a file of this machine."""
    for number, text in enumerate(inputs, start=1):
        if not is_data_uri(text):
            raise ConfigError(f"input {number} must be an image as a data URI, data:image/png;base64,..., not a path")


def _require_short(name: str, text: str) -> None:
    if len(text) > MOST_CHARACTERS and not is_data_uri(text):  # the size of the request limits images
        raise ConfigError(f"{name} may have {MOST_CHARACTERS:,} characters at most, got {len(text):,}")


async def _pieces(worker: ThreadPoolExecutor, pieces: Any) -> AsyncIterator[str]:
    """Yields the pieces of a text; generation stops when the client disconnects."""
    loop = asyncio.get_running_loop()
    try:
        while (piece := await loop.run_in_executor(worker, next, pieces, None)) is not None:
            yield piece
    finally:
        with suppress(RuntimeError):  # the server is shutting down, and the worker with it
            worker.submit(pieces.close)


async def _events(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yields a text as server-sent events; the last one tells how it ended."""
    try:
        if first:
            yield _event("text", {"text": first})
        async for piece in rest:
            yield _event("text", {"text": piece})
        yield _event("end", {})
    except RegardError as error:
        yield _event("error", {"error": _one_line(str(error))})


async def _completion_events(head: dict[str, Any], first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yields an answer as the events of the OpenAI API."""

    def event(delta: dict[str, str], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"

    try:
        yield event({"role": ASSISTANT, "content": first})
        async for piece in rest:
            yield event({"content": piece})
        yield event({}, "stop")
        yield "data: [DONE]\n\n"
    except RegardError as error:
        yield f"data: {json.dumps({'error': {'message': _one_line(str(error))}})}\n\n"


def _event(name: str, data: dict[str, str]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _respond_to_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": _one_line(str(error))}, status_code=400)


async def _respond_to_refusal(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": _one_line(error.detail)}, status_code=error.status_code, headers=error.headers)


def _one_line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]} ..."


def _body_of(kind: type[_GenerationRequest]) -> dict[str, Any]:
    """Returns the schema of the body of a route for its OpenAPI documentation."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


def _page() -> str:
    page = (resources.files("regard.serving") / "page.html").read_text(encoding="utf-8")
    parts = {
        "icon": ICON,
        "style": page_file("common.css") + page_file("samples.css"),
        "script": page_file("common.js") + page_file("samples.js"),
    }
    for name, part in parts.items():
        page = page.replace("{{" + name + "}}", part)
    return page
