"""Conversations are read from each form, and invalid ones are bad rows with their lines."""

import json

import pytest

from regard.data.conversation_sources import (
    RowTemplates,
    conversation_of,
    format_prompt,
    open_conversations,
    parse_prompt,
    read_messages,
    split_conversation,
)
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows
from regard.errors import DataError
from regard.text import chat as chat_module

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello."}
SYSTEM = {"role": "system", "content": "Be brief."}


def written(tmp_path, name, *records):
    path = tmp_path / name
    path.write_text("".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records))
    return DataConfig(train=[str(path)])


def pairs(source):
    return [row.values for row in source.train]


@pytest.mark.parametrize(
    ("name", "records", "expected"),
    [
        ("a.jsonl", [{"messages": [USER, ANSWER]}], ("Hi", "Hello.")),
        ("a.jsonl", [{"messages": [USER, ANSWER, {"role": "user", "content": "Thanks"}]}], ("Hi", "Hello.")),
        ("a.jsonl", [{"id": 7, "prompt": "Hi", "completion": "Hello."}], ("Hi", "Hello.")),
        ("a.jsonl", [{"prompt": [USER], "completion": [ANSWER]}], ("Hi", "Hello.")),
        ("a.jsonl", [{"instruction": "Add", "input": "2 and 3", "output": "5"}], ("Add\n\n2 and 3", "5")),
        ("a.jsonl", [{"instruction": "Say yes", "output": "yes"}], ("Say yes", "yes")),
        ("a.csv", ["instruction,input,output\n", "Add,2 and 3,5\n"], ("Add\n\n2 and 3", "5")),
        ("a.csv", ["prompt,completion\n", "Hi,Hello.\n"], ("Hi", "Hello.")),
        ("a.tsv", ["Prompt\tresponse\n", "Hi\tHello.\n"], ("Hi", "Hello.")),
    ],
)
def test_each_form_gives_a_prompt_and_an_answer(tmp_path, name, records, expected):
    assert pairs(open_conversations(written(tmp_path, name, *records))) == [expected]


def test_a_prompt_of_several_messages_is_json_and_is_read_back(tmp_path):
    messages = [SYSTEM, USER, ANSWER, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Bye!"}]
    [(prompt, answer)] = pairs(open_conversations(written(tmp_path, "a.jsonl", {"messages": messages})))
    assert conversation_of(prompt, answer) == messages


@pytest.mark.parametrize("text", ["Hi", "[1, 2]", "[", '[{"role": "user", "content": "Hi"}]', "[]"])
def test_a_text_of_the_user_that_is_itself_json_stays_a_text(text):
    message = [{"role": "user", "content": text}]
    assert parse_prompt(format_prompt(message)) == message


def test_templates_make_pairs_of_the_columns_of_a_table(tmp_path):
    config = written(tmp_path, "words.csv", "en,de\n", "cat,Katze\n")
    found = open_conversations(config, templates=RowTemplates("In German: {{ en }}", "{{ de | upper }}"))
    assert pairs(found) == [("In German: cat", "KATZE")]
    with pytest.raises(DataError, match=r"name 'dee', which words.csv does not have; did you mean 'de'\?"):
        open_conversations(config, templates=RowTemplates("{{ en }}", "{{ dee }}"))
    with pytest.raises(DataError, match=r"neither messages nor prompt and completion, only en, de"):
        open_conversations(config)
    assert pairs(open_conversations(config.changed(columns=["de", "en"]))) == [("Katze", "cat")]


def test_rows_in_memory_are_pairs_or_dictionaries():
    config = DataConfig(train=["memory"])
    assert pairs(open_conversations(config, [("Hi", "Hello.")])) == [("Hi", "Hello.")]
    named = NamedRows([{"messages": [USER, ANSWER]}])
    assert pairs(open_conversations(config, named)) == [("Hi", "Hello.")]
    with pytest.raises(DataError, match="got 3 values in row 1"):
        open_conversations(config, [("a", "b", "c")])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([ANSWER, USER], "a conversation that starts with the assistant"),
        ([SYSTEM, ANSWER], "a conversation that starts with the assistant"),
        ([SYSTEM, USER], "a conversation without an answer of the assistant"),
        ([USER, {"role": "assistant", "content": " "}], "an empty answer"),
        ([{"role": "user", "content": ""}, ANSWER], "an empty message of the user"),
        ([], "a conversation without messages"),
        ([{"content": "Hi"}, ANSWER], "a message without a role: message 1"),
        ([USER, {"role": "assistant", "content": None}], r"content is not text: message 2 \(assistant\)"),
        (["Hi", ANSWER], "instead of message 1"),
        ("Hi", "no list of messages in messages"),
        (None, "no messages"),
    ],
)
def test_an_invalid_conversation_is_a_bad_row_with_its_line(tmp_path, messages, reason):
    config = written(tmp_path, "a.jsonl", {"messages": [USER, ANSWER]}, {"messages": messages})
    with pytest.raises(DataError, match=rf"1 of 2 rows of a.jsonl has .*{reason}.*: line 2$"):
        pairs(open_conversations(config))
    skipping = open_conversations(config.changed(skip_bad=True))
    assert len(pairs(skipping)) == 1
    assert skipping.train.bad_rows.total == 1


def test_rows_can_be_grouped_by_a_column_beside_the_messages(tmp_path):
    records = [{"messages": [USER, ANSWER], "topic": topic} for topic in ("a", "b")]
    found = open_conversations(written(tmp_path, "a.jsonl", *records).changed(group="topic"))
    assert [row.split_key for row in found.train] == ["a", "b"]


def test_a_row_template_that_does_not_end_stops_the_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(chat_module, "_MAX_SECONDS", 0.2)
    config = written(tmp_path, "a.csv", "x,y\n", "1,2\n").changed(skip_bad=True)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ x }}"
    with pytest.raises(DataError, match=r"task\.prompt does what is not allowed: more than 0\.2 seconds \(line 1\)"):
        pairs(open_conversations(config, templates=RowTemplates(endless, "{{ y }}")))


def test_the_parts_of_a_conversation_are_its_prompt_and_its_last_answer():
    assert split_conversation(read_messages([SYSTEM, USER, ANSWER])) == ([SYSTEM, USER], "Hello.")
