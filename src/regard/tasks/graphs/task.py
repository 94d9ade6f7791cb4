"""What tasks on graphs have in common: how graphs are recognized, read, encoded, batched and drawn.

Files are JSON lines of nodes and edges, folders in TU Dortmund's format, or tables with a column of SMILES or of graphs
as JSON. A row is a graph as text, SMILES or JSON, and a target. A node is to a graph what a token is to a text: batch
sizes and speed are counted in nodes.

Dimensions: `batch` graphs.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from regard.data.batches import batches_by_length
from regard.data.codecs.codec import Codec
from regard.data.codecs.graphs import PARTS, FeatureScales, GraphCodec
from regard.data.formats.cells import as_text, value_kind
from regard.data.formats.files import describe_encoding, format_suffix
from regard.data.formats.graph_folders import (
    describe_graph_folder,
    graph_folder_paths,
    is_graph_folder,
    read_graph_folder,
)
from regard.data.formats.graphs import (
    DIRECTED,
    FIELDS,
    UNREACHABLE,
    Graph,
    graph_text,
    molecule_positions,
    parse_graph,
    same_kind,
)
from regard.data.formats.json_lines import iter_json_lines
from regard.data.formats.layouts import BLANK, FORMAT_OF_SUFFIX, Record
from regard.data.formats.messages import format_count
from regard.data.formats.summary import ColumnSummary, describe
from regard.data.formats.tables import Table
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, hash_of_table, is_builtin, open_source, with_held_out
from regard.data.stores.rows import GraphStore
from regard.errors import ConfigError, DataError, RunError
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.settings import nearest
from regard.tasks.capabilities import ExportGraph, GraphDrawing
from regard.tasks.choices import READING_DEFAULTS, Defaults, DefaultsContext
from regard.tasks.content import ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.graphs.batches import GraphBatch, graph_shape, make_inputs, pad_graph_batch
from regard.tasks.graphs.model import ExportedGraphs, GraphPredictor
from regard.tasks.properties import PropertyColumns, read_properties
from regard.tasks.task import EVALUATION_TOKENS, Task, TaskSettings, to_device

_BATCH_NODES: Mapping[str, int] = {"cpu": 1_024, "cuda": 2_048}
"""About 64 molecules of 30 atoms on a GPU."""
_TRAIN_DEFAULTS: dict[str, Any] = {**READING_DEFAULTS, "ema_decay": 0.99}
_ORDERS = {"SINGLE": 1.0, "DOUBLE": 2.0, "TRIPLE": 3.0, "AROMATIC": 1.5}
"""The number of lines of a bond; one and a dashed one for an aromatic bond."""
GRAPH_COLUMNS = ("smiles", "graph", "molecule", "mol", "canonical_smiles")
"""What a column of graphs is called."""
_TARGETS = ("label", "labels", "target", "y", "class", "value", "number")
"""What the target of a graph is called in JSON lines; the first that a file has."""


class GraphSettings(TaskSettings):
    """Settings of tasks on graphs."""

    max_nodes: int = Field(default=512, ge=1)
    """A graph with more nodes is a bad row: attention is between all pairs of nodes."""


GraphSettingsT = TypeVar("GraphSettingsT", bound=GraphSettings)


class GraphTask(Task[GraphSettingsT]):
    """A task on rows of a graph and a target."""

    target_role: ClassVar[str] = "label"
    store_columns = (*PARTS, "target")
    input_kind = "graphs"
    default_preset = "graph-transformer"
    unit = "graph"
    token_unit = "nodes"
    of_nodes: ClassVar[bool] = False
    """Whether each node has a target, rather than the graph."""

    # Data

    @property
    def graph_codec(self) -> GraphCodec:
        codec = self.codecs.get("graph")
        return codec if isinstance(codec, GraphCodec) else GraphCodec()

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        return open_graphs(config, self.target_role, rows, max_nodes=self.settings.max_nodes)

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        prepared: Any = super().prepare(config, rows)
        return replace(prepared, train=GraphStore(prepared.train.folder), valid=GraphStore(prepared.valid.folder))

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        return {"graph": GraphCodec.fit(row[0] for row in data.rows()), "label": self.fit_target(data)}

    def fit_target(self, data: FitData) -> Codec:
        """Fit the codec of targets."""
        raise NotImplementedError

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return [*self._encode_graphs([row[0] for row in rows]), self.encode_targets([row[-1] for row in rows])]

    def encode_targets(self, targets: Sequence[str]) -> list[list[int]]:
        return self.codecs["label"].encode(targets)

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        parts = self._encode_graphs(inputs)
        return [*parts, [self.placeholder(len(degrees)) for degrees in parts[0]]]

    def placeholder(self, num_nodes: int) -> list[int]:
        """A stored target where there is none."""
        return [0]

    def _encode_graphs(self, texts: Sequence[str]) -> list[list[list[int]]]:
        encoded = [self.graph_codec.encode_parts(text) for text in texts]
        if most := max((len(parts[0]) for parts in encoded if len(parts[0]) > self.settings.max_nodes), default=0):
            raise DataError(f"a graph has {most:,} nodes, more than task.max_nodes={self.settings.max_nodes:,}")
        return [[parts[place] for parts in encoded] for place in range(len(PARTS))]

    def notes(self) -> list[str]:
        return [self.graph_codec.describe()]

    def input_of_record(self, record: Mapping[str, Any]) -> str | None:
        return graph_text(record) if all(isinstance(record.get(field), list) for field in FIELDS) else None

    # Settings

    def defaults(self, context: DefaultsContext) -> Defaults:
        train = {**_TRAIN_DEFAULTS, "batch_tokens": _BATCH_NODES[context.device]}
        return Defaults(train, head={"pooling": "first", "hidden_layer": True})

    @classmethod
    def check_base(cls, base: Task[Any], model: ModelConfig, where: str) -> None:
        raise ConfigError(f"models of graphs cannot be fine-tuned: train a new one instead of {where}")

    def num_positions(self, data: Prepared) -> int:
        return 0  # nodes have no order

    # Model and training

    @property
    def num_outputs(self) -> int:
        raise NotImplementedError

    def build(self, model: ModelConfig, head: HeadConfig) -> GraphPredictor:
        return GraphPredictor(model, graph_shape(self.graph_codec), head, self.num_outputs, of_nodes=self.of_nodes)

    def indexed_batches(self, columns: Sequence[Sequence[Sequence[int]]]) -> Iterator[tuple[list[int], GraphBatch]]:
        """By the number of nodes, not by the longest part."""
        sizes = [len(degrees) for degrees in columns[0]]
        for rows in batches_by_length(sizes, batch_tokens=EVALUATION_TOKENS):
            yield rows.tolist(), self.collate([[np.array(column[row], np.int64) for row in rows] for column in columns])

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> GraphBatch:
        *parts, targets = columns
        found = self.make_targets(targets, [len(degrees) for degrees in parts[0]])
        return GraphBatch(
            inputs=make_inputs(parts, self.graph_codec),
            targets=found,
            weights=torch.ones(len(targets)),
            num_targets=self.count_targets(found),
            num_tokens=sum(len(degrees) for degrees in parts[0]),
        )

    def make_targets(self, targets: list[NDArray[np.int64]], sizes: Sequence[int]) -> torch.Tensor:
        """Stored targets of graphs of these sizes as a tensor."""
        raise NotImplementedError

    def count_targets(self, targets: torch.Tensor) -> int:
        return len(targets)

    def pad_batch(self, batch: GraphBatch, num_rows: int, length: int) -> GraphBatch:
        return pad_graph_batch(batch, num_rows, length, of_nodes=self.of_nodes)

    # Use

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def facts(self) -> dict[str, str]:
        return {"graphs": self.graph_codec.describe()}

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        example = "CCO" if self.graph_codec.are_molecules else '{"nodes": ["a", "b"], "edges": [[0, 1]]}'
        return ServerSchema(("graph",), placeholder=example, output="label")

    def drawing(self, text: str) -> GraphDrawing:
        graph = self.graph_codec.read(text)
        positions = molecule_positions(text) if self.graph_codec.are_molecules else None
        orders = [labels[0] if labels and self.graph_codec.are_molecules else "" for labels in graph.edges.labels]
        return GraphDrawing(
            names=graph.names,
            edges=tuple((int(one), int(other), _ORDERS.get(order, 1.0)) for (one, other), order in zip(
                graph.ends, orders, strict=True)),
            positions=None if positions is None else tuple(map(tuple, positions.tolist())),
        )  # fmt: skip

    # Export

    def activation(self, outputs: Tensor) -> Tensor:
        """What the head computes as predictions: probabilities, or numbers in the units of the data."""
        return outputs.softmax(dim=-1)

    @property
    def export_output(self) -> str:
        """What the outputs of an exported model are called."""
        return "probabilities"

    def export_config(self) -> dict[str, Any]:
        """What a program must know of the outputs."""
        return {}

    def export_graph(self, model: Any, rows: Sequence[Sequence[str]]) -> ExportGraph:
        """Padded nodes, edges and distances in, predictions out; a padding edge is between -1 and -1."""
        codec = self.graph_codec
        rows = [row for row in rows if len(parse_graph(row[0]).ends)] or rows
        examples = [self._export_example(model, some) for some in (rows[:3], rows[3:4], rows[:8]) if some]
        axes = {name: {0: "batch"} for name in examples[0][0]}
        axes["distances"] |= {1: "nodes", 2: "nodes"}
        for name in axes:
            size = {"edges": "edges", "edge": "edges", "node": "nodes"}.get(name.partition("_")[0])
            axes[name] |= {1: size} if size is not None and name != "num_nodes" else {}
        parts = {"node": codec.nodes, "edge": codec.edges}
        labels = {f"{kind}_labels": [["", *known] for known in scales.labels] for kind, scales in parts.items()}
        scales = [(each.means, each.stds) for each in parts.values()]
        return ExportGraph(
            module=ExportedGraphs(model, scales, self.activation),
            axes=axes,
            outputs=(self.export_output,),
            examples=examples,
            config={**{name: known for name, known in labels.items() if known}, "is_directed": codec.are_directed,
                    "unreachable": UNREACHABLE, **self.export_config()},
        )  # fmt: skip

    def _export_example(
        self, model: Any, rows: Sequence[Sequence[str]]
    ) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """The inputs of some rows, and what the run predicts for them."""
        columns = [
            [np.array(ids, np.int64) for ids in column] for column in self.encode_inputs([row[0] for row in rows])
        ]
        batch, codec = self.collate(columns), self.graph_codec
        inputs = {
            "num_nodes": batch.inputs.sizes,
            "edges": batch.inputs.ends,
            "distances": batch.inputs.distances.long(),
            "node_labels": batch.inputs.labels,
            "node_numbers": _unscaled(batch.inputs.numbers, codec.nodes),
            "edge_labels": batch.inputs.edge_labels,
            "edge_numbers": _unscaled(batch.inputs.edge_numbers, codec.edges),
        }
        with torch.inference_mode():
            predicted = self.activation(model(batch.inputs).float())
        return {name: values for name, values in inputs.items() if values.dim() < 3 or values.size(2)}, (predicted,)

    @torch.inference_mode()
    def embed(self, model: Any, inputs: Sequence[str]) -> Float[np.ndarray, "inputs model"]:
        """The vectors that the head reads."""
        if self.of_nodes:
            raise RunError(f"a model for {self.description} has no embeddings of whole graphs")
        device, found = next(model.parameters()).device, {}
        for rows, batch in self.indexed_batches(self.encode_inputs(inputs)):
            vectors = F.normalize(model.embed(to_device(batch, device).inputs).float(), dim=-1).cpu().numpy()
            found |= dict(zip(rows, vectors, strict=True))
        return np.stack([found[row] for row in range(len(inputs))])


def _unscaled(numbers: Tensor, scales: FeatureScales) -> Tensor:
    """Numbers in the units of the data."""
    return numbers * torch.tensor(scales.stds, dtype=numbers.dtype) + torch.tensor(scales.means, dtype=numbers.dtype)


def is_json_graph(summary: DetectionSummary) -> bool:
    """Whether a source has lists of nodes and edges, or is the built-in data set of graphs."""
    return set(FIELDS) <= set(summary.lists) or (summary.names == ("graph", "label") and not summary.columns)


def graph_column(summary: DetectionSummary) -> ColumnSummary | None:
    """The column of SMILES, or of graphs as JSON, of a table."""
    return next((column for column in summary.columns if column.plain_name in GRAPH_COLUMNS), None)


def target_column(summary: DetectionSummary) -> ColumnSummary | None:
    """The column of targets: the last one named, or the only one beside that of graphs."""
    graphs = graph_column(summary)
    others = [column for column in summary.columns if column is not graphs]
    return others[-1] if others and (summary.columns_given or len(others) == 1) else None


def open_graphs(
    config: DataConfig,
    target: str,
    rows: Rows | None = None,
    *,
    max_nodes: int,
    properties: PropertyColumns | None = None,
) -> Source:
    """Open the graphs that the settings name, each with its target; invalid ones are bad rows, with their lines.

    Args:
        config: Where the data is; of JSON lines, `columns` may name the field of the target.
        target: The role of the target: `label`, `number`, `labels` or `properties`.
        rows: Rows in memory: pairs of a graph and a target, or dictionaries with nodes and edges.
        max_nodes: Graphs with more are bad rows.
        properties: Where a graph has several targets: their columns.
    """
    open_files = partial(_open_graph_files, config, target, properties)
    if isinstance(rows, NamedRows) and is_graph_data(config, rows):
        records = [dict(zip(rows.names, row, strict=True)) for row in rows]
        read: Any = partial(enumerate, records, 1)
        train = _record_table(config, target, properties, (), read, records[:1])
        source = with_held_out(config, train, open_files, lambda: hash_of_table(train))
    elif is_graph_data(config, rows):
        train = open_files(config.train)
        source = with_held_out(config, train, open_files, train.content_hash)
    elif properties is not None:
        is_named = rows is None or isinstance(rows, NamedRows)
        named = config.changed(columns=properties.names) if is_named else config
        source = open_source(named, ("graph", *properties.properties), rows)
    else:
        source = open_source(config, (_graph_role(config, rows), target), rows)
    tables = {
        split: None if table is None else _valid_table(table, max_nodes, properties)
        for split, table in (("train", source.train), ("valid", source.valid), ("test", source.test))
    }
    return replace(source, **tables)


def _valid_table(table: Table, max_nodes: int, properties: PropertyColumns | None) -> Table:
    """The table, in which invalid graphs are faults; several targets are joined to one."""
    joined = table if properties is None else read_properties(table, properties, "graph")
    return replace(joined, read=partial(_read_valid, joined.read, max_nodes))


def is_graph_data(config: DataConfig, rows: Rows | None) -> bool:
    """Whether the training data has lists of nodes and edges: dictionaries, JSON lines, or a folder of graphs."""
    if rows is not None or len(config.train) != 1:
        return isinstance(rows, NamedRows) and set(FIELDS) <= set(rows.names)
    path = Path(config.train[0])
    if is_graph_folder(path):
        return True
    is_json = (config.format or FORMAT_OF_SUFFIX.get(format_suffix(path))) == "jsonl"
    return is_json and path.is_file() and set(FIELDS) <= set(describe(path, encoding=config.encoding).lists)


def _graph_role(config: DataConfig, rows: Rows | None) -> str:
    """The role of the graph: the name of its column, where a table has one that is usual."""
    if config.columns or is_builtin(config) or (rows is not None and not isinstance(rows, NamedRows)):
        return "graph"
    names = rows.names if isinstance(rows, NamedRows) else open_source(config, ("graph", "label")).train.names
    plain = [name.strip().lower() for name in names]
    return next((name for name in GRAPH_COLUMNS if name in plain), "graph")


def _open_graph_files(
    config: DataConfig, target: str, properties: PropertyColumns | None, paths: Sequence[str]
) -> Table:
    (path,) = map(Path, paths)
    if is_graph_folder(path):
        graphs = list(read_graph_folder(path, config.encoding))
        table = _record_table(
            config, target, properties, graph_folder_paths(path), partial(iter, graphs), [graphs[0][1]]
        )
        return replace(table, folder=path, inferred=[describe_graph_folder(path)])

    def read() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(iter_json_lines(path, encoding=config.encoding), 1):
            yield number, BLANK if not line or line.isspace() else _decoded(line)

    sample = [record for _, record in zip(range(100), (each for _, each in read()), strict=False)]
    return _record_table(config, target, properties, (path,), read, sample)


def _decoded(line: str) -> Any:
    """The value on a line, with numbers as numbers, so that a graph as text is written as in the file."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _record_table(
    config: DataConfig,
    target: str,
    properties: PropertyColumns | None,
    paths: tuple[Path, ...],
    read: Callable[[], Iterator[tuple[int, Any]]],
    sample: Sequence[Any],
) -> Table:
    names = list(dict.fromkeys(key for record in sample if isinstance(record, dict) for key in record))
    where = paths[0].name if paths else "the table in memory"
    fields = (_target_field(config, names, where),) if properties is None else properties.properties
    if missing := [name for name in fields if name not in names]:
        raise DataError(f"no graph of {where} has a field {missing[0]!r}{nearest(missing[0], names)}")
    inferred = [f"read {where} as JSON lines of graphs; {target}: {', '.join(fields)}"] if paths else []
    return Table(
        paths=paths,
        format="jsonl" if paths else "rows",
        roles=("graph", target),
        columns=("graph", *fields),
        names=tuple(names),
        inferred=[*describe_encoding(paths, config.encoding), *inferred],
        skip_bad=config.skip_bad,
        read=partial(_read_records, read, fields, may_lack=properties is not None),
    )


def _target_field(config: DataConfig, names: Sequence[str], where: str) -> str:
    others = [name for name in names if name not in (*FIELDS, DIRECTED)]
    named = [name for name in config.columns if name not in (*FIELDS, "graph")]
    if len(named) > 1 or (named and named[0] not in others):
        raise DataError(f"data.columns must name the target among {', '.join(others)}, got {', '.join(config.columns)}")
    if named:
        return named[0]
    for name in _TARGETS:
        if name in others:
            return name
    if len(others) != 1:
        found = f"{format_count(len(others), 'field')} beside nodes and edges"
        raise DataError(f"which field of {where} is the target? It has {found}: set data.columns")
    return others[0]


def _read_records(
    read: Callable[[], Iterator[tuple[int, Any]]], fields: Sequence[str], *, may_lack: bool
) -> Iterator[Record]:
    """The graph of each record as text, and its targets; a target that is a list is JSON, one that is null empty."""
    required = FIELDS if may_lack else (*FIELDS, *fields)
    for line, record in read():
        if record == BLANK:
            yield line, (), BLANK
        elif not isinstance(record, Mapping):
            yield line, (), "invalid JSON, or no object"
        elif missing := [name for name in required if name not in record]:
            yield line, (), f"no field {missing[0]!r}"
        else:
            targets = [_target_text(record.get(field), may_lack=may_lack) for field in fields]
            wrong = [field for field, target in zip(fields, targets, strict=True) if target is None]
            if wrong:
                yield line, (), f"{value_kind(record[wrong[0]])} in field {wrong[0]!r}"
            else:
                yield line, (graph_text(record), *map(str, targets)), ""


def _target_text(value: Any, *, may_lack: bool) -> str | None:
    if value is None and may_lack:
        return ""
    is_list = isinstance(value, list | tuple) and not may_lack
    return json.dumps(value, ensure_ascii=False) if is_list else as_text(value)


def _read_valid(read: Callable[[], Iterator[Record]], max_nodes: int) -> Iterator[Record]:
    """The records, those with an invalid graph or with other features than the first as faulty ones."""
    first: Graph | None = None
    for line, values, fault in read():
        if not fault and all(value.strip() for value in values):  # the table reports empty values
            try:
                graph = parse_graph(values[0])
                fault = same_kind(first, graph)
                if graph.num_nodes > max_nodes:
                    fault = f"{format_count(graph.num_nodes, 'node')}, more than task.max_nodes={max_nodes}"
                if first is None or (not len(first.ends) and len(graph.ends)):
                    first = graph
            except DataError as error:
                fault = str(error)
        yield line, () if fault else values, fault
