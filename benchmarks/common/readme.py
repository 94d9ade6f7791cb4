"""The README's table of defaults against baselines, from the first table of RESULTS.md.

    python benchmarks/common/readme.py

It replaces what is between `<!-- defaults -->` and `<!-- /defaults -->`; a test compares the two files.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- defaults -->", "<!-- /defaults -->"
KINDS = {
    "TF-IDF": "labeled texts, accuracy",
    "linear CRF": "tagged words, entity F1 or accuracy",
    "target of": "pairs, exact match or BLEU",
    "copy of": "pairs, exact match or BLEU",
    "Kneser-Ney": "plain text, perplexity (lower is better)",
}
"""The kind of data and its metrics, by the first words of the baseline's name."""
VERDICTS = ("better", "no significant difference", "worse")


def main() -> None:
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    table = summarize((ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8"))
    readme.write_text(f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}", encoding="utf-8")


def summarize(results: str) -> str:
    """For each kind of data, the scores `model / baseline` of each data set by verdict; and the counts."""
    cells: dict[str, dict[str, list[str]]] = {kind: {verdict: [] for verdict in VERDICTS} for kind in KINDS.values()}
    for row in first_table(results):
        name, _, score = row["baseline"].rpartition(": ")
        (kind,) = (kind for start, kind in KINDS.items() if name.startswith(start))
        pair = " / ".join(
            f"{value:.3f}" if value < 1 else f"{value:.1f}" for value in (number(row["model"]), number(score))
        )
        cells[kind][row["the model is"].strip("*")].append(f"{row['data']} {pair}")
    lines = [f"| data | {' | '.join(VERDICTS)} |", "|---|---|---|---|"]
    lines += [
        f"| {kind} | {' | '.join('; '.join(found[verdict]) for verdict in VERDICTS)} |" for kind, found in cells.items()
    ]
    counts = {verdict: sum(len(found[verdict]) for found in cells.values()) for verdict in VERDICTS}
    total = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    return "\n".join(lines) + f"\n\nOf {sum(counts.values())} data sets: {total}.\n"


def first_table(text: str) -> list[dict[str, str]]:
    """The rows of the first Markdown table of a text, by the names of its columns."""
    table = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert table is not None
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def number(cell: str) -> float:
    """The first number of a cell."""
    return float(cell.split()[0].replace(",", ""))


if __name__ == "__main__":
    main()
