"""`regard predict`: the output for each input."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Encoding, remedies, split_names
from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, configure_logging, option, print_json
from regard.errors import ConfigError, DataError

if TYPE_CHECKING:
    from regard.runs.run import Run

_LINES_AT_ONCE = 256


def predict_command(
    run: RunPath,
    texts: Annotated[list[str] | None, argument("TEXT", "Inputs, or paths of images; unset: stdin.")] = None,
    file: Annotated[str | None, option("A table of inputs: .csv, .tsv, .jsonl, .parquet, .xlsx.")] = None,
    out: Annotated[str | None, option("With --file: the table to write, by its suffix. Unset or -: stdout.")] = None,
    columns: Annotated[str | None, option("With --file: the column(s) of the input. Unset: as in training.")] = None,
    encoding: Encoding = None,
    plot: Annotated[str | None, option("Draw the first subjects and risks (.png, .svg), or tree (.svg).")] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Draw trees over several lines, as in a terminal.")] = False,
    paths: Annotated[int | None, option("For events: simulated continuations of each subject.")] = None,
    also: Annotated[list[str] | None, option("A further run with LoRA on the same base.")] = None,
    aspect: Annotated[str | None, option("For aspect sentiment: the aspect; unset, each aspect.")] = None,
    beam: Beam = None,
    temperature: Annotated[float | None, option("Sampling temperature; 1 is the model's distribution.")] = None,
    top_k: Annotated[int | None, option("Sample among the k most probable tokens.")] = None,
    top_p: Annotated[float | None, option("Sample among the fewest tokens whose probabilities sum to P.")] = None,
    min_p: Annotated[float | None, option("Sample among tokens with at least P times the top probability.")] = None,
    max_tokens: Annotated[int | None, option("The largest number of tokens to generate.")] = None,
    seed: Annotated[int | None, option("The random seed of sampling.")] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Print the output for each input, one line each; a line break in an output becomes a space.

    With --file, the input is a table: its rows are written in their order, with the columns prediction and
    probability, and for taggers spans (JSON). A table of events may be given without --file; its result has a row for
    each subject.

    For aspect sentiment without --aspect there is a line for each aspect, which begins with the aspect. With --also
    there is a line for each run, which begins with the run's name; the base that they share is loaded once.

    Examples:

      regard predict runs/dates "4 March 2025"

      regard predict runs/meals "good soup, rude waiter" --aspect food

      regard predict runs/tone --also runs/topic "a film to remember"

      regard predict runs/reviews --file reviews.csv --columns text --out labeled.csv

      cat inputs.txt | regard predict runs/dates --beam 5 > outputs.txt

      regard predict runs/images photo.jpg other.png --json

      regard predict runs/patients new.csv --out next.csv --plot risks.png

      regard predict runs/parser "The dog barked ." --tree --plot tree.svg
    """
    configure_logging(quiet=quiet)
    from regard.runs.adapters import load_adapters
    from regard.runs.run import load
    from regard.tasks.capabilities import OutputDrawer, SubjectPredictor

    given = {"beam_size": beam, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
             "max_tokens": max_tokens, "seed": seed}  # fmt: skip
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if file is not None:
        if texts or also or tree:
            other = "texts" if texts else "--also" if also else "--tree"
            raise ConfigError(f"--file cannot be combined with {other}")
        table_options = {**options, "aspect": aspect, "columns": split_names(columns), "encoding": encoding,
                         "num_paths": paths}  # fmt: skip
        with remedies():
            _predict_file(load(run, device=device), file, out, table_options, plot, json=json)
        return
    if texts and len(texts) == 1 and not also and os.path.isfile(texts[0]):  # a long text is no name of a file
        opened = load(run, device=device)
        if isinstance(opened.task, SubjectPredictor):
            table_options = {**options, "columns": split_names(columns), "encoding": encoding, "num_paths": paths}
            _predict_file(opened, texts[0], out, table_options, plot, json=json)
            return
    for name, value in {"--out": out, "--columns": columns, "--encoding": encoding, "--paths": paths}.items():
        if value is not None:
            raise ConfigError(f"{name} needs --file")
    loaded = load_adapters([run, *also], device=device) if also else {"": load(run, device=device)}
    for each in loaded.values():
        each.generation(**options)  # so that a wrong option is reported before anything is read
        if not each.task.server_schema([]).reads_files:
            _refuse_paths(texts or [])
    drawers = {name: each.task for name, each in loaded.items() if isinstance(each.task, OutputDrawer)}
    if plot is not None:
        _check_plot(plot, has_drawing=len(drawers) == len(loaded), has_text=bool(texts))
    if tree and len(drawers) < len(loaded):
        other = next(name for name in loaded if name not in drawers) or run
        raise ConfigError(f"--tree is for runs that predict trees, and {other} is not one")
    given_options = {**options, "aspect": aspect}
    answers = chain(*_predict(loaded, [texts], given_options)) if texts else _predict_lines(loaded, given_options)
    if plot is not None:
        first = next(answers)
        loaded[first.get("run", "")].plot_output(first["output"], plot)
        answers = chain([first], answers)
    if json:
        print_json({"predictions": list(answers)})
        return
    for answer in answers:
        named = f"{answer['run']}\t" if also else ""
        drawer = drawers.get(answer.get("run", "")) if tree or sys.stdout.isatty() else None
        if drawer is not None and answer["output"]:
            print(named + "\n" * bool(named) + drawer.output_as_text(answer["output"]), flush=True)
            continue
        judged = f"{answer['aspect']}\t" if aspect is None and "aspect" in answer else ""
        print(named + judged + " ".join(answer["output"].splitlines()), flush=True)


def _predict_file(
    run: "Run", file: str, out: str | None, options: dict[str, Any], plot: str | None = None, *, json: bool
) -> None:  # fmt: skip
    """Predict for the rows of a table; with --json, print the rows, or where they were written."""
    if plot is not None:
        run.plot_timelines(file, plot, columns=options["columns"], encoding=options["encoding"])
    drawn = {} if plot is None else {"plot": plot}
    if out is None or out == "-":
        if json:
            print_json({"file": file, "rows": run.predict_table(file, **options), **drawn})
        else:
            run.predict_table(file, out=sys.stdout, **options)
        return
    run.predict_table(file, out=out, **options)
    print_json({"file": file, "out": out, **drawn}) if json else print("\n".join(filter(None, (out, plot))))


def _check_plot(path: str, *, has_drawing: bool, has_text: bool) -> None:
    """Raise unless the output for a text can be drawn there, before anything is predicted."""
    from regard.explanation.panels import require_plot_path

    if not has_drawing:
        raise ConfigError("--plot needs --file")
    if not has_text:
        raise ConfigError("--plot draws the tree of a text, and none is given")
    require_plot_path(path, (".svg",))


def _refuse_paths(texts: Sequence[str]) -> None:
    """Raise where a text is the path of a file, which is not what a model of texts can judge."""
    for text in texts:
        if Path(text).suffix and os.path.isfile(text):
            raise ConfigError(f"{text} is a file, and a text is expected: --file {text} predicts for its rows")


def _predict(
    runs: Mapping[str, "Run"], chunks: Iterable[list[str]], options: dict[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    """For each input one prediction of each run, or one for each aspect."""
    for chunk in chunks:
        found = [run.predict_grouped(chunk, **options) for run in runs.values()]
        for of_input in zip(*found, strict=True):
            named = zip(runs, of_input, strict=True)
            yield [_named(name, prediction.to_json()) for name, some in named for prediction in some]


def _predict_lines(runs: Mapping[str, "Run"], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A blank line gives a blank line of each run, so that inputs and outputs stay aligned."""
    for lines in _chunks_of_stdin():
        answers = _predict(runs, [[line for line in lines if line.strip()]], options)
        for line in lines:
            nothing = {"input": line, "output": "", "score": None}
            yield from next(answers) if line.strip() else [_named(name, nothing) for name in runs]


def _named(name: str, answer: dict[str, Any]) -> dict[str, Any]:
    """With the name of the run, where there are several."""
    return {"run": name, **answer} if name else answer


def _chunks_of_stdin() -> Iterator[list[str]]:
    at_once = _LINES_AT_ONCE
    if sys.stdin.isatty():
        print("reading lines from the terminal; end with Ctrl-D", file=sys.stderr)
        at_once = 1
    lines = lines_of_stdin()
    while chunk := list(islice(lines, at_once)):
        yield chunk


def lines_of_stdin() -> Iterator[str]:
    """The lines of stdin: UTF-8, whatever the locale, ended by a line feed only."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"the input is not UTF-8: line {number:,}, byte {error.start + 1:,} is 0x{line[error.start]:02x}"
            ) from None
