"""The time of a training step of an encoder-decoder, compared with `torch.nn.Transformer` and transformers' Marian.

    python benchmarks/train_step.py [--device cpu|cuda] [--compile] [--shape base] [--json]

A step is forward, backward, clipping and AdamW, with the same shape and data for all libraries and dropout 0.1 on the
residual stream only. The step of regard is that of its trainer, which on a GPU is recorded as a CUDA graph and
replayed. The libraries are measured in turns of shuffled order; a figure is the median. A speedup above 1 means that
regard is faster.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.harness import Step, make_parser, median_times, parse, plain_step, print_results, regard_step
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.positions import Sinusoidal
from regard.tasks.seq2seq import PairBatch
from regard.training.precision import Hardware, choose_hardware

SHAPES = {
    "4 layers, 256 wide": {"num_layers": 4, "model_dim": 256, "num_heads": 4, "feedforward_dim": 1024},
    "base": {"num_layers": 6, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048},
}
TINY_SHAPES = {"1 layer, 16 wide": {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 32}}
VOCAB = {"cpu": 8_000, "cuda": 32_000, "tiny": 50}
PAIRS, LENGTH = {"cpu": 32, "cuda": 256, "tiny": 3}, {"cpu": 32, "cuda": 64, "tiny": 7}
DROPOUT, LABEL_SMOOTHING = 0.1, 0.1
ADAM = {"betas": (0.9, 0.98), "epsilon": 1e-9, "weight_decay": 0.01}
Logits = Callable[[Tensor, Tensor], Tensor]
"""Source and target tokens in, logits out."""


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with embeddings, positions and tied output weights."""

    def __init__(self, shape: dict[str, int], vocab_size: int) -> None:
        super().__init__()
        width = shape["model_dim"]
        self.embedding = nn.Embedding(vocab_size, width)
        self.dropout, self.scale = nn.Dropout(DROPOUT), width**0.5
        place = torch.arange(512)
        self.register_buffer("positions", Sinusoidal(width)(place, place).embeddings)
        self.inner = nn.Transformer(
            width, shape["num_heads"], shape["num_layers"], shape["num_layers"], shape["feedforward_dim"], DROPOUT,
            batch_first=True,
        )  # fmt: skip
        for module in self.inner.modules():  # dropout on the residual stream only, as in the other two
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


class Marian(nn.Module):
    """transformers' Marian with the arguments in our order."""

    def __init__(self, shape: dict[str, int], vocab_size: int) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        layers, heads, wide = shape["num_layers"], shape["num_heads"], shape["feedforward_dim"]
        self.inner = MarianMTModel(
            MarianConfig(
                vocab_size=vocab_size, d_model=shape["model_dim"], encoder_layers=layers, decoder_layers=layers,
                encoder_ffn_dim=wide, decoder_ffn_dim=wide, encoder_attention_heads=heads,
                decoder_attention_heads=heads, activation_function="relu", dropout=DROPOUT, use_cache=False,
                pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=1, scale_embedding=True,
            )
        )  # fmt: skip

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.inner(input_ids=source, decoder_input_ids=target).logits


def random_pairs(size: str, hardware: Hardware) -> tuple[Tensor, Tensor]:
    """Source and target tokens of a batch."""
    source, target = torch.randint(2, VOCAB[size], (2, PAIRS[size], LENGTH[size]), device=hardware.device)
    return source, target


def seq2seq_step(
    model: nn.Module, logits: Logits, size: str, hardware: Hardware, loss: Callable[[Tensor, Tensor], Tensor]
) -> Step:
    """A step of a loop around a model of any library."""
    model.to(hardware.device).train()
    source, target = random_pairs(size, hardware)
    return plain_step(model, lambda: loss(logits(source, target).flatten(0, 1), target.flatten()), hardware, ADAM)


def smoothed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss that users of PyTorch and of transformers train with."""
    return F.cross_entropy(logits.float(), targets, label_smoothing=LABEL_SMOOTHING)


def make_steps(shape: dict[str, int], size: str, device: str, *, compiled: bool, float8: bool) -> dict[str, Step]:
    """A step of each library."""
    hardware, vocab_size = choose_hardware(device, "auto", 512), VOCAB[size]
    config = TransformerConfig.read({**shape, "dropout": DROPOUT})
    ours = Transformer(config, vocab_size)
    source, target = random_pairs(size, hardware)
    batch = PairBatch(source, None, target, target.roll(-1, 1), target.numel(), 2 * target.numel())
    options = {"label_smoothing": LABEL_SMOOTHING, "float8": float8}
    steps = {"regard": regard_step(ours, config, "seq2seq", batch, hardware, ADAM, compiled=compiled, **options)}
    peers = {"torch.nn.Transformer": TorchTransformer, "transformers Marian": Marian}
    for name, make in peers.items():
        model = make(shape, vocab_size)
        logits = torch.compile(model) if compiled else model
        steps[name] = seq2seq_step(model, logits, size, hardware, smoothed_cross_entropy)
    return steps


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, seconds=30.0)
    parser.add_argument("--compile", action="store_true", help="torch.compile each model")
    parser.add_argument("--float8", action="store_true", help="regard computes the logits in float8")
    parser.add_argument("--shape", choices=list(SHAPES), action="append", help="this shape only")
    options = parse(parser, arguments)
    shapes = {name: SHAPES[name] for name in options.shape or SHAPES}
    if options.tiny:
        shapes, options.compile = TINY_SHAPES, False
    results = []
    for name, shape in shapes.items():
        torch.manual_seed(0)
        steps = make_steps(shape, options.size, options.device, compiled=options.compile, float8=options.float8)
        times = median_times(steps, options.seconds, device=options.device)
        tokens = PAIRS[options.size] * LENGTH[options.size]
        for library, seconds in times.items():
            speedup = seconds / times["regard"]
            figures = {"ms": 1e3 * seconds, "target_tokens_per_s": tokens / seconds, "speedup": speedup}
            results.append({"shape": name, "library": library, **figures})
            if not options.json:
                speed = f"{1e3 * seconds:9.1f} ms  {tokens / seconds:9,.0f} target tokens/s"
                print(f"{name:20} {library:22} {speed}  {speedup:5.2f}x")
    print_results(options, results, compiled=options.compile)


if __name__ == "__main__":
    main()
