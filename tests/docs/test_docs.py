"""The files, commands and settings that the pages name exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from regard.cli.main import app
from regard.models.family import FAMILIES
from regard.settings import Settings
from regard.tasks.registry import TASKS
from regard.training.finetuning import FinetuneConfig
from regard.training.settings import ResolvedSettings

ROOT = Path(__file__).parents[2]
SUFFIXES = {"bin", "de", "en", "onnx", "py", "safetensors", "tsv", "txt"}
"""Of files that are called as a section of the settings is, such as `train.tsv`."""


def test_every_relative_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.text)
    local = [link.partition("#")[0] for link in links if "://" not in link]
    missing = [link for link in local if link and not (page.path.parent / link).exists()]
    assert not missing


def test_every_path_of_the_project_is_there(page):
    paths = re.findall(r"(?<![\w/])(?:src|tests|benchmarks|docs)/[\w/.-]*\w", page.text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_command_can_be_parsed(page):
    group: Any = typer.main.get_command(app)
    in_text = re.findall(r"`(regard [a-z]+ [^`]*)`", page.text)
    for command in [*page.commands(), *in_text]:
        parse(group, command)


def test_a_command_that_cannot_be_parsed_is_noticed():
    group: Any = typer.main.get_command(app)
    with pytest.raises(Exception, match="--minute"):
        parse(group, "regard train pairs.tsv --minute 5")


def test_every_row_of_the_lectures_is_listed():
    text = (ROOT / "docs" / "lectures.md").read_text(encoding="utf-8")
    listed: set[int] = set()
    for cell in re.findall(r"^\| (L\d\d[^|]*)\|", text, flags=re.MULTILINE):
        numbers = [int(number) for number in re.findall(r"L(\d\d)", cell)]
        listed |= set(range(numbers[0], numbers[-1] + 1)) if " to " in cell else set(numbers)
    assert listed == set(range(1, 42))


def test_every_setting_that_a_page_names_exists(page):
    if page.path.name in {"CHANGELOG.md", "log.md"}:  # which name settings of older versions
        return
    sections = known_settings()
    in_commands = re.findall(r"--set ['\"]?(\w+)\.(\w+)", " ".join(page.blocks("sh")))
    in_text = re.findall(r"`(\w+)\.(\w+)(?: ?=[^`]*)?`", page.text)
    named = [*in_commands, *(each for each in in_text if each[0] in sections and each[1] not in SUFFIXES)]
    assert [f"{section}.{name}" for section, name in named if name not in sections[section]] == []


def test_a_setting_that_does_not_exist_is_noticed():
    assert "learning_rate" in known_settings()["train"]
    assert "lr" not in known_settings()["train"]


def test_the_map_names_every_module():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = [path for path in (ROOT / "src" / "regard").rglob("*.py") if path.parent.name not in {"cli", "builtin"}]
    missing = [path for path in modules if path.name != "__init__.py" and path.name not in text]
    assert [str(path.relative_to(ROOT)) for path in missing] == []


def test_the_map_names_only_modules_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layout = next(block for block in re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL) if "src/regard/" in block)
    names = {path.name for path in (ROOT / "src" / "regard").rglob("*.py")}
    named = re.findall(r"[\w*]+\.py\b", layout)
    assert len(named) > 100
    assert [name for name in named if name not in names] == []


def parse(group: Any, command: str) -> None:
    """Read a command line as the program would, without running it."""
    command = re.split(r" > | && ", command[command.index("regard ") :])[0]
    words = shlex.split(command)[1:]
    context = group.make_context("regard", [], resilient_parsing=True)
    while hasattr(group, "commands") and words:
        name, *words = words
        assert name in group.commands, f"there is no command {name!r} for {command!r}"
        group = group.commands[name]
    if words or not hasattr(group, "commands"):
        group.make_context("regard", words, parent=context)


def known_settings() -> dict[str, set[str]]:
    """The names of the settings of each section, of every registered task and family."""
    sections = {name: set(field.annotation.model_fields) for name, field in ResolvedSettings.model_fields.items()
                if isinstance(field.annotation, type) and issubclass(field.annotation, Settings)}  # fmt: skip
    sections["task"] = {name for task in TASKS for name in task.Settings.model_fields}
    sections["model"] = {name for family in FAMILIES for name in family.Config.model_fields}
    return {**sections, "finetune": set(FinetuneConfig.model_fields)}
