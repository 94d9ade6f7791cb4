"""Each similarity against its formula, one query and one key at a time, and against what defines it."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from regard.nn.attention import Lookup
from regard.nn.similarity import (
    Additive,
    Bilinear,
    Cosine,
    Gaussian,
    Latent,
    Mahalanobis,
    Similarity,
    SimilarityName,
    make_similarity,
)

BATCH, HEADS, QUERY, KEY, HEAD = 2, 6, 5, 7, 11
NAMES: tuple[SimilarityName, ...] = get_args(SimilarityName)


def make(name: SimilarityName, shared: int = HEADS) -> Similarity:
    return randomized(make_similarity(name, HEAD, shared))


def randomized(module: Any) -> Any:
    """With other parameters than those it starts with, which are often identities."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def queries_and_keys(shared: int = HEADS) -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, HEADS, QUERY, HEAD), torch.randn(BATCH, shared, KEY, HEAD)


def score(similarity: Similarity, q: Tensor, k: Tensor) -> Tensor:
    return similarity(q, similarity.prepare(k))


def written_out(name: SimilarityName, s: Similarity, head: int, q: Tensor, k: Tensor) -> float:
    """The score of one query and one key by the parameters of one head."""
    q, k = q.tolist(), k.tolist()
    p = {name: parameter[head].tolist() for name, parameter in s.named_parameters()}
    places = range(HEAD)
    dot = sum(q[i] * k[i] for i in places)
    difference = [q[i] - k[i] for i in places]
    match name:
        case "dot":
            return dot
        case "scaled-dot":
            return dot / math.sqrt(HEAD)
        case "bilinear":
            return sum(q[i] * p["weight"][i][j] * k[j] for i in places for j in places)
        case "additive":
            hidden = [sum(q[i] * p["query"][i][j] + k[i] * p["key"][i][j] for i in places) for j in places]
            return sum(p["output"][j][0] * math.tanh(hidden[j]) for j in places)
        case "cosine":
            lengths = math.sqrt(sum(x * x for x in q)) * math.sqrt(sum(x * x for x in k))
            return math.exp(p["log_scale"][0][0]) * dot / lengths
        case "gaussian":
            return -sum(x * x for x in difference) / (2 * math.sqrt(HEAD))
        case "mahalanobis":
            turned = [
                math.exp(p["log_diagonal"][j]) * difference[j]
                + sum(p["below"][i][j] * difference[i] for i in range(j + 1, HEAD))
                for j in places
            ]
            return -sum(x * x for x in turned) / (2 * math.sqrt(HEAD))
        case "latent":
            components = range(len(p["weights"]))
            gates = [math.exp(sum(q[i] * p["gate"][i][c] for i in places)) for c in components]
            kernels = [math.exp(sum(q[i] * p["weights"][c][i] * k[i] for i in places) / math.sqrt(HEAD))
                       for c in components]  # fmt: skip
            return math.log(sum(gates[c] / sum(gates) * kernels[c] for c in components))


@pytest.mark.parametrize("shared", [2, 3, 6])
@pytest.mark.parametrize("name", NAMES)
def test_scores_follow_the_formula(name: SimilarityName, shared: int):
    similarity = make(name, shared)
    q, k = queries_and_keys(shared)
    expected = torch.empty(BATCH, HEADS, QUERY, KEY)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in expected.shape)).tolist():
        head = h // (HEADS // shared)
        expected[b, h, i, j] = written_out(name, similarity, head, q[b, h, i], k[b, head, j])
    torch.testing.assert_close(score(similarity, q, k), expected)


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_prepared_one_by_one(name: SimilarityName):
    """A cache relies on it: the preparation of a key does not depend on other keys."""
    similarity, (_, k) = make(name), queries_and_keys()
    parts = [similarity.prepare(part) for part in k.split([3, 1, 3], dim=2)]
    torch.testing.assert_close(torch.cat(parts, dim=2), similarity.prepare(k))


@pytest.mark.parametrize("name", NAMES)
def test_every_gradient_is_that_of_finite_differences(name: SimilarityName):
    similarity = randomized(make_similarity(name, 3, 1))
    q, k = torch.randn(1, 2, 2, 3, requires_grad=True), torch.randn(1, 1, 3, 3, requires_grad=True)
    parameters = list(similarity.parameters())
    assert torch.autograd.gradcheck(lambda *_: score(similarity, q, k), [q, k, *parameters])


def test_a_bilinear_form_starts_as_the_scaled_inner_product():
    q, k = queries_and_keys()
    torch.testing.assert_close(score(Bilinear(HEAD, HEADS), q, k), score(make("scaled-dot"), q, k))


def test_additive_scores_are_bounded_by_the_output_weights():
    similarity = randomized(Additive(HEAD, HEADS))
    q, k = queries_and_keys()
    bound = similarity.output.abs().sum(dim=(1, 2))[:, None, None]
    assert (score(similarity, 100 * q, 100 * k).abs() <= bound + 1e-12).all()


def test_a_cosine_does_not_depend_on_lengths():
    similarity = randomized(Cosine(HEADS))
    q, k = queries_and_keys()
    longer_q, longer_k = q * torch.rand(BATCH, HEADS, QUERY, 1).exp(), k * torch.rand(BATCH, HEADS, KEY, 1).exp()
    torch.testing.assert_close(score(similarity, longer_q, longer_k), score(similarity, q, k))
    assert (score(similarity, q, k).abs() <= similarity.log_scale.exp() + 1e-12).all()


def test_a_query_is_its_own_best_cosine():
    q, _ = queries_and_keys()
    scores = score(Cosine(HEADS), q, q)
    torch.testing.assert_close(scores.diagonal(dim1=-2, dim2=-1), torch.full((BATCH, HEADS, QUERY), 10.0))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_gaussian_attention_is_the_regression_of_nadaraya_and_watson(temperature: float):
    q, k = queries_and_keys()
    v = torch.randn(BATCH, HEADS, KEY, 13)
    variance = temperature * math.sqrt(HEAD)
    expected = torch.empty(BATCH, HEADS, QUERY, 13)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in expected.shape[:3])).tolist():
        kernels = [math.exp(-(q[b, h, i] - key).square().sum().item() / (2 * variance)) for key in k[b, h]]
        expected[b, h, i] = sum(w * value for w, value in zip(kernels, v[b, h], strict=True)) / sum(kernels)
    torch.testing.assert_close(Lookup(Gaussian(), temperature=temperature)(q, k, v), expected)


def test_the_metric_of_mahalanobis_starts_as_the_identity():
    q, k = queries_and_keys()
    assert torch.equal(score(Mahalanobis(HEAD, HEADS), q, k), score(Gaussian(), q, k))


@pytest.mark.parametrize("std", [0.1, 1.0])
def test_whatever_is_learned_the_metric_is_positive_definite(std: float):
    similarity = Mahalanobis(HEAD, HEADS)
    for parameter in similarity.parameters():
        nn.init.normal_(parameter, std=std)
    metric = similarity.factor @ similarity.factor.transpose(-2, -1)
    assert (torch.linalg.eigvalsh(metric) > 0).all()


def test_mahalanobis_scores_are_negative_but_for_a_query_that_is_the_key():
    similarity = make("mahalanobis")
    q, k = queries_and_keys()
    assert (score(similarity, q, k) < 0).all()
    own = score(similarity, q, q).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(own, torch.zeros_like(own))


def test_mahalanobis_depends_on_the_difference_only():
    similarity = make("mahalanobis")
    q, k = queries_and_keys()
    shift = torch.randn(HEAD)
    torch.testing.assert_close(score(similarity, q + shift, k + shift), score(similarity, q, k))


@pytest.mark.parametrize("num_components", [1, 5])
def test_latent_components_that_are_all_alike_are_the_scaled_inner_product(num_components: int):
    similarity = randomized(Latent(HEAD, HEADS, num_components))
    nn.init.ones_(similarity.weights)
    q, k = queries_and_keys()
    torch.testing.assert_close(score(similarity, q, k), score(make("scaled-dot"), q, k))


@pytest.mark.parametrize("num_components", [1, 5])
def test_a_latent_score_lies_among_those_of_its_components(num_components: int):
    similarity = randomized(Latent(HEAD, HEADS, num_components))
    q, k = queries_and_keys()
    each = torch.einsum("bhqd,hcd,bhkd->bhqkc", q, similarity.weights, k) / math.sqrt(HEAD)
    scores = score(similarity, q, k)
    assert (scores <= each.amax(-1) + 1e-12).all()
    assert (scores >= each.amin(-1) - 1e-12).all()


def test_the_weights_of_the_latent_mixture_sum_to_one():
    """Every component scores a key of zeros by zero: what is left is the logarithm of the sum of their weights."""
    q, k = queries_and_keys()
    scores = score(make("latent"), q, torch.zeros_like(k))
    torch.testing.assert_close(scores, torch.zeros_like(scores))
