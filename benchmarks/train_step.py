"""One training step beside its peers: the same model, data and machine, in one run.

    python benchmarks/train_step.py [--device cpu|cuda] [--compile] [--shape base] [--json]

Measures a step (forward, backward, clipping, AdamW) of an encoder-decoder of
the given size in regard, in `torch.nn.Transformer` and in transformers' Marian
classes, all with dropout 0.1 on the residual stream only. regard's step is that
of its trainer, which on a GPU is recorded and replayed. The three take turns in
a shuffled order, so that a machine that slows down slows all of them down; a
figure is the median. Ratios above 1 say that regard is faster.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.positions import Sinusoidal
from regard.tasks.translation import PairBatch, Translation
from regard.training.average import WeightAverage
from regard.training.optimizers import make_optimizer
from regard.training.precision import Hardware, choose_hardware, keep_memory
from regard.training.settings import RunSettings
from regard.training.update import Updater

SHAPES = {
    "4 layers, 256 wide": {"num_layers": 4, "model_dim": 256, "num_heads": 4, "feedforward_dim": 1024},
    "base": {"num_layers": 6, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048},
}
VOCAB, DROPOUT = {"cpu": 8_000, "cuda": 32_000}, 0.1
PAIRS, LENGTH = {"cpu": 32, "cuda": 256}, {"cpu": 32, "cuda": 64}
Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "torch.nn.Transformer": lambda scores, targets: F.cross_entropy(scores.float(), targets, label_smoothing=0.1),
    "transformers Marian": lambda scores, targets: F.cross_entropy(scores.float(), targets, label_smoothing=0.1),
}
"""Of each peer the loss that its users train with."""


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with embeddings, positions and a tied output, as its users write it."""

    def __init__(self, shape: dict[str, int], vocab_size: int) -> None:
        super().__init__()
        width = shape["model_dim"]
        self.embedding = nn.Embedding(vocab_size, width)
        self.dropout, self.scale = nn.Dropout(DROPOUT), width**0.5
        place = torch.arange(512)
        self.register_buffer("positions", Sinusoidal(width)(place, place).added)
        self.inner = nn.Transformer(
            width, shape["num_heads"], shape["num_layers"], shape["num_layers"], shape["feedforward_dim"], DROPOUT,
            batch_first=True,
        )  # fmt: skip
        for module in self.inner.modules():  # dropout on the residual stream alone, as in the other two
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        states = self.inner(self._embed(source), self._embed(target), tgt_mask=mask, tgt_is_causal=True)
        return states @ self.embedding.weight.T

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.scale + self.positions[: tokens.size(1)])


def contenders(shape: dict[str, int], vocab_size: int) -> dict[str, tuple[nn.Module, Callable[..., Tensor]]]:
    """Each library's model, and how its scores are had from it."""
    from transformers import MarianConfig, MarianMTModel

    ours = Transformer(TransformerConfig.read({**shape, "dropout": DROPOUT}), vocab_size)
    theirs = TorchTransformer(shape, vocab_size)
    layers, heads, wide = shape["num_layers"], shape["num_heads"], shape["feedforward_dim"]
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=vocab_size, d_model=shape["model_dim"], encoder_layers=layers, decoder_layers=layers,
            encoder_ffn_dim=wide, decoder_ffn_dim=wide, encoder_attention_heads=heads, decoder_attention_heads=heads,
            activation_function="relu", dropout=DROPOUT, use_cache=False, pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0, forced_eos_token_id=1, scale_embedding=True,
        )
    )  # fmt: skip
    return {
        "regard": (ours, lambda model, source, target: model(target, source)),
        "torch.nn.Transformer": (theirs, lambda model, source, target: model(source, target)),
        "transformers Marian": (
            marian,
            lambda model, source, target: model(input_ids=source, decoder_input_ids=target).logits,
        ),
    }


def make_step(
    model: nn.Module,
    scores_of: Callable[..., Tensor],
    loss: Loss | None,
    device: str,
    *,
    compiled: bool,
    float8: bool = False,
) -> Callable[[], None]:
    hardware = choose_hardware(device, "auto", 512)
    model.to(hardware.device).train()
    source, target = torch.randint(2, VOCAB[device], (2, PAIRS[device], LENGTH[device]), device=hardware.device)
    optimizer = make_optimizer("adamw", model, betas=(0.9, 0.98), epsilon=1e-9, weight_decay=0.01)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    if isinstance(model, Transformer):
        settings = RunSettings.read({"train": {"average": 0.0, "label_smoothing": 0.1, "float8": float8}}).train
        average = WeightAverage(model, 0.0)
        updater = Updater(model, Translation(), optimizer, average, settings, hardware, is_compiled=compiled)
        batch = PairBatch(source, None, target, target.roll(-1, 1), target.numel(), 2 * target.numel())
        return lambda: synchronized(updater.update([batch], rate=1e-4, decay=0.0), hardware)
    called = torch.compile(model) if compiled else model

    def step() -> None:
        with hardware.autocast():
            scores = scores_of(called, source, target)
        assert loss is not None
        loss(scores.flatten(0, 1), target.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        hardware.synchronize()

    return step


def synchronized(_: Tensor, hardware: Hardware) -> None:
    """Wait until a step is done."""
    hardware.synchronize()


def measure(steps: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """The median time of a step of each, taken in turns."""
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    rng, start, names = random.Random(0), time.perf_counter(), list(steps)
    while time.perf_counter() - start < seconds:
        for name in rng.sample(names, len(names)):
            before = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - before)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile each model")
    parser.add_argument("--float8", action="store_true", help="in regard, products with the vocabulary in eight bits")
    parser.add_argument("--shape", choices=list(SHAPES), action="append", help="one of the shapes only")
    parser.add_argument("--seconds", type=float, default=30.0, help="measuring time for each shape")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device: str = options.device
    if device == "cpu":
        keep_memory()
    else:
        torch.set_float32_matmul_precision("high")
    results = []
    for name, shape in SHAPES.items():
        if options.shape and name not in options.shape:
            continue
        torch.manual_seed(0)
        steps = {
            peer: make_step(model, scores_of, LOSSES.get(peer), device, compiled=options.compile, float8=options.float8)
            for peer, (model, scores_of) in contenders(shape, VOCAB[device]).items()
        }
        times = measure(steps, options.seconds)
        tokens = PAIRS[device] * LENGTH[device]
        for peer, seconds in times.items():
            ratio = seconds / times["regard"]
            figures = {"ms": 1e3 * seconds, "target_tokens_per_s": tokens / seconds, "regard_is_times_as_fast": ratio}
            results.append({"shape": name, "library": peer, **figures})
            if not options.json:
                speed = f"{1e3 * seconds:9.1f} ms  {tokens / seconds:9,.0f} target tokens/s"
                print(f"{name:20} {peer:22} {speed}  {ratio:5.2f}x")
    machine = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    described = {"machine": machine, "torch": torch.__version__, "compiled": options.compile, "results": results}
    print(
        json.dumps(described) if options.json else f"{machine}, torch {torch.__version__}, compiled: {options.compile}"
    )


if __name__ == "__main__":
    main()
