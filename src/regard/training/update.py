"""One update of the weights: forward, backward, clipping, optimizer, moving average.

On a GPU, launching the kernels of a small model takes longer than running them.
An update is therefore captured as a CUDA graph, once for each shape of batch, and
replayed. What changes from step to step (the batch, the learning rate, the decay
of the average, the seed) is in tensors that are filled before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import DeviceError
from regard.logging import log_warning
from regard.nn.blocks import has_dropout
from regard.nn.losses import exclude_from_compile
from regard.nn.norms import BatchNorm
from regard.nn.precision import has_float8
from regard.tasks.task import Batch, Objective, Task, to_device
from regard.training.distributed import processes
from regard.training.ema import WeightAverage
from regard.training.optimizers import OPTIMIZER_TRAITS
from regard.training.precision import Hardware, is_out_of_memory
from regard.training.settings import ResolvedSettings, TrainConfig

if TYPE_CHECKING:
    from regard.training.sharding import ShardedModel

_MOST_GRAPHS = 64
"""Each graph uses memory: further shapes of batches are computed without one."""


@dataclass
class _Captured:
    """The inputs of a graph and, once it is captured, the graph and its loss."""

    inputs: list[list[Tensor | None]]
    """For each accumulated batch."""
    numbers: Tensor
    """The number of targets, and the decay of the average."""
    graph: torch.cuda.CUDAGraph | None = None
    loss: Tensor | None = None


class Updater:
    """Computes updates."""

    def __init__(
        self,
        model: nn.Module,
        task: Task[Any],
        optimizer: Any,
        ema: WeightAverage,
        settings: ResolvedSettings,
        hardware: Hardware,
        *,
        is_compiled: bool = False,
        sharded: "ShardedModel | None" = None,
    ) -> None:
        self.model, self.task, self.optimizer, self.ema = model, task, optimizer, ema
        self.config, self.hardware = settings.train, hardware
        self.num_pieces = 1
        """The number of parts that a batch is split into, to fit into memory."""
        self.carried: dict[int, list[Tensor]] = {}
        """With a carried state: the state that each part of the next batch continues."""
        self._processes = processes()
        self._batch_norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        self._objective = make_objective(settings.train, hardware)
        self._sharded = sharded
        self._loss = sharded or task.loss
        if is_compiled:
            exclude_from_compile()
            self._loss = torch.compile(task.loss, dynamic=None)
        self._graphs: dict[tuple, _Captured] = {}
        self._has_graphs = can_use_cuda_graphs(settings, hardware, model)
        self._pool: Any = None
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros((), device=hardware.device) if self._has_graphs else 0.0
            group["capturable"] = self._has_graphs

    def update(self, batches: Sequence[Batch], *, learning_rate: float, decay: float, progress: float = 1.0) -> Tensor:
        """One update from `batches` as if they were one; returns the loss summed over all of their targets.

        Args:
            batches: The accumulated batches.
            learning_rate: Before the multipliers of single weights.
            decay: Of the moving average.
            progress: The share of the run that is over, for gradual unfreezing.
        """
        self.model.train()
        self._set_learning_rate(learning_rate, progress)
        if self._has_graphs and self.num_pieces == 1:
            return self._replay(batches, decay)
        return self._eager(batches, decay)

    def dry_run(self, batch: Batch) -> None:
        """Compute gradients and discard them, to measure the time and memory of a step."""
        self.model.train()
        state = torch.get_rng_state()
        self._backward(to_device(batch, self.hardware.device), batch.num_targets)
        self.optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(state)
        self.carried.clear()

    def reset(self) -> None:
        """Forget what refers to a training state that is replaced: the optimizer's, CUDA graphs, a carried state."""
        for optimizer in getattr(self.optimizer, "optimizers", [self.optimizer]):
            optimizer.state.clear()
        self._graphs.clear()
        self.carried.clear()

    def _eager(self, batches: Sequence[Batch], decay: float) -> Tensor:
        while True:
            try:
                total = self._local_gradients(batches)
                break
            except (RuntimeError, torch.OutOfMemoryError) as error:
                if not (is_out_of_memory(error) and self._may_split) or not self._halve(batches):
                    raise
        total = self._sum_over_processes(total)
        self._apply(decay)
        return total

    @property
    def _may_split(self) -> bool:
        """Whether batches may be split; not where processes communicate within a forward and backward pass."""
        is_alone = self._sharded is None and not (self._processes.size > 1 and self._batch_norms)
        return self.config.auto_batch and is_alone

    def _halve(self, batches: Sequence[Batch]) -> bool:
        """Split each batch into twice as many parts from now on; False if its rows cannot be split further."""
        self.optimizer.zero_grad(set_to_none=True)
        most = max(_num_rows(self._own_rows(batch)[0]) for batch in batches)
        if 2 * self.num_pieces > most:
            return False
        self.num_pieces *= 2
        self.carried.clear()  # the parts have other rows now
        if self.hardware.device.type == "cuda":
            self._graphs.clear()
            torch.cuda.empty_cache()
        log_warning(
            f"out of memory: each batch is split into {self.num_pieces} parts from now on, with accumulated gradients"
        )
        return True

    def gradients(self, batches: Sequence[Batch]) -> Tensor:
        """Add the gradients of `batches`, as if they were one, to those of the weights; returns the summed loss."""
        return self._sum_over_processes(self._local_gradients(batches))

    def _sum_over_processes(self, total: Tensor) -> Tensor:
        """Sum the gradients, and return the sum of `total`; those of sharded weights are summed in backward."""
        if self._sharded is not None and self._sharded.sums_gradients:
            return self._processes.sum_gradients([], total)
        if self._sharded is not None:
            self._sharded.settle_gradients()
        return self._processes.sum_gradients(list(self.model.parameters()), total)

    def _local_gradients(self, batches: Sequence[Batch]) -> Tensor:
        """The gradients of this process's rows: the number of targets is that of all rows."""
        num_targets = sum(batch.num_targets for batch in batches)
        total = torch.zeros((), device=self.hardware.device)
        for batch in batches:
            own, share = self._own_rows(batch)
            for number, piece in enumerate(split_batch(own, self.num_pieces)):
                piece = to_device(piece, self.hardware.device)
                total += share * self._backward(piece, num_targets if share == 1 else num_targets / share, part=number)
        return total

    def _own_rows(self, batch: Batch) -> tuple[Batch, float]:
        """The rows of this process, and their share of the loss where other processes compute the same rows."""
        rows = self._processes.share_of(_num_rows(batch))
        for norm in self._batch_norms:
            norm.sum_over_processes = None if rows is None else self._processes.add
        if rows is None:
            return batch, 1 / self._processes.num_replicas
        return _take_rows(batch, *rows), 1.0

    def _backward(self, batch: Batch, num_targets: float | Tensor, *, part: int = 0) -> Tensor:
        with self.hardware.autocast():
            if self.task.carries_state:
                loss = self._stateful_loss(batch, part)
            else:
                loss = self._loss(self.model, batch, self._objective)
        (loss / num_targets).backward()
        return loss.detach()

    def _stateful_loss(self, batch: Batch, part: int) -> Tensor:
        task: Any = self.task
        loss, self.carried[part] = task.stateful_loss(self.model, batch, self.carried.get(part), self._objective)
        return loss

    def _apply(self, decay: float | Tensor) -> None:
        if self.config.clip_norm and self._sharded is not None:
            self._sharded.clip_gradients(self.config.clip_norm)
        elif self.config.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.ema.update(self.model, decay)

    def _set_learning_rate(self, rate: float, progress: float) -> None:
        for group in self.optimizer.param_groups:
            own = rate * group.get("lr_scale", 1.0) if progress >= group.get("unfreeze_at", 0.0) else 0.0
            if self._has_graphs:
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def _replay(self, batches: Sequence[Batch], decay: float) -> Tensor:
        """The first batches of a shape are computed eagerly, from the inputs of a graph; the second are captured."""
        tensors = [to_device(batch, self.hardware.device).tensors() for batch in batches]
        key = tuple(None if tensor is None else tuple(tensor.shape) for some in tensors for tensor in some)
        captured = self._graphs.get(key)
        if captured is None:
            if len(self._graphs) >= _MOST_GRAPHS:
                return self._eager(batches, decay)
            numbers = torch.zeros(2, device=self.hardware.device)
            inputs = [[None if tensor is None else tensor.clone() for tensor in some] for some in tensors]
            captured = self._graphs[key] = _Captured(inputs, numbers)
            return self._eager(_with_inputs(batches, inputs), decay)
        for own, new in zip(chain(*captured.inputs), chain(*tensors), strict=True):
            if own is not None and new is not None:
                own.copy_(new, non_blocking=True)
        num_targets = sum(batch.num_targets for batch in batches)
        numbers = torch.tensor([num_targets, decay], dtype=torch.float32)
        captured.numbers.copy_(numbers.pin_memory(), non_blocking=True)
        if captured.graph is None:
            self._capture(captured, batches)
        assert captured.graph is not None
        assert captured.loss is not None
        captured.graph.replay()
        return captured.loss.clone()

    def _capture(self, captured: _Captured, batches: Sequence[Batch]) -> None:
        device, graph = self.hardware.device, torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self.optimizer.zero_grad(set_to_none=True)
        state = torch.cuda.get_rng_state(device)
        torch.cuda.synchronize(device)
        try:
            # The thread that makes the next batch may use the device at the same time.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                inputs = _with_inputs(batches, captured.inputs)
                losses = [self._backward(batch, captured.numbers[0]) for batch in inputs]
                captured.loss = torch.stack(losses).sum()
                self._apply(captured.numbers[1])
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            # The random generator of the device may be unusable now.
            reason = str(error).splitlines()[0]
            raise DeviceError(
                f"a training step cannot be captured as a CUDA graph: {reason}; set train.cuda_graphs to false"
            ) from error
        torch.cuda.set_rng_state(state, device)
        captured.graph = graph


def make_objective(config: TrainConfig, hardware: Hardware) -> Objective:
    """The terms of the loss."""
    is_float8 = config.float8 and has_float8(hardware.device)
    return Objective(label_smoothing=config.label_smoothing, rdrop=config.rdrop, is_float8=is_float8)


def can_use_cuda_graphs(settings: ResolvedSettings, hardware: Hardware, model: nn.Module) -> bool:
    """Whether updates are captured as CUDA graphs."""
    config = settings.train
    is_possible = config.cuda_graphs and settings.model.can_use_cuda_graphs
    # Settings that are not resolved have no optimizer: the caller brings its own.
    traits = OPTIMIZER_TRAITS.get(config.optimizer)
    is_possible = is_possible and (traits is None or traits.is_capturable)
    is_possible = is_possible and processes().size == 1  # gradients are summed between backward and optimizer
    is_possible = is_possible and config.sharding == "none"
    # What is computed again needs the same random numbers, whose generator a graph cannot set back.
    is_possible = is_possible and not (config.activation_checkpointing and has_dropout(model))
    return hardware.device.type == "cuda" and is_possible


def _with_inputs(batches: Sequence[Batch], inputs: Sequence[list[Tensor | None]]) -> list[Batch]:
    """The batches with other tensors."""
    return [batch.with_tensors(own) for batch, own in zip(batches, inputs, strict=True)]


def _num_rows(batch: Batch) -> int:
    return next(tensor.size(0) for tensor in batch.tensors() if tensor is not None)


def split_batch(batch: Batch, number: int) -> list[Batch]:
    """The rows of a batch in `number` parts, or fewer where there are fewer rows."""
    if number == 1:
        return [batch]
    size = -(-_num_rows(batch) // number)
    return [_take_rows(batch, start, start + size) for start in range(0, _num_rows(batch), size)]


def _take_rows(batch: Batch, first: int, last: int) -> Batch:
    return batch.with_tensors([None if tensor is None else tensor[first:last] for tensor in batch.tensors()])
