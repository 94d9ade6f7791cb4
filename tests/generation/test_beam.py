"""Beam search against a search through everything."""

from collections.abc import Callable
from itertools import product

import pytest
import torch

from regard.generation.beam import beam_search
from regard.generation.config import GenerationConfig
from regard.generation.sampling import sample
from regard.models.transformer import Transformer

VOCAB, START, END, LIMIT = 5, 1, 2, 4


@pytest.fixture
def model(make_model: Callable[[int], Transformer]) -> Transformer:
    return make_model(VOCAB)


@torch.no_grad()
def best_of_all(model: Transformer, source: torch.Tensor, alpha: float) -> tuple[list[int], float]:
    """The best finished sequence of up to LIMIT tokens, by trying each."""
    best: tuple[list[int], float] = ([], -torch.inf)
    others = [token for token in range(VOCAB) if token != END]
    for length in range(LIMIT):
        for tokens in product(others, repeat=length):
            sequence = [*tokens, END]
            scores = model(torch.tensor([[START, *tokens]]), source).log_softmax(-1)[0]
            total = sum(scores[place, token].item() for place, token in enumerate(sequence))
            score = total / len(sequence) ** alpha
            if score > best[1]:
                best = (list(tokens), score)
    return best


@torch.no_grad()
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_a_beam_that_holds_every_prefix_finds_the_best_of_all(model: Transformer, alpha: float):
    config = GenerationConfig(beam_size=VOCAB**LIMIT, length_penalty=alpha, stopping="exact")
    for _ in range(5):
        source = torch.randint(VOCAB, (1, 7))
        state = model.start(model.encode(source))
        found = beam_search(model, state, torch.tensor([[START]]), end=END, limits=[LIMIT], config=config)[0][0]
        tokens, score = best_of_all(model, source, alpha)
        assert found.tokens == tokens
        assert found.score == pytest.approx(score, abs=1e-12)


class Chain:
    """A decoder whose next token depends on the last one only, by a table of probabilities."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table.log()

    def decode(self, target: torch.Tensor, memory: None = None) -> torch.Tensor:
        return self.table[target]

    def start(self, memory: None = None, *, batch_size: int = 1) -> "Chain":
        return self

    def select(self, rows: torch.Tensor) -> "Chain":
        return self

    def step(self, tokens: torch.Tensor, state: "Chain") -> tuple[torch.Tensor, "Chain"]:
        return self.table[tokens], state


def test_unlikely_early_ends_do_not_stop_the_search():
    """0 -> 1 -> 2 -> 3 -> 4 -> end with probability 0.9 each; the end, 5, is always the second choice."""
    table = torch.full((6, 6), 0.01)
    table[:, 5] = 0.06
    for token in range(5):
        table[token, token + 1] = 0.9
    chain = Chain(table / table.sum(-1, keepdim=True))
    config = GenerationConfig(beam_size=3)
    found = beam_search(chain, chain.start(), torch.tensor([[0]]), end=5, limits=[20], config=config)
    assert found[0][0].tokens == [1, 2, 3, 4]


@torch.no_grad()
def test_a_beam_of_one_is_greedy(model: Transformer):
    source, start = torch.randint(VOCAB, (7, 5)), torch.full((7, 1), START)
    config = GenerationConfig(beam_size=1, length_penalty=0.0)
    found = beam_search(model, model.start(model.encode(source)), start, end=END, limits=[9] * 7, config=config)
    greedy = sample(
        model, model.start(model.encode(source)), start, end=END, limits=[9] * 7, seeds=[0] * 7, config=config
    )
    for hypotheses, tokens in zip(found, greedy, strict=True):
        if len(tokens) < 9:  # else greedy ran into the limit, and a finished second choice is better
            assert hypotheses[0].tokens in (tokens, tokens[: len(hypotheses[0].tokens)])


@torch.no_grad()
@pytest.mark.parametrize("stopping", ["enough", "exact"])
def test_a_batch_equals_one_at_a_time(model: Transformer, stopping: str):
    source, lengths = torch.randint(VOCAB, (5, 7)), torch.tensor([7, 2, 5, 1, 6])
    limits, start = [3, 9, 5, 2, 7], torch.full((5, 1), START)
    config = GenerationConfig(beam_size=3, stopping=stopping)
    together = beam_search(
        model, model.start(model.encode(source, lengths)), start, end=END, limits=limits, config=config
    )
    for row, length in enumerate(lengths.tolist()):
        state = model.start(model.encode(source[row : row + 1, :length]))
        alone = beam_search(model, state, start[:1], end=END, limits=[limits[row]], config=config)[0]
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]])


@torch.no_grad()
def test_scores_are_those_of_the_model_and_come_best_first(model: Transformer):
    source = torch.randint(VOCAB, (1, 7))
    config = GenerationConfig(beam_size=4, length_penalty=0.7)
    state = model.start(model.encode(source))
    hypotheses = beam_search(model, state, torch.tensor([[START]]), end=END, limits=[11], config=config)[0]
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    for hypothesis in hypotheses:
        sequence = [*hypothesis.tokens, END]
        scores = model(torch.tensor([[START, *hypothesis.tokens]]), source).log_softmax(-1)[0]
        total = sum(scores[place, token].item() for place, token in enumerate(sequence))
        assert hypothesis.score == pytest.approx(total / len(sequence) ** 0.7)


@torch.no_grad()
def test_a_sentence_that_never_ends_gives_its_best_open_hypothesis(model: Transformer):
    source, nowhere = torch.randint(VOCAB, (1, 7)), VOCAB + 1
    config = GenerationConfig(beam_size=3)
    state = model.start(model.encode(source))
    found = beam_search(model, state, torch.tensor([[START]]), end=nowhere, limits=[6], config=config)[0]
    assert len(found) == 1
    assert len(found[0].tokens) == 6
