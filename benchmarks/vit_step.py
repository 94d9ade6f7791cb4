"""The time of a training step of a Vision Transformer, compared with transformers' ViT.

    python benchmarks/vit_step.py [--device cpu|cuda] [--no-compile] [--shape NAME] [--json]

A step is forward, backward, clipping and AdamW, with the same shape and pictures, dropout 0.1 on the residual stream
and label smoothing 0.1 in both. The step of regard is that of its trainer: it reads pixels as bytes and normalizes
them, and on a GPU it is recorded as a CUDA graph; `regard, compiled` is the same with `train.compile = "always"`.
transformers gets pixels that are normalized already, and is compiled. They are measured in turns of shuffled order; a
figure is the median. A speedup above 1 means that regard is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from common.harness import Step, make_parser, median_times, parse, plain_step, print_results, regard_step
from regard.data.formats.images import ImageConfig
from regard.models.heads import HeadConfig
from regard.models.vision import VisionTransformerConfig
from regard.tasks.image_classification import ImageBatch, ImageClassifier
from regard.training.precision import Hardware, choose_hardware


@dataclass(frozen=True)
class Shape:
    """A model, the size of its pictures, and how many are in a batch."""

    num_layers: int
    model_dim: int
    num_heads: int
    image: ImageConfig
    batch: int


SHAPES = {
    "small, 32 x 32": Shape(12, 384, 6, ImageConfig(), 512),
    "base, 224 x 224": Shape(12, 768, 12, ImageConfig(size=224, patch_size=16), 128),
}
CPU_SHAPES = {"tiny, 32 x 32": Shape(4, 128, 4, ImageConfig(), 32)}
TINY_SHAPES = {"1 layer, 16 wide": Shape(1, 16, 2, ImageConfig(size=8), 3)}
NUM_LABELS, DROPOUT, LABEL_SMOOTHING = 10, 0.1, 0.1
ADAM = {"betas": (0.9, 0.98), "epsilon": 1e-9, "weight_decay": 0.05}


def regard_vit(shape: Shape) -> tuple[ImageClassifier, VisionTransformerConfig]:
    """The model of regard."""
    config = VisionTransformerConfig.read(
        {
            "num_layers": shape.num_layers, "model_dim": shape.model_dim, "num_heads": shape.num_heads,
            "feedforward_dim": 4 * shape.model_dim, "dropout": DROPOUT, "decoder_layers": 0, "block": "pre-norm",
            "positions": "learned", "activation": "gelu", "scale_embeddings": False, "initialization": "gpt2",
        }
    )  # fmt: skip
    return ImageClassifier(config, shape.image, HeadConfig(pooling="first", dropout=0.0), NUM_LABELS), config


def transformers_vit(shape: Shape) -> nn.Module:
    """The same model of transformers."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=shape.model_dim, num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads,
            intermediate_size=4 * shape.model_dim, image_size=shape.image.size, patch_size=shape.image.patch_size,
            num_channels=shape.image.channels, num_labels=NUM_LABELS, hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
        )
    )  # fmt: skip


def make_steps(shape: Shape, hardware: Hardware, *, compiled: bool) -> dict[str, Step]:
    """A step of each library."""
    device, side = hardware.device, shape.image.size
    pixels = torch.randint(256, (shape.batch, shape.image.channels, side, side), dtype=torch.uint8, device=device)
    targets = torch.randint(NUM_LABELS, (shape.batch,), device=device)
    num_tokens = shape.batch * shape.image.num_positions
    batch = ImageBatch(pixels, targets, torch.ones(shape.batch, device=device), shape.batch, num_tokens)
    steps: dict[str, Step] = {}
    for name, is_compiled in {"regard": False, **({"regard, compiled": True} if compiled else {})}.items():
        model, config = regard_vit(shape)
        steps[name] = regard_step(
            model, config, "image-classification", batch, hardware, ADAM, compiled=is_compiled,
            label_smoothing=LABEL_SMOOTHING,
        )  # fmt: skip
    theirs = transformers_vit(shape).to(device).train()
    forward, normalized = torch.compile(theirs) if compiled else theirs, pixels.float() / 127.5 - 1.0

    def loss() -> torch.Tensor:
        return F.cross_entropy(forward(normalized).logits.float(), targets, label_smoothing=LABEL_SMOOTHING)

    steps["transformers ViT, compiled" if compiled else "transformers ViT"] = plain_step(theirs, loss, hardware, ADAM)
    return steps


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, seconds=10.0)
    parser.add_argument("--no-compile", action="store_true", help="compile neither")
    parser.add_argument("--shape", choices=list(SHAPES), action="append", help="this shape only")
    options = parse(parser, arguments)
    shapes = {name: SHAPES[name] for name in options.shape or SHAPES}
    if options.device == "cpu":
        shapes = TINY_SHAPES if options.tiny else CPU_SHAPES
    compiled = not (options.tiny or options.no_compile)
    hardware, results = choose_hardware(options.device, "auto", 0), []
    for name, shape in shapes.items():
        torch.manual_seed(0)
        steps = make_steps(shape, hardware, compiled=compiled)
        times = median_times(steps, options.seconds, device=options.device, warm_up=5)
        for library, seconds in times.items():
            speedup = seconds / times["regard"]
            figures = {"ms": 1e3 * seconds, "images_per_s": shape.batch / seconds, "speedup": speedup}
            results.append({"shape": name, "library": library, **figures})
            if not options.json:
                speed = f"{1e3 * seconds:9.1f} ms  {shape.batch / seconds:9,.0f} images/s"
                print(f"{name:18} {library:28} {speed}  {speedup:5.2f}x")
    print_results(options, results, compiled=compiled)


if __name__ == "__main__":
    main()
