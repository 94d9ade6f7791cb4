"""Labels, numbers and text: what is fitted, and values that cannot be."""

import numpy as np
import pytest

from regard.data.codecs import LabelCodec, NumberCodec, TextCodec
from regard.data.codecs.labels import describe_unknown, split_labels
from regard.errors import ConfigError, DataError


def test_labels_are_sorted_numbers_first():
    codec = LabelCodec.fit(["10", "9", "bad", " 9 ", "ambivalent"])
    assert codec.counts == {"9": 2, "10": 1, "ambivalent": 1, "bad": 1}
    assert codec.encode(["bad", " 9 "]) == [[3], [0]]
    assert len(codec) == 4


def test_a_row_may_have_several_labels_or_none():
    codec = LabelCodec.fit(["red, blue", "", "red"], separator=",")
    assert codec.counts == {"blue": 1, "red": 2}
    assert codec.encode(["blue,red,blue", " "]) == [[0, 1], []]
    assert codec.decode([[0, 1], []]) == ["blue, red", ""]
    assert split_labels("a|b", None) == ["a|b"]


def test_one_label_alone_is_an_error():
    with pytest.raises(DataError, match="3 rows have 'same'"):
        LabelCodec.fit(["same"] * 3)


def test_an_unknown_label_has_the_last_index_and_is_described():
    codec = LabelCodec.fit(["a", "b"])
    assert codec.encode(["a", "c"]) == [[0], [2]]
    assert codec.unknown(["c", "a", "d", "c"]) == ["c", "d"]
    assert codec.labels_with(["c", "a"]) == ["a", "b", "c"]
    message = describe_unknown(codec.counts, [["c"], ["a"], ["d"]], "the test set")
    assert message is not None
    for part in ("2 rows of the test set", "c", "d"):
        assert part in message
    assert describe_unknown(codec.counts, [["a"]], "the test set") is None


def test_numbers_are_stored_as_float32_and_standardized():
    numbers = [3.0, -1.5, 7.25, 0.1]
    codec = NumberCodec.fit(map(str, numbers))
    assert codec.mean == pytest.approx(np.mean(numbers))
    assert codec.std == pytest.approx(np.std(numbers))
    stored = codec.numbers(codec.encode([str(number) for number in numbers]))
    assert stored.tolist() == np.float32(numbers).tolist()
    standardized = codec.standardize(stored)
    assert float(standardized.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(standardized.std()) == pytest.approx(1.0)


def test_the_standard_deviation_of_large_numbers_is_exact():
    """The sum of squares minus the square of the sum would lose all digits."""
    codec = NumberCodec.fit(str(1e9 + number) for number in (1, 2, 3, 4))
    assert codec.std == pytest.approx(np.std([1, 2, 3, 4]))


@pytest.mark.parametrize("text", ["much", "", "nan", "inf"])
def test_a_value_that_is_not_a_finite_number_is_an_error(text: str):
    for read in (NumberCodec.fit, NumberCodec().encode):
        with pytest.raises(DataError, match=f"'{text}'"):
            read(["1", text])


def test_a_constant_number_is_an_error():
    with pytest.raises(DataError, match=r"2 rows .*4"):
        NumberCodec.fit(["4", "4.0"])


def test_the_vocabulary_grows_with_the_text_within_limits():
    words = [f"w{number}" for number in range(2_500)]
    codecs = [TextCodec.fit(words, kind="words", num_characters=number) for number in (0, 4_000, 480_000)]
    assert [codec.tokenizer.vocab_size for codec in codecs] == [1_024, 1_024, 1_200]
    complete = TextCodec.fit(words, kind="words", num_characters=0, complete={"words": 3_000})
    assert complete.tokenizer.vocab_size == 2_504
    assert TextCodec.fit(words, kind="words", num_characters=0, vocab_size=60).tokenizer.vocab_size == 60


def test_a_few_texts_of_many_characters_have_all_of_them():
    """As names in Chinese, of which each character occurs once or twice."""
    codec = TextCodec.fit([chr(0x4E00 + number) for number in range(5_000)], kind="characters", num_characters=0)
    assert codec.tokenizer.vocab_size == 5_004


def test_a_tokenizer_is_lower_cased_or_loaded_from_a_file(tmp_path):
    codec = TextCodec.fit(["ab AB"], kind="characters", num_characters=5, lowercase=True)
    assert codec.encode(["AB"]) == codec.encode(["ab"])
    (tmp_path / "mine.json").write_text(codec.to_json())
    loaded = TextCodec.fit([], kind=str(tmp_path / "mine.json"), num_characters=0)
    assert loaded.to_json() == codec.to_json()
    with pytest.raises(ConfigError, match=r"task\.lowercase"):
        TextCodec.fit([], kind=str(tmp_path / "mine.json"), num_characters=0, lowercase=True)
    with pytest.raises(ConfigError, match="characters"):
        TextCodec.fit([], kind="charakters", num_characters=0)
