"""Ctrl-C and SIGTERM: the first lets an iteration end and be saved, the second kills as usual."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after the run was saved; `code` is what the process exits with."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signum


@contextmanager
def signals(say: Callable[[str], None]) -> Iterator[list[int]]:
    """Collects the first Ctrl-C or SIGTERM, and says what happens now; a second one kills as usual."""
    received: list[int] = []
    previous: dict[int, Any] = {}

    def handle(signum: int, _: FrameType | None) -> None:
        received.append(signum)
        for number, handler in previous.items():
            signal.signal(number, handler)
        with suppress(RuntimeError):  # Python refuses to print where the signal came in the middle of printing
            say("interrupted: this iteration is finished and saved; a second time ends at once, without saving")

    try:
        for signum in (signal.SIGINT, signal.SIGTERM):
            previous[signum] = signal.signal(signum, handle)
    except ValueError:
        pass  # only the main thread may handle signals; a notebook's worker thread trains without
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
