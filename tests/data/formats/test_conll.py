"""Tagged sentences: columns, CoNLL-U, JSON lines, and invalid sentences."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from regard.data.formats.conll import TaggedSentences, open_tagged, tagged_from_rows
from regard.errors import ConfigError, DataError, RegardError
from regard.evaluation.metrics.entities import detect_scheme, entities_of

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"

CONLL_2003 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""
CONLLU = """# newdoc id = one
# text = Don't stop.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tstop\tstop\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
3.1\tnow\tnow\tADV\tRB\t_\t_\t_\t_\t_
4\t#\t#\tSYM\t.\t_\t3\tpunct\t_\t_

# sent_id = 2
1\tNew York\tNew York\tPROPN\tNNP\t_\t0\troot\t_\t_
"""


def write(path: Path, content: str) -> Path:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8", newline="") as stream:
        stream.write(content)
    return path


def read(source: TaggedSentences) -> list[tuple[str, str]]:
    """The words and the tags of the valid sentences."""
    return [(" ".join(words), " ".join(tags)) for _, words, tags, fault in source.read() if not fault]


def faults(source: TaggedSentences) -> list[tuple[int, str]]:
    """The line and the fault of the others."""
    return [(line, fault) for line, _, _, fault in source.read() if fault]


@pytest.mark.parametrize("name", ["eng.train", "eng.train.xz", "train.conll.gz", "train.txt"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["", "from Windows"])
def test_columns_between_spaces(tmp_path: Path, name: str, line_end: str):
    source = open_tagged(write(tmp_path / name, CONLL_2003.replace("\n", line_end)))
    assert read(source) == [("EU rejects German", "I-ORG O I-MISC"), ("Peter Blackburn", "I-PER I-PER")]
    assert [line for line, _, _, _ in source.read()] == [3, 9]
    assert (source.format, source.columns) == ("columns", ("1", "4"))
    assert source.inferred == [f"read {name} as columns between spaces; words = column 1, tags = column 4 of 4 columns"]


def test_the_columns_can_be_chosen(tmp_path: Path):
    source = open_tagged(write(tmp_path / "eng.train", CONLL_2003), columns=["1", "2"])
    assert read(source)[0] == ("EU rejects German", "NNP VBZ JJ")
    assert source.inferred == []


def test_columns_between_tabs_may_contain_spaces(tmp_path: Path):
    source = open_tagged(write(tmp_path / "a.tsv", "New York\tB-LOC\nrain\u00a0falls\tO\n \t\nAda\tB-PER"))
    assert [words for _, words, _, _ in source.read()] == [("New York", "rain\u00a0falls"), ("Ada",)]
    assert source.inferred == ["read a.tsv as columns between tabs; words = column 1, tags = column 2"]


def test_spaces_of_other_kinds_part_no_columns(tmp_path: Path):
    source = open_tagged(write(tmp_path / "a.txt", "10\u00a0000 \t O\nz\u2028y  O \n"))
    assert [words for _, words, _, _ in source.read()] == [("10\u00a0000", "z\u2028y")]


@pytest.mark.parametrize("name", ["en.conllu", "en.txt.xz"])
def test_conllu_without_comments_ranges_and_empty_nodes(tmp_path: Path, name: str):
    source = open_tagged(write(tmp_path / name, CONLLU))
    assert read(source) == [("Do n't stop #", "AUX PART VERB SYM"), ("New York", "PROPN")]
    assert (source.format, source.columns) == ("conllu", ("form", "upos"))
    assert source.inferred == [f"read {name} as CoNLL-U; words = form, tags = upos of 10 columns"]
    assert read(open_tagged(tmp_path / name, columns=["lemma", "xpos"]))[1] == ("New York", "NNP")
    assert read(open_tagged(tmp_path / name, columns=["2", "8"]))[1] == ("New York", "root")


def test_where_the_first_column_counts_the_words_they_are_the_second(tmp_path: Path):
    content = "#\thttp://example.org [2009]\n1\tSchartau\tB-PER\tO\n2\tsagte\tO\tO\n\n#\tb\n1\tAda\tB-PER\tO\n"
    source = open_tagged(write(tmp_path / "germeval.tsv", content))
    assert source.columns == ("2", "4")
    assert read(open_tagged(tmp_path / "germeval.tsv", columns=["2", "3"])) == [
        ("Schartau sagte", "B-PER O"),
        ("Ada", "B-PER"),
    ]


def test_a_number_sign_is_a_word_and_not_a_comment(tmp_path: Path):
    content = "# # B-NP\n12 CD I-NP\n\n# id 7\nof IN B-PP\n# # B-NP\n\n# text = #\nyes UH O\n"
    source = open_tagged(write(tmp_path / "a.txt", content))
    assert read(source) == [("# 12", "B-NP I-NP"), ("of #", "B-PP B-NP"), ("yes", "O")]


def test_comments_with_the_width_of_the_columns_are_recognized_by_their_content(tmp_path: Path):
    source = open_tagged(write(tmp_path / "a.conll", "# id 52-39 domain=en\nAda _ _ B-PER\nsang _ _ O\n"))
    assert read(source) == [("Ada sang", "B-PER O")]


@pytest.mark.parametrize(
    ("record", "columns"),
    [
        ({"tokens": ["Ada", "sang"], "ner_tags": ["B-PER", "O"], "id": "1"}, ("tokens", "ner_tags")),
        ({"words": ["Ada", "sang"], "tags": ["B-PER", "O"]}, ("words", "tags")),
        ({"tokens": ["Ada", "sang"], "labels": ["B-PER", "O"], "pos_tags": ["N", "V"]}, ("tokens", "labels")),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.jsonl.xz"])
def test_json_lines(tmp_path: Path, record: dict[str, object], columns: tuple[str, str], name: str):
    source = open_tagged(write(tmp_path / name, json.dumps(record) + "\n\n" + json.dumps(record) + "\n"))
    assert read(source) == [("Ada sang", "B-PER O")] * 2
    assert (source.format, source.columns) == ("jsonl", columns)
    assert source.inferred[0].startswith(f"read {name} as JSON lines; words = {columns[0]}, tags = {columns[1]}")


def test_json_lines_with_numbers_for_tags_and_chosen_fields(tmp_path: Path):
    record = {"tokens": ["1.50", 7], "ner_tags": [3, 0], "chunk_tags": ["B-NP", "I-NP"]}
    path = write(tmp_path / "a.jsonl", json.dumps(record))
    assert read(open_tagged(path)) == [("1.50 7", "3 0")]
    assert read(open_tagged(path, columns=["tokens", "chunk_tags"])) == [("1.50 7", "B-NP I-NP")]


def test_rows_in_memory():
    source = tagged_from_rows(iter([(["Ada"], ["B-PER"]), (("it", "rains"), ("O", "O"))]))
    assert read(source) == read(source) == [("Ada", "B-PER"), ("it rains", "O O")]
    rows = [(["Ada"], ["B-PER"]), (["it", "rains"], ["O"]), ("it", ["O", "O"]), (["it"],)]
    assert faults(tagged_from_rows(rows)) == [  # pyright: ignore[reportArgumentType]  # that it is rejected
        (2, "2 words and 1 tag"),
        (3, "text instead of a list of words"),
        (4, "1 value instead of 2"),
    ]


def test_a_bad_line_makes_its_sentence_a_bad_one_and_is_located(tmp_path: Path):
    source = open_tagged(write(tmp_path / "a.txt", "a B\nb O\n\nc\nd O\n\ne O\nf O O O\n\ng O\n"))
    assert read(source) == [("a b", "B O"), ("g", "O")]
    assert faults(source) == [(4, "1 column instead of 2"), (8, "4 columns instead of 2")]


def test_within_a_sentence_there_are_no_comments(tmp_path: Path):
    source = open_tagged(write(tmp_path / "a.txt", "a O\n# not a comment\nb O\n\nc O\n"))
    assert faults(source) == [(2, "4 columns instead of 2")]


def test_empty_words_and_tags_are_faults(tmp_path: Path):
    source = open_tagged(write(tmp_path / "a.tsv", "a\tO\n\tO\n\nb\tO\nc\t\n\nd\tO\n"))
    assert faults(source) == [(2, "an empty word"), (5, "an empty tag")]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"tokens": ["a", "b"], "tags": ["O"]}', "2 words and 1 tag"),
        ('{"tokens": [], "tags": []}', "0 words and 0 tags"),
        ('{"tokens": "a b", "tags": ["O", "O"]}', "text instead of a list of words"),
        ('{"tokens": ["a"], "tags": {"0": "O"}}', "an object instead of a list of tags"),
        ('{"tokens": ["a"], "tags": [null]}', "null among its tags"),
        ('{"tokens": [" "], "tags": ["O"]}', "an empty word"),
        ('{"tokens": ["a"]}', "no field 'tags'"),
        ("[1]", "no JSON object"),
        ('{"tokens": ["a', "no JSON object"),
    ],
)
def test_bad_json_lines_are_named(tmp_path: Path, line: str, fault: str):
    good = '{"tokens": ["a"], "tags": ["O"]}\n'
    source = open_tagged(write(tmp_path / "a.jsonl", good + line + "\n" + good))
    assert faults(source) == [(2, fault)]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", "one\ntwo\n", {}, "a.txt has 1 column, but 2 are needed (words, tags)"),
        ("a.txt", "\n \n", {}, "has nothing but blank lines"),
        ("a.txt", "", {}, "is empty"),
        ("a.txt", "-DOCSTART- O\n\n", {}, "a.txt has 0 columns, but 2 are needed (words, tags)"),
        ("a.txt", "# id 1\n", {}, "a.txt has 0 columns, but 2 are needed (words, tags)"),
        ("a.txt", "a O\n", {"columns": ["1", "3"]}, "a.txt has no column 3; it has 2 columns"),
        ("a.conllu", CONLLU, {"columns": ["form", "pos"]}, "a.conllu has no column 'pos'; it has id, form, lemma"),
        ("a.txt", "a O\n", {"columns": ["1"]}, "columns must be two, of words and of tags, got ['1']"),
        (
            "a.txt",
            "a O\n",
            {"format": "conll"},
            "format must be one of columns, conllu, jsonl, csv, tsv, xlsx, parquet, got 'conll'",
        ),
        ("a.jsonl", '{"text": ["a"], "tags": ["O"]}', {}, "no list called words or tokens; it has text, tags"),
        ("a.jsonl", '{"text": "a"}', {}, "a.jsonl has no list called words or tokens; it has no lists"),
        ("a.jsonl", "a O\n", {}, "a.jsonl is not JSON lines"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, name: str, content: str, options: dict[str, object], message: str
):
    path = write(tmp_path / name, content)
    with pytest.raises(RegardError) as caught:
        open_tagged(path, **options)  # pyright: ignore[reportArgumentType]  # that it is refused
    assert message in str(caught.value)


def test_wrong_settings_are_errors_of_settings(tmp_path: Path):
    with pytest.raises(ConfigError, match="columns must be two"):
        open_tagged(write(tmp_path / "a.txt", "a O\n"), columns="12")


def test_latin_1_is_detected_and_reported(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("a O\n\nM\u00fcller B-PER\n".encode("latin-1"))
    found = open_tagged(tmp_path / "a.txt")
    assert [words for _, words, _, _ in found.read()] == [("a",), ("M\u00fcller",)]
    assert found.inferred[0] == "a.txt is in Windows-1252"
    with pytest.raises(DataError, match=r"is not UTF-8: line 3, byte 2 is 0xfc"):
        open_tagged(tmp_path / "a.txt", encoding="utf-8")


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the data set {name} is not here")
    return path


@pytest.mark.parametrize(
    ("name", "num_sentences", "num_words", "scheme", "num_entities"),
    [
        ("conll2003/eng.train.xz", 14_041, 203_621, "IOB1", 23_499),
        ("conll2003/eng.testa.xz", 3_250, 51_362, "IOB1", 5_942),
        ("conll2003/eng.testb.xz", 3_453, 46_435, "IOB1", 5_648),
        ("conll2000/train.txt.xz", 8_936, 211_727, "BIO", 106_978),
        ("conll2000/test.txt.xz", 2_012, 47_377, "BIO", 23_852),
        ("ud-en-ewt/en_ewt-ud-train.conllu.xz", 12_544, 204_577, None, None),
        ("ud-en-ewt/en_ewt-ud-dev.conllu.xz", 2_001, 25_147, None, None),
        ("ud-en-ewt/en_ewt-ud-test.conllu.xz", 2_077, 25_094, None, None),
    ],
)
def test_published_counts(name: str, num_sentences: int, num_words: int, scheme: str | None, num_entities: int | None):
    sentences = list(open_tagged(shared(name)).read())
    assert len(sentences) == num_sentences
    assert sum(len(words) for _, words, _, _ in sentences) == num_words
    tags = [tags for _, _, tags, _ in sentences]
    assert detect_scheme(tags) == scheme
    if num_entities is not None:
        assert sum(len(entities_of(each)) for each in tags) == num_entities
