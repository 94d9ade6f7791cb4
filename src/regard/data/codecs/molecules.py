"""Molecules to fingerprints and descriptors."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import UInt8

from regard.data.chemistry import descriptor_names, descriptor_values, fingerprint_bits
from regard.data.codecs.codec import Codec


@dataclass(frozen=True)
class MoleculeCodec(Codec):
    """The bytes of three fingerprints and of the descriptors, each a float32; nothing without descriptors."""

    descriptors: tuple[str, ...] = ()
    """Their names, since another version of rdkit may have others."""

    @classmethod
    def fit(cls) -> Self:
        """The codec with the descriptors of the installed rdkit."""
        return cls(descriptor_names())

    def features(self, values: Sequence[str]) -> UInt8[np.ndarray, "molecules bytes"]:
        """The bytes of each molecule."""
        if not self.descriptors:
            return np.zeros((len(values), 0), np.uint8)
        numbers = descriptor_values(values, self.descriptors)
        return np.concatenate([fingerprint_bits(values), np.ascontiguousarray(numbers).view(np.uint8)], axis=1)

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        return self.features(values).tolist()

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The bytes as hexadecimal digits, since a molecule cannot be restored from them."""
        return [bytes(some).hex() for some in ids]

    def to_json(self) -> str:
        return json.dumps({"descriptors": self.descriptors})

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(tuple(json.loads(text)["descriptors"]))
