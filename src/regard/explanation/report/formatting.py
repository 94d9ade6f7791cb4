"""Numbers and the names of metrics as a person reads them."""

import math
from collections.abc import Sequence
from typing import TypeGuard

from regard.evaluation.registry import METRICS, score_label


def label_of(score: str) -> str:
    """Returns the name of a score, or of another objective of a sweep, for a heading.

    Example:
        >>> label_of("exact_match"), label_of("entity_f1_PER"), label_of("bleu"), label_of("parameters")
        ('Exact match', 'Entity F1 (PER)', 'BLEU', 'Parameters')
    """
    name = score_label(score)
    return METRICS.find(score).label if score in METRICS.names() else name[:1].upper() + name[1:]


def is_finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def format_number(value: float | None, digits: int) -> str:
    return f"{value:.{digits}f}" if is_finite(value) else "-"


def format_score(value: float | None, interval: Sequence[float] | None, digits: int) -> str:
    """Returns a number with its interval, where there is one."""
    spread = "" if interval is None else f" [{', '.join(format_number(end, digits) for end in interval)}]"
    return format_number(value, digits) + spread


def format_magnitude(value: float | None) -> str:
    """Returns a count in three digits.

    Example:
        >>> [format_magnitude(count) for count in (87, 10_234.0, 812_345, 1_204_352)]
        ['87', '10.2 k', '812 k', '1.20 M']
    """
    if not is_finite(value):
        return "-"
    for size, sign in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size * 0.9995:
            return _three_digits(value / size) + sign
    return f"{value:.0f}"


def format_seconds(seconds: float | None) -> str:
    """Returns a duration.

    Example:
        >>> [format_seconds(seconds) for seconds in (7.25, 61.2, 754.0, 8000.0)]
        ['7.2 s', '61 s', '12.6 min', '2.2 h']
    """
    if not is_finite(seconds):
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def format_memory(mebibytes: float | None) -> str:
    """Returns a size of memory.

    Example:
        >>> format_memory(512.0), format_memory(1536.0)
        ('512 MiB', '1.50 GiB')
    """
    if not is_finite(mebibytes):
        return "-"
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{_three_digits(mebibytes / 1024)} GiB"


def format_p(p: float | None) -> str:
    """Returns a p-value to three decimals."""
    if not is_finite(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def format_list(names: Sequence[str], *, last: str) -> str:
    """Returns names separated by commas, the last one by a word.

    Example:
        >>> format_list(["rnn", "lstm", "gru"], last="and")
        'rnn, lstm and gru'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _three_digits(value: float) -> str:
    return f"{value:.{max(0, 2 - int(math.log10(max(value, 1.0))))}f}"
