"""A network that reads spellings of molecules, and a Gaussian process beside it.

Dimensions: `batch` molecules, `spelled` spellings of them, `time` positions, `outputs` properties.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from regard.data.chemistry import FINGERPRINTS, NUM_BITS
from regard.models.family import ModelConfig
from regard.models.gaussian_process import GaussianProcess
from regard.models.heads import HeadConfig, Pool, PredictionHead, build_body, pooled


class MoleculeModel(nn.Module):
    """Token ids of spellings in, a number or logit for each property out.

    A molecule with several spellings has the mean of their outputs. In evaluation mode, those of the Gaussian process
    are added.
    """

    def __init__(
        self, config: ModelConfig, head: HeadConfig, vocab_size: int, num_outputs: int, *, num_descriptors: int = 0
    ) -> None:
        super().__init__()
        self.process = (
            GaussianProcess(len(FINGERPRINTS), NUM_BITS, num_descriptors, num_outputs) if num_descriptors else None
        )
        self.body = build_body(config, vocab_size)
        self.pooling = Pool(config.model_dim, head.pooling)
        self.head = PredictionHead(
            config.model_dim, num_outputs, dropout=head.dropout, has_hidden_layer=head.hidden_layer
        )

    def forward(
        self,
        source: Int[Tensor, "spelled time"],
        lengths: Int[Tensor, " spelled"] | None,
        features: UInt8[Tensor, "batch bytes"],
    ) -> Float[Tensor, "batch outputs"]:
        network, own = self.parts(source, lengths, features)
        return network if own is None or self.process is None else self.process.blend(network, own)

    def parts(
        self,
        source: Int[Tensor, "spelled time"],
        lengths: Int[Tensor, " spelled"] | None,
        features: UInt8[Tensor, "batch bytes"],
    ) -> tuple[Float[Tensor, "batch outputs"], Float[Tensor, "batch outputs"] | None]:
        """The outputs of the network and of the process, which a model in training mode does not have."""
        outputs = self.head(self.embed(source, lengths)).float()
        network = outputs.unflatten(0, (features.size(0), -1)).mean(dim=1)
        has_process = self.process is not None and self.process.is_solved and not self.training
        return network, self.process(features) if has_process and self.process is not None else None

    def embed(
        self,
        source: Int[Tensor, "spelled time"],
        lengths: Int[Tensor, " spelled"] | None = None,
        segments: Int[Tensor, "spelled time"] | None = None,
    ) -> Float[Tensor, "spelled model"]:
        """The pooled embedding of each spelling."""
        return pooled(self.pooling, self.body.encode(source, lengths, segments=segments))


class ExportedMolecules(nn.Module):
    """Token ids of the spellings of molecules in, numbers in the units of the data or probabilities out."""

    def __init__(self, model: MoleculeModel, means: Sequence[float], stds: Sequence[float]) -> None:
        super().__init__()
        self.model, self.are_labels = model, not means
        self.register_buffer("means", torch.tensor(list(means)))
        self.register_buffer("stds", torch.tensor(list(stds)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        features = torch.zeros_like(input_ids[:, 0, :1], dtype=torch.uint8)
        found = self.model(input_ids.flatten(0, 1), attention_mask.sum(dim=-1).flatten(), features)
        return (found.sigmoid() if self.are_labels else found * self.stds + self.means,)
