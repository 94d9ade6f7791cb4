"""Data-parallel training: several processes that train one model as one process would.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (2020). https://arxiv.org/abs/2006.15704

The seed and the number of a step determine its batch, so each process computes the
same one and takes its own rows. The loss of these rows is divided by the targets of the
whole batch, and the gradients are summed: the update is that of one process.

Gradients are summed by `all_reduce` in buckets after the backward pass, and not by
`DistributedDataParallel`, which starts to communicate within it: here a process that runs
out of memory can split its rows while the others wait, accumulated batches are sent once, and
losses may call any method of a model.

A process is known by its rank. Rank 0 writes the run folder, and decides what depends
on the clock; where several processes keep parts of a model, each writes its part of a checkpoint.
The processes are those of `torchrun`, or those that `regard.runs.launch` starts.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.errors import ConfigError, DeviceError, ProcessError
from regard.logging import logger

Result = TypeVar("Result")
Input = TypeVar("Input")

_TIMEOUT = timedelta(hours=2)
"""How long a process waits for another one that is alive. The others notice at once when a process ends."""
_LAST_WORD_SECONDS = 1.0
"""torchrun stops the other processes when one ends: the one with the error has to print it first."""
_BUCKET_BYTES = 25 * 2**20
"""Gradients are sent in parts of this size, the default of DistributedDataParallel."""
_SIGNS_OF_A_LOST_PEER = ("gloo", "nccl", "connection", "peer", "timed out", "socket")


@dataclass(frozen=True)
class Processes:
    """The processes that train together, as seen by one of them. A world of one computes nothing differently."""

    rank: int = 0
    size: int = 1
    tensor_parallel: int = 1
    """The number of consecutive ranks that share the layers of one replica of the model, and compute the same rows."""
    mesh: Any = None
    """Under tensor parallelism: the device mesh of replicas by ranks of a replica."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes and decides."""
        return self.rank == 0

    @property
    def num_replicas(self) -> int:
        """Copies of the model, each of which computes rows of its own."""
        return self.size // self.tensor_parallel

    @property
    def replica(self) -> int:
        """The number of the replica that this process belongs to."""
        return self.rank // self.tensor_parallel

    @property
    def _peers_of_rows(self) -> Any:
        """The group of those that have the same weights as this process, one of each replica; None are all."""
        return None if self.mesh is None else self.mesh.get_group(REPLICAS)

    def agree(self, value: float) -> float:
        """The value of rank 0, for what every process must decide alike."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        with _peers():
            dist.broadcast(shared, src=0)
        return float(shared)

    def any(self, is_true: bool) -> bool:
        """Whether it is true in some process."""
        if self.size == 1:
            return is_true
        number = torch.tensor([float(is_true)], dtype=torch.float64)
        with _peers():
            dist.all_reduce(number)
        return bool(number > 0)

    def from_first(self, compute: Callable[[], Result]) -> Result:
        """What rank 0 computes; where that raises an error, the others end as well."""
        if self.size == 1:
            return compute()
        found: list[Any] = [None]
        if self.is_first:
            try:
                found = [(True, compute())]
            except BaseException:
                self._share([(False, None)])
                raise
        found = self._share(found)
        is_computed, result = found[0]
        if not is_computed:
            raise ProcessError(_ENDED)
        return result

    def each(self, compute: Callable[[], Result]) -> Result:
        """What this process computes; where one of them raises an error, the others end as well."""
        try:
            result = compute()
        except BaseException:
            self.any(True)
            raise
        if self.any(False):
            raise ProcessError(_ENDED)
        return result

    def _share(self, values: list[Any]) -> list[Any]:
        with _peers():
            dist.broadcast_object_list(values, src=0)
        return values

    def gather(self, value: Input) -> list[Input]:
        """The values of all processes, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        with _peers():
            dist.all_gather_object(found, value)
        return found

    def map(self, compute: Callable[[Sequence[Input]], Sequence[Result]], items: Sequence[Input]) -> list[Result]:
        """`compute` of all items, each of which is computed by one process; the order is kept."""
        if self.size == 1:
            return list(compute(items))
        own = list(items[self.rank :: self.size])
        found = self.gather(list(compute(own)) if own else [])
        return [found[number % self.size][number // self.size] for number in range(len(items))]

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            self.any(False)

    def share_of(self, num_rows: int) -> tuple[int, int] | None:
        """The first of this replica's rows of a batch, and the one after its last.

        None where a batch has fewer rows than there are replicas: each then computes all of it, as its part of a mean.
        """
        if self.num_replicas == 1 or num_rows < self.num_replicas:
            return None
        first, last = (num_rows * number // self.num_replicas for number in (self.replica, self.replica + 1))
        return first, last

    def sum_gradients(self, parameters: Sequence[nn.Parameter], total: Tensor) -> Tensor:
        """Sum the gradients of all replicas in place; returns the sum of `total`.

        A parameter that no process has used keeps no gradient, as in one process: an optimizer does not update it.
        """
        if self.num_replicas == 1:
            return total
        group, trained = self._peers_of_rows, [parameter for parameter in parameters if parameter.requires_grad]
        is_used = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.uint8)
        total = total.clone()
        with _peers():
            works = [dist.all_reduce(total, group=group, async_op=True)]
            if trained:
                dist.all_reduce(is_used, dist.ReduceOp.MAX, group=group)
            used = [parameter for parameter, flag in zip(trained, is_used.tolist(), strict=True) if flag]
            sums: list[tuple[list[nn.Parameter], Tensor]] = []
            for bucket in _buckets(used):
                flat = torch.cat([own_part(_gradient(parameter)).reshape(-1) for parameter in bucket])
                works.append(dist.all_reduce(flat, group=group, async_op=True))
                sums.append((bucket, flat))
            for work in works:
                assert work is not None, "this process is in the group"
                work.wait()
        for bucket, flat in sums:
            _take_gradients(bucket, flat)
        return total

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, which is the same in each to the last bit."""
        total = tensor.clone()
        if self.size > 1:
            with _peers():
                dist.all_reduce(total)
        return total

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over replicas, through which gradients are computed; each must call it alike."""
        return _Sum.apply(tensor, self._peers_of_rows)

    def share_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors of rank 0, which have the same names and shapes everywhere."""
        if self.size == 1:
            return
        with _peers(), torch.no_grad():
            for name in sorted(tensors):
                shared = tensors[name].detach().contiguous()
                dist.broadcast(shared, src=0)
                tensors[name].copy_(shared)


class _Sum(torch.autograd.Function):
    """The gradient of a sum that all processes of a group use is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        total, ctx.group = tensor.clone(), group
        with _peers():
            dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  one gradient
        return _Sum.forward(ctx, gradient, ctx.group), None


REPLICAS, SHARED = "replicas", "shared"
"""The dimensions of the mesh: replicas of the model, and the processes that share the layers of one."""
ALONE = Processes()
_ENDED = "another process of this run has ended"
_current: list[Processes] = []
"""Those that this process has joined."""


def processes() -> Processes:
    """The processes of this run; `ALONE` outside of `joined`."""
    return _current[-1] if _current else ALONE


def started_processes() -> Processes:
    """The rank of this process and the number of processes that were started with it, by its environment."""
    try:
        found = Processes(
            *(int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        )
    except ValueError:
        raise ConfigError("RANK and WORLD_SIZE of the environment are numbers, as torchrun sets them") from None
    return found if found.size > 1 else ALONE


def is_restarted() -> bool:
    """Whether torchrun has started this process again after one has failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def may_restart() -> bool:
    """Whether torchrun starts the processes again where one fails."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


@contextmanager
def joined(device: str = "auto", *, is_group_of_one: bool = False, tensor_parallel: int = 1) -> Iterator[Processes]:
    """Join the processes that torchrun, or another launcher with the same environment, has started.

    Ranks above 0 show warnings only, with their rank. `device` is the setting: on GPUs, each process has its own.
    Sharding needs a group also for one process: `is_group_of_one`. `tensor_parallel` is the number of consecutive
    processes that share the layers of one replica of the model.
    """
    started = started_processes()
    if tensor_parallel < 1 or started.size % tensor_parallel:
        raise ConfigError(
            f"train.tensor_parallel must divide the number of processes, got {tensor_parallel} and {started.size}: "
            f"start {max(1, tensor_parallel)} or a multiple of it, or set train.tensor_parallel to 1"
        )
    if dist.is_initialized() or (started.size == 1 and not is_group_of_one):
        yield processes()
        return
    if started.size == 1:
        backend = "cpu:gloo,cuda:nccl" if device != "cpu" and torch.cuda.is_available() else "gloo"
        show_error = sys.excepthook  # torch replaces it by one that names the rank
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]  documented as public
        sys.excepthook = show_error
        try:
            yield ALONE
        finally:
            dist.destroy_process_group()
        return
    local_rank = int(os.environ.get("LOCAL_RANK", str(started.rank)))
    backend = "gloo"
    if device != "cpu" and torch.cuda.is_available():
        _use_gpu(device, local_rank)
        backend = "cpu:gloo,cuda:nccl"
    with _peers():
        store, rank, size = next(dist.rendezvous("env://", timeout=_TIMEOUT))  # pyright: ignore[reportPrivateImportUsage]  documented as public
        # Processes that torchrun starts again must not find each other by the addresses of those that have ended.
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"start-{start}", store)  # pyright: ignore[reportPrivateImportUsage]  documented as public
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    marker = _RankFilter(started.rank)
    logger.addFilter(marker)
    try:
        if tensor_parallel > 1:
            started = _divided(started, tensor_parallel, "cpu" if backend == "gloo" else "cuda")
        _current.append(started)
        yield started
    except ProcessError:
        time.sleep(_LAST_WORD_SECONDS)
        raise
    finally:
        logger.removeFilter(marker)
        _current.clear()
        dist.destroy_process_group()


def _divided(started: Processes, tensor_parallel: int, device: str) -> Processes:
    """The same processes as replicas of a model, and the processes of each."""
    from torch.distributed.device_mesh import init_device_mesh

    shape = started.size // tensor_parallel, tensor_parallel
    with _peers():
        mesh = init_device_mesh(device, shape, mesh_dim_names=(REPLICAS, SHARED))
    return replace(started, tensor_parallel=tensor_parallel, mesh=mesh)


def _use_gpu(device: str, local_rank: int) -> None:
    if ":" in device:
        raise ConfigError(f"several processes use one GPU each: train.device must be cuda or cpu, got {device}")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise DeviceError(
            f"each process needs a GPU of its own: process {local_rank + 1} of this machine has none of its {count}"
        )
    torch.cuda.set_device(local_rank)


class _RankFilter(logging.Filter):
    """Drops what every process would say, and names the rank in warnings of others than rank 0."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        if self._rank == 0:
            return True
        if record.levelno < logging.WARNING:
            return False
        record.msg, record.args = f"rank {self._rank}: {record.getMessage()}", ()
        return True


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether an error of torch.distributed means that another process has ended."""
    text = str(error).lower()
    return not isinstance(error, torch.OutOfMemoryError) and any(sign in text for sign in _SIGNS_OF_A_LOST_PEER)


@contextmanager
def _peers() -> Iterator[None]:
    """An error of the communication is one of this package."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        raise ProcessError(_ENDED) from error


def own_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor that is spread over several; other tensors as they are."""
    spread: Any = tensor  # a DTensor, whose import takes a second
    return spread.to_local() if hasattr(tensor, "to_local") else tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor that is spread over several processes as a whole, which each must ask for; others as they are."""
    spread: Any = tensor
    return spread.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _take_gradients(bucket: Sequence[nn.Parameter], flat: Tensor) -> None:
    """Give parameters their gradients, which follow each other in `flat`."""
    sizes = [own_part(parameter).numel() for parameter in bucket]
    for parameter, part in zip(bucket, flat.split(sizes), strict=True):
        if hasattr(parameter, "to_local"):
            parameter.grad = _gradient(parameter)
            own_part(parameter.grad).copy_(part.view_as(own_part(parameter)))
        else:
            parameter.grad = part.view_as(parameter)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters of one type and device in parts of limited size, in the same order in each process."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        is_other = bucket and (bucket[0].dtype, bucket[0].device) != (parameter.dtype, parameter.device)
        if bucket and (is_other or size >= _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += own_part(parameter).numel() * parameter.element_size()
    if bucket:
        yield bucket
