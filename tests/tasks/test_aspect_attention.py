"""Attention of aspect sentiment: its formula, and what the query of an aspect depends on."""

import math

import pytest
import torch
from tests.tiny import BODIES
from torch import nn

from regard.models.family import ModelConfig, read_model_config
from regard.models.heads import HeadConfig
from regard.tasks.aspect_sentiment import AspectAttention, AspectClassifier

VOCAB, OUTPUTS, ASPECTS, END = 31, 5, 3, 2
BAG = read_model_config({"num_layers": 0, "model_dim": 12, "num_heads": 3, "positions": "none"})
SEGMENTED = read_model_config(
    {"num_layers": 1, "decoder_layers": 0, "model_dim": 12, "num_heads": 3, "feedforward_dim": 37, "dropout": 0.0,
     "num_segments": 2}
)  # fmt: skip
ALL: dict[str, ModelConfig] = {**BODIES, "bag": BAG, "segmented": SEGMENTED}
QUERIES = ["learned", "text", "both"]


def classifier(body: str, query, **head) -> AspectClassifier:
    config = HeadConfig(pooling="mean", dropout=0.0, **head)
    model = AspectClassifier(
        ALL[body], config, VOCAB, OUTPUTS, num_aspects=ASPECTS, query=query, has_projections=True
    ).eval()
    for parameter in model.pooling.parameters():  # queries are initially zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.5)
    return model


def config_of(model_dim: int, **values) -> ModelConfig:
    return read_model_config({"model_dim": model_dim, "num_heads": 1, "positions": "none", **values})


def row(text: list[int], aspect: list[int], width: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, their number, and their segments, with padding up to `width`."""
    ids = [1, *text, END, *aspect, END]
    segments = [0] * (len(text) + 2) + [1] * (len(aspect) + 1)
    padding = [0] * (width - len(ids))
    return torch.tensor([ids + padding]), torch.tensor([len(ids)]), torch.tensor([segments + padding])


@pytest.mark.parametrize("has_projections", [True, False])
@pytest.mark.parametrize("query", QUERIES)
def test_weights_are_a_softmax_of_scaled_products(query, has_projections: bool):
    width, temperature = 7, 0.6
    config = config_of(width, attention_temperature=temperature)
    attention = AspectAttention(config, ASPECTS, query=query, has_projections=has_projections)
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
        q = torch.zeros(width)
        if attention.queries is not None:
            q = q + attention.queries.weight[aspects[number]]
        if attention.query is not None:
            q = q + projected(attention.query, states[number][is_aspect[number]].mean(dim=0))
        words = list(states[number][is_word[number]])
        weights = [math.exp(q @ projected(attention.key, word) / math.sqrt(width) / temperature) for word in words]
        expected = sum(
            w / sum(weights) * projected(attention.value, word) for w, word in zip(weights, words, strict=True)
        )
        torch.testing.assert_close(found[number], expected)


@pytest.mark.parametrize("body", ALL)
@pytest.mark.parametrize("query", QUERIES)
def test_padding_does_not_change_the_logits(body: str, query):
    model = classifier(body, query)
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
def test_the_query_depends_on_the_index_of_an_aspect_or_on_its_words(body: str):
    text, number = [7, 11, 13], torch.tensor([1])
    for query, uses_index, uses_words in (("learned", True, False), ("text", False, True), ("both", True, True)):
        model = classifier(body, query)
        scores = model(*row(text, [5]), number)
        assert torch.allclose(scores, model(*row(text, [5]), number + 1)) != uses_index
        assert torch.allclose(scores, model(*row(text, [6]), number)) != uses_words


@pytest.mark.parametrize("body", ALL)
@pytest.mark.parametrize("query", QUERIES)
def test_every_parameter_has_a_gradient(body: str, query):
    model = classifier(body, query, hidden_layer=True).train()
    model(*row([7, 11, 13], [5, 6]), torch.tensor([1])).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_all_words_have_the_same_weight_initially():
    head = HeadConfig(pooling="mean", dropout=0.0)
    model = AspectClassifier(BAG, head, VOCAB, OUTPUTS, num_aspects=ASPECTS, query="learned", has_projections=False)
    scores = model(*row([7, 11, 13], [5]), torch.tensor([0]))
    vectors = model.body.embedding.weight[[7, 11, 13]] * math.sqrt(12)
    torch.testing.assert_close(scores[0], model.head(vectors.mean(dim=0)))


def test_hard_retrieval_returns_the_value_of_the_best_word():
    width = 7
    attention = AspectAttention(config_of(width, retrieval="hard"), ASPECTS, query="learned", has_projections=False)
    assert attention.queries is not None
    nn.init.normal_(attention.queries.weight)
    states, is_word = torch.randn(2, 6, width), torch.ones(2, 6, dtype=torch.bool)
    found = attention(states, is_word, ~is_word, torch.tensor([2, 0]))
    for number, aspect in enumerate((2, 0)):
        best = (states[number] @ attention.queries.weight[aspect]).argmax()
        torch.testing.assert_close(found[number], states[number, best])
