"""Questions: SQuAD's JSON, JSON lines, tables, and answers that are not at their position."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from regard.data.formats.squad import Answer, Question, Questions, open_questions
from regard.errors import ConfigError, DataError, RegardError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "squad"

CONTEXT = "Zürich lies on the Limmat 😀, and the Limmat flows north."
GOOD: dict[str, Any] = {
    "id": "q1",
    "question": "What flows north?",
    "answers": [{"text": "Limmat", "answer_start": 37}, {"text": "the Limmat", "answer_start": 33}],
}
NO_ANSWER: dict[str, Any] = {"id": "q2", "question": "What flows south?", "answers": [], "is_impossible": True}


def squad(*questions: dict[str, Any], **context: Any) -> dict[str, Any]:
    paragraph = {"context": CONTEXT, **context, "qas": list(questions)}
    return {"version": "v2.0", "data": [{"title": "Zürich", "paragraphs": [paragraph]}]}


def write(path: Path, content: str) -> Path:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8", newline="") as stream:
        stream.write(content)
    return path


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read(source: Questions) -> list[Question]:
    """The valid questions."""
    return [found for _, found in source.read() if isinstance(found, Question)]


def faults(source: Questions) -> list[str]:
    """The names of the others, and their faults."""
    return [f"{name} {found}" for name, found in source.read() if isinstance(found, str)]


@pytest.mark.parametrize("name", ["dev.json", "dev.json.xz", "dev.json.gz", "dev.txt"])
@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "indented"])
def test_squads_json(tmp_path: Path, name: str, indent: int | None):
    source = open_questions(write(tmp_path / name, json.dumps(squad(GOOD, NO_ANSWER), indent=indent)))
    first, second = read(source)
    assert first == Question(
        id="q1",
        title="Zürich",
        question="What flows north?",
        context=CONTEXT,
        answers=(Answer("Limmat", 37), Answer("the Limmat", 33)),
        is_impossible=False,
    )
    assert all(CONTEXT[answer.start : answer.end] == answer.text for answer in first.answers)
    assert (second.id, second.answers, second.is_impossible) == ("q2", (), True)
    assert (source.format, source.inferred, faults(source)) == ("squad", [], [])


FLAT = {"question": "What flows north?", "context": CONTEXT, "title": "Zürich", "id": "q1"}


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({"answers": GOOD["answers"]}, [37, 33]),
        ({"answers": {"text": ["Limmat", "the Limmat"], "answer_start": [37, 33]}}, [37, 33]),
        ({"answers": {"text": ["Limmat"]}}, [19]),
        ({"answers": ["Limmat", "north"]}, [19, 50]),
        ({"answer": "Limmat", "answer_start": 37}, [37]),
        ({"answer": "Limmat"}, [19]),
        ({"answer": "Limmat", "answer_start": None}, [19]),
        ({"answer": ""}, []),
        ({"answer": None}, []),
        ({"answers": {"text": [], "answer_start": []}}, []),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["q.jsonl", "q.json"])
def test_json_lines(tmp_path: Path, given: dict[str, Any], starts: list[int], name: str):
    path = write(tmp_path / name, lines({**FLAT, **given}, {**FLAT, "id": 7, "answer": "north"}))
    first, second = read(open_questions(path))
    assert [answer.start for answer in first.answers] == starts
    assert all(CONTEXT[answer.start : answer.end] == answer.text for answer in first.answers)
    assert first.is_impossible == (not starts)
    assert (first.id, second.id, first.title) == ("q1", "7", "Zürich")


def test_a_single_line_can_be_json_lines(tmp_path: Path):
    assert open_questions(write(tmp_path / "q.json", lines({**FLAT, "answer": "north"}))).format == "jsonl"


CSV = f"""question,context,answer
What flows north?,"{CONTEXT}",Limmat
What flows south?,"{CONTEXT}",
"""


def test_a_table_with_a_column_for_each(tmp_path: Path):
    source = open_questions(write(tmp_path / "q.csv", CSV))
    first, second = read(source)
    assert first.answers == (Answer("Limmat", 19),)
    assert (first.id, second.id, second.is_impossible) == ("2", "3", True)
    assert source.inferred == [
        "read q.csv as CSV with a header; question = question, context = context, answer = answer",
        "took each answer of q.csv at its first occurrence in the context",
    ]


def test_a_table_may_have_optional_columns(tmp_path: Path):
    content = f"id\ttitle\tcontext\tquestion\tanswer\tanswer_start\nq9\tZürich\t{CONTEXT}\tWhat?\tLimmat\t37\n"
    source = open_questions(write(tmp_path / "q.tsv.xz", content))
    (found,) = read(source)
    assert (found.id, found.title, found.answers) == ("q9", "Zürich", (Answer("Limmat", 37),))
    assert len(source.inferred) == 1


@pytest.mark.parametrize(("columns", "start"), [(["3", "2", "1"], 19), (["3", "2", "1", "4"], 37)])
def test_a_table_without_a_header(tmp_path: Path, columns: list[str], start: int):
    content = f"Limmat\t{CONTEXT}\tWhat flows north?\t37\nLimmat\t{CONTEXT}\tWhat does?\t37\n"
    source = open_questions(write(tmp_path / "q.tsv", content), columns=columns)
    assert [found.answers for found in read(source)] == [(Answer("Limmat", start),)] * 2


def question(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "id": "bad", **changes}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"answers": [{"text": "Limmat", "answer_start": 20}]},
            "has the answer 'Limmat' at 20, where its context has 'immat '; it occurs at 19",
        ),
        (
            {"answers": [{"text": "Limmat", "answer_start": 32}]},
            "has the answer 'Limmat' at 32, where its context has ' the L'; it occurs at 37",
        ),
        (
            {"answers": [{"text": "Rhine", "answer_start": 19}]},
            "has the answer 'Rhine' at 19, where its context has 'Limma'",
        ),
        (
            {"answers": [{"text": "north.", "answer_start": 51}]},
            "has the answer 'north.' at 51, outside of its context of 56 characters; it occurs at 50",
        ),
        (
            {"answers": [{"text": "Rhine", "answer_start": -5}]},
            "has the answer 'Rhine' at -5, outside of its context of 56 characters",
        ),
        (
            {"answers": [{"text": "north.", "answer_start": -6}]},
            "has the answer 'north.' at -6, outside of its context of 56 characters; it occurs at 50",
        ),
        ({"answers": [*GOOD["answers"], {"text": "Rhine"}]}, "has the answer 'Rhine', which is not in its context"),
        (
            {"answers": [{"text": "Limmat", "answer_start": "here"}]},
            "has the answer 'Limmat' with a start that is not a number: 'here'",
        ),
        ({"answers": [{"text": " ", "answer_start": 6}]}, "has an answer without text"),
        ({"answers": [{"answer_start": 6}]}, "has an answer without text"),
        ({"answers": "Limmat"}, "has answers that are not a list"),
        (
            {"answers": {"text": ["a"], "answer_start": []}},
            "has answers that are not a list of texts and a list of their",
        ),
        ({"is_impossible": True}, "has 2 answers although it is marked as impossible"),
        ({"answers": [], "is_impossible": False}, "has no answer although it is not marked as impossible"),
        ({"question": " "}, "has no question"),
        ({"question": ["What?"]}, "has a question that is not text"),
    ],
)
def test_bad_questions_are_named_by_id_and_line(tmp_path: Path, changes: dict[str, Any], fault: str):
    content = json.dumps(squad(GOOD, question(**changes), NO_ANSWER))
    source = open_questions(write(tmp_path / "dev.json", content))
    assert [found.id for found in read(source)] == ["q1", "q2"]
    assert faults(source)[0].startswith(f"question bad {fault}")
    flat = lines({**FLAT, "answer": "north"}, {"context": CONTEXT, **question(**changes)})
    (found,) = faults(open_questions(write(tmp_path / "q.jsonl", flat)))
    assert found.startswith(f"question bad in line 2 {fault}")


def test_a_long_answer_is_cut_in_the_message(tmp_path: Path):
    path = write(tmp_path / "dev.json", json.dumps(squad(GOOD, question(answers=["x" * 500]))))
    assert len(faults(open_questions(path))[0]) < 200


def test_bad_rows_of_a_table_are_named_by_line(tmp_path: Path):
    source = open_questions(write(tmp_path / "q.csv", CSV + "\nWhat?,No answer here,Limmat\nWhat?\n,b,c\n"))
    assert faults(source) == [
        "line 5 has the answer 'Limmat', which is not in its context",
        "line 6 has 1 column instead of 3",
        "line 7 has no question",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"data": [{"title"', "a.json is not JSON: line 1, column 19:"),
        ("a.json", "1", "a.json is neither SQuAD's JSON nor JSON lines: it does not begin with an object"),
        ("a.json", "1", "neither SQuAD's JSON nor JSON lines: it does not begin with an object"),
        ("a.json", '{\n"articles": []}', "is not SQuAD's JSON: it has no list of objects 'data'; it has articles"),
        (
            "a.json",
            '{"data": [{"paragraphs": []},\n {"title": "x"}]}',
            "a.json is not SQuAD's JSON: article 2 has no list of objects 'paragraphs'; it has title",
        ),
        ("a.json", '{"data": [{"paragraphs": [{"context": "x"}]}]}', "paragraph 1 has no list of objects 'qas'"),
        ("a.csv", "question,answer\na,b\n", "a.csv has 2 columns (question, answer), but 3 are needed"),
        ("a.json", "", "is empty"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, content: str, message: str):
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as caught:
        list(open_questions(path).read())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.json", json.dumps(squad(GOOD, context=None)), "question q1 has no context"),
        ("a.jsonl", "{\n", "line 1 is not a JSON object"),
        ("a.jsonl", '{"question": "a", "context": "b"}', "line 1 has no answers"),
    ],
)
def test_records_that_are_no_questions_are_faults(tmp_path: Path, name: str, content: str, fault: str):
    assert faults(open_questions(write(tmp_path / name, content))) == [fault]


def test_wrong_settings_are_errors_of_settings(tmp_path: Path):
    path = write(tmp_path / "dev.json", json.dumps(squad(GOOD)))
    with pytest.raises(ConfigError, match="columns apply to tables, got a, b, c for"):
        open_questions(path, columns=["a", "b", "c"])
    with pytest.raises(ConfigError, match="format must be one of squad, jsonl, csv, tsv, parquet, xlsx, got 'xml'"):
        open_questions(path, format="xml")
    with pytest.raises(ConfigError, match="columns must be those of question, context, answer and optionally"):
        open_questions(write(tmp_path / "q.csv", CSV), columns=["question", "context"])
    with pytest.raises(RegardError, match="there is no file"):
        open_questions(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("name", "num_articles", "num_paragraphs", "num_questions"),
    [
        ("dev-v1.1.json.xz", 48, 2_067, 10_570),
        ("xquad.en.json.xz", 48, 240, 1_190),
        ("xquad.de.json.xz", 48, 240, 1_190),
    ],
)
def test_published_counts(name: str, num_articles: int, num_paragraphs: int, num_questions: int):
    if not (SHARED / name).exists():
        pytest.skip(f"the data set {name} is not here")
    questions = read(open_questions(SHARED / name))
    assert len(questions) == len({each.id for each in questions}) == num_questions
    assert len({each.title for each in questions}) == num_articles
    assert len({(each.title, each.context) for each in questions}) == num_paragraphs
    assert not any(each.is_impossible for each in questions)
