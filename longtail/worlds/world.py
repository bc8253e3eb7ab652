"""What a world is: B worlds stepping together in tensors on one device, and the table of tasks they draw from."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from longtail import zipf


@dataclass(frozen=True)
class TaskTable:
    """The tasks of a world by task id: maps, objects and tasks count from 0, ranks from 1 (most frequent)."""

    names: tuple[str, ...]
    map: zipf.Ints
    object: zipf.Ints
    map_rank: zipf.Ints
    object_rank: zipf.Ints
    probability: zipf.Floats
    rare: zipf.Bools
    rarest_fifth: zipf.Bools
    group: zipf.Ints

    def __len__(self) -> int:
        return len(self.names)

    @property
    def maps(self) -> int:
        return int(self.map.max()) + 1

    @property
    def objects(self) -> int:
        return int(self.object.max()) + 1

    @staticmethod
    def product(maps: int, objects: int, exponent: float, reverse: bool = False) -> "TaskTable":
        """Tasks on maps x objects (use objects = 1 for a single axis), row-major."""
        shape = (maps, objects)
        map_id, object_id = (axis.ravel() for axis in np.indices(shape))
        probability = zipf.law(shape, exponent, reverse)
        return TaskTable(
            names=tuple(f"map {m}, object {o}" for m, o in zip(map_id, object_id, strict=True)),
            map=map_id,
            object=object_id,
            map_rank=zipf.axis_ranks(maps, reverse)[map_id],
            object_rank=zipf.axis_ranks(objects, reverse)[object_id],
            probability=probability,
            rare=zipf.rare_set(shape, reverse),
            rarest_fifth=zipf.rarest_fifth(probability),
            group=zipf.groups(probability),
        )


class World(Protocol):
    """B worlds in preallocated tensors. Steps without host synchronisation and resets in the same step.

    The state to act in is `first`, `task` and whatever `observe` renders; the other tensors describe the transition
    that `step` just made. All of them are written in place, so a reference stays valid for the life of the world.
    Worlds know nothing of learning. Adding one is one file and one line in `longtail.worlds.WORLDS`.
    """

    num_worlds: int
    num_actions: int
    obs_shape: tuple[int, int, int]  # height, width, channels
    device: torch.device
    tasks: TaskTable
    on_device: bool  # False for worlds that live on the host: their steps cannot be captured in a graph

    first: Tensor  # bool [B]: the state to act in begins an episode
    task: Tensor  # int64 [B]: the task of that episode
    reward: Tensor  # float32 [B]: of the transition just made
    terminated: Tensor  # bool [B]: it ended the episode
    truncated: Tensor  # bool [B]: the time limit ended the episode
    success: Tensor  # bool [B]: the episode ended in success
    ended_task: Tensor  # int64 [B]: the task the transition belonged to

    def reset(self, seed: int, stagger: bool = False) -> None:
        """Start every world at its episode 0; staggered, first episodes start at different times (for training)."""

    def prepare(self, num_steps: int) -> None:
        """Make the draws that the next `num_steps` steps can need. Call at least every `num_steps` steps."""

    def step(self, action_B: Tensor) -> None: ...

    def observe(self, out: Tensor | None = None) -> Tensor:
        """Render the state to act in as uint8 [B, H, W, C], into `out` if given (a rollout's slot, say)."""

    def observe_final(self, out: Tensor | None = None) -> Tensor:
        """Render the last state of the episode each world's transition belonged to (its own new state if it goes on).

        Only with `final_obs=True` at construction."""

    def set_weights(self, weights: np.ndarray) -> None:
        """Change the law: [n] for all worlds or [B, n]; takes effect at each world's next episode."""

    def pin(self, task_B: np.ndarray) -> None:
        """Give each world one task for good: one-hot weights. `set_weights` goes back to a law."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...


def stateful(world: Any, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The named tensors of a world, for its `state_dict`."""
    return {name: getattr(world, name) for name in names}


def restore(live: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Copy saved tensors into a part's own, in place; the counterpart of `state_dict`."""
    for name, tensor in live.items():
        if name not in saved:
            raise ValueError(f"saved state has no {name!r}: it has {', '.join(sorted(saved)) or 'nothing'}")
        if saved[name].shape != tensor.shape:
            raise ValueError(f"saved {name!r} has shape {tuple(saved[name].shape)}: it must be {tuple(tensor.shape)}")
        tensor.copy_(saved[name])
