"""What every world in the registry, and the example of CONTRIBUTING.md, must keep. A new world needs no code here."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from test_random import p_value
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from examples.signal_world import SignalConfig
from longtail import zipf
from longtail.worlds import WORLDS, World, WorldConfig

Config = WorldConfig | SignalConfig
CONFIGS: dict[str, Config] = WORLDS | {"signal": SignalConfig()}
DTYPES = {
    "first": torch.bool,
    "task": torch.int64,
    "reward": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "success": torch.bool,
    "ended_task": torch.int64,
}
STEPS = 150  # with staggered starts, enough for every kind of world to end episodes
WORLD_COUNT = 16

Snapshot = dict[str, Tensor]


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> Config:
    return CONFIGS[request.param]


def start(
    config: Config,
    device: str,
    seed: int = 3,
    num_worlds: int = WORLD_COUNT,
    final_obs: bool = False,
) -> World:
    world = config.make(num_worlds, device, final_obs)
    world.reset(seed, stagger=True)
    return world


def random_actions(world: World, steps: int = STEPS, seed: int = 0) -> Tensor:
    """The same for world i, however many there are."""
    noise = torch.rand(WORLD_COUNT, steps, generator=torch.Generator().manual_seed(seed)).T
    return (noise[:, : world.num_worlds] * world.num_actions).long().to(world.device)


def situation(world: World) -> Snapshot:
    """The state to act in."""
    return {"first": world.first.cpu().clone(), "task": world.task.cpu().clone(), "obs": world.observe().cpu()}


def play(world: World, actions: Tensor, chunk: int = 32) -> Iterator[Snapshot]:
    """Steps, with draws for `chunk` of them at a time; 0 if they were made before."""
    for t, action_B in enumerate(actions):
        if chunk and t % chunk == 0:
            world.prepare(chunk)
        world.step(action_B)
        yield {name: getattr(world, name).cpu().clone() for name in DTYPES} | situation(world)


def history(world: World, actions: Tensor | None = None, chunk: int = 32) -> list[Snapshot]:
    actions = random_actions(world) if actions is None else actions
    return [situation(world), *play(world, actions, chunk)]


def same(one: list[Snapshot], other: list[Snapshot], worlds: slice = slice(None)) -> bool:
    return all(torch.equal(a[name][worlds], b[name][worlds]) for a, b in zip(one, other, strict=True) for name in a)


def episodes(rows: list[Snapshot]) -> list[list[int]]:
    """The tasks that each world played, the first ones included."""
    tasks = [[int(task)] for task in rows[0]["task"]]
    for row in rows[1:]:
        for i in torch.nonzero(row["first"])[:, 0].tolist():
            tasks[i].append(int(row["task"][i]))
    return tasks


def clone(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


# Tensors.


def test_shapes_and_dtypes(config: Config, device: str) -> None:
    world = start(config, device, final_obs=True)
    assert world.num_worlds == WORLD_COUNT and world.num_actions >= 2 and world.device.type == device
    for name, dtype in DTYPES.items():
        tensor = getattr(world, name)
        assert (tensor.dtype, tensor.shape, tensor.device.type) == (dtype, (WORLD_COUNT,), device), name
    world.prepare(1)
    world.step(random_actions(world, 1)[0])
    for render in (world.observe, world.observe_final):
        obs = render()
        assert (obs.dtype, obs.shape, obs.device.type) == (torch.uint8, (WORLD_COUNT, *world.obs_shape), device)
        rollout_TBHWC = obs.new_full((3, *obs.shape), 77)
        assert render(rollout_TBHWC[1]).data_ptr() == rollout_TBHWC[1].data_ptr()
        assert torch.equal(rollout_TBHWC[1], obs)
        assert (rollout_TBHWC[0] == 77).all() and (rollout_TBHWC[2] == 77).all()
    world.close()


def test_tensors_are_written_in_place(config: Config, device: str) -> None:
    """A graph keeps the addresses of the tensors it was captured with."""
    world = start(config, device)
    held = {name: getattr(world, name) for name in DTYPES}
    live = world.state_dict()
    saved = clone(live)
    history(world)
    world.set_weights(world.tasks.probability[::-1])
    world.reset(4)
    world.load_state_dict(saved)
    for name, tensor in held.items():
        assert getattr(world, name) is tensor, name
    for name, tensor in world.state_dict().items():
        assert tensor.data_ptr() == live[name].data_ptr() and torch.equal(tensor, saved[name]), name


# Episodes.


def test_episodes_end_and_begin_in_the_same_step(config: Config, device: str) -> None:
    world = start(config, device)
    rows = history(world)
    assert rows[0]["first"].all()
    for before, row in zip(rows[:-1], rows[1:], strict=True):
        assert torch.equal(row["first"], row["terminated"] | row["truncated"])
        assert not (row["terminated"] & row["truncated"]).any()
        assert not (row["success"] & ~row["first"]).any()
        assert torch.equal(row["ended_task"], before["task"])
        assert torch.equal(row["task"][~row["first"]], before["task"][~row["first"]])
        assert torch.isfinite(row["reward"]).all()
        assert ((row["task"] >= 0) & (row["task"] < len(world.tasks))).all()
    ends = torch.stack([row["first"] for row in rows[1:]])
    assert ends.any(0).all(), "every world ended an episode, or this test says little"


def test_staggered_first_episodes_end_at_different_times(config: Config, device: str) -> None:
    world = start(config, device)
    ends = torch.stack([row["first"] for row in history(world)[1:]])
    assert len(ends.int().argmax(0).unique()) > 1
    world.reset(3)
    together = situation(world)
    world.reset(3)
    assert same([situation(world)], [together]) and together["first"].all()


def test_final_observations(config: Config, device: str) -> None:
    world = start(config, device, final_obs=True)
    for row in play(world, random_actions(world, 40)):
        going_on = ~row["first"]
        assert torch.equal(world.observe_final().cpu()[going_on], row["obs"][going_on])
    with pytest.raises(RuntimeError, match="final_obs=True"):
        start(config, device).observe_final()


def test_final_observations_change_nothing_else(config: Config) -> None:
    assert same(history(start(config, "cpu")), history(start(config, "cpu", final_obs=True)))


# Draws.


def test_the_seed_decides(config: Config, device: str) -> None:
    expected = history(start(config, device))
    again = start(config, device, seed=8)
    assert episodes(history(again)) != episodes(expected)
    again.reset(3, stagger=True)
    assert same(history(again), expected)


def test_chunks_of_draws_make_no_difference(config: Config) -> None:
    expected = history(start(config, "cpu"))
    for chunk in (1, 7, STEPS):
        assert same(history(start(config, "cpu"), chunk=chunk), expected)


def test_worlds_do_not_depend_on_how_many_there_are(config: Config, device: str) -> None:
    expected = history(start(config, device))
    for num_worlds in (1, 5):
        few = history(start(config, device, num_worlds=num_worlds))
        assert all(torch.equal(a[name], b[name][:num_worlds]) for a, b in zip(few, expected, strict=True) for name in a)


def test_worlds_do_not_depend_on_what_the_others_do(config: Config) -> None:
    world = start(config, "cpu")
    actions, others = random_actions(world), random_actions(world, seed=1)
    expected = history(world, actions)
    mixed = history(start(config, "cpu"), torch.cat([actions[:, :6], others[:, 6:]], 1))
    assert same(mixed, expected, slice(0, 6)) and not same(mixed, expected)


def test_tasks_do_not_depend_on_the_policy(config: Config, device: str) -> None:
    world = start(config, device)
    one, other = (episodes(history(start(config, device), random_actions(world, seed=seed))) for seed in (0, 1))
    assert all(a[: len(b)] == b[: len(a)] for a, b in zip(one, other, strict=True))
    assert len({tuple(tasks[:2]) for tasks in one}) > 1


def test_first_tasks_follow_the_law(config: Config) -> None:
    world = config.make(2_000)
    assert p_value(world.task.numpy(), world.tasks.probability) > 1e-3


def test_the_task_table_is_consistent(config: Config) -> None:
    tasks = config.make(1).tasks
    n = len(tasks)
    assert n == len(set(tasks.names)) and tasks.probability.sum() == pytest.approx(1)
    for column in (
        tasks.map,
        tasks.object,
        tasks.map_rank,
        tasks.object_rank,
        tasks.rare,
        tasks.rarest_fifth,
        tasks.group,
    ):
        assert column.shape == (n,)
    assert len(set(zip(tasks.map.tolist(), tasks.object.tolist(), strict=True))) == n
    assert tasks.map.min() == tasks.object.min() == 0 and tasks.map_rank.min() == tasks.object_rank.min() == 1
    assert tasks.rare.any() and tasks.rarest_fifth.sum() == max(1, n // 5)
    assert (tasks.group == zipf.groups(tasks.probability)).all()


# Weights.


def test_new_weights_count_from_each_worlds_next_episode(config: Config, device: str) -> None:
    world = start(config, device)
    last, before = len(world.tasks) - 1, world.task.clone()
    world.prepare(STEPS)
    world.set_weights(np.eye(len(world.tasks))[last])
    assert torch.equal(world.task, before)
    tasks = episodes(history(world, chunk=0))
    assert [sequence[0] for sequence in tasks] == before.tolist()
    assert all(set(sequence[1:]) == {last} for sequence in tasks)


def test_one_law_per_world(config: Config, device: str) -> None:
    law = zipf.axis_law(len(start(config, device).tasks), 2.0)
    laws_Bn = np.where(np.arange(WORLD_COUNT)[:, None] % 2, law[::-1], law)
    world = config.make(WORLD_COUNT, device)
    world.set_weights(laws_Bn)
    world.reset(3, stagger=True)
    expected = []
    for one in (law, law[::-1]):
        alone = config.make(WORLD_COUNT, device)
        alone.set_weights(one)
        alone.reset(3, stagger=True)
        expected.append(alone.task.tolist())
    assert world.task.tolist() == [expected[i % 2][i] for i in range(WORLD_COUNT)]
    assert expected[0] != expected[1]


def test_pinned_tasks_stay_and_weights_undo_it(config: Config, device: str) -> None:
    pinned = np.arange(WORLD_COUNT) % len(start(config, device).tasks)
    world = config.make(WORLD_COUNT, device)
    world.pin(pinned)
    world.reset(3, stagger=True)
    rows = history(world)
    assert all(row["task"].tolist() == pinned.tolist() for row in rows)
    world.set_weights(world.tasks.probability)
    world.reset(3, stagger=True)
    assert same(history(world), history(start(config, device)))


def test_wrong_weights_and_tasks_are_named(config: Config) -> None:
    world = start(config, "cpu", num_worlds=3)
    n = len(world.tasks)
    wrong: list[Any] = [np.ones(n + 1), np.ones((2, n)), np.zeros(n), -np.ones(n), np.full(n, np.nan)]
    for weights in wrong:
        with pytest.raises(ValueError, match="weights "):
            world.set_weights(weights)
    for task_B in ([0, 0], [0, 0, n], [-1, 0, 0]):
        with pytest.raises(ValueError, match=r"task is .*one per world"):
            world.pin(np.array(task_B))
    assert same(history(world), history(start(config, "cpu", num_worlds=3)))  # and nothing has changed


# Saving.


def test_a_saved_world_goes_on_as_if_never_interrupted(config: Config, device: str) -> None:
    world = start(config, device)
    actions = random_actions(world)
    world.set_weights(np.arange(1.0, len(world.tasks) + 1))
    history(world, actions[:43])
    saved = clone(world.state_dict())
    expected = history(world, actions)
    fresh = start(config, device, seed=99)
    assert not same(history(fresh, actions), expected)
    fresh.prepare(STEPS)
    fresh.load_state_dict(saved)
    assert same(history(fresh, actions, chunk=0), expected)


def test_every_part_of_the_saved_state_is_needed(config: Config) -> None:
    world = start(config, "cpu")
    actions = random_actions(world)
    world.set_weights(np.arange(1.0, len(world.tasks) + 1))
    history(world, actions[:43])
    saved = clone(world.state_dict())
    expected = history(world, actions)
    for name in saved:
        other = start(config, "cpu", seed=99)
        other.load_state_dict(saved | {name: clone(other.state_dict())[name]})
        assert not same(history(other, actions), expected), name
        with pytest.raises(ValueError, match=f"no '{name.split('.')[-1]}'"):
            other.load_state_dict({kept: tensor for kept, tensor in saved.items() if kept != name})


# Speed: nothing in a step waits for the device.


class HostRead(AssertionError):
    pass


class NoHostReads(TorchDispatchMode):
    """Raises where an operation's result would have to travel to the host, on any device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func.overloadpacket is torch.ops.aten.index and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        )
        if by_mask or func.overloadpacket in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
            torch.ops.aten.equal,
        ):
            raise HostRead(f"{func} reads values on the host")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_sync(device: str) -> Iterator[None]:
    if device == "cpu":
        with NoHostReads():
            yield
        return
    with warnings.catch_warnings(action="ignore"):  # of being a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_steps_do_not_wait_for_the_host(config: Config, device: str) -> None:
    world = start(config, device, final_obs=True)
    actions, obs = random_actions(world), world.observe()
    with no_host_sync(device):
        for t, action_B in enumerate(actions):
            if t % 32 == 0:
                world.prepare(32)
            world.step(action_B)
            world.observe(obs)
            world.observe_final(obs)


@pytest.mark.parametrize(
    "read", [Tensor.item, Tensor.any, torch.nonzero, lambda x: x[x], lambda x: torch.equal(x, x.clone())]
)
def test_waiting_for_the_host_would_be_noticed(read: Any, device: str) -> None:
    value = torch.ones(() if read is Tensor.item else 3, dtype=torch.bool, device=device)
    with pytest.raises((HostRead, RuntimeError)), no_host_sync(device):
        bool(read(value))


@pytest.mark.gpu
def test_a_gpu_gives_what_a_cpu_gives(config: Config) -> None:
    assert same(history(start(config, "cuda")), history(start(config, "cpu")))
