"""Gridworld against rollouts of the public benchmark, and square by square against the naive one."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from naive_gridworld import NaiveGridworld, as_entry, load, move, object_at, paint, shortest_path
from test_random import p_value
from torch import Tensor

from longtail import zipf
from longtail.worlds.gridworld import Gridworld, GridworldConfig

SMALL = GridworldConfig(levels="generated", maps=4, objects=4, rooms=2, resolution=63)
PUBLIC = {
    "10x10": GridworldConfig(resolution=63),
    "20x20": GridworldConfig(levels="20x20", maps=20, objects=20, resolution=63),
}
ROLLOUTS = json.loads((Path(__file__).parent / "data" / "gridworld_rollouts.json").read_text())
OUTCOME = ("reward", "terminated", "truncated", "success", "ended_task", "first", "task")

# The first 20 tasks of the first two worlds with seed 1: part of every published result, so they must never change.
GOLDEN_TASKS = [
    [30, 0, 0, 0, 1, 2, 10, 0, 9, 0, 0, 41, 0, 0, 0, 0, 0, 10, 0, 1],
    [10, 1, 0, 0, 0, 0, 0, 0, 20, 30, 2, 91, 0, 13, 0, 41, 10, 10, 1, 53],
]


def start(config: GridworldConfig, num_worlds: int, seed: int = 0, device: str = "cpu") -> Gridworld:
    world = config.make(num_worlds, device, final_obs=True)
    world.reset(seed)
    return world


def pinned(config: GridworldConfig, task: int, device: str = "cpu") -> Gridworld:
    """One world that plays one task."""
    world = config.make(1, device, final_obs=True)
    world.pin(np.array([task]))
    world.reset(0)
    return world


def play(world: Gridworld, *actions: int) -> None:
    """The same actions in all worlds."""
    for action in actions:
        world.prepare(1)
        world.step(torch.full_like(world.task, action))


def random_actions(steps: int, num_worlds: int, seed: int = 0) -> Tensor:
    return torch.randint(8, (steps, num_worlds), generator=torch.Generator().manual_seed(seed))


def frames(obs: Tensor) -> list[bytes]:
    return [frame.numpy().tobytes() for frame in obs.cpu()]


def sha(obs: Tensor) -> str:
    return hashlib.sha256(frames(obs)[0]).hexdigest()[:16]


def outcome(world: Gridworld, i: int) -> dict[str, float]:
    return {name: getattr(world, name)[i].item() for name in OUTCOME}


# The public benchmark.


@pytest.mark.parametrize("rollout", ROLLOUTS, ids=lambda r: f"{r['n']}-map{r['map']}-object{r['object']}")
def test_rollouts_of_the_public_benchmark(rollout: dict[str, Any], device: str) -> None:
    n, steps = rollout["n"], len(rollout["actions"])
    world = pinned(PUBLIC[f"{n}x{n}"], rollout["map"] * n + rollout["object"], device)
    assert sha(world.observe()) == rollout["frames"][0]
    for t, action in enumerate(rollout["actions"]):
        play(world, action)
        assert sha(world.observe_final()) == rollout["frames"][t + 1]
        assert world.reward.item() == rollout["rewards"][t]
        assert 1 - world.terminated.item() == rollout["discounts"][t]
        assert world.first.item() == (t + 1 == steps)
        assert sha(world.observe()) == rollout["frames"][0 if t + 1 == steps else t + 1]


# Square by square.


def every_state(config: GridworldConfig) -> Gridworld:
    """As many worlds as there are floor squares, each standing on its own."""
    num_states = len(config.make(1).tables.square_S)
    world = config.make(num_states, final_obs=True)
    world.state.copy_(torch.arange(num_states))
    return world


def squares(world: Gridworld) -> list[tuple[int, int, int]]:
    return [(m, y, x) for m, y, x in world.tables.square_S.tolist()]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_floor_square_is_a_state(name: str) -> None:
    expected = [
        (m, y, x)
        for m, entry in enumerate(load("gridworld_levels.json")[name])
        for y, row in enumerate(entry["layout"])
        for x, char in enumerate(row)
        if char != "#"
    ]
    assert squares(PUBLIC[name].make(1)) == expected


@pytest.mark.parametrize("name", PUBLIC)
def test_every_frame(name: str) -> None:
    """All (map, square, target): at 63 pixels as the naive world paints them, at 84 their nearest neighbour."""
    entries, world = load("gridworld_levels.json")[name], every_state(PUBLIC[name])
    large, nearest = every_state(replace(PUBLIC[name], resolution=84)), torch.arange(84) * 3 // 4
    map_S = torch.from_numpy(world.tables.square_S[:, 0])
    for target in range(len(entries)):
        for one in (world, large):
            one.task.copy_(map_S * len(entries) + target)
        obs, obs_84 = world.observe(), large.observe()
        assert frames(obs) == [paint(entries[m], y, x, target) for m, y, x in squares(world)]
        fifth = slice(target % 5, None, 5)  # other squares for each target, all of them in the end
        assert torch.equal(obs_84[fifth], obs[fifth, nearest[:, None], nearest])
        few = slice(target, None, 97)
        assert frames(obs_84[few]) == [paint(entries[m], y, x, target, 84) for m, y, x in squares(large)[few]]


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("action", range(8))
def test_every_move(name: str, action: int) -> None:
    entries, world = load("gridworld_levels.json")[name], every_state(PUBLIC[name])
    world.task.copy_(torch.from_numpy(world.tables.square_S[:, 0]) * len(entries))
    play(world, action)
    assert world._final_state is not None
    number = squares(world)
    rows = zip(number, world._final_state.tolist(), world.terminated.tolist(), world.success.tolist(), strict=True)
    for (m, y, x), state, terminated, success in rows:
        after = move(entries[m], y, x, action)
        touched = object_at(entries[m], *after)
        assert number[state] == (m, *after)
        assert (terminated, success) == (touched is not None, touched == 0)


def compare_play(config: GridworldConfig, num_worlds: int, steps: int, seed: int, every: int = 1) -> dict[str, int]:
    """Random play beside naive worlds, every tensor at every step and every frame of some; counts what happened."""
    world, pixels = start(config, num_worlds, seed), config.resolution
    entries = [as_entry(level) for level in config.build_levels()]
    naive = [NaiveGridworld(entries, seed, i, config.max_steps) for i in range(num_worlds)]
    seen = dict.fromkeys(("success", "wrong", "truncated"), 0)
    assert world.task.tolist() == [one.task for one in naive]
    for t, action_B in enumerate(random_actions(steps, num_worlds, seed)):
        if t % 50 == 0:
            world.prepare(50)
        expected = [one.step(int(a), pixels) for one, a in zip(naive, action_B, strict=True)]
        final = [row.pop("final_frame") for row in expected]
        world.step(action_B)
        assert [outcome(world, i) for i in range(num_worlds)] == expected
        if t % every == 0:
            assert frames(world.observe_final()) == final
            assert frames(world.observe()) == [one.frame(pixels) for one in naive]
        seen["success"] += int(world.success.sum())
        seen["wrong"] += int((world.terminated & ~world.success).sum())
        seen["truncated"] += int(world.truncated.sum())
    return seen


@pytest.mark.parametrize(
    "config", [PUBLIC["10x10"], replace(SMALL, max_steps=9), replace(SMALL, resolution=84, rooms=4, max_steps=30)]
)
def test_random_play_equals_the_naive_world(config: GridworldConfig) -> None:
    seen = compare_play(config, num_worlds=6, steps=600, seed=3, every=3)
    assert min(seen.values()) >= 2, seen


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_long_random_play_equals_the_naive_world(name: str) -> None:
    compare_play(PUBLIC[name], num_worlds=16, steps=5_000, seed=4)


# How an episode ends.


@pytest.mark.parametrize("task", range(16))
def test_touching_the_target_on_the_last_step_is_a_success(task: int, device: str) -> None:
    m, target = divmod(task, 4)
    way = shortest_path(as_entry(SMALL.build_levels()[m]), target)
    world = pinned(replace(SMALL, max_steps=len(way)), task, device)
    play(world, *way)
    assert outcome(world, 0) == dict(zip(OUTCOME, (1.0, True, False, True, task, True, task), strict=True))
    if len(way) > 1:  # one step less, and the limit comes first
        world = pinned(replace(SMALL, max_steps=len(way) - 1), task, device)
        play(world, *way[:-1])
        assert outcome(world, 0) == dict(zip(OUTCOME, (0.0, False, True, False, task, True, task), strict=True))


@pytest.mark.parametrize("max_steps", [1, 2, 100])
def test_the_time_limit_is_exact_and_counts_anew(max_steps: int) -> None:
    world = pinned(replace(PUBLIC["10x10"], max_steps=max_steps), 0)
    m, y, x = squares(world)[int(world.state)]
    entry = load("gridworld_levels.json")["10x10"][m]
    blocked = next(a for a in range(8) if move(entry, y, x, a) == (y, x))
    ends = []
    for _ in range(2 * max_steps):
        play(world, blocked)
        ends.append(world.truncated.item())
        assert world.first.item() == ends[-1] and not world.terminated
    assert ends == ([False] * (max_steps - 1) + [True]) * 2


def test_restart_leaves_an_episode_without_an_outcome() -> None:
    world, chosen = start(SMALL, 8), torch.arange(8) < 4
    before, expected = world.task.clone(), start(SMALL, 8)
    play(world, 4)
    time = world.time.clone()
    world.prepare(1)
    world.restart(chosen)
    expected.prepare(1)
    assert torch.equal(world.task, torch.where(chosen, expected.queue.advance(chosen), before))
    assert (world.time == torch.where(chosen, 0, time)).all() and world.first[chosen].all()
    assert not (world.terminated | world.truncated | world.success)[chosen].any()
    assert torch.equal(world.state[chosen], world._start_n[world.task[chosen]])


def test_final_observations_are_asked_for() -> None:
    with pytest.raises(RuntimeError, match="final_obs=True"):
        SMALL.make(2).observe_final()


# Which tasks are played.


def played(world: Gridworld, steps: int, actions: Tensor | None = None) -> list[list[int]]:
    """The tasks of the episodes that each world ends, one list per world."""
    actions = random_actions(steps, world.num_worlds) if actions is None else actions
    tasks: list[list[int]] = [[] for _ in range(world.num_worlds)]
    for action_B in actions:
        world.prepare(1)
        world.step(action_B.to(world.device))
        for i in torch.nonzero(world.first)[:, 0].tolist():
            tasks[i].append(int(world.ended_task[i]))
    return tasks


@pytest.mark.parametrize("changes", [{}, {"reverse": True}, {"law": "uniform"}, {"law": "rare"}, {"exponent": 0.7}])
def test_tasks_follow_the_law_also_over_resumes(changes: dict[str, Any]) -> None:
    # 100 tasks on levels of our own, where every step is an episode.
    config = replace(SMALL, maps=10, objects=10, max_steps=1, resolution=7, **changes)
    law = zipf.law((10, 10), config.exponent, config.reverse, config.law)
    world, pooled = start(config, 64, seed=5), []
    uninterrupted = played(start(config, 64, seed=5), 200)
    for _ in range(4):
        pooled.append(np.array(played(world, 50)))
        state = {name: tensor.clone() for name, tensor in world.state_dict().items()}
        world = start(config, 64, seed=99)
        world.load_state_dict(state)
    tasks = np.concatenate(pooled, 1)
    assert (tasks == np.array(uninterrupted)).all()
    assert p_value(tasks, law) > 1e-3
    assert p_value(tasks, 0.9 * law + 0.1 * np.eye(100)[law.argmax()]) < 1e-3  # the test tells laws apart


def test_worlds_never_share_their_tasks() -> None:
    tasks = played(start(replace(SMALL, max_steps=1, resolution=7), 128, seed=1), 40)
    assert len({tuple(sequence) for sequence in tasks}) == 128


def test_tasks_do_not_depend_on_the_policy(device: str) -> None:
    config = replace(SMALL, max_steps=10, resolution=7)
    one, other = (
        played(start(config, 16, 7, device), 300, actions)
        for actions in (random_actions(300, 16, seed=1), torch.full((300, 16), 3))
    )
    lengths = [(len(a), len(b)) for a, b in zip(one, other, strict=True)]
    assert any(a != b for a, b in lengths) and min(map(min, lengths)) >= 30
    for a, b in zip(one, other, strict=True):
        assert all(x == y for x, y in zip(a, b, strict=False))


def test_golden_tasks(device: str) -> None:
    world = start(replace(PUBLIC["10x10"], max_steps=1, resolution=7), 2, 1, device)
    assert played(world, 20) == GOLDEN_TASKS


def test_one_world_is_the_first_of_many(device: str) -> None:
    """Thousands of steps of one world, alone and beside 63 others that act as they like."""
    config = replace(SMALL, max_steps=20)
    alone, many = start(config, 1, 2, device), start(config, 64, 2, device)
    actions = random_actions(3_000, 64).to(device)
    for t, action_B in enumerate(actions):
        if t % 100 == 0:
            alone.prepare(100)
            many.prepare(100)
        alone.step(action_B[:1])
        many.step(action_B)
        assert outcome(alone, 0) == outcome(many, 0)
        if t % 10 == 0:
            assert torch.equal(alone.observe()[0], many.observe()[0])
            assert torch.equal(alone.observe_final()[0], many.observe_final()[0])


def test_first_episodes_start_at_different_times() -> None:
    world = PUBLIC["10x10"].make(1_000)
    world.reset(3, stagger=True)
    times = world.time.clone()
    assert times.min() >= 0 and times.max() <= 99 and len(times.unique()) > 90
    assert 45 < times.float().mean() < 54
    played(world, 100)  # by now every first episode has ended; the next ones start at 0
    assert (world.queue.episode_B >= 1).all()
    few = PUBLIC["10x10"].make(7)
    few.reset(3, stagger=True)
    assert torch.equal(few.time, times[:7]) and few.first.all()
    world.reset(3)
    assert not world.time.any()
