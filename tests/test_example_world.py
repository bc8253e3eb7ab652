"""The example of CONTRIBUTING.md: registered by name, and stepped by the contract of every world."""

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.signal_world import SignalConfig, SignalWorld
from longtail import worlds
from longtail.worlds.random import TASK, draw

OUTCOME = ("first", "task", "reward", "terminated", "truncated", "success", "ended_task")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What adding a world comes to: one line in the registry."""
    monkeypatch.setitem(worlds.WORLDS, "signal", SignalConfig())


def make(num_worlds: int, device: str, final_obs: bool = False) -> worlds.World:
    return worlds.make(worlds.world_config("signal"), num_worlds, device, final_obs)


def random_actions(steps: int, num_worlds: int, device: str) -> Tensor:
    return torch.randint(2, (steps, num_worlds), generator=torch.Generator().manual_seed(5)).to(device)


def outcome(world: worlds.World) -> dict[str, list[float]]:
    return {name: getattr(world, name).tolist() for name in OUTCOME}


class NaiveSignal:
    """One signal world as a plain loop would write it; its tasks are given."""

    def __init__(self, tasks: list[int], config: SignalConfig) -> None:
        self.tasks, self.config = iter(tasks), config
        self.task, self.time = next(self.tasks), 0

    def step(self, action: int) -> dict[str, float]:
        last = self.time == self.config.delay
        right = last and action == self.task
        played = self.task
        self.time += 1
        if last:
            self.task, self.time = next(self.tasks), 0
        outcome = (last, self.task, float(right), last, False, right, played)
        return dict(zip(OUTCOME, outcome, strict=True))

    def frame(self) -> np.ndarray:
        size = self.config.size
        image = np.zeros((size, size, 3), np.uint8)
        if self.time == 0 and self.task == 0:
            image[:, : size // 2] = 255
        if self.time == 0 and self.task == 1:
            image[:, size // 2 :] = 255
        return image


def drawn_tasks(seed: int, num_worlds: int, episodes: int) -> list[list[int]]:
    """Both cues are equally frequent, so a task is the highest of its draw's 53 bits."""
    bits = draw(seed, torch.arange(num_worlds)[:, None], torch.arange(episodes), TASK)
    return (bits >> 52).tolist()


def test_steps_as_the_naive_world(device: str) -> None:
    steps, num_worlds, seed = 60, 5, 11
    world = make(num_worlds, device)
    assert isinstance(world, SignalWorld)
    world.reset(seed)
    naive = [NaiveSignal(tasks, world.config) for tasks in drawn_tasks(seed, num_worlds, steps)]
    obs = torch.empty(num_worlds, *world.obs_shape, dtype=torch.uint8, device=device)
    assert world.first.all()
    for t, action_B in enumerate(random_actions(steps, num_worlds, device)):
        if t % 10 == 0:
            world.prepare(10)
        np.testing.assert_array_equal(world.observe(obs).cpu(), np.stack([one.frame() for one in naive]))
        expected = [one.step(int(action)) for one, action in zip(naive, action_B, strict=True)]
        world.step(action_B)
        assert outcome(world) == {name: [row[name] for row in expected] for name in OUTCOME}


def test_final_observations_are_asked_for(device: str) -> None:
    world = make(3, device, final_obs=True)
    world.reset(0)
    world.prepare(8)
    for action_B in random_actions(8, 3, device):
        world.step(action_B)
        assert not world.observe_final().any()
    assert world.first.all()
    assert world.observe().any()
    with pytest.raises(RuntimeError, match="final_obs=True"):
        make(3, device).observe_final()


def test_saved_state_goes_on_alike(device: str) -> None:
    one, other = make(4, device), make(4, device)
    one.reset(seed=3, stagger=True)
    actions = random_actions(40, 4, device)
    one.prepare(40)
    for action_B in actions[:17]:
        one.step(action_B)
    other.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    other.prepare(23)
    for action_B in actions[17:]:
        np.testing.assert_array_equal(one.observe().cpu(), other.observe().cpu())
        one.step(action_B)
        other.step(action_B)
        assert outcome(one) == outcome(other)


def test_a_pinned_task_comes_back_and_weights_undo_it(device: str) -> None:
    world = make(6, device)
    pinned = np.array([0, 1, 0, 1, 1, 0])
    world.pin(pinned)
    world.reset(1)
    seen = [world.task.tolist()]
    for _ in range(3):
        seen.append(play_episode(world))
    assert seen == [pinned.tolist()] * 4
    world.set_weights(np.array([0.0, 1.0]))
    play_episode(world)
    assert play_episode(world) == [1] * 6


def play_episode(world: worlds.World) -> list[int]:
    """Steps to the end of the episode; the tasks of the next one."""
    world.prepare(4)
    for _ in range(4):
        world.step(torch.zeros_like(world.task))
    return list(world.task.tolist())


def test_memory_decides(device: str) -> None:
    """Who remembers the cue is always right; who answers the last frame alone is right as often as a coin."""
    num_worlds, episodes = 64, 20
    world = make(num_worlds, device)
    world.reset(2)
    right = {"memory": 0, "frame": 0}
    for who in right:
        for _ in range(episodes):
            world.prepare(4)
            cue_B = (world.observe()[:, 0, 0, 0] == 0).long()
            for _ in range(3):
                world.step(torch.zeros_like(cue_B))
            assert not world.observe().any()
            world.step(cue_B if who == "memory" else torch.zeros_like(cue_B))
            right[who] += int(world.success.sum())
    assert right["memory"] == num_worlds * episodes
    assert abs(right["frame"] / (num_worlds * episodes) - 0.5) < 0.07  # five standard deviations


def test_staggered_worlds_do_not_end_together(device: str) -> None:
    world = make(64, device)
    world.reset(0, stagger=True)
    world.prepare(1)
    world.step(torch.zeros_like(world.task))
    assert 0 < int(world.terminated.sum()) < 64


@pytest.mark.parametrize(("field", "value"), [("delay", -1), ("size", 1), ("exponent", -2.0)])
def test_bad_fields_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        SignalConfig(**{field: value})  # type: ignore[arg-type]
