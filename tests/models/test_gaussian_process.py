"""The Gaussian process against its formula and scikit-learn's kernel, with and without missing targets."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import Matern

from regard.models.gaussian_process import GaussianProcess, property_losses, unpack_bits
from regard.training.checkpoints import load_weights, weights_of

NUM_BITS, NUM_DESCRIPTORS = 24, 5
RNG = np.random.default_rng(3)


def features(rows: int) -> np.ndarray:
    """Two fingerprints, and descriptors of which one is constant."""
    bits = np.packbits(RNG.integers(0, 2, (rows, 2 * NUM_BITS)).astype(np.uint8), axis=1)
    numbers = RNG.normal(size=(rows, NUM_DESCRIPTORS)).astype(np.float32)
    numbers[:, 2] = 7.0
    return np.concatenate([bits, numbers.view(np.uint8)], axis=1)


def target_of(some: np.ndarray) -> np.ndarray:
    numbers = np.ascontiguousarray(some[:, 2 * NUM_BITS // 8 :]).view(np.float32)
    return np.stack([np.sin(numbers[:, 0]) + numbers[:, 1], numbers[:, 3]], axis=1)


def kernel(process: GaussianProcess, some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The kernel of the docstring, written out with numpy and scikit-learn."""
    *weights, weight, length, _ = process.hyperparameters.double().exp().tolist()
    bits = [np.unpackbits(each[:, : 2 * NUM_BITS // 8], axis=1).astype(float) for each in (some, others)]
    found = 0.0
    for kind, factor in enumerate(weights):
        one, two = (each[:, kind * NUM_BITS : (kind + 1) * NUM_BITS] for each in bits)
        shared = np.minimum(one[:, None], two[None]).sum(axis=2)
        found = found + factor * shared / np.maximum(one[:, None], two[None]).sum(axis=2)
    numbers = [
        np.ascontiguousarray(each[:, 2 * NUM_BITS // 8 :]).view(np.float32).astype(float) for each in (some, others)
    ]
    shift, spread = process.shift.numpy(), process.spread.numpy()
    one, two = (np.clip((each - shift) / spread, -5, 5) for each in numbers)
    return found + weight * Matern(length_scale=length, nu=2.5)(one, two)


@pytest.fixture
def process() -> GaussianProcess:
    return GaussianProcess(2, NUM_BITS, NUM_DESCRIPTORS, 2)


def test_bits_are_unpacked_as_by_numpy():
    packed = RNG.integers(0, 256, (5, 3)).astype(np.uint8)
    assert (unpack_bits(torch.from_numpy(packed)).numpy() == np.unpackbits(packed, axis=1)).all()


def test_the_mean_is_that_of_the_formula_for_the_rows_that_are_known(process: GaussianProcess):
    train, new = features(61), features(7)
    targets = target_of(train)
    targets[::3, 1] = np.nan
    assert process.solve(train, targets, are_labels=False)
    found = process(torch.from_numpy(new)).numpy()
    noise = float(process.hyperparameters[-1].exp()) + 1e-3
    for output in range(2):
        known = ~np.isnan(targets[:, output])
        center = targets[known, output].mean()
        matrix = kernel(process, train[known], train[known]) + noise * np.eye(known.sum())
        solved = np.linalg.solve(matrix, targets[known, output] - center)
        expected = kernel(process, new, train[known]) @ solved + center
        np.testing.assert_allclose(found[:, output], expected, atol=2e-4)  # distances are of float32


def test_tuning_finds_what_the_targets_depend_on(process: GaussianProcess):
    train, new = features(200), features(50)
    process.solve(train, target_of(train), are_labels=False)
    errors = process(torch.from_numpy(new)).numpy() - target_of(new)
    assert (errors**2).mean() < 0.1 * target_of(new).var()
    assert process.hyperparameters[2] > process.hyperparameters[:2].max()


def test_a_process_is_restored_with_its_rows(process: GaussianProcess):
    train = features(23)
    process.solve(train, (target_of(train) > 0).astype(float), are_labels=True)
    again = GaussianProcess(2, NUM_BITS, NUM_DESCRIPTORS, 2)
    load_weights(again, weights_of(process))
    rows = torch.from_numpy(features(5))
    torch.testing.assert_close(again(rows), process(rows))
    assert again.is_solved


@pytest.mark.parametrize("are_labels", [False, True])
def test_factors_are_those_with_the_least_loss(process: GaussianProcess, are_labels: bool):
    torch.manual_seed(0)
    own, network = torch.randn(400, 2), torch.randn(400, 2)
    noisy = own + 0.5 * torch.randn(400, 2)
    targets = (noisy > 0).to(own.dtype) if are_labels else noisy
    known = torch.rand(400, 2) > 0.2
    process.fit_scales(network, own, targets, known, are_labels=are_labels)
    assert process.scales[1] > 0.9
    assert process.scales[0] < 0.1 * process.scales[1]
    loss = property_losses(process.blend(network, own), targets, are_labels=are_labels)[known].sum()
    for change in (0.8, 1.2):
        process.scales[1] *= change
        assert property_losses(process.blend(network, own), targets, are_labels=are_labels)[known].sum() > loss - 1
        process.scales[1] /= change


def test_nothing_to_learn_from_is_not_solved(process: GaussianProcess):
    assert not process.solve(features(4), np.full((4, 2), np.nan), are_labels=False)
    assert not process.is_solved
    assert process(torch.from_numpy(features(3))).shape == (3, 2)
