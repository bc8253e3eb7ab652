"""HCAM (Lampinen et al., 2021): a memory of the running episode, in chunks of which only the best are attended to.

What was met in an episode is kept in chunks of consecutive steps. A query scores each chunk by its summary, the mean of
its keys; the best few are attended to, each for itself, and their results are added by relevance. Chunks are those of
the clock that all worlds share, so that an episode's first one may be shorter. Stored states are constants.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longtail.methods.method import Method, Sizes


@dataclass(frozen=True)
class HCAMConfig:
    """Hierarchical chunk attention memory."""

    chunk: int = 16
    """Steps of a chunk; it must divide impala.unroll."""
    chunks: int = 8
    """Newest whole chunks that are remembered."""
    chosen: int = 2
    """Chunks that a step attends to."""
    key_dim: int = 64
    """Size of queries, keys and values."""

    @property
    def window(self) -> int:
        """Steps of all chunks."""
        return self.chunk * self.chunks

    def __post_init__(self) -> None:
        for name in ("chunk", "chunks", "chosen", "key_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"hcam.{name} is {getattr(self, name)}: it must be at least 1")
        if self.chosen > self.chunks:
            raise ValueError(f"hcam.chosen is {self.chosen}: it must be at most hcam.chunks, {self.chunks}")


class Heads(nn.Module):
    """Queries, keys and values of states s = [p, h], and what is read as an input of the LSTM.

    Keys and values are linear in the state, so they are never made: the query is turned into one of states instead,
    and the mean of states into that of values. Only queries have a bias, so that an empty memory reads zero.
    """

    def __init__(self, state_dim: int, key_dim: int, memory_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(state_dim, key_dim)
        self.key = nn.Linear(state_dim, key_dim, bias=False)
        self.value = nn.Linear(state_dim, key_dim, bias=False)
        self.out = nn.Linear(key_dim, memory_dim, bias=False)

    def attend(self, state_BS: Tensor, past: "Past", skip_BN: Tensor, chosen: int) -> Tensor:
        """m [B, M], from N chunks of X states of which the first few, of an earlier episode, are skipped."""
        query_BD, S, X = self.query(state_BS), state_BS.shape[1], past.states_BNXS.shape[2]
        toward_BS1 = (query_BD @ self.key.weight)[..., None] * query_BD.shape[-1] ** -0.5
        sum_BNS = past.sums_BNYS.gather(2, skip_BN[..., None, None].expand(-1, -1, 1, S))[:, :, 0]
        mean_BNS = sum_BNS / (X - skip_BN).clamp(min=1)[..., None]
        relevance_BN = (mean_BNS @ toward_BS1)[..., 0].masked_fill(skip_BN == X, -1e9)
        best = torch.topk(relevance_BN, chosen)
        skip_BJ1 = skip_BN.gather(1, best.indices)[..., None]
        share_BJ1 = best.values.softmax(-1)[..., None] * (skip_BJ1 < X)
        past_BJXS = past.states_BNXS.gather(1, best.indices[..., None, None].expand(-1, -1, X, S))
        attention_BJX = (past_BJXS @ toward_BS1[:, None])[..., 0]
        attention_BJX = attention_BJX.masked_fill(torch.arange(X, device=skip_BN.device) < skip_BJ1, -1e9)
        weight_BJX = attention_BJX.softmax(-1) * share_BJ1
        mean_BS = (weight_BJX.flatten(1)[:, None] @ past_BJXS.flatten(1, 2))[:, 0]
        return self.out(self.value(mean_BS))


class Past(NamedTuple):
    """The newest whole chunks, the same for all steps until the next one is whole."""

    states_BNXS: Tensor
    sums_BNYS: Tensor  # of a chunk's states from the y-th on, y from 0 to X: nothing is left of the last


class Chunks:
    """B episodes under way: the states of the newest whole chunks, and those of the steps since then.

    Positions count along `past`: the first `chunks` chunks lie before step 0, then come the steps themselves. With
    `write` each read also stores its state; without, it repeats the reads of steps that are stored already.
    """

    def __init__(self, heads: Heads, config: HCAMConfig, past_BLS: Tensor, began_B: Tensor, write: bool) -> None:
        self.heads, self.config, self.past_BLS, self.began_B, self.write = heads, config, past_BLS, began_B, write
        self.before, self.t = config.window, 0
        self.past: Past | None = None

    def __call__(self, p_BP: Tensor, h_BH: Tensor, first_B1: Tensor) -> Tensor:
        if self.t == self.past_BLS.shape[1] - self.before and self.write:
            self.forget()
        c, now = self.config, self.before + self.t
        self.began_B = torch.where(first_B1[:, 0], now, self.began_B)
        state_BS, start = torch.cat([p_BP, h_BH], -1), self.t - self.t % c.chunk
        if self.past is None or self.t == start:
            self.past = self.whole_chunks(start)
        begin_N = torch.arange(start, start + self.before, c.chunk, device=p_BP.device)
        skip_BN = (self.began_B[:, None] - begin_N).clamp(0, c.chunk)
        m_BM = self.heads.attend(state_BS, self.past, skip_BN, c.chosen)
        if self.write:
            self.past_BLS[:, now] = state_BS
        self.t += 1
        return m_BM

    def whole_chunks(self, start: int) -> Past:
        c = self.config
        states_BNXS = self.past_BLS[:, start : start + self.before].unflatten(1, (c.chunks, c.chunk))
        from_YX = torch.ones(c.chunk + 1, c.chunk, device=states_BNXS.device).triu()
        return Past(states_BNXS, from_YX @ states_BNXS)

    def forget(self) -> None:
        """Go on at step 0, with the newest chunks before it."""
        self.past_BLS[:, : self.before] = self.past_BLS[:, self.t : self.t + self.before].clone()
        self.began_B = (self.began_B - self.t).clamp(min=0)
        self.t, self.past = 0, None

    def copy(self) -> "Chunks":
        other = Chunks(self.heads, self.config, self.past_BLS.clone(), self.began_B.clone(), self.write)
        other.t = self.t
        return other


class HCAM(Method):
    """IMPALA that attends to chunks of the running episode."""

    per_episode = True
    past_BLS: Tensor
    began_B: Tensor

    def __init__(self, sizes: Sizes, config: HCAMConfig, generator: torch.Generator | None) -> None:
        super().__init__(sizes, config, generator)
        if sizes.unroll % config.chunk:
            raise ValueError(f"hcam.chunk is {config.chunk}: it must divide impala.unroll, {sizes.unroll}")
        self.config, self.memory_dim = config, sizes.hidden
        self.heads = Heads(sizes.p_dim + sizes.hidden, config.key_dim, sizes.hidden)
        length = config.window + sizes.unroll
        self.register_buffer("past_BLS", torch.zeros(sizes.worlds, length, sizes.p_dim + sizes.hidden))
        self.register_buffer("began_B", torch.full((sizes.worlds,), config.window))

    def acting(self) -> Chunks:
        self.chunks = Chunks(self.heads, self.config, self.past_BLS, self.began_B, write=True)
        return self.chunks

    def learning(self) -> Chunks:
        return Chunks(self.heads, self.config, self.past_BLS, self.began_B, write=False)

    @torch.no_grad()
    def update(self) -> None:
        self.chunks.forget()
        self.began_B.copy_(self.chunks.began_B)

    def playing(self, num_episodes: int) -> Chunks:
        c, device = self.config, self.past_BLS.device
        past_BLS = torch.zeros(num_episodes, c.window + c.chunk, self.past_BLS.shape[-1], device=device)
        began_B = torch.full((num_episodes,), c.window, device=device)
        return Chunks(self.heads, c, past_BLS, began_B, write=True)
