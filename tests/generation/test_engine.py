"""Continuous batching: each request is generated as if it were alone."""

import numpy as np
import pytest
import torch
from tests.shape_checks import unchecked_shapes
from torch import nn

from regard.errors import ConfigError, DataError
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.generation.sampling import choose_tokens, sample
from regard.models.convolutional import ConvolutionalConfig
from regard.models.family import ModelConfig, build_model
from regard.models.protocols import Decoder
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.inference import Int8Linear

VOCAB, END = 13, 2
ALONE: dict[str, ModelConfig] = {
    "rotary": TransformerConfig(
        num_layers=2, encoder_layers=0, model_dim=12, num_heads=2, num_key_value_heads=1, feedforward_dim=11,
        positions="rotary",
    ),
    "learned": TransformerConfig(
        num_layers=1, encoder_layers=0, model_dim=10, num_heads=1, feedforward_dim=11, positions="learned",
        context_length=71,
    ),
    "lstm": RecurrentConfig(num_layers=2, encoder_layers=0, model_dim=10, bidirectional=False),
    "convolution": ConvolutionalConfig(num_layers=2, encoder_layers=0, model_dim=10, kernel_size=3),
    "convolution with learned positions": ConvolutionalConfig(
        num_layers=1, encoder_layers=0, model_dim=10, kernel_size=3, positions="learned", context_length=71
    ),
}  # fmt: skip
WITH_SOURCE: dict[str, ModelConfig] = {
    "transformer": TransformerConfig(num_layers=1, model_dim=10, num_heads=1, feedforward_dim=11),
    "lstm with attention": RecurrentConfig(num_layers=1, model_dim=10, attention="luong", input_feeding=True),
    "gru": RecurrentConfig(num_layers=1, model_dim=10, cell="gru"),
    "convolution with source": ConvolutionalConfig(num_layers=2, model_dim=10, kernel_size=3),
}
GREEDY, BOLD = GenerationConfig(), GenerationConfig(temperature=1.3, top_k=9, min_p=0.01)


def make(config: ModelConfig) -> Decoder:
    torch.manual_seed(3)
    model = build_model(config, VOCAB).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.5)
    return model


@unchecked_shapes()
@torch.no_grad()
def alone(model: Decoder, request: Request, config: GenerationConfig, end: int | None = END) -> list[int]:
    """What the request asks for, by the plainest of loops."""
    memory = None if request.source is None else model.encode(torch.tensor([request.source]))
    stream = np.random.Generator(np.random.Philox(request.seed))
    state, tokens, text = model.initial_state(memory), torch.tensor([request.prompt]), []
    while len(text) < request.limit:
        scores, state = model.step(tokens, state)
        draw = torch.tensor([stream.random()])
        token = int(choose_tokens(scores[:, -1], config, draw))
        if token == end:
            break
        text.append(token)
        tokens = torch.tensor([[token]])
    return text


def some_requests(count: int, *, has_source: bool) -> list[Request]:
    rng = np.random.default_rng(5)

    def tokens(least: int, most: int) -> list[int]:
        return rng.integers(3, VOCAB, rng.integers(least, most)).tolist()

    return [
        Request(tokens(1, 8), limit=int(rng.integers(1, 20)), seed=number, source=tokens(1, 9) if has_source else None)
        for number in range(count)
    ]


@pytest.fixture(params=[*ALONE, *WITH_SOURCE])
def model(request: pytest.FixtureRequest) -> Decoder:
    return make({**ALONE, **WITH_SOURCE}[request.param])


@pytest.mark.parametrize("config", [GREEDY, BOLD], ids=["greedy", "sampling"])
def test_each_request_is_generated_as_if_it_were_alone(model: Decoder, config: GenerationConfig):
    requests = some_requests(8, has_source=model.config.encoder_depth > 0)
    longest = max(requests, key=lambda request: request.limit)
    end = alone(model, longest, config, end=None)[longest.limit // 2]  # so that one of them ends before its limit
    expected = [alone(model, request, config, end) for request in requests]
    assert Engine(model, config, end=end, num_slots=3).run(requests) == expected
    assert Engine(model, config, end=end, num_slots=16).run(requests) == expected


def test_requests_may_be_submitted_later(model: Decoder):
    requests = some_requests(7, has_source=model.config.encoder_depth > 0)
    engine = Engine(model, BOLD, end=END, num_slots=4)
    texts: dict[int, list[int]] = {}
    ended = []
    waiting = list(requests)
    while waiting or not engine.is_idle:
        if waiting:
            texts[engine.submit(waiting.pop(0))] = []
        for number, tokens, is_last in engine.advance():
            texts[number] += tokens
            ended += [number] if is_last else []
    assert list(texts.values()) == [alone(model, request, BOLD) for request in requests]
    assert sorted(ended) == sorted(texts)


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch():
    model = make(ALONE["rotary"])
    request = Request([5, 7], limit=20, seed=77)
    first = Engine(model, BOLD, end=None).run([request])[0]
    others = some_requests(9, has_source=False)
    assert Engine(model, BOLD, end=None, num_slots=4).run([*others, request])[-1] == first
    assert Engine(model, BOLD, end=None).run([Request([5, 7], limit=20, seed=78)])[0] != first


@pytest.mark.slow
def test_the_capacity_grows_with_the_tokens_and_the_batch_shrinks_with_the_requests():
    model = make(ALONE["rotary"])
    engine = Engine(model, BOLD, end=None, num_slots=8)
    requests = [Request([3] * 50, limit=100, seed=1), *(Request([4, 5], limit=9, seed=n) for n in range(6))]
    texts = {engine.submit(request): [] for request in requests}
    rooms = []
    while not engine.is_idle:
        for number, tokens, _ in engine.advance():
            texts[number] += tokens
        assert engine._batch is not None
        if engine._batch.shape not in rooms:
            rooms.append(engine._batch.shape)
    assert [(room.num_slots, room.capacity) for room in rooms] == [
        (8, 64), (1, 64), (1, 96), (1, 128), (1, 192),
    ]  # fmt: skip
    assert list(texts.values()) == [alone(model, request, BOLD, end=None) for request in requests]


@pytest.mark.parametrize("name", WITH_SOURCE)
def test_a_longer_source_enlarges_the_batch(name: str):
    """It is submitted while a shorter one is generated, and finished before that one."""
    model = make(WITH_SOURCE[name])
    engine = Engine(model, BOLD, end=None)
    requests = [Request([1], limit=12, source=[3] * 5), Request([1], limit=3, source=[4, 5] * 20)]
    texts: dict[int, list[int]] = {engine.submit(requests[0]): []}
    while not engine.is_idle:
        for number, tokens, _ in engine.advance():
            texts[number] += tokens
        if len(texts[0]) == 3:
            texts[engine.submit(requests[1])] = []
    assert list(texts.values()) == [alone(model, request, BOLD, end=None) for request in requests]


def test_a_stream_returns_tokens_one_by_one_while_others_continue():
    model = make(ALONE["lstm"])
    engine = Engine(model, BOLD, end=END)
    requests = some_requests(3, has_source=False)
    number = engine.submit(requests[0])
    first, second = engine.stream(requests[1]), engine.stream(requests[2])
    assert [next(first), next(second)] == [alone(model, request, BOLD)[0] for request in requests[1:]]
    assert list(first) == alone(model, requests[1], BOLD)[1:]
    assert list(second) == alone(model, requests[2], BOLD)[1:]
    rest = engine.advance()
    while not engine.is_idle:
        rest += engine.advance()
    assert [token for written in rest for token in written.tokens] == alone(model, requests[0], BOLD)
    assert {written.request_id for written in rest} == {number}


def test_a_cancelled_request_ends_and_the_others_continue():
    model = make(ALONE["rotary"])
    engine = Engine(model, BOLD, end=None, num_slots=2)
    requests = [Request([3, number], limit=9, seed=number) for number in range(4)]
    numbers = [engine.submit(request) for request in requests]
    texts = {number: [] for number in numbers}
    for written in engine.advance():
        texts[written.request_id] += written.tokens
    engine.cancel(numbers[0])  # is being generated
    engine.cancel(numbers[2])  # waits
    while not engine.is_idle:
        for written in engine.advance():
            texts[written.request_id] += written.tokens
    assert [len(texts[number]) for number in numbers] == [1, 9, 0, 9]
    for kept in (1, 3):
        assert texts[numbers[kept]] == alone(model, requests[kept], BOLD, end=None)
    engine.cancel(numbers[1])  # is done, and stays done


def test_a_stream_that_is_closed_is_cancelled():
    engine = Engine(make(ALONE["rotary"]), BOLD, end=None)
    stream = engine.stream(Request([3], limit=100))
    next(stream)
    stream.close()
    assert engine.is_idle


def test_a_stream_whose_request_is_cancelled_ends():
    engine = Engine(make(ALONE["rotary"]), BOLD, end=None)
    stream = engine.stream(Request([3], limit=100))
    next(stream)
    engine.cancel(0)
    assert list(stream) == []


@pytest.mark.parametrize("name", ["rotary", "lstm", "convolution"])
def test_a_shared_prefix_changes_nothing(name: str):
    model = make(ALONE[name])
    prefix = [3, 4, 5, 6, 7]
    prompts = [prefix, [*prefix, 8], [*prefix, 9, 10, 3], [*prefix, 4, 11, 3], [3, 4, 5], [3, 4, 5, 6, 12, 7, 8]]
    requests = [Request(prompt, limit=10, seed=seed) for seed, prompt in enumerate(prompts)]
    engine = Engine(model, BOLD, end=None)
    engine.share(prefix)
    engine.share(prefix[:3])
    assert engine.run(requests) == [alone(model, request, BOLD, end=None) for request in requests]


def test_the_common_prefix_of_a_run_is_processed_once():
    model = make(ALONE["rotary"])
    beginning = ([3, 4, 5, 6, 7, 8, 9] * 6)[:40]
    requests = [Request([*beginning, *end], limit=5, seed=seed) for seed, end in enumerate([[], [3], [4, 5], [3, 7]])]
    lengths = []
    original = model.step

    def counted(tokens: torch.Tensor, state):
        lengths.append(tokens.size(1))
        return original(tokens, state)

    model.step = counted
    texts = Engine(model, BOLD, end=None).run(requests)
    assert max(lengths) == 39
    assert lengths.count(39) == 1
    del model.step
    assert texts == [alone(model, request, BOLD, end=None) for request in requests]


def test_a_prefix_is_shared_by_requests_of_the_same_source_only():
    model = make(WITH_SOURCE["transformer"])
    prefix, source = [3, 4, 5], [6, 7]
    engine = Engine(model, BOLD, end=None)
    engine.share(prefix, source=source)
    requests = [Request([*prefix, 8], limit=9, source=source), Request([*prefix, 8], limit=9, source=[7, 6, 5])]
    assert engine.run(requests) == [alone(model, request, BOLD, end=None) for request in requests]


@pytest.mark.parametrize("name", ["learned", "convolution with learned positions"])
def test_learned_positions_are_used_up_to_the_last(name: str):
    model = make(ALONE[name])
    requests = [Request([3] * 71, limit=5), Request([4] * 60, limit=99), *(Request([5], limit=40) for _ in range(3))]
    texts = Engine(model, GREEDY, end=None, num_slots=3).run(requests)
    assert [len(text) for text in texts] == [1, 12, 40, 40, 40]
    shorter = [Request(r.prompt, len(text)) for r, text in zip(requests, texts, strict=True)]
    assert texts == [alone(model, request, GREEDY, end=None) for request in shorter]


def test_unused_slots_do_not_exceed_the_learned_positions():
    model = make(ALONE["convolution with learned positions"])
    engine = Engine(model, GREEDY, end=None, num_slots=4)
    requests = [Request([3, number % 7], limit=60) for number in range(9)]
    number, texts = 0, {}
    while number < len(requests) or not engine.is_idle:  # three of the four slots are used, again and again
        while number < len(requests) and len(engine._rows) + len(engine._queue) < 3:
            texts[engine.submit(requests[number])] = []
            number += 1
        for written in engine.advance():
            texts[written.request_id] += written.tokens
    assert list(texts.values()) == [alone(model, request, GREEDY, end=None) for request in requests]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([], limit=3), "at least one token, got none"),
        (Request([3, 13], limit=3), "below vocab_size=13, got 13 at position 1"),
        (Request([-1], limit=3), "got -1 at position 0"),
        (Request([3] * 72, limit=3), "got 72 tokens and context_length=71"),
        (Request([3], limit=0), "limit must be at least 1, got 0"),
        (Request([3], limit=1, source=[4]), "needs no source, got one"),
    ],
)
def test_invalid_requests_are_errors(request_: Request, message: str):
    engine = Engine(make(ALONE["learned"]), GREEDY, end=END)
    for refuse in (engine.submit, engine.stream, lambda one: engine.run([one])):
        with pytest.raises(DataError, match=message):
            refuse(request_)
    assert engine.is_idle


@pytest.mark.slow
@pytest.mark.parametrize("config", [GREEDY, BOLD], ids=["greedy", "sampling"])
def test_suppressed_tokens_are_never_generated(model: Decoder, config: GenerationConfig):
    requests = some_requests(4, has_source=model.config.encoder_depth > 0)
    usual = Engine(model, config, end=None).run(requests)
    banned = sorted({token for tokens in usual for token in tokens})[:3]
    found = Engine(model, config, end=None, suppress=banned).run(requests)
    assert not any(token in banned for tokens in found for token in tokens)
    for request, tokens in zip(requests, found, strict=True):
        encoded = None if request.source is None else model.encode(torch.tensor([request.source]))
        state, prompt = model.initial_state(encoded), torch.tensor([request.prompt])
        [expected] = sample(
            model, state, prompt, end=-1, limits=[request.limit], seeds=[request.seed], config=config, suppress=banned
        )
        assert tokens == expected


def test_the_end_and_tokens_that_do_not_exist_cannot_be_suppressed():
    model = make(ALONE["rotary"])
    for tokens, words in (([END], "end token"), ([-1], "got -1")):
        with pytest.raises(ConfigError, match=words):
            Engine(model, GREEDY, end=END, suppress=tokens)


def test_weights_of_8_bits_are_a_setting():
    model = make(ALONE["rotary"])
    engine = Engine(model, GenerationConfig(quantization="int8"), end=None)
    assert isinstance(engine._model.output, Int8Linear)
    assert isinstance(model.output, nn.Linear)
    assert len(engine.run([Request([3], limit=5)])[0]) == 5


def test_a_model_with_an_encoder_needs_a_source():
    engine = Engine(make(WITH_SOURCE["transformer"]), GREEDY, end=END)
    with pytest.raises(DataError, match="needs a source, got none"):
        engine.submit(Request([1], limit=3))
    with pytest.raises(DataError, match="a source needs at least one token"):
        engine.submit(Request([1], limit=3, source=[]))


def test_invalid_engines_are_errors():
    model = make(ALONE["rotary"])
    with pytest.raises(ConfigError, match="beam_size must be 1, got 3"):
        Engine(model, GenerationConfig(beam_size=3), end=END)
    with pytest.raises(ConfigError, match="num_slots must be at least 1, got 0"):
        Engine(model, GREEDY, end=END, num_slots=0)
    encoder = Transformer(TransformerConfig(num_layers=1, decoder_layers=0, model_dim=8, num_heads=2), VOCAB)
    with pytest.raises(ConfigError, match="with a decoder"):
        Engine(encoder, GREEDY, end=END)


def test_without_requests_nothing_is_generated():
    engine = Engine(make(ALONE["rotary"]), GREEDY, end=END)
    assert engine.advance() == []
    assert engine.run([]) == []


def test_a_source_that_is_encoded_already_gives_the_same_tokens():
    model = make(WITH_SOURCE["transformer"])
    sources = [[3, 4, 5, 6, 7], [8, 9], [5, 5, 3, 11, 4]]
    plain = [Request([1], limit=9, source=source) for source in sources]
    with torch.inference_mode():
        encoded = [model.encode(torch.tensor([source])) for source in sources]
    alike = [Request([1], limit=9, encoded=each) for each in (encoded[0], encoded[2])]
    expected = Engine(model, GREEDY, end=END, num_slots=2).run(plain)
    assert Engine(model, GREEDY, end=END, num_slots=2).run(alike) == [expected[0], expected[2]]
    with pytest.raises(DataError, match="this model needs no source, got one"):
        Engine(make(ALONE["rotary"]), GREEDY, end=END).run([Request([1], limit=9, encoded=encoded[0])])
