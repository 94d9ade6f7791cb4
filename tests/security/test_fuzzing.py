"""Every reader, fuzzed for a moment; `python -m tests.fuzzing` does it for as long as one likes."""

import ast
from pathlib import Path

import pytest
from tests.fuzzing.engine import FuzzedReader, fuzz
from tests.fuzzing.readers import all_readers

from regard.logging import quiet_logs

SOURCES = Path(__file__).parents[2] / "src" / "regard"
EXECUTIONS = 40
"""Inputs of each reader: some seconds in all."""
SLOW = ("a run with", "Hugging Face", "peft", "llama2.c", "GGUF", "headers of safetensors", "run.toml", "Excel", "chat")
READERS = list(all_readers())


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name.replace(" ", "-"))
def test_a_reader_gives_a_result_or_an_error_of_one_line(reader: FuzzedReader, tmp_path: Path):
    is_slow = any(part in reader.name for part in SLOW)
    with quiet_logs():
        report = fuzz(reader, EXECUTIONS // 4 if is_slow else EXECUTIONS, seed=11, out=tmp_path)
    assert not report.findings, [(each.kind, each.detail, each.path) for each in report.findings]
    assert report.executions
    assert report.results, "the corpus is valid"


def test_the_same_seed_gives_the_same_inputs():
    seen: list[list[bytes]] = []

    def read(data: bytes, _folder: Path) -> int:
        seen[-1].append(data)
        return len(data) % 7

    from random import Random

    from tests.fuzzing.mutation import mutate

    for _ in range(2):
        seen.append([])
        rng = Random(5)
        for _ in range(50):
            read(mutate(rng, b'{"a": [1, "b"]}', [b'{"a": [1, "b"]}'], (b"x",), is_text=True), Path())
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 25


def test_a_reader_that_ends_its_process_is_a_finding(tmp_path: Path):
    import os

    def read(data: bytes, _folder: Path) -> int:
        if data != b"seed":
            os.abort()
        return 0

    report = fuzz(FuzzedReader("aborts", lambda: [b"seed"], read), 2, seed=1, out=tmp_path)
    assert [each.kind for each in report.findings] == ["the process ended: SIGABRT"]
    assert Path(report.findings[0].path).read_bytes() != b"seed"


FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
IMPORTERS = {
    "__init__.py",  # names of regard's own modules, listed in the same file
    "runs/launch.py",  # a function of regard that the process which started this one has named
    "runs/rewards.py",  # functions that the user of the machine has named
    "interop/model.py",  # optional packages, by constants
}


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_no_source_can_run_code_from_data(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not {name.partition(".")[0] for name in names} & FORBIDDEN_MODULES, f"line {node.lineno}"
        if not isinstance(node, ast.Call):
            continue
        where, called = f"line {node.lineno}", ast.unparse(node.func)
        assert called not in FORBIDDEN_CALLS, where
        assert called not in ("torch.load", "os.system"), where
        if called == "np.load":
            assert any(each.arg == "allow_pickle" and ast.unparse(each.value) == "False" for each in node.keywords), (
                where
            )
        if called.endswith("import_module"):
            own = str(path.relative_to(SOURCES))
            assert path.name in IMPORTERS or own in IMPORTERS, where
        if any(each.arg == "shell" for each in node.keywords):
            raise AssertionError(where)
