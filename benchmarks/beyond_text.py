"""Tasks beyond text: forecasts of ETTh1 and ETTh2, captions, by plain defaults, against the goals of the literature.

    python benchmarks/beyond_text.py [--minutes 5] [--row etth1-96] [--seed 0] [--device cuda] [--json]
    python benchmarks/beyond_text.py --row flickr8k --image-encoder RUN

Each row is `regard.train(FILE, minutes=N)` with the horizon and the usual split, 12, 4 and 4 months of 30 days. The
score is the mean squared error of standardized values from every origin of the test part; coverage is that of 90 %
intervals. A row whose data is missing is not measured.

`scenes` is `regard.train("scenes", minutes=N)`: exact match and pointing accuracy on the test pictures. `flickr8k` has
the 753 training pictures of flickr8k-1000 and the official test pictures: BLEU-4 by a beam of 5 of a captioner on the
frozen features of an imported image encoder, `--image-encoder`, with attention and with the mean of its feature map.
"""

import lzma
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import regard
from common.harness import make_parser, parse, print_results
from regard.data.builtin import find_builtin
from regard.evaluation import find_metric
from regard.evaluation.paired import compare_all
from regard.settings import merge_tables

DATA = Path(__file__).parents[2] / "shared" / "data" / "ett"
MONTH = 30 * 24
SPLIT = [12 * MONTH, 4 * MONTH, 4 * MONTH]
GOALS = {
    "etth1-96": 0.368, "etth1-192": 0.400, "etth1-336": 0.420, "etth1-720": 0.440,
    "etth2-96": 0.272, "etth2-192": 0.335, "etth2-336": 0.330, "etth2-720": 0.378,
}  # fmt: skip
"""The mean squared errors to reach."""
TINY_ROWS = ("etth1-96", "etth2-96", "scenes", "flickr8k")
CAPTION_GOALS = {"scenes": 0.98, "flickr8k": 14.0}
"""Exact match, and BLEU-4."""
FLICKR = DATA.parent / "flickr8k-1000"


def measure(row: str, folder: Path, minutes: float, seed: int, device: str) -> dict[str, Any] | None:
    """Train on a row's data, and open its test part."""
    name, horizon = row.split("-")
    path = DATA / f"{name.replace('etth', 'ETTh')}.csv.xz"
    if not path.exists():
        return None
    settings = {"task": {"horizon": int(horizon), "split_rows": SPLIT}}
    run = regard.train(
        path, out=folder / row, minutes=minutes, seed=seed, device=device, settings=settings, show_progress=False
    )
    return describe(row, run)


def measure_tiny(row: str, folder: Path) -> dict[str, Any]:
    """The same on a short series, for two steps."""
    values = np.random.default_rng(0).normal(size=120).cumsum()
    rows = [{"time": step, "value": float(value)} for step, value in enumerate(values)]
    settings = {"task": {"horizon": 4, "input_length": 12, "split_rows": [70, 20, 20]}}
    run = regard.train(rows, out=folder / row, steps=2, device="cpu", settings=settings, show_progress=False)
    return describe(row, run)


def describe(row: str, run: regard.Run) -> dict[str, Any]:
    scores = run.test().scores
    baseline = run.baseline
    return {
        "row": row,
        "mse": scores["mse"].value,
        "interval": scores["mse"].interval,
        "coverage": scores["coverage"].value,
        "goal": GOALS[row],
        "baseline": None if baseline is None else baseline.name,
    }


def measure_captions(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    """Train a captioner of a row, or both of flickr8k, and open its test set."""
    if row == "flickr8k":
        return measure_flickr(folder, options)
    budget: dict[str, Any] = {"minutes": options.minutes, "device": options.device}
    if options.tiny:
        budget = {"steps": 2, "device": "cpu", "settings": TINY_CAPTIONS | {"data": {"num_rows": 200}}}
    run = regard.train("scenes", out=folder / row, seed=options.seed, show_progress=False, **budget)
    scores = run.test().scores
    return {
        "row": row,
        "exact_match": scores["exact_match"].value,
        "interval": scores["exact_match"].interval,
        "pointing": scores["pointing"].value,
        "goal": CAPTION_GOALS[row],
    }


def measure_flickr(folder: Path, options: Any) -> dict[str, Any] | None:
    """Attention over the map against its mean, on the same frozen features, and whether the difference is real."""
    if options.tiny:
        base, settings, budget = tiny_encoder(folder), TINY_CAPTIONS, {"steps": 2, "device": "cpu"}
        rows = list(find_builtin("scenes").generate(120, 0))
        sets = {"train": rows[:60], "dev": rows[60:90], "test": rows[90:]}
    else:
        if options.image_encoder is None or not FLICKR.is_dir():
            return None
        base, settings, budget = options.image_encoder, {}, {"minutes": options.minutes, "device": options.device}
        sets = read_flickr(folder)
    paths = {name: str(write_captions(folder / f"{name}.tsv", rows)) for name, rows in sets.items()}
    tested = {}
    for memory in ("map", "mean"):
        values = merge_tables(settings, {"task": {"memory": memory}})
        run = regard.finetune(
            base, paths["train"], valid=paths["dev"], test=paths["test"], task="captioning", method="head",
            out=folder / memory, seed=options.seed, settings=values, show_progress=False, **budget,
        )  # fmt: skip
        tested[memory] = run.test(beam_size=5)
    bleu = find_metric("bleu")
    (pair,) = compare_all({name: [bleu.count(each.examples)] for name, each in tested.items()})
    scores = tested["map"].scores
    return {
        "row": "flickr8k",
        "bleu": scores["bleu"].value,
        "interval": scores["bleu"].interval,
        "bleu1": scores["bleu1"].value,
        "cider": scores["cider"].value,
        "one_vector": tested["mean"].scores["bleu"].value,
        "difference": pair.difference,
        "p": pair.p,
        "is_significant": pair.is_significant,
        "goal": CAPTION_GOALS["flickr8k"],
    }


def read_flickr(folder: Path) -> dict[str, list[tuple[str, ...]]]:
    """The captions of each official set, with the paths of their pictures."""
    with tarfile.open(FLICKR / "images96.tar") as archive:
        archive.extractall(folder / "pictures", filter="data")
    sets: dict[str, list[tuple[str, ...]]] = {"train": [], "dev": [], "test": []}
    with lzma.open(FLICKR / "captions1000.tsv.xz", "rt", encoding="utf-8") as file:
        for image, name, caption in (line.rstrip("\n").split("\t") for line in file):
            if name in sets:
                sets[name].append((str(folder / "pictures" / image), caption))
    return sets


def write_captions(path: Path, rows: Sequence[tuple[str, ...]]) -> Path:
    lines = ["image\tcaption", *("\t".join(row[:2]) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tiny_encoder(folder: Path) -> Path:
    """An image classifier on two labels, trained for two steps."""
    rows = [(image, ("two", "three")["between" in text]) for image, text, _ in find_builtin("scenes").generate(120, 1)]
    settings = {"model": TINY_CAPTIONS["model"], "task": {"image": {"size": 16}}}
    run = regard.train(rows, out=folder / "encoder", model="cnn", task="image-classification", steps=2, device="cpu",
                       settings=settings, show_progress=False)  # fmt: skip
    return run.path


TINY_CAPTIONS: dict[str, Any] = {"model": {"model_dim": 16, "num_layers": 1}, "task": {"decoder_dim": 16}}


def measure_all(options: Any) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for row in options.row or (TINY_ROWS if options.tiny else [*GOALS, *CAPTION_GOALS]):
            if row in CAPTION_GOALS:
                found = measure_captions(row, Path(folder), options)
            elif options.tiny:
                found = measure_tiny(row, Path(folder))
            else:
                found = measure(row, Path(folder), options.minutes, options.seed, options.device)
            if found is None:
                continue
            if not options.json and row in CAPTION_GOALS:
                print(", ".join(f"{name} {value}" for name, value in found.items()), flush=True)
            elif not options.json:
                low, high = found["interval"] or (float("nan"),) * 2
                print(
                    f"{row:10} MSE {found['mse']:.4f} [{low:.4f}, {high:.4f}], goal {found['goal']:.3f}, "
                    f"coverage {found['coverage']:.3f}",
                    flush=True,
                )
            yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--row", action="append", choices=[*GOALS, *CAPTION_GOALS], help="only this row; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image-encoder", help="the run folder of an image encoder, for flickr8k")
    options = parse(parser, arguments)
    print_results(options, list(measure_all(options)))


if __name__ == "__main__":
    main()
