"""What the pages name is there: files, commands, settings."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from regard.cli.main import app
from regard.settings import Settings
from regard.training.settings import RunSettings

ROOT = Path(__file__).parents[2]


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


def test_every_row_of_the_lectures_is_told():
    text = (ROOT / "docs" / "lectures.md").read_text(encoding="utf-8")
    told: set[int] = set()
    for cell in re.findall(r"^\| (L\d\d[^|]*)\|", text, flags=re.MULTILINE):
        numbers = [int(number) for number in re.findall(r"L(\d\d)", cell)]
        told |= set(range(numbers[0], numbers[-1] + 1)) if " to " in cell else set(numbers)
    assert told == set(range(1, 42))


def test_every_setting_stands_in_the_glossary():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    sections = [field.annotation for field in RunSettings.model_fields.values()]
    names = {
        name
        for section in sections
        if isinstance(section, type) and issubclass(section, Settings)
        for name in section.model_fields
    }
    assert sorted(names - words) == []


def test_the_map_names_every_module():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = [path for path in (ROOT / "src" / "regard").rglob("*.py") if path.parent.name not in {"cli", "builtin"}]
    missing = [path for path in modules if path.name != "__init__.py" and path.name not in text]
    assert [str(path.relative_to(ROOT)) for path in missing] == []


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
