"""The curvature of a run: Lanczos against eigenvalues, thresholds against optimizers, noise against its formula."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.errors import DataError, RunError
from regard.lab import run_study
from regard.lab.curvature.sharpness import (
    CurvatureSizes,
    RunLoss,
    learning_rate_at,
    noise_scale,
    preconditioner,
    stability_threshold,
    study_curvature,
)
from regard.lab.hessian import difference_product, flat_gradient, hessian_product, lanczos
from regard.runs.run import Run
from regard.runs.train import train
from regard.training.checkpoints import checkpoint_paths, read_tensors
from regard.training.optimizers import OptimizerName, make_optimizer

TINY = CurvatureSizes(num_batches=2, noise_batches=4, max_products=5, max_points=3, steps=3, model_dim=8)
LABELS = {"good": "yes", "bad": "no"}
ROWS = [(f"a {word} film number {number}", label) for number in range(40) for word, label in LABELS.items()]


def settings(**changes: Any) -> dict[str, Any]:
    small = {"model_dim": 8, "num_layers": 1, "num_heads": 2, "feedforward_dim": 8}
    rest = {"optimizer": "adamw", "batch_tokens": 64, "checkpoint_every": 2, "keep_checkpoints": 5, "evaluate_every": 9}
    return {"model": small, "train": rest | changes, "task": {"ngrams": 0, "tokenizer": "words"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small classifier with four checkpoints."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("curvature")
    (folder / "films.tsv").write_text("text\tlabel\n" + "".join("\t".join(row) + "\n" for row in ROWS))
    return train(
        folder / "films.tsv", out=folder / "run", model="transformer-tiny", steps=8, device="cpu", baseline=False,
        settings=settings(), show_progress=False,
    )  # fmt: skip


def quadratic(*eigenvalues: float) -> torch.Tensor:
    turned = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues))).Q
    return turned @ torch.tensor(eigenvalues).diag() @ turned.T


def test_lanczos_finds_both_ends_of_a_spectrum():
    matrix = quadratic(-3.0, *torch.linspace(-1, 4, 41).tolist(), 7.0)
    found = lanczos(lambda vector: matrix @ vector, torch.randn(43), max_products=25, tolerance=1e-9)
    assert float(found.values[-1]) == pytest.approx(7.0, abs=1e-8)
    assert float(found.values[0]) == pytest.approx(-3.0, abs=1e-4)
    exact = torch.linalg.eigvalsh(matrix)
    for value, residual in zip(found.values, found.residuals, strict=True):
        assert float((exact - value).abs().min()) <= float(residual) + 1e-9


def test_lanczos_stops_where_its_space_is_exhausted():
    found = lanczos(lambda vector: 2.0 * vector, torch.randn(11), max_products=9)
    torch.testing.assert_close(found.values, torch.tensor([2.0]))


def test_differences_of_gradients_are_products_with_the_hessian():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    inputs, parameters = torch.randn(7, 3), list(model.parameters())

    def loss() -> torch.Tensor:
        return model(inputs).square().mean()

    vector = 13 * torch.randn(sum(parameter.numel() for parameter in parameters))
    product = difference_product(lambda: flat_gradient(loss(), parameters), parameters)
    # One-sided differences are known to about the distance of 1e-6.
    torch.testing.assert_close(product(vector), hessian_product(loss, parameters)(vector), rtol=1e-4, atol=1e-5)


RATES = {"sgd": 0.0, "momentum": 0.8, "nesterov": 0.8, "adam": 0.8}
WRONG: dict[str, list[Callable[[float], float]]] = {
    "momentum": [lambda b: 2.0, lambda b: 2 * (1 - b), lambda b: 2 / (1 - b), lambda b: 2 * (1 + 2 * b)],
    "nesterov": [lambda b: 2.0, lambda b: 2 * (1 + b), lambda b: 2 / (1 + 2 * b), lambda b: (1 + b) / (1 + 2 * b)],
    "adam": [lambda b: 2.0, lambda b: 2 * (1 + b), lambda b: 2 / (1 - b), lambda b: 2 * (1 - b) / (1 + b)],
    "sgd": [lambda b: 1.0, lambda b: 4.0, lambda b: 1.9],
}  # fmt: skip


def diverges(name: OptimizerName, beta1: float, product: float) -> bool:
    """Whether the optimizer diverges on a quadratic with this learning rate times curvature."""
    weight = nn.Parameter(torch.ones(()))
    model = nn.Module()
    model.register_parameter("weight", weight)
    # Adam's preconditioner is 1 where its second moments do not change, and are 1.
    optimizer = make_optimizer(name, model, betas=(beta1, 0.999), epsilon=1e-30, weight_decay=0.0)
    if name == "adam":
        optimizer = torch.optim.SGD([weight], lr=0.0, momentum=beta1, dampening=beta1)
    for group in optimizer.param_groups:
        group["lr"] = product
    for _ in range(1000):
        optimizer.zero_grad()
        (0.5 * weight**2).backward()
        optimizer.step()
    return not float(weight.detach().abs()) < 1.0


def is_threshold(name: OptimizerName, value: float) -> bool:
    return not diverges(name, RATES[name], 0.99 * value) and diverges(name, RATES[name], 1.01 * value)


@pytest.mark.parametrize("name", RATES)
def test_an_optimizer_diverges_beyond_its_threshold_and_no_other_form_of_it(name: OptimizerName):
    known = stability_threshold(name, RATES[name])
    assert known is not None
    assert is_threshold(name, known)
    for wrong in WRONG[name]:
        assert not is_threshold(name, wrong(RATES[name]))
    assert stability_threshold("muon", 0.9) is None


def test_the_noise_scale_is_that_of_known_gradients():
    # Gradients of single targets: G plus noise with a covariance of trace 5 * 4.
    generator = torch.Generator().manual_seed(1)
    expected, counts = torch.tensor([3.0, -1.0, 0.5, 2.0, 1.0]), torch.tensor([7.0, 11.0, 13.0] * 400)
    sums = counts[:, None] * expected + counts.sqrt()[:, None] * 2 * torch.randn(len(counts), 5, generator=generator)
    squares, products = sums.square().sum(dim=1), sums @ sums.sum(dim=0)
    found = noise_scale(squares, products, counts)
    true = 20 / float(expected @ expected)
    assert found.trace == pytest.approx(20, rel=0.1)
    assert found.scale[1] < found.scale[0] < found.scale[2]
    assert abs(found.scale[0] - true) < found.scale[2] - found.scale[1]
    # Other forms: the trace of a batch, a gradient that has not lost its noise, and no degree of freedom.
    few = noise_scale(squares[:4], products[:4] * 0 + (sums[:4] @ sums[:4].sum(dim=0)), counts[:4])
    mean = sums[:4].sum(dim=0) / counts[:4].sum()
    spread = float((counts[:4, None] * (sums[:4] / counts[:4, None] - mean).square()).sum())
    assert few.trace == pytest.approx(spread / 3)
    for wrong in (spread / 4, spread, spread / 3 / float(counts[:4].mean())):
        assert few.trace != pytest.approx(wrong, rel=1e-3)
    assert few.squared_gradient == pytest.approx(float(mean @ mean) - spread / 3 / float(counts[:4].sum()))
    assert few.squared_gradient != pytest.approx(float(mean @ mean), rel=1e-6)


def test_a_gradient_that_is_lost_in_noise_has_an_infinite_scale():
    sums = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    found = noise_scale(sums.square().sum(dim=1), sums @ sums.sum(dim=0), torch.ones(4))
    assert found.squared_gradient < 0
    assert found.scale[0] == math.inf


def test_the_loss_is_that_of_training_and_its_gradient_that_of_autograd(run: Run):
    loss = RunLoss(run, num_batches=3)
    assert loss.source == "training"
    assert not any(module.training for module in loss.model.modules() if module is not loss.model)
    total = torch.stack([loss.batch_loss(number) for number in range(3)]).sum() / loss.num_targets
    torch.testing.assert_close(loss.gradient(3), flat_gradient(total, loss.parameters))
    assert loss.value() == pytest.approx(float(total.detach()))


def test_the_preconditioner_is_what_adam_divides_by(run: Run):
    loss = RunLoss(run, num_batches=3)
    tensors, _ = read_tensors(checkpoint_paths(run.folder.checkpoints)[-1])
    state = {name.removeprefix("optimizer:"): each for name, each in tensors.items() if name.startswith("optimizer:")}
    found = preconditioner(run.settings.train, loss, state)
    assert found is not None
    name, parameter = next(iter(loss.model.named_parameters()))
    moments = state[f"{name}/exp_avg_sq"].double() / (1 - run.settings.train.beta2**8)
    torch.testing.assert_close(found[: parameter.numel()], moments.flatten().sqrt() + run.settings.train.epsilon)
    assert preconditioner(run.settings.train, loss, {}) is None


def test_the_study_measures_every_checkpoint_and_the_kept_weights(run: Run):
    assert len(checkpoint_paths(run.folder.checkpoints)) == 4
    study = run_study("curvature", quick=True, data=str(run.path))
    curvature, noise = study.tables
    assert [row[0] for row in curvature.rows] == ["checkpoint"] * 4 + ["kept weights"]
    assert [row[1] for row in curvature.rows][:4] == [2, 4, 6, 8]
    largest, limits = ([row[column] for row in curvature.rows] for column in (3, 6))
    assert [2 / float(each) for each in limits if isinstance(each, float)] == pytest.approx(largest)
    assert all(row[8] is not None for row in curvature.rows[:4])
    assert len(noise.rows) == 5
    assert study.command == f"regard lab curvature {run.path} --quick"
    assert learning_rate_at(run, 8) == pytest.approx(run.folder.read_metrics()[-2]["learning_rate"])


def test_a_run_without_checkpoints_is_one_line_and_its_kept_weights_are_measured(run: Run, tmp_path: Path, caplog):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    shutil.rmtree(copy / "checkpoints")
    with caplog.at_level("WARNING", logger="regard"):
        study = study_curvature(data=str(copy), sizes=TINY)
    assert len(study.tables[0].rows) == 1
    assert "has no checkpoints: curvature through training needs train.checkpoint_every" in caplog.text


def test_without_its_training_file_a_run_is_measured_on_validation_rows(run: Run, tmp_path: Path, caplog):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    toml = (copy / "run.toml").read_text().replace("films.tsv", "gone.tsv")
    (copy / "run.toml").write_text(toml)
    with caplog.at_level("WARNING", logger="regard"):
        loss = RunLoss(Run(copy, device="cpu"), num_batches=4)
    assert loss.source == "validation"
    assert "the validation rows are used" in caplog.text


def test_a_folder_without_a_run_is_one_line(tmp_path: Path):
    with pytest.raises(RunError, match="is not a run folder"):
        study_curvature(data=str(tmp_path), sizes=TINY)


def test_too_few_batches_for_the_noise_are_one_line(run: Run):
    with pytest.raises(DataError, match=r"needs at least 3 batches, and .* has 2: more rows, or a smaller train.batch"):
        RunLoss(run, num_batches=2)


def test_without_a_run_one_is_trained_and_measured():
    torch.set_default_dtype(torch.float32)
    study = study_curvature(sizes=TINY)
    assert [row[0] for row in study.tables[0].rows].count("checkpoint") == 3
    assert study.settings["optimizer"] == "sgd"
