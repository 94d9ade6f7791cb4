"""Exports of models whose inputs are arrays: ONNX Runtime returns what the run predicts, from the units of the data."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image
from tests.tiny import tiny

from regard.data.builtin.scenes import generate_scenes
from regard.data.sources import NamedRows
from regard.errors import CheckpointError, ConfigError
from regard.interop.exporting import write_graph_export

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def without_checks() -> Iterator[None]:
    """Sizes are symbols while a graph is traced, and no annotation knows of such."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # a run that is exported is in float32
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    torch.set_default_dtype(default)


def exported(graph: Any, folder: Path) -> Any:
    """Export, and return what computes the outputs from the files alone."""
    found = write_graph_export(graph, folder, to="onnx")
    assert found.num_rows > 4
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert {each.name for each in session.get_inputs()} == set(
        json.loads((folder / "config.json").read_text())["inputs"]
    )
    return lambda **inputs: session.run(None, inputs)


GRAPHS = [
    {"nodes": [[n, 1.5], [2 * n, 0.5], [3.0, n]][: 2 + n % 2], "edges": [[0, 1, "ab"[n % 2]]], "label": "xyz"[n % 3],
     "directed": True}
    for n in range(60)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["graph-transformer-tiny", "message-passing-tiny"])
def test_graphs_of_any_size_have_the_probabilities_of_the_run(preset: str, tmp_path: Path):
    found = tiny("graph-classification", NamedRows(GRAPHS), preset=preset)
    model = found.build(std=0.1)
    run = exported(found.task.export_graph(model, found.data.held_out["valid"]), tmp_path / "onnx")
    text = '{"nodes":[[7,1],[2,2],[4,0],[1,1]],"edges":[[1,0,"b"],[1,2,"a"],[2,3,"a"]],"directed":true}'
    unreachable = 255
    (outputs,) = run(
        num_nodes=np.array([4]),
        edges=np.array([[[1, 0], [1, 2], [2, 3], [-1, -1]]]),
        distances=np.array(
            [[[0, unreachable, unreachable, unreachable], [1, 0, 1, 2], [unreachable, unreachable, 0, 1],
              [unreachable, unreachable, unreachable, 0]]]
        ),
        node_numbers=np.array([[[7, 1], [2, 2], [4, 0], [1, 1]]], np.float32),
        edge_labels=np.array([[[1 + found.task.graph_codec.edges.labels[0].index(label)] for label in "baa"] + [[0]]]),
    )  # fmt: skip
    (prediction,) = found.predict(model, [text])
    np.testing.assert_allclose(outputs[0], list((prediction.probabilities or {}).values()), atol=1e-5)


def episodes(is_discrete: bool) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(40):
        seen = rng.normal(3.0, 2.0, (int(rng.integers(4, 10)), 3)).round(3)
        chosen = (seen[:, 0] > 3).astype(int) if is_discrete else (seen[:, :2] * 2 + 1).round(3)
        rewards = rng.normal(size=len(seen)).round(3)
        found.append({"observations": seen.tolist(), "actions": chosen.tolist(), "rewards": rewards.tolist()})
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "is_discrete"), [("decision-transformer-tiny", True), ("lstm-control-tiny", False)])
def test_a_policy_chooses_the_action_of_the_run(preset: str, is_discrete: bool, tmp_path: Path):
    found = tiny("control", NamedRows(episodes(is_discrete)), preset=preset, window=5)
    model = found.build(std=0.2)
    run = exported(found.task.export_graph(model, found.data.held_out["valid"]), tmp_path / "onnx")
    seen = [[1.0, 2.0, 3.0], [4.0, 1.0, 2.0]]
    done: Any = [1] if is_discrete else [[3.0, -1.0]]
    before: Any = [-1, 1] if is_discrete else [[np.nan, np.nan], [3.0, -1.0]]
    (outputs,) = run(
        observations=np.array([seen], np.float32),
        previous_actions=np.array([before], np.int64 if is_discrete else np.float32),
        returns_to_go=np.array([[2.5, 2.0]], np.float32),
    )
    text = json.dumps({"observations": seen, "actions": done, "rewards": [0.5], "return": 2.5})
    (prediction,) = found.predict(model, [text])
    expected = list((prediction.probabilities or {}).values()) if is_discrete else json.loads(prediction.output)
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["patchtst-tiny"])
def test_a_forecast_is_that_of_the_run_in_the_units_of_the_data(preset: str, tmp_path: Path):
    rng = np.random.default_rng(1)
    days = np.arange("2024-01-01", "2025-06-01", dtype="datetime64[D]")
    values = 50 + 9 * np.sin(2 * np.pi * np.arange(len(days)) / 7) + rng.normal(size=len(days))
    rows = [{"date": str(day), "a": float(a), "b": float(-2 * a)} for day, a in zip(days, values.round(3), strict=True)]
    found = tiny("forecasting", NamedRows(rows), preset=preset, input_length=21, horizon=5)
    model = found.build(std=0.1)
    graph = found.task.export_graph(model, found.data.held_out["valid"])
    run = exported(graph, tmp_path / "onnx")
    (inputs, _) = graph.examples[0]
    point, lower, upper = run(**{name: each[1:2].numpy() for name, each in inputs.items()})
    features = inputs.get("features")
    scaled = found.task.codec.standardize(inputs["values"][1:2].numpy())
    expected = found.task.forecast_values(model, scaled, 5, None if features is None else features[1:2].numpy())
    for one, other in zip((point, lower, upper), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    assert (lower <= point).all()
    assert (point <= upper).all()


EVENTS = [
    {"subject": f"s{subject}", "time": float(time * (1 + subject % 3)), "event": "abc"[(subject + time) % 3],
     "dose": None if time % 2 else 1.5 * subject}
    for subject in range(40) for time in range(1, 3 + subject % 5)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["transformer-events-tiny", "lstm-events-tiny"])
def test_a_history_has_the_risks_of_the_run(preset: str, tmp_path: Path):
    found = tiny("event-prediction", NamedRows(EVENTS), preset=preset, horizons=[1.0, 3.0])
    model = found.build(std=0.1)
    run = exported(found.task.export_graph(model, found.data.held_out["valid"]), tmp_path / "onnx")
    kinds = {event: number for number, event in enumerate(found.task.codec.events, start=1)}
    probabilities, risks = run(
        events=np.array([[0, kinds["a"], kinds["c"], 0]]),
        gaps=np.array([[0.0, 2.0, 0.5, 0.0]], np.float32),
        num_entries=np.array([3]),
        elapsed=np.array([1.25], np.float32),
        values=np.array([[[np.nan], [4.5], [np.nan], [0.0]]], np.float32),
    )
    (prediction,) = found.predict(model, ['[[0, null], [2, "a", 4.5], [2.5, "c"], [3.75, null]]'])
    np.testing.assert_allclose(probabilities[0], list(prediction.probabilities.values()), atol=1e-5)
    stated = [[each[event] for event in found.task.codec.events] for each in prediction.details["risks"].values()]
    np.testing.assert_allclose(risks[0], stated, atol=1e-5)


SMALL_CAPTIONS = {"image": {"size": 8, "patch_size": 4}, "decoder_dim": 16}


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["lstm-attention-tiny", "transformer-tiny"])
def test_a_caption_is_generated_token_by_token_with_the_exported_logits(decoder: str, tmp_path: Path):
    found = tiny("captioning", list(generate_scenes(120, 1)), preset="cnn-tiny", decoder=decoder, **SMALL_CAPTIONS,
                 model={"num_layers": 1, "model_dim": 12})  # fmt: skip
    model, rows = found.build(std=0.3), found.data.held_out["valid"]
    run = exported(found.task.export_graph(model, rows), tmp_path / "onnx")
    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    pixels = next(found.task.row_batches(rows[:1])).pixels.numpy()
    tokens = [config["start"]]
    while len(tokens) < 8:  # the start, and as many as `predict` generates
        (logits,) = run(pixels=pixels, input_ids=np.array([tokens]))
        logits[0, -1, found.task.tokenizer.never_generated] = -np.inf
        if (best := int(logits[0, -1].argmax())) == config["end"]:
            break
        tokens.append(best)
    (prediction,) = found.predict(model, [rows[0][0]])
    assert found.task.tokenizer.decode([tokens[1:]])[0].split() == prediction.output.split()


def test_a_decoder_that_needs_a_loop_is_named_with_those_that_do_not(tmp_path: Path):
    found = tiny("captioning", list(generate_scenes(120, 1)), preset="cnn-tiny", decoder="gru-attention-tiny",
                 **SMALL_CAPTIONS, model={"num_layers": 1, "model_dim": 12})  # fmt: skip
    with pytest.raises(ConfigError, match=r"task\.decoder must be lstm-attention, lstm or transformer.*gru-attention"):
        found.task.export_graph(found.build(), found.data.held_out["valid"])


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "components"), [("pixel-gpt-tiny", 3), ("pixel-lstm-tiny", 0)])
def test_the_distribution_of_a_pixel_depends_on_those_before_it(preset: str, components: int, tmp_path: Path):
    rng = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (4, 4, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{number}.png")
    found = tiny("image-generation", tmp_path / "images", preset=preset, levels=16, size=4, channels=3, by_class=True,
                 model={"num_layers": 1, "model_dim": 16, "components": components, "neighborhood": 2})  # fmt: skip
    model, rows = found.build(std=0.1), found.data.held_out["valid"]
    write_graph_export(found.task.export_graph(model, rows), tmp_path / "onnx", to="onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    pixels = found.task.read_pixels([rows[0][0]])
    other = pixels.copy()
    other[0, 1, 2, 1] ^= 0xF0  # green of the pixel in row 2 and column 1: number 9
    first, second = (
        session.run(None, {"pixels": each, "classes": np.array([2])}) for each in (pixels, other)
    )  # fmt: skip
    np.testing.assert_allclose(first[0].sum(axis=-1), 1.0, atol=1e-4)
    same = np.isclose(first[0], second[0], atol=1e-7).all(axis=-1).reshape(-1)
    assert same[: 9 * 3 + 2].all()
    assert not same[9 * 3 + 2 :].all()
    assert first[1][0] == pytest.approx(float(found.predict(model, [rows[0][0]])[0].output), abs=1e-4)


@pytest.mark.slow
def test_an_export_that_differs_is_removed_and_other_formats_are_refused(tmp_path: Path):
    found = tiny("graph-classification", NamedRows(GRAPHS), preset="message-passing-tiny")
    graph = found.task.export_graph(found.build(std=0.1), found.data.held_out["valid"])
    with pytest.raises(
        ConfigError, match=r"hf has models of texts, and this one reads num_nodes.*onnx can represent it"
    ):
        write_graph_export(graph, tmp_path / "hf", to="hf")
    *examples, (inputs, (predicted,)) = graph.examples
    graph = replace(graph, examples=[*examples, (inputs, (predicted + 0.01,))])
    with pytest.raises(CheckpointError, match="probabilities of the onnx export differ"):
        write_graph_export(graph, tmp_path / "onnx", to="onnx")
    assert not list(tmp_path.iterdir())
