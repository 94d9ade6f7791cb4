"""The data of the golden runs: a few dozen rows of each kind, the same on every machine.

Rows are drawn by `random.Random`, whose sequence of numbers Python guarantees, and written nowhere but to the folder
that a run is given.
"""

import json
import random
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

Pair: TypeAlias = tuple[str, str]
Triple: TypeAlias = tuple[str, str, str]

_WORDS = ("red", "blue", "old", "new", "cat", "dog", "sun", "sea", "tall", "Ada", "Bern", "42")
_PRAISE, _BLAME = ("good", "great", "fine"), ("bad", "rude", "slow")
_SUBJECTS = {"food": "soup", "service": "waiter", "price": "bill"}


def reversals(count: int = 70) -> list[Pair]:
    """Two to five words, and the same words in reverse order."""
    rng = random.Random(1)
    phrases = [rng.choices(_WORDS, k=rng.randint(2, 5)) for _ in range(count)]
    return [(" ".join(words), " ".join(reversed(words))) for words in phrases]


def sentences(count: int = 120) -> list[str]:
    """Sentences of one simple grammar."""
    rng = random.Random(2)
    verbs = ("sees", "likes", "follows")
    return [
        f"the {rng.choice(_WORDS[:4])} {rng.choice(_WORDS[4:8])} {rng.choice(verbs)} the {rng.choice(_WORDS[4:8])}."
        for _ in range(count)
    ]


def documents() -> list[tuple[str]]:
    """The sentences, each a document of its own."""
    return [(sentence,) for sentence in sentences()]


def text_file(folder: Path) -> Path:
    """A plain text: the sentences, one a line."""
    path = folder / "text.txt"
    path.write_text("\n".join(sentences()) + "\n", encoding="utf-8")
    return path


def opinions(count: int = 90) -> list[Pair]:
    """A text and one of three labels, which its adjective decides."""
    rng = random.Random(3)
    adjectives = [(word, "positive") for word in _PRAISE] + [(word, "negative") for word in _BLAME]
    adjectives += [("usual", "neutral"), ("same", "neutral")]
    chosen = [(*rng.choice(adjectives), rng.choice(_WORDS)) for _ in range(count)]
    return [(f"a {word} film about a {about} number {n % 7}", label) for n, (word, label, about) in enumerate(chosen)]


def topics(count: int = 90) -> list[Pair]:
    """A text and any number of labels between commas; a comma alone where it has none."""
    rng = random.Random(4)
    rows = []
    for number in range(count):
        about = sorted(rng.sample(_WORDS[4:8], k=rng.randint(0, 2)))
        rows.append((f"{' and '.join(about) or 'nothing'} on page {number % 13}", ",".join(about) or ","))
    return rows


def comparisons(count: int = 90) -> list[Triple]:
    """Two texts, and whether their last words are the same."""
    rng = random.Random(5)
    rows = []
    for number in range(count):
        first, second = rng.choices(_WORDS[:4], k=2)
        rows.append((f"number {number % 9} is {first}", f"it is {second}", "same" if first == second else "other"))
    return rows


def ratings(count: int = 90) -> list[Pair]:
    """A text and a number: the praise in it less the blame, and a tenth of the number that it names."""
    rng = random.Random(6)
    rows = []
    for number in range(count):
        words = rng.choices((*_PRAISE, *_BLAME), k=rng.randint(1, 4))
        value = sum(1 if word in _PRAISE else -1 for word in words) + (number % 10) / 10
        rows.append((f"{' and '.join(words)} at {number % 10}", f"{value:.1f}"))
    return rows


def entities(folder: Path, count: int = 80) -> Path:
    """Tagged sentences in CoNLL's columns: persons of one or two words, and places."""
    rng = random.Random(7)
    blocks = []
    for number in range(count):
        person = rng.choice((["Ada"], ["Ada", "Byron"], ["Alan"]))
        place = rng.choice(("Bern", "Rome", "Lima"))
        words = [*person, rng.choice(("saw", "left")), place, "on", "day", str(number % 17), "."]
        tags = ["B-PER", "I-PER"][: len(person)] + ["O", "B-LOC"] + ["O"] * 4
        blocks.append("\n".join(f"{word} {tag}" for word, tag in zip(words, tags, strict=True)))
    path = folder / "entities.conll"
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def questions(folder: Path, count: int = 60) -> Path:
    """Questions in SQuAD's layout: the color of a thing, which every seventh context does not mention."""
    rng = random.Random(8)
    paragraphs = []
    for number in range(count):
        things = rng.sample(_WORDS[4:8], k=3)
        colors = rng.choices(("red", "dark blue", "green"), k=2)
        context = " ".join(f"The {thing} is {color}." for thing, color in zip(things, colors, strict=False))
        context += f" It was day {number}."
        is_open = number % 7 == 0
        thing, color = (things[2], "") if is_open else (things[number % 2], colors[number % 2])
        start = context.index(f"The {thing} is {color}") + len(f"The {thing} is ") if color else 0
        answers = [] if is_open else [{"text": color, "answer_start": start}]
        question = {"id": str(number), "question": f"What color is the {thing}?", "answers": answers}
        paragraphs.append({"context": context, "qas": [{**question, "is_impossible": is_open}]})
    path = folder / "questions.json"
    path.write_text(json.dumps({"version": "2.0", "data": [{"title": "things", "paragraphs": paragraphs}]}))
    return path


def paraphrases(count: int = 90) -> list[Pair]:
    """Two texts that mean the same."""
    rng = random.Random(9)
    chosen = [(*rng.choices(_WORDS, k=2), number) for number in range(count)]
    return [(f"the {one} of the {other} {n}", f"{other} has {one}, number {n}") for one, other, n in chosen]


def meals(count: int = 60) -> list[Triple]:
    """A text about two things, one of them, and whether that one is praised."""
    rng = random.Random(10)
    rows = []
    for number in range(count):
        aspects = rng.sample(list(_SUBJECTS), k=2)
        words = [rng.choice(rng.choice((_PRAISE, _BLAME))) for _ in aspects]
        parts = [f"{word} {_SUBJECTS[aspect]}" for word, aspect in zip(words, aspects, strict=True)]
        text = f"{' but '.join(parts)} on day {number % 11}"
        labels = ["positive" if word in _PRAISE else "negative" for word in words]
        rows += [(text, aspect, label) for aspect, label in zip(aspects, labels, strict=True)]
    return rows


def lines(folder: Path, each: int = 30) -> Path:
    """Gray images of 8 x 8 pixels, in a folder for each label: a bright column (bars) or row (stripes) on noise."""
    rng = random.Random(11)
    for label in ("bars", "stripes"):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(each):
            pixels = np.array([[rng.randrange(60) for _ in range(8)] for _ in range(8)], dtype=np.uint8)
            pixels[:, rng.randrange(8)] += 180
            image = Image.fromarray(pixels if label == "bars" else pixels.T.copy())
            image.save(folder / "images" / label / f"{number}.png")
    return folder / "images"
