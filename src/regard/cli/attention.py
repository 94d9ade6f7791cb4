"""`regard attention`: who looked at whom."""

from typing import TYPE_CHECKING, Annotated

from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, option, print_json, talk
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.explanation.highlights import Highlights


def attention(
    run: RunPath,
    text: Annotated[str, argument("TEXT", "An input for the model.")],
    out: Annotated[str | None, option("Draw to this .html, .png or .svg; unset, in the terminal.")] = None,
    kind: Annotated[str | None, option("encoder, decoder or cross; unset, cross where there is any.")] = None,
    layer: Annotated[int | None, option("Counted from 0; unset, their average.", min=0)] = None,
    head: Annotated[int | None, option("Counted from 0; unset, their average.", min=0)] = None,
    aspect: Annotated[str | None, option("Of a run for aspects: the one to look for; unset, each.")] = None,
    beam: Beam = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Draw the attention of a prediction: a heat map with tokens on both axes.

    The HTML page stands alone and has every layer and head to choose from. Of a run for
    aspects: the text, its words shaded by how much they mattered for each.

    Examples:

      regard attention runs/dates "mardi 4 mars 2025"

      regard attention runs/dates "mardi 4 mars 2025" --out attention.html

      regard attention runs/dates "mardi 4 mars 2025" --kind encoder --layer 1 --head 0 --out head.png

      regard attention runs/meals "good soup, rude waiter" --out words.html
    """
    talk(quiet=quiet)
    from regard.explanation.attention_page import write_attention_page
    from regard.explanation.drawings import draw_figure, draw_terminal
    from regard.runs.run import load

    options = {} if beam is None else {"beam_size": beam}
    opened = load(run, device=device)
    if opened.task.name == "aspects" or aspect is not None:
        if kind is not None or layer is not None or head is not None:
            raise ConfigError("words are shaded by one look for each aspect: there is no kind, layer or head to choose")
        _show_words(opened.highlights(text, aspect=aspect), out=out, json=json)
        return
    maps = opened.attention(text, **options)
    kind = kind or maps.kinds[-1]
    maps.select(kind, layer, head)  # a kind, layer or head that is not there is told before anything is drawn
    if out is not None and out.lower().endswith(".html"):
        write_attention_page(maps, out)
    elif out is not None:
        draw_figure(maps, out, kind=kind, layer=layer, head=head)
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


def _show_words(highlights: "Highlights", *, out: str | None, json: bool) -> None:
    from rich.console import Console

    from regard.explanation.highlights import draw_highlights

    if out is not None:
        draw_highlights(highlights, out)
    if json:
        print_json({"input": highlights.text, "judgements": highlights.to_dict()["judgements"], "out": out})
    elif out is not None:
        print(out)
    else:
        Console().print(highlights)
