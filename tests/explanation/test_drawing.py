"""Attention maps as figures and in the terminal."""

import io
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import font_manager
from rich.cells import cell_len
from rich.console import Console

from regard.errors import ConfigError
from regard.explanation import AttentionMaps, figures
from regard.explanation.attention.drawing import BLOCKS
from regard.explanation.colors import SHADES

SCRIPTS = {
    "arabic": "الثلاثاء، ٤ مارس ٢٠٢٥",
    "hindi": "मंगलवार, 4 मार्च 2025",
    "thai": "วันอังคารที่ 4 มีนาคม 2568",
    "chinese": "2025年3月4日星期二",
    "unassigned": "\U000e1234 \U0001f5d3 \ue000",
}


def words_of(svg: Path) -> set[str]:
    return {"".join(text.itertext()) for text in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")}


def printed(maps: AttentionMaps, *, width: int = 80, color: bool = False, **choice: int | str | None) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=color, color_system="truecolor" if color else None, legacy_windows=False
    )
    console.print(maps.heat_map(**choice))  # pyright: ignore[reportArgumentType]  # kind, layer, head or width
    return file.getvalue()


@pytest.mark.parametrize("choice", [{}, {"layer": 1}, {"head": 0}, {"layer": 1, "head": 2}, {"kind": "decoder"}])
def test_a_png_is_written(maps: AttentionMaps, tmp_path: Path, choice: dict[str, int | str]):
    maps.save(tmp_path / "map.png", **choice)  # pyright: ignore[reportArgumentType]  # kind, layer or head
    data = (tmp_path / "map.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert min(struct.unpack(">II", data[16:24])) > 300


def test_an_svg_names_every_token_and_what_it_shows(maps: AttentionMaps, tmp_path: Path):
    maps.save(tmp_path / "map.SVG", layer=1)
    words = words_of(tmp_path / "map.SVG")
    assert {*maps.source_tokens, *maps.target_tokens} <= words
    assert "Cross attention, layer 2, average of 3 heads" in words
    assert {"head 1", "head 2", "head 3", "layer 2"} <= words
    assert "layer 1" not in words


def test_the_same_maps_give_the_same_file(maps: AttentionMaps, tmp_path: Path):
    for name in ("one.svg", "two.svg"):
        maps.save(tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_every_script_can_be_drawn(make_maps: Callable[[str, str], AttentionMaps], source: str, tmp_path: Path):
    maps = make_maps(source, "2025")
    maps.save(tmp_path / "map.png", layer=0, head=0)
    maps.save(tmp_path / "map.svg", layer=0, head=0)
    assert set(maps.source_tokens) <= words_of(tmp_path / "map.svg")
    assert (tmp_path / "map.png").stat().st_size > 1000
    for width in (30, 80):
        lines = printed(maps, width=width).splitlines()
        assert max(map(cell_len, lines)) <= width


def test_a_machine_without_the_fonts_still_draws(
    make_maps: Callable[[str, str], AttentionMaps], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    listed = [face for face in font_manager.fontManager.ttflist if face.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", listed)
    figures._candidates.cache_clear()
    try:
        assert figures.fonts_for(SCRIPTS.values()) == ["DejaVu Sans"]
        for suffix in ("png", "svg"):
            make_maps(SCRIPTS["chinese"], "2025").save(tmp_path / f"map.{suffix}")
    finally:
        figures._candidates.cache_clear()


def test_a_face_that_claims_every_sign_is_the_last_one_tried():
    families = [family for family, _ in figures._candidates()]
    assert families[0] == "DejaVu Sans"
    assert not any(family.startswith("Last Resort") for family in families[:-1])


def test_mathematics_and_markup_are_drawn_as_they_are(
    make_maps: Callable[[str, str], AttentionMaps], tricky_text: str, tmp_path: Path
):
    maps = replace(make_maps("ab", "c"), source_tokens=("$\\frac$", tricky_text[:15], "</s>"))
    maps.save(tmp_path / "map.svg")
    assert {"$\\frac$", tricky_text[:15], "</s>"} <= words_of(tmp_path / "map.svg")
    maps.save(tmp_path / "map.png")


def test_a_long_token_is_shortened_and_a_silent_map_is_drawn(
    make_maps: Callable[[str, str], AttentionMaps], tmp_path: Path
):
    maps = replace(
        make_maps("a", "b"), source_tokens=("x" * 99, "</s>"), weights={"cross": np.zeros((1, 1, 2, 2), np.float32)}
    )
    maps.save(tmp_path / "map.svg")
    assert "x" * 19 + "…" in words_of(tmp_path / "map.svg")
    assert "…" in printed(maps)


def test_a_suffix_that_is_not_known_is_an_error(maps: AttentionMaps, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"must end in \.html, \.png, \.svg or \.json, got 'map\.bmp'"):
        maps.save(tmp_path / "map.bmp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("choice", [{"kind": "self"}, {"layer": 5}, {"head": 3}])
def test_what_is_not_there_cannot_be_drawn(maps: AttentionMaps, tmp_path: Path, choice: dict[str, int | str]):
    with pytest.raises(ConfigError):
        maps.save(tmp_path / "map.png", **choice)  # pyright: ignore[reportArgumentType]  # kind, layer or head
    with pytest.raises(ConfigError):
        maps.heat_map(**choice)  # pyright: ignore[reportArgumentType]  # kind, layer or head


def test_the_terminal_shows_every_token_and_a_block_for_each_weight(maps: AttentionMaps):
    text = printed(maps, layer=0, head=1)
    assert "Cross attention, layer 1, head 2" in text
    assert "4 · m a r s · 2 0 2 5 >" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert set(maps.target_tokens) <= set(rows)
    weights = maps.average("cross", 0, 1)
    last = text.splitlines()[-3].split(" ", 1)[1]
    expected = (BLOCKS[round(4 * weight / weights.max())] * 2 for weight in weights[-1].astype(float))
    assert last.rstrip() == "".join(expected).rstrip()


def test_the_terminal_shows_colours_where_there_are_any(maps: AttentionMaps):
    text = printed(maps, color=True)
    red, green, blue = SHADES[-1]
    assert f"48;2;{red};{green};{blue}m" in text
    assert not re.search("[░▒▓█]", text)


def test_a_map_wider_than_the_terminal_continues_below(make_maps: Callable[[str, str], AttentionMaps]):
    source = "abcdefghijklmnopqrstuvwxyz"
    text = printed(make_maps(source, "1"), width=20)
    assert max(map(cell_len, text.splitlines())) <= 20
    names = [line.strip() for line in text.splitlines() if re.fullmatch("[a-z]{4,}>?", line.strip())]
    assert "".join(names).rstrip(">") == source


def test_a_map_may_be_narrower_than_the_terminal(maps: AttentionMaps):
    console = Console(file=io.StringIO(), width=80, color_system=None)
    lines = console.render_lines(maps.heat_map(width=20), pad=False)
    assert max(sum(segment.cell_length for segment in line) for line in lines) <= 20
