"""`regard settings`: everything that can be set, with its value and meaning."""

from typing import Annotated

from regard.cli.output import option


def settings(
    model: Annotated[str, option("The preset that [model] starts from, as in regard train.")] = "tiny",
) -> None:
    """Print a TOML file of all settings, each with its value and what it means.

    Example:

      regard settings --model small > mine.toml && regard train pairs.tsv --settings mine.toml
    """
    from regard.settings import template
    from regard.training.resolution import task_of, with_preset

    print(template(with_preset({"task": task_of(model)}, model)))
