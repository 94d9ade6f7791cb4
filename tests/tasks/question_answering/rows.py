"""Questions that tests share."""

from typing import Any

from regard.data.formats.squad import Answer
from regard.tasks.question_answering.task import write_answers

COLORS = ["red", "green", "dark blue", "grey"]
THINGS = ["cat", "dog", "owl", "hen", "fox"]


def question_rows(count: int = 90, filler: int = 0) -> list[Any]:
    """Questions about the color of a thing; every seventh context has no answer, and some are longer than others."""
    rows = []
    for number in range(count):
        facts = [(THINGS[(number + k) % 5], COLORS[(number // 3 + k) % 4]) for k in range(3)]
        texts = [f"the {thing} is {color} ." for thing, color in facts]
        context = " and so on ".join(texts) + f" seen {number}" + " oh well" * (filler * (number % 5))
        thing, color = facts[number % 3]
        if number % 7 == 0:
            rows.append((f"what is the {THINGS[(number + 4) % 5]} ?", context, ""))
        else:
            place = context.index(f"the {thing} is {color}") + len(f"the {thing} is ")
            rows.append((f"what is the {thing} ?", context, write_answers([Answer(color, place)])))
    return rows
