"""Small attention maps, of prime sizes, in several scripts."""

from collections.abc import Callable

import numpy as np
import pytest

from regard.explanation.maps import AttentionMaps, visible

LAYERS, HEADS = 2, 3
TRICKY = "</script><b>&\"' {{data}} \u2028$x$"


def attention_of(source: str, target: str) -> AttentionMaps:
    """Random maps over the characters of two texts, each row summing to one and the decoder looking back only."""
    rng = np.random.default_rng(0)
    read, produced = (*source, "</s>"), (*target, "</s>")

    def weights(rows: int, columns: int, *, is_causal: bool = False) -> np.ndarray:
        scores = rng.exponential(size=(LAYERS, HEADS, rows, columns))
        scores *= np.tri(rows, columns) if is_causal else 1.0
        return (scores / scores.sum(axis=-1, keepdims=True)).astype(np.float32)

    return AttentionMaps(
        source_tokens=tuple(map(visible, read)),
        target_tokens=tuple(map(visible, produced)),
        target_inputs=("<s>", *map(visible, target)),
        weights={
            "encoder": weights(len(read), len(read)),
            "decoder": weights(len(produced), len(produced), is_causal=True),
            "cross": weights(len(produced), len(read)),
        },
        source=source,
        prediction=target,
    )


@pytest.fixture
def make_maps() -> Callable[[str, str], AttentionMaps]:
    return attention_of


@pytest.fixture
def maps() -> AttentionMaps:
    return attention_of("4 mars 2025", "2025-03-04")


@pytest.fixture
def tricky_text() -> str:
    """Text that would break out of HTML, of a script, of a template or of mathematical typesetting."""
    return TRICKY
