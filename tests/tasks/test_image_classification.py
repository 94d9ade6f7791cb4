"""Image classification: batches, splits by content, and learning bars and stripes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden.data import lines
from tests.tiny import Tiny, tiny

import regard
from regard.baselines.linear import check_flips
from regard.data.formats.images import ImageConfig
from regard.errors import BadRowsError, ConfigError, DataError
from regard.runs.report import summarize
from regard.tasks import image_classification
from regard.tasks.content import Prediction
from regard.tasks.task import EvaluationData, Likelihoods, Objective
from regard.training.ema import WeightAverage

IMAGE = ImageConfig(size=8, patch_size=4, channels=1)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return lines(tmp_path)


def prepared(folder: Path, **sections: Any) -> Tiny:
    return tiny("image-classification", folder, preset="vit-tiny", **{"image": IMAGE.model_dump(), **sections})


def test_an_epoch_has_every_image_once_in_an_order_of_its_own(images):
    made = prepared(images, data={"splits": [0.9, 0.05, 0.05]})
    batches = made.batches(batch_tokens=40)
    epochs = [
        torch.cat([batches.batch(epoch * batches.per_epoch + number).pixels for number in range(batches.per_epoch)])
        for epoch in range(2)
    ]
    assert batches.per_epoch == 7
    assert len(epochs[0]) == len(made.data.train) == 54
    first, second = (sorted(image.flatten().tolist() for image in epoch) for epoch in epochs)
    assert first == second
    assert not torch.equal(epochs[0], epochs[1])


def test_padded_batches_have_one_shape(images):
    made = prepared(images, balance=True, data={"splits": [0.8, 0.1, 0.1]})
    plain, padded = (made.batches(batch_tokens=35, has_fixed_shapes=fixed) for fixed in (False, True))
    numbers = range(plain.per_epoch)
    assert len({tuple(padded.batch(number).images().shape) for number in numbers}) == 1
    assert len({plain.batch(number).num_targets for number in numbers}) > 1


def test_images_that_are_resident_on_a_device_are_those_of_the_batch(images, monkeypatch):
    made = prepared(images)
    monkeypatch.setattr(image_classification, "_MOST_BYTES", 0)
    copied = made.batches(batch_tokens=35, has_fixed_shapes=True)
    monkeypatch.undo()
    resident = made.batches(batch_tokens=35, has_fixed_shapes=True)
    for number in range(2 * copied.per_epoch):
        one, other = copied.batch(number), resident.batch(number)
        assert other.pixels is None
        assert torch.equal(one.images(), other.images())
        for first, second in zip(one.tensors()[1:-1], other.tensors()[1:-1], strict=True):
            assert first is second is None or torch.equal(first, second)


def test_resident_images_that_a_linear_probe_has_read_can_be_trained_on(images):
    made = prepared(images)
    model, batch = made.build(), made.batches(batch_tokens=35, has_fixed_shapes=True).batch(0)
    with torch.inference_mode():
        made.task.head_inputs(model, batch)
    made.task.loss(model, batch).backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("family", ["cnn", "vision"])
def test_a_loss_in_bfloat16_is_near_that_in_single_precision(images, family, channels):
    torch.set_default_dtype(torch.float32)
    made = augmented(images, family, channels)
    model, batch = made.build().train(), made.batches(batch_tokens=160, has_fixed_shapes=True).batch(0)
    exact = made.task.loss(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        rough = made.task.loss(model, batch)
    rough.backward()
    # bfloat16 has 8 bits of precision, and the loss is summed over 32 images.
    torch.testing.assert_close(rough, exact.to(rough), rtol=0.02, atol=0.0)
    assert {weight.grad.dtype for weight in model.parameters()} == {torch.float32}


def test_a_step_makes_no_tensor_on_another_device(images):
    """On the meta device a tensor of the CPU, or a number that is read back, is an error as in a CUDA graph."""
    made = augmented(images, "cnn", 3)
    model, batch = made.build().train().to("meta"), made.batches(batch_tokens=160, has_fixed_shapes=True).batch(0)
    moved = batch.with_tensors([None if tensor is None else tensor.to("meta") for tensor in batch.tensors()])
    loss = made.task.loss(model, moved, Objective(label_smoothing=0.1))
    loss.backward()
    WeightAverage(model, 0.9).update(model, torch.zeros((), device="meta"))
    assert loss.device.type == "meta"
    with pytest.raises(RuntimeError):
        made.task.loss(model, replace(moved, offsets=batch.offsets))


def augmented(folder: Path, family: str, channels: int) -> Tiny:
    """A tiny model with every kind of augmentation."""
    preset, shape = {"cnn": ("cnn-tiny", {"model_dim": 8}), "vision": ("vit-tiny", {"num_layers": 1, "dropout": 0.0})}[
        family
    ]
    image = IMAGE.changed(channels=channels).model_dump()
    changes = {"image": image, "crop_padding": 2, "flips": True, "mixup": 0.4, "cutmix": 0.5, "distortion": 0.5,
               "model": shape}  # fmt: skip
    return tiny("image-classification", folder, preset=preset, **changes)


def test_rdrop_is_zero_where_both_passes_agree(images):
    made = prepared(images)
    model, batch = made.build(), made.batches(batch_tokens=40).batch(0)
    torch.testing.assert_close(made.task.loss(model, batch, Objective(rdrop=2.0)), made.task.loss(model, batch))


def test_two_copies_of_an_image_are_in_the_same_set(images):
    for label in ("bars", "stripes"):
        for path in sorted((images / label).iterdir()):
            (images / label / f"copy-{path.name}").write_bytes(path.read_bytes())
    data = prepared(images, data={"splits": [0.5, 0.25, 0.25]}).data
    sets = [{Path(path).read_bytes() for path, _ in data.held_out[role]} for role in ("valid", "test")]
    assert not sets[0] & sets[1]
    assert sum(map(len, data.held_out.values())) == 2 * sum(map(len, sets))


def test_images_that_were_moved_have_their_new_paths(images, tmp_path):
    first = prepared(images).data
    second = prepared(images.rename(tmp_path / "moved")).data
    assert second.content_hash == first.content_hash
    assert all(Path(path).is_file() for path, _ in second.held_out["valid"])


def test_samples_show_the_images_that_a_model_was_wrong_about_first(images):
    made = prepared(images)
    rows = made.data.held_out["valid"]
    outputs = [row[1] if number % 2 else "no" for number, row in enumerate(rows)]
    predictions = [Prediction(row[0], output) for row, output in zip(rows, outputs, strict=True)]
    samples = made.task.samples(None, EvaluationData(rows, predictions, Likelihoods([], [])))
    assert [each["right"] for each in samples] == sorted(each["right"] for each in samples)
    names = {Path(row[0]).name for row in rows}
    for each in samples:
        assert each["image"].startswith("data:image/png;base64,")
        assert each["source"] in names


def test_unreadable_images_are_counted_and_can_be_skipped(images):
    for number in range(3):
        (images / "bars" / f"{number}.png").write_text("nothing")
    with pytest.raises(BadRowsError, match=r"3 of 60 images .*0\.png.* 2 more"):
        prepared(images, data={"skip_bad": False})
    data = prepared(images, data={"skip_bad": True}).data
    few = prepared(images).data  # one in twenty
    assert few.notes == data.notes
    (images / "bars" / "3.png").write_text("nothing")
    with pytest.raises(BadRowsError, match="4 of 60 images"):
        prepared(images)
    assert len(data.train) + sum(map(len, data.held_out.values())) == 57
    assert any("3 of 60 images" in note for note in data.notes)


def test_a_damaged_image_of_the_test_set_is_found_before_the_set_is_opened(images, tmp_path):
    held_out = shutil.copytree(images, tmp_path / "held_out")
    path = held_out / "bars" / "0.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(BadRowsError, match=r"1 of 120 images cannot be read: .*0\.png is"):
        prepared(images, data={"test": [str(held_out)], "skip_bad": False})


def test_images_need_two_labels_and_one_for_each(images, tmp_path):
    with pytest.raises(ConfigError, match=r"task\.label_separator"):
        prepared(images, label_separator=",")
    alone = tmp_path / "alone"
    alone.mkdir()
    (images / "bars").rename(alone / "bars")
    with pytest.raises(DataError, match="'bars'"):
        prepared(alone)


def test_a_seed_determines_crops_mirror_images_and_mixtures(images):
    made = prepared(images, crop_padding=2, flips=True, mixup=0.4)
    one, same, other = (made.batches(batch_tokens=40, seed=seed).batch(3) for seed in (1, 1, 2))
    drawn = {name for name, tensor in zip(one.tensor_names, one.tensors(), strict=True) if tensor is not None}
    assert drawn == {"pixels", "targets", "weights", "offsets", "is_mirrored", "shares"}
    for name in drawn:
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.shares, other.shares)
    assert one.offsets.abs().max() <= 2
    assert all(tensor is None for tensor in next(made.task.validation_batches(made.data)).tensors()[3:])


def test_a_shift_is_smaller_than_an_image(images):
    with pytest.raises(ConfigError, match=r"task.crop_padding must be less than the size of images, got 8 and 8"):
        prepared(images, crop_padding=8)


def test_a_mixture_has_the_loss_of_both_labels(images):
    made = prepared(images, mixup=0.4)
    model, batch = made.build(), made.batches(batch_tokens=40).batch(0)
    whole = replace(batch, shares=torch.ones(len(batch.targets)))
    torch.testing.assert_close(made.task.loss(model, whole), made.task.loss(model, replace(batch, shares=None)))
    swapped = replace(batch, shares=torch.zeros(len(batch.targets)))
    rolled = replace(batch, pixels=batch.pixels.roll(1, 0), targets=batch.targets.roll(1), shares=None)
    torch.testing.assert_close(made.task.loss(model, swapped), made.task.loss(model, rolled))


def test_each_label_of_a_mixture_has_its_own_weight(images):
    for path in sorted((images / "bars").iterdir())[:19]:
        path.unlink()
    made = prepared(images, mixup=0.4, balance=True)
    model, batches = made.build(), made.batches(batch_tokens=35, has_fixed_shapes=True)
    found = [batches.batch(number) for number in range(batches.per_epoch)]
    assert any((batch.weights == 0).any() for batch in found), "one is filled up"
    assert all(batch.weights.unique().numel() > 1 for batch in found)
    for batch in found:
        swapped = replace(batch, shares=torch.zeros_like(batch.weights))
        weights = batch.weights.roll(1)
        if batch.weights[-1] == 0:  # the rows that fill up repeat the first one, which is then mixed with itself
            weights[0] = batch.weights[0]
        weights = weights.where(batch.weights > 0, 0.0)
        rolled = replace(batch, pixels=batch.images().roll(1, 0), targets=batch.targets.roll(1), weights=weights,
                         shares=None, rows=None, resident=None)  # fmt: skip
        torch.testing.assert_close(made.task.loss(model, swapped), made.task.loss(model, rolled))


@torch.no_grad()
def test_the_embedding_of_an_image_and_of_its_mirror_image_are_averaged(images):
    made = prepared(images, average_flips=True)
    model, pixels = made.build(std=0.3), made.batches(batch_tokens=40).batch(0).pixels
    torch.testing.assert_close(model(pixels), model(pixels.flip(3)))
    model.averages_flips = False
    assert not torch.allclose(model(pixels), model(pixels.flip(3)))


def test_flips_are_for_data_in_which_orientation_does_not_matter():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 600)
    sides = rng.integers(0, 60, (600, 1, 12, 12)).astype(np.uint8)
    for number, label in enumerate(labels):
        sides[number, :, :, slice(0, 4) if label else slice(8, 12)] += 90
    allowed, reason = check_flips(sides, labels)
    assert not allowed
    assert reason.startswith("a linear model is right for 100 % of the images and 0 % mirrored")
    rows = sides.swapaxes(2, 3)
    assert check_flips(rows, labels) == (True, "a linear model is right for 100 % of the images and 100 % mirrored")
    noise = rng.integers(0, 256, (60, 3, 12, 12)).astype(np.uint8)
    assert check_flips(noise, labels[:60])[0]
    assert not check_flips(np.repeat(noise[:, :1], 3, axis=1), labels[:60])[0]


SMALL = {
    "model": {"num_layers": 1, "model_dim": 32, "num_heads": 2, "feedforward_dim": 64, "dropout": 0.0},
    "task": {"image": IMAGE.model_dump()},
    "data": {"splits": [0.6, 0.2, 0.2]},
    "train": {"max_steps": 200, "device": "cpu", "batch_tokens": 160, "learning_rate": 3e-3, "evaluate_every": 100},
}


@pytest.mark.slow
def test_bars_and_stripes_are_learned_and_the_model_is_fine_tuned(tmp_path):
    torch.set_default_dtype(torch.float32)
    folder = lines(tmp_path, 150)
    run = regard.train(str(folder), out=tmp_path / "run", model="vit-tiny", settings=SMALL, show_progress=False)
    assert run.task.name == "image-classification"
    assert run.test().scores["accuracy"].value >= 0.95
    new = lines(tmp_path / "new", 3)
    found = json.loads(json.dumps(run.evaluate(new).to_json()))
    assert found["rows"] == 6
    assert (tmp_path / "run" / "report.html").is_file()
    assert summarize(run)["images"] == "8 x 8 pixels, patches of 4 x 4"

    few = {"train": {"max_steps": 2, "device": "cpu", "learning_rate": 1e-6}, "data": {"splits": [0.6, 0.2, 0.2]}}
    tuned = regard.finetune(
        run.path, str(new), out=tmp_path / "tuned", method="lora", settings=few, show_progress=False
    )
    assert tuned.task.image == IMAGE
    paths = [str(path) for path in sorted((folder / "bars").iterdir())]
    assert tuned.predict(paths) == run.predict(paths)  # the head is copied from the base, too
    with pytest.raises(ConfigError, match=r"tokens.*pixels"):
        regard.finetune(
            run.path, [("a text", "label")] * 30, out=tmp_path / "no", task="text-classification", settings=few
        )
