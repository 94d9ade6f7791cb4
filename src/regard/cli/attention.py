"""`regard attention`: attention maps."""

from typing import Annotated

from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, configure_logging, option, print_json
from regard.errors import ConfigError


def attention_command(
    run: RunPath,
    text: Annotated[str, argument("TEXT", "An input of the model: a text, or the path of an image.")],
    out: Annotated[str | None, option("Write a page (.html), a figure (.png, .svg) or .json. Unset: print.")] = None,
    kind: Annotated[str | None, option("encoder, decoder, cross; of images attention, rollout.")] = None,
    layer: Annotated[int | None, option("The layer, from 1. Unset: the average over layers.", min=1)] = None,
    head: Annotated[int | None, option("The head, from 1. Unset: the average over heads.", min=1)] = None,
    aspect: Annotated[str | None, option("For aspect sentiment: the aspect; unset, each aspect.")] = None,
    beam: Beam = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Plot the attention maps of a prediction: heat maps with tokens on both axes.

    On the HTML page every layer and head can be selected. For aspect sentiment, the words of
    the text are shaded by their weight instead, once for each aspect. For images, maps are drawn
    over the image: attention and rollout of a Vision Transformer, Grad-CAM of a convolutional network.

    Examples:

      regard attention runs/dates "mardi 4 mars 2025"

      regard attention runs/dates "mardi 4 mars 2025" --out attention.html

      regard attention runs/dates "mardi 4 mars 2025" --kind encoder --layer 2 --head 1 --out head.png

      regard attention runs/meals "good soup, rude waiter" --out words.html

      regard attention runs/vit photo.png --out photo.html
    """
    configure_logging(quiet=quiet)
    from rich.console import Console

    from regard.runs.run import load
    from regard.tasks.capabilities import AspectPredictor, ImageExplainer

    opened, console = load(run, device=device), Console()
    if isinstance(opened.task, AspectPredictor) or aspect is not None:
        if kind is not None or layer is not None or head is not None:
            raise ConfigError("words have one weight for each aspect: --kind, --layer and --head are for other tasks")
        shown = opened.highlights(text, aspect=aspect)
        content = {"input": text, "attributions": shown.to_json()["attributions"]}
        drawing = shown
        if out is not None:
            shown.save(out)
    else:
        if isinstance(opened.task, ImageExplainer):
            if beam is not None:
                raise ConfigError("a label of an image is not generated: --beam has no effect")
            shown = opened.image_maps(text)
            is_part = (layer is not None or head is not None) and "attention" in shown.kinds
            kind = kind or ("attention" if is_part else shown.kinds[-1])
        else:
            shown = opened.attention(text, **({} if beam is None else {"beam_size": beam}))
            kind = kind or shown.kinds[-1]
        what = f"{kind} attention" if kind in ("encoder", "decoder", "cross") else kind
        choice = {
            "layer": _index("layer", layer, shown.num_layers(kind), what),
            "head": _index("head", head, shown.num_heads(kind), what),
        }
        content, drawing = shown.to_json(), shown.heat_map(kind, **choice, width=console.width)
        if out is not None:
            shown.save(out, kind=kind, **choice)
    if json:
        print_json({**content, "out": out})
    elif out is not None:
        print(out)
    else:
        console.print(drawing)


def _index(name: str, number: int | None, count: int, what: str) -> int | None:
    """Returns the index of a layer or head that is counted from 1."""
    if number is not None and number > count:
        raise ConfigError(f"--{name} must be in 1 to {count} for {what}, got {number}")
    return None if number is None else number - 1
