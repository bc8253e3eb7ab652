"""The agent: encoder -> p = [embedding, one-hot last action, last reward] -> LSTM, memory read -> policy, value."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.agents.encoder import DeepEncoder, Encoder, Weights
from longtail.agents.lstm import LSTMTape, LSTMWeights, MemoryLSTM, Read
from longtail.agents.precision import products
from longtail.agents.shallow import ImageTape, ShallowEncoder

Kind = Literal["shallow", "deep"]
ENCODERS: dict[str, type[Encoder]] = {"shallow": ShallowEncoder, "deep": DeepEncoder}


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


@dataclass
class Tape:
    """What acting computed, for a learner that still has the same parameters: nothing is done twice."""

    images: ImageTape | None  # None: this encoder computes anew
    lstm: LSTMTape

    def clear(self) -> None:
        self.lstm.moments.clear()
        if self.images is not None:
            self.images.clear()


class AgentWeights(NamedTuple):
    encoder: Weights
    lstm: LSTMWeights


class Agent(nn.Module):
    """Recurrent actor-critic for images. `memory_dim` is the size of what a memory read returns, 0 for none."""

    one_hot_A1A: Tensor

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
        self.lstm = MemoryLSTM(self.p_dim, config.hidden, memory_dim, dtype)
        self.policy = nn.Linear(config.hidden, num_actions)
        self.value = nn.Linear(config.hidden, 1)
        self.register_buffer("one_hot_A1A", torch.eye(num_actions + 1, num_actions), persistent=False)

    @property
    def no_action(self) -> int:
        """The last action at an episode's start: its one-hot vector is zero."""
        return self.num_actions

    def prepare(self, batch: int = 1) -> AgentWeights:
        """The weights as kernels want them: once for many steps. `batch` is given where all steps have the same."""
        return AgentWeights(self.encoder.prepare(batch), self.lstm.prepare(batch))

    def tape(self, num_steps: int, batch: int) -> Tape:
        """For a rollout of as many steps, each of a batch."""
        images = ImageTape(self.encoder, num_steps * batch) if isinstance(self.encoder, ShallowEncoder) else None
        return Tape(images, self.lstm.tape(num_steps, batch))

    def describe(self, embedding_ND: Tensor, last_action_N: Tensor, last_reward_N: Tensor) -> Tensor:
        """p, the pixel input embedding with what was done and received last."""
        one_hot_NA = F.embedding(last_action_N, self.one_hot_A1A)
        return torch.cat([embedding_ND, one_hot_NA, last_reward_N[..., None]], -1)

    def step(
        self,
        obs_BHWC: Tensor,
        first_B: Tensor,
        last_action_B: Tensor,
        last_reward_B: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        weights: AgentWeights | None = None,
        read: Read | None = None,
        tape: Tape | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Policy logits for one step of acting, and the new h and c. With a tape, `unroll` can use this pass."""
        w = self.prepare() if weights is None else weights
        with products(self.encoder.dtype):
            encode = self.encoder if tape is None or tape.images is None else tape.images.record
            embedding_BD = encode(obs_BHWC, w.encoder)
            p_BP = self.describe(embedding_BD, last_action_B, last_reward_B)
            lstm_tape = tape.lstm if tape else None
            h_BH, c_BH = self.lstm.step(p_BP, first_B[:, None], h_BH, c_BH, w.lstm, read, lstm_tape)
        return self.logits(h_BH), h_BH, c_BH

    def logits(self, h_NH: Tensor) -> Tensor:
        with products(self.encoder.dtype):
            return self.policy(h_NH)

    def values(self, h_NH: Tensor) -> Tensor:
        with products(self.encoder.dtype):
            return self.value(h_NH)[..., 0]

    def unroll(
        self,
        obs_TBHWC: Tensor,
        first_TB: Tensor,
        last_action_TB: Tensor,
        last_reward_TB: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        weights: AgentWeights | None = None,
        read: Read | None = None,
        tape: Tape | None = None,
    ) -> tuple[Tensor, Tensor]:
        """h and c after each of T steps, for learning; gives what T calls of `step` give.

        A tape of these steps saves computing them again.
        """
        w = self.prepare() if weights is None else weights
        encode = self.encoder if tape is None or tape.images is None else tape.images.replay
        embedding_ND = encode(obs_TBHWC.flatten(0, 1), w.encoder)
        p_TBP = self.describe(embedding_ND.unflatten(0, first_TB.shape), last_action_TB, last_reward_TB)
        lstm_tape = tape.lstm if tape else None
        with products(self.encoder.dtype):
            return self.lstm.unroll(p_TBP, first_TB[..., None], h_BH, c_BH, w.lstm, read, lstm_tape)
