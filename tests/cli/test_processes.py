"""What only a process of its own can show: pipes, imports, exit codes as a shell sees them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REGARD = [sys.executable, "-m", "regard"]


def shell(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD": " ".join(REGARD), **more}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["data", "list"], ["--version"]])
def test_what_needs_no_torch_does_not_wait_for_it(arguments: list[str]):
    code = (
        "import sys; from regard.cli.main import main\n"
        f"sys.argv = ['regard', *{arguments!r}]\n"
        "try: main()\n"
        "except SystemExit as leaving: assert leaving.code == 0\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_lines_from_a_pipe_are_answered_line_by_line(trained: Path):
    ended = shell(f"printf 'a\\nb\\n' | $REGARD predict {trained} --max-tokens 3")
    assert ended.returncode == 0
    assert len(ended.stdout.splitlines()) == 2
    assert ended.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100_000, 20], ids=["more than a buffer holds", "less than that"])
def test_a_reader_that_has_seen_enough_ends_the_writer_quietly(rows: int):
    ended = shell(f"$REGARD data show dates --rows {rows} | head -1; echo ${{PIPESTATUS[0]}}")
    assert ended.stdout == "source\ttarget\n0\n"
    assert ended.stderr == ""
    ended = shell(f"$REGARD data show dates --rows {rows} | true; echo ${{PIPESTATUS[0]}}")
    assert (ended.stdout, ended.stderr) == ("0\n", "")


def test_an_error_has_exit_code_two_and_no_traceback():
    ended = shell("$REGARD data show datse")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("regard: name must be that of a built-in data set")
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_interrupted_command_says_so(trained: Path):
    process = subprocess.Popen(
        [*REGARD, "predict", str(trained)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"a\n" * 256)  # as many as are answered at once
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == b"regard: interrupted\n"
