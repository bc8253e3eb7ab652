"""What a method adds to IMPALA, and how the one loop asks for it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longtail.agents.agent import Agent
from longtail.agents.lstm import Read
from longtail.impala.act import Rollout
from longtail.worlds import TaskTable

Row = dict[str, float | None]


class Sizes(NamedTuple):
    """What a method is built for."""

    obs_shape: tuple[int, int, int]
    num_actions: int
    embedding: int
    hidden: int
    worlds: int
    unroll: int

    @property
    def p_dim(self) -> int:
        return self.embedding + self.num_actions + 1


class Method(nn.Module):
    """Adds nothing: IMPALA itself. A method overrides what it does differently.

    An iteration calls `acting`, `observe`, `learning`, `loss` and `update` in this order; none may wait for the
    device. Parameters are trained with the agent's, buffers are in the checkpoint.
    """

    memory_dim = 0  # size of what a read returns
    per_episode = False  # whether a read depends on what came before in its episode
    metrics: tuple[str, ...] = ()  # what `report` returns, mean over the iterations between two rows of metrics.jsonl

    def __init__(self, sizes: Sizes, config: Any, generator: torch.Generator | None) -> None:
        """`config` is the method's section of the run's configuration."""
        super().__init__()

    def acting(self) -> Read | None:
        """What the agent reads from while it acts; called without gradients."""
        return None

    def observe(self, rollout: Rollout) -> None:
        """A rollout has been made."""

    def learning(self) -> Read | None:
        """What gives the same reads once more, differentiably."""
        return None

    def loss(self, agent: Agent, rollout: Rollout) -> Tensor | None:
        """What is added to IMPALA's loss, weight included."""
        return None

    def update(self) -> None:
        """The gradient step has been made."""

    def report(self) -> tuple[Tensor, Tensor]:
        """Of this iteration: the values of `metrics`, and 1 for each that counts."""
        none = torch.zeros(0)
        return none, none

    def inspect(self, rollout: Rollout, tasks: TaskTable) -> Row:
        """What can be seen from outside, for a row of metrics.jsonl. Only here is the true rarity of tasks known."""
        return {}

    def playing(self, num_episodes: int) -> Read | None:
        """What the agent reads from in as many new episodes all of it frozen; if `per_episode`, it has a `copy`."""
        return self.acting()
