"""Extractive question answering: the span of a context that answers a question.

`questions` has how questions are read and encoded, `task` the task itself.
"""

from regard.tasks.question_answering.task import QuestionAnswering, SpanClassifier

__all__ = ["QuestionAnswering", "SpanClassifier"]
