"""What every codec must satisfy, those of the package and those of registered tasks alike."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.codecs import Codec, ImageConfig, LabelCodec, NumberCodec, PixelCodec, TextCodec
from regard.data.codecs.codec import read_codecs, write_codecs
from regard.data.codecs.episodes import EpisodeCodec
from regard.data.codecs.events import EventCodec
from regard.data.codecs.graphs import GraphCodec
from regard.data.codecs.properties import MoleculeCodec, PropertyCodec
from regard.data.codecs.series import SeriesCodec
from regard.data.codecs.trees import TreeCodec
from regard.data.formats.trees import parse_tree
from regard.errors import CheckpointError
from regard.tasks import TASKS
from regard.tasks.token_classification.task import TagCodec

TEXTS = ["The dog runs.", "Der Hund rennt!", "ein Satz mit 42 Wörtern", "  zwei  Leerzeichen "]
MANY = [f"{'abcdefgh'[number % 7 :]}{number} of {number * number}" for number in range(300)]
EPISODE = (
    '{"observations": [[0.5, 1.0], [1.5, -2.0], [0.25, 3.0]], "actions": [1, 0, 1], "rewards": [1.0, 0.5, 0.0], '
    '"terminated": true}'
)
TREE = "(S (NP (DT the) (NN sea)) (VP (VBZ calls)))"
IMAGE = ImageConfig(size=6, patch_size=3, channels=1)


@dataclass(frozen=True)
class Case:
    """A codec, and values that it encodes without loss."""

    fit: Callable[[Path], Codec]
    values: Callable[[Path], Sequence[Any]]
    decoded: Callable[[Sequence[Any]], Sequence[Any]] = list
    """What the values become once encoded and decoded."""


def fit_text(kind: str) -> Callable[[Path], Codec]:
    return lambda folder: TextCodec.fit(TEXTS * 3, kind=kind, num_characters=300, vocab_size=VOCABULARIES.get(kind))


def image_paths(folder: Path) -> list[str]:
    paths = [folder / f"{seed}.png" for seed in range(3)]
    for seed, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 6)).astype(np.uint8)).save(path)
    return [str(path) for path in paths]


def pixels_of(paths: Sequence[str]) -> list[Any]:
    return [np.asarray(Image.open(path))[None].tolist() for path in paths]


VOCABULARIES = {"bpe": 300, "unigram": 60, "bytes": 300}
CASES = {
    **{kind: Case(fit_text(kind), lambda folder: TEXTS[:3]) for kind in ("bpe", "characters", "bytes", "words")},
    "unigram": Case(fit_text("unigram"), lambda folder: TEXTS[:2]),
    "large unigram": Case(
        lambda folder: TextCodec.fit(MANY, kind="unigram", num_characters=0, vocab_size=300), lambda folder: MANY[:2]
    ),
    "labels": Case(lambda folder: LabelCodec.fit(["b", "a", "10", "9"]), lambda folder: ["9", "b", "a"]),
    "several labels": Case(
        lambda folder: LabelCodec.fit(["b, a", ",", "c"], separator=","), lambda folder: ["a, c", "", "b"]
    ),
    "numbers": Case(lambda folder: NumberCodec.fit(["1", "2.5"]), lambda folder: ["3", "-1.5", "7.25", "1e+10"]),
    "entities": Case(
        lambda folder: TagCodec.fit([["B-PER", "I-PER", "O"]], has_entities=True),
        lambda folder: ["O B-PER I-PER", "B-PER", ""],
    ),
    "tags": Case(
        lambda folder: TagCodec.fit([["DET", "NOUN"], ["NOUN"]], has_entities=False), lambda folder: ["NOUN DET"]
    ),
    "pixels": Case(
        lambda folder: PixelCodec(IMAGE), image_paths, lambda paths: pixels_of(paths)
    ),
    "properties": Case(
        lambda folder: PropertyCodec.fit(["1;5", "3;", ";7"], ["a", "b"]), lambda folder: ["2.5;", "1;5"]
    ),
    "binary properties": Case(lambda folder: PropertyCodec.fit(["no", "yes"], ["a"]), lambda folder: ["yes", "no"]),
    "molecules": Case(lambda folder: MoleculeCodec(), lambda folder: ["CCO", "c1ccccc1"], lambda values: ["", ""]),
    "series": Case(
        lambda folder: SeriesCodec(columns=("a", "b"), means=(0.0, 1.0), stds=(1.0, 2.0), scales=(1.0, 1.0)),
        lambda folder: ["1.5,20 1.75,nan", "-3,0.25"],
    ),
    "events": Case(
        lambda folder: EventCodec.fit(
            ['[[0, null], [1.5, "visit", 2], [4, "relapse", 3], [6, null]]'], unit="", values=["marker"]
        ),
        lambda folder: ['[[0.0, null, null], [2.5, "relapse", 2.0], [5.0, "visit", null], [7.5, null, null]]'],
    ),
    "episodes": Case(lambda folder: EpisodeCodec.fit([EPISODE]), lambda folder: [EPISODE]),
    "graphs": Case(
        lambda folder: GraphCodec.fit(['{"nodes": ["a", "b"], "edges": [[0, 1, [2.5]]]}']),
        lambda folder: ['{"nodes":["b","a","b"],"edges":[[0,2,[1.25]],[1,2,[-3.0]]]}', '{"nodes":["a"],"edges":[]}'],
    ),
    "trees": Case(
        lambda folder: TreeCodec.fit([parse_tree(TREE)]), lambda folder: [TREE, "(NP (NN sea))"],
        lambda values: [["S", "NP", "VP"], ["NP"]],
    ),
    "graphs-of-numbers": Case(
        lambda folder: GraphCodec.fit(['{"nodes": [[1, 2], [3, 5]], "edges": [[0, 1, "x"]]}']),
        lambda folder: ['{"nodes":[[0.5,7.25],[2.0,-1.5]],"edges":[[0,1,"x"]]}'],
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def plain(values: Sequence[Any]) -> list[Any]:
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


def test_every_codec_of_a_task_has_a_case(tmp_path: Path):
    types = {type(case.fit(tmp_path)) for case in CASES.values()}
    assert {codec for task in TASKS for codec in task.codec_types.values()} <= types


def test_values_are_restored(case: Case, tmp_path: Path):
    codec, values = case.fit(tmp_path), case.values(tmp_path)
    encoded = codec.encode(values)
    assert len(encoded) == len(values)
    assert all(isinstance(number, int) for ids in encoded for number in ids)
    assert plain(codec.decode(encoded)) == case.decoded(values)
    assert codec.encode([]) == []
    for value, ids in zip(values, encoded, strict=True):
        assert codec.encode([value]) == [ids], "the encoding of a value depends on no other"


def test_a_codec_is_restored_from_json(case: Case, tmp_path: Path):
    codec, values = case.fit(tmp_path), case.values(tmp_path)
    again = type(codec).from_json(codec.to_json())
    assert again.to_json() == codec.to_json()
    json.loads(codec.to_json())
    assert again.encode(values) == codec.encode(values)
    assert plain(again.decode(codec.encode(values))) == plain(codec.decode(codec.encode(values)))
    write_codecs(tmp_path / "codecs", {"mine": codec})
    (found,) = read_codecs(tmp_path / "codecs", {"mine": type(codec)}).values()
    assert found.to_json() == codec.to_json()
    with pytest.raises(CheckpointError, match=r"other\.json"):
        read_codecs(tmp_path / "codecs", {"other": type(codec)})


def test_a_damaged_file_is_named(case: Case, tmp_path: Path):
    for text in ("", "[]", '{"x": 1}', "{"):
        (tmp_path / "mine.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"mine\.json"):
            read_codecs(tmp_path, {"mine": type(case.fit(tmp_path))})
