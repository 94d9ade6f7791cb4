"""`regard attention`: who looked at whom."""

from typing import Annotated

from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, option, print_json, talk
from regard.errors import DeviceError


def attention(
    run: RunPath,
    text: Annotated[str, argument("TEXT", "An input for the model.")],
    out: Annotated[str | None, option("Draw to this .html, .png or .svg; unset, in the terminal.")] = None,
    kind: Annotated[str | None, option("encoder, decoder or cross; unset, cross where there is any.")] = None,
    layer: Annotated[int | None, option("Counted from 0; unset, their average.", min=0)] = None,
    head: Annotated[int | None, option("Counted from 0; unset, their average.", min=0)] = None,
    beam: Beam = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Draw the attention of a prediction: a heat map with tokens on both axes.

    The HTML page stands alone and has every layer and head to choose from.

    Examples:

      regard attention runs/dates "mardi 4 mars 2025"

      regard attention runs/dates "mardi 4 mars 2025" --out attention.html

      regard attention runs/dates "mardi 4 mars 2025" --kind encoder --layer 1 --head 0 --out head.png
    """
    talk(quiet=quiet)
    from regard.explanation.attention_page import write_attention_page
    from regard.explanation.drawings import draw_figure, draw_terminal
    from regard.explanation.maps import AttentionMaps
    from regard.runs.run import load

    maps: AttentionMaps = load(run, device=device).attention(text, **({} if beam is None else {"beam_size": beam}))
    kind = kind or maps.kinds[-1]
    maps.select(kind, layer, head)  # a kind, layer or head that is not there is told before anything is drawn
    try:
        if out is not None and out.lower().endswith(".html"):
            write_attention_page(maps, out)
        elif out is not None:
            draw_figure(maps, out, kind=kind, layer=layer, head=head)
    except OSError as error:
        raise DeviceError(f"cannot write {out}: {error.strerror or error}") from None
    if json:
        weights = {name: each.tolist() for name, each in maps.weights.items()}
        print_json({"input": text, "output": maps.prediction, "source_tokens": maps.source_tokens,
                    "target_tokens": maps.target_tokens, "weights": weights, "out": out})  # fmt: skip
    elif out is not None:
        print(out)
    else:
        from rich.console import Console

        console = Console()
        console.print(draw_terminal(maps, kind=kind, layer=layer, head=head, width=console.width))
