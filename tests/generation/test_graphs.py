"""A batch that writes, and what is done to its slots at once instead of one by one."""

import pytest
import torch

from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.generation.graphs import Batch, Room, put_rows
from regard.models.convolutional import ConvolutionalConfig
from regard.models.families import AnyConfig, AnyModel, make_model
from regard.models.protocols import State
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig

VOCAB = 13
CONFIGS: list[AnyConfig] = [
    TransformerConfig(num_layers=2, model_dim=10, num_heads=1, feedforward_dim=11),
    RecurrentConfig(num_layers=1, model_dim=10, attention="luong", input_feeding=True),
    ConvolutionalConfig(num_layers=2, model_dim=10, kernel_size=3),
]


@pytest.fixture(params=CONFIGS, ids=lambda config: config.family)
def model(request: pytest.FixtureRequest) -> AnyModel:
    made = make_model(request.param, VOCAB).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def state_of(model: AnyModel, lengths: torch.Tensor | None) -> State:
    source, target = torch.randint(VOCAB, (3, 7)), torch.randint(VOCAB, (3, 4))
    return model.step(target, model.start(model.encode(source, lengths)))[1]


@torch.no_grad()
@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 2, 5])], ids=["even", "padded"])
def test_rows_put_at_once_go_on_as_rows_put_one_by_one(model: AnyModel, lengths: torch.Tensor | None):
    state, places = state_of(model, lengths), [4, 0, 2]
    expected, slots = (model.slots(5, 11, source_length=9) for _ in range(2))
    for row, place in enumerate(places):
        expected.put(place, state.select(torch.tensor([row])))
    put_rows(slots, places, state, device=torch.device("cpu"))
    larger = model.slots(3, 17, source_length=12)
    put_rows(larger, [0, 1, 2], slots.select(torch.tensor(places)), device=torch.device("cpu"))
    for _ in range(2):
        tokens = torch.randint(VOCAB, (5, 1))
        scores, _ = model.step(tokens, expected)
        torch.testing.assert_close(model.step(tokens, slots)[0][places], scores[places])
        torch.testing.assert_close(model.step(tokens[places], larger)[0], scores[places])


@torch.no_grad()
def test_rows_that_see_the_same_source_are_put_each(model: AnyModel):
    state = state_of(model, None).select(torch.tensor([1, 1, 0, 0]))
    slots = model.slots(4, 11, source_length=9)
    put_rows(slots, [3, 2, 1, 0], state, device=torch.device("cpu"))
    tokens = torch.randint(VOCAB, (4, 1))
    torch.testing.assert_close(model.step(tokens, slots)[0].flip(0), model.step(tokens.flip(0), state)[0])


@torch.inference_mode()
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_several_steps_at_once_write_what_single_ones_write(model: AnyModel, temperature: float):
    config, blank = GenerationConfig(temperature=temperature), model.start(model.encode(torch.tensor([[0]])))
    state = state_of(model, None)
    draws = torch.rand(8, 4).numpy()
    written = []
    for pieces in ([8], [1] * 8, [3, 5]):
        batch = Batch(model, config, Room(4, 32, 32), blank=blank, wants_graph=False)
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_recorded_step_writes_what_the_step_writes(model: AnyModel, temperature: float):
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
        assert engine._wants_graphs
        model.cpu()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")
def test_a_step_that_waits_for_the_host_is_not_recorded(caplog: pytest.LogCaptureFixture):
    config = ConvolutionalConfig(
        num_layers=1, encoder_layers=0, model_dim=10, kernel_size=3, positions="learned", context_length=31
    )
    model = make_model(config, VOCAB).eval()
    expected = Engine(model, GenerationConfig(), end=None).run([Request([3], limit=99)])
    engine = Engine(model.cuda(), GenerationConfig(), end=None)
    for _ in range(2):
        assert engine.run([Request([3], limit=99)]) == expected
    assert [record.message.partition(" as a")[0] for record in caplog.records] == [
        "a step of this model cannot be recorded"
    ]
