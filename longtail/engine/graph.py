"""Capture and replay: on a GPU an iteration is recorded once and replayed, so that the host does nothing per step."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

# Without it, matrix products in several streams may sum in another order from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # as in glibc's malloc.h

WARMUP = 3  # libraries choose their kernels and workspaces in the first calls, which a graph cannot record


def make_repeatable(device: torch.device) -> None:
    """Only kernels that give the same bits each time."""
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def keep_memory() -> None:
    """Let glibc keep what is freed for the next iteration: else a sixth of each goes into fetching pages again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for what, value in ((M_MMAP_THRESHOLD, 2**30), (M_TRIM_THRESHOLD, 2**30), (M_TOP_PAD, 2**26)):
            mallopt(what, value)


def capture(
    iterate: Callable[[], None], state: Iterable[Tensor], generators: Sequence[torch.Generator]
) -> Callable[[], None]:
    """`iterate` as one CUDA graph; returns its replay.

    `state` is every tensor that an iteration changes and the next one reads: warming up changes them, so they are put
    back. The generators are registered with the graph, so each replay draws on from where the last one stopped.
    """
    state = list(state)
    saved = [tensor.clone() for tensor in state]
    saved_generators = [generator.get_state() for generator in generators]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            iterate()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=stream):
        iterate()
    with torch.no_grad():
        for tensor, before in zip(state, saved, strict=True):
            tensor.copy_(before)
    for generator, before in zip(generators, saved_generators, strict=True):
        generator.set_state(before)
    torch.cuda.synchronize()
    return graph.replay


class Pacer:
    """Lets the host run at most a few iterations ahead of the device, so that Ctrl-C and progress stay prompt."""

    def __init__(self, device: torch.device, ahead: int = 8) -> None:
        self.events = [torch.cuda.Event() for _ in range(ahead)] if device.type == "cuda" else []
        self.count = 0

    def __call__(self) -> None:
        if self.events:
            event = self.events[self.count % len(self.events)]
            if self.count >= len(self.events):
                event.synchronize()
            event.record()
            self.count += 1
