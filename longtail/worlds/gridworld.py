"""Zipf's Gridworld (Chan et al., 2022), as lookup tables: because objects never move, frame, move and outcome depend
only on (map, square), so stepping any number of worlds is a few gathers on any device.

A *state* is the number of a floor square, counted through all maps. Eight moves; touching any object ends the
episode, with reward 1 if it is the target that the top-left square of the view shows.
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from tyro.conf import Suppress

from longtail import zipf
from longtail.worlds import levels as lv
from longtail.worlds.random import STAGGER, TaskQueue, draw
from longtail.worlds.world import TaskTable, restore, stateful

MOVES = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))  # N NE E SE S SW W NW
ACTION_NAMES = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")

# All that the next step depends on, besides the queue of tasks.
STATE = ("state", "time", "task", "first")


@dataclass(frozen=True)
class GridworldConfig:
    """Zipf's Gridworld: find the object shown in the corner of the view."""

    name: Suppress[str] = "gridworld"  # no flag: the world's name on the command line says it
    """World, as on the command line."""
    levels: Literal["10x10", "20x20", "generated"] = "10x10"
    """Public levels (maps x objects), or levels from our generator."""
    level_seed: int = 0
    """Generated levels: which ones."""
    maps: int = 10
    """Number of maps; public levels have 10 or 20."""
    objects: int = 10
    """Objects on each map; public levels have 10 or 20."""
    rooms: int = 3
    """Generated levels: rooms along a side."""
    exponent: float = 2.0
    """Zipf exponent of maps and of objects; 0 is uniform."""
    reverse: bool = False
    """Make the last map and object the most frequent."""
    law: zipf.Mode = "zipfian"
    """Law that tasks are drawn from while training."""
    max_steps: int = 100
    """Steps after which an episode ends without reward."""
    resolution: int = 84
    """Pixels along the view's side; 63 is the original."""

    def build_levels(self) -> tuple[lv.Level, ...]:
        """The levels, after checking every field."""
        zipf.check_exponent(self.exponent)
        lv.tile_pixels(self.resolution)
        if self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}: it must be at least 1")
        if self.law not in zipf.MODES:
            raise ValueError(f"law is {self.law!r}: it must be one of {', '.join(zipf.MODES)}")
        if self.levels == "generated":
            return lv.generate_levels(self.level_seed, self.maps, self.objects, self.rooms)
        if self.levels not in ("10x10", "20x20"):
            raise ValueError(f"levels is {self.levels!r}: it must be 10x10, 20x20 or generated")
        public = lv.public_levels(self.levels)
        have = (len(public), len(public[0].objects))
        if (self.maps, self.objects) != have:
            raise ValueError(
                f"levels is {self.levels!r}, which has {have[0]} maps x {have[1]} objects, not {self.maps} x "
                f"{self.objects}: set maps to {have[0]} and objects to {have[1]}, or levels to generated"
            )
        return public

    def make(self, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False) -> "Gridworld":
        return Gridworld(self, num_worlds, device, final_obs)


@dataclass(frozen=True)
class Tables:
    """Everything a level set can do, by state S, on the host."""

    frame_S: np.ndarray  # uint8 [S, H, W, 3], without the target in the corner
    cue_n: np.ndarray  # uint8 [tasks, pixels, pixels, 3]
    next_SA: np.ndarray  # int64: the state that a move leads to
    object_S: np.ndarray  # int64: the object on the square, -1 for none
    start_m: np.ndarray  # int64: the state that a map starts in
    square_S: np.ndarray  # int64 [S, 3]: map, row, column


@lru_cache(maxsize=4)  # worlds of one process share their tables: nothing may write to them
def build_tables(level_set: tuple[lv.Level, ...], resolution: int) -> Tables:
    pixels = lv.tile_pixels(resolution)
    square_S = [
        (m, y, x) for m, level in enumerate(level_set)
        for y in range(level.shape[0]) for x in range(level.shape[1]) if not level.is_wall(y, x)
    ]  # fmt: skip
    state_of = {square: state for state, square in enumerate(square_S)}
    frame_S = np.zeros((len(square_S), resolution, resolution, 3), np.uint8)
    next_SA = np.zeros((len(square_S), len(MOVES)), np.int64)
    object_S = np.full(len(square_S), -1, np.int64)
    cue_n = [lv.cue_tile(thing, pixels) for level in level_set for thing in level.objects]
    margin = lv.VIEW // 2
    border = ((margin, margin), (margin, margin), (0, 0), (0, 0), (0, 0))  # outside the map is black, like the floor
    tiles_m = [np.pad(lv.level_tiles(level, pixels), border) for level in level_set]
    for m, level in enumerate(level_set):
        for index, thing in enumerate(level.objects):
            object_S[state_of[m, thing.y, thing.x]] = index
    for state, (m, y, x) in enumerate(square_S):
        next_SA[state] = [state_of[m, *_move(level_set[m], y, x, dy, dx)] for dy, dx in MOVES]
        view = tiles_m[m][y : y + lv.VIEW, x : x + lv.VIEW].copy()
        if object_S[state] < 0:  # in the last frame the object touched is drawn over the agent
            view[margin, margin] = lv.agent_color()
        frame_S[state] = lv.join_tiles(view)
    start_m = np.array([state_of[m, *level.start] for m, level in enumerate(level_set)], np.int64)
    return Tables(frame_S, np.stack(cue_n), next_SA, object_S, start_m, np.array(square_S, np.int64))


def _move(level: lv.Level, y: int, x: int, dy: int, dx: int) -> tuple[int, int]:
    """A move into a wall, or diagonally between two walls, stays where it is."""
    squeezed = dy != 0 and dx != 0 and level.is_wall(y + dy, x) and level.is_wall(y, x + dx)
    return (y, x) if level.is_wall(y + dy, x + dx) or squeezed else (y + dy, x + dx)


class Gridworld:
    """B gridworlds on one device, by the contract of `longtail.worlds.world.World`."""

    on_device = True
    num_actions = len(MOVES)

    def __init__(
        self, config: GridworldConfig, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False
    ) -> None:
        self.config, self.num_worlds, self.device = config, num_worlds, torch.device(device)
        self.levels = config.build_levels()
        self.tables = build_tables(self.levels, config.resolution)
        self.tasks = TaskTable.product(config.maps, config.objects, config.exponent, config.reverse)
        self.obs_shape = (config.resolution, config.resolution, 3)
        self.law = zipf.law((config.maps, config.objects), config.exponent, config.reverse, config.law)
        self.queue = TaskQueue(num_worlds, self.law, self.device)

        def on_device(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.device)

        self._frame_S = on_device(self.tables.frame_S)
        self._cue_n = on_device(self.tables.cue_n)
        self._next_SA = on_device(self.tables.next_SA.ravel())
        self._object_S = on_device(self.tables.object_S)
        self._start_n = on_device(self.tables.start_m[self.tasks.map])
        self._target_n = on_device(self.tasks.object)

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_worlds, dtype=dtype, device=self.device)

        self.first, self.task, self.ended_task = zeros(torch.bool), zeros(torch.int64), zeros(torch.int64)
        self.reward, self.success = zeros(torch.float32), zeros(torch.bool)
        self.terminated, self.truncated = zeros(torch.bool), zeros(torch.bool)
        self.state, self.time = zeros(torch.int64), zeros(torch.int64)
        self._final_state = zeros(torch.int64) if final_obs else None
        self.reset(seed=0)

    def reset(self, seed: int, stagger: bool = False) -> None:
        self.task.copy_(self.queue.reset(seed))
        self.state.copy_(self._start_n[self.task])
        self.first.fill_(True)
        self.time.zero_()
        if stagger:
            bits_B = draw(self.queue.seed, self.queue.world_B, self.queue.episode_B, STAGGER)
            self.time.copy_(bits_B % self.config.max_steps)
        for tensor in (self.reward, self.success, self.terminated, self.truncated):
            tensor.zero_()
        self.ended_task.copy_(self.task)
        if self._final_state is not None:
            self._final_state.copy_(self.state)

    def prepare(self, num_steps: int) -> None:
        self.queue.prepare(num_steps)

    def step(self, action_B: Tensor) -> None:
        index_B = torch.add(action_B, self.state, alpha=self.num_actions)
        state_B = self._next_SA.index_select(0, index_B)
        object_B = self._object_S.index_select(0, state_B)
        self.ended_task.copy_(self.task)
        torch.eq(object_B, self._target_n.index_select(0, self.task), out=self.success)
        self.reward.copy_(self.success)
        torch.ge(object_B, 0, out=self.terminated)
        self.time += 1
        torch.ge(self.time, self.config.max_steps, out=self.truncated)
        torch.logical_or(self.terminated, self.truncated, out=self.first)
        torch.gt(self.truncated, self.terminated, out=self.truncated)  # the limit counts only if nothing was touched
        if self._final_state is not None:
            self._final_state.copy_(state_B)
        self._begin(self.first, state_B)

    def restart(self, world_B: Tensor) -> None:
        """Leave the episode of the worlds in a mask without an outcome and begin their next; for `prepare`, a step."""
        self.first |= world_B
        for tensor in (self.reward, self.success, self.terminated, self.truncated):
            tensor.masked_fill_(world_B, 0)
        self._begin(world_B, self.state)

    def _begin(self, world_B: Tensor, state_B: Tensor) -> None:
        torch.where(world_B, self.queue.advance(world_B), self.task, out=self.task)
        torch.where(world_B, self._start_n.index_select(0, self.task), state_B, out=self.state)
        self.time.masked_fill_(world_B, 0)

    def observe(self, out: Tensor | None = None) -> Tensor:
        return self._render(self.state, self.task, out)

    def observe_final(self, out: Tensor | None = None) -> Tensor:
        return self._render(self._final_states(), self.ended_task, out)

    def _final_states(self) -> Tensor:
        if self._final_state is None:
            raise RuntimeError("final observations were not asked for: build the world with final_obs=True")
        return self._final_state

    def _render(self, state_B: Tensor, task_B: Tensor, out: Tensor | None) -> Tensor:
        if out is None:
            out = torch.empty(self.num_worlds, *self.obs_shape, dtype=torch.uint8, device=self.device)
        torch.index_select(self._frame_S, 0, state_B, out=out)
        pixels = self._cue_n.shape[1]
        out[:, :pixels, :pixels] = self._cue_n.index_select(0, task_B)
        return out

    def set_weights(self, weights: np.ndarray) -> None:
        self.queue.set_weights(weights)

    def pin(self, task_B: np.ndarray) -> None:
        self.queue.pin(task_B)

    def whole_map(self, world: int, final: bool = False) -> np.ndarray:
        """The whole map of one world with its agent, uint8 [H, W, 3], for people; `final` as in `observe_final`."""
        state_B = self._final_states() if final else self.state
        m, y, x = self.tables.square_S[int(state_B[world])]
        tiles = lv.level_tiles(self.levels[m], lv.tile_pixels(self.config.resolution))
        tiles[y, x] = lv.agent_color()
        return lv.join_tiles(tiles)

    def state_dict(self) -> dict[str, Tensor]:
        return stateful(self, STATE) | {f"queue.{name}": tensor for name, tensor in self.queue.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        restore(stateful(self, STATE), state)
        self.queue.load_state_dict({k.removeprefix("queue."): v for k, v in state.items() if k.startswith("queue.")})

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class CellFacts:
    """How hard each task is before anything is learned, by task id."""

    shortest_path: np.ndarray  # int64: fewest steps from the start to the target, touching nothing else; -1: none
    random_reach: np.ndarray  # float64: probability that a uniformly random walk succeeds within the time limit


def cell_facts(config: GridworldConfig) -> CellFacts:
    """Exact, by breadth-first search and by following the random walk's distribution; nothing is sampled."""
    tables = build_tables(config.build_levels(), resolution=lv.VIEW)
    paths, reaches = [], []
    for m, start in enumerate(tables.start_m):
        distance = _distances(tables, int(start))
        states = np.flatnonzero(tables.square_S[:, 0] == m)
        where = {int(tables.object_S[s]): s for s in states if tables.object_S[s] >= 0}
        touched = _random_walk(tables, int(start), config.max_steps)
        paths += [distance[where[o]] for o in range(config.objects)]
        reaches += [touched[where[o]] for o in range(config.objects)]
    return CellFacts(np.array(paths, np.int64), np.array(reaches))


def _distances(tables: Tables, start: int) -> np.ndarray:
    distance = np.full(len(tables.object_S), -1, np.int64)
    distance[start], frontier = 0, deque([start])
    while frontier:
        state = frontier.popleft()
        if tables.object_S[state] >= 0:
            continue  # the episode ends here
        for after in tables.next_SA[state]:
            if distance[after] < 0:
                distance[after] = distance[state] + 1
                frontier.append(after)
    return distance


def _random_walk(tables: Tables, start: int, max_steps: int) -> np.ndarray:
    """Probability that a random walk from `start` has ended on each state within `max_steps`."""
    num_states, num_actions = tables.next_SA.shape
    is_object = tables.object_S >= 0
    ended: np.ndarray = np.zeros(num_states)
    alive: np.ndarray = np.eye(num_states)[start]
    for _ in range(max_steps):
        arriving = np.repeat(alive / num_actions, num_actions)
        after = np.bincount(tables.next_SA.ravel(), arriving, num_states)
        ended += after * is_object
        alive = after * ~is_object
    return ended
