"""The commands that come next: what can be done with a run, for the terminal and for its report."""

import shlex
from typing import TYPE_CHECKING

from regard.selection.ledger import openings_in

if TYPE_CHECKING:  # which shows these commands itself
    from regard.runs.run import Run

_OUTPUTS = {
    "text": "the output for an input",
    "label": "the predicted label",
    "tags": "the predicted tags",
    "span": "the answer in a text",
    "vector": "the embedding of an input",
    "tree": "the predicted tree",
}


def next_commands(run: "Run") -> list[tuple[str, str]]:
    """Commands for the task of a run, each with what it gives; that of a sealed test set is the last one."""
    schema, path = run.task.server_schema([]), shlex.quote(str(run.path))
    names = [name.upper().replace(" ", "_") for name in schema.inputs]
    given = "IMAGE" if schema.reads_files else names[0] if len(names) == 1 else "$'" + "\\t".join(names) + "'"
    if run.task.next_command is not None:
        uses = [(run.task.next_command.format(run=path), run.task.output_description or _OUTPUTS[schema.output])]
    elif run.task.answers_prompts:
        uses = [(f"chat {path}", "a conversation in the terminal"), (f"predict {path} PROMPT", "one answer")]
    elif schema.streams:
        uses = [(f"generate {path} {given}", "text that continues a prompt")]
    else:
        verb = "embed" if schema.output == "vector" else "predict"
        uses = [(f"{verb} {path} {given}", run.task.output_description or _OUTPUTS[schema.output])]
    uses.append((f"evaluate {path} FILE", "scores on a file, with intervals"))
    if run.folder.has_test and not openings_in(run.folder.read_ledger()):
        uses.append((f"test {path}", "once, when all choices are made: scores on the sealed test set"))
    return [(f"regard {command}", purpose) for command, purpose in uses]
