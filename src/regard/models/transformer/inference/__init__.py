"""Fast implementations of one decoding step of a Transformer.

    layers.py   what both read from a model: its layers and the tables of its positions
    cpu.py      PyTorch on packed weights, without the masks, tables and calls that a step does not need
    cuda.py     fused Triton kernels

They are here and not in `regard.generation` because they read the blocks and the
states of this model: generation uses them through `Transformer.for_inference` and
the protocol `Decoder` alone. `Transformer.step` is their specification, to which
tests compare them.
"""

from regard.models.transformer.model import StepBackend, Transformer
from regard.nn.kernels import has_kernels


def make_backend(model: Transformer) -> StepBackend | None:
    """Return the backend for the device of `model`; None where its settings are not supported."""
    if has_kernels(model.embedding.weight):
        # Imported here: it imports Triton.
        from regard.models.transformer.inference.cuda import FusedStep

        return FusedStep.for_model(model)
    from regard.models.transformer.inference.cpu import PackedStep

    return PackedStep.for_model(model)
