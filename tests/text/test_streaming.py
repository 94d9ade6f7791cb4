"""Streamed text never changes, and equals the decoded sequence."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.text.tokenizer import TextStreamer, Tokenizer, train_tokenizer

TEXTS = [
    "the cat sat on the mat",
    "naïve façade",
    "мама мыла раму",
    "你好 世界 再见",
    "👩\u200d👩\u200d👧 🎉🎉 ok",
] * 4
KINDS = {kind: train_tokenizer(TEXTS, kind, 300) for kind in ("bpe", "unigram", "characters", "bytes", "words")}


def stream(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[str], str]:
    streamer = TextStreamer(tokenizer)
    return [streamer.add(token) for token in ids], streamer.flush()


@pytest.mark.parametrize("kind", KINDS)
def test_real_text_comes_out_whole_with_nothing_left(kind: str):
    tokenizer = KINDS[kind]
    for text in (*TEXTS[:5], " ".join(TEXTS)):
        ids = tokenizer.encode([text])[0]
        shown, rest = stream(tokenizer, ids)
        assert "".join(shown) == tokenizer.decode([ids])[0]
        assert rest == ""
        assert "\ufffd" not in "".join(shown)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_tokens_at_all_are_shown_as_they_are_decoded(kind: str, data: st.DataObject):
    tokenizer = KINDS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=60))
    shown, rest = stream(tokenizer, ids)
    assert "".join(shown) + rest == tokenizer.decode([ids])[0]
    assert len(rest) <= 3


BYTES = KINDS["bytes"]
BYTE_OF = {byte: BYTES.encode([bytes([byte]).decode()])[0][0] for byte in range(128)}
BYTE_OF |= {
    byte: BYTES.encode([lead.decode()])[0][1 if byte < 0xC0 else 0]
    for byte, lead in [(0x80, b"\xc3\x80"), (0xA9, b"\xc3\xa9"), (0xC3, b"\xc3\xa9"), (0xE4, b"\xe4\xbd\xa0"),
                       (0xF0, b"\xf0\x9f\x8e\x89"), (0x9F, b"\xdf\x9f")]
}  # fmt: skip


@given(st.lists(st.sampled_from(sorted({*b"ab ", *(byte for byte in BYTE_OF if byte > 127)})), max_size=80))
@example([0x80] * 61)
@example([0xF0, 0x9F] * 31)
@example([0xE4] * 40 + [0xC3, 0xA9])
def test_broken_characters_are_shown_as_they_are_decoded(values: list[int]):
    ids = [BYTE_OF[value] for value in values]
    shown, rest = stream(BYTES, ids)
    whole = BYTES.decode([ids])[0]
    assert "".join(shown) + rest == whole
    for number in range(len(ids)):  # at no time is much held back
        held_back = len(BYTES.decode([ids[: number + 1]])[0]) - len("".join(shown[: number + 1]))
        assert 0 <= held_back <= 3


def test_an_unfinished_character_waits_and_is_flushed():
    ids = BYTES.encode(["n🎉!"])[0]
    assert stream(BYTES, ids) == (["n", "", "", "", "🎉", "!"], "")
    assert stream(BYTES, ids[:3]) == (["n", "", ""], "\ufffd")


def test_words_are_set_apart_and_special_tokens_left_out():
    tokenizer = KINDS["words"]
    the, cat = tokenizer.encode(["the cat"])[0]
    shown, rest = stream(tokenizer, [tokenizer.start, the, tokenizer.pad, cat, the, tokenizer.end])
    assert (shown, rest) == (["", "the", "", " cat", " the", ""], "")


def test_a_flushed_streamer_begins_again():
    streamer = TextStreamer(KINDS["words"])
    (the,) = KINDS["words"].encode(["the"])[0]
    assert [streamer.add(the), streamer.add(the), streamer.flush(), streamer.add(the)] == ["the", " the", "", "the"]


def test_only_a_short_tail_is_decoded():
    """Each token costs the same, however many went before."""
    sizes = []

    class Counting(Tokenizer):
        def decode(self, sequences):
            kept = [list(ids) for ids in sequences]
            sizes.extend(map(len, kept))
            return super().decode(kept)

    tokenizer = Counting.from_json(BYTES.to_json())
    ids = [BYTE_OF[0x80]] * 500 + BYTES.encode(["naïve "])[0] * 100
    shown, rest = stream(tokenizer, ids)
    assert "".join(shown) + rest == BYTES.decode([ids])[0]
    assert max(sizes) < 20
