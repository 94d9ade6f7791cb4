"""Runs over HTTP: what can be asked, and what comes back.

    GET  /            a page to try the models
    GET  /health      whether the server answers
    GET  /model       what a model is: its task, labels, size and scores
    POST /predict     what `regard predict --json` prints
    POST /generate    what `regard generate --json` prints, or the text piece by piece as it is written

One thread does all the work of the models, one piece after another, so that an
answer does not depend on who else is asking. A piece is the inputs of one
request, or the next few letters of a text: texts are written side by side, each
as if it were alone, and nobody waits for the end of another's.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import resources
from typing import Any
from urllib.parse import quote

import torch
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from regard.errors import ConfigError, RegardError
from regard.explanation.templates import ICON, page_file
from regard.runs.reporting import summary
from regard.runs.run import Run
from regard.serving.requests import (
    MOST_BYTES,
    MOST_CHARACTERS,
    MOST_INPUTS,
    MOST_TOKENS,
    GenerateRequest,
    PredictRequest,
    read_request,
)
from regard.settings import nearest
from regard.version import version

_ABOUT_FILES = ("recognition",)
"""Tasks whose inputs are paths: whoever asks must not learn what files there are."""
_LONGEST_MESSAGE = 300
"""Characters of an error, which may repeat what it was given."""


def make_app(runs: Run | Sequence[Run]) -> FastAPI:
    """An application that answers by these runs; a request that names none is for the first."""
    models = _by_name([runs] if isinstance(runs, Run) else runs)
    about = {name: _describe(run, list(models)) for name, run in models.items()}
    page = _page()
    worker = ThreadPoolExecutor(1, "models", initializer=torch.set_num_threads, initargs=(1,))

    @asynccontextmanager
    async def until_the_end(app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.shutdown(wait=False, cancel_futures=True)

    # The usual pages of documentation load scripts from elsewhere; /openapi.json holds the same.
    app = FastAPI(title="regard", version=version(), docs_url=None, redoc_url=None, lifespan=until_the_end)
    app.add_exception_handler(RegardError, _tell_error)
    app.add_exception_handler(HTTPException, _tell_refusal)

    def chosen(name: str | None) -> Run:
        if name is not None and name not in models:
            raise ConfigError(f"no model is called {name!r}{nearest(name, list(models))}")
        return models[name or next(iter(models))]

    @app.get("/", response_class=HTMLResponse)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/health")
    async def tell_health() -> dict[str, Any]:
        return {"status": "ok", "models": list(models)}

    @app.get("/model")
    async def tell_model(name: str | None = None) -> dict[str, Any]:
        return about[chosen(name).path.resolve().name]

    @app.post("/predict", openapi_extra=_body_of(PredictRequest))
    async def predict(request: Request) -> dict[str, Any]:
        wish = await read_request(request, PredictRequest)
        work = partial(chosen(wish.model).predictions, wish.inputs, **wish.options())
        found = await asyncio.get_running_loop().run_in_executor(worker, work)
        return {"predictions": [prediction.to_json() for prediction in found]}

    @app.post("/generate", openapi_extra=_body_of(GenerateRequest), response_model=None)
    async def generate(request: Request) -> dict[str, Any] | StreamingResponse:
        wish = await read_request(request, GenerateRequest)
        run = chosen(wish.model)
        write = run.chat if wish.chat else run.stream
        texts = [
            _written(worker, write(wish.prompt, **wish.options(), seed=wish.seed + number))
            for number in range(wish.samples)
        ]
        if wish.stream:
            first = await anext(texts[0], "")  # whatever is wrong is told before the answer begins
            return StreamingResponse(_events(first, texts[0]), media_type="text/event-stream")
        found = [
            {"seed": wish.seed + number, "text": "".join([piece async for piece in text])}
            for number, text in enumerate(texts)
        ]
        return {"prompt": wish.prompt, "texts": found}

    return app


def _by_name(runs: Sequence[Run]) -> dict[str, Run]:
    if not runs:
        raise ConfigError("there is no run to serve")
    models: dict[str, Run] = {}
    for run in runs:
        name = run.path.resolve().name
        if run.task.name in _ABOUT_FILES:
            raise ConfigError(f"{run.path} is for {run.task.name}, which reads files of this machine: it is not served")
        if name in models:
            raise ConfigError(f"models are told apart by the names of their folders, got {name!r} twice")
        models[name] = run
    return models


def _describe(run: Run, names: list[str]) -> dict[str, Any]:
    """What a run is, to people and programs; it loads the model, so that a damaged one is not served."""
    num_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    rows = run.folder.read_held_out("valid")
    reports = [look["scores"] for look in run.folder.read_looks() if look["what"] == "report"]
    is_pair = run.task.name in ("classification", "regression") and bool(rows) and len(rows[0]) == 3
    asked = {"answering": ["question", "text"], "aspects": ["text", "aspect"], "language": ["prompt"]}
    return {
        "name": run.path.resolve().name,
        "models": names,
        "task": run.task.name,
        "description": run.task.description,
        "inputs": ["text", "other text"] if is_pair else asked.get(run.task.name, ["text"]),
        "labels": list(run.settings.data.labels),
        "has_chat": run.folder.read_chat_template() is not None,
        "parameters": num_parameters,
        "summary": summary(run),
        "headline": run.task.headline(rows) if rows else None,
        "scores": reports[-1] if reports else {},
        "limits": {"inputs": MOST_INPUTS, "characters": MOST_CHARACTERS, "tokens": MOST_TOKENS, "bytes": MOST_BYTES},
    }


async def _written(worker: ThreadPoolExecutor, pieces: Any) -> AsyncIterator[str]:
    """The pieces of a text; a reader who leaves before its end has the rest not written."""
    loop = asyncio.get_running_loop()
    try:
        while (piece := await loop.run_in_executor(worker, next, pieces, None)) is not None:
            yield piece
    finally:
        with suppress(RuntimeError):  # the server is closing, and nothing is written any more
            worker.submit(pieces.close)


async def _events(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """A text as server-sent events: pieces, and a last one that says how it ended."""
    try:
        if first:
            yield _event("text", {"text": first})
        async for piece in rest:
            yield _event("text", {"text": piece})
        yield _event("end", {})
    except RegardError as error:
        yield _event("error", {"error": _line(str(error))})


def _event(name: str, data: dict[str, str]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _tell_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": _line(str(error))}, status_code=400)


async def _tell_refusal(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": _line(error.detail)}, status_code=error.status_code, headers=error.headers)


def _line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]} ..."


def _body_of(wish: type[PredictRequest] | type[GenerateRequest]) -> dict[str, Any]:
    """How the documentation of a route tells what is sent to it."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": wish.model_json_schema()}}}}


def _page() -> str:
    page = (resources.files("regard.serving") / "page.html").read_text(encoding="utf-8")
    parts = {
        "icon": "data:image/svg+xml," + quote(ICON),
        "style": page_file("style.css"),
        "common": page_file("common.js"),
    }
    for name, part in parts.items():
        page = page.replace("{{" + name + "}}", part)
    return page
