"""Eight bits that cannot be had are said, not passed over."""

import pytest

from regard.training.resolution import why_not_float8
from regard.training.settings import RunSettings


@pytest.mark.parametrize(
    ("vocab_size", "train", "reason"),
    [
        (10_002, {}, "got a vocabulary of 10,002 tokens and a model 512 wide"),
        (10_000, {"consistency": 2.0}, "with train.consistency all scores are needed at once"),
        (10_000, {"device": "cpu"}, "this device does not multiply in eight bits"),
    ],
)
def test_why_eight_bits_cannot_be_had(vocab_size: int, train: dict, reason: str):
    settings = RunSettings.read({"task": "language", "train": {"float8": True, **train}})
    found = why_not_float8(settings, vocab_size)
    assert found is not None
    assert reason in found
