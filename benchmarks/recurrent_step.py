"""A training step of recurrent models beside `torch.nn.LSTM` in a bare loop of the same size.

    python benchmarks/recurrent_step.py [--device cpu|cuda] [--json]

The bare loop is what one writes without a toolkit: embeddings, `nn.LSTM` for
the encoder and for the decoder, a dot-product attention where there is one, a
tied output, cross-entropy, clipping, AdamW. The two take turns; a figure is the
median. Ratios above 1 say that regard is faster.
"""

import argparse
import json
import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.nn.losses import cross_entropy
from regard.training.precision import keep_memory
from train_step import LENGTH, PAIRS, VOCAB, make_step, measure

SHAPES = {
    "2+2 layers, 256 wide": {"num_layers": 2, "model_dim": 256},
    "2+2 layers, 512 wide": {"num_layers": 2, "model_dim": 512},
}
DROPOUT = 0.2


class BareLoop(nn.Module):
    """An encoder and a decoder of `nn.LSTM`, as one writes them by hand."""

    def __init__(self, shape: dict[str, int], vocab_size: int, *, has_attention: bool) -> None:
        super().__init__()
        width, layers = shape["model_dim"], shape["num_layers"]
        self.embedding = nn.Embedding(vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.dropout = nn.Dropout(DROPOUT)
        options = {"num_layers": layers, "batch_first": True, "dropout": DROPOUT}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="measuring time for each shape")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device: str = options.device
    if device == "cpu":
        keep_memory()
    results = []
    for name, shape in SHAPES.items():
        for attention in ("none", "luong"):
            torch.manual_seed(0)
            config = RecurrentConfig.read({**shape, "attention": attention, "dropout": DROPOUT})
            bare = BareLoop(shape, VOCAB[device], has_attention=attention != "none")
            steps = {
                "regard": make_step(
                    Recurrent(config, VOCAB[device]),
                    lambda model, source, target: model(target, source),
                    lambda scores, targets: cross_entropy(scores, targets, label_smoothing=0.1) / len(targets),
                    device,
                    compiled=False,
                ),
                "torch.nn.LSTM, bare loop": make_step(
                    bare,
                    lambda model, source, target: model(source, target),
                    lambda scores, targets: F.cross_entropy(scores.float(), targets, label_smoothing=0.1),
                    device,
                    compiled=False,
                ),
            }
            times = measure(steps, options.seconds)
            tokens = 2 * PAIRS[device] * LENGTH[device]
            for library, seconds in times.items():
                ratio = seconds / times["regard"]
                figures = {"ms": 1e3 * seconds, "tokens_per_s": tokens / seconds, "regard_is_times_as_fast": ratio}
                results.append({"shape": name, "attention": attention, "library": library, **figures})
                if not options.json:
                    speed = f"{1e3 * seconds:8.1f} ms {tokens / seconds:10,.0f} tokens/s"
                    print(f"{name:22} attention {attention:6} {library:26} {speed}  {ratio:5.2f}x")
    machine = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    described = {"machine": machine, "torch": torch.__version__, "results": results}
    print(json.dumps(described) if options.json else f"{machine}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
