"""Models that generate images: step by step as at once, causal, and samples as the model's distribution."""

from typing import Any

import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.generation import Engine, GenerationConfig, Request, sample
from regard.models.family import find_family
from regard.models.pixels import PixelModel, PixelShape, causal_offsets, neighbor_table, predict_smooth
from regard.models.protocols import Decoder, StaticState

LEVELS, CLASSES = 8, 2
SMALL = {"model_dim": 20, "num_layers": 2, "neighborhood": 2, "dropout": 0.0}
FAMILIES = {"pixel-transformer": {"num_heads": 2, "feedforward_dim": 23}, "pixel-recurrence": {}}


def make(family: str, *, channels: int = 3, components: int = 3, size: int = 4, **settings: Any) -> PixelModel:
    found = find_family(family)
    shared = next(iter(found.presets.values())).shared
    values = {**shared, **SMALL, **FAMILIES[family], "family": family, "components": components, **settings}
    model: Any = found.build(found.Config.read(values), shape=PixelShape(size, channels, LEVELS, CLASSES))
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.4)
    return model.eval()


def tokens_of(model: PixelModel, batch: int = 3) -> torch.Tensor:
    starts = LEVELS + torch.arange(batch)[:, None] % (CLASSES + 1)
    return torch.cat([starts, torch.randint(LEVELS, (batch, model.shape.num_values))], dim=1)


@pytest.fixture(params=[(family, c, k) for family in FAMILIES for c in (1, 3) for k in (0, 3)], ids=str)
def model(request: pytest.FixtureRequest) -> PixelModel:
    family, channels, components = request.param
    return make(family, channels=channels, components=components)


def test_it_is_a_decoder_with_a_static_state(model):
    assert isinstance(model, Decoder)
    assert isinstance(model.static_state(2, 9), StaticState)


def test_steps_give_the_logits_of_all_positions_at_once(model):
    tokens = tokens_of(model)[:, :-1]
    state, found = model.initial_state(batch_size=len(tokens)), []
    for token in tokens.split(1, dim=1):
        logits, state = model.step(token, state)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, dim=1), model.decode(tokens))


def test_losses_are_those_of_the_logits(model):
    tokens = tokens_of(model)
    values = tokens[:, 1:].unflatten(1, (-1, model.shape.channels))
    log_probs = model.decode(tokens[:, :-1]).log_softmax(dim=-1)
    expected = -log_probs.gather(2, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(model.losses(values, tokens[:, 0] - LEVELS).flatten(1), expected)


def test_a_value_does_not_depend_on_itself_or_later_ones(model):
    tokens = tokens_of(model)[:, :-1]
    before = model.decode(tokens)
    for place in (1, 2, 3, 11, tokens.size(1) - 1):
        changed = tokens.clone()
        changed[:, place:] = (changed[:, place:] + 3) % LEVELS
        after = model.decode(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place])
        assert not torch.allclose(after[:, place], before[:, place])


def test_the_class_changes_the_distribution(model):
    tokens = tokens_of(model)
    other = tokens.clone()
    other[:, 0] = LEVELS + (other[:, 0] - LEVELS + 1) % (CLASSES + 1)
    assert not torch.allclose(model.decode(tokens[:, :-1]), model.decode(other[:, :-1]))


def test_probabilities_of_levels_sum_to_one_and_start_tokens_have_none(model):
    probabilities = model.decode(tokens_of(model)[:, :4]).exp()
    torch.testing.assert_close(probabilities[..., :LEVELS].sum(dim=-1), torch.ones(3, 4))
    assert probabilities[..., LEVELS:].max() == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_generates_what_sampling_one_by_one_does(family):
    """With fewer slots than images, so that slots are used again, and rows are at different channels."""
    model = make(family, size=2)
    config, limit = GenerationConfig(temperature=0.9), model.shape.num_values
    starts = [LEVELS, LEVELS + 2, LEVELS + 1]
    requests = [Request([start], limit=limit - number, seed=number) for number, start in enumerate(starts)]
    found = Engine(model, config, end=None, num_slots=2).run(requests)
    for request, own in zip(requests, found, strict=True):
        (alone,) = sample(
            model, model.initial_state(), torch.tensor([request.prompt]), end=-1, limits=[request.limit],
            seeds=[request.seed], config=config,
        )  # fmt: skip
        assert own == alone
        assert max(own) < LEVELS


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_static_state_are_replaced_and_reordered(family):
    model = make(family)
    tokens = tokens_of(model, batch=2)
    state = model.static_state(2, 9)
    for row in range(2):
        _, one = model.step(tokens[row : row + 1, : 4 + row], model.initial_state())
        state.put(torch.tensor([row]), one)
    state.reorder(torch.tensor([1, 1]))
    logits, _ = model.step(tokens[[1, 1], 5:6], state)
    torch.testing.assert_close(logits[:, 0], model.decode(tokens[[1, 1], :6])[:, 5])


def test_neighbors_precede_a_pixel_and_lie_within_the_image():
    offsets = causal_offsets(3)
    assert len(offsets) == len(set(offsets)) == 3 * 7 + 3
    table = neighbor_table(5, offsets)
    assert (table[(table < 25)] < torch.arange(25)[:, None].expand_as(table)[table < 25]).all()
    assert table[7].tolist()[:4] == [6, 2, 1, 3]
    assert table[5].tolist()[:4] == [25, 0, 25, 1]


def test_the_smooth_prediction_follows_edges_and_slopes():
    def predicted(left: float, above: float, corner: float) -> float:
        return float(predict_smooth(torch.tensor([left, above, corner])[None, None, :, None]))

    assert predicted(0.5, 0.1, 0.5) == pytest.approx(0.1)
    assert predicted(0.1, 0.5, 0.5) == pytest.approx(0.1)
    assert predicted(0.4, 0.5, 0.45) == pytest.approx(0.45)


def test_what_it_cannot_do_is_an_error():
    model = make("pixel-recurrence")
    with pytest.raises(ConfigError, match="no encoder"):
        model.encode(torch.zeros(1, 3))
    with pytest.raises(ConfigError, match="no quantized form"):
        model.for_inference(quantization="int8")


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_changes_the_likelihood_little(family):
    """Values and their simple predictions stay exact: levels lie too close together for half precision."""
    model = make(family).float()
    tokens = tokens_of(model)
    values, starts = tokens[:, 1:].unflatten(1, (-1, 3)), tokens[:, 0] - LEVELS
    expected = model.losses(values, starts).mean()
    found = model.to(torch.bfloat16).losses(values, starts)
    assert found.dtype == torch.get_default_dtype()
    torch.testing.assert_close(found.mean(), expected.to(found.dtype), rtol=0.02, atol=0.0)
