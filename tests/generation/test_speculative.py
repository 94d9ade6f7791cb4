"""Speculation writes what the model alone would write: the same text, or the same distribution."""

from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from jaxtyping import config as jaxtyping_config
from scipy.stats import chisquare
from torch import nn

from regard.errors import ConfigError, DataError
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.generation.sampling import distribution
from regard.generation.speculative import LookUp, accept, rounds_of, speculate
from regard.models.convolutional import ConvolutionalConfig
from regard.models.families import AnyConfig, AnyModel, make_model
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig

VOCAB = 11
PROMPT = [3, 4, 5, 3]
SMALL = TransformerConfig(
    num_layers=1, encoder_layers=0, model_dim=6, num_heads=1, feedforward_dim=5, positions="rotary"
)
FAMILIES: dict[str, AnyConfig] = {
    "transformer": SMALL.changed(num_layers=2, positions="sinusoidal"),
    "lstm": RecurrentConfig(num_layers=1, encoder_layers=0, model_dim=5, bidirectional=False),
    "convolution": ConvolutionalConfig(num_layers=2, encoder_layers=0, model_dim=6, kernel_size=3),
}
WITH_SOURCE: dict[str, AnyConfig] = {
    "transformer with source": TransformerConfig(num_layers=1, model_dim=6, num_heads=1, feedforward_dim=5),
    "gru with attention": RecurrentConfig(num_layers=1, model_dim=6, cell="gru", attention="bahdanau"),
}
RNN = RecurrentConfig(num_layers=1, encoder_layers=0, model_dim=3, cell="rnn", bidirectional=False)


def make(config: AnyConfig, seed: int) -> AnyModel:
    torch.manual_seed(seed)
    model = make_model(config, VOCAB).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.8)
    return model


def draft_for(config: AnyConfig, kind: str) -> AnyModel | LookUp:
    """The same shape with other weights; or something of another family altogether."""
    if kind == "look-up":
        return LookUp()
    return make(config if config.encoder_depth else FAMILIES["lstm" if kind == "lstm" else "transformer"], seed=2)


@pytest.mark.parametrize("kind", ["transformer", "lstm", "look-up"])
@pytest.mark.parametrize("name", [*FAMILIES, *WITH_SOURCE])
def test_greedy_speculation_gives_the_greedy_text(name: str, kind: str):
    config = {**FAMILIES, **WITH_SOURCE}[name]
    model, draft, source = make(config, seed=1), draft_for(config, kind), [7, 8, 9] if config.encoder_depth else None
    request = Request(PROMPT, limit=17, source=source)
    greedy = Engine(model, GenerationConfig(), end=None).run([request])[0]
    found = speculate(model, draft, PROMPT, limit=17, end=None, config=GenerationConfig(), lookahead=3, source=source)
    assert found.tokens == greedy
    assert found.num_accepted + found.num_steps == 17
    assert found.num_proposed >= found.num_accepted
    if kind == "look-up":
        assert found.num_accepted > 0  # greedy texts of small models go round in circles


def test_a_draft_that_is_the_model_itself_is_always_taken():
    model = make(SMALL, seed=1)
    for config in (GenerationConfig(), GenerationConfig(temperature=1.1, top_p=0.9)):
        found = speculate(model, model, PROMPT, limit=30, end=None, config=config, seed=5)
        assert len(found.tokens) == 30
        assert found.num_accepted == found.num_proposed == 24
        assert found.num_steps == 6


def test_it_stops_before_the_end_token_and_streams_what_it_writes():
    model, draft = make(SMALL, seed=1), make(FAMILIES["lstm"], seed=2)
    way = GenerationConfig(temperature=1.5)
    whole = speculate(model, draft, PROMPT, limit=60, end=None, config=way, seed=4).tokens
    end = max(whole, key=whole.index)  # the one that comes up last
    found = speculate(model, draft, PROMPT, limit=60, end=end, config=way, seed=4).tokens
    assert found == whole[: whole.index(end)]
    rounds = list(rounds_of(model, draft, PROMPT, limit=60, end=end, config=way, seed=4))
    assert [token for one in rounds for token in one.tokens] == found
    assert len(rounds) > 1


def test_learned_positions_are_used_to_the_last_and_no_further():
    model = make(SMALL.changed(positions="learned", context_length=17), seed=1)
    draft = make(SMALL.changed(positions="learned", context_length=13), seed=2)
    expected = Engine(model, GenerationConfig(), end=None).run([Request(PROMPT, limit=99)])[0]
    assert len(expected) == 14
    assert speculate(model, draft, PROMPT, limit=99, end=None, config=GenerationConfig()).tokens == expected


PLAIN = GenerationConfig(temperature=1.0)
RESHAPED = GenerationConfig(temperature=1.4, top_k=8, top_p=0.95, min_p=0.02)


@torch.no_grad()
def probabilities(model: AnyModel, config: GenerationConfig) -> dict[tuple[int, ...], float]:
    """Of each continuation of PROMPT by three tokens, when tokens are drawn one by one."""
    pairs = list(product(range(VOCAB), repeat=2))
    scores = model.decode(torch.tensor([[*PROMPT, *pair] for pair in pairs]))[:, -3:]
    steps = distribution(scores.flatten(0, 1), config).unflatten(0, (-1, 3))
    return {
        (first, second, third): float(steps[row, 0, first] * steps[row, 1, second] * steps[row, 2, third])
        for row, (first, second) in enumerate(pairs)
        for third in range(VOCAB)
    }


def p_value(counts: Counter, expected: dict[tuple[int, ...], float]) -> float:
    """How likely counts so far from the expected ones are, with rare continuations counted as one."""
    total = sum(counts.values())
    common = [text for text, probability in expected.items() if probability * total >= 5]
    observed = np.array([counts[text] for text in common])
    hoped = np.array([expected[text] * total for text in common])
    observed, hoped = np.append(observed, total - observed.sum()), np.append(hoped, total - hoped.sum())
    return chisquare(observed, hoped).pvalue


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Leave shapes unchecked: that takes ten times as long as what is computed on tensors so small."""
    jaxtyping_config.update("jaxtyping_disable", True)
    yield
    jaxtyping_config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("rnn", PLAIN),
        pytest.param("transformer", RESHAPED, marks=pytest.mark.slow),
        pytest.param("look-up", PLAIN, marks=pytest.mark.slow),
        pytest.param("look-up", RESHAPED, marks=pytest.mark.slow),
    ],
)
def test_what_is_written_has_the_distribution_of_plain_sampling(kind: str, way: GenerationConfig):
    model = make(SMALL if kind == "transformer" else RNN, seed=1)
    draft = LookUp() if kind == "look-up" else make(RNN, seed=2)
    expected = probabilities(model, way)
    assert sum(expected.values()) == pytest.approx(1.0)
    counts = Counter(
        tuple(speculate(model, draft, PROMPT, limit=3, end=None, config=way, seed=seed, lookahead=2).tokens)
        for seed in range(1_500 if kind == "transformer" else 3_000)
    )
    assert len({text[0] for text in counts}) > 4
    assert p_value(counts, expected) > 0.001


def test_the_token_that_is_kept_has_the_distribution_of_the_model():
    p, q = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.2]), torch.tensor([0.3, 0.1, 0.2, 0.35, 0.05])
    rng = np.random.default_rng(3)
    counts = np.zeros(5)
    for guess in rng.choice(5, size=4_000, p=q.numpy()).tolist():
        num_accepted, token = accept(torch.stack([p, torch.ones(5) / 5]), [q], [guess], rng.random)
        counts[guess if num_accepted else token] += 1
    assert counts[2] == 0
    assert chisquare(counts[[0, 1, 3, 4]], 4_000 * p[[0, 1, 3, 4]].numpy()).pvalue > 0.001


def test_guesses_that_the_model_would_never_write_are_never_taken():
    p, q = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]), [torch.tensor([1.0, 0.0, 0.0])]
    for draw in (0.0, 0.5, 1.0 - 2**-53):
        assert accept(p, q, [0], lambda draw=draw: draw)[0] == 0
    assert accept(p, [torch.tensor([0.0, 0.5, 0.5])], [1], lambda: 1.0 - 2**-53) == (1, 0)


def test_look_up_takes_the_last_occurrence_of_as_many_tokens_as_possible():
    assert LookUp().propose([1, 2, 3, 4, 9, 3, 5, 2, 3], count=2) == [4, 9]
    assert LookUp(longest=1).propose([1, 2, 3, 4, 9, 3, 5, 2, 3], count=2) == [5, 2]
    assert LookUp().propose([7, 7], count=4) == [7]
    assert LookUp().propose([1, 2, 3], count=4) == []
    assert LookUp().propose([1], count=4) == []


def test_speculations_that_cannot_be():
    model = make(SMALL, seed=1)
    other = make_model(SMALL, VOCAB + 2)
    options = {"limit": 3, "end": None, "config": GenerationConfig()}
    with pytest.raises(ConfigError, match="got 13 and 11 tokens"):
        speculate(model, other, PROMPT, **options)
    with pytest.raises(ConfigError, match="lookahead must be at least 1, got 0"):
        speculate(model, LookUp(), PROMPT, **options, lookahead=0)
    with pytest.raises(ConfigError, match="beam_size must be 1, got 2"):
        speculate(model, LookUp(), PROMPT, **{**options, "config": GenerationConfig(beam_size=2)})
    with pytest.raises(DataError, match="at least one token"):
        speculate(model, LookUp(), [], **options)
    with pytest.raises(DataError, match="below vocab_size=11, got 11"):
        speculate(model, LookUp(), [11], **options)
