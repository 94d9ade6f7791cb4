"""Pictures: decoding, what can be wrong with a file, and where pictures with labels come from."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.config import DataConfig, PictureConfig
from regard.data.picture_sources import has_pictures, open_pictures
from regard.data.pictures import read_picture
from regard.errors import DataError
from regard.tasks import guess_task

FORM = PictureConfig(size=8, patch_size=4, resampling="nearest")
GREY = FORM.changed(channels=1)


def noise(path: Path, seed: int = 0, *, size: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3)).astype(np.uint8)).save(path)
    return path


@pytest.fixture
def by_label(tmp_path: Path) -> Path:
    """Two labels with three pictures each, one of them a folder deeper, and what is no picture."""
    folder = tmp_path / "pictures"
    for seed, name in enumerate(["cat/1.png", "cat/2.JPG", "cat/old/3.png", "dog/1.png", "dog/2.bmp", "dog/3.webp"]):
        noise(folder / name, seed)
    (folder / "cat" / "notes.txt").write_text("no picture")
    (folder / ".hidden").mkdir()
    noise(folder / ".hidden" / "1.png")
    return folder


def test_pixels_are_those_of_the_file_by_channel_row_and_column(tmp_path):
    numbers = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    Image.fromarray(numbers).save(tmp_path / "a.png")
    assert np.array_equal(read_picture(tmp_path / "a.png", FORM), numbers.transpose(2, 0, 1))


def test_shades_of_grey_of_eight_and_sixteen_bits_are_the_same(tmp_path):
    shades = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(shades).save(tmp_path / "8.png")
    Image.fromarray(shades.astype(np.uint16) * 257).save(tmp_path / "16.png")
    for name in ("8.png", "16.png"):
        assert np.array_equal(read_picture(tmp_path / name, GREY), shades[None])
        assert np.array_equal(read_picture(tmp_path / name, FORM), np.stack([shades] * 3))


def test_a_palette_with_a_transparent_color_is_read(tmp_path):
    noise(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        image.quantize(7).save(tmp_path / "palette.png", transparency=bytes([0, 100, 255]))
    with Image.open(tmp_path / "palette.png") as image:
        expected = np.asarray(image.convert("RGBA"))[..., :3].transpose(2, 0, 1)
    assert np.array_equal(read_picture(tmp_path / "palette.png", FORM), expected)


def test_what_is_wrong_with_a_file_is_told_in_one_line(tmp_path, monkeypatch):
    noise(tmp_path / "whole.png", size=40)
    noise(tmp_path / "whole.jpg", size=40)
    for ending in ("png", "jpg"):
        content = (tmp_path / f"whole.{ending}").read_bytes()
        (tmp_path / f"cut.{ending}").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "script.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (tmp_path / "empty.png").touch()
    Image.fromarray(np.ones((8, 8), np.float32)).save(tmp_path / "float.tiff")
    said = {
        "cut.png": "is a damaged picture",
        "cut.jpg": "is a damaged picture",
        "text.png": "is no picture of a known format: PNG, JPEG",
        "script.png": "is no picture of a known format",
        "empty.png": "is empty",
        "none.png": "there is no file",
        "float.tiff": "has 32 bits a pixel, only 8 and 16 are read",
        ".": "is a folder",
    }
    for name, words in said.items():
        with pytest.raises(DataError) as error:
            read_picture(tmp_path / name, FORM)
        assert words in str(error.value), (name, str(error.value))
        assert "\n" not in str(error.value)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)  # of which twice as many are an error, and more a warning
    for size in (40, 60):
        with pytest.raises(DataError, match="has more than 1,000 pixels, and is not read"):
            read_picture(noise(tmp_path / "large.png", size=size), FORM)


def test_folders_are_labels(by_label):
    source = open_pictures(DataConfig(train=[str(by_label)]))
    assert [(Path(path).name, label) for path, label in source.train.rows] == [
        ("1.png", "cat"), ("2.JPG", "cat"), ("3.png", "cat"), ("1.png", "dog"), ("2.bmp", "dog"), ("3.webp", "dog"),
    ]  # fmt: skip
    assert source.valid is None
    assert guess_task(DataConfig(train=[str(by_label)])) == "recognition"


def test_a_folder_may_hold_the_sets(by_label, tmp_path):
    shutil.copytree(by_label, tmp_path / "all" / "train")
    shutil.copytree(by_label / "cat", tmp_path / "all" / "val" / "cat")
    source = open_pictures(DataConfig(train=[str(tmp_path / "all")]))
    assert len(source.train.rows) == 6
    assert source.valid is not None
    assert [label for _, label in source.valid.rows] == ["cat"] * 3
    given = open_pictures(DataConfig(train=[str(tmp_path / "all")], test=[str(by_label)]))
    assert given.test is not None
    assert len(given.test.rows) == 6


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl"])
def test_a_table_names_pictures_as_seen_from_itself(by_label, monkeypatch, tmp_path, name: str):
    rows = [("cat/1.png", "cat"), (str(by_label / "dog" / "2.bmp"), "dog")]
    mark = "\t" if name.endswith("tsv") else ","
    lines = [f'{{"label": "{label}", "image": "{path}"}}' for path, label in rows] if name.endswith("jsonl") else [
        mark.join(row) for row in [("image", "label"), *rows]
    ]  # fmt: skip
    (by_label / name).write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    config = DataConfig(train=[f"pictures/{name}"])
    source = open_pictures(config)
    assert source.train.rows == [(str(by_label / "cat" / "1.png"), "cat"), (str(by_label / "dog" / "2.bmp"), "dog")]
    assert guess_task(config) == "recognition"


def test_the_hash_tells_of_content_and_labels_and_not_of_places(by_label, tmp_path):
    def hash_of(folder: Path) -> str:
        return open_pictures(DataConfig(train=[str(folder)])).content_hash()

    first, moved = hash_of(by_label), tmp_path / "moved"
    shutil.copytree(by_label, moved)
    assert hash_of(moved) == first
    noise(moved / "cat" / "1.png", 99)
    assert hash_of(moved) != first
    shutil.copy(by_label / "cat" / "1.png", moved / "cat" / "1.png")
    (moved / "dog").rename(moved / "fox")
    assert hash_of(moved) != first


def test_folders_without_pictures_are_none(tmp_path):
    (tmp_path / "texts" / "a").mkdir(parents=True)
    (tmp_path / "texts" / "a" / "b.txt").write_text("text")
    assert not has_pictures(tmp_path / "texts")
    assert not has_pictures(tmp_path / "nowhere")
