"""The colors of every page and figure, each with its counterpart on a dark page."""

INK, MUTED, GRID = "#1d2129", "#5d6470", "#e5e5e0"
PALETTE = (
    ("#3450b8", "#93a9ff"),
    ("#c25a1c", "#f0a065"),
    ("#02a3a8", "#00dfbe"),
    ("#991085", "#f55ba1"),
    ("#a79404", "#eef14a"),
    ("#223f53", "#bdfdff"),
    ("#6c71cc", "#3b77f5"),
    ("#ad78fe", "#a041be"),
    ("#731c19", "#c04827"),
    ("#f0609a", "#f8b7ff"),
    ("#595a02", "#9b9601"),
    ("#80706a", "#5e7960"),
)
"""The colors of models and lines, in order, on a light and on a dark page.

They stay distinguishable under protanopia, deuteranopia and tritanopia (`tests/explanation/test_palette.py`). Twelve
are hard to distinguish by color alone, so each model also has one of four marker shapes.
"""
COLORS = tuple(light for light, _ in PALETTE)
DARK = {INK: "#e6e8ed", MUTED: "#9ba2af", GRID: "#2f343e", "#ffffff": "#1a1d24", **dict(PALETTE)}
"""The color on a dark page for each color of a light one."""
SHADES = ((34, 38, 47), (47, 63, 125), (79, 112, 208), (157, 187, 247), (244, 248, 255))
"""Red, green and blue of the heat maps of a terminal, from weight 0 to the largest weight."""


def shade(weight: float) -> tuple[int, int, int]:
    """Returns red, green and blue for a weight between 0 and 1.

    Example:
        >>> shade(0.0), shade(0.875), shade(1.0)
        ((34, 38, 47), (200, 218, 251), (244, 248, 255))
    """
    place = weight * (len(SHADES) - 1)
    first = min(int(place), len(SHADES) - 2)
    red, green, blue = (
        round(low + (high - low) * (place - first)) for low, high in zip(SHADES[first], SHADES[first + 1], strict=True)
    )
    return red, green, blue
