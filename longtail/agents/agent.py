"""The agent: encoder -> p = [embedding, one-hot last action, last reward] -> LSTM, memory read -> policy, value."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longtail.agents.encoder import ENCODERS, Activations, Kind, Weights
from longtail.agents.lstm import MemoryLSTM, Read
from longtail.agents.precision import products


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
        tape: list[Activations] | None = None,
    ) -> Tensor:
        """Policy logits for one step of acting; h and c move on in place. With a tape, `unroll` can use this pass."""
        if tape is None:
            embedding_BD = self.encoder(obs_BHWC, weights)
        else:
            tape.append(self.encoder.layers(obs_BHWC, self.encoder.prepare() if weights is None else weights))
            embedding_BD = tape[-1][-1].float()
        p_BP = self.describe(embedding_BD, last_action_B, last_reward_B)
        with products(self.encoder.dtype):
            h, c = self.lstm.step(p_BP, torch.logical_not(first_B).to(h_BH.dtype)[:, None], h_BH, c_BH, read)
        h_BH.copy_(h)
        c_BH.copy_(c)
        return self.logits(h)

    def logits(self, h_NH: Tensor) -> Tensor:
        with products(self._head_dtype(h_NH)):
            return self.policy(h_NH)

    def values(self, h_NH: Tensor) -> Tensor:
        with products(self._head_dtype(h_NH)):
            return self.value(h_NH)[..., 0]

    def _head_dtype(self, h_NH: Tensor) -> torch.dtype:
        """Rounding to TF32 costs little and saves time on a GPU; to bf16, on a CPU, it would be the other way round."""
        return self.encoder.dtype if h_NH.is_cuda else torch.float32

    def unroll(
        self,
        obs_TBHWC: Tensor,
        first_TB: Tensor,
        last_action_TB: Tensor,
        last_reward_TB: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        read: Read | None = None,
        tape: list[Activations] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """h and c after each of T steps, for learning; gives what T calls of `step` give.

        A tape of the first T - 1 steps saves encoding them again; no gradient flows into the last one's image then.
        """
        embedding_TBD = self.encoder(obs_TBHWC.flatten(0, 1)) if tape is None else self._replay(obs_TBHWC, tape)
        p_TBP = self.describe(embedding_TBD.unflatten(0, first_TB.shape), last_action_TB, last_reward_TB)
        with products(self.encoder.dtype):
            return self.lstm.unroll(p_TBP, (~first_TB)[..., None].to(h_BH.dtype), h_BH, c_BH, read)

    def _replay(self, obs_TBHWC: Tensor, tape: list[Activations]) -> Tensor:
        weights = self.encoder.prepare()
        with torch.no_grad():
            last_BD = self.encoder(obs_TBHWC[-1], weights)
        return torch.cat([self.encoder.replay(obs_TBHWC[:-1].flatten(0, 1), tape, weights), last_BD])
