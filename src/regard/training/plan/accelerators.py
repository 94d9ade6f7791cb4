"""Devices to plan for: what their data sheets state, and which share of it training reaches.

NVIDIA, "H200 Tensor Core GPU" data sheet (2024); "H100 Tensor Core GPU" data sheet (2023), the SXM form of both.
NVIDIA, "A100 Tensor Core GPU" data sheet (2021), 80 GB, SXM.
NVIDIA, "Ada GPU Architecture" (2023), appendix A: RTX 4090.

Rates are those of dense matrices, with sums in float32. The memory is what PyTorch
reports, which is a little less than the name says. The shares are from kernels that
were timed in `benchmarks/` (`docs/scale.md`); a device that has not been measured has
those of the one that it resembles most, and says so.
"""

import os
from dataclasses import dataclass, replace
from typing import Literal

from regard.errors import ConfigError
from regard.settings import nearest

Product = Literal["float32", "bfloat16"]
"""The precision of matrix products."""

_GIB, _GB, _TERA = 2**30, 1e9, 1e12


@dataclass(frozen=True)
class Accelerator:
    """A kind of device, and how devices of this kind are connected."""

    name: str
    title: str
    memory: int
    """Bytes that PyTorch reports as the total."""
    reserved: int
    """Bytes that are not for tensors: the context, libraries, and gaps between blocks."""
    bandwidth: float
    """Bytes a second to and from memory."""
    flops: dict[Product, float]
    """Operations a second of products of dense matrices, by precision."""
    product_share: float
    """The share of `flops` that large products reach."""
    attention_share: float
    """The share of `flops` that attention reaches on long sequences, where a causal mask halves the operations."""
    attention_half: int
    """Positions at which attention reaches half of that share."""
    bandwidth_share: float
    """The share of `bandwidth` that other operations reach."""
    launch: float
    """Seconds that an operation takes at least."""
    link: float
    """Bytes a second from a device to others in its node, in each direction."""
    network: float
    """Bytes a second from a device to other nodes, in each direction."""
    node_size: int
    """Devices of a node."""
    measured: str
    """Where the shares are from."""

    @property
    def usable(self) -> int:
        """Bytes for tensors."""
        return self.memory - self.reserved

    def attention_share_at(self, length: int) -> float:
        """The share of `flops` that attention reaches on sequences of so many positions."""
        return self.attention_share * length / (length + self.attention_half)

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    def with_network(self, gigabits: float) -> "Accelerator":
        """The same devices, with a network of so many gigabits a second for each."""
        if gigabits <= 0:
            raise ConfigError(f"a network must have more than 0 Gb/s for each device, got {gigabits:g}")
        return replace(self, network=gigabits * 1e9 / 8)


_H200 = Accelerator(
    name="h200",
    title="NVIDIA H200 SXM",
    memory=int(139.8 * _GIB),
    reserved=2 * _GIB,
    bandwidth=4.8e12,
    flops={"bfloat16": 989.4 * _TERA, "float32": 67.0 * _TERA},
    product_share=0.75,
    attention_share=0.45,
    attention_half=750,
    bandwidth_share=0.5,
    launch=3e-6,
    link=450 * _GB,
    network=50 * _GB,
    node_size=8,
    measured="shares fitted to training steps of GPT-2 shapes on an H200 (docs/scale.md)",
)
_RESEMBLES = "not measured: the shares are those of the H200"

ACCELERATORS: dict[str, Accelerator] = {
    each.name: each
    for each in (
        _H200,
        replace(_H200, name="h100", title="NVIDIA H100 SXM", memory=int(79.1 * _GIB), bandwidth=3.35e12,
                measured=_RESEMBLES),
        replace(_H200, name="a100", title="NVIDIA A100 SXM, 80 GB", memory=int(79.2 * _GIB), bandwidth=2.039e12,
                flops={"bfloat16": 312.0 * _TERA, "float32": 19.5 * _TERA}, link=300 * _GB, network=25 * _GB,
                measured=_RESEMBLES),
        replace(_H200, name="rtx4090", title="NVIDIA RTX 4090", memory=int(23.6 * _GIB), reserved=_GIB,
                bandwidth=1.008e12, flops={"bfloat16": 165.2 * _TERA, "float32": 82.6 * _TERA}, link=32 * _GB,
                network=3.125 * _GB, measured=_RESEMBLES),
        Accelerator(
            name="cpu",
            title="one core of an x86 server with AVX2",
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            reserved=_GIB,
            bandwidth=15 * _GB,
            flops={"float32": 100e9, "bfloat16": 50e9},
            product_share=0.8,
            attention_share=0.4,
            attention_half=0,
            bandwidth_share=0.7,
            launch=5e-6,
            link=5 * _GB,
            network=0.125 * _GB,
            node_size=os.cpu_count() or 1,
            measured="not measured: the shares are estimates",
        ),
    )
}  # fmt: skip
"""By name. The network is that of a usual cluster: 400 Gb/s for each H100 or H200, 200 for each A100, 25 for each RTX
4090, which has PCIe inside a node."""


def find_accelerator(name: str) -> Accelerator:
    """The entry called `name`; an unknown one is a `ConfigError` with the nearest name."""
    if name not in ACCELERATORS:
        raise ConfigError(f"no hardware is called {name!r}{nearest(name, list(ACCELERATORS))}")
    return ACCELERATORS[name]
