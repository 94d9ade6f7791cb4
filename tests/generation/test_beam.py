"""Beam search against a search through everything, and against the same search in plain lists."""

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
import torch
from tests.shape_checks import unchecked_shapes
from torch import nn

from regard.errors import ConfigError
from regard.generation.beam import BeamSearch, Hypothesis, best_extensions
from regard.generation.config import GenerationConfig
from regard.generation.sampling import sample
from regard.models.base import SequenceModel
from regard.models.family import build_model, read_model_config
from regard.models.protocols import Decoder, DecoderState, EncoderOutput
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer.states import BeamTreeCache, TransformerState

VOCAB, START, END, LIMIT = 5, 1, 2, 4


@pytest.fixture
def model(make_tiny: Callable[[int], Transformer]) -> Transformer:
    return make_tiny(VOCAB)


def beam_search(
    model: Decoder, state: DecoderState, prompt: torch.Tensor, *, end: int, limits: list[int], config: GenerationConfig
) -> list[list[Hypothesis]]:
    return BeamSearch(model, end=end, config=config).search(state, prompt, limits)


@unchecked_shapes()
@torch.no_grad()
def best_of_all(model: Transformer, source: torch.Tensor, alpha: float) -> tuple[list[int], float]:
    """The best finished sequence of up to LIMIT tokens, by trying each: those of one length at once."""
    best: tuple[list[int], float] = ([], -torch.inf)
    others = [token for token in range(VOCAB) if token != END]
    for length in range(LIMIT):
        sequences = torch.tensor([[START, *tokens, END] for tokens in product(others, repeat=length)])
        read, written = sequences[:, :-1], sequences[:, 1:]
        scores = model(read, source.expand(len(read), -1)).log_softmax(-1)
        totals = scores.gather(-1, written[:, :, None]).sum((1, 2)) / written.size(1) ** alpha
        score, row = totals.max(0)
        if score > best[1]:
            best = (read[row, 1:].tolist(), float(score))
    return best


@torch.no_grad()
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_a_beam_of_every_prefix_finds_the_best_of_all(model: Transformer, alpha: float):
    config = GenerationConfig(beam_size=VOCAB**LIMIT, length_penalty=alpha, stopping="exact")
    for _ in range(5):
        source = torch.randint(VOCAB, (1, 7))
        state = model.initial_state(model.encode(source))
        found = beam_search(model, state, torch.tensor([[START]]), end=END, limits=[LIMIT], config=config)[0][0]
        tokens, score = best_of_all(model, source, alpha)
        assert found.tokens == tokens
        assert found.score == pytest.approx(score, abs=1e-12)


@dataclass
class Step:
    """The state of a `TableDecoder`: how many tokens there are."""

    number: int = 0

    def select(self, rows: torch.Tensor) -> "Step":
        return self


class TableDecoder(SequenceModel[TransformerConfig]):
    """A decoder whose next token depends on the last one and on the number of tokens, by a table for each step."""

    def __init__(self, tables: torch.Tensor) -> None:
        super().__init__(TransformerConfig(encoder_layers=0), vocab_size=tables.size(-1))
        self.tables = tables

    def encode(self, source: torch.Tensor, lengths: torch.Tensor | None = None, **_: object) -> EncoderOutput:
        raise NotImplementedError

    def hidden_states(self, tokens: torch.Tensor, encoder_output: EncoderOutput | None = None, **_: object) -> None:
        raise NotImplementedError

    def initial_state(self, encoder_output: EncoderOutput | None = None, *, batch_size: int = 1) -> Step:
        return Step()

    def static_state(self, num_slots: int, capacity: int, *, source_length: int = 0) -> None:
        raise NotImplementedError

    def step(self, tokens: torch.Tensor, state: Step) -> tuple[torch.Tensor, Step]:
        return self.tables[state.number][tokens], Step(state.number + 1)


def test_unlikely_early_ends_do_not_stop_the_search():
    """0 -> 1 -> 2 -> 3 -> 4 -> end with probability 0.9 each; the end, 5, is always the second choice."""
    table = torch.full((6, 6), 0.01)
    table[:, 5] = 0.06
    for token in range(5):
        table[token, token + 1] = 0.9
    chain = TableDecoder((table / table.sum(-1, keepdim=True)).log().expand(20, 6, 6))
    config = GenerationConfig(beam_size=3)
    found = beam_search(chain, Step(), torch.tensor([[0]]), end=5, limits=[20], config=config)
    assert found[0][0].tokens == [1, 2, 3, 4]


@torch.no_grad()
def test_a_beam_of_one_is_greedy(model: Transformer):
    source, start = torch.randint(VOCAB, (7, 5)), torch.full((7, 1), START)
    config = GenerationConfig(beam_size=1, length_penalty=0.0)
    found = beam_search(model, model.initial_state(model.encode(source)), start, end=END, limits=[9] * 7, config=config)
    greedy = sample(
        model, model.initial_state(model.encode(source)), start, end=END, limits=[9] * 7, seeds=[0] * 7, config=config
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
        model, model.initial_state(model.encode(source, lengths)), start, end=END, limits=limits, config=config
    )
    for row, length in enumerate(lengths.tolist()):
        state = model.initial_state(model.encode(source[row : row + 1, :length]))
        alone = beam_search(model, state, start[:1], end=END, limits=[limits[row]], config=config)[0]
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]])


@torch.no_grad()
def test_scores_are_those_of_the_model_and_come_best_first(model: Transformer):
    source = torch.randint(VOCAB, (1, 7))
    config = GenerationConfig(beam_size=4, length_penalty=0.7)
    state = model.initial_state(model.encode(source))
    hypotheses = beam_search(model, state, torch.tensor([[START]]), end=END, limits=[11], config=config)[0]
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    for hypothesis in hypotheses:
        sequence = [*hypothesis.tokens, END]
        scores = model(torch.tensor([[START, *hypothesis.tokens]]), source).log_softmax(-1)[0]
        total = sum(scores[place, token].item() for place, token in enumerate(sequence))
        assert hypothesis.score == pytest.approx(total / len(sequence) ** 0.7)


def test_the_end_and_tokens_that_do_not_exist_cannot_be_suppressed(model: Transformer):
    for tokens, words in (([END], "end token"), ([VOCAB], f"vocab_size={VOCAB}, got {VOCAB}")):
        with pytest.raises(ConfigError, match=words):
            BeamSearch(model, end=END, config=GenerationConfig(), suppress=tokens)


@torch.no_grad()
def test_a_sentence_that_never_ends_gives_its_best_open_hypothesis(model: Transformer):
    source, nowhere = torch.randint(VOCAB, (1, 7)), VOCAB + 1
    config = GenerationConfig(beam_size=3)
    state = model.initial_state(model.encode(source))
    found = beam_search(model, state, torch.tensor([[START]]), end=nowhere, limits=[6], config=config)[0]
    assert len(found) == 1
    assert len(found[0].tokens) == 6


def search_in_lists(
    log_probabilities: Callable[[list[list[int]]], list[list[float]]],
    *,
    end: int,
    limit: int,
    config: GenerationConfig,
) -> list[Hypothesis]:
    """Beam search for one sentence, as one would tell it: the specification of the one in tensors."""
    beam, alpha = config.beam_size, config.length_penalty
    going: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        rows = log_probabilities([tokens for tokens, _ in going])
        extensions = [
            (tokens, token, total + more)
            for (tokens, total), row in zip(going, rows, strict=True)
            for token, more in enumerate(row)
        ]
        going = []
        for tokens, token, total in sorted(extensions, key=lambda extension: -extension[2])[: 2 * beam]:
            if token == end:
                finished.append(Hypothesis(tokens, total / length**alpha))
            elif len(going) < beam:
                going.append(([*tokens, token], total))
        if not going:
            break
        needed, reach = (1, limit) if config.stopping == "exact" else (beam, length + 1)
        best_open = going[0][1]
        if len(finished) >= needed and max(h.score for h in finished) >= best_open / reach**alpha:
            break
    if not finished:
        tokens, total = going[0]
        return [Hypothesis(tokens, total / len(tokens) ** alpha)]
    return sorted(finished, key=lambda h: -h.score)[:beam]


SOURCES = torch.tensor([[3, 9, 4, 10, 6], [7, 2, 0, 0, 0], [5, 5, 3, 8, 0]])
LENGTHS, WORDS = torch.tensor([5, 2, 4]), 11
NEVER = WORDS
"""An end token outside the vocabulary, so that hypotheses continue to their limit."""


def make(values: dict) -> Decoder:
    """A model whose next token is hard to guess, so that hypotheses overtake one another."""
    model = build_model(read_model_config({"num_layers": 2, "model_dim": 12, **values}), WORDS)
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.4)
    return model.eval()


@unchecked_shapes()
@torch.no_grad()
def expected_of(
    model: Decoder, limits: Sequence[int], config: GenerationConfig, *, end: int, lengths: torch.Tensor = LENGTHS
) -> list[list[Hypothesis]]:
    found = []
    for row, (length, limit) in enumerate(zip(lengths.tolist(), limits, strict=True)):

        @cache
        def memory(count: int, source: torch.Tensor = SOURCES[row : row + 1, :length]) -> EncoderOutput:
            return model.encode(source.expand(count, -1))

        def after(prefixes: list[list[int]], memory: Callable[[int], EncoderOutput] = memory) -> list[list[float]]:
            read = torch.tensor([[START, *tokens] for tokens in prefixes])
            return model.decode(read, memory(len(read)))[:, -1].log_softmax(-1).tolist()

        found.append(search_in_lists(after, end=end, limit=limit, config=config))
    return found


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]
    for some, others in zip(found, expected, strict=True):
        assert [h.score for h in some] == pytest.approx([h.score for h in others])


def started(model: Decoder, lengths: torch.Tensor = LENGTHS, device: str = "cpu"):
    with torch.inference_mode():
        sources = SOURCES[:, : lengths.max()].to(device)
        state = model.initial_state(model.encode(sources, lengths.to(device)))
    return state, torch.full((len(SOURCES), 1), START, device=device)


TRANSFORMER = {"family": "transformer", "num_heads": 2, "feedforward_dim": 13, "context_length": 64}
MODELS = [
    *({**TRANSFORMER, "positions": p} for p in ("sinusoidal", "learned", "rotary", "relative", "alibi", "shaw")),
    {**TRANSFORMER, "num_key_value_heads": 1, "similarity": "additive", "block": "pre-norm", "bias": False},
    {**TRANSFORMER, "shaped_attention": True, "query_key_norm": True},
    {"family": "recurrent", "cell": "gru"},
    {"family": "recurrent", "cell": "lstm", "attention": "luong", "input_feeding": True},
    {"family": "convolutional", "kernel_size": 3},
]


def named(values: dict) -> str:
    return ",".join(str(value) for value in values.values())


def check(values: dict, limits: Sequence[int], config: GenerationConfig, *, end: int) -> None:
    model = make(values)
    expected = expected_of(model, limits, config, end=end)
    search = BeamSearch(model, end=end, config=config)
    assert_same(search.search(*started(model), limits), expected)
    assert_same(search.search_by_selection(*started(model), limits), expected)
    if isinstance(model, Transformer):
        assert_same(search.search_in_place(*started(model), limits), expected)


@pytest.mark.parametrize("end", [END, NEVER])
@pytest.mark.parametrize("values", MODELS, ids=named)
def test_the_search_in_tensors_is_the_one_in_lists(values: dict, end: int):
    check(values, [3, 8, 6], GenerationConfig(beam_size=3, length_penalty=0.6), end=end)


@torch.no_grad()
def test_suppressed_tokens_are_never_generated_and_the_scores_of_others_stay():
    model, config, limits = make(TRANSFORMER), GenerationConfig(beam_size=3), [6, 6, 6]
    usual = BeamSearch(model, end=NEVER, config=config).search(*started(model), limits)
    banned = sorted({token for hypotheses in usual for token in hypotheses[0].tokens})[:2]
    search = BeamSearch(model, end=NEVER, config=config, suppress=banned)
    for find in (search.search, search.search_in_place):
        found = find(*started(model), limits)
        for row, (best, *_) in enumerate(found):
            assert not set(banned) & set(best.tokens)
            source = SOURCES[row : row + 1, : LENGTHS[row]]
            log_probabilities = model(torch.tensor([[START, *best.tokens[:-1]]]), source).log_softmax(-1)[0]
            total = log_probabilities.gather(1, torch.tensor(best.tokens)[:, None]).sum()
            assert best.score == pytest.approx(float(total) / 6)


@pytest.mark.parametrize("stopping", ["enough", "exact"])
@pytest.mark.parametrize(("beam", "alpha"), [(1, 1.0), (2, 0.0), (3, 0.5), (4, 2.0)])
def test_it_ranks_and_stops_by_the_same_rules(beam: int, alpha: float, stopping: str):
    """With tables of probabilities, in which the end is probable, improbable, or probable after some tokens only."""
    config = GenerationConfig(beam_size=beam, length_penalty=alpha, stopping=stopping)
    for number in range(40):
        rng = torch.Generator().manual_seed(number)
        tables = torch.randn(12, 7, 7, generator=rng) * (1 + number % 4)
        tables[:, :, 5] += number % 5 - 1
        timed = TableDecoder(tables.log_softmax(-1))
        limits = [1 + number % 3, 4 + number % 9]
        found = beam_search(timed, Step(), torch.tensor([[0], [3]]), end=5, limits=limits, config=config)
        for first, limit, hypotheses in zip((0, 3), limits, found, strict=True):

            def after(
                prefixes: list[list[int]], first: int = first, tables: torch.Tensor = timed.tables
            ) -> list[list[float]]:
                return [tables[len(tokens), tokens[-1] if tokens else first].tolist() for tokens in prefixes]

            assert_same([hypotheses], [search_in_lists(after, end=5, limit=limit, config=config)])


@pytest.mark.parametrize("positions", ["sinusoidal", "shaw"])
def test_entries_without_descendants_can_be_removed_at_once(positions: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.models.transformer.states._UNUSED_ENTRIES", 0)
    model, limits, config = make({**TRANSFORMER, "positions": positions}), [6, 9, 7], GenerationConfig(beam_size=3)
    sizes = []
    state, prompt = started(model)
    assert isinstance(state, TransformerState)
    step = model.step

    def watched(tokens: torch.Tensor, tree: BeamTreeCache):
        scores, tree = step(tokens, tree)
        sizes.append(tree.ancestors.size(2))
        return scores, tree

    monkeypatch.setattr(model, "step", watched)
    found = BeamSearch(model, end=NEVER, config=config).search(state, prompt, limits)
    assert_same(found, expected_of(model, limits, config, end=NEVER))
    assert sizes[-1] < 1 + 3 * (len(sizes) - 1)


def test_a_search_in_place_starts_anew_with_each_batch():
    model, config = make(TRANSFORMER), GenerationConfig(beam_size=2)
    search = BeamSearch(model, end=NEVER, config=config)
    for limits, lengths in (([3, 7, 5], [5, 2, 4]), ([5, 2, 1], [1, 2, 3]), ([1, 33, 1], [5, 2, 4])):
        some = torch.tensor(lengths)
        expected = expected_of(model, limits, config, end=NEVER, lengths=some)
        assert_same(search.search_in_place(*started(model, some), limits), expected)


@pytest.mark.parametrize(("beam", "vocab"), [(1, 1031), (3, 1031), (3, 1024), (5, 131)])
def test_the_maxima_of_groups_lead_to_the_same_extensions(beam: int, vocab: int):
    sums, log_probabilities = torch.randn(7, beam), torch.randn(7, beam, vocab).log_softmax(-1)
    sums[2, 1:] = -torch.inf
    totals, parents, tokens = best_extensions(sums, log_probabilities, 2 * beam)
    expected = (sums[:, :, None] + log_probabilities).flatten(1).topk(2 * beam)
    assert torch.equal(totals, expected.values)
    assert torch.equal(parents * vocab + tokens, expected.indices)


def test_hypotheses_of_a_sentence_share_its_source():
    state, _ = started(make(TRANSFORMER))
    assert isinstance(state, TransformerState)
    assert state.cross_kvs is not None
    wide = state.select(torch.arange(3).repeat_interleave(2))
    assert wide.cross_kvs is not None
    assert wide.cross_kvs[0].k is state.cross_kvs[0].k
    within = wide.select(torch.tensor([1, 1, 2, 3, 5, 4]))
    assert within.cross_kvs is wide.cross_kvs
    without_the_second = wide.select(torch.tensor([0, 1, 5, 4]))
    assert without_the_second.cross_kvs is not None
    torch.testing.assert_close(without_the_second.cross_kvs[0].k, state.cross_kvs[0].k[[0, 2]])
    mixed = wide.select(torch.tensor([0, 4, 4]))
    assert mixed.cross_kvs is not None
    torch.testing.assert_close(mixed.cross_kvs[0].k, state.cross_kvs[0].k[[0, 2, 2]])


@pytest.mark.parametrize("values", [TRANSFORMER, {"family": "recurrent"}], ids=named)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_same(values: dict, caplog: pytest.LogCaptureFixture):
    model, config = make(values), GenerationConfig(beam_size=3)
    there = copy.deepcopy(model).cuda()
    search = BeamSearch(there, end=NEVER, config=config)
    for limits in ([9, 11, 7], [9, 2, 6]):  # the second time by what the first one recorded
        with caplog.at_level(logging.WARNING):
            found = search.search(*started(there, device="cuda"), limits)
        assert_same(found, expected_of(model, limits, config, end=NEVER))
    assert not caplog.records
