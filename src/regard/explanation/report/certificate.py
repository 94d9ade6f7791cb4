"""The certificate of a run as a summary: sentences, a table of bounds and a figure."""

from collections.abc import Iterator

from regard.explanation.report.summary import Summary, SummaryTable
from regard.selection.certificate import Certificate

_COLUMNS = ("rows", "candidates", "bound", "from", "to")
_QUESTION = "How far can this score be trusted?"


def certificate_summary(certificate: Certificate, *, command: str = "") -> Summary:
    """Returns the certificate; `command` is the one that prints it."""

    def figure():
        from regard.explanation.report.plots import plot_certificate

        return plot_certificate(certificate)

    rows = list(_rows(certificate))
    table = SummaryTable(
        name="bounds",
        columns=_COLUMNS,
        rows=[cells for cells, _ in rows],
        left=(0, 2),
        bold=[number for number, (_, is_best) in enumerate(rows) if is_best],
        note="candidates: models and checkpoints that were evaluated on the rows; in bold, the bound to report",
    )
    return Summary(
        title=f"Certificate of {certificate.name}",
        subtitle=_QUESTION,
        findings=certificate.sentences(),
        tables=[table] if rows else [],
        settings=[
            ("confidence", f"{100 * (1 - certificate.delta):g} % (delta {certificate.delta:g})"),
            ("evaluations on validation rows", f"{certificate.num_evaluations:,}"),
            ("openings of the test set", f"{len(certificate.openings):,}"),
            ("last hash of the ledger", certificate.head[:16]),
        ],
        command=command,
        footnote=f"last hash of the ledger: {certificate.head}",
        figure=figure,
    )


def _rows(certificate: Certificate) -> Iterator[tuple[list[str], bool]]:
    """Yields a row for each bound, and whether it is the one to report."""
    for judged in certificate.shown:
        rows = f"{judged.num_examples:,} {judged.rows_label}"
        for bound in judged.bounds:
            low, high = bound.interval
            is_best = judged.best is not None and bound.name == judged.best.name
            yield [rows, f"{judged.num_candidates:,}", bound.name, f"{low:.4f}", f"{high:.4f}"], is_best
