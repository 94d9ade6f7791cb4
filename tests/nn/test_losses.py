"""Our cross-entropies against PyTorch's, value and gradient."""

import importlib.util
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from regard.nn import losses
from regard.nn.losses import (
    CONTRASTIVE_TEMPERATURE,
    IGNORED,
    contrastive_losses,
    cross_entropy,
    linear_cross_entropy,
    linear_log_likelihoods,
    rdrop_cross_entropy,
)

TOKENS, VOCAB, MODEL = 13, 7, 5

CHUNKS = pytest.mark.parametrize("chunk_size", [1, 3, TOKENS, 100, None])
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1])


def states_weight_targets() -> tuple[Tensor, Tensor, Tensor]:
    """Two of the targets do not count."""
    states, weight = torch.randn(TOKENS, MODEL, requires_grad=True), torch.randn(VOCAB, MODEL, requires_grad=True)
    targets = torch.randint(VOCAB, (TOKENS,))
    targets[[2, 5]] = IGNORED
    return states, weight, targets


def scores_of(states: Tensor, weight: Tensor) -> Tensor:
    return states @ weight.T


@SMOOTHINGS
def test_value_and_gradient_are_pytorchs(smoothing: float):
    scores = torch.randn(TOKENS, VOCAB, requires_grad=True)
    targets = torch.randint(VOCAB, (TOKENS,))
    targets[[2, 5]] = IGNORED
    ours = cross_entropy(scores, targets, label_smoothing=smoothing)
    theirs = F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs)
    (3 * ours).backward()
    (expected,) = torch.autograd.grad(3 * theirs, scores)
    torch.testing.assert_close(scores.grad, expected)
    assert (scores.grad[[2, 5]] == 0).all()


def test_the_gradient_is_that_of_finite_differences():
    scores = torch.randn(TOKENS, VOCAB, requires_grad=True)
    targets = torch.randint(VOCAB, (TOKENS,))
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, targets, label_smoothing=0.2), scores)


def test_half_precision_scores_are_summed_in_single_precision():
    scores = torch.randn(TOKENS, 10_007).bfloat16().requires_grad_()
    targets = torch.randint(10_007, (TOKENS,))
    ours = cross_entropy(scores, targets, label_smoothing=0.1)
    assert ours.dtype == torch.float32
    expected = F.cross_entropy(scores.double(), targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=0.0)
    ours.backward()
    assert scores.grad.dtype == torch.bfloat16


@CHUNKS
@SMOOTHINGS
def test_chunk_by_chunk_the_value_and_both_gradients_are_those_of_all_scores(chunk_size, smoothing: float):
    states, weight, targets = states_weight_targets()
    ours = linear_cross_entropy(states, weight, targets, label_smoothing=smoothing, chunk_size=chunk_size)
    plain = cross_entropy(scores_of(states, weight), targets, label_smoothing=smoothing)
    torch.testing.assert_close(ours, plain)
    of_states, of_weight = torch.autograd.grad(3 * ours, (states, weight))
    expected_of_states, expected_of_weight = torch.autograd.grad(3 * plain, (states, weight))
    torch.testing.assert_close(of_states, expected_of_states)
    torch.testing.assert_close(of_weight, expected_of_weight)
    assert (of_states[[2, 5]] == 0).all()


@SMOOTHINGS
def test_the_gradients_of_states_and_weight_are_those_of_finite_differences(smoothing: float):
    states, weight, targets = states_weight_targets()

    def loss(states: Tensor, weight: Tensor) -> Tensor:
        return linear_cross_entropy(states, weight, targets, label_smoothing=smoothing, chunk_size=3)

    assert torch.autograd.gradcheck(loss, (states, weight))


def test_a_second_backward_gives_the_same_and_a_second_derivative_is_refused():
    states, weight, targets = states_weight_targets()
    loss = linear_cross_entropy(states, weight, targets, label_smoothing=0.1, chunk_size=3)
    once = torch.autograd.grad(7 * loss, (states, weight), retain_graph=True)
    again = torch.autograd.grad(7 * loss, (states, weight), retain_graph=True)
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    (slope,) = torch.autograd.grad(loss.square(), states, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize("is_frozen", [(True, False), (False, True)])
def test_a_gradient_that_is_not_needed_is_left_out(is_frozen: tuple[bool, bool]):
    states, weight, targets = states_weight_targets()
    (trained,) = torch.autograd.grad(
        linear_cross_entropy(states, weight, targets, chunk_size=3), weight if is_frozen[0] else states
    )
    frozen_states, frozen_weight = (
        x.detach().requires_grad_(not is_fixed) for x, is_fixed in zip((states, weight), is_frozen, strict=True)
    )
    linear_cross_entropy(frozen_states, frozen_weight, targets, chunk_size=3).backward()
    fixed, free = (frozen_states, frozen_weight) if is_frozen[0] else (frozen_weight, frozen_states)
    assert fixed.grad is None
    assert torch.equal(free.grad, trained)


def test_a_tied_weight_gets_the_sum_of_both_gradients():
    _, table, targets = states_weight_targets()
    tokens = torch.randint(VOCAB, (TOKENS,))
    mixer = torch.randn(MODEL, MODEL)

    def states() -> Tensor:
        return torch.tanh(F.embedding(tokens, table) @ mixer)

    (ours,) = torch.autograd.grad(linear_cross_entropy(states(), table, targets, chunk_size=3), table)
    (expected,) = torch.autograd.grad(cross_entropy(states() @ table.T, targets), table)
    torch.testing.assert_close(ours, expected)


@SMOOTHINGS
def test_without_gradients_the_value_is_the_same(smoothing: float):
    states, weight, targets = states_weight_targets()
    expected = linear_cross_entropy(states, weight, targets, label_smoothing=smoothing, chunk_size=3)
    with torch.no_grad():
        silent = linear_cross_entropy(states, weight, targets, label_smoothing=smoothing, chunk_size=3)
    frozen = linear_cross_entropy(states.detach(), weight.detach(), targets, label_smoothing=smoothing, chunk_size=3)
    assert not silent.requires_grad
    assert not frozen.requires_grad
    assert torch.equal(silent, expected)
    assert torch.equal(frozen, expected)


def test_under_autocast_products_are_in_half_precision_and_sums_are_not():
    states = torch.randn(TOKENS, 31, dtype=torch.float32, requires_grad=True)
    weight = torch.randn(10_007, 31, dtype=torch.float32).div(31**0.5).requires_grad_()
    targets = torch.randint(10_007, (TOKENS,))
    targets[3] = IGNORED
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = linear_cross_entropy(states, weight, targets, label_smoothing=0.1, chunk_size=5)
    full = linear_cross_entropy(states, weight, targets, label_smoothing=0.1, chunk_size=5)
    assert half.dtype == torch.float32
    assert half != full
    # bfloat16 has 8 binary digits: factors and products are off by 1/256 at most, and sums of them by less.
    torch.testing.assert_close(half, full, rtol=1e-3, atol=0.0)
    for x in (states, weight):
        (rounded,), (exact,) = (
            torch.autograd.grad(half, x, retain_graph=True),
            torch.autograd.grad(full, x, retain_graph=True),
        )
        assert rounded.dtype == torch.float32
        assert (rounded - exact).norm() < exact.norm() / 128


def test_autocast_leaves_double_precision_alone():
    states, weight, targets = states_weight_targets()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_cross_entropy(states, weight, targets, chunk_size=3)
    torch.testing.assert_close(ours, cross_entropy(states @ weight.T, targets))


@CHUNKS
def test_log_likelihoods_are_pytorchs(chunk_size):
    states, weight, targets = states_weight_targets()
    ours = linear_log_likelihoods(states, weight, targets, chunk_size=chunk_size)
    expected = -F.cross_entropy(scores_of(states, weight), targets, ignore_index=IGNORED, reduction="none")
    torch.testing.assert_close(ours, expected.detach())
    assert not ours.requires_grad


def test_no_tokens_cost_nothing():
    states, weight, targets = states_weight_targets()
    loss = linear_cross_entropy(states[:0], weight, targets[:0])
    loss.backward()
    assert loss == 0
    assert (weight.grad == 0).all()
    assert linear_log_likelihoods(states[:0], weight, targets[:0]).shape == (0,)


def test_a_state_that_does_not_count_may_be_anything():
    states, weight, targets = states_weight_targets()
    spoilt = states.detach().clone()
    spoilt[2] = torch.nan
    spoilt.requires_grad_()
    expected = linear_cross_entropy(states, weight, targets, label_smoothing=0.1)
    loss = linear_cross_entropy(spoilt, weight, targets, label_smoothing=0.1)
    assert torch.equal(loss, expected)
    loss.backward()
    assert torch.equal(spoilt.grad, torch.autograd.grad(expected, states)[0])


def test_no_product_is_computed_twice_and_none_that_is_not_needed():
    states, weight, targets = states_weight_targets()
    product = 2 * TOKENS * VOCAB * MODEL
    for some_states, some_weight, factor in (
        (states, weight, 3),
        (states, weight.detach(), 2),
        (states.detach(), weight, 2),
        (states.detach(), weight.detach(), 1),
    ):
        with FlopCounterMode(display=False) as counter:
            loss = linear_cross_entropy(some_states, some_weight, targets, label_smoothing=0.1, chunk_size=3)
            if loss.requires_grad:
                loss.backward()
        assert counter.get_total_flops() == factor * product
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        linear_cross_entropy(states, weight, targets, chunk_size=3)
    assert counter.get_total_flops() == product


class LargestTensor(TorchDispatchMode):
    """Watches how many numbers the largest tensor has."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(x.numel() for x in tree_leaves(result) if isinstance(x, Tensor))])
        return result


def test_the_scores_are_never_held_all_at_once():
    states, weight, targets = states_weight_targets()
    with LargestTensor() as largest:
        linear_cross_entropy(states, weight, targets, label_smoothing=0.1, chunk_size=3).backward()
        linear_log_likelihoods(states, weight, targets, chunk_size=3)
    assert largest.size == TOKENS * MODEL < TOKENS * VOCAB


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler asks for it
def test_the_compiler_leaves_it_as_it_is(monkeypatch: pytest.MonkeyPatch):
    # The compiler cannot trace the checks of shapes that tests add to each function.
    specification = importlib.util.spec_from_file_location("unchecked_losses", losses.__file__)
    unchecked = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "unchecked_losses", unchecked)
    specification.loader.exec_module(unchecked)
    unchecked.exclude_from_compile()
    states, weight, targets = states_weight_targets()

    def loss(states: Tensor, weight: Tensor) -> Tensor:
        return unchecked.linear_cross_entropy(2 * states, weight, targets, label_smoothing=0.1, chunk_size=5)

    compiled = torch.compile(loss, backend="aot_eager")(states, weight)
    torch.testing.assert_close(compiled, loss(states, weight))
    for x in (states, weight):
        (ours,) = torch.autograd.grad(compiled, x, retain_graph=True)
        torch.testing.assert_close(ours, torch.autograd.grad(loss(states, weight), x)[0])


@SMOOTHINGS
@pytest.mark.parametrize("products", [losses._Products, losses._Float8Products])
def test_the_kernel_finds_what_passes_over_the_scores_find(products: type, smoothing: float):
    pytest.importorskip("triton", reason="the kernels of a GPU are written in Triton, which is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if products is losses._Float8Products and device == "cpu":
        pytest.skip("Triton's interpreter does not round to eight bits as a GPU does")
    scores, goals = 3 * torch.randn(5, 4100, dtype=torch.float32), torch.randint(4100, (5, 1))
    scores, goals = scores.to(device), goals.to(device)
    made = products(torch.randn(16, 16, dtype=torch.float32, device=device))
    expected, expected_gradient = losses._by_torch(made, scores.clone(), goals, smoothing, needs_gradient=True)
    found, gradient = losses._by_kernel(made, scores.clone(), goals, smoothing)
    torch.testing.assert_close(found, expected)
    assert gradient.dtype == expected_gradient.dtype
    # In eight bits the two may round to neighbours.
    tolerances = {"rtol": 0.26, "atol": 1e-4} if products is losses._Float8Products else {}
    torch.testing.assert_close(gradient.float(), expected_gradient.float(), **tolerances)


@SMOOTHINGS
def test_eight_bits_are_near_enough(smoothing: float):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    states = torch.randn(256, 64, device=device, requires_grad=True)
    weight = (torch.randn(512, 64, device=device) / 8).requires_grad_()
    targets = torch.randint(512, (256,), device=device)
    targets[7] = IGNORED

    def loss_and_gradients(is_float8: bool) -> tuple[Tensor, Tensor, Tensor]:
        loss = linear_cross_entropy(
            states.bfloat16(),
            weight.bfloat16(),
            targets,
            label_smoothing=smoothing,
            chunk_size=128,
            is_float8=is_float8,
        )
        return loss, *torch.autograd.grad(loss, (states, weight))

    (expected, *gradients), (found, *rounded) = loss_and_gradients(False), loss_and_gradients(True)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0.0)
    for ours, theirs in zip(rounded, gradients, strict=True):
        assert not torch.equal(ours, theirs)
        assert (ours - theirs).norm() < 0.06 * theirs.norm()


def test_sizes_that_eight_bits_cannot_deal_with_keep_their_precision():
    states, weight, targets = states_weight_targets()
    expected = linear_cross_entropy(states, weight, targets)
    assert torch.equal(linear_cross_entropy(states, weight, targets, is_float8=True), expected)


@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (100, 100), (70_000, 23_424), (65_536, 16_384)])
def test_chunks_are_of_about_the_same_size(num_tokens: int, size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(losses, "_CPU_CHUNK", 4 * 10 * 24_000 if num_tokens == 70_000 else 4 * 10 * 21_000)
    assert losses._chunk_size(torch.empty(10, 2), num_tokens) == size


def test_two_readings_that_agree_cost_what_one_does():
    scores, targets = torch.randn(7, 11), torch.randint(11, (7,))
    targets[2] = IGNORED
    both = rdrop_cross_entropy(scores.repeat(2, 1), targets.repeat(2), label_smoothing=0.1, weight=5.0)
    torch.testing.assert_close(both, cross_entropy(scores, targets, label_smoothing=0.1))


def test_readings_that_disagree_cost_their_divergence_both_ways():
    scores, targets = torch.randn(14, 11), torch.randint(11, (7,)).repeat(2)
    targets[[2, 9]] = IGNORED
    p, q = (half.log_softmax(-1) for half in scores.chunk(2))
    rows = torch.arange(7) != 2
    divergence = sum(F.kl_div(a[rows], b[rows], reduction="sum", log_target=True) for a, b in ((p, q), (q, p)))
    expected = cross_entropy(scores, targets) / 2 + 5.0 / 4 * divergence
    torch.testing.assert_close(rdrop_cross_entropy(scores, targets, weight=5.0), expected)


def test_the_contrastive_loss_is_the_sum_of_its_equation():
    vectors, labels = torch.randn(7, 5), torch.tensor([0, 1, 0, 2, 1, 0, 2])
    counts = torch.tensor([True] * 6 + [False])
    found = contrastive_losses(vectors, labels, counts)
    for i in range(6):
        others = [j for j in range(6) if j != i]
        like = [j for j in others if labels[j] == labels[i]]
        cosines = {
            j: float(torch.cosine_similarity(vectors[i], vectors[j], dim=0)) / CONTRASTIVE_TEMPERATURE for j in others
        }
        total = math.log(sum(math.exp(each) for each in cosines.values()))
        expected = sum(total - cosines[j] for j in like) / len(like) if like else 0.0
        torch.testing.assert_close(float(found[i]), expected)


def test_a_vector_by_itself_costs_nothing_and_has_a_gradient_of_nothing():
    vectors = torch.randn(1, 5, requires_grad=True)
    loss = contrastive_losses(vectors, torch.tensor([0]), torch.tensor([True])).sum()
    loss.backward()
    assert float(loss.detach()) == 0.0
    torch.testing.assert_close(vectors.grad, torch.zeros(1, 5))


def test_labels_that_lie_together_cost_least():
    labels = torch.tensor([0, 0, 1, 1])
    apart = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]])
    mixed = apart[[0, 2, 1, 3]]
    counts = torch.ones(4, dtype=torch.bool)
    assert contrastive_losses(apart, labels, counts).sum() < 0.1 < contrastive_losses(mixed, labels, counts).min()


def test_products_in_half_precision_are_no_trouble():
    vectors, labels = torch.randn(4, 8, dtype=torch.float32), torch.tensor([0, 0, 1, 1])
    counts = torch.ones(4, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = contrastive_losses(vectors, labels, counts)
    # Cosines of eight bits are off by up to a hundredth, ten times as much once divided by the temperature.
    torch.testing.assert_close(found, contrastive_losses(vectors, labels, counts), atol=0.2, rtol=0.0)
