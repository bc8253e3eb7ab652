"""Counter-based draws for worlds: a draw is a hash of (seed, world, episode, which draw), never a stream.

So the same seed gives every world the same sequence of tasks on any device, for any batch size, method or policy,
and resuming needs no generator state. The mixing function is that of SplitMix64 (Steele, Lea and Flood, 2014);
64-bit integer products wrap around in the same way on every device.
"""

import numpy as np
import torch
from torch import Tensor

from longtail import zipf
from longtail.worlds.world import restore

# What a draw is for. Values are part of the results' identity: never reuse or renumber.
TASK = 0
STAGGER = 1

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(x: int) -> int:
    x &= 2**64 - 1
    return x - 2**64 if x >= 2**63 else x


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: int64 shifts copy the sign bit, which is masked off."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def draw(seed: int | Tensor, world: Tensor, episode: Tensor, purpose: int) -> Tensor:
    """53 uniform random bits (int64, 0 .. 2**53 - 1) for each broadcast pair of world and episode."""
    if isinstance(seed, int):
        seed = torch.tensor(_signed(seed), dtype=torch.int64, device=world.device)
    h = _mix(seed + _signed(_GOLDEN))
    for counter in (world, episode):
        h = _mix(h + (counter + 1) * _signed(_GOLDEN))
    return _shift_right(_mix(h + _signed((purpose + 1) * _GOLDEN)), 11)


class TaskQueue:
    """Which task each world plays next: counter-based draws by a law that may change at any time.

    The draws that the next few steps can need are made at once by `prepare`, so a step only looks them up.
    """

    def __init__(self, num_worlds: int, weights: np.ndarray, device: torch.device) -> None:
        self.seed = torch.zeros((), dtype=torch.int64, device=device)
        self.world_B = torch.arange(num_worlds, device=device)
        self.episode_B = torch.zeros(num_worlds, dtype=torch.int64, device=device)
        self.base_B = torch.zeros_like(self.episode_B)
        self.thresholds_Bn = torch.zeros(num_worlds, len(weights), dtype=torch.int64, device=device)
        self.upcoming_BT = torch.zeros(num_worlds, 0, dtype=torch.int64, device=device)
        self.set_weights(weights)

    def set_weights(self, weights: np.ndarray) -> None:
        num_worlds, num_tasks = self.thresholds_Bn.shape
        weights = np.asarray(weights, np.float64)
        if weights.shape not in ((num_tasks,), (num_worlds, num_tasks)):
            raise ValueError(
                f"weights have shape {weights.shape}: it must be ({num_tasks},) for one law "
                f"or ({num_worlds}, {num_tasks}) for one per world"
            )
        self.thresholds_Bn.copy_(torch.from_numpy(zipf.thresholds(weights)))
        self.prepare(self.upcoming_BT.shape[1])

    def pin(self, task_B: np.ndarray) -> None:
        """One task per world for good: the law whose weights are one-hot."""
        num_worlds, num_tasks = self.thresholds_Bn.shape
        task_B = np.asarray(task_B)
        one_each = task_B.shape == (num_worlds,) and task_B.dtype.kind in "iu"
        if not one_each or task_B.min() < 0 or task_B.max() >= num_tasks:
            raise ValueError(f"task is {task_B}: it must be {num_worlds} task ids of 0..{num_tasks - 1}, one per world")
        self.set_weights(np.eye(num_tasks)[task_B])

    def reset(self, seed: int) -> Tensor:
        """Go to every world's episode 0; returns its tasks."""
        self.seed.fill_(_signed(seed))
        self.episode_B.zero_()
        self.prepare(self.upcoming_BT.shape[1])
        return self._draw(self.episode_B[:, None])[:, 0]

    def prepare(self, num_episodes: int) -> None:
        if self.upcoming_BT.shape[1] != num_episodes:
            self.upcoming_BT = self.upcoming_BT.new_zeros(len(self.world_B), num_episodes)
        self.base_B.copy_(self.episode_B)
        if num_episodes:
            ahead_T = torch.arange(1, num_episodes + 1, device=self.world_B.device)
            self.upcoming_BT.copy_(self._draw(self.episode_B[:, None] + ahead_T))

    def advance(self, done_B: Tensor) -> Tensor:
        """The task of each world's next episode; worlds that are `done` enter it."""
        if not self.upcoming_BT.shape[1]:  # on a GPU the gather below would fail without saying why
            raise RuntimeError("no draws are prepared: call prepare(num_steps) before step")
        task_B = self.upcoming_BT.gather(1, (self.episode_B - self.base_B)[:, None])[:, 0]
        self.episode_B += done_B
        return task_B

    def _draw(self, episode_BT: Tensor) -> Tensor:
        bits_BT = draw(self.seed, self.world_B[:, None], episode_BT, TASK)
        return torch.searchsorted(self.thresholds_Bn, bits_BT, right=True)

    def state_dict(self) -> dict[str, Tensor]:
        return {"seed": self.seed, "episode": self.episode_B, "thresholds": self.thresholds_Bn}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        restore(self.state_dict(), state)
        self.prepare(self.upcoming_BT.shape[1])
