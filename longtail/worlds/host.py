"""Any Gymnasium environment with image observations and discrete actions, as a world."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class HostConfig:
    """An environment that lives on the host, behind Gymnasium."""

    name: str = "gym:"
    """gym:<id> of a registered environment."""

    def make(self, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False) -> "World": ...
