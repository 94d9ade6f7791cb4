"""The comparison of several models: a page to keep and to send, tables for the terminal, and a figure.

A comparison is what `compare.json` holds: what was compared on what, a score
with its interval for each of the `models`, a test of each of the `pairs`, and
`samples` of what they wrote. Models keep the user's order, and with it their
colours. The `difference` of a pair is the score of `a` less that of `b`: of bits
per byte and perplexities it is below 0 where `a` is better. Where `is_text`, the
models were not scored on rows but on stretches of a text, which `rows` then
counts, and training sets are counted in documents.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.explanation.comparison_table import TerminalComparison
from regard.explanation.comparison_words import (
    digits_for,
    explanation_of,
    is_lower_better,
    lead_of,
    leaders,
    metric_name,
    ranked,
    size_unit_of,
    title_of,
    unit_of,
    verdict_of,
)
from regard.explanation.templates import write_page

PALETTE = (
    ("#3450b8", "#93a9ff"),
    ("#c25a1c", "#f0a065"),
    ("#02a3a8", "#00dfbe"),
    ("#991085", "#f55ba1"),
    ("#a79404", "#eef14a"),
    ("#223f53", "#bdfdff"),
    ("#6c71cc", "#3b77f5"),
    ("#ad78fe", "#a041be"),
    ("#731c19", "#c04827"),
    ("#f0609a", "#f8b7ff"),
    ("#595a02", "#9b9601"),
    ("#80706a", "#5e7960"),
)
"""The colours of the models in their order, by day and by night: apart also for eyes that miss red, green or blue.

So many are hard to keep apart by colour alone, so each model has one of four shapes besides.
"""


def write_comparison(path: str | os.PathLike[str], comparison: Mapping[str, Any]) -> None:
    """Write the comparison as one HTML file that needs nothing else."""
    _check(comparison)
    metrics = [comparison["metric"], *(name for model in comparison["models"] for name in model.get("scores", ()))]
    data = {
        **comparison,
        "title": title_of(comparison),
        "lead": lead_of(comparison),
        "verdict": verdict_of(comparison),
        "explanation": explanation_of(comparison),
        "metric_names": {metric: metric_name(metric) for metric in metrics},
        "ranking": [model["name"] for model in ranked(comparison)],
        "leaders": leaders(comparison),
        "is_lower_better": is_lower_better(comparison),
        "unit": unit_of(comparison),
        "size_unit": size_unit_of(comparison),
        "digits": digits_for(comparison),
        "palette": PALETTE,
    }
    write_page(
        path,
        "compare.html",
        title=data["title"],
        data=data,
        styles=["style.css", "report.css", "compare.css"],
        scripts=["common.js", "charts.js", "report.js", "model_charts.js", "compare.js", "compare_start.js"],
    )


def draw_comparison(comparison: Mapping[str, Any]) -> TerminalComparison:
    """Tables of the models and of their pairs for a rich console, fitted to its width, with or without colours."""
    _check(comparison)
    return TerminalComparison(comparison)


def draw_curves(comparison: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a PNG or SVG picture of how the models learned, by the suffix of `path`.

    It shows the validation loss over the seconds of training, the score by the
    length of the source or, where there is none, as a whole, and by the size of
    the training set, if several were tried.
    """
    path = Path(path)
    if path.suffix.lower() not in {".png", ".svg"}:
        raise ConfigError(f"the name of a figure must end in .png or .svg, got {path.name!r}")
    _check(comparison)
    # Imported here, since matplotlib takes longer to load than a table takes to print.
    from regard.explanation.comparison_figure import compose
    from regard.explanation.figures import save

    figure = compose(
        comparison["models"],
        title=title_of(comparison),
        metric=metric_name(comparison["metric"]),
        is_lower_better=is_lower_better(comparison),
        size_unit=size_unit_of(comparison),
        colors=[by_day for by_day, _ in PALETTE],
    )
    save(figure, path)


def _check(comparison: Mapping[str, Any]) -> None:
    """Names hold the parts of a comparison together."""
    names = [model["name"] for model in comparison["models"]]
    if not names:
        raise ConfigError("a comparison needs at least one model, got none")
    if len(set(names)) < len(names):
        raise ConfigError(f"the models of a comparison must have different names, got {', '.join(names)}")
    for pair in comparison["pairs"]:
        if not {pair["a"], pair["b"]} <= set(names):
            raise ConfigError(f"a pair must be of {', '.join(names)}, got {pair['a']!r} and {pair['b']!r}")
