"""A score says everything that is needed to repeat it."""

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from regard.evaluation.scores import Score


def test_the_signature_lists_settings_in_order_and_the_version_last():
    settings = {"tok": "13a", "n": 7, "confidence": 0.95}
    signature = Score(name="bleu", value=31.0, settings=settings).signature
    assert signature.rsplit(":", 1)[0] == "confidence:0.95|n:7|tok:13a|version"


def test_the_order_in_which_settings_were_given_does_not_matter():
    first = Score(name="bleu", value=31.0, settings={"tok": "13a", "n": 7})
    second = Score(name="bleu", value=31.0, settings={"n": 7, "tok": "13a"})
    assert first.signature == second.signature


def test_a_score_prints_its_name_signature_value_and_interval():
    score = Score(name="bleu", value=31.0456, interval=(29.994, 33.0), settings={"n": 7}, digits=2)
    assert str(score) == f"bleu|{score.signature} = 31.05 [29.99, 33.00]"


def test_a_score_without_an_interval_prints_none():
    score = Score(name="accuracy", value=0.9934)
    assert str(score) == f"accuracy|{score.signature} = 0.993"


@pytest.mark.parametrize("interval", [None, (0.1, 0.7)])
def test_json_keeps_every_digit(interval: tuple[float, float] | None):
    score = Score(name="accuracy", value=1 / 3, interval=interval, settings={"n": 3})
    back = json.loads(json.dumps(score.to_json()))
    assert back == {
        "value": 1 / 3,
        "interval": None if interval is None else list(interval),
        "signature": score.signature,
    }


def test_a_score_cannot_be_changed():
    score = Score(name="accuracy", value=0.5)
    with pytest.raises(FrozenInstanceError):
        score.value = 1.0  # pyright: ignore[reportAttributeAccessIssue]  # that it is refused is the point


def test_evaluation_does_not_import_torch():
    # In a process of its own, since the tests' conftest imports torch.
    code = "import sys; from regard.evaluation import METRICS; list(METRICS); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
