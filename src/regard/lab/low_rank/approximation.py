r"""Scores of a model whose matrices are replaced by others of low rank, against the bytes that these take.

Eckart and Young, "The approximation of one matrix by another of lower rank" (1936).
Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), sections 4.1 and 7.3.
https://arxiv.org/abs/2106.09685
Aghajanyan et al., "Intrinsic Dimensionality Explains the Effectiveness of Language Model Fine-Tuning" (2020).
https://arxiv.org/abs/2012.13255

The best approximation of rank $r$ of a matrix $W$ with singular values $\sigma_i$ keeps the $r$ largest; its error is

$$ \lVert W - W_r \rVert_F^2 = \sum_{i > r} \sigma_i^2 . $$

It is stored in $r (m + n)$ numbers instead of $m n$. The matrices are the linear layers of a model's blocks. Compared
are, at each rank: the trained weights, truncated; the update of full fine-tuning, truncated and added to the base; and
LoRA, whose update has that rank from the first step. In all three, embeddings, positions and norms are trained in full.
A run is truncated as it is; where it was fine-tuned from a base with all weights, so is its update.

Without a run, a small Transformer learns to copy the token one position back, and is fine-tuned to copy another one.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.adapters.lora import BODY, LoraConfig, add_lora, linear_layers, matching_layers
from regard.lab.drawing import COLORS, MUTED, label_axes, make_panels
from regard.lab.exercises import draw_delayed_copy, token_loss, train_on_batches
from regard.lab.low_rank import LOW_RANK
from regard.lab.study import Study, StudyTable
from regard.logging import log_info, progress_bar
from regard.models.transformer import Transformer, TransformerConfig
from regard.runs.run import Run
from regard.training.finetuning import base_folder

_BYTES = 4
"""Bytes of a number in float32."""
_BATCHES = 20
"""Batches of validation rows that the loss of a run is measured on."""


@dataclass(frozen=True, kw_only=True)
class LowRankSizes:
    """The model that is trained where no run is given, and the ranks; the defaults are those of a quick run."""

    ranks: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Those of at least the full rank are left out."""
    model_dim: int = 32
    length: int = 16
    vocab_size: int = 16
    steps: int = 250
    """Steps of the base, and of its fine-tuning."""
    batch_size: int = 16
    learning_rate: float = 1e-2
    distances: tuple[int, int] = (1, 3)
    """How far back the token is that the base copies, and that which it is fine-tuned for."""


_FULL = LowRankSizes(model_dim=64, steps=1_000, batch_size=32, ranks=(1, 2, 4, 8, 16, 32, 64))


def truncate(matrix: Float[Tensor, "output input"], rank: int) -> Float[Tensor, "output input"]:
    """The nearest matrix of at most this rank."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def truncation_error(singular_values: Float[Tensor, " rank"], rank: int) -> float:
    """The share of a matrix's squared norm that its best approximation of this rank lacks."""
    squares = singular_values.square()
    return float(squares[rank:].sum() / squares.sum())


def stored_numbers(matrices: Mapping[str, Tensor], rank: int) -> int:
    """Numbers of two factors of this rank for each matrix, or of the matrix itself where that has fewer."""
    return sum(min(rank * sum(matrix.shape), matrix.numel()) for matrix in matrices.values())


def block_matrices(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the linear layers of a model's blocks."""
    layers: dict[str, Any] = linear_layers(model)
    return {name: layers[name].weight for name in matching_layers(layers, [BODY])}


@torch.no_grad()
def with_matrices(model: nn.Module, matrices: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with these weights in its blocks."""
    changed = copy.deepcopy(model)
    for name, weight in block_matrices(changed).items():
        weight.copy_(matrices[name])
    return changed


@dataclass(frozen=True)
class RankScores:
    """The loss at each rank, and at full rank."""

    losses: dict[int, float]
    full: float
    error: dict[int, float]
    """The mean share of the squared norms that is left out."""


def score_ranks(
    model: nn.Module, base: Mapping[str, Tensor] | None, ranks: Sequence[int], loss: Any, description: str
) -> RankScores:
    """Truncate the matrices of a model, or what they add to those of a base, and measure the loss at each rank."""
    matrices = {name: weight.detach() for name, weight in block_matrices(model).items()}
    origin = base or {name: torch.zeros_like(weight) for name, weight in matrices.items()}
    updates = {name: weight - origin[name] for name, weight in matrices.items()}
    values = [torch.linalg.svdvals(update) for update in updates.values() if float(update.norm()) > 0]
    losses, errors = {}, {}
    for rank in progress_bar(ranks, description, total=len(ranks)):
        changed = {name: origin[name] + truncate(update, rank) for name, update in updates.items()}
        losses[rank] = float(loss(with_matrices(model, changed)))
        errors[rank] = sum(truncation_error(each, rank) for each in values) / max(1, len(values))
    return RankScores(losses, float(loss(model)), errors)


def study_low_rank(
    *, quick: bool = False, seed: int = 0, data: str | None = None, sizes: LowRankSizes | None = None
) -> Study:
    """Measure losses against ranks, of a run or of a small Transformer that is trained and fine-tuned."""
    sizes = sizes or (LowRankSizes() if quick else _FULL)
    return _study_trained(sizes, seed) if data is None else _study_run(Run(data, device="cpu"), sizes)


def _study_run(run: Run, sizes: LowRankSizes) -> Study:
    model, task = run.model, run.task
    rows = run.folder.read_held_out("valid")
    batches = list(islice(task.row_batches(rows), _BATCHES))

    def loss(changed: nn.Module) -> float:
        return task.likelihoods(changed.eval(), iter(batches), torch.device("cpu")).mean

    found = {"weights, truncated": score_ranks(model, None, _ranks(model, sizes), loss, "weights")}
    tuned = run.settings.finetune
    if tuned is not None and not tuned.is_adapter:
        weights = block_matrices(Run(base_folder(tuned, run.path), device="cpu").model)
        matched = _matched(weights, block_matrices(model))
        if matched is not None:
            found["update, truncated"] = score_ranks(model, matched, _ranks(model, sizes), loss, "update")
    return _report(found, block_matrices(model), sizes, "validation loss")


def _matched(base: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The matrices of a base by the names of a model that was fine-tuned from it; None if they do not correspond."""
    by_end = {name.removeprefix("body."): weight.detach() for name, weight in base.items()}
    found = {name: by_end.get(name.removeprefix("body.")) for name in own}
    known = {name: weight for name, weight in found.items() if weight is not None}
    return known if len(known) == len(own) else None


def _study_trained(sizes: LowRankSizes, seed: int) -> Study:
    torch.manual_seed(seed)
    base = Transformer(TransformerConfig.read({
        "encoder_layers": 0, "decoder_layers": 2, "model_dim": sizes.model_dim, "num_heads": 2,
        "feedforward_dim": 2 * sizes.model_dim, "block": "pre-norm", "dropout": 0.0, "positions": "relative",
    }), sizes.vocab_size)  # fmt: skip
    draw = partial(draw_delayed_copy, sizes.batch_size, sizes.length, vocab_size=sizes.vocab_size)
    test = draw_delayed_copy(500, sizes.length, distance=sizes.distances[1], vocab_size=sizes.vocab_size)

    def tune(model: nn.Module, distance: int, rate: float, description: str) -> nn.Module:
        torch.manual_seed(seed + distance)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
        options: Any = {"steps": sizes.steps, "clip_norm": 1.0, "description": description}
        train_on_batches(model, lambda: draw(distance=distance), optimizer, **options)
        return model

    @torch.no_grad()
    def loss(model: nn.Module) -> Tensor:
        return token_loss(model.eval(), test)

    first, second = sizes.distances
    tune(base, first, sizes.learning_rate, "base")
    before = float(loss(base))
    tuned = tune(copy.deepcopy(base), second, sizes.learning_rate, "all weights")
    ranks = _ranks(tuned, sizes)
    origin = {name: weight.detach() for name, weight in block_matrices(base).items()}
    found = {
        "weights, truncated": score_ranks(tuned, None, ranks, loss, "weights"),
        "update, truncated": score_ranks(tuned, origin, ranks, loss, "update"),
    }
    lora: dict[int, float] = {}
    for rank in ranks:
        adapted = copy.deepcopy(base)
        add_lora(adapted, LoraConfig(rank=rank, alpha=float(rank)))
        # As with truncated updates, all other weights, such as those of positions, are trained in full.
        for name, parameter in adapted.named_parameters():
            parameter.requires_grad_(".base." not in name)
        lora[rank] = float(loss(tune(adapted, second, sizes.learning_rate, f"LoRA of rank {rank}")))
        log_info(f"LoRA of rank {rank}: loss {lora[rank]:.4f}")
    found["LoRA"] = RankScores(lora, found["update, truncated"].full, dict.fromkeys(ranks, math.nan))
    return _report(found, block_matrices(tuned), sizes, "loss", before=before)


def _ranks(model: nn.Module, sizes: LowRankSizes) -> list[int]:
    """The ranks below the full rank of the largest matrix."""
    most = max(min(weight.shape) for weight in block_matrices(model).values())
    return [rank for rank in sizes.ranks if rank < most] or [1]


def _report(
    found: Mapping[str, RankScores], matrices: Mapping[str, Tensor], sizes: LowRankSizes, what: str,
    before: float | None = None,
) -> Study:  # fmt: skip
    total = _BYTES * sum(matrix.numel() for matrix in matrices.values())
    rows = [
        [name, rank, _BYTES * stored_numbers(matrices, rank), _BYTES * stored_numbers(matrices, rank) / total, loss,
         scores.error[rank]]
        for name, scores in found.items() for rank, loss in scores.losses.items()
    ]  # fmt: skip
    figure, (losses, errors) = make_panels(2, height=3.5)
    for (name, scores), color, marker in zip(found.items(), COLORS, "osD", strict=False):
        places = [stored_numbers(matrices, rank) * _BYTES for rank in scores.losses]
        losses.plot(places, list(scores.losses.values()), f"{marker}-", color=color, markersize=4, label=name)
        if not all(map(math.isnan, scores.error.values())):
            errors.plot(list(scores.error), list(scores.error.values()), f"{marker}-", color=color, markersize=4,
                        label=name)  # fmt: skip
    full = next(iter(found.values())).full
    losses.axhline(full, color=MUTED, linewidth=1, linestyle="--", label="full rank")
    label_axes(losses, "Loss against bytes", "bytes of the factors", what, log="xy", legend="best")
    label_axes(errors, "Share of the squared norm left out", "rank", "share", log="x", legend="best")
    findings = [_finding(name, scores, matrices, total, what) for name, scores in found.items()]
    if before is not None:
        findings.append(f"Before fine-tuning the loss is {before:.3f}, after it, with all weights, {full:.4f}.")
    note = f"Of {len(matrices)} matrices with {total:,} bytes in float32; full rank: {what} {full:.4f}."
    columns = ["approximation", "rank", "bytes", "share of the bytes", what, "squared norm left out"]
    return LOW_RANK.result(sizes, [(findings, [StudyTable("loss by rank", columns, rows, note)])], figure)


def _finding(name: str, scores: RankScores, matrices: Mapping[str, Tensor], total: int, what: str) -> str:
    limit = scores.full + 0.1 * abs(scores.full)
    enough = [rank for rank, loss in scores.losses.items() if loss <= limit]
    least = f"rank {min(enough)} ({_BYTES * stored_numbers(matrices, min(enough)) / total:.0%} of the bytes)" \
        if enough else f"no rank up to {max(scores.losses)}"  # fmt: skip
    first = min(scores.losses)
    return (
        f"{name[0].upper()}{name[1:]}: {what} {scores.losses[first]:.3f} at rank {first}, {scores.full:.4f} at full "
        f"rank; within 10 % of that from {least} on."
    )
