"""Files of tensors that are written in a thread while training continues."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

Write = Callable[[dict[str, Tensor]], None]
"""Writes copies of tensors."""


class BackgroundWriter:
    """Copies tensors, and writes the copies in a thread.

    Training waits for the copy alone. Of each kind of file at most one is being written: the next one waits for it,
    and reuses the memory of its copy. Files are written in the order of the calls, so that a checkpoint is never newer
    than the weights that it mentions. Once one cannot be written, no other is, and the next call raises its error.

    Example:
        with BackgroundWriter() as writer:
            writer.submit("weights", weights_of(model), lambda copies: write_tensors(path, copies, {}))
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="regard-writer")
        self._pending: dict[str, Future[None]] = {}
        self._copies: dict[str, dict[str, Tensor]] = {}
        self._has_failed = False

    def submit(self, kind: str, tensors: Mapping[str, Tensor], write: Write) -> None:
        """Copy `tensors`, and have `write` called with the copies."""
        self.raise_error()
        self.wait_for(kind)
        copies = self._copy(kind, tensors)
        self._pending[kind] = self._thread.submit(self._write, write, copies)

    def raise_error(self) -> None:
        """Raise the error of a file that could not be written; files that are being written are not waited for."""
        for future in self._pending.values():
            if future.done():
                future.result()

    def wait_for(self, kind: str) -> None:
        """Wait until the last file of a kind is written, and raise the error if it could not be."""
        if kind in self._pending:
            self._pending[kind].result()

    def wait(self) -> None:
        """Wait until everything is written, and raise the error if something could not be."""
        for future in list(self._pending.values()):
            future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        if error is None:  # otherwise that is what ended training
            self.wait()

    def _write(self, write: Write, copies: dict[str, Tensor]) -> None:
        if self._has_failed:
            return
        try:
            write(copies)
        except BaseException:
            self._has_failed = True
            raise

    @torch.no_grad()
    def _copy(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        before, copies = self._copies.get(kind, {}), {}
        for name, tensor in tensors.items():
            own = before.get(name)
            if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
                own = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            copies[name] = own.copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        self._copies[kind] = copies
        return copies
