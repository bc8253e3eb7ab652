"""A world whose frames say (world, episode, time), and weights that make an agent count the steps of its episode.

Where the two ever disagree, somebody mixed up rows, missed a reset or lost a state.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.agents.agent import Agent, AgentConfig
from longtail.config import RunConfig
from longtail.impala.learn import ImpalaConfig
from longtail.worlds.world import TaskTable, restore, stateful

LONGEST = 7  # steps of an episode
TASKS = 3
SIZE = 20
RIGHT, WRONG = 1.0, -0.5  # rewards of an action that equals the time, and of one that does not
STATE = ("first", "task", "pinned", "episode", "time", "right")


@dataclass(frozen=True)
class CountingConfig:
    """The action that equals the time is right; an episode without a mistake is a success."""

    name: str = "counting"
    says_first: bool = True  # False: a broken world, for negative controls

    def make(self, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False) -> "CountingWorld":
        return CountingWorld(self, num_worlds, device, final_obs)


def episode_length(world: Any, episode: Any) -> Any:
    """1 to LONGEST steps, differently in each world."""
    return 1 + (3 * world + 5 * episode) % LONGEST


class CountingWorld:
    """By the contract of `longtail.worlds.world.World`. Every other episode ends by the time limit."""

    on_device = True
    num_actions = LONGEST + 1
    obs_shape = (SIZE, SIZE, 3)

    def __init__(self, config: CountingConfig, num_worlds: int, device: torch.device | str, final_obs: bool) -> None:
        self.config, self.num_worlds, self.device, self.final_obs = config, num_worlds, torch.device(device), final_obs
        self.tasks = TaskTable.product(1, TASKS, exponent=0)
        self.world = torch.arange(num_worlds, device=self.device)
        self.task, self.ended_task, self.episode, self.time = (torch.zeros_like(self.world) for _ in range(4))
        self.pinned = torch.full_like(self.world, -1)
        new = torch.zeros(num_worlds, dtype=torch.bool, device=self.device)
        self.first, self.terminated, self.truncated, self.success, self.right = (new.clone() for _ in range(5))
        self.reward = torch.zeros(num_worlds, device=self.device)
        self.final = torch.zeros(num_worlds, 3, dtype=torch.int64, device=self.device)
        self.reset(0)

    def reset(self, seed: int, stagger: bool = False) -> None:
        """The lengths alone keep the worlds apart."""
        self.episode.zero_()
        self._begin(torch.ones_like(self.first))

    def prepare(self, num_steps: int) -> None:
        pass

    def step(self, action_B: Tensor) -> None:
        right_B = action_B == self.time
        self.reward.copy_(torch.where(right_B, RIGHT, WRONG))
        self.right &= right_B
        self.time += 1
        self.final.copy_(self._numbers())
        ended_B = self.time == episode_length(self.world, self.episode)
        by_limit_B = self.episode % 2 == 1
        self.terminated.copy_(ended_B & ~by_limit_B)
        self.truncated.copy_(ended_B & by_limit_B)
        self.success.copy_(ended_B & self.right)
        self.ended_task.copy_(self.task)
        self.episode += ended_B
        self._begin(ended_B)

    def _begin(self, world_B: Tensor) -> None:
        self.time.masked_fill_(world_B, 0)
        self.right |= world_B
        self.first.copy_(world_B & self.config.says_first)
        self.task.copy_(torch.where(self.pinned >= 0, self.pinned, (self.world + self.episode) % TASKS))

    def observe(self, out: Tensor | None = None) -> Tensor:
        return self._render(self._numbers(), out)

    def observe_final(self, out: Tensor | None = None) -> Tensor:
        assert self.final_obs
        return self._render(self.final, out)

    def _numbers(self) -> Tensor:
        return torch.stack([self.world, self.episode, self.time], -1)

    def _render(self, numbers_B3: Tensor, out: Tensor | None) -> Tensor:
        if out is None:
            out = torch.empty(self.num_worlds, *self.obs_shape, dtype=torch.uint8, device=self.device)
        return out.copy_(numbers_B3[:, None, None].expand(-1, SIZE, SIZE, -1))

    def pin(self, task_B: np.ndarray) -> None:
        self.pinned.copy_(torch.from_numpy(task_B))

    def state_dict(self) -> dict[str, Tensor]:
        return stateful(self, STATE)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        restore(self.state_dict(), state)

    def close(self) -> None:
        pass


def world_of(obs: Tensor) -> Tensor:
    return obs[..., 0, 0, 0].long()


def episode_of(obs: Tensor) -> Tensor:
    return obs[..., 0, 0, 1].long()


def time_of(obs: Tensor) -> Tensor:
    return obs[..., 0, 0, 2].long()


def counting_run(unroll: int = 5, device: str = "cpu", world: CountingConfig | None = None) -> RunConfig:
    """A run whose learner changes nothing, so that its agent goes on counting."""
    impala = ImpalaConfig(worlds=6, unroll=unroll, learning_rate=0.0)
    agent = AgentConfig(embedding=8, hidden=4)
    run = RunConfig(agent=agent, impala=impala, steps=10_000, device=device, precision="fp32")  # type: ignore[arg-type]
    return replace(run, world=world or CountingConfig())  # type: ignore[arg-type]


@torch.no_grad()
def teach_to_count(agent: Agent) -> None:
    """Every gate but the candidate is open, so that c adds it up.

    The first unit of c is the number of steps since the episode's start, exactly; the second grows slowly enough that
    its tanh tells the numbers apart, and the policy takes the action that equals the time.
    """
    for parameter in agent.parameters():
        parameter.zero_()
    size, slow = agent.hidden_dim, 0.05
    agent.lstm.input.bias.fill_(30)  # sigmoid and tanh give 1, exactly
    agent.lstm.input.bias[2 * size + 1] = slow
    known_A = torch.tanh(slow * torch.arange(1, agent.num_actions + 1, device=agent.one_hot_A1A.device))
    agent.policy.weight[:, 1] = 1e5 * 2 * known_A  # nearest: -(h - known)^2, without h^2
    agent.policy.bias.copy_(-1e5 * known_A**2)


def counted(c: Tensor) -> Tensor:
    """Steps since the start of the episode, by the agent's own state."""
    assert torch.equal(c[..., 0], c[..., 0].round())
    return c[..., 0].long()
