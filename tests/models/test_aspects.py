"""Attention by aspect: against loops written out, and blind to padding and to aspects that are not asked for."""

import math

import pytest
import torch
from tests.models.test_heads import BODIES
from torch import nn

from regard.models.aspects import AspectAttention, AspectClassifier
from regard.models.heads import HeadConfig
from regard.models.transformer import TransformerConfig

VOCAB, OUTPUTS, ASPECTS, END = 31, 5, 3, 2
BAG = TransformerConfig.read({"num_layers": 0, "model_dim": 12, "num_heads": 3, "positions": "none"})
SEGMENTED = TransformerConfig.read(
    {"num_layers": 1, "decoder_layers": 0, "model_dim": 12, "num_heads": 3, "feedforward_dim": 37, "dropout": 0.0,
     "num_segments": 2}
)  # fmt: skip
ALL = {**BODIES, "bag": BAG, "segmented": SEGMENTED}


def classifier(body: str, **head) -> AspectClassifier:
    model = AspectClassifier(ALL[body], HeadConfig(**head), VOCAB, OUTPUTS, num_aspects=ASPECTS).eval()
    for parameter in model.pooling.parameters():  # queries start at zero, and zeros hide mistakes
        nn.init.normal_(parameter)
    return model


def row(text: list[int], aspect: list[int], width: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, their number, and their segments, with padding up to `width`."""
    ids = [1, *text, END, *aspect, END]
    segments = [0] * (len(text) + 2) + [1] * (len(aspect) + 1)
    padding = [0] * (width - len(ids))
    return torch.tensor([ids + padding]), torch.tensor([len(ids)]), torch.tensor([segments + padding])


@pytest.mark.parametrize("has_projections", [True, False])
@pytest.mark.parametrize("asking", ["query", "pair", "both"])
def test_it_is_a_softmax_of_scaled_products_and_a_weighted_sum(asking, has_projections: bool):
    width = 7
    attention = AspectAttention(width, ASPECTS, asking=asking, has_projections=has_projections)
    for parameter in attention.requires_grad_(False).parameters():
        nn.init.normal_(parameter)
    states = torch.randn(2, 6, width)
    is_word = torch.tensor([[0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0]]).bool()
    is_aspect = torch.tensor([[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]).bool()
    aspects = torch.tensor([2, 0])

    def projected(layer: nn.Module | None, vector: torch.Tensor) -> torch.Tensor:
        return layer.weight @ vector + layer.bias if isinstance(layer, nn.Linear) else vector

    found = attention(states, is_word, is_aspect, aspects)
    for number in range(2):
        query = torch.zeros(width)
        if attention.queries is not None:
            query = query + attention.queries.weight[aspects[number]]
        if attention.query is not None:
            query = query + projected(attention.query, states[number][is_aspect[number]].mean(dim=0))
        words = list(states[number][is_word[number]])
        weights = [math.exp(query @ projected(attention.key, word) / math.sqrt(width)) for word in words]
        expected = sum(
            w / sum(weights) * projected(attention.value, word) for w, word in zip(weights, words, strict=True)
        )
        torch.testing.assert_close(found[number], expected)


@pytest.mark.parametrize("body", ALL)
@pytest.mark.parametrize("asking", ["query", "pair", "both"])
def test_padding_changes_nothing(body: str, asking):
    model = classifier(body, aspect=asking)
    alone = row([7, 11, 13], [5])
    other = row([3, 4, 5, 6, 7, 8], [9, 10])
    width = other[0].size(1)
    padded = row([7, 11, 13], [5], width)
    together = [torch.cat(pair) for pair in zip(padded, other, strict=True)]
    aspects = torch.tensor([1, 2])
    scores = model(*together, aspects)
    torch.testing.assert_close(scores[:1], model(*alone, aspects[:1]))
    torch.testing.assert_close(scores[1:], model(*other, aspects[1:]))


@pytest.mark.parametrize("body", ALL)
def test_an_aspect_is_asked_for_by_its_number_by_its_words_or_by_both(body: str):
    text, number = [7, 11, 13], torch.tensor([1])
    for asking, hears_number, hears_words in (("query", True, False), ("pair", False, True), ("both", True, True)):
        model = classifier(body, aspect=asking)
        scores = model(*row(text, [5]), number)
        assert torch.allclose(scores, model(*row(text, [5]), number + 1)) != hears_number
        assert torch.allclose(scores, model(*row(text, [6]), number)) != hears_words


@pytest.mark.parametrize("body", ALL)
@pytest.mark.parametrize("asking", ["query", "pair", "both"])
def test_every_weight_gets_a_gradient(body: str, asking):
    model = classifier(body, aspect=asking, hidden=True).train()
    model(*row([7, 11, 13], [5, 6]), torch.tensor([1])).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_all_words_count_alike_before_anything_is_learned():
    head = HeadConfig(aspect="query", projections=False, dropout=0.0)
    model = AspectClassifier(BAG, head, VOCAB, OUTPUTS, num_aspects=ASPECTS)
    scores = model(*row([7, 11, 13], [5]), torch.tensor([0]))
    vectors = model.body.embedding.weight[[7, 11, 13]] * math.sqrt(12)
    torch.testing.assert_close(scores[0], model.head(vectors.mean(dim=0)))
