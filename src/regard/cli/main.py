"""The `regard` command: each sub-command is one file that parses, calls and prints."""

import os
import signal
import sys
from typing import Any

import typer

from regard.cli import (
    attention,
    bound,
    certificate,
    compare,
    data,
    demo,
    embed,
    evaluate,
    export,
    finetune,
    generate,
    importing,
    lab,
    merge,
    predict,
    serve,
    settings,
    sweep,
    train,
)
from regard.cli.output import fail
from regard.errors import RegardError

app = typer.Typer(
    name="regard",
    help="From a file of sequences to a model you can trust.",
    epilog="Try: regard demo · regard train pairs.tsv --minutes 5 · regard predict runs/pairs 'some text'",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help is there in half the time
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", short_help="Learn dates in two minutes, and look inside.")(demo.demo)
app.command("train", short_help="Train a model on a file, and report.")(train.train)
app.command("finetune", short_help="Go on from a model, on rows of your own.")(finetune.finetune)
app.command("merge", short_help="Make a run with LoRA stand alone.")(merge.merge)
app.command("import", short_help="Bring a pretrained model in.")(importing.import_)
app.command("export", short_help="Write a model for others to load.")(export.export)
app.command("compare", short_help="Train several models, and say which is better.")(compare.compare)
app.command("sweep", short_help="Search settings, and count the luck.")(sweep.sweep)
app.command("predict", short_help="Print the model's output for each input.")(predict.predict)
app.command("generate", short_help="Let a language model go on from a prompt.")(generate.generate)
app.command("score", short_help="Print how probable a language model holds a text.")(generate.score)
app.command("embed", short_help="Print vectors of texts, or find like ones.")(embed.embed)
app.command("serve", short_help="Answer by HTTP, with a page to try a model.")(serve.serve)
app.command("evaluate", short_help="Score a run on a file.")(evaluate.evaluate)
app.command("test", short_help="Score a run on its own test rows.")(evaluate.test)
app.command("certificate", short_help="Say what a run's score is worth.")(certificate.certificate)
app.command("attention", short_help="Draw who looked at whom.")(attention.attention)
app.command("bound", short_help="Bound a score chosen among many.")(bound.bound)
app.command("lab", short_help="Run a study of what the lectures claim.")(lab.lab)
app.command("settings", short_help="Print all settings as TOML.")(settings.settings)
app.add_typer(data.app, name="data")

_UsageError: Any = typer.BadParameter.__bases__[0]
"""What every mistake on the command line is; typer has no public name for it."""
_INTERRUPTED = 128 + signal.SIGINT


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if show:
        from regard.version import version as installed

        print(f"regard {installed()}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error the user can mend is one line on stderr and exit code 2."""
    try:
        sys.exit(_run())
    except RegardError as error:
        sys.exit(fail(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _run() -> int:
    try:
        code = app(prog_name="regard", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:  # typer's own answer to a broken pipe
        return 0
    except _UsageError as error:
        return _tell(error)
    except typer.Abort:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        print("regard: interrupted", file=sys.stderr)
    return code or 0


def _tell(error: Any) -> int:
    """Say what is wrong with the command line and where its help is; for a bare `regard`, print the help."""
    message, context = error.format_message(), error.ctx
    if context is not None and message == context.get_help():
        print(message)
    else:
        place = "regard" if context is None else context.command_path
        print(f"regard: {' '.join(message.split())} (see {place} --help)", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()
