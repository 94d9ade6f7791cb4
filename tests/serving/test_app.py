"""What is asked by HTTP is answered as from Python, whoever else is asking; what is wrong is told in a line."""

import asyncio
import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from tests.serving.conftest import INPUTS

from regard.errors import ConfigError
from regard.evaluation.registry import find_metric
from regard.runs.run import Run
from regard.runs.train import train
from regard.serving.app import MOST_BYTES, MOST_CHARACTERS, MOST_INPUTS, make_app


def events_of(text: str) -> list[tuple[str, dict[str, str]]]:
    """The names and data of server-sent events."""
    assert text.endswith("\n\n")
    lines = [event.split("\n") for event in text.removesuffix("\n\n").split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


@pytest.mark.parametrize("task", INPUTS)
def test_every_task_is_answered_as_from_python(client: TestClient, runs: dict[str, Run], task: str):
    answer = client.post("/predict", json={"model": task, "inputs": INPUTS[task]})
    assert answer.status_code == 200, answer.text
    expected = [prediction.to_json() for prediction in runs[task].predict_full(INPUTS[task])]
    assert answer.json() == {"predictions": expected}
    about = client.get("/model", params={"name": task}).json()
    assert (about["task"], about["name"]) == (task, task)
    assert about["parameters"] == sum(parameter.numel() for parameter in runs[task].model.parameters())
    assert about["scores"] == runs[task].folder.read_ledger()[-1]["scores"]
    assert about["headline"] in about["scores"]
    assert about["headline_digits"] == find_metric(about["headline"]).digits_for(
        about["scores"][about["headline"]]["value"]
    )
    assert about["has_rows"] is not task.endswith("language-modeling")
    assert about["streams"] == (task == "language-modeling")
    assert bool(about["labels"]) == (task in ("text-classification", "token-classification"))


def test_a_request_that_names_no_model_is_for_the_first(client: TestClient):
    assert client.get("/model").json()["name"] == "text-classification"
    (found,) = client.post("/predict", json={"inputs": ["a bad film"]}).json()["predictions"]
    assert set(found["probabilities"]) == {"+", "-"}
    assert client.get("/health").json() == {"status": "ok", "models": list(INPUTS)}


def test_a_text_is_the_same_whole_and_piece_by_piece(client: TestClient, runs: dict[str, Run]):
    wish = {"model": "language-modeling", "prompt": "Once ", "seed": 5, "temperature": 1.0, "max_tokens": 31}
    expected = runs["language-modeling"].generate("Once ", seed=5, temperature=1.0, max_tokens=31)
    whole = client.post("/generate", json={**wish, "samples": 2}).json()
    assert whole["prompt"] == "Once "
    assert [text["seed"] for text in whole["texts"]] == [5, 6]
    assert whole["texts"][0]["text"] == expected
    assert whole["texts"][1]["text"] != expected
    streamed = client.post("/generate", json={**wish, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *pieces, end = events_of(streamed.text)
    assert len(pieces) > 1
    assert {name for name, _ in pieces} == {"text"}
    assert "".join(data["text"] for _, data in pieces) == expected
    assert end == ("end", {})


@pytest.mark.slow
def test_answers_do_not_depend_on_who_else_is_asking(client: TestClient, runs: dict[str, Run]):
    wishes = [("/predict", {"model": task, "inputs": INPUTS[task]}) for task in ("text-classification", "seq2seq")]
    wishes += [
        (
            "/generate",
            {"model": "language-modeling", "prompt": prompt, "seed": seed, "temperature": 1.0, "stream": stream},
        )
        for seed, prompt in enumerate(["Once ", "and then", "Once bad film number"])
        for stream in (False, True)
    ]

    def ask(wish: tuple[str, dict]) -> str:
        answer = client.post(wish[0], json=wish[1])
        assert answer.status_code == 200, answer.text
        return answer.text

    alone = [ask(wish) for wish in wishes]
    with ThreadPoolExecutor(len(wishes)) as people:
        for _ in range(3):
            assert list(people.map(ask, wishes)) == alone


def test_a_reader_who_leaves_has_the_rest_not_written(runs: dict[str, Run], single_precision: None):
    run = runs["language-modeling"]
    app = make_app(run)
    wish = json.dumps({"prompt": "Once", "stream": True, "max_tokens": 4000}).encode()
    scope = {"type": "http", "method": "POST", "path": "/generate", "query_string": b"", "http_version": "1.1",
             "headers": [(b"content-type", b"application/json")]}  # fmt: skip
    assert 2 <= _ask_and_leave(app, scope, wish) < 100
    config = run.generation(temperature=0.8, seed=0, max_tokens=4000)
    engine = run._predictors[config]._engine  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(100):
        if engine.is_idle:
            break
        time.sleep(0.05)
    assert engine.is_idle


def _ask_and_leave(app, scope: dict, body: bytes) -> int:
    """Send a request, and leave after its second piece; returns how many pieces were sent in all."""

    async def meet() -> int:
        sent: list[bytes] = []
        has_left = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict:
            if messages:
                return messages.pop()
            await has_left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict) -> None:
            if message.get("body"):
                sent.append(message["body"])
            if len(sent) >= 2:
                has_left.set()

        await app(scope, receive, send)
        return len(sent)

    return asyncio.run(meet())


@pytest.mark.parametrize(
    ("wish", "parts"),
    [
        ({}, ["inputs is missing"]),
        ({"inputs": []}, ["inputs must contain 1 to 256 texts, got 0"]),
        ({"inputs": ["x"] * (MOST_INPUTS + 1)}, ["got 257"]),
        ({"inputs": ["x", "y" * (MOST_CHARACTERS + 1)]}, ["input 2 may have 20,000 characters at most, got 20,001"]),
        ({"inputs": [3]}, ["inputs.0", "valid string", "got 3"]),
        ({"inputs": "x"}, ["inputs", "valid list"]),
        ({"inputs": [" "]}, ["input 1 is empty"]),
        ({"inputs": ["\ud800"]}, ["input 1 is not UTF-8"]),
        ({"inputs": ["x"], "beam_sise": 3}, ["unknown setting beam_sise; did you mean beam_size?"]),
        ({"inputs": ["x"], "beam_size": 65}, ["beam_size", "64", "got 65"]),
        ({"inputs": ["x"], "beam_size": 2, "temperature": 1.0}, ["beam search does not sample"]),
        ({"inputs": ["x"], "temperature": -1.0}, ["temperature", "greater than or equal to 0"]),
        ({"inputs": ["x"], "temperature": "warm"}, ["temperature", "valid number", "warm"]),
        ({"inputs": ["x"], "model": "regresion"}, ["no model has the name 'regresion'; did you mean regression?"]),
        ({"inputs": ["x" * 5000], "model": 7}, ["model", "valid string"]),
        ({"inputs": ["no tab"], "model": "question-answering"}, ["a question, a tab and a context"]),
        ({"inputs": ["no blank"], "model": "masked-language-modeling"}, ["must have a blank"]),
    ],
)
def test_what_is_wrong_is_told_in_a_line(client: TestClient, wish: dict, parts: list[str]):
    answer = client.post("/predict", content=json.dumps(wish), headers={"content-type": "application/json"})
    assert answer.status_code == 400
    (message,) = answer.json().values()
    assert "\n" not in message
    assert len(message) < 400
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("wish", "part"),
    [
        ({"prompt": "x"}, "generate is for language models"),
        ({"model": "language-modeling", "chat": True}, "no chat template"),
        ({"model": "language-modeling", "stream": True, "chat": True}, "no chat template"),
        (
            {"model": "language-modeling", "stream": True, "samples": 2},
            "one text can be streamed at a time, got samples=2",
        ),
        ({"model": "language-modeling", "samples": 17}, "samples"),
        ({"model": "language-modeling", "max_tokens": 5000}, "max_tokens"),
        (
            {"model": "language-modeling", "prompt": "x" * (MOST_CHARACTERS + 1)},
            "the prompt may have 20,000 characters",
        ),
        ({"model": "language-modeling", "temperature": 0, "top_k": 3}, "top_k needs a temperature"),
    ],
)
def test_a_wrong_wish_for_a_text_is_told_before_it_begins(client: TestClient, wish: dict, part: str):
    answer = client.post("/generate", json=wish)
    assert answer.status_code == 400, answer.text
    assert part in answer.json()["error"]


def test_what_is_no_request_is_refused(client: TestClient):
    as_json = {"content-type": "application/json"}
    assert client.post("/predict", data={"inputs": "x"}).status_code == 415
    assert client.post("/predict", content="{", headers=as_json).json()["error"].startswith("the request is not JSON")
    assert client.post("/predict", content="[1]", headers=as_json).json() == {
        "error": "a request is a JSON object, got list"
    }
    deep = client.post("/predict", content="[" * 100_000, headers=as_json)
    assert deep.status_code == 400
    large = client.post("/predict", content=b" " * (MOST_BYTES + 1), headers=as_json)
    assert (large.status_code, large.json()) == (413, {"error": "a request may have 8,388,608 bytes at most"})
    assert client.get("/predict").json() == {"error": "Method Not Allowed"}
    assert client.get("/elsewhere").status_code == 404


def test_the_page_needs_nothing_from_elsewhere(client: TestClient):
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    for sign in ("src=", "http://", "https://", "@import", "{{"):
        assert sign not in answer.text.replace("http://www.w3.org/2000/svg", "").replace("http%3A//www.w3.org", "")
    assert "connect-src 'self'" in answer.text
    paths = client.get("/openapi.json").json()["paths"]
    own = {"/", "/health", "/model", "/predict", "/generate"}
    assert set(paths) == own | {"/v1/models", "/v1/chat/completions"}
    schema = paths["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "beam_size" in schema["properties"]


def test_images_are_served_as_data_uris_and_no_path_is_read(
    runs: dict[str, Run], tmp_path: Path, single_precision: None
):
    for number in range(20):
        name = tmp_path / "pictures" / ("dark", "bright")[number % 2] / f"{number}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 20 * (number % 2) + number).save(name)
    model = {"num_layers": 1, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17}
    settings = {"model": model, "task": {"image": {"size": 8}}, "train": {"max_steps": 1, "device": "cpu"}}
    run = train(tmp_path / "pictures", model="vit", out=tmp_path / "run", settings=settings, show_progress=False)
    with TestClient(make_app([run])) as client:
        assert client.get("/model").json()["reads_images"]
        name = next((tmp_path / "pictures" / "dark").iterdir())
        image = "data:image/png;base64," + base64.b64encode(name.read_bytes()).decode()
        (answer,) = client.post("/predict", json={"inputs": [image]}).json()["predictions"]
        assert answer["output"] == run.predict(str(name))
        for wrong in (str(name), "data:image/png;base64,AAAA", "data:image/png,x", image[:-30]):
            refused = client.post("/predict", json={"inputs": [wrong]})
            assert refused.status_code == 400
            assert len(refused.json()["error"].splitlines()) == 1


def test_models_need_names_of_their_own(runs: dict[str, Run]):
    with pytest.raises(ConfigError, match="got 'masked-language-modeling' twice"):
        make_app([runs["masked-language-modeling"], runs["masked-language-modeling"]])
    with pytest.raises(ConfigError, match="no run to serve"):
        make_app([])
