"""What a comparison comes to, in words: which models are best, and how numbers are said."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.evaluation.paired import SIGNIFICANCE

LOWER_IS_BETTER = frozenset({"perplexity", "bits_per_byte", "pseudo_perplexity"})
METRIC_NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "entity_f1": "entity F1",
    "answer_f1": "answer F1",
    "macro_f1": "macro F1",
}
"""Where the name in print is more than the name in settings with spaces."""
LONGEST_LIST = 64
"""A title names the models where their names together are no longer than this, and counts them otherwise."""
MOST_EQUALS = 3
"""The verdict names so many equals of the best model, and counts more."""


def ranked(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The models, best first; one whose score is not finite comes last."""
    sign = 1.0 if is_lower_better(comparison) else -1.0

    def order(model: Mapping[str, Any]) -> float:
        value = model["score"]["value"]
        return sign * value if is_finite(value) else math.inf

    return sorted(comparison["models"], key=order)


def is_lower_better(comparison: Mapping[str, Any]) -> bool:
    """Whether the model with the lowest score is the best."""
    return comparison["metric"] in LOWER_IS_BETTER


def unit_of(comparison: Mapping[str, Any]) -> str:
    """What scores are computed on, many of them."""
    return "stretches of text" if comparison["is_text"] else "rows"


def size_unit_of(comparison: Mapping[str, Any]) -> str:
    """What training sets are counted in."""
    return "documents" if comparison["is_text"] else "rows"


def leaders(comparison: Mapping[str, Any]) -> list[str]:
    """The name of the best model and of those that cannot be told apart from it, best first."""
    best, *others = ranked(comparison)
    rivals = _rivals(comparison, best["name"])
    equals = [model for model in others if not rivals.get(model["name"], True) and is_finite(model["score"]["value"])]
    return [model["name"] for model in (best, *equals)]


def title_of(comparison: Mapping[str, Any]) -> str:
    """What was compared, on what, and under which budget."""
    names = [model["name"] for model in comparison["models"]]
    together = _listed(names, last="and")
    models = together if len(together) <= LONGEST_LIST else f"{len(names)} models"
    return f"{models} on {comparison['data']}, {comparison['budget']}"


def lead_of(comparison: Mapping[str, Any]) -> str:
    """What was scored, on how many rows or stretches, from how many seeds."""
    num_seeds = len(comparison["seeds"])
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
    metric = metric_name(comparison["metric"]) + (" (lower is better)" if is_lower_better(comparison) else "")
    examples = f"{comparison['rows']:,} {unit_of(comparison)}"
    return f"{comparison['task']}, {metric} on the same {examples}, {seeds} for each model"


def verdict_of(comparison: Mapping[str, Any]) -> str:
    """One sentence: which model scores best, and whether its lead is more than chance."""
    best, *equals = leaders(comparison)
    value = ranked(comparison)[0]["score"]["value"]
    if not is_finite(value):
        return "No model has a finite score."
    metric, said = metric_name(comparison["metric"]), say(value, digits_for(comparison))
    score = f"with the lowest {metric}, {said}" if is_lower_better(comparison) else f"{said} {metric}"
    says = f"{best} scores best, {score}"
    num_others = len(comparison["models"]) - 1
    if not equals and (num_others == 0 or len(_rivals(comparison, best)) < num_others):
        return f"{says}."
    if not equals:
        return f"{says}; its lead over {'the other' if num_others == 1 else 'each of the others'} is real."
    if len(equals) <= MOST_EQUALS:
        named = _listed(equals, last="or")
    elif len(equals) < num_others:
        named = f"{len(equals)} of the others"
    else:
        named = "any of the others"
    return f"{says}, but cannot be told apart from {named}."


def explanation_of(comparison: Mapping[str, Any]) -> str:
    """How the pairs were tested, and what that says."""
    num_pairs, num_seeds = len(comparison["pairs"]), len(comparison["seeds"])
    is_text = comparison["is_text"]
    beside = "likelihood beside likelihood" if is_text else "output beside output"
    corrected = f", corrected by Holm's method for the {num_pairs} pairs" if num_pairs > 1 else ""
    beyond = (
        "The interval also covers other seeds."
        if num_seeds > 1
        else "With one seed this speaks of the models as they were trained, not of other seeds."
    )
    dependence = (
        " Stretches of one text are not independent, so intervals are rather too narrow and p too small."
        if is_text
        else ""
    )
    return (
        f"Each pair was tested on the same {comparison['rows']:,} {unit_of(comparison)}, {beside} (a paired test); "
        f"p is the chance of so large a difference between equal models{corrected}. A difference is called real where "
        f"p is below {SIGNIFICANCE:g} and its interval leaves 0 out. {beyond}{dependence}"
    )


def metric_name(metric: str) -> str:
    """The name of a score in print.

    Example:
        >>> metric_name("exact_match"), metric_name("bleu")
        ('exact match', 'BLEU')
    """
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def digits_for(comparison: Mapping[str, Any]) -> int:
    """Decimals for every score: 3 below 10 and 2 from there on, and one more where an interval is finer than that."""
    intervals = [model["score"]["interval"] for model in comparison["models"]]
    values = [model["score"]["value"] for model in comparison["models"]]
    usual = 2 if max((abs(value) for value in values if is_finite(value)), default=0.0) >= 10 else 3
    narrowest = min((high - low for low, high in filter(None, intervals) if high > low), default=1.0)
    return usual if narrowest >= 2 * 10.0**-usual else usual + 1


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def say(value: float | None, digits: int) -> str:
    return f"{value:.{digits}f}" if value is not None and math.isfinite(value) else "-"


def say_score(value: float | None, interval: Sequence[float] | None, digits: int) -> str:
    """A number with its interval, where there is one."""
    spread = "" if interval is None else f" [{', '.join(say(end, digits) for end in interval)}]"
    return say(value, digits) + spread


def say_count(value: float | None) -> str:
    """A count in three digits or so.

    Example:
        >>> [say_count(count) for count in (87, 10_234.0, 812_345, 1_204_352)]
        ['87', '10.2 k', '812 k', '1.20 M']
    """
    if value is None or not math.isfinite(value):
        return "-"
    for size, sign in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size * 0.9995:
            return _three_digits(value / size) + sign
    return f"{value:.0f}"


def say_seconds(seconds: float | None) -> str:
    """A span of time.

    Example:
        >>> [say_seconds(seconds) for seconds in (7.25, 61.2, 754.0, 8000.0)]
        ['7.2 s', '61 s', '12.6 min', '2.2 h']
    """
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def say_memory(mebibytes: float | None) -> str:
    """A size of memory.

    Example:
        >>> say_memory(512.0), say_memory(1536.0)
        ('512 MiB', '1.50 GiB')
    """
    if mebibytes is None or not math.isfinite(mebibytes):
        return "-"
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{_three_digits(mebibytes / 1024)} GiB"


def say_chance(p: float | None) -> str:
    """A probability of the test, to three places."""
    if p is None or not math.isfinite(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _rivals(comparison: Mapping[str, Any], name: str) -> dict[str, bool]:
    """For each model that was tested against the one called `name`, whether their difference is real."""
    pairs = comparison["pairs"]
    return {pair["b"]: pair["is_real"] for pair in pairs if pair["a"] == name} | {
        pair["a"]: pair["is_real"] for pair in pairs if pair["b"] == name
    }


def _three_digits(value: float) -> str:
    return f"{value:.{max(0, 2 - int(math.log10(max(value, 1.0))))}f}"


def _listed(names: Sequence[str], *, last: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"
