"""Recipes: functions that return a whole run. An ablation takes one and changes two fields."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import get_args

from longtail.config import Preset, RunConfig, differences
from longtail.impala.learn import ImpalaConfig
from longtail.memory import MemoryConfig
from longtail.methods import METHODS, SECTIONS, check_method
from longtail.worlds import is_known, world_config

__all__ = ["METHODS", "gridworld", "gridworld_small", "hosted", "recipe", "preset_label", "command"]

PAPER = ImpalaConfig(worlds=50, learning_rate=3e-4, entropy_cost=0.01)
# What the appendix's table and Algorithm 1 say where the default says otherwise (docs/memory.md has the reasons).
PAPER_MEMORY = {"negatives": "all", "transfer_once": False}


HYPERPARAMETERS = ("agent", "impala", *SECTIONS)


def gridworld(name: str = "gridworld", method: str = "impala", preset: Preset = "default") -> RunConfig:
    """Zipf's Gridworld. `paper` is the appendix's table as printed (50 actors, learning rate 3e-4, entropy 0.01).

    Learning rate and entropy cost of `default` were chosen on generated levels, which nobody is judged on: raw rows are
    in results/learning/select-impala-4M.csv, by `python benchmarks/learning.py select`.
    """
    check_method(method)
    is_paper, memory = preset == "paper", METHODS[method].config
    if isinstance(memory, MemoryConfig) and is_paper:
        memory = replace(memory, **PAPER_MEMORY)  # type: ignore[arg-type]
    impala = PAPER if is_paper else ImpalaConfig()
    run = RunConfig(world=world_config(name), method=method, preset=preset, impala=impala, steps=40_000_000)
    return replace(run, memory=memory) if isinstance(memory, MemoryConfig) else run


def gridworld_small(name: str = "gridworld-small", method: str = "impala", preset: Preset = "default") -> RunConfig:
    """Four small maps with four objects each: learned in minutes on a laptop."""
    run = gridworld(name, method, preset)
    return replace(run, steps=1_000_000, log_every=20_000, checkpoint_every=250_000)


def hosted(name: str, method: str = "impala", preset: Preset = "default") -> RunConfig:
    """Any Gymnasium environment: `default` has fewer worlds, since each costs Python."""
    run = gridworld(name, method, preset)
    impala = run.impala if preset == "paper" else replace(run.impala, worlds=8)
    run = replace(run, impala=impala, steps=1_000_000)
    return replace(run, log_every=10_000, checkpoint_every=100_000)  # such worlds can be slow


def recipe(world: str, method: str = "impala", preset: Preset = "default") -> RunConfig:
    """The run that `longtail train WORLD --method M --preset P` stands for."""
    check_method(method)
    if preset not in get_args(Preset):
        raise ValueError(f"preset is {preset!r}: it must be one of {', '.join(get_args(Preset))}")
    world_config(world)  # an unknown world is named before anything else
    if world.startswith("gym:"):
        return hosted(world, method, preset)
    return (gridworld_small if world == "gridworld-small" else gridworld)(world, method, preset)


def preset_label(config: RunConfig) -> str:
    """The preset's name, or "custom" where a hyperparameter is not the preset's."""
    name = config.world.name
    # A world of somebody's own has our usual recipe.
    usual = recipe(name if is_known(name) else "gridworld", config.method, config.preset)
    return config.preset if all(getattr(config, part) == getattr(usual, part) for part in HYPERPARAMETERS) else "custom"


def command(config: RunConfig, steps: int, out: Path) -> str:
    """The command line that trains a configuration for `steps` in a folder: what its recipe does not say is a flag."""
    usual = recipe(config.world.name, config.method, config.preset)
    given = {"method": config.method, "preset": config.preset, "steps": steps, "out": out}
    given = {flag: value for flag, value in given.items() if value not in ("impala", "default")}
    given |= {flag: new for flag, _, new in differences(usual, config) if flag != "steps"}
    flags = (_flag(flag, value) for flag, value in given.items())
    return " ".join(["longtail train", shlex.quote(config.world.name), *flags])


def _flag(name: str, value: object) -> str:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        group, _, field = name.rpartition(".")
        return f"--{name}" if value else f"--{group}.no-{field}"
    words = [str(one) for one in value] if isinstance(value, tuple) else [str(value)]
    return " ".join([f"--{name}", *map(shlex.quote, words)])
