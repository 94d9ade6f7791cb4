"""The graphs of a run: JSON lines of nodes and edges, or a table with a column of SMILES or of graphs as JSON."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from regard.data.formats.cells import as_text, value_kind
from regard.data.formats.files import content_hash, describe_encoding, format_suffix, iter_lines
from regard.data.formats.graphs import DIRECTED, FIELDS, Graph, graph_text, parse_graph, same_kind
from regard.data.formats.layouts import BLANK, FORMAT_OF_SUFFIX, Record
from regard.data.formats.messages import format_count
from regard.data.formats.summary import describe
from regard.data.formats.tables import Table
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, hash_of_table, is_builtin, open_source, with_held_out
from regard.errors import DataError

GRAPH_COLUMNS = ("smiles", "graph", "molecule", "mol", "canonical_smiles")
"""What a column of graphs is called."""
_TARGETS = ("label", "labels", "target", "y", "class", "value", "number")
"""What the target of a graph is called in JSON lines; the first that a file has."""


def open_graphs(config: DataConfig, target: str, rows: Rows | None = None, *, max_nodes: int) -> Source:
    """Open the graphs that the settings name, each with its target; invalid ones are bad rows, with their lines.

    Args:
        config: Where the data is; of JSON lines, `columns` may name the field of the target.
        target: The role of the target: `label`, `number` or `labels`.
        rows: Rows in memory: pairs of a graph and a target, or dictionaries with nodes and edges.
        max_nodes: Graphs with more are bad rows.
    """
    if rows is not None and isinstance(rows, NamedRows) and set(FIELDS) <= set(rows.names):
        records = [dict(zip(rows.names, row, strict=True)) for row in rows]
        read: Any = partial(enumerate, records, 1)
        train = _record_table(config, target, (), read, records[:1])
        source = with_held_out(config, train, partial(_open_json_lines, config, target), lambda: hash_of_table(train))
    elif rows is None and len(config.train) == 1 and is_graph_file(config):
        train = _open_json_lines(config, target, config.train)
        source = with_held_out(
            config, train, partial(_open_json_lines, config, target), lambda: content_hash(train.paths)
        )
    else:
        source = open_source(config, (_graph_role(config, rows), target), rows)
    tables = {
        split: None if table is None else replace(table, read=partial(_read_valid, table.read, max_nodes))
        for split, table in (("train", source.train), ("valid", source.valid), ("test", source.test))
    }
    return replace(source, **tables)


def is_graph_file(config: DataConfig) -> bool:
    """Whether the training data is a file of JSON lines with nodes and edges."""
    path = Path(config.train[0])
    is_json = (config.format or FORMAT_OF_SUFFIX.get(format_suffix(path))) == "jsonl"
    return is_json and path.is_file() and set(FIELDS) <= set(describe(path, encoding=config.encoding).lists)


def _graph_role(config: DataConfig, rows: Rows | None) -> str:
    """The role of the graph: the name of its column, where a table has one that is usual."""
    if config.columns or is_builtin(config) or (rows is not None and not isinstance(rows, NamedRows)):
        return "graph"
    names = rows.names if isinstance(rows, NamedRows) else open_source(config, ("graph", "label")).train.names
    plain = [name.strip().lower() for name in names]
    return next((name for name in GRAPH_COLUMNS if name in plain), "graph")


def _open_json_lines(config: DataConfig, target: str, paths: Sequence[str]) -> Table:
    (path,) = map(Path, paths)

    def read() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(iter_lines(path, encoding=config.encoding), 1):
            yield number, BLANK if not line or line.isspace() else _decoded(line)

    sample = [record for _, record in zip(range(100), (each for _, each in read()), strict=False)]
    return _record_table(config, target, (path,), read, sample)


def _decoded(line: str) -> Any:
    """The value on a line, with numbers as numbers, so that a graph as text is written as in the file."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _record_table(
    config: DataConfig,
    target: str,
    paths: tuple[Path, ...],
    read: Callable[[], Iterator[tuple[int, Any]]],
    sample: Sequence[Any],
) -> Table:
    names = list(dict.fromkeys(key for record in sample if isinstance(record, dict) for key in record))
    field = _target_field(config, names, paths[0].name if paths else "the table in memory")
    inferred = [f"read {paths[0].name} as JSON lines of graphs; {target}: {field}"] if paths else []
    return Table(
        paths=paths,
        format="jsonl" if paths else "rows",
        roles=("graph", target),
        columns=("graph", field),
        names=tuple(names),
        inferred=[*describe_encoding(paths, config.encoding), *inferred],
        skip_bad=config.skip_bad,
        read=partial(_read_records, read, field),
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


def _read_records(read: Callable[[], Iterator[tuple[int, Any]]], field: str) -> Iterator[Record]:
    """The graph of each record as text, and its target; a target that is a list is JSON."""
    for line, record in read():
        if record == BLANK:
            yield line, (), BLANK
        elif not isinstance(record, Mapping):
            yield line, (), "invalid JSON, or no object"
        elif missing := [name for name in (*FIELDS, field) if name not in record]:
            yield line, (), f"no field {missing[0]!r}"
        else:
            value = record[field]
            target = json.dumps(value, ensure_ascii=False) if isinstance(value, list | tuple) else as_text(value)
            if target is None:
                yield line, (), f"{value_kind(value)} in field {field!r}"
            else:
                yield line, (graph_text(record), target), ""


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
