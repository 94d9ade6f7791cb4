"""Attention maps: their shapes, their averages, their files, and errors about what is not there."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regard.errors import ConfigError
from regard.explanation import AttentionMaps
from regard.explanation.pages import page_data
from regard.explanation.tokens import visible


def test_rows_and_columns_are_the_tokens_of_queries_and_keys(maps: AttentionMaps):
    assert maps.kinds == ("encoder", "decoder", "cross")
    assert maps.rows("encoder") == maps.columns("encoder") == maps.columns("cross") == maps.source_tokens
    assert maps.rows("decoder") == maps.rows("cross") == maps.target_tokens
    assert maps.columns("decoder") == maps.target_inputs
    assert maps.columns("decoder")[0] == "<s>"


def test_what_is_not_named_is_averaged(maps: AttentionMaps):
    weights = maps.weights["cross"]
    np.testing.assert_allclose(maps.average("cross"), weights.mean(axis=(0, 1)), rtol=1e-6)
    np.testing.assert_allclose(maps.average("cross", layer=1), weights[1].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(maps.average("cross", head=2), weights[:, 2].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(maps.average("cross", layer=0, head=1), weights[0, 1])
    np.testing.assert_allclose(maps.average("encoder").sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "head", "words"),
    [
        (None, None, "Cross attention, average of 2 layers and 3 heads"),
        (1, None, "Cross attention, layer 2, average of 3 heads"),
        (None, 0, "Cross attention, head 1, average of 2 layers"),
        (0, 2, "Cross attention, layer 1, head 3"),
    ],
)
def test_a_title_counts_layers_and_heads_from_one(maps: AttentionMaps, layer: int | None, head: int | None, words: str):
    assert maps.describe("cross", layer, head) == words


def test_json_has_every_weight_and_a_page_has_them_to_five_digits(maps: AttentionMaps, tmp_path: Path):
    maps.save(tmp_path / "maps.json")
    maps.save(tmp_path / "maps.html")
    written, (embedded,) = json.loads((tmp_path / "maps.json").read_text()), page_data(tmp_path / "maps.html")
    assert written == maps.to_json()
    assert (written["input"], written["output"]) == ("4 mars 2025", "2025-03-04")
    for data in (written, embedded):
        for name in ("source_tokens", "target_tokens", "target_inputs"):
            assert tuple(data[name]) == getattr(maps, name)
    for kind, weights in maps.weights.items():
        np.testing.assert_array_equal(np.array(written["weights"][kind], np.float32), weights)
        packed = embedded["weights"][kind]
        levels = np.frombuffer(base64.b64decode(packed["values"]), dtype="<u2").reshape(packed["shape"])
        np.testing.assert_allclose(levels / 65535, weights, atol=1e-5)


def test_a_notebook_shows_the_page_in_a_frame(maps: AttentionMaps):
    shown = maps._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "<script" not in shown


def test_a_shape_that_does_not_fit_its_tokens_is_an_error(maps: AttentionMaps):
    turned = maps.weights["cross"].swapaxes(2, 3)
    with pytest.raises(ConfigError, match=r"layers, heads, 11 target_tokens, 12 source_tokens.*got \(2, 3, 12, 11\)"):
        replace(maps, weights={"cross": turned})
    with pytest.raises(ConfigError, match=r"got \(12, 11\)"):
        replace(maps, weights={"cross": turned[0, 0]})


def test_a_row_of_the_decoder_reads_one_token_and_produces_one(maps: AttentionMaps):
    with pytest.raises(ConfigError, match="got 10 target_inputs and 11 target_tokens"):
        replace(maps, target_inputs=maps.target_inputs[1:])


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_a_weight_must_be_a_share(maps: AttentionMaps, wrong: float):
    weights = maps.weights["cross"].copy()
    weights[1, 0, 3, 2] = wrong
    with pytest.raises(ConfigError, match="cross weights must be in 0 to 1"):
        replace(maps, weights={"cross": weights})


def test_an_unknown_kind_layer_or_head_is_answered_with_what_there_is(maps: AttentionMaps):
    without_decoder = replace(maps, weights={kind: maps.weights[kind] for kind in ("cross", "encoder")})
    with pytest.raises(ConfigError, match="no attention of kind 'decoder' was recorded; recorded: encoder, cross"):
        without_decoder.average("decoder")
    with pytest.raises(ConfigError, match="layer must be in 0 to 1 for cross attention, got 2"):
        maps.average("cross", layer=2)
    with pytest.raises(ConfigError, match="head must be in 0 to 2 for cross attention, got -1"):
        maps.average("cross", head=-1)
    with pytest.raises(ConfigError, match="must be one of encoder, decoder, cross, got 'self'"):
        replace(maps, weights={"self": maps.weights["encoder"]})
    with pytest.raises(ConfigError, match="at least one of encoder, decoder, cross"):
        replace(maps, weights={})


@pytest.mark.parametrize(
    ("piece", "shown"),
    [(" the", "·the"), ("\n", "↵"), ("\x00", "␀"), ("\u0301", "◌\u0301"), ("\u200c", "U+200C"), ("\ud800", "\ufffd")],
)
def test_every_piece_can_be_seen(piece: str, shown: str):
    assert visible(piece) == shown
