"""IMPALA's three losses, summed over time and batch as in TorchBeast."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Losses(NamedTuple):
    policy: Tensor
    value: Tensor
    entropy: Tensor  # negative entropy: lower is more random


def log_probability(logits_TBA: Tensor, action_TB: Tensor) -> Tensor:
    return F.log_softmax(logits_TBA, -1).gather(-1, action_TB[..., None])[..., 0]


def impala_losses(
    logits_TBA: Tensor, action_TB: Tensor, value_TB: Tensor, target_TB: Tensor, advantage_TB: Tensor
) -> Losses:
    log_pi_TBA = F.log_softmax(logits_TBA, -1)
    chosen_TB = log_pi_TBA.gather(-1, action_TB[..., None])[..., 0]
    return Losses(
        policy=-(chosen_TB * advantage_TB).sum(),
        value=0.5 * (target_TB - value_TB).square().sum(),
        entropy=(log_pi_TBA.exp() * log_pi_TBA).sum(),
    )
