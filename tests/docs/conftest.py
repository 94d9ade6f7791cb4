"""What the tests of the pages share: the pages, their blocks of code, and a small data set to run them on."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.data.builtin import builtin

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Page:
    """A Markdown file of the project."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[str]:
        """The fenced blocks of a language, without their fences."""
        return re.findall(rf"^```{language}\n(.*?)^```", self.text, flags=re.MULTILINE | re.DOTALL)

    def commands(self) -> list[str]:
        """Each `regard ...` command in the shell blocks, without its comment."""
        lines = [line for block in self.blocks("sh") for line in block.splitlines()]
        commands = [re.sub(r"\s+#.*", "", line) for line in lines]
        return [command for command in commands if re.search(r"(^|\| )regard ", command)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for a `page` runs on each of them."""
    if "page" in metafunc.fixturenames:
        paths = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
        names = [str(path.relative_to(ROOT)) for path in paths]
        metafunc.parametrize("page", [Page(path) for path in paths], ids=names)


@pytest.fixture
def readme() -> Page:
    return Page(ROOT / "README.md")


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with `pairs.tsv`, `test.tsv` and `inputs.txt`, as the pages suppose."""
    rows = list(builtin("dates").generate(420, 0))
    _write(tmp_path / "pairs.tsv", rows[:400])
    _write(tmp_path / "test.tsv", rows[400:])
    (tmp_path / "inputs.txt").write_text("4 March 2025\nle 3 mai 1999\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def environment(workplace: Path) -> dict[str, str]:
    """The environment of a command: the `regard` of this Python, one thread, a cache of its own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(workplace / "cache")}


def _write(path: Path, rows: list[tuple[str, ...]]) -> None:
    lines = [("source", "target"), *rows]
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
