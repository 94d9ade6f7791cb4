"""`regard embed`: embeddings of texts, and search by them."""

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import Device, Json, Quiet, RunPath, argument, configure_logging, option, print_json
from regard.cli.predict import lines_of_stdin
from regard.errors import ConfigError, DataError

if TYPE_CHECKING:
    from regard.runs.run import Run

_LINES_AT_ONCE = 1_024


def embed_command(
    run: RunPath,
    texts: Annotated[list[str] | None, argument("TEXT", "Texts; unset, the lines of stdin.")] = None,
    to: Annotated[str | None, option("Write the embeddings to this .npz file instead of printing them.")] = None,
    search: Annotated[str | None, option("Print the lines of this file that are most similar to each text.")] = None,
    top: Annotated[int, typer.Option(min=1, help="The number of lines for each text.")] = 5,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Print the embedding of each text, a vector of length 1: numbers separated by tabs, one line each.

    With --search, print lines of a file instead, the most similar first: the cosine, the line number, and the line; for
    several texts, each line begins with its text.

    Examples:

      regard embed runs/minilm "A man is eating food." "Somebody has lunch."

      regard embed runs/minilm --to vectors.npz < sentences.txt

      regard embed runs/minilm --search sentences.txt --top 3 "Who is hungry?"
    """
    configure_logging(quiet=quiet)
    from regard.runs.run import load

    if to is not None and search is not None:
        raise ConfigError("--to and --search cannot be combined")
    if to is not None and Path(to).suffix != ".npz":
        raise ConfigError(f"the name of the output file must end in .npz, got {to}")
    loaded = load(run, device=device)
    if search is not None:
        _print_found(_found(loaded, list(_texts(texts)), search, top), json)
    elif to is not None:
        _write(loaded, list(_texts(texts)), to, json)
    else:
        _print_vectors(loaded, _texts(texts), json)


def _texts(given: list[str] | None) -> Iterator[str]:
    """The given texts, or the lines of stdin: at least one."""
    texts = iter(given) if given else lines_of_stdin()
    first = next(texts, None)
    if first is None:
        raise ConfigError("there is no text to embed")
    yield first
    yield from texts


def _print_vectors(run: "Run", texts: Iterator[str], as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    while chunk := list(islice(texts, _LINES_AT_ONCE)):
        for text, vector in zip(chunk, run.embed(chunk).tolist(), strict=True):
            if as_json:
                rows.append({"text": text, "vector": vector})
            else:
                print("\t".join(f"{number:.6g}" for number in vector), flush=True)
    if as_json:
        print_json({"embeddings": rows})


def _write(run: "Run", texts: list[str], to: str, as_json: bool) -> None:
    import numpy as np

    from regard.files import write_atomically

    vectors = run.embed(texts)
    buffer = io.BytesIO()
    np.savez(buffer, embeddings=vectors)
    write_atomically(Path(to), buffer.getvalue())
    if as_json:
        print_json({"file": to, "texts": len(texts), "model_dim": vectors.shape[1]})
    else:
        print(to)


def _found(run: "Run", queries: list[str], path: str, top: int) -> list[dict[str, Any]]:
    """For each query the lines nearest to it, by cosine."""
    from regard.data.formats.files import iter_lines

    lines = [(number, line) for number, line in enumerate(iter_lines(path), start=1) if line.strip()]
    if not lines:
        raise DataError(f"{path} has only blank lines")
    vectors = run.embed([line for _, line in lines])
    found = []
    for query, scores in zip(queries, run.embed(queries) @ vectors.T, strict=True):
        nearest = (-scores).argsort(kind="stable")[:top].tolist()
        hits = [{"score": float(scores[n]), "line": lines[n][0], "text": lines[n][1]} for n in nearest]
        found.append({"query": query, "found": hits})
    return found


def _print_found(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"results": found})
        return
    for each in found:
        before = [" ".join(each["query"].split())] if len(found) > 1 else []
        for hit in each["found"]:
            print("\t".join([*before, f"{hit['score']:.4f}", str(hit["line"]), hit["text"]]))
