"""Predictions for the rows of a table, written in their order as a table of any format."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from regard.data.formats.images import locate_image
from regard.data.formats.messages import format_count
from regard.data.formats.records import (
    RecordTable,
    cell,
    choose_inputs,
    describe_inputs,
    input_text,
    open_records,
    require_other_file,
    write_records,
    written_format,
)
from regard.errors import DataError
from regard.logging import log_info, log_warning, progress_bar
from regard.tasks.capabilities import RecordReader, SubjectPredictor
from regard.tasks.content import Prediction, ServerSchema
from regard.tasks.task import Task
from regard.tasks.text import SEPARATOR
from regard.text.tokenizer import Tokenizer

ROWS_AT_ONCE = 256

AnyTable = str | os.PathLike[str] | Sequence[Any]
TableOut = str | os.PathLike[str] | TextIO


@dataclass(frozen=True)
class TableInputs:
    """Where the inputs of a task are in a table."""

    task: Task[Any]
    own: Sequence[str]
    """The columns of training."""
    schema: ServerSchema
    is_one_part: bool
    """Whether the second part of an input is given, as an aspect is."""
    tokenizer: Tokenizer | None

    def predict(
        self,
        data: AnyTable,
        predict: Callable[[list[str]], list[list[Prediction]]],
        *,
        out: TableOut | None,
        columns: Sequence[str] | None,
        encoding: str | None,
    ) -> list[dict[str, Any]] | None:
        """The rows with the columns of predictions, or None where they were written to `out`.

        Args:
            data: A file or rows in memory.
            predict: The predictions of each of some inputs.
            out: Where to write.
            columns: The columns of the input; None for those of training, or the one of text.
            encoding: That of the file; None to detect it.
        """
        parts = self.schema.inputs[:1] if self.is_one_part else self.schema.inputs
        check_out(data, out)
        table = open_records(data, wanted=columns, own=self.own[: len(parts)], encoding=encoding)
        table.check()
        added = self.task.prediction_columns
        if twice := [name for name in added if name in table.names]:
            raise DataError(f"{table.name} already has a column {twice[0]!r}: rename it, or remove it")
        first, task = next(iter(table), None), self.task
        if first is not None and isinstance(task, RecordReader) and task.input_of_record(first) is not None:
            rows = self._rows(table, lambda row: task.input_of_record(row) or "", predict)
        else:
            chosen, reason = choose_inputs(table, parts, wanted=columns, own=self.own)
            log_info(f"{describe_inputs(parts, chosen, reason)}")
            reads_files = self.schema.reads_files and isinstance(data, str | os.PathLike)
            folder = Path(data).parent if reads_files else None  # pyright: ignore[reportArgumentType]  a path then
            rows = self._rows(table, lambda row: _input_of(row, chosen, folder), predict)
        if out is None:
            return list(rows)
        write_records(out, rows, table, added)
        return None

    def _rows(
        self,
        table: RecordTable,
        read: Callable[[Mapping[str, Any]], str],
        predict: Callable[[list[str]], list[list[Prediction]]],
    ) -> Iterator[dict[str, Any]]:
        num_empty = num_unknown = num_before = 0
        rows = progress_bar(table, "predicting", total=table.num_rows)
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            inputs = [read(row) for row in chunk]
            full = [text for text in inputs if text]
            num_empty += len(inputs) - len(full)
            if self.tokenizer is not None:
                num_unknown += self.tokenizer.count_unknown(self.tokenizer.encode(full))
            try:
                found = iter(predict(full))
            except DataError as error:
                raise _located(error, inputs, predict, f"{table.name}, row {{:,}}", num_before) from None
            num_before += len(chunk)
            for row, text in zip(chunk, inputs, strict=True):
                answer = _answer_of(next(found)) if text else {}
                yield {**row, **{name: answer.get(name) for name in self.task.prediction_columns}}
        if num_empty:
            them = "it" if num_empty == 1 else "them"
            log_warning(f"{format_count(num_empty, 'row')} without an input: no prediction is made for {them}")
        if num_unknown:
            verb = "is" if num_unknown == 1 else "are"
            log_warning(f"{format_count(num_unknown, 'token')} of the input {verb} not in the vocabulary")


def _located(
    error: DataError,
    inputs: Sequence[str],
    predict: Callable[[list[str]], list[list[Prediction]]],
    where: str,
    num_before: int,
) -> DataError:
    """The error with the row of its input, which is found by one prediction for each."""
    for number, text in enumerate(inputs, num_before + 1):
        try:
            if text:
                predict([text])
        except DataError as own:
            return DataError(f"{where.format(number)}: {own}")
    return error


def predict_subjects(
    task: SubjectPredictor, model: Any, data: AnyTable, out: TableOut | None, **options: Any
) -> list[dict[str, Any]] | None:
    """A row for each subject of a table whose rows are not inputs one by one; options are those of the task."""
    check_out(data, out)
    rows = task.predict_subjects(model, data, **options)
    if out is None:
        return rows
    write_table(out, rows, tuple(rows[0]))
    return None


def write_table(out: TableOut, rows: Sequence[dict[str, Any]], names: tuple[str, ...]) -> None:
    """Write rows that are no table yet."""
    table = RecordTable(name="the predictions", format="rows", read=lambda: iter(()), names=names)
    write_records(out, iter(rows), table, {})


def check_out(data: Any, out: TableOut | None) -> None:
    """Raise where `out` is of no format that is written, or is the file that is read."""
    if isinstance(out, str | os.PathLike):
        written_format(out)
        if isinstance(data, str | os.PathLike):
            require_other_file(out, data)


def _input_of(row: Mapping[str, Any], columns: Sequence[str], folder: Path | None) -> str:
    """The input in a row of a table, empty if a part of it is; a path of a file is relative to the table."""
    texts = [input_text(cell(row, name)) for name in columns]
    if not all(text.strip() for text in texts):
        return ""
    if len(texts) > 1:
        texts = [text.replace(SEPARATOR, " ") for text in texts]
    return SEPARATOR.join(texts) if folder is None else locate_image(texts[0], folder)


def _answer_of(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The columns that a table gets; of several aspects, JSON objects with a value for each."""
    if len(predictions) == 1:
        return predictions[0].to_row()
    return {"prediction": json.dumps({str(each.key): each.output for each in predictions}, ensure_ascii=False)}
