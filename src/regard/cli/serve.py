"""`regard serve`: models over HTTP, and a page to try them."""

from typing import Annotated

import typer

from regard.cli.output import Device, Json, Quiet, argument, option, print_json, talk
from regard.logging import log_info


def serve(
    runs: Annotated[list[str], argument("RUN...", "The folders of one or more runs.")],
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int | None, option("Unset: 8000, or the next that is free.", min=0, max=65_535)] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Answer requests by HTTP until Ctrl-C, and show a page to try the model; print where.

    POST /predict takes {"inputs": ["some text"]} and answers what `regard predict --json` prints; POST /generate takes
    {"prompt": "some text"}, and with "stream": true sends the text as it is written. GET /model tells what is served,
    GET /openapi.json all that can be asked.

    Examples:

      regard serve runs/reviews

      regard serve runs/reviews runs/tags --port 9000

      curl http://127.0.0.1:8000/predict -H "content-type: application/json" -d '{"inputs": ["a film to remember"]}'
    """
    talk(quiet=quiet)
    from regard.serving.server import serve as serve_runs

    def tell(url: str) -> None:
        log_info("Ctrl-C ends it")
        if json:
            print_json({"url": url, "runs": runs})
        else:
            print(url, flush=True)

    serve_runs(runs, host=host, port=port, device=device, tell=tell)
