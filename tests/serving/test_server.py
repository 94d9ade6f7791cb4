"""The server as a process: it starts, says where, answers, and ends by Ctrl-C as if that were nothing."""

import json
import os
import re
import shutil
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

from regard.errors import ConfigError, DeviceError, RunError
from regard.serving.server import listen, serve, url_of

REGARD = [sys.executable, "-m", "regard"]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


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
    expected = runs["classification"].predictions(["a bad film"])[0]
    with served(classifier, runs["language"].path) as (process, url):
        (found,) = ask(f"{url}/predict", {"inputs": ["a bad film"]})["predictions"]
        assert found["output"] == expected.output
        assert found["probabilities"] == pytest.approx(expected.probabilities)
        # A text that nobody could wait for is being written when the signal comes.
        wish = {"model": "language", "stream": True, "max_length": 4096}
        request = Request(f"{url}/generate", json.dumps(wish).encode(), {"content-type": "application/json"})
        with urlopen(request, timeout=60) as streamed:
            assert streamed.readline() == b"event: text\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed to draw the page")
@pytest.mark.parametrize(
    ("task", "texts", "wanted"),
    [
        (
            "classification",
            ["a bad film"],
            r'<p class="answer large"[^>]*>[+-]</p>.*<span class="share">\d+\.\d %</span>',
        ),
        ("tagging", ["Ada lives in Brno"], r'<p class="words"[^>]*>.*Brno'),
        ("answering", ["Where?", "Ada was born in London."], r'<p class="answer large"[^>]*>\w'),
        ("embedding", ["good 3", "3 good"], r"The cosine of two vectors of 12 numbers"),
        ("language", ["Once "], r'<span class="prompt">Once </span><span>[^<]'),
    ],
)
def test_the_page_shows_what_the_model_says(runs, tmp_path: Path, task: str, texts: list[str], wanted: str):
    quiet = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    with served(runs[task].path) as (_, url):
        page = f"{url}/?{urlencode([('text', text) for text in texts])}"
        command = [
            str(BROWSER),
            *quiet.split(),
            "--virtual-time-budget=5000",
            f"--user-data-dir={tmp_path}",
            "--dump-dom",
        ]
        done = subprocess.run([*command, page], capture_output=True, text=True, timeout=60, check=True)
    assert 'data-error="' not in done.stdout
    assert 'class="failed"' not in done.stdout.split("<main>")[1]
    assert re.search(wanted, done.stdout, flags=re.DOTALL), done.stdout.split("<main>")[1].split("<script>")[0]


def test_the_first_free_port_is_taken_and_said(caplog: pytest.LogCaptureFixture):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DeviceError, match=f"port {port} of 127.0.0.1 is in use: name another"):
            listen("127.0.0.1", port)
    with caplog.at_level("INFO", "regard"), listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        ports = [place.getsockname()[1] for place in (first, second)]
        assert 8000 <= ports[0] < ports[1]
        assert f"port 8000 is in use: taking {ports[1]}" in caplog.messages
        assert url_of(second) == f"http://127.0.0.1:{ports[1]}"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_address_of_six_parts_is_written_in_brackets():
    try:
        place = listen("::1", 0)
    except DeviceError:
        pytest.skip("this machine has no IPv6 address of its own")
    with place:
        assert url_of(place).startswith("http://[::1]:")


def test_places_that_are_none_are_named():
    with pytest.raises(ConfigError, match="a port lies in 0 to 65535, got 70000"):
        listen("127.0.0.1", 70_000)
    with pytest.raises(DeviceError, match=r"cannot listen at port 0 of 192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path):
    with pytest.raises(RunError, match="is not the folder of a run"):
        serve(tmp_path)


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, classifier: Path, package: str):
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("regard.serving.app", "regard.serving.requests"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match=rf"serving needs the package {package}: pip install 'regard\[serve\]'"):
        serve(classifier)
