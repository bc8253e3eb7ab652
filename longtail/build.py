"""From a configuration to what is trained: the agent and its method, the same ones on every device."""

import torch

from longtail.agents.agent import Agent
from longtail.config import RunConfig
from longtail.methods import METHODS, Method, Sizes


def build(
    config: RunConfig,
    obs_shape: tuple[int, int, int],
    num_actions: int,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> tuple[Agent, Method]:
    """A new agent and its method with the run's initial weights, on the CPU: so they are the same on every device."""
    c = config
    sizes = Sizes(obs_shape, num_actions, c.agent.embedding, c.agent.hidden, c.impala.worlds, c.impala.unroll)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(c.seed)
        method = METHODS[c.method].kind(sizes, c.method_config, generator)
        torch.manual_seed(c.seed)  # whatever the method has drawn, the agent's weights are the same
        agent = Agent(obs_shape, num_actions, c.agent, dtype, method.memory_dim)
    return agent, method
