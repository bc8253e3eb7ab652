"""Steps per second on this machine: worlds alone, acting, learning, and the whole iteration."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from longtail.agents.agent import Kind
from longtail.config import Device, Precision
from longtail.engine.graph import capture
from longtail.impala.act import act
from longtail.impala.learn import learn
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
) -> dict[str, Any]:
    """Rates of each part on one configuration; the parts run as they do in training (graphs on a GPU)."""
    if seconds <= 0:
        raise ValueError(f"seconds is {seconds}: it must be above 0")
    config = recipe(world)
    config = replace(
        config,
        device=device,
        precision=precision,
        impala=replace(config.impala, worlds=worlds, unroll=unroll),
        agent=replace(config.agent, encoder=encoder),
    )
    trainer = Trainer(config)
    generators = [trainer.generator]

    def ready(function: Callable[[], Any]) -> Callable[[], Any]:
        if trainer.device.type != "cuda":
            return function
        tensors: list[Tensor] = [t for name, t in trainer.state_dict().items() if name != "generator"]
        return capture(function, tensors, generators)

    action_B = torch.zeros(worlds, dtype=torch.int64, device=trainer.device)

    def step_worlds() -> None:
        trainer.world.prepare(unroll)
        for t in range(unroll):
            trainer.world.observe(trainer.rollout.obs[t])
            trainer.world.step(action_B)

    parts: dict[str, Callable[[], Any]] = {
        "worlds only": step_worlds,
        "rollout only": lambda: act(
            trainer.agent, trainer.world, trainer.rollout, trainer.generator, config.impala.reward_clip
        ),
        "learn only": lambda: learn(trainer.agent, trainer.rollout, trainer.optimizer, config.impala),
        "train": trainer.iteration,
    }
    rates = {name: worlds * unroll / measure(ready(part), seconds, trainer.device) for name, part in parts.items()}
    peak = torch.cuda.max_memory_allocated() / 2**30 if trainer.device.type == "cuda" else None
    name = torch.cuda.get_device_name() if trainer.device.type == "cuda" else "cpu"
    return {
        "steps_per_second": {part: round(rate, 1) for part, rate in rates.items()},
        "world": world,
        "encoder": encoder,
        "worlds": worlds,
        "unroll": unroll,
        "precision": str(trainer.dtype).removeprefix("torch."),
        "device": name,
        "threads": torch.get_num_threads(),
        "gpu_memory_gib": None if peak is None else round(peak, 3),
        "torch": torch.__version__,
    }


def print_bench(
    worlds: int, unroll: int, device: Device, precision: Precision, encoder: Kind, seconds: float, as_json: bool
) -> None:
    result = bench(worlds, unroll, device, precision, encoder, seconds)
    if as_json:
        print(json.dumps(result))
        return
    where = {name: value for name, value in result.items() if name != "steps_per_second" and value is not None}
    table = Table(title=", ".join(f"{name} {value}" for name, value in where.items()), title_justify="left")
    table.add_column("")
    table.add_column("steps/s", justify="right")
    for part, rate in result["steps_per_second"].items():
        table.add_row(part, f"{rate:,.0f}")
    Console(highlight=False).print(table)
