"""Worlds by name. Adding one is a file with its configuration and its world, and a line here."""

import difflib

import torch

from longtail.worlds.gridworld import GridworldConfig
from longtail.worlds.host import HostConfig
from longtail.worlds.world import TaskTable, World

__all__ = ["WORLDS", "GridworldConfig", "HostConfig", "TaskTable", "World", "WorldConfig", "make", "world_config"]

WorldConfig = GridworldConfig | HostConfig

WORLDS: dict[str, WorldConfig] = {
    "gridworld": GridworldConfig(),
    "gridworld-20": GridworldConfig(name="gridworld-20", levels="20x20", maps=20, objects=20),
    # The smallest level seed for which a random walk succeeds in 2 to 50 % of the episodes of every task: no task is
    # out of reach or given away, so how rare a task is decides how well it is learned.
    "gridworld-small": GridworldConfig("gridworld-small", "generated", level_seed=73, maps=4, objects=4, rooms=2),
}


def world_config(name: str) -> WorldConfig:
    """The configuration that a name on the command line stands for; `gym:<id>` is any Gymnasium environment."""
    if name.startswith("gym:"):
        return HostConfig(name=name)
    if name not in WORLDS:
        near = difflib.get_close_matches(name, WORLDS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"world is {name!r}: {hint}It must be one of {', '.join(WORLDS)} or gym:<environment id>")
    return WORLDS[name]


def make(config: WorldConfig, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False) -> World:
    """B worlds that step together on one device; `final_obs` keeps each episode's last observation."""
    return config.make(num_worlds, device, final_obs)
