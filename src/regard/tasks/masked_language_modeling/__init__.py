"""Masked language modeling: the tokens that are hidden in a text.

`masking` has which tokens are hidden, `task` the task, and how blanks in a text are filled.
"""

from regard.tasks.masked_language_modeling.task import MaskedLanguageModel, MaskedLanguageModeling

__all__ = ["MaskedLanguageModel", "MaskedLanguageModeling"]
