"""Images: decoding, invalid files, and where images with labels come from."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.formats.images import ImageConfig, has_labeled_images, read_image
from regard.data.image_sources import open_images
from regard.data.settings import DataConfig
from regard.errors import DataError
from regard.tasks import detect_task

IMAGE = ImageConfig(size=8, patch_size=4, resampling="nearest")
GRAY = IMAGE.changed(channels=1)


def noise(path: Path, seed: int = 0, *, size: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3)).astype(np.uint8)).save(path)
    return path


@pytest.fixture
def by_label(tmp_path: Path) -> Path:
    """Two labels with three images each, one of them a folder deeper, and other files."""
    folder = tmp_path / "images"
    for seed, name in enumerate(["cat/1.png", "cat/2.JPG", "cat/old/3.png", "dog/1.png", "dog/2.bmp", "dog/3.webp"]):
        noise(folder / name, seed)
    (folder / "cat" / "notes.txt").write_text("not an image")
    (folder / ".hidden").mkdir()
    noise(folder / ".hidden" / "1.png")
    return folder


def test_pixels_are_by_channel_row_and_column(tmp_path):
    numbers = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    Image.fromarray(numbers).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png", IMAGE), numbers.transpose(2, 0, 1))


def test_gray_images_of_8_and_16_bits_are_the_same(tmp_path):
    shades = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(shades).save(tmp_path / "8.png")
    Image.fromarray(shades.astype(np.uint16) * 257).save(tmp_path / "16.png")
    for name in ("8.png", "16.png"):
        assert np.array_equal(read_image(tmp_path / name, GRAY), shades[None])
        assert np.array_equal(read_image(tmp_path / name, IMAGE), np.stack([shades] * 3))


def test_a_palette_with_transparency_is_read(tmp_path):
    noise(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        image.quantize(7).save(tmp_path / "palette.png", transparency=bytes([0, 100, 255]))
    with Image.open(tmp_path / "palette.png") as image:
        expected = np.asarray(image.convert("RGBA"))[..., :3].transpose(2, 0, 1)
    assert np.array_equal(read_image(tmp_path / "palette.png", IMAGE), expected)


def test_an_error_names_what_is_wrong_with_a_file(tmp_path, monkeypatch):
    noise(tmp_path / "whole.png", size=40)
    noise(tmp_path / "whole.jpg", size=40)
    for ending in ("png", "jpg"):
        content = (tmp_path / f"whole.{ending}").read_bytes()
        (tmp_path / f"cut.{ending}").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "script.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (tmp_path / "empty.png").touch()
    Image.fromarray(np.ones((8, 8), np.float32)).save(tmp_path / "float.tiff")
    messages = {
        "cut.png": "is a damaged image",
        "cut.jpg": "is a damaged image",
        "text.png": "is not an image of a known format: PNG, JPEG",
        "script.png": "is not an image of a known format",
        "empty.png": "is empty",
        "none.png": "there is no file",
        "float.tiff": "has 32 bits per channel, only 8 and 16 are supported",
        ".": "is a folder",
    }
    for name, words in messages.items():
        with pytest.raises(DataError) as error:
            read_image(tmp_path / name, IMAGE)
        assert words in str(error.value), (name, str(error.value))
        assert "\n" not in str(error.value)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)  # of which twice as many are an error, and more a warning
    for size in (40, 60):
        with pytest.raises(DataError, match="has more than 1,000 pixels, and is not read"):
            read_image(noise(tmp_path / "large.png", size=size), IMAGE)


def test_folders_are_labels(by_label):
    source = open_images(DataConfig(train=[str(by_label)]))
    assert [(Path(path).name, label) for path, label in source.train.rows] == [
        ("1.png", "cat"), ("2.JPG", "cat"), ("3.png", "cat"), ("1.png", "dog"), ("2.bmp", "dog"), ("3.webp", "dog"),
    ]  # fmt: skip
    assert source.valid is None
    assert detect_task(DataConfig(train=[str(by_label)]))[0] == "image-classification"


def test_a_folder_may_have_a_folder_for_each_set(by_label, tmp_path):
    shutil.copytree(by_label, tmp_path / "all" / "train")
    shutil.copytree(by_label / "cat", tmp_path / "all" / "val" / "cat")
    source = open_images(DataConfig(train=[str(tmp_path / "all")]))
    assert len(source.train.rows) == 6
    assert source.valid is not None
    assert [label for _, label in source.valid.rows] == ["cat"] * 3
    given = open_images(DataConfig(train=[str(tmp_path / "all")], test=[str(by_label)]))
    assert given.test is not None
    assert len(given.test.rows) == 6


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl"])
def test_paths_in_a_table_are_relative_to_it(by_label, monkeypatch, tmp_path, name: str):
    rows = [("cat/1.png", "cat"), (str(by_label / "dog" / "2.bmp"), "dog")]
    mark = "\t" if name.endswith("tsv") else ","
    lines = [f'{{"label": "{label}", "image": "{path}"}}' for path, label in rows] if name.endswith("jsonl") else [
        mark.join(row) for row in [("image", "label"), *rows]
    ]  # fmt: skip
    (by_label / name).write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    config = DataConfig(train=[f"images/{name}"])
    source = open_images(config)
    assert source.train.rows == [(str(by_label / "cat" / "1.png"), "cat"), (str(by_label / "dog" / "2.bmp"), "dog")]


def test_the_hash_depends_on_content_and_labels_and_not_on_paths(by_label, tmp_path):
    def hash_of(folder: Path) -> str:
        return open_images(DataConfig(train=[str(folder)])).content_hash()

    first, moved = hash_of(by_label), tmp_path / "moved"
    shutil.copytree(by_label, moved)
    assert hash_of(moved) == first
    noise(moved / "cat" / "1.png", 99)
    assert hash_of(moved) != first
    shutil.copy(by_label / "cat" / "1.png", moved / "cat" / "1.png")
    (moved / "dog").rename(moved / "fox")
    assert hash_of(moved) != first


def test_folders_without_images_are_not_recognized(tmp_path):
    (tmp_path / "texts" / "a").mkdir(parents=True)
    (tmp_path / "texts" / "a" / "b.txt").write_text("text")
    assert not has_labeled_images(tmp_path / "texts")
    assert not has_labeled_images(tmp_path / "nowhere")
