"""Tasks on graphs: what is recognized, every command, attention on drawn graphs, and errors in one line."""

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import regard
from regard.baselines.graphs import fit_graph_number, weisfeiler_lehman
from regard.cli.main import main
from regard.data.builtin import find_builtin
from regard.data.formats.graphs import parse_graph
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows
from regard.errors import ConfigError, DataError, RunError
from regard.explanation.graphs import graph_svg, lay_out
from regard.explanation.pages import page_data
from regard.tasks import detect_task
from regard.tasks.capabilities import GraphDrawing
from regard.tasks.content import number_section

TINY = {"model": {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 16}}
MESSAGES = {"model": {"num_layers": 2, "model_dim": 16}}
ALCOHOLS = [(f"{'C' * length}O", str(1.5 * length + 0.25)) for length in range(1, 41)]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr("sys.argv", ["regard", *arguments])
    with pytest.raises(SystemExit) as exit:
        main()
    return int(exit.value.code or 0)


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def paths(count: int) -> list[dict[str, Any]]:
    """Paths of nodes, whose label is the parity of their length, and whose nodes are ends or inside."""
    rng = np.random.default_rng(3)
    sizes = [2 + row % 5 for row in range(count)]
    return [
        {
            "nodes": [[round(float(number), 3)] for number in rng.normal(size=size)],
            "edges": [[node, node + 1] for node in range(size - 1)],
            "label": "odd" if size % 2 else "even",
        }
        for size in sizes
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("graphs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        return regard.train(
            write_lines(folder / "paths.jsonl", paths(80)), out=folder / "run", steps=8, device="cpu",
            show_progress=False, settings={**TINY, "data": {"splits": [0.6, 0.2, 0.2]}},
        )  # fmt: skip


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("rdkit")
    folder = tmp_path_factory.mktemp("molecules")
    table = folder / "alcohols.csv"
    table.write_text("smiles,length\n" + "".join(f"{smiles},{number}\n" for smiles, number in ALCOHOLS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        return regard.train(
            table, out=folder / "run", model="graph-transformer-tiny", steps=6, device="cpu", show_progress=False,
            settings={**TINY, "data": {"splits": [0.6, 0.2, 0.2]}},
        )  # fmt: skip


def test_graphs_are_recognized_by_their_fields_and_targets(tmp_path: Path):
    records = paths(60)
    numbers = [{**record, "label": 0.37 * place} for place, record in enumerate(records)]
    nodes = [{**record, "label": ["a"] * len(record["nodes"])} for record in records]
    for found, expected in ((records, "classification"), (numbers, "regression"), (nodes, "node")):
        name = {"node": "node-classification"}.get(expected, f"graph-{expected}")
        path = write_lines(tmp_path / f"{expected}.jsonl", found)
        assert detect_task(DataConfig(train=[str(path)]))[0] == name
        assert detect_task(DataConfig(), NamedRows(found))[0] == name
    assert detect_task(DataConfig(train=["rings"]))[0] == "graph-classification"


def test_a_named_model_of_graphs_chooses_the_task_for_a_table_of_molecules(molecules: Any):
    assert molecules.task.name == "graph-regression"
    assert molecules.baseline is not None
    (text,) = [molecules.predict("CCO")]
    assert float(text) == float(molecules.predict(["OCC", "CCO"])[1])
    assert float(text) == pytest.approx(float(molecules.predict("OCC")), rel=1e-4)


@pytest.mark.slow
def test_every_command_runs(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    path, text = str(run.path), json.dumps({"nodes": [[0.5], [1.5]], "edges": [[0, 1]]})
    for command in (
        ["predict", path, text, "--json"],
        ["evaluate", path],
        ["test", path],
        ["certificate", path],
        ["attention", path, text],
        ["attention", path, text, "--out", str(tmp_path / "map.png")],
        ["attention", path, text, "--out", str(tmp_path / "map.svg"), "--layer", "1", "--head", "2"],
        ["attention", path, text, "--out", str(tmp_path / "map.html")],
        ["embed", path, text],
    ):
        assert call(monkeypatch, *command) == 0, command
        assert capsys.readouterr().out.strip(), command
    (example,) = page_data(tmp_path / "map.html")
    assert example["source_tokens"] == ["[graph]", "00", "11"]
    assert len(example["drawing"]["positions"]) == 2
    assert "</svg>" in (tmp_path / "map.svg").read_text()
    page = page_data(run.path / "report.html")
    assert page["attention"][0]["drawing"]["names"]
    assert all(
        sample["svg"].count("<circle") == len(json.loads(sample["source"])["nodes"]) for sample in page["samples"]
    )


def test_json_lines_are_predicted_row_by_row(run: Any, tmp_path: Path):
    table = write_lines(tmp_path / "new.jsonl", paths(7))
    found = run.predict_table(table)
    assert [row["prediction"] for row in found] == run.predict([json.dumps(record) for record in paths(7)])
    out = tmp_path / "out.jsonl"
    run.predict_table(table, out=out)
    assert len(out.read_text().splitlines()) == 7
    scores = run.evaluate(table).scores
    assert 0.0 <= scores["accuracy"].value <= 1.0


@pytest.mark.slow
def test_two_families_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    command = ["compare", "rings", "--models", "graph-transformer-tiny,message-passing-tiny", "--steps", "2",
               "--device", "cpu", "--out", str(tmp_path / "comparison"), "--set", "data.num_rows=80",
               "--set", "model.num_layers=1", "--set", "model.model_dim=16"]  # fmt: skip
    assert call(monkeypatch, *command) == 0
    assert "message-passing" in capsys.readouterr().out


def test_nodes_with_unknown_labels_are_neither_trained_nor_scored(tmp_path: Path):
    records = [
        {**record, "labels": ["end", *["inside"] * (len(record["nodes"]) - 2), None]} for record in paths(60)
    ]  # fmt: skip
    for record in records:
        del record["label"]
    found = regard.train(records, out=tmp_path / "run", model="message-passing-tiny", steps=3, device="cpu",
                         show_progress=False, settings=MESSAGES)  # fmt: skip
    assert found.task.name == "node-classification"
    labels = json.loads(found.predict(json.dumps({"nodes": [[1], [2], [3]], "edges": [[0, 1], [1, 2]]})))
    assert len(labels) == 3
    assert set(labels) <= {"end", "inside"}
    rows = found.folder.read_held_out("valid")
    examples = found.evaluate().examples
    assert sum(map(len, examples.targets)) == sum(len(json.loads(row[1])) - 1 for row in rows)


def test_a_label_of_a_node_that_training_has_not_is_reported_and_known_ones_are_not(tmp_path: Path):
    records = [{**each, "labels": ["end", *["inside"] * (len(each["nodes"]) - 1)]} for each in paths(60)]
    for record in records:
        del record["label"]
    options = {"model": "message-passing-tiny", "steps": 1, "device": "cpu", "show_progress": False}
    found = regard.train(records, out=tmp_path / "run", **options, settings=MESSAGES)
    notes = found.folder.read_provenance().notes
    assert not [note for note in notes if "no training row has" in note]
    unknown = [*records[:2], {**records[2], "labels": [None, *["middle"] * (len(records[2]["nodes"]) - 1)]}]
    rows = [(json.dumps({name: each[name] for name in ("nodes", "edges")}), json.dumps(each["labels"]))
            for each in unknown]  # fmt: skip
    warning = found.task.unknown_labels(rows, "new rows")
    assert warning is not None
    assert warning.startswith("1 row of new rows has a label that no training row has: middle (")


def test_labels_must_be_as_many_as_nodes(tmp_path: Path):
    records = [{"nodes": ["a", "b"], "edges": [], "labels": ["x"]}, {"nodes": ["a"], "edges": [], "labels": [None]}]
    with pytest.raises(DataError, match="1 label for 2 nodes"):
        regard.train(records, task="node-classification", out=tmp_path / "run", device="cpu", show_progress=False)
    assert not (tmp_path / "run").exists()


def test_an_invalid_row_is_reported_with_its_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("rdkit")
    table = tmp_path / "bad.csv"
    table.write_text("smiles,length\nCCO,1.5\nC1CC,2.5\nCO,3.5\n")
    out = str(tmp_path / "run")
    assert call(monkeypatch, "train", str(table), "--task", "graph-regression", "--out", out) == 2
    message = capsys.readouterr().err
    assert "an invalid SMILES 'C1CC': unclosed ring" in message
    assert "line 3" in message
    assert not (tmp_path / "run").exists()


def test_inputs_that_do_not_fit_the_model_are_errors(run: Any):
    for text, reason in {
        '{"nodes": [[1, 2]], "edges": []}': "1 number",
        '{"nodes": [[1]], "edges": [[0, 9]]}': "an edge to node 9",
        '{"nodes": [], "edges": []}': "no nodes",
    }.items():
        with pytest.raises(DataError, match=reason):
            run.predict(text)
    large = json.dumps({"nodes": [[1.0]] * 600, "edges": []})
    with pytest.raises(DataError, match=r"more than task\.max_nodes=512"):
        run.predict(large)


def test_what_is_not_offered_is_refused_in_one_line(run: Any, tmp_path: Path):
    with pytest.raises(ConfigError, match="onnx can represent it"):
        regard.export_model(run.path, tmp_path / "model", to="hf")
    with pytest.raises((ConfigError, RunError), match="cannot be fine-tuned"):
        regard.finetune(run.path, [("{}", "x")] * 4, task="graph-classification", out=tmp_path / "tuned")


def test_a_model_without_attention_has_no_maps(tmp_path: Path):
    found = regard.train(paths(60), out=tmp_path / "run", model="message-passing-tiny", steps=2, device="cpu",
                         show_progress=False, settings=MESSAGES)  # fmt: skip
    with pytest.raises(ConfigError, match="no attention layers"):
        found.attention(json.dumps(paths(1)[0]))


def test_weisfeiler_lehman_features_are_equal_where_the_test_fails():
    texts = ("C1CCC2CCCCC2C1", "C1CCC(C1)C1CCCC1")  # decalin and bicyclopentyl
    plain = []
    for edges in (
        [[node, (node + 1) % 10] for node in range(10)] + [[0, 5]],
        [[start + node, start + (node + 1) % 5] for start in (0, 5) for node in range(5)] + [[0, 5]],
    ):
        graph = parse_graph(json.dumps({"nodes": ["C"] * 10, "edges": edges}))
        plain.append([sorted(labels) for labels in weisfeiler_lehman(graph)])
    assert plain[0] == plain[1]
    pytest.importorskip("rdkit")
    one, other = ([sorted(labels) for labels in weisfeiler_lehman(parse_graph(text))] for text in texts)
    assert one != other  # atoms know the sizes of their rings


def test_the_baseline_of_numbers_learns_counts_of_atoms():
    pytest.importorskip("rdkit")
    baseline = fit_graph_number([text for text, _ in ALCOHOLS], [float(number) for _, number in ALCOHOLS])
    found = [float(output) for output in baseline.predict([text for text, _ in ALCOHOLS]).outputs]
    assert found == pytest.approx([float(number) for _, number in ALCOHOLS], abs=0.5)


def test_a_layout_separates_nodes_and_keeps_given_positions():
    ring = GraphDrawing(("a",) * 6, tuple((node, (node + 1) % 6, 1.0) for node in range(6)))
    places = np.array(lay_out(ring))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)[~np.eye(6, dtype=bool)]
    assert apart.min() > 0.5
    given = lay_out(GraphDrawing(("a", "b"), ((0, 1, 1.0),), ((0.0, 0.0), (0.0, 4.0))))
    assert np.allclose(given, [(0.0, -0.5), (0.0, 0.5)])


def test_a_graph_of_a_report_is_drawn_with_its_bonds_and_names():
    drawing = GraphDrawing(("C", "<b>", "O"), ((0, 1, 1.0), (1, 2, 1.5)), ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)))
    svg = graph_svg(drawing)
    root = ElementTree.fromstring(svg)
    lines = [part for part in root if part.tag.endswith("line")]
    assert [line.get("stroke-dasharray") for line in lines] == [None, None, "2 2"]
    assert [part.text for part in root if part.tag.endswith("text")] == ["C", "<b", "O"]
    left, top, width, height = map(float, root.get("viewBox", "").split())
    for node in (part for part in root if part.tag.endswith("circle")):
        assert left < float(node.get("cx", "nan")) < left + width
        assert top < float(node.get("cy", "nan")) < top + height


def test_the_built_in_graphs_have_equal_degrees_for_both_labels():
    rows = list(find_builtin("rings").generate(300, 1))
    assert {label for _, label in rows} == {"fused", "joined"}
    without_leaves: dict[tuple[int, ...], set[str]] = {}
    for text, label in rows:
        degrees = parse_graph(text).degrees()
        if 1 not in degrees:
            without_leaves.setdefault(tuple(sorted(degrees.tolist())), set()).add(label)
    assert any(len(labels) == 2 for labels in without_leaves.values())
    assert rows == list(find_builtin("rings").generate(300, 1))


@pytest.mark.slow
def test_attention_with_distances_learns_what_degrees_do_not_show(tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    small = {"num_layers": 2, "model_dim": 48, "num_heads": 4, "feedforward_dim": 64}
    settings = {"model": small, "data": {"num_rows": 1200}, "train": {"learning_rate": 0.003}}
    run = regard.train("rings", out=tmp_path / "run", steps=150, device="cpu", settings=settings, show_progress=False)
    assert run.evaluate().scores["accuracy"].value > 0.95
    assert run.baseline is not None
    assert run.baseline.scores["accuracy"]["value"] < 0.8


def test_a_server_predicts_molecules_and_reports_invalid_ones(molecules: Any):
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from regard.serving.app import make_app

    client = TestClient(make_app(molecules))
    assert "CCO" in client.get("/model").text
    (found,) = client.post("/predict", json={"inputs": ["CCO"]}).json()["predictions"]
    assert found["output"] == molecules.predict("CCO")
    answer = client.post("/predict", json={"inputs": ["C1CC"]})
    assert answer.status_code == 400
    assert "unclosed ring" in answer.text


def measured(count: int, *, are_labels: bool = False) -> list[dict[str, Any]]:
    """Paths of nodes with two properties, each of which is missing in some of them."""
    found = []
    for place, record in enumerate(paths(count)):
        size = len(record["nodes"])
        values = (size % 2, int(size > 3)) if are_labels else (1.5 * size, -size + 0.25 * (place % 3))
        known = (None if place % 4 == 1 else values[0], None if place % 4 == 2 else values[1])
        graph = {name: record[name] for name in ("nodes", "edges")}
        found.append({**graph, "length": known[0], "depth": known[1]})
    return found


def train_properties(data: Any, folder: Path, **options: Any) -> Any:
    settings = {**MESSAGES, "data": {"splits": [0.6, 0.2, 0.2]}}
    return regard.train(data, out=folder / "run", model="message-passing-tiny", device="cpu", show_progress=False,
                        settings=settings, **{"steps": 4, **options})  # fmt: skip


def test_several_numbers_of_a_graph_are_recognized_trained_and_predicted(tmp_path: Path):
    path = write_lines(tmp_path / "measured.jsonl", measured(60))
    assert detect_task(DataConfig(train=[str(path)]))[0] == "graph-properties"
    assert detect_task(DataConfig(), NamedRows(measured(60)))[0] == "graph-properties"
    run = train_properties(path, tmp_path)
    (found,) = run.predict_full([json.dumps(paths(1)[0])])
    assert list(found.properties) == ["length", "depth"]
    assert found.output == ", ".join(f"{name}={value:.6g}" for name, value in found.properties.items())
    scores = run.evaluate(path).scores
    known = sum(record[name] is not None for record in measured(60) for name in ("length", "depth"))
    assert run.evaluate(path, all_rows=True, log=False).examples.targets is not None
    assert len(run.evaluate(path, all_rows=True, log=False).examples.targets) == known
    assert scores["rmse"].value > 0
    assert run.baseline is not None
    assert (run.path / "report.html").exists()


def test_a_missing_property_has_no_loss_and_no_gradient(tmp_path: Path):
    run = train_properties(measured(60), tmp_path, steps=1)
    task, model = run.task, run.model.double()
    graph = json.dumps({name: measured(1)[0][name] for name in ("nodes", "edges")})
    rows = {name: next(iter(task.row_batches([(graph, text)]))) for name, text in {"one": "4;", "both": "4;-2"}.items()}
    assert [batch.num_targets for batch in rows.values()] == [1, 2]
    cpu = torch.device("cpu")
    whole, single = (task.likelihoods(model, iter([rows[name]]), cpu).losses[0] for name in ("both", "one"))
    assert 0 < single < whole
    task.loss(model, rows["one"]).backward()
    gradient = model.head.output.weight.grad
    assert (gradient[0] != 0).any()
    assert (gradient[1] == 0).all()


def test_labels_of_graphs_are_judged_by_the_area_under_the_curve(tmp_path: Path):
    run = train_properties(measured(80, are_labels=True), tmp_path)
    (found,) = run.predict_full([json.dumps(paths(1)[0])])
    assert set(found.probabilities) == {"length", "depth"}
    assert list(run.evaluate().scores)[:1] == ["auroc"]


def test_properties_in_columns_of_a_table_may_be_empty(tmp_path: Path):
    pytest.importorskip("rdkit")
    table = tmp_path / "alcohols.csv"
    lines = [
        f"{smiles},{number if place % 3 else ''},{place / 7:.3f}" for place, (smiles, number) in enumerate(ALCOHOLS)
    ]
    table.write_text("smiles,size,place\n" + "\n".join(lines) + "\n")
    run = train_properties(table, tmp_path)
    assert run.task.name == "graph-properties"
    assert set(run.predict_full(["CCO"])[0].properties) == {"size", "place"}
    table.write_text("smiles,size,place\nCCO,1.5,2\nCO,,\nCCCO,much,1\n")
    with pytest.raises(DataError, match=r"no property \(line 3\); 1 has no finite number in size \(line 4\)"):
        run.evaluate(table)


def test_wrong_properties_are_named(tmp_path: Path):
    path = write_lines(tmp_path / "measured.jsonl", measured(30))
    with pytest.raises(DataError, match=r"no graph of measured.jsonl has a field 'lenght'; did you mean length"):
        train_properties(path, tmp_path, task="graph-properties", columns=["lenght", "depth"])
    mixed = [{**record, "odd": str(place % 2)} for place, record in enumerate(measured(30))]
    with pytest.raises(DataError, match="It may be length, depth, odd: name them"):
        train_properties(mixed, tmp_path, task="graph-properties")
    assert not (tmp_path / "run").exists()


def test_a_property_that_no_held_out_row_has_is_left_out_of_the_report():
    section = number_section(["a", "b"], {"one": ([1.0, 2.0], [1.5, 2.0]), "other": ([math.nan] * 2, [0.0, 0.0])})
    assert section.plot is not None
    assert [panel.title for panel in section.plot.panels] == ["one"]
    assert section.rows == [("a", "one", "1", "1.5", "+0.5"), ("b", "one", "2", "2", "+0")]


def test_numbers_of_one_property_have_no_column_of_its_name():
    section = number_section(["a"], {"one": ([1.0], [1.5])})
    assert section.columns == ("input", "measured", "predicted", "error")
    assert section.rows == [("a", "1", "1.5", "+0.5")]
    assert "same property" not in section.lead
