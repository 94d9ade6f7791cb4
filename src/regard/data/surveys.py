"""How rows are split, as the settings say: by source, by groups, within labels, or by time."""

from collections.abc import Iterable

from regard.data.config import DataConfig
from regard.data.splits import Entry, Survey, survey_by_source
from regard.data.strata import LabelOf, no_label, survey_by_units
from regard.data.times import survey_by_time
from regard.errors import ConfigError


def survey(
    entries: Iterable[Entry],
    config: DataConfig,
    *,
    has_valid: bool,
    has_test: bool,
    column: str | None = None,
    label_of: LabelOf | None = None,
) -> Survey:
    """Count the rows and decide the split, in one pass.

    Args:
        entries: Rows, and what each is split by.
        config: How to split, and how much is for which set.
        has_valid: Whether there are validation rows of their own; then nothing is split off.
        has_test: Whether there are test rows of their own.
        column: The one that rows are split by, where it is not their source.
        label_of: The label of a row, where each has one.
    """
    way = way_of(config)
    if way is None:
        return survey_by_source(entries, config, has_valid=has_valid, has_test=has_test)
    if has_valid:
        raise ConfigError(f"{way} says how rows are split, but there are validation rows of their own: nothing is")
    if config.stratify and label_of is None:
        raise ConfigError("data.stratify is for rows with one label each, which these have not")
    if config.order is not None:
        assert column is not None, "rows that are split by time have a column of it, or their lines"
        return survey_by_time(entries, config, has_test=has_test, column=column)
    return survey_by_units(
        entries,
        config,
        has_test=has_test,
        label_of=label_of if config.stratify and label_of is not None else no_label,
        group=column if config.group is not None else None,
    )


def way_of(config: DataConfig) -> str | None:
    """The settings that say how rows are split, for a sentence; None where rows are split by their source."""
    ways = {"data.group": config.group is not None, "data.stratify": config.stratify,
            "data.order": config.order is not None}  # fmt: skip
    return " and ".join(name for name, is_set in ways.items() if is_set) or None
