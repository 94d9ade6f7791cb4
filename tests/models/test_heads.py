"""Heads: padding does not change what they compute, and pooling follows its formula."""

import pytest
import torch
import torch.nn.functional as F
from tests.tiny import BODIES
from torch import nn

from regard.models.heads import (
    HeadConfig,
    MaskedHead,
    Pool,
    PredictionHead,
    SequenceClassifier,
    default_pooling,
)

VOCAB, OUTPUTS = 31, 5
POOLINGS = ["mean", "first", "last", "max", "attention"]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_does_not_change_the_logits(body: str, pooling):
    model = SequenceClassifier(BODIES[body], HeadConfig(pooling=pooling, hidden_layer=True), VOCAB, OUTPUTS).eval()
    source, lengths = torch.randint(3, VOCAB, (3, 7)), torch.tensor([7, 2, 5])
    together = model(source, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(together[row : row + 1], model(source[row : row + 1, :length]))


@pytest.mark.parametrize("body", BODIES)
def test_every_parameter_has_a_gradient(body: str):
    model = SequenceClassifier(BODIES[body], HeadConfig(pooling="attention", hidden_layer=True), VOCAB, OUTPUTS)
    model(torch.randint(3, VOCAB, (3, 7))).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_pooling_follows_its_formula():
    states, mask = torch.randn(2, 5, 3), torch.tensor([[True] * 5, [True, True, False, False, False]])
    pools = {how: Pool(3, how) for how in POOLINGS}
    mean = pools["mean"](states, mask)
    torch.testing.assert_close(mean, torch.stack([states[0].mean(0), states[1, :2].mean(0)]))
    torch.testing.assert_close(pools["first"](states, mask), states[:, 0])
    torch.testing.assert_close(pools["last"](states, mask), torch.stack([states[0, 4], states[1, 1]]))
    torch.testing.assert_close(pools["max"](states, mask), torch.stack([states[0].amax(0), states[1, :2].amax(0)]))
    attention = pools["attention"]
    assert attention.query is not None
    nn.init.zeros_(attention.query.weight)
    torch.testing.assert_close(attention(states, mask), mean)
    nn.init.constant_(attention.query.weight, 1e4)
    torch.testing.assert_close(attention(states)[0], states[0, states[0].sum(-1).argmax()])


def test_the_default_pooling_of_a_decoder_is_the_last_position():
    assert {name: default_pooling(config) for name, config in BODIES.items()} == {
        "transformer": "mean",
        "decoder": "last",
        "recurrent": "mean",
        "convolutional": "mean",
    }


@pytest.mark.parametrize("has_hidden_layer", [False, True])
def test_a_prediction_head_has_one_layer_or_two(has_hidden_layer: bool):
    head, x = PredictionHead(7, OUTPUTS, dropout=0.5, has_hidden_layer=has_hidden_layer).eval(), torch.randn(3, 7)
    hidden = x if head.hidden is None else (x @ head.hidden.weight.T + head.hidden.bias).tanh()
    torch.testing.assert_close(head(x), hidden @ head.output.weight.T + head.output.bias)
    assert (head.hidden is not None) == has_hidden_layer
    assert not torch.equal(head.train()(x), head.eval()(x))


def test_a_masked_head_shares_the_embedding_and_follows_bert():
    """Devlin et al. (2018): a layer with GELU, a layer norm, and the product with the embeddings."""
    embedding = nn.Embedding(VOCAB, 7)
    head, states = MaskedHead(embedding, norm_epsilon=1e-3), torch.randn(3, 4, 7)
    for parameter in (head.transform.bias, head.norm.weight, head.norm.bias, head.output.bias):
        nn.init.normal_(parameter)
    hidden = F.gelu(states @ head.transform.weight.T + head.transform.bias)
    normal = (hidden - hidden.mean(-1, keepdim=True)) / (hidden.var(-1, correction=0, keepdim=True) + 1e-3).sqrt()
    expected = (normal * head.norm.weight + head.norm.bias) @ embedding.weight.T + head.output.bias
    torch.testing.assert_close(head(states), expected)
    assert head.output.weight is embedding.weight


def test_a_model_in_training_mode_has_no_ngrams():
    model = SequenceClassifier(BODIES["recurrent"], HeadConfig(pooling="mean"), VOCAB, OUTPUTS, ngrams=2).eval()
    assert model.ngrams is not None
    model.ngrams.bias.fill_(1.0)
    model.ngrams.scales.fill_(0.5)
    source = torch.randint(3, VOCAB, (3, 7))
    evaluated = model(source)
    network, own = model.parts(source)
    assert own is not None
    torch.testing.assert_close(evaluated, network / 2 + own / 2)
    torch.testing.assert_close(own, torch.ones_like(own))
    assert model.train().parts(source)[1] is None
