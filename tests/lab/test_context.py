"""The study of long contexts measures what it says: bytes by hand, losses, distances, and what its table shows."""

import csv
import math
from pathlib import Path

import pytest
import torch

from regard.errors import ConfigError, DataError
from regard.lab import run_study
from regard.lab.context.kinds import (
    ContextSizes,
    draw_passkeys,
    growth_exponent,
    held_out_losses,
    kinds_of_attention,
    measure_cost,
    read_text,
    study_context,
    synthetic_text,
)
from regard.nn.losses import IGNORED

TINY = ContextSizes(
    num_layers=2, model_dim=8, num_heads=2, window=4, lengths=(16, 32), repeats=1, text_length=16, text_steps=2,
    text_batch=2, num_windows=5, passkey_length=17, passkey_steps=2, passkey_batch=2, num_sequences=7, num_passkeys=3,
)  # fmt: skip


@pytest.mark.parametrize("length", [16, 32])
def test_the_bytes_of_a_cache_are_those_of_its_positions(length: int):
    kinds = kinds_of_attention(TINY)
    costs = {name: measure_cost(values, length, TINY, seed=0) for name, values in kinds.items()}
    position = 2 * 8 * 8  # a key and a value of width 8, in float64
    assert costs["full"].state == 2 * length * position
    assert costs["window"].state == 2 * TINY.window * position
    assert costs["window + full"].state == (length + TINY.window) * position
    # The window, every fourth position, and one entry for those not stored twice.
    assert costs["strided"].state == 2 * (TINY.window + length // TINY.window + 1) * position
    assert costs["linear"].state == 2 * 8 * (2 * 4 * 4 + 2 * 4)
    assert all(cost.seconds > 0 and cost.stored > 0 for cost in costs.values())


def test_a_passkey_is_the_target_at_all_later_positions():
    batch = draw_passkeys(11, 17, num_passkeys=3, distance=5)
    places = (batch.inputs < 3).nonzero()
    assert places[:, 1].tolist() == [11] * 11
    assert (batch.targets[:, :12] == IGNORED).all()
    assert (batch.targets[:, 12:] == batch.inputs[:, 11:12]).all()
    assert set((draw_passkeys(500, 5, num_passkeys=3).inputs < 3).nonzero()[:, 1].tolist()) == {0, 1, 2, 3}


def test_quadratic_cost_has_an_exponent_of_two():
    assert growth_exponent([1, 10, 30], [7.0, 3 * 100, 3 * 900]) == pytest.approx(2.0)


def test_tested_distances_lie_on_both_sides_of_the_reach_of_the_windows():
    assert TINY.reach == 6
    assert min(TINY.distances) < TINY.reach < max(TINY.distances) < TINY.passkey_length


def test_an_untrained_model_predicts_held_out_windows_about_uniformly(tmp_path: Path):
    (tmp_path / "a.txt").write_text("abc" * 200)
    text = read_text(str(tmp_path / "a.txt"))
    assert text[:4].tolist() == [97, 98, 99, 97]
    losses = held_out_losses({}, text, TINY, seed=0)
    assert losses.shape == (TINY.num_windows,)
    assert abs(float(losses.mean()) - math.log(256)) < 1.0


def test_a_name_has_one_color_in_a_document():
    text = bytes(synthetic_text(200, seed=3).tolist()).decode()
    sentences = [sentence.split(" has a ") for sentence in text.split(" hat. ")[:-1]][:6]
    colors: dict[str, str] = {}
    assert all(colors.setdefault(name, color) == color for name, color in sentences)


def test_the_study_is_whole_and_its_table_is_written_as_csv(tmp_path: Path):
    (tmp_path / "a.txt").write_text("abcd" * 100)
    study = study_context(data=str(tmp_path / "a.txt"), sizes=TINY)
    cost, quality, passkeys = study.tables
    assert len(cost.rows) == 2 * 6
    assert [row[0] for row in quality.rows] == [row[0] for row in passkeys.rows] == [*kinds_of_attention(TINY)]
    assert quality.rows[0][2] is None
    assert any("does not grow from 16 to 32 positions with window, linear" in finding for finding in study.findings)
    rows = list(csv.DictReader(study.to_csv().splitlines()))
    assert len(rows) == sum(len(table.columns) * len(table.rows) for table in study.tables)
    full = next(row for row in rows if row["table"] == quality.name and row["column"] == "perplexity")
    assert (float(full["value"]), float(full["low"]), float(full["high"])) == quality.rows[0][1]


def test_text_that_is_too_short_and_studies_without_data_are_one_line(tmp_path: Path):
    (tmp_path / "a.txt").write_text("abc")
    with pytest.raises(DataError, match=r"must have at least 192 bytes for this study, got 3$"):
        study_context(data=str(tmp_path / "a.txt"), sizes=TINY)
    with pytest.raises(ConfigError, match=r"the study softmax generates its data and reads no file, got a\.txt"):
        run_study("softmax", data="a.txt")


@pytest.mark.slow
def test_windows_do_not_retrieve_beyond_their_reach():
    from regard.lab.context.kinds import count_passkeys

    torch.set_default_dtype(torch.float32)
    sizes = ContextSizes(passkey_length=32, window=8, passkey_steps=120, model_dim=16)
    found = {name: count_passkeys(kinds_of_attention(sizes)[name], sizes, seed=0) for name in ("full", "window")}
    assert min(found["full"]) > 50
    assert found["window"][0] > 50
    assert found["window"][-1] < 30
