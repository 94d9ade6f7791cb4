"""`regard plan`: the memory and the time that training takes, before it is started."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import SetValues
from regard.cli.output import Json, numbers, option, print_json
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.training.plan import Plan

_PIPED_WIDTH = 160
"""Columns of a table where stdout is no terminal."""


def plan_command(
    model: Annotated[str, option("A preset, with or without a size: gpt-base, transformer, vit-small.", "--model")],
    gpus: Annotated[str | None, option("Numbers of devices: 8, or 1,8,64. Unset: 1 to 1,024.")] = None,
    hardware: Annotated[str, typer.Option(help="h200, h100, a100, rtx4090 or cpu.")] = "h200",
    batch_tokens: Annotated[
        int | None, option("Tokens of a batch on each device. Unset: 8,192, on a CPU 1,024.")
    ] = None,
    context: Annotated[int | None, option("Tokens of a row. Unset: 1,024, or as many as the model can read.")] = None,
    vocab_size: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = 32_000,
    sharding: Annotated[str, typer.Option(help="none, or full: weights and states are divided.")] = "none",
    tensor_parallel: Annotated[int, typer.Option(help="Devices of a node that share each layer.")] = 1,
    optimizer: Annotated[str, typer.Option(help="adamw, muon or another of train.optimizer.")] = "adamw",
    precision: Annotated[str | None, option("bfloat16 or float32. Unset: bfloat16, on a CPU float32.")] = None,
    activation_checkpointing: Annotated[
        bool,
        typer.Option("--activation-checkpointing", help="Compute the inside of blocks again in the backward pass."),
    ] = False,
    no_ema: Annotated[bool, typer.Option("--no-ema", help="Keep no average of the weights.")] = False,
    compile: Annotated[bool, typer.Option("--compile", help="With torch.compile.")] = False,
    network: Annotated[float | None, option("Gb/s between nodes for each device. Unset: that of the hardware.")] = None,
    tokens: Annotated[float | None, option("Tokens of the whole training, such as 1e9.")] = None,
    set_: SetValues = None,
    json: Json = False,
) -> None:
    """Compute the memory of each device and the time of a step, from one device to a thousand.

    Nothing is trained: the weights are counted, and a step is traced on tensors without data. The device need not
    exist here. docs/scale.md has the formulas, and how far they are from what was measured.

    Examples:

      regard plan --model gpt-base --tokens 1e9

      regard plan --model llama-big --gpus 1,8,64 --hardware a100 --sharding full --activation-checkpointing

      regard plan --model gpt-big --set model.num_layers=48 --set model.model_dim=2048 --tensor-parallel 2 --gpus 8
    """
    from regard.settings import override
    from regard.training.plan.plan import NUM_DEVICES, plan

    devices = NUM_DEVICES if gpus is None else _numbers_of_devices(gpus)
    if gpus is None and tensor_parallel > 1:
        devices = [number for number in devices if number % tensor_parallel == 0]
    found = plan(
        model,
        gpus=devices,
        hardware=hardware,
        settings=override({}, set_ or []),
        batch_tokens=batch_tokens,
        context=context,
        vocab_size=vocab_size,
        sharding=sharding,
        tensor_parallel=tensor_parallel,
        optimizer=optimizer,
        precision=precision,
        activation_checkpointing=activation_checkpointing,
        ema=not no_ema,
        compile=compile,
        network=network,
        tokens=tokens,
    )
    if json:
        print_json(found.to_json())
        return
    _print(found)


def _numbers_of_devices(text: str) -> list[int]:
    found = numbers("--gpus", text)
    if min(found) < 1:
        raise ConfigError(f"--gpus must be at least 1, got {text}")
    return found


def _print(found: "Plan") -> None:
    from rich.console import Console

    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    for part in (*_summary(found), "", _memory_table(found), "", _time_table(found), "", *_remarks(found)):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))


def _summary(found: "Plan") -> list[str]:
    how = [f"{found.sharding} sharding", found.optimizer, found.precision]
    how += [f"tensor parallelism of {found.tensor_parallel}"] if found.tensor_parallel > 1 else []
    how += ["activation checkpointing"] if found.activation_checkpointing else []
    how += ["compiled"] if found.compiled else []
    return [
        f"{found.model}: {found.parameters:,} parameters on {found.device}, {_size(found.usable)} for tensors",
        f"{', '.join(how)}; a batch on each device: {found.rows_per_device:,} x {found.context:,} {found.unit}",
    ]


def _memory_table(found: "Plan") -> Any:
    names = ["weights", "gradients", "optimizer", "ema", "copies", "activations", "loss"]
    names += ["evaluation"] if any(row.memory.evaluation for row in found.rows) else []
    names.append("peak")
    table = _table("memory of each device", ["devices", *names, "fits"])
    for row in found.rows:
        sizes = [_size(getattr(row.memory, name)) for name in names]
        table.add_row(f"{row.devices:,}", *sizes, "yes" if row.fits else "no")
    return table


def _time_table(found: "Plan") -> Any:
    columns = ["devices", "compute", "memory", "communication", "waited", "step", "limit"]
    has_total = found.rows[0].seconds is not None
    columns += [f"{found.unit}/step", f"{found.unit}/s", "model FLOPs", *(["all tokens"] if has_total else [])]
    table = _table("time of a step", columns)
    for row in found.rows:
        time = row.time
        parts = [_duration(s) for s in (time.compute, time.memory, time.communication, time.exposed, time.total)]
        cells = [*parts, time.limit, f"{row.batch_tokens:,}", f"{row.tokens_per_second:,.0f}"]
        cells += [f"{row.flops_utilization:.0%}", *([] if row.seconds is None else [_duration(row.seconds)])]
        table.add_row(f"{row.devices:,}", *cells)
    return table


def _table(title: str, columns: list[str]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _remarks(found: "Plan") -> list[str]:
    lines = []
    fitting = [row.devices for row in found.rows if row.fits]
    if len(fitting) < len(found.rows):
        biggest = max(("weights", "gradients", "optimizer", "ema", "activations", "loss", "evaluation"),
                      key=lambda name: getattr(found.rows[-1].memory, name))  # fmt: skip
        least = f"from {fitting[0]:,} devices on it fits" if fitting else "it fits on none of these"
        lines.append(f"{least}; the largest part on the most devices: {biggest}")
    if found.kv_cache is not None:
        number = max(0, (found.usable - found.inference_weights) // max(1, found.kv_cache))
        lines.append(
            f"generation: {_size(found.inference_weights)} of weights, and {_size(found.kv_cache)} of cache for each "
            f"text of {found.context:,} tokens: {number:,} at a time on one device"
        )
    lines.append(f"model FLOPs: {found.flops_per_token / 1e9:.3g} G for each of the {found.unit}, as a share of the "
                 f"data sheet's rate; {found.measured}")  # fmt: skip
    return [*lines, *found.notes]


def _size(num_bytes: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes / 2**10:.3g} KiB"


def _duration(seconds: float) -> str:
    for unit, size, most in (("us", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 120.0), ("min", 60.0, 7200.0),
                             ("h", 3600.0, 172_800.0)):  # fmt: skip
        if seconds < most:
            return f"{seconds / size:.3g} {unit}"
    days = seconds / 86_400
    return f"{days:,.0f} days" if days >= 100 else f"{days:.3g} days"
