"""`regard serve`: models over HTTP, and a page to try them."""

from typing import Annotated

import typer

from regard.cli.output import Device, Json, Quiet, argument, configure_logging, option, print_json
from regard.logging import log_info


def serve_command(
    runs: Annotated[list[str], argument("RUN", "The folders of one or more runs.")],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int | None, option("Unset: 8000, or the next free one.", min=0, max=65_535)] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Serve models over HTTP, with a page to try them, until Ctrl-C; print the URL.

    POST /predict takes {"inputs": ["some text"]} and returns what `regard predict --json` prints. POST /generate takes
    {"prompt": "some text"}, and with "stream": true sends the text while it is generated. GET /model describes a
    model, and GET /openapi.json the API.

    Examples:

      regard serve runs/reviews

      regard serve runs/reviews runs/tags --port 9000

      curl http://127.0.0.1:8000/predict -H "content-type: application/json" -d '{"inputs": ["a film to remember"]}'
    """
    configure_logging(quiet=quiet)
    from regard.serving import serve

    def print_url(url: str) -> None:
        log_info("press Ctrl-C to stop the server")
        if json:
            print_json({"url": url, "runs": runs})
        else:
            print(url, flush=True)

    serve(runs, host=host, port=port, device=device, on_ready=print_url)
