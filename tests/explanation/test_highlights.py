"""Texts whose words are shaded: in the terminal, as a page, as a figure."""

from pathlib import Path

import pytest
from rich.console import Console

from regard.errors import ConfigError
from regard.explanation.attribution import Attribution, Highlights, write_highlights_page

WORDS = [("good", 0.6), ("soup", 0.3), (",", 0.0), ("rude", 0.02), ("waiter", 0.02), *[("!", 0.02)] * 3]


@pytest.fixture
def highlights() -> Highlights:
    chances = {"negative": 0.25, "positive": 0.75}
    return Highlights("good soup, rude waiter!!!", [Attribution("food", "positive", chances, WORDS, "negative")])


def shown(highlights: Highlights, **options) -> str:
    console = Console(width=60, force_terminal=True, **options)
    with console.capture() as captured:
        console.print(highlights)
    return captured.get()


def test_without_colours_the_heaviest_words_are_marked(highlights: Highlights):
    assert shown(highlights, no_color=True, color_system=None).split("\n")[:2] == [
        "food  positive 0.75",
        "[good 0.60] [soup 0.30], rude waiter!!!",
    ]


def test_with_colours_a_word_is_shaded_by_its_share_of_the_largest_weight(highlights: Highlights):
    line = shown(highlights, color_system="truecolor").split("\n")[1]
    assert "48;2;244;248;255mgood" in line
    assert "48;2;79;112;208msoup" in line
    assert line.endswith("\x1b[0m, rude waiter!!!")


def test_no_word_is_dark_where_all_weights_are_equal():
    attribution = Attribution("food", "good", {"good": 1.0}, [("a", 0.1)] * 10)
    assert attribution.peak == pytest.approx(0.4)
    assert Attribution("food", "good", {"good": 1.0}, [("a", 0.9), ("b", 0.1)]).peak == pytest.approx(1.0)


def test_the_page_shows_foreign_text_as_text(highlights: Highlights, tmp_path: Path, tricky_text: str, drawn):
    word = tricky_text.split()[0]
    tricky = Highlights(word, [Attribution(word, word, {word: 1.0}, [(word, 1.0)])])
    write_highlights_page([highlights, tricky], tmp_path / "page.html")
    page = drawn(tmp_path / "page.html")
    assert "expected negative" in page
    assert page.count('class="attribution"') == 2
    assert "&lt;/script&gt;" in page
    assert 'title="good: 0.600"' in page


def test_a_drawing_is_a_page_or_a_figure(highlights: Highlights, tmp_path: Path):
    highlights.save(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert all(f">{word}</text>" in text for word in ("good", "soup", "rude", "food"))
    with pytest.raises(ConfigError, match=r"must end in \.html, \.png or \.svg, got 'a\.txt'"):
        highlights.save(tmp_path / "a.txt")
