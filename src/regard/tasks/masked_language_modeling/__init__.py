"""Masked language modeling: the tokens that are hidden in a text.

`masking` has which tokens are hidden, `filling` how blanks in a text are filled, `task` the task itself.
"""

from regard.tasks.masked_language_modeling.task import MaskedLanguageModel, MaskedLanguageModeling

__all__ = ["MaskedLanguageModel", "MaskedLanguageModeling"]
