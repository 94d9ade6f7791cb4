"""Images and captions from tables, COCO's annotations and memory: one row for each image."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.builtin import find_builtin
from regard.data.caption_sources import open_captions, read_captions
from regard.data.formats.images import ImageConfig, read_image, to_data_uri
from regard.data.settings import DataConfig
from regard.errors import ConfigError, DataError

CAPTIONS = {"a.png": ["a dark one", "nothing to see"], "b.png": ["a bright one"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for number, name in enumerate(CAPTIONS):
        Image.new("RGB", (5, 7), (100 * number, 9, 9)).save(tmp_path / "images" / name)
    return tmp_path


def opened(path: Path, **options: object):
    return open_captions(DataConfig(train=[str(path)]), **options)  # pyright: ignore[reportArgumentType]


def as_dict(rows: list[tuple[str, str]]) -> dict[str, list[str]]:
    return {Path(name).name: [caption.text for caption in read_captions(text)] for name, text in rows}


def test_all_captions_of_an_image_are_one_row_whatever_the_format(folder: Path):
    pairs = [(name, text) for name, texts in CAPTIONS.items() for text in texts]
    (folder / "t.csv").write_text("image,caption\n" + "".join(f"{name},{text}\n" for name, text in pairs))
    (folder / "t.tsv").write_text("".join(f"{name}\t{text}\n" for name, text in pairs))
    (folder / "t.jsonl").write_text("".join(json.dumps({"image": n, "caption": c}) + "\n" for n, c in pairs))
    coco = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(CAPTIONS)],
        "annotations": [
            {"id": 9, "image_id": number, "caption": text}
            for number, texts in enumerate(CAPTIONS.values())
            for text in texts
        ],
    }
    (folder / "t.json").write_text(json.dumps(coco))
    for name in ("t.csv", "t.tsv", "t.jsonl", "t.json"):
        found = opened(folder / name).train.rows
        assert as_dict(found) == CAPTIONS, name
        assert all(Path(path).is_file() for path, _ in found)
    in_memory = open_captions(DataConfig(), [(str(folder / "images" / name), text) for name, text in pairs])
    assert as_dict(in_memory.train.rows) == CAPTIONS


def test_images_may_be_in_a_folder_that_is_named(folder: Path, tmp_path: Path):
    table = tmp_path / "elsewhere" / "t.csv"
    table.parent.mkdir()
    table.write_text("image,caption\na.png,a dark one\n")
    assert Path(opened(table, folder=str(folder / "images")).train.rows[0][0]).is_file()
    with pytest.raises(ConfigError, match=r"task\.images must be a folder"):
        opened(table, folder="nowhere")


def test_scenes_have_two_captions_each_and_boxes_around_what_they_name():
    rows = open_captions(DataConfig(train=["scenes"], num_rows=40)).train.rows
    assert len(rows) == 20
    for image, text in rows:
        pixels = read_image(image, ImageConfig()).transpose(1, 2, 0).astype(int)
        captions = read_captions(text)
        assert len(captions) == 2
        for caption in captions:
            words = caption.text.split()
            named = [words[each.first : each.end] for each in caption.grounding]
            assert {name for name, _ in named} <= {"red", "green", "blue", "yellow", "purple", "white"}
            for each in caption.grounding:
                left, top, right, bottom = (round(32 * side) for side in each.box)
                inside = np.abs(pixels[max(0, top) : bottom, max(0, left) : right] - 40).max(axis=2) > 40
                assert inside.mean() > 0.3, caption
    seeds = [list(find_builtin("scenes").generate(6, seed)) for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_table_of_scenes_is_the_same_data(tmp_path: Path):
    data = find_builtin("scenes")
    lines = ["\t".join(data.columns), *("\t".join(row) for row in data.generate(20, 0))]
    (tmp_path / "scenes.tsv").write_text("\n".join(lines) + "\n")
    assert (
        opened(tmp_path / "scenes.tsv").train.rows
        == open_captions(DataConfig(train=["scenes"], num_rows=20)).train.rows
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": [], "annotations": [{}]}, "must have a list 'images'"),
        ({"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "a"}]}, "image 1 has no file_name"),
        ({"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 2, "caption": "a"}]}, "image_id 2"),
        ({"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1}]}, "annotation 1 has no caption"),
    ],
)
def test_annotations_that_do_not_fit_together_are_an_error(tmp_path: Path, content: dict, message: str):
    (tmp_path / "coco.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "coco.json")


def test_boxes_that_are_not_boxes_are_an_error():
    for wrong in ("x", "[[0, 1, 0.5, 0.5]]", "[[0, 9, 0, 0, 1, 1]]", "[[0, 1, 0.5, 0.5, 0.5, 1]]", "[3]"):
        with pytest.raises(DataError, match="the grounding of a caption must be"):
            open_captions(DataConfig(), [("a.png", "a dog", wrong)])


def test_a_data_uri_is_read_as_its_file(tmp_path: Path):
    pixels = np.random.default_rng(0).integers(0, 255, (7, 5, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    config = ImageConfig(size=8)
    expected = read_image(tmp_path / "a.png", config)
    assert (read_image(to_data_uri(pixels), config) == expected).all()
    for wrong in ("data:image/png,abc", "data:image/png;base64,???", "data:image/png;base64,AAAA"):
        with pytest.raises(DataError):
            read_image(wrong, config)
    whole = base64.b64decode(to_data_uri(pixels).partition(",")[2])
    with pytest.raises(DataError, match="damaged"):
        read_image("data:image/png;base64," + base64.b64encode(whole[:-40]).decode(), config)
