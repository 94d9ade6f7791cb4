"""Heads: what stands on a body must not see padding, and must read what the body read."""

import pytest
import torch

from regard.models.convolutional import ConvolutionalConfig
from regard.models.heads import Classifier, HeadConfig, Pool, Tagger
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig

VOCAB, OUTPUTS = 31, 5
BODIES = {
    "transformer": TransformerConfig.read(
        {"num_layers": 2, "decoder_layers": 0, "model_dim": 12, "num_heads": 3, "feedforward_dim": 37, "dropout": 0.0}
    ),
    "decoder": TransformerConfig.read(
        {"num_layers": 2, "encoder_layers": 0, "model_dim": 12, "num_heads": 3, "feedforward_dim": 37, "dropout": 0.0,
         "positions": "rotary"}
    ),
    "recurrent": RecurrentConfig.read({"num_layers": 2, "decoder_layers": 0, "model_dim": 12, "dropout": 0.0}),
    "convolutional": ConvolutionalConfig.read(
        {"num_layers": 2, "decoder_layers": 0, "model_dim": 12, "dropout": 0.0}
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("pooling", [None, "mean", "first", "last", "max", "attention"])
def test_padding_changes_nothing(body: str, pooling):
    model = Classifier(BODIES[body], HeadConfig(pooling=pooling, hidden=True), VOCAB, OUTPUTS).eval()
    source, lengths = torch.randint(3, VOCAB, (3, 7)), torch.tensor([7, 2, 5])
    together = model(source, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(together[row : row + 1], model(source[row : row + 1, :length]))


@pytest.mark.parametrize("body", BODIES)
def test_every_weight_gets_a_gradient(body: str):
    model = Classifier(BODIES[body], HeadConfig(pooling="attention", hidden=True), VOCAB, OUTPUTS)
    model(torch.randint(3, VOCAB, (3, 7))).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


@pytest.mark.parametrize("body", BODIES)
def test_scores_at_each_position_are_those_of_its_state(body: str):
    model = Tagger(BODIES[body], HeadConfig(), VOCAB, OUTPUTS).eval()
    source, lengths = torch.randint(3, VOCAB, (3, 7)), torch.tensor([7, 2, 5])
    places = torch.arange(7).expand(3, -1)
    together = model(source, places, lengths)
    assert together.shape == (3, 7, OUTPUTS)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(
            together[row : row + 1, :length], model(source[row : row + 1, :length], places[:1, :length])
        )


def test_a_mean_is_a_mean_and_attention_starts_where_its_query_points():
    states, mask = torch.randn(2, 5, 3), torch.tensor([[True] * 5, [True, True, False, False, False]])
    mean = Pool(3, "mean")(states, mask)
    torch.testing.assert_close(mean, torch.stack([states[0].mean(0), states[1, :2].mean(0)]))
    attention = Pool(3, "attention")
    assert attention.query is not None
    with torch.no_grad():
        attention.query.weight.zero_()
    torch.testing.assert_close(attention(states, mask), mean)
    with torch.no_grad():
        attention.query.weight.fill_(1e4)
    torch.testing.assert_close(attention(states)[0], states[0, states[0].sum(-1).argmax()])
