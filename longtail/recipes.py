"""Recipes: functions that return a whole run. An ablation takes one and changes two fields."""

import difflib
from dataclasses import replace
from typing import Literal

from longtail.config import RunConfig
from longtail.impala.learn import ImpalaConfig
from longtail.worlds import world_config

Preset = Literal["default", "paper"]
METHODS = ("impala",)


def gridworld(name: str = "gridworld", method: str = "impala", preset: Preset = "default") -> RunConfig:
    """Zipf's Gridworld. `paper` is the appendix's table as printed (50 actors, learning rate 3e-4, entropy 0.01)."""
    impala = (
        ImpalaConfig(worlds=50, learning_rate=3e-4, entropy_cost=0.01)
        if preset == "paper"
        else ImpalaConfig(worlds=32, learning_rate=1e-3, entropy_cost=0.003)
    )
    return RunConfig(world=world_config(name), method=method, preset=preset, impala=impala, steps=40_000_000)


def gridworld_small(name: str = "gridworld-small", method: str = "impala", preset: Preset = "default") -> RunConfig:
    """Four small maps with four objects each: learned in minutes on a laptop."""
    run = gridworld(name, method, preset)
    return replace(run, steps=1_000_000, log_every=20_000, checkpoint_every=250_000)


def hosted(name: str, method: str = "impala", preset: Preset = "default") -> RunConfig:
    """Any Gymnasium environment: fewer worlds, since each costs Python."""
    run = gridworld("gridworld", method, preset)
    return replace(run, world=world_config(name), impala=replace(run.impala, worlds=8), steps=1_000_000)


def recipe(world: str, method: str = "impala", preset: Preset = "default") -> RunConfig:
    """The run that `longtail train WORLD --method M --preset P` stands for."""
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"method is {method!r}: {hint}It must be one of {', '.join(METHODS)}")
    if preset not in ("default", "paper"):
        raise ValueError(f"preset is {preset!r}: it must be default or paper")
    world_config(world)  # an unknown world is named before anything else
    if world.startswith("gym:"):
        return hosted(world, method, preset)
    return (gridworld_small if world == "gridworld-small" else gridworld)(world, method, preset)
