"""Readers of data files.

Each format has one module. `open_table` infers the format of a table and reads its rows; documents, tagged sentences,
questions and images have readers of their own. `describe` summarizes a source without knowing what it is for. Every
error is a `DataError` of one line that states the file and the position.
"""

from regard.data.formats.conll import TaggedSentences, open_tagged
from regard.data.formats.images import is_image, read_image
from regard.data.formats.plain_text import Documents, Piece, TextFile
from regard.data.formats.squad import Answer, Question, Questions, open_questions
from regard.data.formats.summary import ColumnSummary, SourceSummary, describe, describe_rows
from regard.data.formats.tables import Table, TableRow, open_table, table_from_rows

__all__ = [
    "Answer",
    "ColumnSummary",
    "Documents",
    "Piece",
    "Question",
    "Questions",
    "SourceSummary",
    "Table",
    "TableRow",
    "TaggedSentences",
    "TextFile",
    "describe",
    "describe_rows",
    "is_image",
    "open_questions",
    "open_table",
    "open_tagged",
    "read_image",
    "table_from_rows",
]
