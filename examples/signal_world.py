"""A complete world in one file: see a cue, wait, then choose what the cue showed.

The first frame has its left or its right half bright; `delay` black frames follow. The action taken in the last
frame must match the cue (0 left, 1 right), all others do nothing. Single frames give 50 %: more takes a memory.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from longtail import zipf
from longtail.worlds.random import STAGGER, TaskQueue, draw
from longtail.worlds.world import TaskTable, restore, stateful

NAMES = ("left", "right")
BLACK = len(NAMES)  # the frame after those of the cues
STATE = ("time", "task", "first")  # all that the next step depends on, besides the queue of tasks


@dataclass(frozen=True)
class SignalConfig:
    """Remember a cue for a few steps."""

    name: str = "signal"
    """World, as on the command line."""
    delay: int = 3
    """Black frames after the cue; the action in the last of them is the choice."""
    size: int = 24
    """Pixels along the frame's side."""
    exponent: float = 0.0
    """Zipf exponent of the two cues; 0 is uniform."""

    def __post_init__(self) -> None:
        zipf.check_exponent(self.exponent)
        for name, least in (("delay", 0), ("size", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {least}")

    def make(self, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False) -> "SignalWorld":
        return SignalWorld(self, num_worlds, device, final_obs)


class SignalWorld:
    """B signal worlds on one device, by the contract of `longtail.worlds.world.World`."""

    on_device = True
    num_actions = len(NAMES)

    def __init__(
        self, config: SignalConfig, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False
    ) -> None:
        self.config, self.num_worlds, self.device, self.final_obs = config, num_worlds, torch.device(device), final_obs
        self.obs_shape = (config.size, config.size, 3)
        self.tasks = replace(TaskTable.product(1, len(NAMES), config.exponent), names=NAMES)
        self.queue = TaskQueue(num_worlds, zipf.law((1, len(NAMES)), config.exponent), self.device)
        frames = np.zeros((BLACK + 1, *self.obs_shape), np.uint8)
        frames[0, :, : config.size // 2] = 255
        frames[1, :, config.size // 2 :] = 255
        self._frames = torch.from_numpy(frames).to(self.device)

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_worlds, dtype=dtype, device=self.device)

        self.first, self.terminated, self.truncated = zeros(torch.bool), zeros(torch.bool), zeros(torch.bool)
        self.task, self.ended_task, self.time = zeros(torch.int64), zeros(torch.int64), zeros(torch.int64)
        self.reward, self.success = zeros(torch.float32), zeros(torch.bool)
        self.reset(seed=0)

    def reset(self, seed: int, stagger: bool = False) -> None:
        self.task.copy_(self.queue.reset(seed))
        self.first.fill_(True)
        self.time.zero_()
        if stagger:  # a first episode that starts late has no cue
            bits_B = draw(self.queue.seed, self.queue.world_B, self.queue.episode_B, STAGGER)
            self.time.copy_(bits_B % (self.config.delay + 1))
        for tensor in (self.reward, self.success, self.terminated):
            tensor.zero_()

    def prepare(self, num_steps: int) -> None:
        self.queue.prepare(num_steps)

    def step(self, action_B: Tensor) -> None:
        torch.ge(self.time, self.config.delay, out=self.terminated)
        torch.logical_and(torch.eq(action_B, self.task), self.terminated, out=self.success)
        self.reward.copy_(self.success)
        self.ended_task.copy_(self.task)
        self.first.copy_(self.terminated)
        torch.where(self.first, self.queue.advance(self.first), self.task, out=self.task)
        self.time.add_(1).masked_fill_(self.first, 0)

    def observe(self, out: Tensor | None = None) -> Tensor:
        return self._render(torch.where(self.time == 0, self.task, BLACK), out)

    def observe_final(self, out: Tensor | None = None) -> Tensor:
        if not self.final_obs:
            raise RuntimeError("final observations were not asked for: build the world with final_obs=True")
        return self._render(torch.full_like(self.task, BLACK), out)  # no step leads to a cue but a reset

    def _render(self, frame_B: Tensor, out: Tensor | None) -> Tensor:
        if out is None:
            out = torch.empty(self.num_worlds, *self.obs_shape, dtype=torch.uint8, device=self.device)
        return torch.index_select(self._frames, 0, frame_B, out=out)

    def set_weights(self, weights: np.ndarray) -> None:
        self.queue.set_weights(weights)

    def pin(self, task_B: np.ndarray) -> None:
        self.queue.pin(task_B)

    def state_dict(self) -> dict[str, Tensor]:
        return stateful(self, STATE) | {f"queue.{name}": tensor for name, tensor in self.queue.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        restore(stateful(self, STATE), state)
        self.queue.load_state_dict({k.removeprefix("queue."): v for k, v in state.items() if k.startswith("queue.")})

    def close(self) -> None:
        pass
