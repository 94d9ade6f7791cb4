"""Each row of the lectures: its files exist, its commands parse and run, and its tests exist and are not skipped.

A command runs here, with one step, where its data is generated or is a file of the workplace. Any other needs data that
another test makes (pictures, a pretrained model, conversations): that test must name the data. Studies run in their own
tests, at tiny sizes; the row must name one of these.
"""

import ast
import re
import shlex
import shutil
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.docs.conftest import ROOT
from tests.docs.test_docs import parse

from regard.cli.main import app
from regard.lab import STUDIES

PAGE = ROOT / "docs" / "lectures.md"
COLUMNS = ["id", "what", "file", "command", "test"]
RUN_HERE = {"train", "generate", "score", "attention", "bound", "certificate"}
"""Commands that run here if what they read is there; a comparison starts processes, and has tests of its own."""
MODELS = {"runs/mine": ["pairs.tsv"], "runs/text": ["text.txt", "--model", "gpt"]}
"""The models that the page supposes: a Transformer for pairs, and a language model."""
SHORT = ["--steps", "1", "--no-baseline", "--overwrite", "--quiet"]


@dataclass(frozen=True)
class LectureRow:
    """A row of the page."""

    id: str
    what: str
    file: str
    command: str
    test: str

    @property
    def files(self) -> list[tuple[str, list[str]]]:
        """Paths, each with the names that parentheses after it have."""
        parts = re.findall(r"`((?:src|benchmarks)/[^`]+)`(?: \(([^)]*)\))?", self.file)
        return [(path, re.findall(r"`(\w+)`", named)) for path, named in parts]

    @cached_property
    def commands(self) -> list[list[str]]:
        quoted = re.findall(r"`((?:regard|python) [^`]+)`", self.command)
        return [shlex.split(part) for each in quoted for part in each.split(" && ")]

    @property
    def tests(self) -> list[Path]:
        found = []
        for name in re.findall(r"`(tests/[^`]+)`", self.test):
            path = ROOT / name
            found += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        return found


def read_rows(text: str) -> list[LectureRow]:
    """The rows of the table of what is implemented."""
    table = text.partition("## Implemented")[2].partition("\n\n| id | not")[0]
    cells = [
        [cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines() if line[:1] == "|"
    ]
    assert cells[0] == COLUMNS
    return [LectureRow(*row) for row in cells[2:]]


ROWS = read_rows(PAGE.read_text(encoding="utf-8"))
each_row = pytest.mark.parametrize("row", ROWS, ids=[f"{row.id}: {row.what[:40]}" for row in ROWS])


def problems_of_files(row: LectureRow) -> list[str]:
    found = [] if row.files else ["no file"]
    for path, names in row.files:
        if not (ROOT / path).exists():
            found.append(f"{path} does not exist")
        elif names and (ROOT / path).is_file():
            text = text_of(ROOT / path)
            found += [f"{path} has no {name}" for name in names if not re.search(rf"\b{name}\b", text)]
    return found


def problems_of_tests(row: LectureRow) -> list[str]:
    found = [] if row.tests else ["no test"]
    for path in row.tests:
        if not path.is_file():
            found.append(f"{path} does not exist")
        elif (reason := why_skipped(text_of(path))) is not None:
            found.append(f"{path}: {reason}")
    return found


def why_skipped(source: str) -> str | None:
    """Why no test of a module runs where all declared packages are installed; None where one does."""
    tree = ast.parse(source)
    for statement in tree.body:
        text = ast.unparse(statement)
        if isinstance(statement, ast.Assign) and "pytestmark" in text and re.search(r"\bskip\b", text):
            return "all of its tests are skipped"
        if isinstance(statement, ast.Expr) and text.startswith("pytest.skip("):
            return "all of its tests are skipped"
        for name in re.findall(r"importorskip\('([\w-]+)", text) if not isinstance(statement, ast.FunctionDef) else []:
            if name not in declared_packages():
                return f"it is skipped without {name}, which no group of pyproject.toml declares"
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    if not tests:
        return "it has no test"
    skipping = [
        test for test in tests if re.search(r"mark\.skip|mark\.xfail", " ".join(map(ast.unparse, test.decorator_list)))
    ]
    return "all of its tests are skipped" if len(skipping) == len(tests) else None


def declared_packages() -> set[str]:
    """The packages that pyproject.toml names, as they are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [project["project"]["dependencies"], *project["project"].get("optional-dependencies", {}).values(),
              *project.get("dependency-groups", {}).values()]  # fmt: skip
    named = [re.match(r"[\w.-]+", each) for group in groups for each in group if isinstance(each, str)]
    return {match[0].replace("-", "_") for match in named if match is not None}


@cache
def command_group() -> Any:
    return typer.main.get_command(app)


@each_row
def test_its_files_exist(row: LectureRow):
    assert problems_of_files(row) == []


@each_row
def test_its_tests_exist_and_are_not_skipped(row: LectureRow):
    assert problems_of_tests(row) == []


@each_row
def test_its_commands_are_those_of_the_program(row: LectureRow):
    assert row.commands, "a row has a command"
    for words in row.commands:
        if words[0] == "python":
            assert (ROOT / words[1]).is_file()
            assert any(path.is_relative_to(ROOT / "tests" / "benchmarks") for path in row.tests)
        else:
            parse(command_group(), shlex.join(words))


@each_row
def test_a_study_runs_in_the_tests_of_its_row(row: LectureRow):
    texts = [text_of(path) for path in row.tests]
    for words in row.commands:
        if words[:2] == ["regard", "lab"]:
            module = STUDIES.find(words[2]).function.partition(":")[0]
            # Imported by its module, or from the folder of the study.
            assert any(module in text or f"from {module.rpartition('.')[0]}" in text for text in texts), words


@each_row
def test_what_cannot_run_here_is_run_by_a_test_that_has_its_data(row: LectureRow):
    for words in row.commands:
        if words[0] == "regard" and words[1] != "lab" and not runs_here(words, ROOT / "nowhere"):
            assert is_tested_elsewhere(words, row.tests), f"no test names {words[2]}, which {shlex.join(words)} reads"


IN_WORKPLACE = {"pairs.tsv", "text.txt", *MODELS}


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def runs_here(words: list[str], workplace: Path) -> bool:
    """Whether a command is cheap, and what it reads is generated, in the workplace, or was made there before."""
    if words[1] == "bound":
        return True
    given = words[2] if len(words) > 2 else ""
    return words[1] in RUN_HERE and (given in IN_WORKPLACE or (workplace / given).exists())


def is_tested_elsewhere(words: list[str], tests: list[Path]) -> bool:
    """Whether a test of the row, of a page or of the command line has the command and its data."""
    given = words[2].rstrip("/").removeprefix("runs/")
    where = [*tests, *(ROOT / "tests" / "docs").glob("test_*.py"), *(ROOT / "tests" / "cli").glob("*.py")]
    texts = [text_of(path) for path in where if path.name != Path(__file__).name]
    pages = [text_of(path) for path in (ROOT / "docs").glob("*.md") if path != PAGE]
    is_placeholder = given.isupper()
    # A page's commands are run by its test, so its data is there though the test does not name it.
    named = [
        text for text in [*texts, *pages] if is_placeholder or re.search(rf"(?<!\w){re.escape(given)}(?!\w)", text)
    ]
    return any(f'"{words[1]}"' in text or f"regard {words[1]} " in text for text in named)


@pytest.mark.slow
def test_the_commands_run(workplace: Path, run_inside):
    for out, words in MODELS.items():
        code, _, err = run_inside(shlex.join(["regard", "train", *words, "--out", out, *SHORT]))
        assert code == 0, err
    shutil.copytree(workplace / "runs", workplace / "ready")
    ran: dict[str, list[str]] = {}
    for row in ROWS:
        made: list[str] = []
        for words in row.commands:
            if words[0] != "regard" or not runs_here(words, workplace):
                continue
            short = [*words, *(SHORT if words[1] == "train" else [])]
            code, out, err = run_inside(shlex.join(short))
            assert code == 0, f"{shlex.join(words)}\n{err}"
            assert out.strip(), f"{shlex.join(words)} printed nothing"
            ran.setdefault(words[1], []).append(shlex.join(words))
            made += [words[words.index("--out") + 1]] if "--out" in words and words[1] == "train" else []
        for name in made:  # a row may make another model of the same name
            if name in MODELS:
                shutil.rmtree(workplace / name)
                shutil.copytree(workplace / "ready" / Path(name).name, workplace / name)
    assert {"train", "generate", "score", "attention", "bound", "certificate"} <= set(ran)
    assert len(ran["train"]) >= 12


WRONG_ROWS = {
    "a file that is not there": {"file": "`src/regard/nn/recurrence.py`"},
    "a name that its file lacks": {"file": "`src/regard/nn/recurrent.py` (`cell_stepp`)"},
    "no file": {"file": "see the tests"},
    "a test that is not there": {"test": "`tests/nn/test_recurrence.py`"},
    "a file without tests": {"test": "`tests/conftest.py`"},
    "no test": {"test": "none yet"},
}


@pytest.mark.parametrize("wrong", WRONG_ROWS)
def test_a_wrong_row_is_noticed(wrong: str):
    right = {"id": "L01", "what": "", "file": "`src/regard/nn/recurrent.py` (`cell_step`)",
             "command": "`regard lab softmax`", "test": "`tests/nn/test_recurrent.py`"}  # fmt: skip
    assert problems_of_files(LectureRow(**right)) + problems_of_tests(LectureRow(**right)) == []
    row = LectureRow(**{**right, **WRONG_ROWS[wrong]})
    assert problems_of_files(row) + problems_of_tests(row) != []


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\npytestmark = pytest.mark.skip('later')\ndef test_a(): pass",
        "import pytest\npytest.skip('later', allow_module_level=True)\ndef test_a(): pass",
        "import pytest\nx = pytest.importorskip('no_such_package')\ndef test_a(): pass",
        "import pytest\n@pytest.mark.skip\ndef test_a(): pass\n@pytest.mark.xfail\ndef test_b(): pass",
        "def make(): pass",
    ],
)
def test_a_skipped_test_is_noticed(source: str):
    assert why_skipped(source) is not None
    assert why_skipped(f"{source}\n") is not None
    assert why_skipped("import pytest\n@pytest.mark.skip\ndef test_a(): pass\ndef test_b(): pass") is None
