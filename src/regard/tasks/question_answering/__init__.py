"""Extractive question answering: the span of a context that answers a question."""

from regard.tasks.question_answering.task import QuestionAnswering, SpanClassifier

__all__ = ["QuestionAnswering", "SpanClassifier"]
