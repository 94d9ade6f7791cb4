"""SemEval's XML: rows by category and by term, invalid files, and the published counts."""

import lzma
from collections import Counter
from pathlib import Path

import pytest

from regard.data.formats.tables import open_table
from regard.data.settings import DataConfig
from regard.errors import BadRowsError, DataError
from regard.tasks.aspect_sentiment import AspectSentiment, AspectSentimentSettings

REAL = Path(__file__).parents[4] / "shared" / "data" / "semeval14"
ROLES = ("text", "aspect", "label")
XML = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<sentences>
    <sentence id="1">
        <text>Good &quot;soup&quot; &amp; bread,
            rude waiter.</text>
        <aspectTerms>
            <aspectTerm term="soup" polarity="positive" from="6" to="10"/>
            <aspectTerm term="waiter" polarity="negative" from="27" to="33"/>
        </aspectTerms>
        <aspectCategories>
            <aspectCategory category="food" polarity="positive"/>
            <aspectCategory category="service" polarity="negative"/>
        </aspectCategories>
    </sentence>
    <sentence id="2"><text>Nothing to say.</text></sentence>
    <sentence id="3">
        <text>Dear, but worth it.</text>
        <aspectCategories><aspectCategory category="price" polarity="conflict"/></aspectCategories>
    </sentence>
</sentences>
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "meals.xml"
    path.write_text(XML)
    return path


def rows_of(path: Path, **options) -> list[tuple[str, ...]]:
    return [row.values for row in open_table(path, roles=ROLES, **options)]


def test_each_aspect_of_a_sentence_is_a_row(path: Path):
    text = 'Good "soup" & bread, rude waiter.'
    assert rows_of(path) == [
        (text, "food", "positive"),
        (text, "service", "negative"),
        ("Dear, but worth it.", "price", "conflict"),
    ]
    assert rows_of(path, format="semeval-terms") == [(text, "soup", "positive"), (text, "waiter", "negative")]


def test_a_compressed_file_of_many_blocks_reads_the_same(path: Path, tmp_path: Path):
    body = XML.split("<sentences>")[1].removesuffix("</sentences>\n")
    many = tmp_path / "many.xml.xz"
    many.write_bytes(lzma.compress(f"<sentences>{body * 200}</sentences>".encode()))
    assert rows_of(many) == 200 * rows_of(path)


def test_conflicting_labels_are_ignored_and_reported(path: Path):
    def opened(**settings):
        return AspectSentiment(AspectSentimentSettings.draft(settings)).open(DataConfig(train=[str(path)]))

    source = opened()
    assert [row.values[-1] for row in source.train] == ["positive", "negative"]
    assert any("meals.xml" in note and "conflict" in note for note in source.inferred)
    kept = opened(ignored_labels=[])
    assert [row.values[-1] for row in kept.train] == ["positive", "negative", "conflict"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<reviews><sentence/></reviews>", "its first element must be <sentences>, got <reviews>"),
        ("<sentences><sentence></sentences>", "is not XML: mismatched tag: line 1"),
        ("just text", "is not XML: syntax error: line 1"),
        ("<sentences><sentence id='1'><text>Hm.</text></sentence></sentences>", "has no aspectCategory in any"),
        ('<!DOCTYPE s [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><sentences>&b;</sentences>', "declares a document type"),
    ],
)
def test_invalid_files_are_errors_of_one_line(tmp_path: Path, text: str, words: str):
    path = tmp_path / "other.xml"
    path.write_text(text)
    with pytest.raises(DataError, match=r"other\.xml") as error:
        rows_of(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_aspect_without_a_polarity_is_a_bad_row(tmp_path: Path):
    path = tmp_path / "blind.xml"
    path.write_text(XML.replace('category="service" polarity="negative"', 'category="service"'))
    with pytest.raises(BadRowsError, match=r"1 of 3 rows of blind\.xml has no polarity: line 12"):
        rows_of(path)
    assert len(rows_of(path, skip_bad=True)) == 2


def test_columns_are_recognized_by_their_names(tmp_path: Path):
    path = tmp_path / "meals.csv"
    path.write_text("id,review,category,sentiment\n7,good soup,food,+\n")
    assert rows_of(path) == [("good soup", "food", "+")]


@pytest.mark.skipif(not REAL.is_dir(), reason="the SemEval files are not here")
def test_the_counts_are_the_published_ones():
    counted = {
        ("Restaurants_Train_v2", "semeval"): {"positive": 2179, "negative": 839, "neutral": 500, "conflict": 195},
        ("Restaurants_Train_v2", "semeval-terms"): {"positive": 2164, "negative": 805, "neutral": 633, "conflict": 91},
        ("Restaurants_Test_Gold", "semeval"): {"positive": 657, "negative": 222, "neutral": 94, "conflict": 52},
    }
    for (name, format), counts in counted.items():
        rows = rows_of(REAL / f"{name}.xml.xz", format=format)
        assert Counter(row[2] for row in rows) == counts
    train = rows_of(REAL / "Restaurants_Train_v2.xml.xz")
    assert Counter(row[1] for row in train)["food"] == 1232
    assert len(train) == 3713
