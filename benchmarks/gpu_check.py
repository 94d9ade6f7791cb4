"""Does what only a GPU computes equal what it stands for?

    python benchmarks/gpu_check.py [--device cpu|cuda] [--check windows] [--json]

windows   FlexAttention beside attention with the pattern's mask, both in bfloat16, and their gradients; the difference
          is to the same in float32, and at most twice that of the mask
step      losses of a language model with windows, whose updates are CUDA graphs, beside those of eager updates, with
          and without activation checkpointing, in bfloat16
dpo       losses and weights of DPO with LoRA as CUDA graphs beside eager ones, in float32, in one batch and in two

On a CPU FlexAttention is not compiled and there are no graphs, so that only the script is tried. The exit code is 1
where a check fails.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from align_step import SHAPES, make_rows, write_checkpoint
from common.harness import make_parser, parse, print_results, regard_step
from regard.models.family import build_model, read_model_config
from regard.nn.attention import Lookup
from regard.nn.masks import SparsePattern
from regard.nn.similarity import make_similarity
from regard.nn.sparse_attention import SparseLookup, compiled_flex_attention
from regard.tasks.language_modeling import WindowBatch
from regard.training.precision import choose_hardware

Rows = list[dict[str, Any]]
PATTERNS = {
    "window": SparsePattern(window=300, is_causal=True),
    "window, global tokens": SparsePattern(window=300, num_global=5, is_causal=True),
    "strided": SparsePattern(window=200, stride=200, is_causal=True),
    "window in both directions": SparsePattern(window=100, num_global=3),
}
LENGTHS = {"cuda": (2_048, 1_500, 1_100, 4_096), "cpu": (1_100,), "tiny": (130,)}
"""Of which some fill no whole number of tiles; the second and later ones are compiled with a variable length."""
HEADS = ((9, 3), (8, 2), (4, 4))
HEAD_DIM, BATCH, STEPS = 64, 2, 6
ADAM = {"betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.1}


def row(check: str, case: str, difference: float, limit: float) -> dict[str, Any]:
    return {"check": check, "case": case, "difference": difference, "limit": limit, "holds": difference <= limit}


def windows(size: str, device: str) -> Rows:
    if device == "cuda":
        kernel = compiled_flex_attention()
    else:
        from torch.nn.attention.flex_attention import flex_attention as kernel
    found: Rows = []
    for length in LENGTHS[size]:
        for name, pattern in PATTERNS.items():
            for heads, shared in HEADS:
                found.append(one_window(f"{name}, {heads}/{shared} heads, {length}", pattern, heads, shared, length,
                                        device, kernel))  # fmt: skip
    return found


def one_window(
    case: str, pattern: SparsePattern, heads: int, shared: int, length: int, device: str, kernel: Any
) -> dict[str, Any]:
    torch.manual_seed(0)
    lookup = SparseLookup(Lookup(make_similarity("scaled-dot", HEAD_DIM, shared), is_causal=pattern.is_causal), pattern)
    inputs = [torch.randn(BATCH, number, length, HEAD_DIM, device=device) for number in (heads, shared, shared)]
    upstream = torch.randn(BATCH, heads, length, HEAD_DIM, device=device)

    def outputs(dtype: torch.dtype, *, by_tiles: bool) -> list[Tensor]:
        has_gradients = device == "cuda"  # FlexAttention has none on a CPU
        own = [each.to(dtype).requires_grad_(has_gradients) for each in inputs]
        y = lookup.attend_by_tiles(*own, kernel) if by_tiles else lookup.attend_densely(*own)
        return [y.detach(), *(torch.autograd.grad(y, own, upstream.to(dtype)) if has_gradients else [])]

    # The inputs are rounded to bfloat16 first, so that the difference is that of the computation alone.
    inputs = [each.bfloat16().float() for each in inputs]
    upstream = upstream.bfloat16().float()
    exact = outputs(torch.float32, by_tiles=False)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    ours, dense = (
        max(
            float((a.float() - b).abs().max() / b.abs().max())
            for a, b in zip(outputs(dtype, by_tiles=tiles), exact, strict=True)
        )
        for tiles in (True, False)
    )
    return row("windows", case, ours, max(2 * dense, 1e-5))


def step(size: str, device: str) -> Rows:
    length = 64 if size == "tiny" else 2_048
    settings = {"family": "transformer", "encoder_layers": 0, "num_layers": 2, "model_dim": 128, "num_heads": 2,
                "feedforward_dim": 128, "dropout": 0.0, "block": "pre-norm", "positions": "rotary",
                "attention": "window", "window": length // 8}  # fmt: skip
    hardware = choose_hardware(device, "auto", 512)
    found: Rows = []
    for checkpointing in (False, True):
        losses = []
        for graphs in (True, False):
            config = read_model_config(settings)
            torch.manual_seed(0)
            model = build_model(config, 97)
            tokens = torch.randint(4, 97, (2, length), device=hardware.device)
            batch = WindowBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
            update = regard_step(
                model, config, "language-modeling", batch, hardware, ADAM, cuda_graphs=graphs,
                activation_checkpointing=checkpointing,
            )  # fmt: skip
            for _ in range(STEPS):
                update()
            with torch.no_grad(), hardware.autocast():
                logits = model.eval()(tokens)
            losses.append(
                float(torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten()))
            )
        case = "activation checkpointing" if checkpointing else "plain"
        found.append(row("step", case, abs(losses[0] - losses[1]) / losses[1], 1e-3))
    return found


def dpo(size: str, device: str) -> Rows:
    import regard
    from regard.data.sources import NamedRows
    from regard.runs.finetune import set_up_finetuning

    shape = SHAPES["tiny" if size == "tiny" else "cpu"]
    found: Rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_checkpoint(shape, folder / "model")
        regard.import_model(folder / "model", folder / "run")
        for parts in (1, 2):
            weights = []
            for graphs in (True, False):
                values = {
                    "data": {"train": ["rows"], "splits": [0.9, 0.1, 0.0]},
                    "train": {"device": device, "precision": "float32", "max_steps": 100, "learning_rate": 1e-3,
                              "batch_tokens": 4 * (shape["answer"] + 2), "accumulate": parts, "cuda_graphs": graphs,
                              "activation_checkpointing": parts == 2, "ema_decay": 0.0},
                    "task": {"name": "preference-optimization", "method": "dpo", "evaluation_answers": 2},
                    "finetune": {"lora": {"rank": 2}},
                }  # fmt: skip
                _, _, trainer = set_up_finetuning(
                    folder / "run", values, method="lora", rows=NamedRows(make_rows(shape))
                )
                for _ in range(STEPS):
                    trainer.advance()
                losses = torch.stack([loss.float().cpu() for loss, _, _ in trainer.progress.window])
                own = [
                    each.detach().float().cpu().flatten() for each in trainer.model.parameters() if each.requires_grad
                ]
                weights.append((losses, torch.cat(own)))
            for name, ours, eager in zip(("losses", "weights"), *weights, strict=True):
                difference = float((ours - eager).abs().max() / eager.abs().max())
                found.append(row("dpo", f"{name}, {parts} parts", difference, 1e-3))
    return found


CHECKS = {"windows": windows, "step": step, "dpo": dpo}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--check", choices=list(CHECKS), action="append", help="this check only")
    options = parse(parser, arguments)
    results: Rows = []
    for name in options.check or CHECKS:
        torch.set_float32_matmul_precision("highest")  # the reference is exact
        rows = CHECKS[name](options.size, options.device)
        results += rows
        for each in [] if options.json else rows:
            answer = "holds" if each["holds"] else "FAILS"
            print(
                f"{answer}  {name:8} {each['case']:50} {each['difference']:.2e} (at most {each['limit']:.1e})",
                flush=True,
            )
    print_results(options, results)
    if not all(each["holds"] for each in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
