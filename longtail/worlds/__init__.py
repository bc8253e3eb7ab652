"""Worlds by name. Adding one is a file with its configuration and its world, and a line here."""

import dataclasses
import difflib

import torch

from longtail.worlds.gridworld import GridworldConfig
from longtail.worlds.host import HostConfig
from longtail.worlds.world import TaskTable, World

__all__ = [
    "WORLDS", "GridworldConfig", "HostConfig", "TaskTable", "World", "WorldConfig", "check_name", "is_known",
    "make", "world_config", "world_label",
]  # fmt: skip

WorldConfig = GridworldConfig | HostConfig

WORLDS: dict[str, WorldConfig] = {
    "gridworld": GridworldConfig(),
    "gridworld-20": GridworldConfig(name="gridworld-20", levels="20x20", maps=20, objects=20),
    # The smallest level seed for which a random walk succeeds in 2 to 50 % of the episodes of every task: no task is
    # out of reach or given away, so how rare a task is decides how well it is learned.
    "gridworld-small": GridworldConfig("gridworld-small", "generated", level_seed=73, maps=4, objects=4, rooms=2),
}


def is_known(name: str) -> bool:
    """A name that `world_config` has a configuration for; worlds of somebody's own may have others."""
    return name in WORLDS or name.startswith("gym:")


def world_config(name: str) -> WorldConfig:
    """The configuration that a name on the command line stands for; `gym:<id>` is any Gymnasium environment."""
    if name.startswith("gym:"):
        return HostConfig(name=name)
    if name not in WORLDS:
        near = difflib.get_close_matches(name, WORLDS, n=1)
        hint = f"did you mean {near[0]}? It" if near else "it"
        raise ValueError(f"world is {name!r}: {hint} must be one of {', '.join(WORLDS)} or gym:<environment id>")
    return WORLDS[name]


def check_name(config: WorldConfig) -> None:
    """A name is what folders, tables and flags know a world by: it may not say another one, or none."""
    name, kind = config.name, type(config)
    if name.startswith("gym:") != isinstance(config, HostConfig):
        raise ValueError(f"world.name is {name!r}: gym: is for Gymnasium environments, and only for them")
    if name in WORLDS and kind is not type(WORLDS[name]):
        raise ValueError(f"world.name is {name!r}: that is the name of another world than a {kind.__name__}")
    # A class that is not registered at all is a world of somebody's own, and so is its name.
    usual = [one for one, world in WORLDS.items() if type(world) is kind and not name.startswith("gym:")]
    if usual and name not in WORLDS:
        raise ValueError(f"world.name is {name!r}: it must be {' or '.join(usual)}, or registered in WORLDS")


def world_label(config: WorldConfig) -> str:
    """The name, and the fields that differ from the world of this name: `gridworld-levels-generated-reverse`."""
    name = config.name
    usual = world_config(name) if is_known(name) else config
    values = ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config))
    words = [_in_words(field, value) for field, value in values if value != getattr(usual, field)]
    return "-".join([name, *words])


def _in_words(field: str, value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return field if value is True else f"{field}-{text}"


def make(config: WorldConfig, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False) -> World:
    """B worlds that step together on one device; `final_obs` keeps each episode's last observation."""
    return config.make(num_worlds, device, final_obs)
