"""Explanations of models and of results: attention maps, attributions, reports and pages.

    maps = regard.attention_maps(run, "4 March 2025")
    maps.save("attention.html")

The public names are imported when they are first used: attention maps need torch, and most reports do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.explanation.attention import AttentionMaps, model_attention_maps, record_attention
    from regard.explanation.attribution import Attribution, Highlights
    from regard.explanation.report import Report, Summary, SummaryTable, write_report

_FOLDERS = {
    "AttentionMaps": "attention",
    "Attribution": "attribution",
    "Highlights": "attribution",
    "Report": "report",
    "Summary": "report",
    "SummaryTable": "report",
    "model_attention_maps": "attention",
    "record_attention": "attention",
    "write_report": "report",
}

__all__ = [
    "AttentionMaps",
    "Attribution",
    "Highlights",
    "Report",
    "Summary",
    "SummaryTable",
    "model_attention_maps",
    "record_attention",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _FOLDERS:
        raise AttributeError(f"module 'regard.explanation' has no attribute {name!r}")
    return getattr(import_module(f"regard.explanation.{_FOLDERS[name]}"), name)
