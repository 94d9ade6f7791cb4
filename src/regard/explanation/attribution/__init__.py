"""Attribution: how much each word of an input contributed to a prediction."""

from regard.explanation.attribution.highlights import Attribution, Highlights, write_highlights_page

__all__ = ["Attribution", "Highlights", "write_highlights_page"]
