"""Made-up reviews of meals with a sentiment for each of two aspects, for tests of aspect sentiment."""

import random

PRAISE, BLAME = ("good", "great", "lovely", "superb"), ("cold", "rude", "awful", "poor")
THINGS = {"food": "soup", "service": "waiter", "price": "bill"}


def meals(count: int) -> list[tuple[str, str, str]]:
    """Two rows (text, aspect, label) for each of `count` texts about two aspects with independent sentiments."""
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        aspects = rng.sample(list(THINGS), 2)
        words = [rng.choice(rng.choice((PRAISE, BLAME))) for _ in aspects]
        text = " but ".join(f"{word} {THINGS[aspect]}" for word, aspect in zip(words, aspects, strict=True))
        labels = ("positive" if word in PRAISE else "negative" for word in words)
        rows += [(text, aspect, label) for aspect, label in zip(aspects, labels, strict=True)]
    return rows
