"""Image generation: what is read, bits per dimension by hand, generated images and their neighbors."""

import base64
import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.golden.data import lines
from tests.tiny import TRANSFORMER, Tiny, tiny

from regard.data.settings import DataConfig
from regard.errors import ConfigError, DataError
from regard.evaluation import find_metric
from regard.evaluation.examples import Examples
from regard.generation import GenerationConfig
from regard.tasks import make_task
from regard.tasks.image_generation.task import ImageGenerationSettings, nearest_images
from regard.tasks.task import EvaluationData
from regard.training.defaults import with_model_defaults

SMALL = {**TRANSFORMER, "components": 3, "neighborhood": 2}


def made(folder: Path, **settings) -> Tiny:
    return tiny("image-generation", lines(folder, 20), preset="pixel-gpt-tiny", model=SMALL, size=5, **settings)


def write(folder: Path, sizes: list[tuple[int, int]], mode: str = "RGB") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3)).astype(np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{number}.png")


def prepared(folder: Path, **settings):
    task = make_task(ImageGenerationSettings(**settings))
    data = task.prepare(DataConfig(train=[str(folder)], splits=[0.6, 0.3, 0.1]))
    return task.with_codecs(data.codecs), data


def test_bits_per_dimension_by_hand():
    examples = Examples(losses=[12 * math.log(2), 30 * math.log(2)], num_tokens=[4, 6])
    assert find_metric("bits_per_dimension").count(examples).value == pytest.approx(42 / 10)


@pytest.mark.parametrize("levels", [256, 32, 2])
def test_likelihoods_are_those_of_eight_bits(tmp_path, levels):
    """By hand: the probability of the level of each value, and of the value among those of its level."""
    own = made(tmp_path, levels=levels)
    model, rows = own.build(std=0.3), own.data.held_out["valid"][:3]
    found = own.likelihoods(model, rows)
    for (path, _), loss, count in zip(rows, found.losses, found.counts, strict=True):
        image = Image.open(path).convert("L").resize((5, 5), Image.Resampling.BILINEAR)
        values = [value * levels // 256 for value in np.asarray(image).ravel().tolist()]
        start = levels + 2  # no class
        logits = model.decode(torch.tensor([[start, *values[:-1]]]))[0].detach()
        by_hand = -sum(float(row.log_softmax(dim=0)[value]) for row, value in zip(logits, values, strict=True))
        assert loss == pytest.approx(by_hand + 25 * math.log(256 / levels), rel=1e-5)
        assert count == 25


def test_a_model_that_knows_nothing_of_two_levels_needs_eight_bits(tmp_path):
    own = made(tmp_path, levels=2)
    model = own.build(own.settings.model.changed(components=0))
    for output in model.head.outputs:
        torch.nn.init.zeros_(output.weight)
    found = own.likelihoods(model, own.data.held_out["valid"])
    scores = own.task.scores(EvaluationData(own.data.held_out["valid"], [], found))
    assert scores[0].value == pytest.approx(8.0, rel=1e-5)
    assert "levels:2" in scores[0].signature


def test_labels_are_read_in_training_except_for_some_and_not_in_evaluation(tmp_path):
    own = made(tmp_path)
    batches = own.batches(batch_tokens=10 * 25)
    starts = torch.cat([batches.batch(number).starts for number in range(10 * batches.per_epoch)])
    shares = [float((starts == number).float().mean()) for number in range(3)]
    assert shares == pytest.approx([0.375, 0.375, 0.25], abs=0.08)
    assert all((batch.starts == 2).all() for batch in own.task.validation_batches(own.data))
    plain = made(tmp_path / "plain", by_class=False)
    assert plain.task.shape.num_classes == 0


def test_mirrored_images_are_those_of_the_batch(tmp_path):
    own = made(tmp_path, flips=True)
    model = own.build(std=0.3)
    batch = own.batches(batch_tokens=10 * 25).batch(0)
    assert batch.is_mirrored is not None
    pixels = torch.stack([
        image.flip(2) if mirrored else image for image, mirrored in zip(batch.pixels, batch.is_mirrored, strict=True)
    ])  # fmt: skip
    expected = model.losses(own.task.quantized(pixels), batch.starts).sum()
    torch.testing.assert_close(own.task.loss(model, batch), expected, rtol=1e-5, atol=1e-5)


def test_the_size_and_the_colors_are_those_of_the_files(tmp_path):
    write(tmp_path / "gray" / "a", [(6, 6)] * 4, "L")
    write(tmp_path / "gray" / "b", [(6, 6)] * 4, "L")
    task, data = prepared(tmp_path / "gray")
    assert (task.image.size, task.image.channels) == (6, 1)
    files = {np.asarray(Image.open(path)).tobytes() for path in (tmp_path / "gray").rglob("*.png")}
    assert {image.tobytes() for image in data.train.pixels(np.arange(len(data.train)))} <= files, "nothing is resized"
    write(tmp_path / "color" / "a", [(7, 7)] * 8)
    task, _ = prepared(tmp_path / "color")
    assert (task.image.size, task.image.channels) == (7, 3)
    write(tmp_path / "large" / "a", [(70, 90)] * 8)
    assert prepared(tmp_path / "large")[0].image.size == 32


def test_a_folder_of_images_without_labels_is_read(tmp_path):
    write(tmp_path / "flat", [(6, 6)] * 12)
    task, data = prepared(tmp_path / "flat")
    assert len(data.train) + len(data.valid) + len(data.held_out["test"]) == 12
    assert task.shape.num_classes == 0
    with pytest.raises(ConfigError, match=r"task\.by_class needs at least two labels, got 1"):
        type(task)(task.settings.changed(by_class=True), data.codecs).check(model=None, is_finetuned=False, held_out={})


def test_images_of_different_sizes_are_told_unless_they_are_resized(tmp_path):
    write(tmp_path / "mixed" / "a", [(6, 6), (6, 6), (8, 7), (6, 6), (6, 6), (6, 6)])
    with pytest.raises(DataError, match=r"one size, got 6 x 6 pixels \(0\.png\) and 8 x 7 \(2\.png\): set task\.size"):
        prepared(tmp_path / "mixed")
    task, _ = prepared(tmp_path / "mixed", size=5)
    assert task.image.size == 5
    write(tmp_path / "same" / "a", [(6, 6)] * 8)
    task, _ = prepared(tmp_path / "same")
    with pytest.raises(DataError, match=r"a model of images of 6 x 6 pixels, and .*2\.png has 8 x 7"):
        task.read_pixels([str(tmp_path / "mixed" / "a" / "2.png")])


def test_drawn_images_have_the_nearest_training_images_beside_them(tmp_path):
    own = made(tmp_path)
    model, config = own.build(std=0.3), GenerationConfig(temperature=1.0, seed=4)
    drawn = own.task.draw(model, config, count=3, label="bars", training=own.data)
    again = own.task.draw(model, config.changed(seed=5), count=1, label="bars")
    assert again[0].png == drawn[1].png, "an image depends on its seed alone"
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(drawn[0].png)))).astype(float)
    stored = own.data.train.pixels(np.arange(len(own.data.train)))[:, 0].astype(float)
    distances = np.sort(np.sqrt(((stored - pixels) ** 2).mean(axis=(1, 2))))
    assert [each.distance for each in drawn[0].nearest] == pytest.approx(distances[:3], rel=1e-4)
    assert {each.label for each in drawn[0].nearest} <= {"bars", "stripes"}


def test_a_training_image_is_nearest_to_itself(tmp_path):
    store = made(tmp_path).data.train
    rows = np.array([3, 1])
    places, distances = nearest_images(store.pixels(rows), store, number=1)
    np.testing.assert_array_equal(store.pixels(places[:, 0]), store.pixels(rows))
    np.testing.assert_allclose(distances, 0.0, atol=0.1)


def test_classes_and_numbers_of_images_are_checked(tmp_path):
    own = made(tmp_path)
    model, config = own.build(), GenerationConfig(temperature=1.0)
    with pytest.raises(ConfigError, match=r"no class is called 'bar'; did you mean bars\?"):
        own.task.draw(model, config, count=1, label="bar")
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        own.task.draw(model, config, count=0)
    plain = made(tmp_path / "plain", by_class=False)
    with pytest.raises(ConfigError, match="trained without classes, got the class 'bars'"):
        plain.task.draw(plain.build(), config, count=1, label="bars")
    with pytest.raises(ConfigError, match=r"model of pixels, such as pixel-gpt-tiny, got model\.family=recurrent"):
        tiny("image-generation", tmp_path / "images", preset="lstm-tiny").build()


def test_a_few_levels_have_a_softmax_unless_a_mixture_is_set(tmp_path):
    own = made(tmp_path, levels=16)
    values = {"task": {"name": "image-generation", "levels": 16}, "train": {"device": "cpu"}}
    assert with_model_defaults(values, own.data)["model"] == {"components": 0}
    assert with_model_defaults({**values, "model": {"components": 4}}, own.data)["model"]["components"] == 4


def test_a_mixture_is_for_values_in_between_and_a_softmax_for_black_and_white(tmp_path):
    values = {"task": {"name": "image-generation"}, "train": {"device": "cpu"}}
    assert with_model_defaults(values, made(tmp_path).data)["model"] == {"components": 10}
    for number in range(8):
        pixels = np.random.default_rng(number).choice([0, 90, 255], (6, 6)).astype(np.uint8)
        (tmp_path / "ink").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "ink" / f"{number}.png")
    assert with_model_defaults(values, prepared(tmp_path / "ink")[1])["model"] == {"components": 0}
