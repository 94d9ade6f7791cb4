"""The server as a process: it starts, says where, answers, and ends by Ctrl-C as if that were nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from tests.browser import Browser

from regard.errors import ConfigError, DeviceError, RunError
from regard.serving.server import open_socket, serve, url_of

REGARD = [sys.executable, "-m", "regard"]


def ask(url: str, body: dict) -> dict:
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextmanager
def served(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`regard serve` as a process, and its URL."""
    with subprocess.Popen(
        [*REGARD, "serve", *map(str, arguments), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.send_signal(signal.SIGINT)


@pytest.mark.slow
def test_a_served_run_answers_until_it_is_stopped(runs, classifier: Path):
    expected = runs["text-classification"].predict_full(["a bad film"])[0]
    with served(classifier, runs["language-modeling"].path) as (process, url):
        (found,) = ask(f"{url}/predict", {"inputs": ["a bad film"]})["predictions"]
        assert found["output"] == expected.output
        assert found["probabilities"] == pytest.approx(expected.probabilities)
        # A text that nobody could wait for is being written when the signal comes.
        wish = {"model": "language-modeling", "stream": True, "max_tokens": 4096}
        request = Request(f"{url}/generate", json.dumps(wish).encode(), {"content-type": "application/json"})
        with urlopen(request, timeout=60) as streamed:
            assert streamed.readline() == b"event: text\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in err


IS_ANSWERED = """
const element = (id) => document.getElementById(id);
return Boolean(element("result") && !element("result").hidden && !element("ask").classList.contains("busy"));
"""
"""Whether the page has asked the model, and the answer, or an error in its place, has arrived to its end."""


@pytest.fixture(scope="module")
def site(runs) -> Iterator[str]:
    """The URL of a server of all runs."""
    with served(*(run.path for run in runs.values())) as (_, url):
        yield url


def answer_in(browser: Browser, url: str, texts: list[str], model: str | None = None) -> str:
    """Opens the page with a question in its address; returns its main part once that is answered."""
    query = [("text", text) for text in texts] + ([("model", model)] if model else [])
    browser.open(f"{url}/?{urlencode(query)}")
    browser.wait(lambda: browser.run(IS_ANSWERED), "an answered question")
    assert browser.run("return document.documentElement.dataset.error ?? null") is None
    return browser.run("return document.querySelector('main').innerHTML")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "texts", "wanted"),
    [
        (
            "text-classification",
            ["a bad film"],
            r'<p class="answer large"[^>]*>[+-]</p>.*<span class="share">\d+\.\d %</span>',
        ),
        ("token-classification", ["Ada lives in Brno"], r'<p class="words"[^>]*>.*Brno'),
        ("question-answering", ["Where?", "Ada was born in London."], r'<p class="answer large"[^>]*>\w'),
        ("sentence-embedding", ["good 3", "3 good"], r"The cosine of two vectors of 12 numbers"),
    ],
)
def test_the_page_shows_what_the_model_predicts(
    runs, site: str, browser: Browser, task: str, texts: list[str], wanted: str
):
    inputs = texts if task == "sentence-embedding" else ["\t".join(texts)]
    expected = [prediction.output for prediction in runs[task].predict_full(inputs)]
    main = answer_in(browser, site, texts, model=task)
    found = json.loads(browser.run("return document.getElementById('json').textContent"))["predictions"]
    assert 'class="failed"' not in main
    assert re.search(wanted, main, flags=re.DOTALL), main
    outputs = [each["output"] for each in found]
    if task == "sentence-embedding":  # vectors as text, in float32, whose last digit depends on where the tensors lie
        outputs, expected = ([[float(x) for x in each.split()] for each in some] for some in (outputs, expected))
        expected = [pytest.approx(vector, rel=1e-4) for vector in expected]
    assert outputs == expected


@pytest.mark.slow
def test_the_page_shows_a_generated_text_to_its_end(runs, browser: Browser):
    expected = runs["language-modeling"].generate("Once ", temperature=0.8, max_tokens=200)
    with served(runs["language-modeling"].path) as (_, url):
        main = answer_in(browser, url, ["Once "])
        assert browser.run("return document.querySelector('.answer').textContent") == f"Once {expected}"
    assert len(expected) > 1
    assert 'class="failed"' not in main


@pytest.mark.slow
def test_the_page_shows_an_error_in_the_place_of_an_answer(site: str, browser: Browser):
    assert 'class="failed">the input must have a blank' in answer_in(
        browser, site, ["no blank"], model="masked-language-modeling"
    )


@pytest.mark.slow
def test_each_line_of_the_page_is_an_input_of_its_own(runs, site: str, browser: Browser):
    lines = ["a bad film", "a good film 3"]
    answer_in(browser, site, ["\n".join(lines)], model="text-classification")
    found = json.loads(browser.run("return document.getElementById('json').textContent"))["predictions"]
    expected = runs["text-classification"].predict_full(lines)
    assert [(each["input"], each["output"]) for each in found] == [(each.input, each.output) for each in expected]
    assert browser.run("return document.querySelectorAll('.result').length") == 2


@pytest.mark.slow
def test_an_error_replaces_the_answer_before_it(site: str, browser: Browser):
    answer_in(browser, site, ["a bad film"], model="text-classification")
    assert browser.run("return document.querySelectorAll('.answer').length") == 1
    browser.run("document.querySelector('textarea').value = ''; document.getElementById('ask').click()")
    browser.wait(lambda: browser.run("return Boolean(document.querySelector('.failed'))"), "an error")
    assert browser.run("return document.querySelectorAll('#result .answer, #result .probabilities').length") == 0
    assert browser.run("return document.getElementById('raw').hidden")


def test_the_first_free_port_is_taken_and_said(caplog: pytest.LogCaptureFixture):
    with open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DeviceError, match=f"port {port} of 127.0.0.1 is in use"):
            open_socket("127.0.0.1", port)
    caplog.set_level("INFO", "regard")
    with open_socket("127.0.0.1", None) as first, open_socket("127.0.0.1", None) as second:
        ports = [place.getsockname()[1] for place in (first, second)]
        assert 8000 <= ports[0] < ports[1]
        assert f"port 8000 is in use, using port {ports[1]}" in caplog.messages
        assert url_of(second) == f"http://127.0.0.1:{ports[1]}"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_address_of_six_parts_is_written_in_brackets():
    try:
        place = open_socket("::1", 0)
    except DeviceError:
        pytest.skip("this machine has no IPv6 address of its own")
    with place:
        assert url_of(place).startswith("http://[::1]:")


def test_places_that_are_none_are_named():
    with pytest.raises(ConfigError, match="0 to 65535, got 70000"):
        open_socket("127.0.0.1", 70_000)
    with pytest.raises(DeviceError, match=r"cannot listen on port 0 of 192\.0\.2\.1"):
        open_socket("192.0.2.1", 0)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path):
    with pytest.raises(RunError, match="is not a run folder"):
        serve(tmp_path)


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, classifier: Path, package: str):
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("regard.serving.app", "regard.serving.requests"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match=rf"serving needs the package {package}: pip install 'regard\[serve\]'"):
        serve(classifier)
