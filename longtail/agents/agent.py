"""The agent: encoder -> p = [embedding, one-hot last action, last reward] -> LSTM with a memory read -> policy, value."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longtail.agents.encoder import ENCODERS, Kind, Weights
from longtail.agents.lstm import MemoryLSTM, Read


@dataclass(frozen=True)
class AgentConfig:
    """Network sizes."""

    encoder: Kind = "shallow"
    """IMPALA's shallow or deep (residual) image encoder."""
    embedding: int = 256
    """Size of the image embedding."""
    hidden: int = 256
    """Size of the LSTM state."""

    def __post_init__(self) -> None:
        if self.encoder not in ENCODERS:
            raise ValueError(f"agent.encoder is {self.encoder!r}: it must be one of {', '.join(ENCODERS)}")
        for name in ("embedding", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"agent.{name} is {getattr(self, name)}: it must be at least 1")


class Agent(nn.Module):
    """Recurrent actor-critic for images. `memory_dim` is the size of what a memory read returns, 0 for none."""

    action_A: Tensor

    def __init__(
        self,
        obs_shape: tuple[int, int, int],
        num_actions: int,
        config: AgentConfig,
        dtype: torch.dtype = torch.float32,
        memory_dim: int = 0,
    ) -> None:
        super().__init__()
        self.num_actions, self.hidden_dim = num_actions, config.hidden
        self.encoder = ENCODERS[config.encoder](obs_shape, config.embedding, dtype)
        self.p_dim = config.embedding + num_actions + 1
        self.lstm = MemoryLSTM(self.p_dim, config.hidden, memory_dim)
        self.policy = nn.Linear(config.hidden, num_actions)
        self.value = nn.Linear(config.hidden, 1)
        self.register_buffer("action_A", torch.arange(num_actions), persistent=False)

    @property
    def no_action(self) -> int:
        """The last action at an episode's start: its one-hot vector is zero."""
        return self.num_actions

    def describe(self, embedding_ND: Tensor, last_action_N: Tensor, last_reward_N: Tensor) -> Tensor:
        """p, the pixel input embedding with what was done and received last."""
        one_hot_NA = torch.eq(last_action_N[..., None], self.action_A)
        return torch.cat([embedding_ND, one_hot_NA.to(embedding_ND.dtype), last_reward_N[..., None]], -1)

    def step(
        self,
        obs_BHWC: Tensor,
        first_B: Tensor,
        last_action_B: Tensor,
        last_reward_B: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        weights: Weights | None = None,
        read: Read | None = None,
    ) -> Tensor:
        """Policy logits for one step of acting; h and c move on in place."""
        p_BP = self.describe(self.encoder(obs_BHWC, weights), last_action_B, last_reward_B)
        h, c = self.lstm.step(p_BP, (~first_B)[:, None].to(h_BH.dtype), h_BH, c_BH, read)
        h_BH.copy_(h)
        c_BH.copy_(c)
        return self.policy(h)

    def unroll(
        self,
        obs_TBHWC: Tensor,
        first_TB: Tensor,
        last_action_TB: Tensor,
        last_reward_TB: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        read: Read | None = None,
    ) -> tuple[Tensor, Tensor]:
        """h and c after each of T steps, for learning; gives what T calls of `step` give."""
        embedding_TBD = self.encoder(obs_TBHWC.flatten(0, 1)).unflatten(0, first_TB.shape)
        p_TBP = self.describe(embedding_TBD, last_action_TB, last_reward_TB)
        return self.lstm.unroll(p_TBP, (~first_TB)[..., None].to(h_BH.dtype), h_BH, c_BH, read)
