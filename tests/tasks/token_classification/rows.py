"""Tagged sentences that tests share."""

from typing import Any

NAMES = ["Ada", "Bob", "Kurt Godel", "Emmy van Noether"]
SENTENCES = ["{} sang", "we saw {} and {} there", "it rained", "{} {}", "who is {} , then ?"]
PLAIN_ROWS = [(f"{'a' * (n % 5 + 1)} run {n} ends quickly", f"{'X' if n % 2 else 'D'} V N V A") for n in range(90)]


def entity_rows(count: int = 120, first: str = "B") -> list[Any]:
    """Sentences with names in them; those of one word are persons, the others houses."""
    rows = []
    for number in range(count):
        words, tags, holes = [], [], 0
        for part in SENTENCES[number % len(SENTENCES)].split():
            if part != "{}":
                words, tags = [*words, part], [*tags, "O"]
                continue
            name = NAMES[(number // 5 + holes) % len(NAMES)].split()
            kind = "PER" if len(name) == 1 else "HOUSE"
            words, holes = [*words, *name], holes + 1
            tags += [f"{first}-{kind}", *(f"I-{kind}" for _ in name[1:])]
        rows.append(([*words, f"n{number}"], [*tags, "O"]))
    return rows
