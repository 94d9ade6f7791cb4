"""Recognition: pictures, batches, losses, answers, and learning to tell bars from stripes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.data.config import DataConfig, PictureConfig
from regard.data.preparation import Prepared
from regard.errors import BadRowsError, ConfigError, DataError
from regard.models.heads import HeadConfig
from regard.models.transformer_config import TransformerConfig
from regard.runs.reporting import summary
from regard.tasks.objective import Objective
from regard.tasks.recognition import Recognition
from regard.tasks.task import Likelihoods
from regard.training.resolution import with_learned

FORM = PictureConfig(size=8, patch_size=4, channels=1)
SHAPE = TransformerConfig.read(
    {"num_layers": 1, "decoder_layers": 0, "model_dim": 22, "num_heads": 2, "feedforward_dim": 37, "dropout": 0.0}
)
TASK = Recognition()


def draw(folder: Path, each: int) -> Path:
    """Bright lines on noise, upright (bars) or lying (stripes)."""
    numbers = np.random.default_rng(0)
    for label in ("bars", "stripes"):
        (folder / label).mkdir(parents=True)
        for number in range(each):
            shades = numbers.integers(0, 60, (8, 8))
            shades[:, numbers.integers(8)] += 180
            shades = shades if label == "bars" else shades.T
            Image.fromarray(shades.astype(np.uint8)).save(folder / label / f"{number}.png")
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pictures(tmp_path) -> Path:
    return draw(tmp_path / "pictures", 30)


def prepared(folder: Path, **options) -> tuple[Prepared, DataConfig]:
    config = DataConfig(train=[str(folder)], picture=FORM, **options)
    data = TASK.prepare(config)
    return data, with_learned(config, data)


def model_for(data: Prepared, config: DataConfig):
    return TASK.build_model(SHAPE, data.tokenizer, data=config, head=HeadConfig(dropout=0.0))


def test_an_epoch_meets_every_picture_once_and_no_two_are_in_the_same_order(pictures):
    data, config = prepared(pictures)
    batches = TASK.batches(data, config, batch_tokens=40, seed=3)
    epochs = [
        torch.cat([batches.batch(epoch * batches.per_epoch + number).pixels for number in range(batches.per_epoch)])
        for epoch in range(2)
    ]
    assert batches.per_epoch == 7
    assert len(epochs[0]) == len(data.train) == 54
    first, second = (sorted(picture.flatten().tolist() for picture in epoch) for epoch in epochs)
    assert first == second
    assert not torch.equal(epochs[0], epochs[1])


def test_batches_filled_to_a_shape_cost_what_they_did(pictures):
    data, config = prepared(pictures, balance=True, splits=[0.8, 0.1, 0.1])
    model = model_for(data, config)
    plain = TASK.batches(data, config, batch_tokens=35, seed=3)
    shaped = TASK.batches(data, config, batch_tokens=35, seed=3, has_few_shapes=True)
    shapes = {tuple(shaped.batch(number).pixels.shape) for number in range(plain.per_epoch)}
    assert len(shapes) == 1
    assert len({plain.batch(number).num_targets for number in range(plain.per_epoch)}) > 1
    for number in range(plain.per_epoch):
        one, other = plain.batch(number), shaped.batch(number)
        assert one.num_targets == other.num_targets
        torch.testing.assert_close(TASK.loss(model, one), TASK.loss(model, other))


def test_two_readings_that_agree_cost_what_one_does(pictures):
    data, config = prepared(pictures)
    model, batch = model_for(data, config), TASK.batches(data, config, batch_tokens=40, seed=3).batch(0)
    torch.testing.assert_close(TASK.loss(model, batch, Objective(consistency=2.0)), TASK.loss(model, batch))


def test_held_out_pictures_are_the_same_from_the_store_and_from_their_files(pictures):
    data, config = prepared(pictures)
    model, device = model_for(data, config).eval(), torch.device("cpu")
    stored = TASK.negative_log_likelihoods(model, TASK.held_out(data, config), device)
    rows = TASK.rows_as_batches(data.held_out["valid"], data.tokenizer, config)
    read: Likelihoods = TASK.negative_log_likelihoods(model, rows, device)
    assert len(stored.losses) == len(data.held_out["valid"]) == 3
    torch.testing.assert_close(torch.tensor(stored.losses), torch.tensor(read.losses))


def test_the_same_picture_under_two_names_is_in_one_set(pictures):
    for label in ("bars", "stripes"):
        for path in sorted((pictures / label).iterdir()):
            (pictures / label / f"copy-{path.name}").write_bytes(path.read_bytes())
    data, _ = prepared(pictures, splits=[0.5, 0.25, 0.25])
    sets = [{Path(path).read_bytes() for path, _ in data.held_out[role]} for role in ("valid", "test")]
    assert not sets[0] & sets[1]
    assert sum(map(len, data.held_out.values())) == 2 * sum(map(len, sets))


def test_pictures_that_moved_are_found_where_they_are_now(pictures, tmp_path):
    first, _ = prepared(pictures)
    moved = pictures.rename(tmp_path / "moved")
    second, _ = prepared(moved)
    assert second.content_hash == first.content_hash
    assert all(Path(path).is_file() for path, _ in second.held_out["valid"])


def test_pictures_that_cannot_be_read_are_counted_and_can_be_passed_over(pictures):
    for number in range(3):
        (pictures / "bars" / f"{number}.png").write_text("nothing")
    with pytest.raises(BadRowsError, match=r"3 of 60 pictures cannot be read: .*0.png is no picture.*with 2 more"):
        prepared(pictures)
    data, _ = prepared(pictures, skip_bad=True)
    assert len(data.train) + sum(map(len, data.held_out.values())) == 57
    assert any("skipped: 3 of 60 pictures" in note for note in data.notes)


def test_what_cannot_be_learned_is_told(pictures, tmp_path):
    with pytest.raises(ConfigError, match="a picture has one label"):
        prepared(pictures, label_separator=",")
    alone = tmp_path / "alone"
    alone.mkdir()
    (pictures / "bars").rename(alone / "bars")
    with pytest.raises(DataError, match="have the label 'bars': there is nothing to tell apart"):
        prepared(alone)


SMALL = {
    "model": {"num_layers": 1, "model_dim": 32, "num_heads": 2, "feedforward_dim": 64, "dropout": 0.0},
    "data": {"picture": FORM.model_dump(), "splits": [0.6, 0.2, 0.2]},
    "train": {"max_steps": 150, "device": "cpu", "batch_tokens": 160, "learning_rate": 3e-3, "evaluate_every": 50},
}


@pytest.mark.slow
def test_it_learns_to_tell_bars_from_stripes_and_another_run_goes_on_from_it(tmp_path):
    torch.set_default_dtype(torch.float32)
    folder = draw(tmp_path / "pictures", 150)
    run = regard.train(str(folder), out=tmp_path / "run", model="vit-tiny", settings=SMALL, show_progress=False)
    assert run.settings.task == "recognition"
    assert run.test().scores["accuracy"].value >= 0.95
    new = draw(tmp_path / "new" / "pictures", 3)
    assert run.predict(str(new / "stripes" / "1.png")) == "stripes"
    found = json.loads(json.dumps(run.evaluate(new).to_json()))
    assert found["rows"] == 6
    assert (tmp_path / "run" / "report.html").is_file()
    assert summary(run)["pictures"] == "8 x 8 pixels in patches of 4 x 4"

    few = {"train": {"max_steps": 2, "device": "cpu", "learning_rate": 1e-6}, "data": {"splits": [0.6, 0.2, 0.2]}}
    tuned = regard.finetune(
        run.path, str(new), out=tmp_path / "tuned", method="lora", settings=few, show_progress=False
    )
    assert tuned.settings.data.picture == FORM
    asked = [str(path) for path in sorted((folder / "bars").iterdir())]
    assert tuned.predict(asked) == run.predict(asked)  # the head goes on, too
    with pytest.raises(ConfigError, match="only one of them reads pictures"):
        regard.finetune(run.path, [("a text", "label")] * 30, out=tmp_path / "no", task="classification", settings=few)
