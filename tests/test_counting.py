"""The frame's number equals the recurrent state: through acting, learning, evaluation and resuming, exactly."""

from pathlib import Path

import numpy as np
import pytest
import torch
from counting import (
    LONGEST,
    RIGHT,
    TASKS,
    CountingConfig,
    counted,
    counting_run,
    episode_length,
    episode_of,
    teach_to_count,
    time_of,
    world_of,
)
from tiny import with_method
from torch import Tensor

from longtail import checkpoint, worlds
from longtail.agents.agent import Agent
from longtail.evaluate import evaluate, play_episodes, play_tasks
from longtail.impala.act import Rollout
from longtail.memory import BoostedMemory
from longtail.methods import Method, Sizes
from longtail.train import Trainer, train
from longtail.trained import TrainedAgent, load

ROLLOUTS = 8  # of 5 steps: episodes end at every place of a rollout


def counting_trainer(device: str, world: CountingConfig | None = None, unroll: int = 5) -> Trainer:
    trainer = Trainer(counting_run(unroll=unroll, device=device, world=world))
    teach_to_count(trainer.agent)
    return trainer


def mistakes(rollout: Rollout) -> int:
    """Steps at which the agent counted something else than the frame shows."""
    return int((rollout.action != time_of(rollout.obs[:-1])).sum())


def unrolled(agent: Agent, r: Rollout, first_TB: Tensor, c_BH: Tensor) -> Tensor:
    """c before each of the steps, as the learner has it."""
    _, c_TBH = agent.unroll(r.obs, first_TB, r.last_action, r.last_reward, r.h_before, c_BH)
    return counted(c_TBH) - 1


@pytest.mark.parametrize("unroll", [1, 5, 8])
def test_acting(unroll: int, device: str) -> None:
    trainer = counting_trainer(device, unroll=unroll)
    r, seen = trainer.rollout, []
    for _ in range(ROLLOUTS):
        trainer.iteration()
        assert mistakes(r) == 0
        seen.append(r.obs[:-1].clone().cpu())
        first, time = r.first, time_of(r.obs)
        assert torch.equal(first, time == 0)
        # The state at both of the rollout's ends has counted all steps before that row.
        assert torch.equal(counted(r.c_before)[~first[0]], time[0][~first[0]])
        assert torch.equal(counted(r.c)[~first[-1]], time[-1][~first[-1]])
    check_frames(torch.cat(seen))


def check_frames(obs: Tensor) -> None:
    """Episode after episode of each world, none of their steps lost or doubled."""
    for world in range(obs.shape[1]):
        assert (world_of(obs[:, world]) == world).all()
        expected = [(e, t) for e in range(len(obs)) for t in range(episode_length(world, e))]
        seen = zip(episode_of(obs[:, world]).tolist(), time_of(obs[:, world]).tolist(), strict=True)
        assert list(seen) == expected[: len(obs)]


def test_acting_without_resets_is_noticed(device: str) -> None:
    trainer = counting_trainer(device, CountingConfig(says_first=False))
    trainer.iteration()
    assert mistakes(trainer.rollout) > 0


def test_learning(device: str) -> None:
    """The learner's unroll from the stored first state; and what it would be from another state, or without resets."""
    trainer = counting_trainer(device)
    r, agent = trainer.rollout, trainer.agent
    wrong_state = wrong_reset = 0
    for _ in range(ROLLOUTS):
        trainer.iteration()
        expected = time_of(r.obs)
        assert torch.equal(unrolled(agent, r, r.first, r.c_before), expected)
        wrong_state += int((unrolled(agent, r, r.first, r.c) != expected).sum())
        wrong_reset += int((unrolled(agent, r, torch.zeros_like(r.first), r.c_before) != expected).sum())
    assert wrong_state > 0 and wrong_reset > 0


def test_what_is_counted_in_training(device: str) -> None:
    """Every episode of an agent that counts is a success, of the task it belongs to."""
    trainer = counting_trainer(device)
    for _ in range(ROLLOUTS):
        trainer.iteration()
    steps, expected = ROLLOUTS * trainer.rollout.unroll, [0, 0, 0]
    for world in range(6):
        ended = episode_length(world, torch.arange(steps)).cumsum(0) <= steps
        for episode in range(int(ended.sum())):
            expected[(world + episode) % 3] += 1
    assert trainer.counters.episodes_n.tolist() == trainer.counters.successes_n.tolist() == expected


WORLDS, UNROLL, HOP, SLOTS = 6, 5, 2, 47
KEPT = UNROLL // HOP + 1  # steps 0, 2 and 4 of each rollout


def remembering(device: str, world: CountingConfig | None = None) -> Trainer:
    """A counting agent whose familiarity buffer is overwritten in the middle of rollouts."""
    run = with_method(counting_run(UNROLL, device, world), "boosted", familiarity=SLOTS, hop=HOP, transfer_every=1)
    trainer = Trainer(run)
    teach_to_count(trainer.agent)
    return trainer


def steps_of(world: int, count: int) -> list[tuple[int, int, int]]:
    """(world, episode, time) of its first steps."""
    return [(world, e, t) for e in range(count) for t in range(episode_length(world, e))][:count]


def stored(memory: BoostedMemory) -> list[tuple[int, int, int]]:
    """What the image of each slot shows."""
    image = memory.familiarity.image
    return list(zip(*(of(image).tolist() for of in (world_of, episode_of, time_of)), strict=True))


def test_what_goes_into_the_familiarity_buffer(device: str) -> None:
    """Every hop-th step of each rollout, with the p, h and task of that very step; the newest replace the oldest."""
    trainer = remembering(device)
    memory, steps = trainer.method.memory, [steps_of(world, 12 * UNROLL) for world in range(WORLDS)]
    expected: list[tuple[int, int, int]] = [(0, 0, 0)] * SLOTS
    slot = firsts = 0
    for i in range(12):
        trainer.iteration()
        assert mistakes(trainer.rollout) == 0
        for t in range(0, UNROLL, HOP):
            for world in range(WORLDS):
                expected[slot % SLOTS] = steps[world][i * UNROLL + t]
                slot += 1
        assert stored(memory) == expected
        check_states(memory, filled=min(slot, SLOTS))
        firsts += sum(time == 0 for _, _, time in expected)
    assert slot == 12 * KEPT * WORLDS and firsts > 20  # over rollout borders and starts of episodes
    assert int(memory.mem.filled) == memory.mem.capacity
    assert mistakes_of_mem(memory) == 0


def steps_before(h_NH: Tensor) -> Tensor:
    """How many of its episode's steps an h has seen: its first unit is tanh of it."""
    known = torch.tanh(torch.arange(LONGEST + 1, device=h_NH.device))
    return (h_NH[:, :1] - known).abs().argmin(-1)


def check_states(memory: BoostedMemory, filled: int) -> None:
    """h has seen the steps before this one in its episode; p has the action and the reward that came before it."""
    f = memory.familiarity
    image, p, h, tag = f.image[:filled], f.p[:filled], f.h[:filled], f.tag[:filled]
    time, later = time_of(image), time_of(image) > 0
    assert torch.equal(steps_before(h), time) and (h[time == 0] == 0).all()
    last_action, last_reward = p[:, 8 : 8 + LONGEST + 1], p[:, -1]
    assert torch.equal(last_action[later].argmax(-1), time[later] - 1)
    assert torch.equal(last_action.sum(-1), later.to(p.dtype)) and torch.equal(last_reward, later.to(p.dtype) * RIGHT)
    assert torch.equal(tag, (world_of(image) + episode_of(image)) % TASKS)
    torch.testing.assert_close(f.key[:filled], memory.key(torch.cat([p, h], 1)).detach(), rtol=0, atol=1e-4)


def mistakes_of_mem(memory: BoostedMemory) -> int:
    """States in MEM whose h is not that of the step which p tells: p knows the last action, which is the time."""
    p, h = memory.mem.p, memory.mem.h
    one_hot = p[:, 8 : 8 + LONGEST + 1]
    time = torch.where(one_hot.any(-1), one_hot.argmax(-1) + 1, 0)
    return int((steps_before(h) != time).sum())


def test_states_of_another_step_would_be_noticed(device: str) -> None:
    """The control: without resets, the h of an episode's first step is what the episode before has left."""
    trainer = remembering(device, CountingConfig(says_first=False))
    for _ in range(5):
        trainer.iteration()
    with pytest.raises(AssertionError):
        check_states(trainer.method.memory, filled=SLOTS)


class Forgetful(Agent):
    """Negative control: every step is the first."""

    def step(self, obs_BHWC: Tensor, first_B: Tensor, *rest: Tensor) -> Tensor:  # type: ignore[override]
        return super().step(obs_BHWC, torch.ones_like(first_B), *rest)


def trained(device: str, kind: type[Agent] = Agent) -> TrainedAgent:
    run, where = counting_run(device=device), torch.device(device)
    world = worlds.make(run.world, 1, where)
    agent = kind(world.obs_shape, world.num_actions, run.agent).to(where)
    teach_to_count(agent)
    method = Method(Sizes(world.obs_shape, world.num_actions, 8, 4, 6, 5), None, None)
    generator = torch.Generator(where).manual_seed(0)
    return TrainedAgent(run, agent, method, 0, np.zeros(3), where, generator, world.obs_shape)


@pytest.mark.parametrize("greedy", [True, False])
def test_evaluation(greedy: bool, device: str) -> None:
    world = worlds.make(CountingConfig(), 23, device)  # type: ignore[arg-type]
    length_B = episode_length(np.arange(23), 0)
    for kind in (Agent, Forgetful):
        world.reset(0)
        success_B, return_B = play_episodes(trained(device, kind), world, greedy)
        if kind is Agent:
            assert success_B.all()
            np.testing.assert_array_equal(return_B, length_B)
        else:  # always 0: right at the first step only
            np.testing.assert_array_equal(success_B, length_B == 1)
            np.testing.assert_array_equal(return_B, 1 - 0.5 * (length_B - 1))


def test_evaluation_of_every_task_in_rounds(device: str) -> None:
    """More episodes than worlds: each round starts afresh, and its spare worlds do not count."""
    tasks, outcomes = play_tasks(trained(device), episodes=50, greedy=True, seed=0)
    assert len(tasks) == 3
    assert outcomes.successes_n.tolist() == outcomes.episodes_n.tolist() == [50, 50, 50]
    assert (outcomes.return_n > 1).all()
    _, forgotten = play_tasks(trained(device, Forgetful), episodes=50, greedy=True, seed=0)
    assert (forgotten.successes_n < 25).all()


def test_a_trained_agent_acts_on_a_batch(device: str) -> None:
    """`first` starts single episodes anew; without it the count runs on."""
    for says_first in (True, False):
        agent, world = trained(device), worlds.make(CountingConfig(), 6, device)  # type: ignore[arg-type]
        state, wrong = None, 0
        for _ in range(40):
            obs, first = world.observe().cpu().numpy(), world.first.cpu().numpy()
            action, state = agent.act(
                obs, state, reward=world.reward.cpu().numpy(), first=first if says_first else False, greedy=True
            )
            assert isinstance(action, np.ndarray)
            wrong += int((action != obs[:, 0, 0, 2]).sum())
            world.step(torch.from_numpy(action).to(device))
        assert (wrong == 0) == says_first


def test_a_trained_agent_acts_on_one_image(device: str) -> None:
    agent, world = trained(device), worlds.make(CountingConfig(), 1, device)  # type: ignore[arg-type]
    state = None
    for _ in range(30):
        image = world.observe()[0]
        state = None if bool(world.first) else state
        action, state = agent.act(image, state, reward=float(world.reward))
        assert action == int(time_of(image))
        world.step(torch.tensor([action], device=device))


def test_a_kept_state_is_not_changed_by_acting(device: str) -> None:
    """One can act twice from the same state, to look ahead."""
    agent, obs = trained(device), np.zeros((20, 20, 3), np.uint8)
    _, state = agent.act(obs)
    for _ in range(2):
        action, after = agent.act(obs, state, greedy=True)
        assert action == 1 and after is not state


@pytest.mark.parametrize("lost", [None, "rollout.c", "rollout.h", "world.time"])
def test_resuming(lost: str | None, tmp_path: Path, device: str) -> None:
    """From a checkpoint in the middle of episodes; h alone carries nothing here, since no gate looks at it."""
    before = counting_trainer(device)
    for _ in range(3):
        before.iteration()
    assert not before.rollout.first[-1].all()
    saved = checkpoint.save_checkpoint(tmp_path, before.step, before.state_dict(), {}, keep=1)
    state, _ = checkpoint.load_checkpoint(saved)
    if lost:
        state[lost].zero_()
    after = Trainer(counting_run(device=device))
    after.load_state_dict(state)
    frames = before.rollout.obs[-1].clone()
    wrong = 0
    for _ in range(ROLLOUTS):
        after.iteration()
        wrong += mistakes(after.rollout)
        if lost is None:
            before.iteration()
            assert torch.equal(after.rollout.obs, before.rollout.obs)
            assert torch.equal(after.rollout.obs[0], frames)
            frames = after.rollout.obs[-1].clone()
    assert (wrong == 0) == (lost in (None, "rollout.h"))


def test_a_run_folder_of_somebody_elses_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A world that is in the registry is all it takes to train, load and evaluate by name."""
    monkeypatch.setitem(worlds.WORLDS, "counting", CountingConfig())
    run = train(counting_run(), tmp_path / "run", stop_at=100, quiet=True)
    assert load(run).config == counting_run()
    assert evaluate(run, episodes=2, quiet=True)["uniform"]["episodes"] == 6
