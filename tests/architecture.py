"""The structure of the package, read from its syntax trees: `python -m tests.architecture` prints a table of it."""

import ast
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PACKAGE = "regard"


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of each module, by its dotted name; a package by its own."""
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports_of(name: str, *, at_top: bool = False) -> Iterator[str]:
    """The modules of the package that a module imports; `at_top`, those imported when it is."""
    for node in _imports(modules()[name], at_top=at_top):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _imports(tree: ast.AST, *, at_top: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        is_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (at_top and is_later):
            yield from _imports(node, at_top=at_top)


def importers() -> dict[str, set[str]]:
    """For each module, those that import it."""
    found: dict[str, set[str]] = {name: set() for name in modules()}
    for name in modules():
        for other in imports_of(name):
            if other in found and other != name:
                found[other].add(name)
    return found


def modules_with_one_importer() -> list[str]:
    """Modules that serve one other; entry points and commands are reached by name, and packages by their parts."""
    reached = {value.partition(":")[0] for value in entry_points()}
    packages = {name for name in modules() if any(other.startswith(f"{name}.") for other in modules())}
    return [
        name
        for name, users in importers().items()
        if len(users) == 1 and name not in reached | packages and not name.startswith(f"{PACKAGE}.cli.")
    ]


def entry_points() -> list[str]:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"].values()
    return [value for group in groups for value in group.values()]


def public_names() -> dict[str, list[str]]:
    """The modules in which each public top-level name is defined."""
    found = defaultdict(list)
    for module, tree in modules().items():
        for name in _defined(tree):
            if not name.startswith("_"):
                found[name].append(module)
    return found


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def cycles() -> list[list[str]]:
    """Groups of modules that import one another when they are imported (Tarjan, 1972)."""
    graph = {name: sorted(set(imports_of(name, at_top=True)) & set(modules()) - {name}) for name in modules()}
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in graph[name]:
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(group)

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in number:
            visit(name)
    return found


def strings_of(name: str) -> Iterator[tuple[int, str]]:
    """The string literals of a module but its docstrings, with their lines."""
    bodies = (getattr(parent, "body", None) for parent in ast.walk(modules()[name]))
    documentation = {
        id(node.value) for body in bodies if isinstance(body, list) for node in body if isinstance(node, ast.Expr)
    }
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


def seconds_of_help() -> float:
    """The quickest of five times of `regard --help`."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", PACKAGE, "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in (SOURCE / PACKAGE).rglob("*.py"))
    single, names = modules_with_one_importer(), public_names()
    twice = {name: where for name, where in names.items() if len(where) > 1 and name != "__all__"}
    rows = [
        ("modules", f"{len(modules())}"),
        ("lines in src", f"{lines:,}"),
        ("modules with exactly one importer", f"{len(single)} ({100 * len(single) / len(modules()):.0f} %)"),
        ("public names defined twice", f"{len(twice)}"),
        ("import cycles", f"{len(cycles())}"),
        ("regard --help", f"{seconds_of_help():.2f} s"),
    ]
    for name, value in rows:
        print(f"{name:36} {value}")
    if "--list" in sys.argv:
        print("\none importer:", *sorted(single), sep="\n  ")
        print("\ndefined twice:", *(f"{name}: {', '.join(where)}" for name, where in sorted(twice.items())), sep="\n  ")


if __name__ == "__main__":
    main()
