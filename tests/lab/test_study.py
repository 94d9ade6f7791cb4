"""A study is written as a PNG, a self-contained page and JSON; studies are registered through entry points."""

import ast
import base64
import json
import math
import pkgutil
import re
import subprocess
import sys
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.browser import Browser

import regard.lab
from regard.errors import ConfigError
from regard.explanation.colors import COLORS
from regard.explanation.figures import to_dark, to_svg
from regard.lab import STUDIES, Study, StudyEntry, StudyTable, run_study
from regard.lab.drawing import label_axes, make_panels


def make_study(**changes: Any) -> Study:
    figure, (axes,) = make_panels(1)
    axes.plot([1, 2, 3], [1, 4, 9], color=COLORS[0])
    label_axes(axes, "Squares", "x", "y")
    table = StudyTable(
        name="squares",
        columns=["what", "x", "y"],
        rows=[["a", 1, (0.5, 0.25, 1.0)], ["b", 2, math.inf], ["c", 3, None]],
    )
    values = {
        "name": "squares",
        "title": "Squares",
        "question": "Do squares <grow>?",
        "findings": ["They do: 9 > 4 & 4 > 1."],
        "tables": [table],
        "figure": figure,
        "settings": {"quick": True, "seed": 3, "sizes": (1, 2)},
        "seconds": 61.4,
    }
    return Study(**{**values, **changes})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What a study has written, once before and once again over it."""
    folder = tmp_path_factory.mktemp("written") / "new" / "lab"
    make_study(question="Old?").write(folder)
    return make_study().write(folder)


def test_three_files_are_written_and_nothing_else(files: list[Path]):
    assert [path.name for path in files] == ["squares.png", "squares.html", "squares.json", "squares.csv"]
    assert sorted(files[0].parent.iterdir()) == sorted(files)


def test_the_picture_is_not_blank_and_has_few_bytes(files: list[Path]):
    pixels = np.asarray(matplotlib.image.imread(files[0]))[..., :3]
    assert min(pixels.shape[:2]) > 200
    assert 0.005 < (pixels.min(axis=-1) < 0.9).mean() < 0.5
    assert files[0].stat().st_size < 60_000


def test_the_page_stands_alone(files: list[Path]):
    page = files[1].read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"' )<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\{\{\w+\}\}", page)
    assert "default-src 'none'" in page
    assert "<grow>" not in page
    (text,) = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(text)
    assert data["claim"] == "Do squares <grow>?"
    assert data["command"] == "regard lab squares --quick --seed 3"
    assert data["tables"][0]["rows"] == [["a", "1", "0.50 [0.25, 1.00]"], ["b", "2", "∞"], ["c", "3", "-"]]
    for time in ("light", "dark"):
        kind, _, drawing = data[time].partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(drawing).decode().rstrip().endswith("</svg>")
    assert data["light"] != data["dark"]


@pytest.mark.slow
def test_the_page_draws_itself_in_a_browser(files: list[Path], browser: Browser):
    browser.open(files[1].as_uri())
    drawn = browser.settled_html()
    assert "data-error" not in drawn.partition("<head>")[0]
    assert "<li>They do: 9 &gt; 4 &amp; 4 &gt; 1.</li>" in drawn
    assert "<td>0.50 [0.25, 1.00]</td>" in drawn
    assert drawn.count("<img") == 2


def test_the_numbers_can_be_read_again(files: list[Path]):
    values = json.loads(files[2].read_text(encoding="utf-8"))
    assert values["findings"] == ["They do: 9 > 4 & 4 > 1."]
    assert values["tables"][0]["rows"] == [["a", 1, [0.5, 0.25, 1.0]], ["b", 2, None], ["c", 3, None]]
    assert values["settings"] == {"quick": True, "seed": 3, "sizes": [1, 2]}
    assert "figure" not in values


class Interrupted(Figure):
    """A figure during whose drawing someone presses Ctrl-C."""

    def draw(self, renderer: Any) -> None:
        raise KeyboardInterrupt


def test_whoever_interrupts_leaves_nothing_half_written(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        make_study(figure=Interrupted()).write(tmp_path / "lab")
    assert list(tmp_path.iterdir()) == []


def test_colours_change_at_night_and_shapes_do_not():
    by_day = to_svg(make_study().figure)
    dark = to_dark(by_day)
    assert COLORS[0] in by_day
    assert COLORS[0] not in dark
    assert re.sub(r"#[0-9a-f]{6}", "", by_day) == re.sub(r"#[0-9a-f]{6}", "", dark)


@pytest.mark.slow
def test_a_row_of_panels_is_as_wide_as_another():
    figure, axes = make_panels(3, 2)
    assert len(axes) == 5
    figure.draw_without_rendering()
    first, second = axes[:3], axes[3:]
    ends = [(row[0].get_position().x0, row[-1].get_position().x1) for row in (first, second)]
    assert ends[0] == pytest.approx(ends[1])


def test_each_study_is_a_folder_that_exports_its_entry():
    folder = Path(regard.lab.__file__).parent
    assert sorted(folder.name for folder in folder.iterdir() if (folder / "__init__.py").exists()) == sorted(
        name.replace("-", "_") for name in STUDIES.names()
    )
    for name in STUDIES.names():
        entry = STUDIES.find(name)
        module = import_module(f"regard.lab.{name.replace('-', '_')}")
        (exported,) = module.__all__
        assert getattr(module, exported) is entry
        assert entry.name == name
        assert entry.question.endswith("?")
        assert entry.function.startswith(f"{module.__name__}.")
        assert callable(pkgutil.resolve_name(entry.function))


def test_an_unknown_study_names_the_nearest_one():
    with pytest.raises(ConfigError, match=r"unknown study 'sofmax'; did you mean softmax\?"):
        run_study("sofmax")


def test_modules_of_the_lab_import_each_other_without_cycles():
    imports: dict[str, set[str]] = {}
    root = Path(regard.lab.__file__).parent
    for path in root.rglob("*.py"):
        name = ".".join(["regard.lab", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        # Imports for annotations count too: a cycle of them makes two modules one.
        imports[name] = {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("regard.lab")
        }
    order = TopologicalSorter(imports)
    assert len(list(order.static_order())) == len(imports)


def test_a_run_leaves_the_random_numbers_of_others_alone_and_says_how_it_was_made():
    import torch

    before = torch.random.get_rng_state()
    study = run_study("softmax", quick=True, seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert study.settings["quick"] is True
    assert study.command == "regard lab softmax --quick --seed 2"
    assert study.seconds > 0


def test_the_command_repeats_the_options_that_were_given():
    study = make_study(options={"formula": "a -> !b", "interval": "-1,2"})
    assert study.command == "regard lab squares --formula='a -> !b' --interval=-1,2 --quick --seed 3"


def test_listing_the_studies_imports_nothing_heavy():
    code = (
        "import sys, regard.lab; [entry.question for entry in regard.lab.STUDIES];"
        "sys.exit(bool({'torch', 'numpy', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_for_studies_is_parsed_without_the_studies():
    code = "import sys, regard.cli.lab; sys.exit(bool({'torch', 'pydantic', 'regard.lab'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_entry_runs_the_function_it_names():
    entry = StudyEntry(
        name="squares", title="Squares", question="?", function="regard.lab.softmax.temperature:study_softmax"
    )
    study = entry.study(quick=True, seed=0)
    assert study.name == "softmax"
    result = entry.result(StudySizes(), [(["One."], []), (["Two."], study.tables[:1])], study.figure, more=2)
    assert (result.name, result.title, result.settings) == ("squares", "Squares", {"count": 3, "more": 2})
    assert result.findings == ["One.", "Two."]
    assert result.tables == [study.tables[0]]


@dataclass(frozen=True)
class StudySizes:
    count: int = 3
