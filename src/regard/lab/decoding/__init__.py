"""Decoding: greedy, beam search and sampling from one language model, by likelihood and by distance to human text."""

from regard.lab.study import StudyEntry

__all__ = ["DECODING"]

DECODING = StudyEntry(
    name="decoding",
    title="Greedy decoding, beam search and sampling from a language model",
    question="Is the most probable continuation of a text like the text that people write?",
    function="regard.lab.decoding.strategies:study_decoding",
    reads="a text file",
    lectures=("L04",),
    minutes=(0.28, None),
)
