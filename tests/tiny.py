"""A run small enough for a test: four tasks, 21x21 pixels, 3 worlds x 4 steps an iteration; and what it comes to."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail import checkpoint
from longtail.agents.agent import AgentConfig
from longtail.config import RunConfig
from longtail.impala.learn import ImpalaConfig
from longtail.methods import METHODS
from longtail.train import Trainer
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


# Sections so small that within ten iterations buffers are full, states come into MEM and chunks are forgotten.
SMALL: dict[str, dict[str, Any]] = {
    "memory": {
        "capacity": 8, "neighbours": 2, "key_dim": 8, "familiarity": 16, "hop": 2, "transfer": 3, "transfer_every": 2,
    },
    "hcam": {"chunks": 3, "key_dim": 8},
    "autoencoder": {"every": 2, "latent": 4},
}  # fmt: skip


def with_method(run: RunConfig, method: str, **fields: Any) -> RunConfig:
    """The same run by another method, in its small section; `fields` change that section."""
    entry = METHODS[method]
    if entry.section is None:
        return replace(run, method=method)
    if entry.section == "hcam":
        fields = {"chunk": 2 if run.impala.unroll % 2 == 0 else run.impala.unroll} | fields
    section = replace(entry.config, **SMALL.get(entry.section, {}) | fields)  # type: ignore[type-var]
    return replace(run, method=method, **{entry.section: section})  # type: ignore[arg-type]


State = dict[str, Tensor]


def snapshot(trainer: Trainer) -> State:
    return {name: tensor.detach().cpu().clone() for name, tensor in trainer.state_dict().items()}


def differing(one: State, other: State) -> list[str]:
    """Names of the tensors that are not equal to the last bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def trained(run: RunConfig, iterations: int) -> Trainer:
    trainer = Trainer(run)
    for _ in range(iterations):
        trainer.iterate()
    return trainer


def after(run: RunConfig, iterations: int) -> State:
    return snapshot(trained(run, iterations))


def resumed(run: RunConfig, before: int, then: int, lost: str | None = None) -> State:
    """Interrupted after `before` iterations; `lost` is a part of the state that was not saved."""
    saved, trainer = after(run, before), Trainer(run)
    if lost:
        fresh = snapshot(trainer)
        saved |= {name: tensor for name, tensor in fresh.items() if name.startswith(lost)}
    trainer.load_state_dict(saved)
    for _ in range(then):
        trainer.iterate()
    return snapshot(trainer)


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder, and what is in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def newest_state(run: Path) -> bytes:
    """The bytes of the newest checkpoint's tensors."""
    return (checkpoint.list_checkpoints(run)[0] / checkpoint.STATE).read_bytes()


def steps_saved(run: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoint.list_checkpoints(run)]
