"""Tasks beyond text, by plain defaults, against the goals of the literature.

    python benchmarks/beyond_text.py [--minutes 5] [--row etth1-96] [--seed 0] [--device cuda] [--json]

Series, events, captions, generated images, molecules, graphs and control: `kinds/` has a module for each, which says
what its rows are. A row has a budget, a seed and a device, and no other setting than those that define it. A row whose
data is missing is not measured.
"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.harness import make_parser, parse, print_results
from kinds import captions, control, events, graphs, molecules, pixels, series

KINDS: tuple[Any, ...] = (series, events, captions, pixels, molecules, graphs, control)
KIND_OF = {row: kind for kind in KINDS for row in kind.ROWS}


def measure_all(options: Any) -> Iterator[dict[str, Any]]:
    for row in options.row or [row for kind in KINDS for row in (kind.TINY_ROWS if options.tiny else kind.ROWS)]:
        with tempfile.TemporaryDirectory() as folder:
            found = KIND_OF[row].measure(row, Path(folder), options)
        if found is None:
            continue
        if not options.json:
            print(KIND_OF[row].row_text(found), flush=True)
        yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--row", action="append", choices=list(KIND_OF), help="only this row; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    for kind in KINDS:
        if hasattr(kind, "add_options"):
            kind.add_options(parser)
    options = parse(parser, arguments)
    logging.basicConfig(level=logging.ERROR)
    print_results(options, list(measure_all(options)))


if __name__ == "__main__":
    main()
