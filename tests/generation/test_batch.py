"""The running batch: rows that are put into slots, several steps at once, CUDA graphs."""

import pytest
import torch

from regard.generation.batch import BatchShape, DecodingBatch
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.models.convolutional import ConvolutionalConfig
from regard.models.family import ModelConfig, build_model
from regard.models.protocols import Decoder, DecoderState
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig

VOCAB = 13
CONFIGS: list[ModelConfig] = [
    TransformerConfig(num_layers=2, model_dim=10, num_heads=1, feedforward_dim=11),
    RecurrentConfig(num_layers=1, model_dim=10, attention="luong", input_feeding=True),
    ConvolutionalConfig(num_layers=2, model_dim=10, kernel_size=3),
]


@pytest.fixture(params=CONFIGS, ids=lambda config: config.family)
def model(request: pytest.FixtureRequest) -> Decoder:
    made = build_model(request.param, VOCAB).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def state_of(model: Decoder, lengths: torch.Tensor | None) -> DecoderState:
    source, target = torch.randint(VOCAB, (3, 7)), torch.randint(VOCAB, (3, 4))
    return model.step(target, model.initial_state(model.encode(source, lengths)))[1]


@torch.no_grad()
@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 2, 5])], ids=["even", "padded"])
def test_rows_put_at_once_continue_as_rows_put_one_by_one(model: Decoder, lengths: torch.Tensor | None):
    state, places = state_of(model, lengths), [4, 0, 2]
    expected, slots = (model.static_state(5, 11, source_length=9) for _ in range(2))
    for row, place in enumerate(places):
        expected.put(torch.tensor([place]), state.select(torch.tensor([row])))
    slots.put(torch.tensor(places), state)
    larger = model.static_state(3, 17, source_length=12)
    larger.put(torch.tensor([0, 1, 2]), slots.select(torch.tensor(places)))
    for _ in range(2):
        tokens = torch.randint(VOCAB, (5, 1))
        scores, _ = model.step(tokens, expected)
        torch.testing.assert_close(model.step(tokens, slots)[0][places], scores[places])
        torch.testing.assert_close(model.step(tokens[places], larger)[0], scores[places])


@torch.no_grad()
def test_rows_that_share_a_source_are_put_each(model: Decoder):
    state = state_of(model, None).select(torch.tensor([1, 1, 0, 0]))
    slots = model.static_state(4, 11, source_length=9)
    slots.put(torch.tensor([3, 2, 1, 0]), state)
    tokens = torch.randint(VOCAB, (4, 1))
    torch.testing.assert_close(model.step(tokens, slots)[0].flip(0), model.step(tokens.flip(0), state)[0])


@torch.inference_mode()
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_several_steps_at_once_generate_what_single_ones_generate(model: Decoder, temperature: float):
    config, blank = GenerationConfig(temperature=temperature), model.initial_state(model.encode(torch.tensor([[0]])))
    state = state_of(model, None)
    draws = torch.rand(8, 4).numpy()
    written = []
    for pieces in ([8], [1] * 8, [3, 5]):
        batch = DecodingBatch(model, config, BatchShape(4, 32, 32), initial_state=blank, use_cuda_graph=False)
        batch.put([2, 0, 3], state, [4, 4, 4])
        batch.tokens[:, 0] = torch.tensor([1, 2, 3, 4])
        start, texts = 0, [[] for _ in range(4)]
        for piece in pieces:
            news = batch.run(piece, draws[start : start + piece] if temperature else None)
            texts = [text + new for text, new in zip(texts, news, strict=True)]
            start += piece
        assert batch.lengths == [12, 8, 12, 12]
        written.append([texts[slot] for slot in (2, 0, 3)])
    assert written[0] == written[1] == written[2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_captured_step_generates_what_the_step_generates(model: Decoder, temperature: float):
    config = GenerationConfig(temperature=temperature, top_k=9 if temperature else None)
    requests = [
        Request([3] * (1 + number % 3), limit=5 + 17 * number, seed=number, source=[4] * (1 + 5 * number))
        for number in range(5)
    ]
    expected = Engine(model, config, end=2, num_slots=2).run(requests)
    for num_slots in (2, 8):
        engine = Engine(model.cuda(), config, end=2, num_slots=num_slots)
        assert engine.run(requests) == expected
        assert engine.run(requests) == expected  # this time by graphs that are there
        assert engine._use_cuda_graphs
        model.cpu()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_step_that_synchronizes_is_not_captured(caplog: pytest.LogCaptureFixture):
    config = ConvolutionalConfig(
        num_layers=1, encoder_layers=0, model_dim=10, kernel_size=3, positions="learned", context_length=31
    )
    model = build_model(config, VOCAB).eval()
    expected = Engine(model, GenerationConfig(), end=None).run([Request([3], limit=99)])
    engine = Engine(model.cuda(), GenerationConfig(), end=None)
    for _ in range(2):
        assert engine.run([Request([3], limit=99)]) == expected
    assert [record.message.partition(" as a")[0] for record in caplog.records] == ["a decoding step cannot be captured"]
