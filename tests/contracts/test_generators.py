"""What every generator must satisfy, over every registered family and preset: greedy, sampling and beam search.

Cached equals uncached: a generator that keeps states between steps chooses what one
chooses that computes the logits of the whole prefix at each step. Batched equals one
at a time.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import config as jaxtyping_config
from torch import Tensor, nn

from regard.generation import BeamSearch, Engine, GenerationConfig, Request, sample
from regard.generation.sampling import choose_tokens
from regard.models.family import build_model, read_model_config
from regard.models.ngram_mixture import NgramMixture
from regard.models.presets import SIZES, find_preset, preset_names
from regard.models.protocols import EncoderOutput
from regard.nn.ngrams import NgramTables, estimate_kneser_ney

VOCAB, START, END, LIMIT = 23, 1, 2, 9
SHRUNK = {"model_dim": 20, "num_layers": 2, "dropout": 0.0}
CONFIGS = {
    "greedy": GenerationConfig(),
    "sampling": GenerationConfig(temperature=1.2, top_k=11, top_p=0.95, min_p=0.01),
    "beam": GenerationConfig(beam_size=3, length_penalty=0.7),
}
SOURCES = [[3, 9, 4, 10, 6, 5, 7], [8, 2], [5, 5, 3, 11]]
PROMPTS = [[START, 7, 4], [START], [START, 3]]


ATTENTION: dict[str, dict[str, Any]] = {
    "window": {"attention": "window", "window": 3},
    "global": {"attention": ["window", "full"], "window": 2, "num_global_tokens": 2},
    "strided": {"attention": "strided", "window": 2, "stride": 3},
    "linear": {"attention": "linear"},
    "mixed": {"attention": ["linear", "strided"], "window": 3, "num_global_tokens": 1},
}
"""Kinds of self-attention that store less than all keys."""


def decoders() -> dict[str, dict[str, Any]]:
    """The presets with a decoder of tokens, made small; heads and feed-forward networks of Transformers too."""
    found = {}
    for kind in (name for name in preset_names() if name not in SIZES):
        values = {**find_preset(kind)[1], **SHRUNK}
        if "num_heads" in values:
            values |= {"num_heads": 2, "feedforward_dim": 24}
        config = read_model_config(find_preset(kind)[1])
        if config.decoder_depth and config.input_kind == "tokens":
            found[kind] = values
    for name, switch in ATTENTION.items():
        found[f"{name} attention"] = {**found["gpt"], **switch}
    return found


KINDS = decoders()
MIXED = {f"{kind} with {order}-grams": (kind, order) for kind, order in (("gpt", 3), ("gpt2", 4), ("llama", 2))}
"""Decoder-only models whose output is mixed with n-grams."""


@cache
def model_of(kind: str) -> Any:
    if kind in MIXED:
        name, order = MIXED[kind]
        tables = NgramTables(VOCAB, order)
        text = torch.randint(VOCAB, (200,), generator=torch.Generator().manual_seed(6)).numpy()
        tables.fill(estimate_kneser_ney(text, vocab_size=VOCAB, order=order))
        mixture = NgramMixture(model_of(name), tables, start=START, end=END, isolates=False).eval()
        mixture.network_weight.fill_(0.4)
        return mixture
    torch.manual_seed(4)
    model = build_model(read_model_config(KINDS[kind]), VOCAB).eval()
    for name, parameter in model.named_parameters():  # so that the next token is hard to guess
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.4)
    return model


@pytest.fixture(params=[*KINDS, *MIXED])
def model(request: pytest.FixtureRequest) -> Any:
    return model_of(request.param)


@pytest.fixture(params=["greedy", "sampling"])
def config(request: pytest.FixtureRequest) -> GenerationConfig:
    return CONFIGS[request.param]


def requests_for(model: Any) -> list[Request]:
    sources = SOURCES if model.config.encoder_depth else [None] * len(PROMPTS)
    return [
        Request(prompt, limit=LIMIT - 2 * number, seed=number, source=source)
        for number, (prompt, source) in enumerate(zip(PROMPTS, sources, strict=True))
    ]


def encoded(model: Any, request: Request, count: int = 1) -> EncoderOutput | None:
    return None if request.source is None else model.encode(torch.tensor([request.source]).expand(count, -1))


@torch.no_grad()
def uncached(model: Any, request: Request, config: GenerationConfig) -> list[int]:
    """The tokens of a request, from the logits of the whole prefix at each step."""
    output, stream = encoded(model, request), np.random.Generator(np.random.Philox(request.seed))
    tokens: list[int] = []
    while len(tokens) < request.limit:
        logits = model.decode(torch.tensor([request.prompt + tokens]), output)[:, -1]
        token = int(choose_tokens(logits, config, torch.tensor([stream.random()])))
        if token == END:
            break
        tokens.append(token)
    return tokens


def test_cached_equals_uncached(model, config: GenerationConfig):
    requests = requests_for(model)
    expected = [uncached(model, request, config) for request in requests]
    assert Engine(model, config, end=END).run(requests) == expected


def test_the_engine_generates_what_its_specification_generates(model, config: GenerationConfig):
    for request in requests_for(model):
        state = model.initial_state(encoded(model, request))
        [expected] = sample(
            model,
            state,
            torch.tensor([request.prompt]),
            end=END,
            limits=[request.limit],
            seeds=[request.seed],
            config=config,
        )
        assert Engine(model, config, end=END).run([request]) == [expected]


def test_batched_equals_one_at_a_time(model, config: GenerationConfig):
    requests = requests_for(model)
    alone = [Engine(model, config, end=END).run([request])[0] for request in requests]
    for num_slots in (1, 2, 8):
        assert Engine(model, config, end=END, num_slots=num_slots).run(requests) == alone


def test_a_stream_gives_the_tokens_of_a_run(model, config: GenerationConfig):
    request = requests_for(model)[0]
    engine = Engine(model, config, end=END)
    assert [list(engine.stream(request))] == engine.run([request])


def test_suppressed_tokens_are_never_generated(model, config: GenerationConfig):
    requests = requests_for(model)
    usual = Engine(model, config, end=END).run(requests)
    banned = sorted({token for tokens in usual for token in tokens})[:4]
    found = Engine(model, config, end=END, suppress=banned).run(requests)
    assert not any(token in banned for tokens in found for token in tokens)


def plain_beam_search(
    log_probabilities: Callable[[list[list[int]]], list[list[float]]], limit: int, config: GenerationConfig
) -> list[tuple[list[int], float]]:
    """Beam search with lists, from the log-probabilities after whole prefixes."""
    beam, alpha = config.beam_size, config.length_penalty
    going: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    for length in range(1, limit + 1):
        rows = log_probabilities([tokens for tokens, _ in going])
        extensions = [
            (tokens, token, total + more)
            for (tokens, total), row in zip(going, rows, strict=True)
            for token, more in enumerate(row)
        ]
        going = []
        for tokens, token, total in sorted(extensions, key=lambda each: -each[2])[: 2 * beam]:
            if token == END:
                finished.append((tokens, total / length**alpha))
            elif len(going) < beam:
                going.append(([*tokens, token], total))
        best = max((score for _, score in finished), default=-torch.inf)
        if len(finished) >= beam and best >= going[0][1] / (length + 1) ** alpha:
            break
    if not finished:
        return [(going[0][0], going[0][1] / len(going[0][0]) ** alpha)]
    return sorted(finished, key=lambda each: -each[1])[:beam]


@torch.no_grad()
def uncached_beams(model: Any, request: Request, config: GenerationConfig) -> list[tuple[list[int], float]]:
    def after(prefixes: list[list[int]]) -> list[list[float]]:
        tokens = torch.tensor([[START, *prefix] for prefix in prefixes])
        logits: Tensor = model.decode(tokens, encoded(model, request, len(tokens)))
        return logits[:, -1].log_softmax(-1).tolist()

    jaxtyping_config.update("jaxtyping_disable", True)  # in this reference checks of shapes would take most of the time
    try:
        return plain_beam_search(after, request.limit, config)
    finally:
        jaxtyping_config.update("jaxtyping_disable", False)


def search(model: Any, requests: Sequence[Request]) -> list[list[tuple[list[int], float]]]:
    beams = BeamSearch(model, end=END, config=CONFIGS["beam"])
    with torch.inference_mode():
        output = None
        if requests[0].source is not None:
            lengths = torch.tensor([len(request.source or ()) for request in requests])
            rows = [torch.tensor(request.source) for request in requests]
            output = beams.model.encode(nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)
        state = beams.model.initial_state(output, batch_size=len(requests))
    prompt = torch.full((len(requests), 1), START)
    found = beams.search(state, prompt, [request.limit for request in requests])
    return [[(hypothesis.tokens, hypothesis.score) for hypothesis in row] for row in found]


def test_beam_search_cached_equals_uncached_and_batched_one_at_a_time(model):
    requests = requests_for(model)
    together = search(model, requests)
    for request, found in zip(requests, together, strict=True):
        for other in (uncached_beams(model, request, CONFIGS["beam"]), search(model, [request])[0]):
            assert [tokens for tokens, _ in found] == [tokens for tokens, _ in other]
            assert [score for _, score in found] == pytest.approx([score for _, score in other])
