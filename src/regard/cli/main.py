"""The `regard` command: each subcommand is one file that parses, calls and prints."""

import os
import signal
import sys
from functools import partial
from typing import Any

import typer
from pydantic import ValidationError

from regard.cli import (
    align,
    attention,
    bound,
    certificate,
    chat,
    check,
    compare,
    data,
    demo,
    embed,
    evaluate,
    export,
    finetune,
    forecast,
    generate,
    importing,
    lab,
    merge,
    plan,
    predict,
    rollout,
    serve,
    settings,
    sweep,
    train,
)
from regard.cli.options import StepsAreOptional
from regard.cli.output import Command, fail
from regard.errors import ConfigError, RegardError
from regard.startup import collect_rarely

app = typer.Typer(
    name="regard",
    help="Train models of sequences from a file, and measure how far their scores can be trusted.",
    epilog=(
        "\b\nTry:\n  regard demo\n  regard train pairs.tsv --minutes 5 --out runs/pairs\n"
        "  regard predict runs/pairs 'some text'\n\nregard COMMAND --help has the options of a command, with examples."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help takes half the time
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_command = partial(app.command, cls=Command)
_command("demo", short_help="Train, compare, explain and certify on built-in data, in two minutes.")(demo.demo_command)
_command("train", short_help="Train a model on a file.", cls=StepsAreOptional)(train.train_command)
_command("finetune", short_help="Fine-tune a model on your rows.")(finetune.finetune_command)
_command("align", short_help="Align a language model with preferences or a reward.")(align.align_command)
_command("merge", short_help="Merge LoRA updates into the weights.")(merge.merge_command)
_command("import", short_help="Import a pretrained model.")(importing.import_command)
_command("export", short_help="Export a model to another format.")(export.export_command)
_command("compare", short_help="Train several models and test their differences.")(compare.compare_command)
_command("sweep", short_help="Search settings, with bounds on the selected score.", cls=StepsAreOptional)(
    sweep.sweep_command
)
_command("plan", short_help="Compute the memory and time of training on many devices.")(plan.plan_command)
_command("predict", short_help="Print the output for each input.")(predict.predict_command)
_command("forecast", short_help="Forecast the next steps of series.")(forecast.forecast_command)
_command("rollout", short_help="Run a policy in an environment.")(rollout.rollout_command)
_command("generate", short_help="Generate text from a prompt.")(generate.generate_command)
_command("chat", short_help="Chat with a model in the terminal.")(chat.chat_command)
_command("score", short_help="Print the log-probability of a text.")(generate.score_command)
_command("embed", short_help="Print embeddings of texts, or search by them.")(embed.embed_command)
_command("serve", short_help="Serve models over HTTP, with a page to try them.")(serve.serve_command)
_command("evaluate", short_help="Score a run on a file.")(evaluate.evaluate_command)
_command("test", short_help="Score a run on its sealed test set.")(evaluate.test_command)
_command("certificate", short_help="Print confidence bounds on a run's score.")(certificate.certificate_command)
_command("check", short_help="Check that resuming, caching and exporting change no result.")(check.check_command)
_command("attention", short_help="Plot attention maps.")(attention.attention_command)
_command("bound", short_help="Bound the score of the best of many candidates.")(bound.bound_command)
_command("lab", cls=lab.LabCommand, short_help="Run a small study, of softmax or of scaling laws.")(lab.lab_command)
_command("settings", short_help="Print all settings as TOML.")(settings.settings_command)
app.add_typer(data.data_app, name="data")

_SETTINGS = {
    "--lr": "train.learning_rate",
    "--learning-rate": "train.learning_rate",
    "--batch-size": "train.batch_tokens",
    "--warmup": "train.warmup_steps",
    "--patience": "train.patience",
    "--weight-decay": "train.weight_decay",
    "--dropout": "model.dropout",
    "--layers": "model.num_layers",
    "--heads": "model.num_heads",
    "--dim": "model.model_dim",
    "--vocab-size": "task.vocab_size",
    "--max-length": "task.max_length",
}
"""Options of other programs that are settings here; an error names the setting."""
_NEEDED = {"float": "a number", "int": "an integer"}
"""What options must be, by the beginnings of the kinds of errors of pydantic, which converts them."""
_UsageError: Any = typer.BadParameter.__bases__[0]
"""The class of errors on the command line, which typer does not export."""
_SHARED = ("train", "finetune")
"""Commands that several processes compute together."""
_INTERRUPTED = 128 + signal.SIGINT


@app.callback(invoke_without_command=True)
def print_version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if show:
        from regard.version import version

        print(f"regard {version()}")
        raise typer.Exit


def main() -> None:
    """Run the command line; a user error is one line on stderr and exit code 2."""
    collect_rarely()
    try:
        _require_alone()
        sys.exit(_run())
    except RegardError as error:
        sys.exit(fail(error))
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _require_alone() -> None:
    """Raise where torchrun has started several processes of a command that would compute the same in each."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if os.environ.get("WORLD_SIZE", "1") != "1" and command not in (None, *_SHARED):
        raise ConfigError(f"torchrun is for {' and '.join(f'regard {each}' for each in _SHARED)}, got regard {command}")


def _run() -> int:
    try:
        code = app(prog_name="regard", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:  # typer's reaction to a broken pipe
        return 0
    except _UsageError as error:
        return _print_usage_error(error)
    except typer.Abort:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        print("regard: interrupted", file=sys.stderr)
    return code or 0


def _print_usage_error(error: Any) -> int:
    """Print what is wrong with the command line and where its help is; for a bare `regard`, the help."""
    message, context = error.format_message(), error.ctx
    if context is not None and message == context.get_help():
        print(message)
    else:
        place = "regard" if context is None else context.command_path
        message = _describe_value(error) or message
        setting = _SETTINGS.get(getattr(error, "option_name", None) or "")
        if setting is not None and context is not None and any("--set" in each.opts for each in context.command.params):
            message = f"No such option: {error.option_name}; did you mean --set {setting}=VALUE?"
        print(f"regard: {' '.join(message.split())} (see {place} --help)", file=sys.stderr)
    return error.exit_code


def _describe_value(error: Any) -> str:
    """What a value of an option must be, and what it is, where it cannot be converted; empty for another error."""
    cause, parameter = error.__cause__, getattr(error, "param", None)
    if not isinstance(cause, ValidationError) or parameter is None:
        return ""
    fault = cause.errors()[0]
    needed = next((words for kind, words in _NEEDED.items() if fault["type"].startswith(kind)), None)
    return f"{parameter.opts[0]} must be {needed}, got {fault['input']!r}" if needed else ""


if __name__ == "__main__":
    main()
