"""Scores of an evaluation: what each is a mean over, and its 95 % interval. Pure functions of counts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from longtail import zipf
from longtail.worlds import GridworldConfig, TaskTable, WorldConfig
from longtail.worlds.gridworld import cell_facts

Z95 = float(norm.ppf(0.975))


@dataclass(frozen=True)
class Outcomes:
    """What the episodes of each task came to."""

    episodes_n: np.ndarray
    successes_n: np.ndarray
    return_n: np.ndarray  # mean over the task's episodes


def wilson(successes_n: np.ndarray, episodes_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of each share (Wilson, 1927)."""
    share, z2 = successes_n / episodes_n, Z95**2 / episodes_n
    middle = (share + z2 / 2) / (1 + z2)
    half = np.sqrt(z2 * share * (1 - share) + z2 * z2 / 4) / (1 + z2)
    return np.minimum(np.maximum(middle - half, 0), share), np.maximum(np.minimum(middle + half, 1), share)


def weighted_score(weight_n: np.ndarray, outcomes: Outcomes, exact: bool = False) -> dict[str, Any]:
    """Weighted mean of success in percent with its 95 % interval; an exact one has no interval to speak of."""
    used = weight_n > 0
    weight, episodes, successes = weight_n[used] / weight_n.sum(), outcomes.episodes_n[used], outcomes.successes_n[used]
    value = float(weight @ (successes / episodes))
    down, up = (0.0, 0.0) if exact else map(float, arms(weight, successes, episodes))
    return {
        "value": round(100 * value, 4),
        "low": round(100 * max(value - down, 0.0), 4),
        "high": round(100 * min(value + up, 1.0), 4),
        "episodes": int(episodes.sum()),
        "cells": int(used.sum()),
    }


def arms(weight_n: np.ndarray, successes_n: np.ndarray, episodes_n: np.ndarray) -> tuple[Any, Any]:
    """How far the 95 % interval of a weighted mean of shares reaches down and up: on each side the longer of two arms.

    MOVER (Zou and Donner, 2008) combines the tasks' own intervals, and does not shrink to nothing where every trial
    came out the same. But Wilson's arm towards the nearer of 0 and 1 is short, and a mean of many such tasks has no
    reason to be short there: MOVER alone misses up to 20 % of the time, always on that side. So no arm is shorter than
    a normal interval's, with one success and one failure added to each task.
    """
    share_n, (low_n, high_n) = successes_n / episodes_n, wilson(successes_n, episodes_n)
    q_n = (successes_n + 1) / (episodes_n + 2)
    spreads = share_n - low_n, high_n - share_n, Z95 * np.sqrt(q_n * (1 - q_n) / episodes_n)
    down, up, normal = (np.sqrt(np.sum((weight_n * spread_n) ** 2, -1)) for spread_n in spreads)
    return np.maximum(down, normal), np.maximum(up, normal)


def score_weights(tasks: TaskTable) -> dict[str, np.ndarray]:
    """What each score is a mean over. zipfian: by probability; the others: every task of a set alike."""
    n = len(tasks)
    sets = {name: (tasks.group == i).astype(float) for i, name in enumerate(zipf.GROUPS)}
    return {
        "zipfian": tasks.probability,
        "uniform": np.full(n, 1 / n),
        "rare": tasks.rare.astype(float),
        "rarest_fifth": tasks.rarest_fifth.astype(float),
    } | {name: members for name, members in sets.items() if members.any()}


def references(world: WorldConfig, tasks: TaskTable) -> dict[str, dict[str, float]]:
    """What a random walk and a shortest-path walker score, in percent, where that is known."""
    if not isinstance(world, GridworldConfig):
        return {}
    facts = cell_facts(world)
    per_task = {
        "random walk": facts.random_reach,
        "shortest path": (facts.shortest_path >= 0) & (facts.shortest_path <= world.max_steps),
    }
    return {
        who: {name: round(100 * float(w @ share_n / w.sum()), 4) for name, w in score_weights(tasks).items()}
        for who, share_n in per_task.items()
    }
