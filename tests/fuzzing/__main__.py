"""The command line: `python -m tests.fuzzing --executions 1000000 --seed 0`."""

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

if "atheris" in sys.argv:  # which records the branches of what is imported from here on
    import atheris  # pyright: ignore[reportMissingImports]

    with atheris.instrument_imports(
        include=["regard.data.formats", "regard.text", "regard.interop", "regard.selection"]
    ):
        pass

import torch
from tests.fuzzing.engine import FuzzedReader, Report, fuzz, fuzz_by_coverage
from tests.fuzzing.readers import all_readers

from regard.logging import quiet_logs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description="Fuzz the readers of regard.")
    parser.add_argument("--executions", type=int, default=100_000, help="inputs in all, shared by weight")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="names of readers, or parts of them")
    parser.add_argument("--out", type=Path, help="a folder for the inputs that are findings, and the report as JSON")
    parser.add_argument("--seconds", type=float, help="the longest time of one reader")
    parser.add_argument("--jobs", type=int, default=1, help="readers that are fuzzed side by side")
    parser.add_argument("--engine", choices=("own", "atheris"), default="own", help="atheris: one reader, by coverage")
    parser.add_argument("--list", action="store_true", help="print the names of the readers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    readers = [each for each in all_readers() if not options.only or any(part in each.name for part in options.only)]
    if options.list:
        print("\n".join(f"{each.name} ({each.weight})" for each in readers))
        return 0
    if options.engine == "atheris":
        if len(readers) != 1:
            parser.error(f"--engine atheris fuzzes one reader: name it by --only, of {len(readers)}")
        fuzz_by_coverage(readers[0], options.executions, seed=options.seed, out=options.out or Path("findings"))
    total = sum(each.weight for each in readers)
    reports: list[Report] = []
    print(_HEAD, flush=True)
    counts = {each.name: max(20, round(options.executions * each.weight / total)) for each in readers}

    def run(reader: FuzzedReader) -> Report:
        return fuzz(reader, counts[reader.name], seed=options.seed, out=options.out, seconds=options.seconds)

    for each in readers:  # the corpus is made once, before processes are forked
        each.seeds()
    with quiet_logs(), ThreadPoolExecutor(options.jobs) as pool:
        for report in pool.map(run, readers):
            reports.append(report)
            print(row_of(report), flush=True)
            for each in report.findings:
                print(f"    {each.kind}: {each.detail[:160]} ({each.count:,} times)", file=sys.stderr, flush=True)
    everything = Report(
        reader="all",
        executions=sum(each.executions for each in reports),
        seeds=sum(each.seeds for each in reports),
        corpus=sum(each.corpus for each in reports),
        results=sum(each.results for each in reports),
        seconds=sum(each.seconds for each in reports),
        slowest=max((each.slowest for each in reports), default=0.0),
        findings=[finding for each in reports for finding in each.findings],
    )
    print(row_of(everything))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "report.json").write_text(json.dumps([asdict(each) for each in reports], indent=1))
    return int(bool(everything.findings))


_HEAD = (
    "| reader | corpus | executions | per second | results | findings | slowest (s) |\n"
    "|---|---:|---:|---:|---:|---:|---:|"
)


def row_of(report: Report) -> str:
    """A line of the table."""
    speed = report.executions / report.seconds if report.seconds else 0.0
    share = report.results / report.executions if report.executions else 0.0
    return (
        f"| {report.reader} | {report.corpus:,} | {report.executions:,} | {speed:,.0f} | {share:.0%} "
        f"| {len(report.findings):,} | {report.slowest:.2f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
