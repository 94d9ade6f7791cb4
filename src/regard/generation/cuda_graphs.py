"""CUDA graphs: a step is captured once and replayed, so that the host launches one graph, not hundreds of kernels.

https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import warnings
from collections.abc import Callable

import torch

from regard.logging import log_warning

_WARMUP_STEPS = 2
"""Steps before the capture, in which libraries allocate what they need."""


def capture_cuda_graph(step: Callable[[], None]) -> Callable[[], None] | None:
    """Return the replay of `step` as a CUDA graph, or None, with a warning, where it cannot be captured.

    The step runs a few times before the capture, so its effects must be harmless until then.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARMUP_STEPS):
            step()
        reason = _find_synchronization(step)
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if reason is None:
        try:
            # The outer context restores the stream where the inner one fails to; other threads may use the device.
            with torch.cuda.stream(current), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                step()
            return graph.replay
        except RuntimeError as error:
            reason = str(error)
    log_warning(f"a decoding step cannot be captured as a CUDA graph and runs slower: {reason.splitlines()[0]}")
    return None


def _find_synchronization(step: Callable[[], None]) -> str | None:
    """Return what synchronizes the host with the device in a step, which cannot be captured; None if nothing does.

    Checked before the capture, since a failed capture may leave the device in a bad state.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that this mode does not detect everything
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        except RuntimeError as error:
            return str(error)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return None
