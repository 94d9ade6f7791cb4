"""The time of a training step of recurrent models, compared with `torch.nn.LSTM` in a plain loop of the same size.

    python benchmarks/recurrent_step.py [--device cpu|cuda] [--json]

The plain loop is what one writes without a toolkit: embeddings, `nn.LSTM` for the encoder and for the decoder,
dot-product attention where there is attention, tied output weights, cross-entropy, clipping, AdamW. The two are
measured in turns; a figure is the median. A speedup above 1 means that regard is faster.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from common.harness import make_parser, median_times, parse, print_results
from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.nn.losses import cross_entropy
from regard.training.precision import choose_hardware
from train_step import LABEL_SMOOTHING, LENGTH, PAIRS, VOCAB, seq2seq_step, smoothed_cross_entropy

SHAPES = {
    "2+2 layers, 256 wide": {"num_layers": 2, "model_dim": 256},
    "2+2 layers, 512 wide": {"num_layers": 2, "model_dim": 512},
}
TINY_SHAPES = {"1+1 layers, 16 wide": {"num_layers": 1, "model_dim": 16}}
DROPOUT = 0.2


class PlainLSTM(nn.Module):
    """An encoder and a decoder of `nn.LSTM`."""

    def __init__(self, shape: dict[str, int], vocab_size: int, *, has_attention: bool) -> None:
        super().__init__()
        width, layers = shape["model_dim"], shape["num_layers"]
        self.embedding = nn.Embedding(vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.dropout = nn.Dropout(DROPOUT)
        options = {"num_layers": layers, "batch_first": True, "dropout": DROPOUT if layers > 1 else 0.0}
        self.encoder = nn.LSTM(width, width // 2, bidirectional=True, **options)
        self.decoder = nn.LSTM(width, width, **options)
        self.score = nn.Linear(width, width, bias=False) if has_attention else None
        self.join = nn.Linear(2 * width, width) if has_attention else None

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.encoder(self._embed(source))
        start = tuple(part.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2).contiguous() for part in last)
        out, _ = self.decoder(self._embed(target), start)
        if self.score is not None and self.join is not None:
            weights = (out @ self.score(states).transpose(1, 2)).softmax(dim=-1)
            out = self.join(torch.cat([out, weights @ states], dim=-1)).tanh()
        return self.dropout(out) @ self.embedding.weight.T

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.embedding.embedding_dim**0.5)


def regard_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over the targets of regard's loss."""
    return cross_entropy(logits, targets, label_smoothing=LABEL_SMOOTHING) / len(targets)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, seconds=20.0), arguments)
    size, hardware = options.size, choose_hardware(options.device, "auto", 512)
    results = []
    for name, shape in (TINY_SHAPES if options.tiny else SHAPES).items():
        for attention in ("none", "luong"):
            torch.manual_seed(0)
            config = RecurrentConfig.read({**shape, "attention": attention, "dropout": DROPOUT})
            ours = Recurrent(config, VOCAB[size])
            plain = PlainLSTM(shape, VOCAB[size], has_attention=attention != "none")
            steps = {
                "regard": seq2seq_step(
                    ours, lambda source, target, ours=ours: ours(target, source), size, hardware, regard_loss
                ),
                "torch.nn.LSTM, plain loop": seq2seq_step(plain, plain, size, hardware, smoothed_cross_entropy),
            }
            times = median_times(steps, options.seconds, device=options.device)
            tokens = 2 * PAIRS[size] * LENGTH[size]
            for library, seconds in times.items():
                speedup = seconds / times["regard"]
                figures = {"ms": 1e3 * seconds, "tokens_per_s": tokens / seconds, "speedup": speedup}
                results.append({"shape": name, "attention": attention, "library": library, **figures})
                if not options.json:
                    speed = f"{1e3 * seconds:8.1f} ms {tokens / seconds:10,.0f} tokens/s"
                    print(f"{name:22} attention {attention:6} {library:26} {speed}  {speedup:5.2f}x")
    print_results(options, results)


if __name__ == "__main__":
    main()
