"""The momentum of contrastive losses, by which states count as rare (Eqs. 2 and 3)."""

import torch
from torch import Tensor


def momentum_loss(
    previous_N: Tensor, loss_N: Tensor, passes_N: Tensor, beta: float, bias_corrected: bool = False
) -> Tensor:
    """Moving average of each slot's losses (Eq. 2), given how many passes it has seen; a new slot starts at its first.

    Beta 0 keeps the last loss alone. As Eq. 2 is written, the first loss has a weight of beta^(t-1) after t passes,
    81 % after 8; bias correction gives each of t losses the weight that it has in a long average.
    """
    if bias_corrected:
        step_N = (1 - beta) / (1 - torch.pow(beta, passes_N + 1.0))
        return previous_N + step_N * (loss_N - previous_N)
    return torch.where(passes_N == 0, loss_N, beta * previous_N + (1 - beta) * loss_N)


def normalized_momentum(momentum_N: Tensor) -> Tensor:
    """M, between 0 and 1 (Eq. 3): higher is rarer. It ranks as the moving average does."""
    distance_N = momentum_N - momentum_N.mean()
    furthest = distance_N.abs().max()
    return 0.5 * (distance_N / torch.where(furthest > 0, furthest, 1) + 1)
