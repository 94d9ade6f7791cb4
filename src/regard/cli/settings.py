"""`regard settings`: everything that can be set, with its default and meaning."""


def settings() -> None:
    """Print a TOML file of all settings, each with its default and what it means.

    Example:

      regard settings > mine.toml && regard train pairs.tsv --settings mine.toml
    """
    from regard.config import template
    from regard.training.settings import RunSettings

    print(template(RunSettings))
