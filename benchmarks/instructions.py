"""Instruction tuning by LoRA: whether the trained format is followed, and what is forgotten.

    regard import SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    python benchmarks/instructions.py --base smollm2 [--steps 100] [--seed 0] [--json]

`kinds/instructions.py` says what is measured.
"""

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.harness import make_parser, parse, print_results
from kinds import instructions


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=100, help="of 1,024 tokens; 64 are an epoch")
    parser.add_argument("--seed", type=int, default=0)
    instructions.add_options(parser)
    options = parse(parser, arguments)
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        found = instructions.measure(instructions.ROWS[0], Path(folder), options)
    if found is None:
        parser.error("--base must name an imported model, and wikitext-2 must be among the data")
    if not options.json:
        print(instructions.row_text(found), flush=True)
    print_results(options, [found])


if __name__ == "__main__":
    main()
