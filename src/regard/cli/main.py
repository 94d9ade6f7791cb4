"""The `regard` command: each sub-command is one file that parses, calls and prints."""

import os
import sys

import typer

from regard.cli import attention, data, demo, evaluate, predict, settings, train
from regard.cli.output import fail
from regard.errors import RegardError

app = typer.Typer(
    name="regard",
    help="From a file of sequences to a model you can trust.",
    epilog="Try: regard demo · regard train pairs.tsv --minutes 5 · regard predict runs/pairs 'some text'",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("test")(evaluate.test)
app.command("attention")(attention.attention)
app.command("settings")(settings.settings)
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if show:
        from regard.version import version as installed

        print(f"regard {installed()}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error the user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except RegardError as error:
        sys.exit(fail(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
