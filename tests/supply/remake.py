"""Remake `requirements.lock` and `sbom.cdx.json` from `constraints.txt`: `python -m tests.supply.remake [FOLDER ...]`.

The lock has, for each pin, the SHA-256 of every file of that version which the package index offers for an interpreter
and a platform that regard runs on, and of the files in the given folders, such as a build of PyTorch for CPUs. The
index is the one that pip uses; its address is in neither file.

The list of components is a CycloneDX document, made from the metadata of what is installed.
"""

import hashlib
import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).parents[2]
CONSTRAINTS, LOCK, COMPONENTS = ROOT / "constraints.txt", ROOT / "requirements.lock", ROOT / "sbom.cdx.json"
_PYTHONS = ("cp311", "cp312", "py3", "py2.py3")
_PLATFORMS = re.compile(r"any|manylinux.*(x86_64|aarch64)|macosx_.*(arm64|universal2)|win_amd64")
_HEADER = """\
# Every pin of constraints.txt with the SHA-256 of its files: for Python 3.11 and 3.12 on Linux, macOS and Windows.
# Made by `python -m tests.supply.remake`. To install exactly these files:
#   pip install --require-hashes -r requirements.lock
#   pip install --no-deps --no-build-isolation -e .
# Of torch there are the hashes of the index, whose Linux files are for GPUs and need packages of NVIDIA that are not
# pinned here (add --no-deps, or those packages), and of the build for CPUs that the tests ran with.
"""


def pins(text: str) -> dict[str, str]:
    """The versions in a file of constraints or requirements, by normalized name.

    Example:
        >>> pins("# a comment\\nPyYAML==6.0.3\\n")
        {'pyyaml': '6.0.3'}
    """
    found = (line.split() for line in text.splitlines() if "==" in line and not line.startswith("#"))
    return {normalized(name): version for name, version in (parts[0].split("==") for parts in found)}


def normalized(name: str) -> str:
    """The name of a distribution as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_hashes(text: str) -> dict[str, list[str]]:
    """The hashes in a lock file, by normalized name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if "==" in line and not line.startswith("#"):
            name = normalized(line.partition("==")[0])
        found.setdefault(name, []).extend(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
    return {name: hashes for name, hashes in found.items() if name}


class _Links(HTMLParser):
    """The links of a page of a simple index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _hashes_of_index(name: str, version: str) -> Iterator[tuple[str, str]]:
    """The files of a version that the index offers, each with its SHA-256."""
    from pip._internal.models.index import PyPI  # the address that pip itself has

    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as answer:
        page = _Links()
        page.feed(answer.read().decode())
    for link in page.found:
        parts = urlsplit(link)
        file, digest = unquote(parts.path).rpartition("/")[2], parts.fragment.removeprefix("sha256=")
        if len(digest) == 64 and _is_for_us(file, name, version):
            yield file, digest


def _hashes_of_folders(folders: Sequence[Path], name: str, version: str) -> Iterator[tuple[str, str]]:
    """The files in some folders."""
    for folder in folders:
        for path in sorted(folder.glob("*.whl")):
            if _is_for_us(path.name, name, version):
                yield path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def _is_for_us(file: str, name: str, version: str) -> bool:
    """Whether a file is of this version, and for an interpreter and a platform that are supported.

    Example:
        >>> _is_for_us("a_b-1.0-cp311-cp311-win_amd64.whl", "a-b", "1.0"), _is_for_us("a_b-1.0.tar.gz", "a-b", "1.0")
        (True, True)
        >>> _is_for_us("a_b-1.0-cp39-cp39-win_amd64.whl", "a-b", "1.0"), _is_for_us("a_b-1.1.tar.gz", "a-b", "1.0")
        (False, False)
    """
    if file.endswith(".tar.gz"):
        own, _, of_file = file.removesuffix(".tar.gz").rpartition("-")
        return (normalized(own), of_file) == (normalized(name), version)
    parts = file.removesuffix(".whl").split("-")
    if not file.endswith(".whl") or normalized(parts[0]) != normalized(name):
        return False
    *_, python, abi, platform = parts
    is_stable = abi == "abi3" and python.startswith("cp3")
    is_known = bool(set(python.split(".")) & {*_PYTHONS, "py3"}) or is_stable
    return (
        parts[1].partition("+")[0] == version
        and is_known
        and not abi.endswith("t")
        and bool(_PLATFORMS.search(platform))
    )


def make_lock(folders: Sequence[Path] = ()) -> str:
    """The content of the lock file."""
    text = CONSTRAINTS.read_text(encoding="utf-8")
    spelled = {
        normalized(line.partition("==")[0]): line for line in text.splitlines() if "==" in line[:80] and line[0] != "#"
    }
    lines = [_HEADER.rstrip()]
    for name, version in pins(text).items():
        found = [*_hashes_of_index(name, version), *_hashes_of_folders(folders, name, version)]
        files = {digest: file for file, digest in found}
        if not files:
            raise SystemExit(f"the index has no file of {name} {version}")
        lines.append(" \\\n".join([spelled[name], *(f"    --hash=sha256:{digest}" for digest in sorted(files))]))
        print(f"{name} {version}: {len(files)} files", file=sys.stderr)
    return "\n".join(lines) + "\n"


def make_components(hashes: Mapping[str, Sequence[str]]) -> str:
    """The CycloneDX document of what is installed among the pins, and of regard itself."""
    wanted = pins(CONSTRAINTS.read_text(encoding="utf-8"))
    components = [_component(name, version) for name, version in sorted(wanted.items())]
    own = metadata.metadata("regard")
    serial = uuid5(NAMESPACE_URL, json.dumps([sorted(wanted.items()), own["Version"]]))
    refs = {each["name"].lower(): each["bom-ref"] for each in components}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": f"pkg:pypi/regard@{own['Version']}", "name": "regard",
                "version": own["Version"], "purl": f"pkg:pypi/regard@{own['Version']}",
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": refs[name], "dependsOn": sorted({refs[each] for each in _requirements(name) if each in refs})}
            for name in sorted(wanted)
        ],
    }  # fmt: skip
    assert set(hashes) == set(wanted), "the lock has the same pins"
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _component(name: str, version: str) -> dict[str, object]:
    found: dict[str, object] = {
        "type": "library", "bom-ref": f"pkg:pypi/{name}@{version}", "name": name, "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }  # fmt: skip
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return found
    if license := _license(about):
        found["licenses"] = [license]
    return found


def _license(about: metadata.PackageMetadata) -> dict[str, object] | None:
    """The license as its package declares it: an expression, classifiers, or a short name."""
    if expression := about.get("License-Expression"):
        return {"expression": expression}
    classified = [
        each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or () if each.startswith("License ::")
    ]
    declared = about.get("License") or ""
    name = " or ".join(classified) or (declared if 0 < len(declared) <= 60 and "\n" not in declared else "")
    return {"license": {"name": name}} if name else None


def _requirements(name: str) -> list[str]:
    """The names of what a distribution needs, without its extras."""
    try:
        found = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    plain = (text for text in found if "extra ==" not in text)
    return [normalized(re.split(r"[\s;\[(<>=!~]", text, maxsplit=1)[0]) for text in plain]


def main() -> None:
    lock = make_lock([Path(folder) for folder in sys.argv[1:]])
    LOCK.write_text(lock, encoding="utf-8")
    COMPONENTS.write_text(make_components(locked_hashes(lock)), encoding="utf-8")


if __name__ == "__main__":
    main()
