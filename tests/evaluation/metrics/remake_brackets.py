"""Makes `brackets.json` again: random trees, and what PYEVALB 0.1.3 counts for them.

    python -m venv evalb && evalb/bin/pip install PYEVALB==0.1.3
    evalb/bin/python tests/evaluation/metrics/remake_brackets.py

PYEVALB deletes no punctuation, so it is given trees without it. It counts a label that occurs twice over the same words
once, so no tree has one.
"""

import json
import random
from pathlib import Path

from PYEVALB import parser, scorer

TAGS, PUNCTUATION = ("NN", "VB", "DT", "IN"), (",", ".", "``", "''", ":")
LABELS = ("S", "NP", "VP", "PP", "ADJP")


def random_tree(rng: random.Random, leaves: list[tuple[str, str]], used: frozenset[str] = frozenset()) -> list:
    """A tree of nested lists; `used` are the labels above it over the same words."""
    label = rng.choice([each for each in LABELS if each not in used])
    if len(leaves) == 1 or rng.random() < 0.15:
        return [label, *map(list, leaves)]
    cuts = sorted(rng.sample(range(1, len(leaves)), min(len(leaves) - 1, rng.choice((1, 1, 2)))))
    parts = [leaves[a:b] for a, b in zip([0, *cuts], [*cuts, len(leaves)], strict=True)]
    return [
        label,
        *(list(part[0]) if len(part) == 1 and rng.random() < 0.6 else random_tree(rng, part) for part in parts),
    ]


def without_punctuation(tree: list) -> list | None:
    if isinstance(tree[1], str):
        return None if tree[0] in PUNCTUATION else tree
    children = [kept for child in tree[1:] if (kept := without_punctuation(child)) is not None]
    return [tree[0], *children] if children else None


def brackets(tree: list) -> str:
    return f"({tree[0]} {tree[1]})" if isinstance(tree[1], str) else f"({tree[0]} {' '.join(map(brackets, tree[1:]))})"


def has_twice(tree: list) -> bool:
    """Whether a label occurs twice over the same words."""
    nodes = [str(node) for node in parser.create_from_bracket_string(brackets(tree)).non_terminal_labels]
    return len(nodes) != len(set(nodes))


def main() -> None:
    rng, rows = random.Random(7), []
    while len(rows) < 60:
        words = [
            (rng.choice(PUNCTUATION if rng.random() < 0.2 else TAGS), f"w{number}")
            for number in range(rng.randint(3, 17))
        ]
        gold, predicted = random_tree(rng, words), random_tree(rng, words)
        if rng.random() < 0.5:  # a tree that shares brackets with the other
            predicted = [rng.choice(LABELS), *gold[1:]]
        kept = [without_punctuation(tree) for tree in (gold, predicted)]
        if None in kept or any(map(has_twice, kept)):
            continue
        found = scorer.Scorer().score_trees(*(parser.create_from_bracket_string(brackets(tree)) for tree in kept))
        counts = [found.matched_brackets, found.test_brackets, found.gold_brackets]
        rows.append({"predicted": brackets(predicted), "gold": brackets(gold), "counts": counts})
    text = json.dumps({"made_with": "PYEVALB 0.1.3", "rows": rows}, indent=1, ensure_ascii=False)
    Path(__file__).with_name("brackets.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
