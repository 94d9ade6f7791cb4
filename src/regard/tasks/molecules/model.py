"""A network that reads spellings of molecules, a Gaussian process beside it, and spellings as batches.

A stored molecule has several spellings, one after the other, each between a start and an end token. A training batch
has one of them for each molecule, another one in each epoch; an evaluated molecule has the first few.

Dimensions: `batch` molecules, `spelled` spellings of them, `time` positions, `outputs` properties.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import BatchSampler, TensorBatch, pad
from regard.data.chemistry import FINGERPRINTS, NUM_BITS
from regard.data.permutation import mix
from regard.data.stores.rows import TokenStore
from regard.models.family import ModelConfig
from regard.models.gaussian_process import GaussianProcess
from regard.models.heads import HeadConfig, Pool, PredictionHead, build_body, pooled
from regard.tasks.text import pad_rows, pad_time

if TYPE_CHECKING:
    from regard.tasks.molecules.task import MoleculeProperties

_SPELLING = 1
"""The choice of spellings has random numbers of its own, beside those of the order of rows."""


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
        """The outputs of the network and of the process, which training batches have no features for."""
        outputs = self.head(self.embed(source, lengths)).float()
        network = outputs.unflatten(0, (features.size(0), -1)).mean(dim=1)
        process = self.process
        if self.training or process is None or not process.is_solved or features.size(1) != process.features.size(1):
            return network, None
        return network, process(features)

    def embed(
        self,
        source: Int[Tensor, "spelled time"],
        lengths: Int[Tensor, " spelled"] | None = None,
        segments: Int[Tensor, "spelled time"] | None = None,
    ) -> Float[Tensor, "spelled model"]:
        """The pooled embedding of each spelling."""
        return pooled(self.pooling, self.body.encode(source, lengths, segments=segments))


@dataclass(frozen=True)
class MoleculeBatch(TensorBatch):
    """Molecules, and the properties of each."""

    tensor_names = ("source", "lengths", "features", "targets", "known")
    source: Int[Tensor, "spelled time"]
    """The spellings of the first molecule, then of the next; as many for each."""
    lengths: Int[Tensor, " spelled"]
    features: UInt8[Tensor, "batch bytes"]
    """Fingerprints and descriptors, which a model in training mode does not read: one empty byte there."""
    targets: Float[Tensor, "batch outputs"]
    """0 where a property is missing."""
    known: Bool[Tensor, "batch outputs"]
    num_targets: int
    num_tokens: int


def make_molecule_batch(
    texts: Sequence[NDArray[np.int64]], features: NDArray[np.uint8], targets: NDArray[np.float32], padding: int
) -> MoleculeBatch:
    """Pad spellings to one length; targets are NaN where they are missing."""
    known = ~np.isnan(targets)
    lengths = [len(text) for text in texts]
    return MoleculeBatch(
        source=torch.from_numpy(pad(list(texts), padding)),
        lengths=torch.tensor(lengths),
        features=torch.from_numpy(features),
        targets=torch.from_numpy(np.where(known, targets, 0)).float(),
        known=torch.from_numpy(known),
        num_targets=int(known.sum()),
        num_tokens=sum(lengths),
    )


def pad_molecule_batch(batch: MoleculeBatch, num_rows: int, length: int, padding: int) -> MoleculeBatch:
    """A training batch padded to a shape; added rows repeat the first and have no known target."""
    return replace(
        batch,
        source=pad_rows(pad_time(batch.source, length, padding), num_rows),
        lengths=pad_rows(batch.lengths, num_rows),
        features=pad_rows(batch.features, num_rows),
        targets=pad_rows(batch.targets, num_rows),
        known=F.pad(batch.known, (0, 0, 0, num_rows - len(batch.known))),
    )


class SpellingStore(TokenStore):
    """A store whose rows are as long as the longest of their spellings, in the first column."""

    def __init__(self, store: TokenStore, start: int) -> None:
        super().__init__(store.folder)
        ids, offsets = self.column(0)
        self.starts: NDArray[np.int64] = np.append(np.flatnonzero(np.asarray(ids) == start), len(ids))
        """Where each spelling of any row begins, and where the last one ends."""
        self.first: NDArray[np.int64] = np.searchsorted(self.starts, np.asarray(offsets))
        """The first spelling of each row, and the end of those of the last."""
        self._lengths = np.maximum.reduceat(np.diff(self.starts), self.first[:-1])
        self._spelled = ids

    def lengths(self, start: int = 0, end: int | None = None) -> NDArray[np.int64]:
        return self._lengths[start:end]

    def draw(self, rows: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """One spelling of each of these rows."""
        chosen = rng.integers(self.first[rows], self.first[rows + 1])
        return [self._spelled[self.starts[one] : self.starts[one + 1]].astype(np.int64) for one in chosen]


class MoleculeBatches:
    """Training batches; with `has_fixed_shapes`, those of rows of similar length have one shape."""

    def __init__(
        self,
        task: "MoleculeProperties",
        store: SpellingStore,
        *,
        batch_tokens: int,
        seed: int,
        has_fixed_shapes: bool,
    ) -> None:
        self._task, self._store, self._seed, self._has_fixed_shapes = task, store, seed, has_fixed_shapes
        self._sampler = BatchSampler(store, batch_tokens=batch_tokens, seed=seed)

    @property
    def per_epoch(self) -> int:
        return self._sampler.batches_per_epoch

    def batch(self, number: int) -> MoleculeBatch:
        """Batch `number`, counted from 0 through all epochs."""
        rows = self._sampler.rows(number)
        texts = self._store.draw(rows, np.random.default_rng([mix(self._seed, number), _SPELLING]))
        targets = self._task.targets(self._store.sequences(1, rows))
        padding = self._task.tokenizer.pad
        batch = make_molecule_batch(texts, np.zeros((len(rows), 1), np.uint8), targets, padding)
        return pad_molecule_batch(batch, *self._sampler.shape(number), padding) if self._has_fixed_shapes else batch


def split_spellings(ids: NDArray[np.int64], start: int) -> list[NDArray[np.int64]]:
    """The spellings of one row.

    Example:
        >>> [each.tolist() for each in split_spellings(np.array([1, 7, 2, 1, 8, 9, 2]), 1)]
        [[1, 7, 2], [1, 8, 9, 2]]
    """
    return np.split(ids, np.flatnonzero(ids == start)[1:])


class ExportedMolecules(nn.Module):
    """Token ids of the spellings of molecules in, numbers in the units of the data or probabilities out."""

    means: Tensor
    stds: Tensor

    def __init__(self, model: MoleculeModel, means: Sequence[float], stds: Sequence[float]) -> None:
        super().__init__()
        self.model, self.are_labels = model, not means
        self.register_buffer("means", torch.tensor(list(means)))
        self.register_buffer("stds", torch.tensor(list(stds)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        features = torch.zeros_like(input_ids[:, 0, :1], dtype=torch.uint8)
        found = self.model(input_ids.flatten(0, 1), attention_mask.sum(dim=-1).flatten(), features)
        return (found.sigmoid() if self.are_labels else found * self.stds + self.means,)
