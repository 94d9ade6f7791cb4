"""Why products cannot be computed in float8 is logged."""

import logging
import string

import pytest
from tests.tiny import tiny

from regard.text.tokenizer import SPECIAL_TOKENS


@pytest.mark.parametrize(
    ("vocab_size", "width", "rdrop", "reason"),
    [(47, 32, 0.0, "47 and 32"), (48, 12, 0.0, "48 and 12"), (48, 32, 2.0, "train.rdrop"), (48, 32, 0.0, "device")],
)
@pytest.mark.usefixtures("cache")
def test_why_float8_is_not_used(caplog, vocab_size: int, width: int, rdrop: float, reason: str):
    letters = string.ascii_letters[: vocab_size - len(SPECIAL_TOKENS)]
    rows = [(letters[number % 7 :], letters) for number in range(60)]
    with caplog.at_level(logging.WARNING):
        tiny(
            "seq2seq", rows, tokenizer="characters", model={"model_dim": width}, train={"float8": True, "rdrop": rdrop}
        )
    (message,) = [record.message for record in caplog.records if "float8" in record.message]
    assert reason in message
