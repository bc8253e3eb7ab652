"""Steps per second on this machine: worlds alone, acting, learning, and the whole iteration."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from longtail.agents.agent import Kind
from longtail.config import Device, Precision, RunConfig
from longtail.engine.graph import capture
from longtail.recipes import recipe
from longtail.train import Trainer


def measure(function: Callable[[], Any], seconds: float, device: torch.device) -> float:
    """Median seconds per call, after warming up."""

    def once(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / calls

    for _ in range(3):
        guess = once(1)
    calls = max(1, int(seconds / 7 / guess))
    return sorted(once(calls) for _ in range(7))[3]


def bench(
    worlds: int = 32,
    unroll: int = 32,
    device: Device = "auto",
    precision: Precision = "auto",
    encoder: Kind = "shallow",
    seconds: float = 5.0,
    world: str = "gridworld",
    method: str = "impala",
) -> dict[str, Any]:
    """Rates of each part on one configuration; the parts run as they do in training (graphs on a GPU)."""
    for name, value in (("worlds", worlds), ("unroll", unroll)):
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds is {seconds}: it must be above 0 and finite")
    config = recipe(world, method)
    config = replace(
        config,
        device=device,
        precision=precision,
        impala=replace(config.impala, worlds=worlds, unroll=unroll),
        agent=replace(config.agent, encoder=encoder),
    )
    trainer = _build(config)
    try:
        rates = {name: worlds * unroll / measure(part, seconds, trainer.device) for name, part in _parts(trainer)}
    finally:
        trainer.world.close()
    peak = torch.cuda.max_memory_allocated() / 2**30 if trainer.device.type == "cuda" else None
    name = torch.cuda.get_device_name() if trainer.device.type == "cuda" else "cpu"
    return {
        "steps_per_second": {part: round(rate, 1) for part, rate in rates.items()},
        "world": world,
        "method": method,
        "encoder": encoder,
        "worlds": worlds,
        "unroll": unroll,
        "precision": str(trainer.dtype).removeprefix("torch."),
        "device": name,
        "threads": torch.get_num_threads(),
        "gpu_memory_gib": None if peak is None else round(peak, 3),
        "torch": torch.__version__,
    }


def _build(config: RunConfig) -> Trainer:
    try:
        return Trainer(config)
    except Exception as error:
        if str(error).startswith("memory."):  # a field of that name
            raise
        # NumPy and PyTorch have several errors for what is too large.
        if not re.search("memory|overflow", f"{type(error).__name__}: {error}", re.IGNORECASE):
            raise
        sizes = f"worlds is {config.impala.worlds} and unroll {config.impala.unroll}"
        raise ValueError(f"{sizes}: they do not fit into memory, so lower one of them") from error


def _parts(trainer: Trainer) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is measured, each as it runs in training and made ready when its turn comes."""
    world, rollout = trainer.world, trainer.rollout
    action_B = torch.zeros(world.num_worlds, dtype=torch.int64, device=trainer.device)

    def step_worlds() -> None:
        world.prepare(rollout.unroll)
        for t in range(rollout.unroll):
            world.observe(rollout.obs[t])
            world.step(action_B)

    def ready(function: Callable[[], Any]) -> Callable[[], Any]:
        if trainer.device.type != "cuda":
            return function
        tensors: list[Tensor] = [t for name, t in trainer.state_dict().items() if name != "generator"]
        return capture(function, tensors, [trainer.generator])

    yield "worlds only", ready(step_worlds)
    yield "rollout only", ready(trainer.act)
    yield "learn only", ready(trainer.learn)
    yield "train", ready(trainer.iteration)


def print_bench(
    worlds: int, unroll: int, device: Device, precision: Precision, encoder: Kind, seconds: float, method: str,
    as_json: bool,
) -> None:  # fmt: skip
    result = bench(worlds, unroll, device, precision, encoder, seconds, method=method)
    if as_json:
        print(json.dumps(result))
        return
    where = {name: value for name, value in result.items() if name != "steps_per_second" and value is not None}
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("steps/s", justify="right")
    for part, rate in result["steps_per_second"].items():
        table.add_row(part, f"{rate:,.0f}")
    console = Console(highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in where.items()), style="dim")  # wider than the table
    console.print(table)
