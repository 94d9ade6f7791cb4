"""The design holds: tasks and models are known by their protocols, imports have no cycles, and all are declared."""

import ast
import re
import sys
import tomllib

import pytest
from tests.architecture import PACKAGE, ROOT, cycles, entry_points, imports_of, modules, strings_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TASKS = PROJECT["entry-points"]["regard.tasks"]
CONCRETE = {"Transformer", "Recurrent", "Convolutional", "VisionTransformer", "TransformerConfig", "RecurrentConfig",
            "ConvolutionalConfig", "VisionTransformerConfig"}  # fmt: skip
MAY_NAME_MODELS = ("regard.models", "regard.interop", "regard.lab")
"""The families themselves, what converts them to foreign formats, and studies, which compare architectures."""
EXCEPTIONS = {"regard.runs.importing": "an adapter is fitted to the layers of a Transformer"}
DISTRIBUTIONS = {"pil": "pillow", "yaml": "pyyaml", "sklearn": "scikit_learn", "tomllib": ""}
"""Names of imports that are not those of their distributions."""


def outside(*folders: str) -> list[str]:
    return [name for name in modules() if not any(name == each or name.startswith(f"{each}.") for each in folders)]


@pytest.mark.parametrize("name", outside("regard.tasks"))
def test_no_module_outside_of_tasks_names_a_task(name: str):
    found = {line: text for line, text in strings_of(name) if text in TASKS}
    # The default of `regard settings --task`, and the name of a kind of problem in the format of Hugging Face.
    allowed = {"regard.cli.settings": "seq2seq", "regard.interop.hf.writing": "regression"}
    assert set(found.values()) <= {allowed.get(name)}, found
    concrete = {value.partition(":")[0] for value in TASKS.values()}
    assert not concrete & set(imports_of(name))


@pytest.mark.parametrize("name", outside(*MAY_NAME_MODELS))
def test_no_module_outside_of_models_and_interop_imports_a_concrete_model(name: str):
    if name in EXCEPTIONS:
        return
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard.models"):
            assert not CONCRETE & {alias.name for alias in node.names}


def test_there_is_no_cycle_of_imports():
    assert cycles() == []


def test_everything_that_is_imported_is_declared():
    declared = [
        *PROJECT["dependencies"],
        *(each for group in PROJECT["optional-dependencies"].values() for each in group),
    ]
    known = {re.split(r"[\[<>=;~! ]", each)[0].lower().replace("-", "_") for each in declared}
    for name, tree in modules().items():
        for node in ast.walk(tree):
            tops = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            tops += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for top in (each.partition(".")[0] for each in tops):
                distribution = DISTRIBUTIONS.get(top.lower(), top.lower())
                is_known = top == PACKAGE or top in sys.stdlib_module_names or distribution in known
                assert is_known, f"{name} imports {top}, which pyproject.toml does not declare"


def test_every_entry_point_can_be_loaded_and_has_its_own_name():
    for value in entry_points():
        module, _, attribute = value.partition(":")
        assert module in modules(), value
        names = {name for node in modules()[module].body for name in _names(node)}
        assert attribute in names, value


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
    return []


@pytest.mark.parametrize("name", modules())
def test_every_folder_states_its_purpose(name: str):
    is_package = any(other.startswith(f"{name}.") for other in modules())
    if is_package:
        assert ast.get_docstring(modules()[name])


def test_every_folder_is_a_package():
    folders = {path.parent for path in (ROOT / "src" / PACKAGE).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("name", modules())
def test_messages_have_the_names_of_settings_rather_than_expressions(name: str):
    """`{self.size=}` in an f-string becomes `self.size=8`: a reader has set `size`, and knows no `self`."""
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value for part in node.values if isinstance(part, ast.Constant))
            assert not re.search(r"\bself\.\w+=", text), f"line {node.lineno}: {text}"


def test_an_expression_in_a_message_is_noticed(monkeypatch: pytest.MonkeyPatch):
    tree = ast.parse('raise ValueError(f"size must be even, got {self.size=}")')
    monkeypatch.setitem(modules(), "regard.odd", tree)
    with pytest.raises(AssertionError, match=r"size must be even, got self\.size="):
        test_messages_have_the_names_of_settings_rather_than_expressions("regard.odd")
