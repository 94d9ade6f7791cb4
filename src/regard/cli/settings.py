"""`regard settings`: all settings, with their defaults and meanings."""

from typing import Annotated

from regard.cli.output import option


def settings_command(
    model: Annotated[str | None, option("The preset for [model], as in regard train.")] = None,
    task: Annotated[str | None, option("The task for [task]. Unset: by the model.")] = None,
) -> None:
    """Print a TOML file of all settings, each with its default and its meaning.

    A setting without a default is printed as a comment: its value is chosen for the data and the machine.

    Examples:

      regard settings --model small > mine.toml && regard train pairs.tsv --settings mine.toml

      regard settings --task text-classification
    """
    from regard.models.family import read_model_config
    from regard.models.presets import find_preset
    from regard.settings import template
    from regard.tasks.registry import task_for_model
    from regard.training.defaults import draft

    if task is None:
        task = task_for_model(read_model_config(find_preset(model or "tiny")[1])).name
    print(template(draft({"task": {"name": task}, **({} if model is None else {"preset": model})})))
