"""One update of the weights: forward, backward, clip, optimizer, average.

On a GPU the same work is told to the device again and again, and telling it
takes longer than a small model takes to do it. An update is therefore recorded
once for each shape of batch, as a CUDA graph, and replayed. What changes from
step to step (the batch, the rate, the memory of the average, the seed) lies in
tensors that are filled before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import DeviceError
from regard.logging import log_warning
from regard.nn.float8 import has_float8
from regard.nn.losses import keep_from_compiler
from regard.tasks.objective import Objective
from regard.tasks.task import Batch, RunningTask, Task, moved
from regard.training.average import WeightAverage
from regard.training.precision import Hardware, is_out_of_memory
from regard.training.settings import TrainConfig

_MOST_GRAPHS = 64
"""Each holds memory: beyond so many shapes of batch the rest is done unrecorded."""


@dataclass
class _Recorded:
    """What a graph reads, and, once it is recorded, the graph and where it leaves the loss."""

    inputs: list[Tensor | None]
    numbers: Tensor
    """How many targets there are, and the memory of the average."""
    graph: torch.cuda.CUDAGraph | None = None
    loss: Tensor | None = None


class Updater:
    """Makes updates. It knows no task, and no schedule."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        optimizer: Any,
        average: WeightAverage,
        config: TrainConfig,
        hardware: Hardware,
        *,
        is_compiled: bool = False,
    ) -> None:
        self.model, self.task, self.optimizer, self.average = model, task, optimizer, average
        self.config, self.hardware = config, hardware
        self.num_pieces = 1
        """In how many parts a batch is read, so that it fits into memory."""
        self.carried: dict[int, list[Tensor]] = {}
        """Where the state is carried: what each part of the next batch goes on from."""
        self._objective = make_objective(config, hardware)
        self._loss = task.loss
        if is_compiled:
            keep_from_compiler()
            self._loss = torch.compile(task.loss, dynamic=None)
        self._graphs: dict[tuple, _Recorded] = {}
        self._can_record = can_record(model, config, hardware)
        self._pool: Any = None
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros((), device=hardware.device) if self._can_record else 0.0
            group["capturable"] = self._can_record

    def update(self, batches: Sequence[Batch], *, rate: float, decay: float, progress: float = 1.0) -> Tensor:
        """Learn from `batches` as from one; the loss summed over all of their targets.

        `decay` is the memory of the moving average, `progress` the share of the run that is over. All
        randomness comes from the generator as it stands.
        """
        self.model.train()
        self._set_rate(rate, progress)
        if self._can_record and self.num_pieces == 1:
            return self._replayed(batches[0], decay)
        return self._eager(batches, decay)

    def rehearse(self, batch: Batch) -> None:
        """Take a step as far as the gradients, and forget them: what a step takes can be measured so."""
        self.model.train()
        state = torch.get_rng_state()
        self._backward(moved(batch, self.hardware.device), batch.num_targets)
        self.optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(state)
        self.carried.clear()

    def _eager(self, batches: Sequence[Batch], decay: float) -> Tensor:
        while True:
            try:
                total = self._gradients(batches)
                break
            except (RuntimeError, torch.OutOfMemoryError) as error:
                if not (is_out_of_memory(error) and self.config.auto_batch) or not self._halve(batches):
                    raise
        self._apply(decay)
        return total

    def _halve(self, batches: Sequence[Batch]) -> bool:
        """Read each batch in twice as many parts from now on, unless there is nothing left to part."""
        self.optimizer.zero_grad(set_to_none=True)
        most = max(_num_rows(batch) for batch in batches)
        if 2 * self.num_pieces > most:
            return False
        self.num_pieces *= 2
        self.carried.clear()  # the rows of a part are others now, and start anew
        if self.hardware.device.type == "cuda":
            self._graphs.clear()
            torch.cuda.empty_cache()
        log_warning(
            f"out of memory: each batch is read in {self.num_pieces} parts from now on, and learned from as a whole"
        )
        return True

    def _gradients(self, batches: Sequence[Batch]) -> Tensor:
        num_targets = sum(batch.num_targets for batch in batches)
        total = torch.zeros((), device=self.hardware.device)
        for batch in batches:
            for number, piece in enumerate(_pieces(batch, self.num_pieces)):
                total += self._backward(moved(piece, self.hardware.device), num_targets, part=number)
        return total

    def _backward(self, batch: Batch, num_targets: int | Tensor, *, part: int = 0) -> Tensor:
        with self.hardware.autocast():
            if self.config.carry_state:
                loss = self._running_loss(batch, part)
            else:
                loss = self._loss(self.model, batch, self._objective)
        (loss / num_targets).backward()
        return loss.detach()

    def _running_loss(self, batch: Batch, part: int) -> Tensor:
        assert isinstance(self.task, RunningTask), "settings are resolved before training"
        before = self.carried.get(part)
        loss, self.carried[part] = self.task.running_loss(self.model, batch, before, self._objective)
        return loss

    def _apply(self, decay: float | Tensor) -> None:
        if self.config.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(self.model, decay)

    def _set_rate(self, rate: float, progress: float) -> None:
        for group in self.optimizer.param_groups:
            own = rate * group.get("share", 1.0) if progress >= group.get("opens", 0.0) else 0.0
            if self._can_record:
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def _replayed(self, batch: Batch, decay: float) -> Tensor:
        """The first batch of a shape is read as ever, from where later ones will be put; the second is recorded."""
        tensors = moved(batch, self.hardware.device).tensors()
        key = tuple(None if tensor is None else tuple(tensor.shape) for tensor in tensors)
        recorded = self._graphs.get(key)
        if recorded is None:
            if len(self._graphs) >= _MOST_GRAPHS:
                return self._eager([batch], decay)
            numbers = torch.zeros(2, device=self.hardware.device)
            recorded = _Recorded([None if tensor is None else tensor.clone() for tensor in tensors], numbers)
            self._graphs[key] = recorded
            return self._eager([batch.with_tensors(recorded.inputs)], decay)
        for own, new in zip(recorded.inputs, tensors, strict=True):
            if own is not None and new is not None:
                own.copy_(new, non_blocking=True)
        numbers = torch.tensor([batch.num_targets, decay], dtype=torch.float32)
        recorded.numbers.copy_(numbers.pin_memory(), non_blocking=True)
        if recorded.graph is None:
            self._record(recorded, batch)
        assert recorded.graph is not None
        assert recorded.loss is not None
        recorded.graph.replay()
        return recorded.loss.clone()

    def _record(self, recorded: _Recorded, batch: Batch) -> None:
        device, graph = self.hardware.device, torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self.optimizer.zero_grad(set_to_none=True)
        state = torch.cuda.get_rng_state(device)
        torch.cuda.synchronize(device)
        try:
            # Other threads, which make the next batch, may use the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                recorded.loss = self._backward(batch.with_tensors(recorded.inputs), recorded.numbers[0])
                self._apply(recorded.numbers[1])
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            # The generator of the device may be unusable now, so nothing can go on from here.
            reason = str(error).splitlines()[0]
            raise DeviceError(f"the work of a step cannot be recorded: {reason}; set train.record to false") from error
        torch.cuda.set_rng_state(state, device)
        recorded.graph = graph


def make_objective(config: TrainConfig, hardware: Hardware) -> Objective:
    """What training asks of a model."""
    return Objective(
        label_smoothing=config.label_smoothing or 0.0,
        consistency=config.consistency,
        contrast=config.contrast,
        activation_penalty=config.activation_penalty,
        change_penalty=config.change_penalty,
        is_float8=config.float8 and has_float8(hardware.device),
    )


def can_record(model: nn.Module, config: TrainConfig, hardware: Hardware) -> bool:
    """Whether updates are to be recorded; not those of recurrent networks.

    Packing their padded rows waits for the device, and what they carry from window to window is no part of a record.
    """
    is_recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    return hardware.device.type == "cuda" and config.record and config.accumulate == 1 and not is_recurrent


def _num_rows(batch: Batch) -> int:
    return next(tensor.size(0) for tensor in batch.tensors() if tensor is not None)


def _pieces(batch: Batch, number: int) -> list[Batch]:
    """The rows of a batch in so many parts, or fewer where there are fewer rows."""
    if number == 1:
        return [batch]
    size = -(-_num_rows(batch) // number)
    starts = range(0, _num_rows(batch), size)
    return [
        batch.with_tensors([None if tensor is None else tensor[start : start + size] for tensor in batch.tensors()])
        for start in starts
    ]
