"""A run small enough for a test: four tasks, 21x21 pixels, 3 worlds x 4 steps an iteration."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from longtail import checkpoint
from longtail.agents.agent import AgentConfig
from longtail.config import RunConfig
from longtail.impala.learn import ImpalaConfig
from longtail.worlds import GridworldConfig

ITERATION = 12  # steps

WORLD = GridworldConfig(levels="generated", maps=2, objects=2, rooms=2, exponent=1.0, max_steps=9, resolution=21)
IMPALA = ImpalaConfig(worlds=3, unroll=4, learning_rate=1e-3)


def tiny(iterations: int = 10, impala: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    """A run of some iterations; `impala` and the rest change its fields."""
    run = RunConfig(
        world=WORLD,
        agent=AgentConfig(embedding=8, hidden=8),
        impala=replace(IMPALA, **(impala or {})),
        steps=iterations * ITERATION,
        log_every=3 * ITERATION,
        checkpoint_every=4 * ITERATION,
        device="cpu",
        precision="fp32",
    )
    return replace(run, **changes)


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder, and what is in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def newest_state(run: Path) -> bytes:
    """The bytes of the newest checkpoint's tensors."""
    return (checkpoint.list_checkpoints(run)[0] / checkpoint.STATE).read_bytes()


def steps_saved(run: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoint.list_checkpoints(run)]
