"""The folders of the package import downwards only, and torch is imported when it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regard

ROOT = Path(regard.__file__).parent
# A folder may import from those on its left, and from itself.
ORDER = ["startup", "errors", "version", "settings", "logging", "files", "registry", "nn", "text", "data", "models",
         "generation", "evaluation", "selection", "baselines", "tasks", "adapters", "training", "explanation",
         "interop", "runs", "experiments", "serving", "lab", "cli"]  # fmt: skip


def part_of(module: str) -> str | None:
    pieces = module.split(".")
    return pieces[1] if pieces[0] == "regard" and len(pieces) > 1 else None


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path):
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    if own in {"__init__", "__main__"}:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        for module in modules:
            if (other := part_of(module)) is not None:
                assert ORDER.index(other) <= ORDER.index(own), f"{own} must not import {module}"


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="tarin"):
        _ = regard.tarin


def test_importing_regard_imports_no_torch():
    code = "import sys, regard; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_what_training_needs_imports_no_scipy():
    code = "import sys, regard.runs.train; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
