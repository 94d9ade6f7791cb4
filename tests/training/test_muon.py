"""Muon against PyTorch's implementation, its effect on matrices, and which parameters it updates."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.errors import ConfigError
from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.muon import Muon, orthogonalize
from regard.training.optimizers import (
    CombinedOptimizer,
    hidden_matrices,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
)

SHAPES = [(11, 5), (5, 11), (11, 5), (7, 7), (11, 5), (13, 3)]
VOCAB = 23


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Matrices of several shapes, some of them alike."""
    torch.manual_seed(3)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]


def give_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)


def small_transformer(**settings: object) -> Transformer:
    torch.manual_seed(3)
    shape = {"num_layers": 2, "model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "dropout": 0.0}
    return Transformer(TransformerConfig.read({**shape, **settings}), VOCAB)


def make(model: nn.Module, *, weight_decay: float = 0.1) -> CombinedOptimizer:
    optimizer = make_optimizer("muon", model, betas=(0.9, 0.98), epsilon=1e-9, weight_decay=weight_decay)
    assert isinstance(optimizer, CombinedOptimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    return optimizer


def learn(model: Transformer, optimizer: CombinedOptimizer, seed: int) -> Tensor:
    torch.manual_seed(seed)
    tokens = torch.randint(VOCAB, (3, 7))
    loss = nn.functional.cross_entropy(model(tokens, tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def parameters_of(groups: list[dict]) -> list[nn.Parameter]:
    return [parameter for group in groups for parameter in group["params"]]


def test_matches_pytorch_in_bfloat16():
    ours, theirs = weights(), weights()
    our_optimizer = Muon(ours, lr=0.02, weight_decay=0.3, dtype=torch.bfloat16)
    their_optimizer = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")
    for step in range(5):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        our_optimizer.step()
        their_optimizer.step()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("shape", [(5, 11, 37), (5, 37, 11), (3, 23, 29), (2, 1, 7)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, None])
def test_singular_values_are_close_to_one_and_directions_are_kept(shape: tuple[int, ...], dtype: torch.dtype | None):
    matrices = torch.randn(shape)
    result = orthogonalize(matrices, dtype=dtype)
    assert result.shape == matrices.shape
    assert result.dtype == matrices.dtype
    assert result.is_contiguous()
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.6
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    along = left.mT @ result @ right.mT
    rest = along - along.diagonal(dim1=-2, dim2=-1).diag_embed()
    # Exact in float64; bfloat16 has 8 binary digits.
    assert rest.abs().max() < (1e-10 if dtype is None else 0.1 if dtype == torch.bfloat16 else 1e-4)


def test_matrices_of_a_batch_are_independent_of_each_other_and_of_their_scale():
    matrices = torch.randn(3, 5, 7)
    scales = torch.tensor([1e-5, 1.0, 1e5])[:, None, None]
    together = orthogonalize(matrices * scales)
    for matrix, result in zip(matrices, together, strict=True):
        torch.testing.assert_close(orthogonalize(matrix[None])[0], result)
    assert (orthogonalize(torch.zeros(2, 3, 5)) == 0).all()


def test_a_tall_matrix_is_the_transpose_of_a_wide_one():
    matrices = torch.randn(3, 13, 5)
    torch.testing.assert_close(orthogonalize(matrices), orthogonalize(matrices.mT).mT)


def test_a_quadratic_decreases():
    torch.manual_seed(1)
    goal, weight = torch.randn(11, 5), nn.Parameter(torch.zeros(11, 5))
    optimizer = Muon([weight], weight_decay=0.0)
    losses = []
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.3 * (1 - step / 200)
        loss = (weight - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 1e-3 * losses[0]


def test_a_matrix_without_a_gradient_is_unchanged_and_one_with_zeros_decays():
    still, decaying = weights(torch.float64)[:2]
    before = still.detach().clone(), decaying.detach().clone()
    decaying.grad = torch.zeros_like(decaying)
    Muon([still, decaying], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(still, before[0])
    torch.testing.assert_close(decaying.detach(), before[1] * (1 - 0.1 * 0.5))


def test_the_learning_rate_may_be_a_tensor():
    plain, tensor = weights(), weights()
    give_gradients(plain, 1)
    give_gradients(tensor, 1)
    Muon(plain, lr=0.25).step()
    Muon(tensor, lr=torch.tensor(0.25, dtype=torch.float32)).step()
    for own, other in zip(plain, tensor, strict=True):
        torch.testing.assert_close(own, other)


def test_a_step_does_not_wait_for_the_device():
    # Tensors without numbers refuse to give any, as a CUDA graph that is being recorded does.
    with FakeTensorMode():
        parameters = weights()
        give_gradients(parameters, 1)
        optimizer = Muon(parameters, lr=torch.tensor(0.25))
        optimizer.step()
        optimizer.step()


def test_a_closure_is_called_with_gradients_enabled():
    weight = nn.Parameter(torch.randn(3, 5))
    optimizer = Muon([weight])

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) > 0
    assert set(optimizer.state[weight]) == {"momentum"}


@pytest.mark.parametrize("shape", [(7,), (2, 3, 5), ()])
def test_parameters_that_are_not_matrices_are_an_error(shape: tuple[int, ...]):
    with pytest.raises(ConfigError, match=r"Muon is for matrices, got a parameter of shape \("):
        Muon([nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(shape))])


@pytest.mark.parametrize("settings", [{}, {"tie_embeddings": False, "positions": "learned"}, {"positions": "relative"}])
def test_every_parameter_is_in_one_group_and_embeddings_are_not_updated_by_muon(settings: dict):
    model = small_transformer(**settings)
    optimizer = make(model)
    muon, adamw = optimizer.optimizers
    assert isinstance(muon, Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    every = parameters_of(optimizer.param_groups)
    assert len(every) == len(set(every))
    assert set(every) == set(model.parameters())
    hidden = set(parameters_of(muon.param_groups))
    assert hidden == set(hidden_matrices(model))
    assert model.decoder.blocks[0].attention.query.weight in hidden
    for name, parameter in model.named_parameters():
        is_outer = "embedding" in name or "table" in name or name == "output.weight"
        assert (parameter in hidden) == (parameter.dim() == 2 and not is_outer), name


def test_frozen_parameters_are_in_no_group():
    model = small_transformer()
    model.encoder.requires_grad_(False)
    every = set(parameters_of(make(model).param_groups))
    assert every == {p for p in model.parameters() if p.requires_grad}


def test_one_kind_of_parameter_needs_one_optimizer():
    settings = {"betas": (0.9, 0.98), "epsilon": 1e-9, "weight_decay": 0.1}
    assert isinstance(make_optimizer("muon", nn.LayerNorm(5), **settings), torch.optim.AdamW)
    assert isinstance(make_optimizer("muon", nn.Linear(3, 5, bias=False), **settings), Muon)


def test_recurrent_matrices_are_updated_by_muon():
    config = RecurrentConfig.read({"num_layers": 1, "model_dim": 22})
    hidden = set(hidden_matrices(Recurrent(config, VOCAB)))
    assert hidden
    assert all(VOCAB not in parameter.shape for parameter in hidden)


def test_weight_decay_applies_to_matrices_of_both_optimizers_and_not_to_vectors():
    model = small_transformer()
    optimizer = make(model, weight_decay=0.5)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.01 * 0.5 if parameter.dim() >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_the_state_is_restored_bit_for_bit():
    model = small_transformer()
    optimizer = make(model)
    for seed in (1, 2):
        learn(model, optimizer, seed)
    tensors = {key: value.clone() for key, value in optimizer_tensors(optimizer, model).items()}
    hidden = set(hidden_matrices(model))
    expected = {
        f"{name}/{kind}"
        for name, parameter in model.named_parameters()
        for kind in (["momentum"] if parameter in hidden else ["step", "exp_avg", "exp_avg_sq"])
    }
    assert set(tensors) == expected
    other = small_transformer()
    other.load_state_dict(model.state_dict())
    fresh = make(other)
    restore_optimizer(fresh, other, tensors)
    for seed in (3, 4, 5):
        assert torch.equal(learn(model, optimizer, seed), learn(other, fresh, seed))
    for own, same in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(own, same)
    again = optimizer_tensors(fresh, other)
    assert all(torch.equal(value, again[name]) for name, value in optimizer_tensors(optimizer, model).items())


def test_changes_to_groups_have_effect_and_gradients_are_reset():
    model = small_transformer()
    optimizer = make(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    learn(model, optimizer, 1)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(optimizer.state) == len(before) == len(list(optimizer.state))
    with pytest.raises(KeyError):
        _ = optimizer.state[torch.zeros(3)]
