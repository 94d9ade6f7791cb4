"""`regard data`: the built-in data sets."""

from typing import Annotated

import typer

from regard.cli.output import Command, Json, argument, print_json

data_app = typer.Typer(
    help="List the built-in data sets, or print rows of one.", no_args_is_help=True, rich_markup_mode=None
)


@data_app.command("list", cls=Command)
def list_(json: Json = False) -> None:
    """List the built-in data sets."""
    from regard.data.builtin import builtin_names, find_builtin

    sets = [find_builtin(name) for name in builtin_names()]
    if json:
        print_json({"sets": [{"name": s.name, "description": s.description, "columns": s.columns} for s in sets]})
        return
    for data in sets:
        print(f"{data.name}\t{data.description}")


@data_app.command("show", cls=Command)
def show(
    name: Annotated[str, argument("NAME", "One of the names that `regard data list` prints.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers; another seed gives other rows.")] = 0,
    json: Json = False,
) -> None:  # fmt: skip
    """Print rows of a built-in data set as TSV with a header.

    Examples:

      regard data show dates

      regard data show dates --rows 100000 > dates.tsv
    """
    from regard.data.builtin import find_builtin

    data = find_builtin(name)
    generated = data.generate(rows, seed)
    if json:
        print_json({"columns": data.columns, "rows": list(generated)})
        return
    print("\t".join(data.columns))
    for row in generated:
        print("\t".join(row))
