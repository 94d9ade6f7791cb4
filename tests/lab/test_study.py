"""A study is kept as a picture, a page that stands alone and numbers that can be read again."""

import base64
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

import regard.lab
from regard.errors import ConfigError
from regard.explanation.figure_page import COLORS, by_night, to_svg
from regard.lab.drawing import label, panels
from regard.lab.study import Study, Table

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def make_study(**changes: Any) -> Study:
    figure, (axes,) = panels(1)
    axes.plot([1, 2, 3], [1, 4, 9], color=COLORS[0])
    label(axes, "Squares", "x", "y")
    table = Table(
        name="squares",
        columns=["what", "x", "y"],
        rows=[["a", 1, (0.5, 0.25, 1.0)], ["b", 2, math.inf], ["c", 3, None]],
    )
    values = {
        "name": "squares",
        "title": "Squares",
        "claim": "Do squares <grow>?",
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
    make_study(claim="Old?").write(folder)
    return make_study().write(folder)


def test_three_files_are_written_and_nothing_else(files: list[Path]):
    assert [path.name for path in files] == ["squares.png", "squares.html", "squares.json"]
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
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed to draw the page")
def test_the_page_draws_itself_in_a_browser(files: list[Path], tmp_path: Path):
    assert BROWSER is not None
    quiet = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --virtual-time-budget=2000"
    )
    command = [BROWSER, *quiet.split(), f"--user-data-dir={tmp_path}", "--dump-dom", files[1].as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
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
    dark = by_night(by_day)
    assert COLORS[0] in by_day
    assert COLORS[0] not in dark
    assert re.sub(r"#[0-9a-f]{6}", "", by_day) == re.sub(r"#[0-9a-f]{6}", "", dark)


def test_a_row_of_panels_is_as_wide_as_another():
    figure, axes = panels(3, 2)
    assert len(axes) == 5
    figure.draw_without_rendering()
    first, second = axes[:3], axes[3:]
    ends = [(row[0].get_position().x0, row[-1].get_position().x1) for row in (first, second)]
    assert ends[0] == pytest.approx(ends[1])


def test_each_study_is_a_file_of_its_name():
    folder = Path(regard.lab.__file__).parent
    for name, claim in regard.lab.STUDIES.items():
        text = (folder / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
        assert "def study(*, quick: bool, seed: int) -> Study:" in text
        assert claim.endswith("?")


def test_a_study_that_is_not_there():
    with pytest.raises(ConfigError, match=r"no study is called 'sofmax'; did you mean softmax\?"):
        regard.lab.run("sofmax")


def test_a_run_leaves_the_random_numbers_of_others_alone_and_says_how_it_was_made():
    import torch

    before = torch.random.get_rng_state()
    study = regard.lab.run("softmax", quick=True, seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert study.settings["quick"] is True
    assert study.command == "regard lab softmax --quick --seed 2"
    assert study.seconds > 0


def test_importing_the_lab_imports_nothing_heavy():
    code = "import sys, regard.lab; sys.exit(bool({'torch', 'numpy', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
