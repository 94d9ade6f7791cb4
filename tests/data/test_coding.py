"""What rows become in a store: texts, labels, numbers."""

import numpy as np
import pytest

from regard.data.coding import LabelCoding, NumberCoding, TextCoding, joined, labels_of
from regard.errors import DataError
from regard.text.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer([], "bytes", 300)


def seen(coding, rows):
    for row in rows:
        coding.see(row)
    return coding


def test_texts_are_columns_of_their_own():
    first, second = TextCoding(("source", "target")).encode([("a", "bc"), ("de", "f")], TOKENIZER)
    assert TOKENIZER.decode(first) == ["a", "de"]
    assert TOKENIZER.decode(second) == ["bc", "f"]


def test_labels_are_numbered_in_their_order_numbers_before_words():
    coding = seen(LabelCoding(max_length=50), [("x", "10"), ("x", "9"), ("x", "bad"), ("x", "9"), ("x", "ambivalent")])
    assert coding.learned().labels == {"9": 2, "10": 1, "ambivalent": 1, "bad": 1}
    texts, labels = coding.encode([("x", "bad"), ("yy", " 9 ")], TOKENIZER)
    assert labels == [[3], [0]]
    assert texts[1] == [TOKENIZER.start, *TOKENIZER.encode(["yy"])[0], TOKENIZER.end]


def test_a_row_may_have_several_labels_or_none():
    coding = seen(LabelCoding(max_length=50, separator=","), [("x", "red, blue"), ("y", ""), ("z", "red")])
    assert coding.learned().labels == {"blue": 1, "red": 2}
    assert coding.encode([("x", "blue,red,blue"), ("y", " ")], TOKENIZER)[1] == [[0, 1], []]
    assert labels_of("a|b", None) == ["a|b"]


def test_one_label_alone_is_nothing_to_tell_apart():
    with pytest.raises(DataError, match="all 3 rows have the label 'same': there is nothing to tell apart"):
        seen(LabelCoding(max_length=50), [("x", "same")] * 3).learned()


def test_a_label_that_training_rows_lack_is_named():
    coding = seen(LabelCoding(max_length=50), [("x", "a"), ("y", "b")])
    with pytest.raises(DataError, match=r"the label 'c' of a held-out row does not occur .* which have a, b"):
        coding.encode([("x", "c")], TOKENIZER)


def test_numbers_come_back_from_their_bytes_and_their_mean_and_spread_are_known():
    numbers = [3.0, -1.5, 7.25, 0.1]
    coding = seen(NumberCoding(max_length=50), [("x", str(number)) for number in numbers])
    learned = coding.learned()
    assert learned.center == pytest.approx(np.mean(numbers))
    assert learned.spread == pytest.approx(np.std(numbers))
    stored = coding.encode([("x", str(number)) for number in numbers], TOKENIZER)[1]
    assert np.array(stored, np.uint8).view(np.float32)[:, 0].tolist() == np.float32(numbers).tolist()


@pytest.mark.parametrize("text", ["much", "", "nan", "inf"])
def test_what_is_no_number_is_said(text: str):
    with pytest.raises(DataError, match=f"a row must end with a number, got '{text}' behind 'a film'"):
        NumberCoding(max_length=50).see(("a film", text))


def test_a_constant_number_is_nothing_to_learn():
    with pytest.raises(DataError, match="all 2 rows have the number 4: there is nothing to learn"):
        seen(NumberCoding(max_length=50), [("x", "4"), ("y", "4.0")]).learned()


@pytest.mark.parametrize(
    ("lengths", "limit", "kept"),
    [((3, 4), 50, (3, 4)), ((30, 4), 20, (13, 4)), ((30, 30), 21, (9, 9)), ((5,), 4, (2,)), ((9, 9), 3, (0, 0))],
)
def test_a_long_row_is_cut_its_longest_text_first(lengths, limit: int, kept):
    ids = joined([[7] * length for length in lengths], TOKENIZER, limit)
    ends = [place for place, token in enumerate(ids) if token == TOKENIZER.end]
    found = [end - start - 1 for start, end in zip([0, *ends], ends, strict=False)]
    assert tuple(found) == kept
    assert len(ids) <= max(limit, 1 + len(lengths))
