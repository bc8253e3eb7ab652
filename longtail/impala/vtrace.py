"""V-trace (Espeholt et al., 2018, Eq. 1), as one pure function."""

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    target_TB: Tensor  # v_s, what the value should be
    advantage_TB: Tensor  # rho_s (r_s + gamma v_{s+1} - V(x_s)), the weight of log pi(a_s)


@torch.no_grad()
def vtrace(
    log_rho_TB: Tensor,
    discount_TB: Tensor,
    reward_TB: Tensor,
    value_T1B: Tensor,
    rho_max: float = 1.0,
    c_max: float = 1.0,
) -> VTrace:
    """Targets and advantages from log importance ratios. `value` has one row more than the rest: the bootstrap value.

    `discount` is gamma, and 0 where the step ended an episode.
    """
    value_TB, next_value_TB = value_T1B[:-1], value_T1B[1:]
    rho_TB = log_rho_TB.exp()
    clipped_rho_TB = rho_TB.clamp(max=rho_max)
    decay_TB = discount_TB * rho_TB.clamp(max=c_max)
    correction_TB = clipped_rho_TB * (reward_TB + discount_TB * next_value_TB - value_TB)
    # v_s - V(x_s) = delta_s + gamma c_s (v_{s+1} - V(x_{s+1})), from the last step to the first, in place.
    for t in reversed(range(len(correction_TB) - 1)):
        correction_TB[t].addcmul_(decay_TB[t], correction_TB[t + 1])
    target_T1B = value_T1B.clone()
    target_T1B[:-1] += correction_TB
    advantage_TB = clipped_rho_TB * (reward_TB + discount_TB * target_T1B[1:] - value_TB)
    return VTrace(target_T1B[:-1], advantage_TB)
