"""Captions of pictures.

`scenes` is `regard.train("scenes", minutes=N)`: exact match and pointing accuracy on the test pictures. `flickr8k` has
the 753 training pictures of flickr8k-1000 and the official test pictures: BLEU-4 by a beam of 5 of a captioner on the
frozen features of an imported image encoder, `--image-encoder`, with attention and with the mean of its feature map.
"""

import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import regard
from regard.data.builtin import find_builtin
from regard.evaluation import find_metric
from regard.evaluation.paired import compare_all
from regard.settings import merge_tables

GOALS = {"scenes": 0.98, "flickr8k": 14.0}
"""Exact match, and BLEU-4."""
ROWS = TINY_ROWS = tuple(GOALS)
FLICKR = Path(__file__).parents[3] / "shared" / "data" / "flickr8k-1000"
TINY_CAPTIONS: dict[str, Any] = {"model": {"model_dim": 16, "num_layers": 1}, "task": {"decoder_dim": 16}}


def add_options(parser: Any) -> None:
    parser.add_argument("--image-encoder", help="the run folder of an image encoder, for flickr8k")


def measure(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
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
        "goal": GOALS[row],
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
        "goal": GOALS["flickr8k"],
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


def row_text(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())
