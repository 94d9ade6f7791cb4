"""From running text to token ids: prepared once, whole, and with what was found out."""

import json
from pathlib import Path

import pytest

import regard.data.preparation
from regard.data.config import DataConfig
from regard.data.documents import as_pieces, open_texts
from regard.data.preparation import Prepared, prepare, prepare_text
from regard.data.sources import open_source
from regard.data.stream import TokenStream, write_stream
from regard.errors import DataError

PLAY = "".join(f"SPEAKER {i % 7}:\nwords of number {i}, as they are spoken\n\n" for i in range(401))
ESSAYS = [f"essay {i} says {'this and ' * (i % 5)}that" for i in range(101)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepared(*paths: Path, rows=None, **settings) -> Prepared[TokenStream]:
    config = DataConfig.read({"tokenizer": "bytes", "train": [str(path) for path in paths], **settings})
    return prepare_text(open_texts(config, rows), config)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def texts_in(data: Prepared[TokenStream], stream: TokenStream) -> list[str]:
    """The documents between the ends."""
    documents: list[list[int]] = [[]]
    for token in stream.ids.tolist()[1:]:
        if token == data.tokenizer.end:
            documents.append([])
        else:
            documents[-1].append(token)
    assert documents.pop() == []
    return data.tokenizer.decode(documents)


def test_a_play_is_divided_where_everyone_divides_it(tmp_path: Path):
    data = prepared(write(tmp_path / "play.txt", PLAY), tokenizer="characters", splits=[0.9, 0.1, 0.0])
    cut = int(0.9 * len(PLAY))
    assert texts_in(data, data.train) == [PLAY[:cut]]
    assert texts_in(data, data.valid) == [PLAY[cut:]]
    assert data.held_out == {"valid": [(PLAY[cut:],)], "test": []}
    assert (data.train.num_tokens, data.train.num_bytes) == (cut + 2, cut)
    assert data.tokenizer.vocab_size == 4 + len(set(PLAY[:cut]))
    assert not data.is_isolated
    assert data.notes == [
        "read play.txt as one running text",
        f"{len(PLAY):,} characters in 1 document: {cut:,} tokens to train on, "
        f"{len(PLAY) - cut:,} for validation, 0 for the test",
        f"tokenizer characters: {data.tokenizer.vocab_size} tokens, learned from the training text",
    ]


@pytest.mark.parametrize("kind", [None, "bpe", "unigram", "characters", "bytes", "words"])
def test_every_kind_of_tokenizer_will_do(tmp_path: Path, kind: str | None):
    data = prepared(write(tmp_path / "play.txt", PLAY), tokenizer=kind)
    (document,) = texts_in(data, data.train)[:1]
    start = "SPEAKER 0:" if kind == "words" else PLAY[:2000]
    assert document.startswith(start)
    assert data.train.num_documents == (360 * 2 + 1 if kind == "words" else 1)


def test_documents_are_in_one_set_each():
    data = prepared(rows=ESSAYS)
    trained, valid = texts_in(data, data.train), texts_in(data, data.valid)
    assert [(text,) for text in valid] == data.held_out["valid"]
    assert sorted([*trained, *valid, *(text for (text,) in data.held_out["test"])]) == sorted(ESSAYS)
    assert (len(trained), len(valid), data.train.num_documents) == (91, 5, 91)
    assert data.is_isolated


def test_the_held_out_text_gives_the_validation_stream_again(tmp_path: Path):
    lines = write(tmp_path / "lines.txt", PLAY)
    for data in (prepared(lines, tokenizer="bpe"), prepared(lines, tokenizer="words"), prepared(rows=ESSAYS[:7])):
        again = write_stream(
            tmp_path / f"again{len(data.valid)}", as_pieces(text for (text,) in data.held_out["valid"]), data.tokenizer
        )
        assert again.ids.tolist() == data.valid.ids.tolist()
        assert again.num_bytes == data.valid.num_bytes


def test_words_have_an_id_each_and_unk_is_the_unknown_word(tmp_path: Path):
    common = "".join(f" the <unk> w{i} </s> \n" for i in range(1_009))
    train = write(tmp_path / "train.txt", common)
    valid = write(tmp_path / "valid.txt", " the <unk> stranger \n\n w1 \n")
    data = prepared(train, valid=[str(valid)], tokenizer="words")
    assert data.tokenizer.vocab_size == 4 + 1 + 1_009
    unknown = data.tokenizer.encode(["<unk>"])[0][0]
    end, the, w1 = data.tokenizer.end, *data.tokenizer.encode(["the w1"])[0]
    assert data.valid.ids.tolist() == [end, the, unknown, unknown, end, w1, end]
    assert (data.train.ids == end).sum() == 1_010, "a word that is spelled as the end is none"
    assert data.held_out["valid"] == [(" the <unk> stranger ",), (" w1 ",)]
    assert int(data.train.ids.max()) < data.tokenizer.vocab_size


def test_fifty_thousand_words_are_enough(tmp_path: Path):
    text = " ".join(f"w{i}" for i in range(60_013))
    data = prepared(
        write(tmp_path / "a.txt", text + "\nb\n"), valid=[str(write(tmp_path / "b.txt", "w1"))], tokenizer="words"
    )
    assert data.tokenizer.vocab_size == 50_004
    fewer = prepared(tmp_path / "a.txt", valid=[str(tmp_path / "b.txt")], tokenizer="words", vocab_size=103)
    assert fewer.tokenizer.vocab_size == 103


def test_a_tokenizer_learns_from_all_parts_of_a_text(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(regard.data.documents, "_PIECE_LENGTH", 1_009)
    monkeypatch.setattr(regard.data.preparation, "_SAMPLE_CHARACTERS", 20_011)
    words = ("alpha", "beta", "gamma", "delta", "epsilon")
    text = "".join(f"{word} {word} {word}\n" * 997 for word in words)
    path = write(tmp_path / "eras.txt", text)
    seen = []

    def train_tokenizer(texts, kind, vocab_size, **how):
        seen.append("".join(texts))
        return real(iter([seen[-1]]), kind, vocab_size, **how)

    real = regard.data.preparation.train_tokenizer
    monkeypatch.setattr(regard.data.preparation, "train_tokenizer", train_tokenizer)
    prepared(path, tokenizer="bpe", splits=[0.9, 0.1, 0.0])
    assert all(word in seen[-1] for word in words)
    assert 10_000 < len(seen[-1]) < 30_000 < len(text)
    for kind in ("characters", "words"):
        prepared(path, tokenizer=kind, documents="file", splits=[0.9, 0.1, 0.0])
        assert seen[-1] == text[: int(0.9 * len(text))], "all there is to train on, and nothing else"


def test_the_cache_is_keyed_by_content_and_by_what_matters(tmp_path: Path, cache: Path):
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
        (path, {"split_seed": 1}),
        (table, {}),
        (table, {"isolate": True}),
        (table, {"isolate": False}),
    ]:
        prepared(file, **settings)
        folders.append(len(list(cache.iterdir())))
    assert folders == [1, 1, 1, 1, 2, 3, 4, 5, 5, 6]


def test_settings_of_running_text_are_nothing_to_pairs(cache: Path):
    for settings in ({}, {"documents": "lines", "isolate": True, "window": 5}):
        config = DataConfig.read({"tokenizer": "bytes", **settings})
        rows = [(f"in {i}", f"out {i}") for i in range(40)]
        data = prepare(open_source(config, ("source", "target"), rows), config, ("source", "target"))
    assert len(list(cache.iterdir())) == 1
    assert not data.is_isolated


def test_what_was_prepared_is_found_again_and_what_was_damaged_is_mended(tmp_path: Path, cache: Path, caplog):
    path = write(tmp_path / "play.txt", PLAY)
    first = prepared(path)
    built = next(cache.iterdir()).stat().st_mtime_ns
    again = prepared(path)
    assert next(cache.iterdir()).stat().st_mtime_ns == built
    assert (again.notes, again.held_out, again.content_hash) == (first.notes, first.held_out, first.content_hash)
    damaged = next(cache.iterdir()) / "train" / "ids"
    damaged.unlink()  # not written over: what is mapped must not shrink
    damaged.write_bytes(b"12")
    mended = prepared(path)
    assert "is damaged: it is prepared anew" in caplog.text
    assert mended.train.ids.tolist() == first.train.ids.tolist()


def test_documents_that_are_in_two_sets_are_counted(tmp_path: Path):
    def lines(name: str, texts: list[str]) -> list[str]:
        return [str(write(tmp_path / name, "".join(json.dumps({"text": text}) + "\n" for text in texts)))]

    held_out = {"valid": lines("valid.jsonl", [*ESSAYS[:3], "new"]), "test": lines("test.jsonl", [ESSAYS[5]])}
    data = prepared(rows=ESSAYS, **held_out)
    assert "3 of the 4 valid documents are training documents too: scores on them flatter the model" in data.notes
    assert "1 of the 1 test documents are training documents too: scores on them flatter the model" in data.notes
    running = prepared(rows=ESSAYS, isolate=False, **held_out)
    assert not [note for note in running.notes if "flatter" in note]
    assert len(texts_in(running, running.train)) == 101


def test_a_tokenizer_from_a_file_and_skipped_rows_are_said(tmp_path: Path):
    tokenizer = write(tmp_path / "mine.json", prepared(rows=ESSAYS).tokenizer.to_json())
    data = prepared(rows=[*ESSAYS, "  "], skip_bad=True, tokenizer=str(tokenizer))
    assert f"tokenizer {tokenizer}: 260 tokens" in data.notes
    assert any(note.startswith("skipped: 1 of 102 rows") for note in data.notes)


def test_nothing_is_left_of_what_failed(tmp_path: Path, cache: Path):
    path = write(tmp_path / "play.txt", PLAY)
    with pytest.raises(DataError, match="no text was held back for validation"):
        prepared(path, splits=[1.0, 0.0, 0.0])
    with pytest.raises(DataError, match="is not text"):
        prepared(path, valid=[str(write(tmp_path / "valid.txt", "a\0b"))])
    assert not cache.exists() or not list(cache.iterdir())
