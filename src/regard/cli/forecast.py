"""`regard forecast`: the next steps of series, with intervals."""

import csv
import sys
from typing import Annotated

from regard.cli.options import Encoding
from regard.cli.output import Device, Json, Quiet, RunPath, argument, configure_logging, option, print_json


def forecast_command(
    run: RunPath,
    file: Annotated[str, argument("FILE", "A table with the columns of training, and covariates of later steps.")],
    horizon: Annotated[int | None, option("Steps to forecast. Unset: as many as in training.")] = None,
    out: Annotated[str | None, option("The table to write: .csv, .tsv, .jsonl, .parquet. Unset: stdout.")] = None,
    encoding: Encoding = None,
    plot: Annotated[str | None, option("Draw the forecasts and their intervals: .png or .svg.")] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Forecast the steps after the last one of each series: a row for each series, step and column.

    The columns are id, time, column, point, lower and upper; the ends of intervals are calibrated on the validation
    part of the run. Covariates that are known in advance are read from the rows after the last one with values.

    Examples:

      regard forecast runs/sales sales.csv --horizon 28 --out forecast.csv --plot forecast.png
    """
    configure_logging(quiet=quiet)
    from regard.runs.run import load
    from regard.tasks.capabilities import SeriesForecast

    found = load(run, device=device).forecast(file, horizon=horizon, encoding=encoding, out=out, plot=plot)
    rows = (row for each in found for row in each.to_records())
    if json:
        print_json({"file": file, "out": out, "plot": plot, "rows": list(rows)})
    elif out is not None or plot is not None:
        print("\n".join(filter(None, (out, plot))))
    else:
        writer = csv.DictWriter(sys.stdout, SeriesForecast.names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
