"""Reports: of a run, its certificate, bounds, comparisons, sweeps and few-shot results.

Each result is described once as plain data (a title, sentences, tables), from which the terminal, the figure and the
page are rendered.
"""

from regard.explanation.report.bounds import bound_summary
from regard.explanation.report.certificate import certificate_summary
from regard.explanation.report.comparison import ComparisonView, draw_curves, write_comparison
from regard.explanation.report.few_shot import draw_few_curve, few_shot_summary
from regard.explanation.report.run_report import Report, update_report, write_report
from regard.explanation.report.summary import SUMMARY_SUFFIXES, Summary, SummaryTable, write_figure_page
from regard.explanation.report.sweep import draw_sweep, sweep_summary, write_sweep

__all__ = [
    "SUMMARY_SUFFIXES",
    "ComparisonView",
    "Report",
    "Summary",
    "SummaryTable",
    "bound_summary",
    "certificate_summary",
    "draw_curves",
    "draw_few_curve",
    "draw_sweep",
    "few_shot_summary",
    "sweep_summary",
    "update_report",
    "write_comparison",
    "write_figure_page",
    "write_report",
    "write_sweep",
]
