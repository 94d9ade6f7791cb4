"""The lock file and the list of components agree with the pins of constraints.txt."""

import json
import re
from importlib import metadata

import pytest
from tests.supply.remake import COMPONENTS, CONSTRAINTS, LOCK, locked_hashes, make_components, normalized, pins

PINS = pins(CONSTRAINTS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def lock() -> str:
    return LOCK.read_text(encoding="utf-8")


def test_the_lock_has_the_pins_of_the_constraints_and_no_others(lock: str):
    assert pins(lock) == PINS
    assert len(PINS) > 100


def test_each_pin_has_hashes_of_its_files(lock: str):
    hashes = locked_hashes(lock)
    assert hashes.keys() == PINS.keys()
    assert all(hashes.values())
    everything = [each for some in hashes.values() for each in some]
    assert len(set(everything)) == len(everything), "no file belongs to two distributions"


def test_the_lock_is_in_the_syntax_of_requirements(lock: str):
    logical = lock.replace(" \\\n", " ").splitlines()
    line = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+(    --hash=sha256:[0-9a-f]{64})+")
    assert [
        each for each in logical if not each.startswith("#") and not re.fullmatch(line, each.replace("     ", "    "))
    ] == []


def test_neither_file_names_an_address_or_a_folder(lock: str):
    for text in (lock, COMPONENTS.read_text(encoding="utf-8")):
        assert not re.search(r"https?://|file:|/home/|/opt/|^--", text, re.MULTILINE)


def test_the_list_of_components_is_of_the_pins():
    document = json.loads(COMPONENTS.read_text(encoding="utf-8"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert {each["name"]: each["version"] for each in document["components"]} == PINS
    assert document["metadata"]["component"]["version"] == metadata.version("regard")
    refs = {each["bom-ref"] for each in document["components"]}
    assert {each["ref"] for each in document["dependencies"]} == refs
    assert all(set(each["dependsOn"]) <= refs for each in document["dependencies"])
    needed = next(each for each in document["dependencies"] if "/pandas" in each["ref"] or "/optuna@" in each["ref"])
    assert any("/sqlalchemy@" in each for each in needed["dependsOn"])
    licensed = [each for each in document["components"] if each.get("licenses")]
    assert len(licensed) > 0.9 * len(PINS)


def test_the_list_of_components_can_be_remade(lock: str):
    installed = {normalized(each.metadata["Name"]): each.version.partition("+")[0] for each in metadata.distributions()}
    if any(installed.get(name) != version for name, version in PINS.items()):
        pytest.skip("other versions are installed than those of constraints.txt")
    assert make_components(locked_hashes(lock)) == COMPONENTS.read_text(encoding="utf-8")
