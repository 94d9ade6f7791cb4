"""Choosing tokens: each rule against its definition, and sampling against the distribution."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from regard.errors import ConfigError
from regard.generation.config import GenerationConfig
from regard.generation.sampling import choose_tokens, distribution, min_p, pick, sample, top_k, top_p
from regard.models.transformer import Transformer

VOCAB, END = 7, 2
SCORES = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]], dtype=torch.float64).log()


@pytest.fixture
def model(make_tiny: Callable[[int], Transformer]) -> Transformer:
    return make_tiny(VOCAB)


def kept(scores: torch.Tensor) -> list[int]:
    return scores[0].isfinite().nonzero()[:, 0].tolist()


def test_top_k_keeps_the_best_k():
    assert kept(top_k(SCORES, 2)) == [1, 3]
    assert kept(top_k(SCORES, 99)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("p", "expected"), [(0.3, [1]), (0.39, [1]), (0.41, [1, 3]), (0.84, [1, 3, 4]), (1.0, [0, 1, 2, 3, 4])]
)
def test_top_p_keeps_the_fewest_that_sum_to_p(p: float, expected: list[int]):
    assert kept(top_p(SCORES, p)) == expected


def test_min_p_is_relative_to_the_likeliest():
    assert kept(min_p(SCORES, 0.49)) == [1, 3, 4]


def test_greedy_takes_the_likeliest():
    assert choose_tokens(SCORES, GenerationConfig(), torch.zeros(1)).item() == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_distribution(temperature: float):
    count = 20_000
    draws = torch.from_numpy(np.random.default_rng(0).random(count))
    chosen = choose_tokens(SCORES.expand(count, -1), GenerationConfig(temperature=temperature), draws)
    expected = (SCORES[0] / temperature).softmax(0) * count
    assert chisquare(torch.bincount(chosen, minlength=5).numpy(), expected.numpy()).pvalue > 0.001


def test_a_ruled_out_token_is_never_drawn():
    scores = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, -1)
    draws = torch.tensor([0.0, 0.5, 0.999999, 1.0])
    assert choose_tokens(scores, GenerationConfig(temperature=1.0), draws).tolist() == [0, 2, 2, 2]


def test_a_row_without_numbers_still_gives_a_token():
    """On a GPU an id outside the vocabulary would end the process, not the row."""
    scores = torch.full((2, 5), torch.nan)
    assert 0 <= int(choose_tokens(scores, GenerationConfig(temperature=1.0), torch.rand(2)).max()) < 5


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.99])
def test_the_greedy_distribution_is_certain(draw: float):
    certain = distribution(SCORES, GenerationConfig())
    assert certain.tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]
    assert pick(certain, torch.tensor([draw])).item() == 1


@torch.no_grad()
def test_greedy_decoding_chooses_the_argmax_of_the_whole_pass(model: Transformer):
    source = torch.randint(VOCAB, (5, 11))
    written = sample(
        model, model.initial_state(model.encode(source)), torch.ones(5, 1, dtype=torch.long),
        end=END, limits=[13] * 5, seeds=[0] * 5, config=GenerationConfig(),
    )  # fmt: skip
    for row, tokens in enumerate(written):
        prefix = torch.tensor([[1, *tokens]])
        best = model(prefix, source[row : row + 1]).argmax(-1)[0].tolist()
        assert best[: len(tokens)] == tokens
        assert len(tokens) == 13 or best[-1] == END


@torch.no_grad()
@pytest.mark.parametrize("config", [GenerationConfig(), GenerationConfig(temperature=1.3, top_k=5)])
def test_a_batch_equals_one_at_a_time(model: Transformer, config: GenerationConfig):
    source, lengths = torch.randint(VOCAB, (5, 11)), torch.tensor([11, 3, 7, 1, 5])
    limits, seeds, start = [5, 9, 13, 2, 7], [11, 12, 13, 14, 15], torch.ones(5, 1, dtype=torch.long)
    together = sample(
        model,
        model.initial_state(model.encode(source, lengths)),
        start,
        end=END,
        limits=limits,
        seeds=seeds,
        config=config,
    )
    for row, length in enumerate(lengths.tolist()):
        state = model.initial_state(model.encode(source[row : row + 1, :length]))
        alone = sample(model, state, start[:1], end=END, limits=[limits[row]], seeds=[seeds[row]], config=config)
        assert alone == [together[row]]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 3, "temperature": 1.0},
        {"top_k": 3},
        {"top_p": 0.0, "temperature": 1.0},
        {"beam_size": 0},
        {"tempreature": 1},
    ],
)
def test_invalid_options_are_errors(options: dict):
    with pytest.raises(ConfigError):
        GenerationConfig.read(options)
