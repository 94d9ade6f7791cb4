"""Scenes: small pictures of two or three colored shapes, with captions whose words are known to name one of them.

A picture has 32 x 32 pixels. Two shapes around its middle are side by side or one above the other; of three, one is
between the others.
Each picture has two captions, which are both right:

    a red circle left of a blue square            a blue square right of a red circle
    a red circle between a blue square and a green cross

so that nothing else about it has to be guessed, and a model can caption all of them without an error.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from regard.data.builtin import BuiltinData

if TYPE_CHECKING:
    import numpy as np

SIZE = 32
"""Height and width of a picture in pixels."""
_COLORS = {
    "red": (220, 50, 47),
    "green": (60, 180, 75),
    "blue": (50, 90, 230),
    "yellow": (240, 220, 60),
    "purple": (170, 60, 200),
    "white": (240, 240, 240),
}
_SHAPES = ("circle", "square", "triangle", "cross")
_GRAYS = (32, 40, 48)
"""Behind the shapes, at random: few of them, so that a picture is a short text."""
_RADII = (3.2, 4.6)
_SHARE_OF_THREE = 0.4
_DISTANCES = {2: (6.5, 9.5), 3: (10.0, 11.2)}
"""From the middle of the picture, by the number of shapes, in pixels: shapes do not touch."""
_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


def generate_scenes(num_rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Rows of a picture, as a data URI, one of its two captions, and the boxes of the words that name shapes.

    Example:
        >>> rows = list(generate_scenes(2, 0))
        >>> rows[0][0] == rows[1][0], rows[0][0][:22]
        (True, 'data:image/png;base64,')
        >>> [caption for _, caption, _ in rows]
        ['a yellow circle above a blue circle', 'a blue circle below a yellow circle']
    """
    import numpy as np

    from regard.data.formats.images import to_data_uri

    for number in range(0, num_rows, 2):
        rng = np.random.default_rng([seed, number])
        pixels, captions = _scene(rng)
        picture = to_data_uri(pixels)
        for words, grounding in captions[: num_rows - number]:
            yield picture, words, grounding


def _scene(rng: "np.random.Generator") -> tuple[Any, list[tuple[str, str]]]:
    import numpy as np

    count = 2 + int(rng.random() < _SHARE_OF_THREE)
    colors = [list(_COLORS)[place] for place in rng.permutation(len(_COLORS))[:count]]
    names = [f"{color} {_SHAPES[int(rng.integers(len(_SHAPES)))]}" for color in colors]
    is_row = bool(rng.random() < 0.5)
    radii = rng.uniform(*_RADII, count)
    # On a line through the middle of the picture, so that the place of a shape says on which side of the others it is.
    distance = rng.uniform(*_DISTANCES[count])
    steps = (-distance, distance) if count == 2 else (-distance, 0.0, distance)
    middle = SIZE / 2 + rng.uniform(-1.5, 1.5, 2)
    along = [float(np.clip(middle[0] + step, radius, SIZE - radius)) for step, radius in zip(steps, radii, strict=True)]
    across = [float(middle[1] + rng.uniform(-2.0, 2.0)) for _ in radii]
    pixels = rng.choice(np.array(_GRAYS, np.float64), (SIZE, SIZE, 1)).repeat(3, axis=2)
    boxes = []
    for name, one, other, radius in zip(names, along, across, radii, strict=True):
        x, y = (one, other) if is_row else (other, one)
        color, shape = name.split()
        mask = _mask(shape, x, y, float(radius))
        pixels[mask] = np.array(_COLORS[color]) + rng.normal(0, 6, 3)
        boxes.append(tuple(side / SIZE for side in (x - radius, y - radius, x + radius, y + radius)))
    return np.clip(pixels, 0, 255).astype(np.uint8), _captions(names, boxes, is_row=is_row)


def _mask(shape: str, x: float, y: float, radius: float) -> Any:
    """The pixels of a shape around a center."""
    import numpy as np

    across, down = np.meshgrid(np.arange(SIZE) + 0.5 - x, np.arange(SIZE) + 0.5 - y)
    match shape:
        case "circle":
            return across**2 + down**2 <= radius**2
        case "square":
            return np.maximum(abs(across), abs(down)) <= 0.9 * radius
        case "triangle":
            return (abs(across) <= (down + radius) / 2) & (abs(down) <= radius)
        case _:
            is_near = np.maximum(abs(across), abs(down)) <= radius
            return is_near & (np.minimum(abs(across), abs(down)) <= radius / 3)


def _captions(names: list[str], boxes: list[Any], *, is_row: bool) -> list[tuple[str, str]]:
    """Both captions of shapes that are listed from left to right, or from top to bottom."""
    if len(names) == 3:
        orders = [(1, 0, 2), (1, 2, 0)]
        texts = [f"a {names[a]} between a {names[b]} and a {names[c]}" for a, b, c in orders]
    else:
        relation = "left of" if is_row else "above"
        orders = [(0, 1), (1, 0)]
        relations = (relation, _OPPOSITE[relation])
        texts = [f"a {names[a]} {how} a {names[b]}" for (a, b), how in zip(orders, relations, strict=True)]
    return [(text, _grounding(text, order, names, boxes)) for text, order in zip(texts, orders, strict=True)]


def _grounding(text: str, order: tuple[int, ...], names: list[str], boxes: list[Any]) -> str:
    """The boxes of the words that name the shapes, which follow each other in this order."""
    words, found, start = text.split(), [], 0
    for each in order:
        first = words.index(names[each].split()[0], start)
        start = first + 2
        found.append([first, start, *(round(side, 4) for side in boxes[each])])
    return json.dumps(found)


SCENES_DATA = BuiltinData(
    name="scenes",
    description=f"images of {SIZE} x {SIZE} pixels with colored shapes, two captions of each, and boxes of the words",
    columns=("image", "caption", "grounding"),
    num_rows=20_000,
    tokenizer="",
    generate=generate_scenes,
)
