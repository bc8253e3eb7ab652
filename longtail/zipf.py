"""The law of the long tail: probabilities, ranks and the sets of tasks that scores are averaged over.

Tasks live on a product of axes (maps x objects, levels, games). Along each axis the k-th most frequent entry has
probability `zp(k, n, e)`, and a task's probability is the product over its axes. Everything that depends on how
frequent a task is (ranks, head / middle / tail, the rare set) is defined here and nowhere else.
"""

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Mode = Literal["zipfian", "uniform", "rare"]
MODES: tuple[str, ...] = get_args(Mode)
GROUPS = ("head", "middle", "tail")

# A draw is 53 random bits: the most that a float64 probability can be told apart with.
DRAW_BITS = 53

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def check_exponent(exponent: float) -> None:
    if not (math.isfinite(exponent) and exponent >= 0):
        raise ValueError(f"exponent is {exponent}: it must be a number of at least 0 (0 is uniform, 2 is the paper's)")


def zp(k: int, n: int, e: float) -> float:
    """Probability of the k-th most frequent of n entries, k = 1..n (Eq. 1)."""
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}: it must lie in 1..{n}")
    return float(axis_law(n, e)[k - 1])


def axis_law(n: int, exponent: float, reverse: bool = False) -> Floats:
    """zp(k, n, e) for one axis, by index; reversed, the last index is the most frequent."""
    check_exponent(exponent)
    if n < 1:
        raise ValueError(f"an axis has {n} entries: it must have at least 1")
    weights = np.arange(1, n + 1, dtype=np.float64) ** -float(exponent)
    law = weights / weights.sum()
    return law[::-1].copy() if reverse else law


def axis_ranks(n: int, reverse: bool = False) -> Ints:
    """Rank of each index along one axis; 1 is the most frequent."""
    ranks = np.arange(1, n + 1, dtype=np.int64)
    return ranks[::-1].copy() if reverse else ranks


def _product(axes: list[Floats]) -> Floats:
    joint = np.ones(1)
    for axis in axes:
        joint = np.outer(joint, axis).ravel()
    return joint


def law(shape: tuple[int, ...], exponent: float, reverse: bool = False, mode: Mode = "zipfian") -> Floats:
    """Probability of every task on a product of axes, row-major; sums to 1."""
    if mode == "zipfian":
        return _product([axis_law(n, exponent, reverse) for n in shape])
    if mode == "uniform":
        return np.full(math.prod(shape), 1.0 / math.prod(shape))
    if mode == "rare":
        rare = rare_set(shape, reverse).astype(np.float64)
        return rare / rare.sum()
    raise ValueError(f"law is {mode!r}: it must be one of {', '.join(MODES)}")


def rare_set(shape: tuple[int, ...], reverse: bool = False) -> Bools:
    """The paper's rare tasks: the last n // 5 entries (at least one) of every axis, by rank."""
    axes = [(axis_ranks(n, reverse) > n - max(1, n // 5)).astype(np.float64) for n in shape]
    return _product(axes) > 0


def task_ranks(probability: Floats) -> Ints:
    """Rank of every task, 1 = most frequent; equally frequent tasks are ranked by their id."""
    ranks = np.empty(len(probability), np.int64)
    ranks[np.argsort(-probability, kind="stable")] = np.arange(1, len(probability) + 1)
    return ranks


def rarest_fifth(probability: Floats) -> Bools:
    """A second definition of rare: the rarest fifth of the tasks (at least one) by probability."""
    n = len(probability)
    return task_ranks(probability) > n - max(1, n // 5)


def groups(probability: Floats) -> Ints:
    """Head (0), middle (1) and tail (2): thirds of the tasks by probability."""
    return (task_ranks(probability) - 1) * 3 // len(probability)


def thresholds(weights: Floats) -> Ints:
    """Integer boundaries of a law: task i is drawn when thresholds[i-1] <= draw < thresholds[i].

    `draw` is uniform over 0 .. 2**53 - 1. Built in float64 on the host, so that every device, batch size and
    back end draws the same tasks. Works on the last axis.
    """
    weights = np.asarray(weights, np.float64)
    with np.errstate(over="ignore"):  # an infinite sum is refused in the next line
        sums = np.cumsum(weights, -1)
    if weights.shape[-1] == 0 or not np.isfinite(sums).all() or (weights < 0).any():
        raise ValueError("weights must be finite and at least 0, one per task, with a finite sum")
    if (sums[..., -1] <= 0).any():
        raise ValueError("weights sum to 0: at least one task must be possible")
    # Divided by the last of the same sums, so that the last task that is possible ends exactly at 2**53.
    return (sums / sums[..., -1:] * 2.0**DRAW_BITS).astype(np.int64)
