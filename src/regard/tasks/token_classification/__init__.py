"""Token classification: a tag for each word of a sentence.

`sentences` has how sentences are read and encoded, `task` the task itself.
"""

from regard.tasks.token_classification.task import TokenClassification, TokenClassifier

__all__ = ["TokenClassification", "TokenClassifier"]
