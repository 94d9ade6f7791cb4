"""Running text to token ids: split, tokenized and cached."""

import json
from pathlib import Path

import pytest

import regard.data.codecs.text
import regard.data.text_sources
from regard.data.formats.plain_text import cut_documents
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.stores.tokens import TokenStream, write_stream
from regard.errors import DataError
from regard.tasks import find_task
from regard.text.tokenizer import Tokenizer

PLAY = "".join(f"SPEAKER {i % 7}:\nwords of number {i}, as they are spoken\n\n" for i in range(401))
ESSAYS = [f"essay {i} says {'this and ' * (i % 5)}that" for i in range(101)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepared(*paths: Path, rows=None, task="language-modeling", data=None, **settings) -> Prepared[TokenStream]:
    kind = find_task(task)
    own = kind.Settings.draft({"name": task, "tokenizer": "bytes", **settings})
    return kind(own).prepare(DataConfig(train=[str(path) for path in paths], **(data or {})), rows)


def tokenizer_of(data: Prepared) -> Tokenizer:
    return data.codecs["text"].tokenizer


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def texts_in(data: Prepared[TokenStream], stream: TokenStream) -> list[str]:
    """The documents between the end tokens."""
    documents: list[list[int]] = [[]]
    for token in stream.ids.tolist()[1:]:
        if token == tokenizer_of(data).end:
            documents.append([])
        else:
            documents[-1].append(token)
    assert documents.pop() == []
    return tokenizer_of(data).decode(documents)


def test_a_text_is_split_by_its_characters(tmp_path: Path):
    data = prepared(write(tmp_path / "play.txt", PLAY), tokenizer="characters", data={"splits": [0.9, 0.1, 0.0]})
    cut = int(0.9 * len(PLAY))
    assert texts_in(data, data.train) == [PLAY[:cut]]
    assert texts_in(data, data.valid) == [PLAY[cut:]]
    assert data.held_out == {"valid": [(PLAY[cut:],)], "test": []}
    assert (data.train.num_tokens, data.train.num_bytes) == (cut + 2, cut)
    assert tokenizer_of(data).vocab_size == 4 + len(set(PLAY[:cut]))
    assert not data.is_isolated
    assert len(data.notes) == 3
    counts = (f"{len(PLAY):,} characters", "1 document", f"{cut:,} tokens", f"{len(PLAY) - cut:,} for validation")
    for number, parts in enumerate((("play.txt",), counts, ("characters", f"{tokenizer_of(data).vocab_size} tokens"))):
        assert all(part in data.notes[number] for part in parts), data.notes[number]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words"])
def test_every_kind_of_tokenizer_is_trained(tmp_path: Path, kind: str):
    data = prepared(write(tmp_path / "play.txt", PLAY), tokenizer=kind)
    (document,) = texts_in(data, data.train)[:1]
    start = "SPEAKER 0:" if kind == "words" else PLAY[:2000]
    assert document.startswith(start)
    assert data.train.num_documents == (360 * 2 + 1 if kind == "words" else 1)


def test_each_document_is_in_one_set():
    data = prepared(rows=ESSAYS)
    trained, valid = texts_in(data, data.train), texts_in(data, data.valid)
    assert [(text,) for text in valid] == data.held_out["valid"]
    assert sorted([*trained, *valid, *(text for (text,) in data.held_out["test"])]) == sorted(ESSAYS)
    assert (len(trained), len(valid), data.train.num_documents) == (81, 10, 81)
    assert data.is_isolated


def test_held_out_text_is_encoded_to_the_validation_stream(tmp_path: Path):
    lines = write(tmp_path / "lines.txt", PLAY)
    for data in (prepared(lines, tokenizer="bpe"), prepared(lines, tokenizer="words"), prepared(rows=ESSAYS[:7])):
        again = write_stream(
            tmp_path / f"again{len(data.valid)}",
            cut_documents(text for (text,) in data.held_out["valid"]),
            tokenizer_of(data),
        )
        assert again.ids.tolist() == data.valid.ids.tolist()
        assert again.num_bytes == data.valid.num_bytes


def test_each_word_has_an_id_and_unk_is_the_unknown_word(tmp_path: Path):
    common = "".join(f" the <unk> w{i} </s> \n" for i in range(1_009))
    train = write(tmp_path / "train.txt", common)
    valid = write(tmp_path / "valid.txt", " the <unk> stranger \n\n w1 \n")
    data = prepared(train, data={"valid": [str(valid)]}, tokenizer="words")
    assert tokenizer_of(data).vocab_size == 4 + 1 + 1_009
    unknown = tokenizer_of(data).encode(["<unk>"])[0][0]
    end, the, w1 = tokenizer_of(data).end, *tokenizer_of(data).encode(["the w1"])[0]
    assert data.valid.ids.tolist() == [end, the, unknown, unknown, end, w1, end]
    assert (data.train.ids == end).sum() == 1_010, "a word that is spelled like the end token is not one"
    assert data.held_out["valid"] == [(" the <unk> stranger ",), (" w1 ",)]
    assert int(data.train.ids.max()) < tokenizer_of(data).vocab_size


def test_the_vocabulary_of_words_is_limited(tmp_path: Path):
    text = " ".join(f"w{i}" for i in range(60_013))
    valid = {"valid": [str(write(tmp_path / "b.txt", "w1"))]}
    data = prepared(write(tmp_path / "a.txt", text + "\nb\n"), data=valid, tokenizer="words")
    assert tokenizer_of(data).vocab_size == 50_004
    fewer = prepared(tmp_path / "a.txt", data=valid, tokenizer="words", vocab_size=103)
    assert tokenizer_of(fewer).vocab_size == 103


def test_a_tokenizer_is_trained_on_all_parts_of_the_training_text(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(regard.data.formats.plain_text, "_PIECE_LENGTH", 1_009)
    monkeypatch.setattr(regard.data.text_sources, "_SAMPLE_CHARACTERS", 20_011)
    words = ("alpha", "beta", "gamma", "delta", "epsilon")
    text = "".join(f"{word} {word} {word}\n" * 997 for word in words)
    path = write(tmp_path / "eras.txt", text)
    seen = []

    def train_tokenizer(texts, kind, vocab_size, **how):
        seen.append("".join(texts))
        return real(iter([seen[-1]]), kind, vocab_size, **how)

    real = regard.data.codecs.text.train_tokenizer
    monkeypatch.setattr(regard.data.codecs.text, "train_tokenizer", train_tokenizer)
    split = {"splits": [0.9, 0.1, 0.0]}
    prepared(path, tokenizer="bpe", data=split)
    assert all(word in seen[-1] for word in words)
    assert 10_000 < len(seen[-1]) < 30_000 < len(text)
    for kind in ("characters", "words"):
        prepared(path, tokenizer=kind, documents="file", data=split)
        assert seen[-1] == text[: int(0.9 * len(text))], "all of the training text, and nothing else"


def test_the_cache_depends_on_the_content_and_on_settings_that_change_what_is_stored(tmp_path: Path, cache: Path):
    path = write(tmp_path / "play.txt", PLAY)
    table = write(tmp_path / "table.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in ESSAYS))
    folders = []
    for file, settings in [
        (path, {}),
        (path, {"window": 64, "stride": 32}),
        (path, {"max_length": 7}),
        (path, {"documents": "file", "isolate": False}),
        (path, {"documents": "lines"}),
        (path, {"documents": "lines", "isolate": True}),
        (path, {"data": {"split_seed": 1}}),
        (path, {"task": "masked-language-modeling"}),
        (table, {}),
        (table, {"isolate": True}),
        (table, {"isolate": False}),
    ]:
        prepared(file, **settings)
        folders.append(len(list(cache.iterdir())))
    assert folders == [1, 1, 1, 1, 2, 3, 4, 5, 6, 6, 7]


def test_prepared_data_is_found_in_the_cache_and_damaged_data_is_prepared_again(tmp_path: Path, cache: Path, caplog):
    path = write(tmp_path / "play.txt", PLAY)
    first = prepared(path)
    built = next(cache.iterdir()).stat().st_mtime_ns
    again = prepared(path)
    assert next(cache.iterdir()).stat().st_mtime_ns == built
    assert (again.notes, again.held_out, again.content_hash) == (first.notes, first.held_out, first.content_hash)
    damaged = next(cache.iterdir()) / "train" / "ids"
    damaged.unlink()  # it is mapped, and a mapped file must not shrink
    damaged.write_bytes(b"12")
    again = prepared(path)
    assert "is damaged" in caplog.text
    assert again.train.ids.tolist() == first.train.ids.tolist()


def test_documents_of_two_sets_are_reported(tmp_path: Path):
    def lines(name: str, texts: list[str]) -> list[str]:
        return [str(write(tmp_path / name, "".join(json.dumps({"text": text}) + "\n" for text in texts)))]

    held_out = {"valid": lines("valid.jsonl", [*ESSAYS[:3], "new"]), "test": lines("test.jsonl", [ESSAYS[5]])}
    data = prepared(rows=ESSAYS, data=held_out)
    for start in ("3 of the 4 validation documents", "1 of the 1 test documents"):
        assert any(start in note for note in data.notes), data.notes
    running = prepared(rows=ESSAYS, isolate=False, data=held_out)
    assert not [note for note in running.notes if "of the 4 valid" in note]
    assert len(texts_in(running, running.train)) == 101


def test_a_tokenizer_from_a_file_and_skipped_rows_are_reported(tmp_path: Path):
    tokenizer = write(tmp_path / "mine.json", tokenizer_of(prepared(rows=ESSAYS)).to_json())
    data = prepared(rows=[*ESSAYS, "  "], data={"skip_bad": True}, tokenizer=str(tokenizer))
    assert f"tokenizer {tokenizer}: 260 tokens" in data.notes
    assert any(note.startswith("skipped: 1 of 102 rows") for note in data.notes)


def test_a_failure_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path):
    path = write(tmp_path / "play.txt", PLAY)
    with pytest.raises(DataError, match=r"data\.splits"):
        prepared(path, data={"splits": [1.0, 0.0, 0.0]})
    with pytest.raises(DataError, match="is not text"):
        prepared(path, data={"valid": [str(write(tmp_path / "valid.txt", "a\0b"))]})
    assert not cache.exists() or not list(cache.iterdir())
