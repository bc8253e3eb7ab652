"""Scores by hand and by a naive oracle, and how often their intervals miss."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from longtail import zipf
from longtail.scores import Z95, Outcomes, arms, references, score_weights, weighted_score, wilson
from longtail.worlds import WORLDS, GridworldConfig, HostConfig, TaskTable
from longtail.worlds.gridworld import cell_facts

TWO_BY_TWO = TaskTable.product(2, 2, exponent=1)  # probabilities 4/9, 2/9, 2/9, 1/9
SUCCESSES = np.array([10, 5, 0, 10])


def outcomes(successes_n: np.ndarray, episodes: int = 10) -> Outcomes:
    return Outcomes(np.full(len(successes_n), episodes), successes_n, successes_n / episodes)


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [(0, 10, 0, 0.2775), (1, 10, 0.0179, 0.4042), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1), (0, 50, 0, 0.0713)],
)
def test_wilson(successes: int, episodes: int, low: float, high: float) -> None:
    found = [float(edge[0]) for edge in wilson(np.array([successes]), np.array([episodes]))]
    assert found == pytest.approx([low, high], abs=5e-5)


@pytest.mark.parametrize(
    ("name", "value", "cells"),
    [("zipfian", 66.6667, 4), ("uniform", 62.5, 4), ("rare", 100, 1), ("rarest_fifth", 100, 1),
     ("head", 75, 2), ("middle", 0, 1), ("tail", 100, 1)],
)  # fmt: skip
def test_scores_by_hand(name: str, value: float, cells: int) -> None:
    score = weighted_score(score_weights(TWO_BY_TWO)[name], outcomes(SUCCESSES))
    assert list(score) == ["value", "low", "high", "episodes", "cells"]
    assert (score["value"], score["episodes"], score["cells"]) == (value, 10 * cells, cells)
    assert 0 <= score["low"] <= value <= score["high"] <= 100
    exact = weighted_score(score_weights(TWO_BY_TWO)[name], outcomes(SUCCESSES), exact=True)
    assert exact == score | {"low": value, "high": value}


def test_intervals_by_hand() -> None:
    """Wilson's 72.25 to 100 where that is the longer arm; a normal interval's, at q = 1/2, for 5 of 10."""
    ten, five = (weighted_score(np.ones(1), outcomes(np.array([s]))) for s in (10, 5))
    assert (ten["low"], ten["high"]) == (pytest.approx(72.2467, abs=1e-3), 100)
    assert (five["low"], five["high"]) == (pytest.approx(19.0102, abs=1e-3), pytest.approx(80.9898, abs=1e-3))


@pytest.mark.parametrize("name", ["zipfian", "uniform", "rare", "middle"])
def test_intervals_of_a_naive_oracle(name: str) -> None:
    tasks = TaskTable.product(5, 5, exponent=2)
    successes_n = np.random.default_rng(1).integers(0, 9, 25)
    weight_n = score_weights(tasks)[name]
    squares = [0.0, 0.0, 0.0]
    for weight, s in zip(weight_n / weight_n.sum(), successes_n.tolist(), strict=True):
        p, n, z = s / 8, 8, Z95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        q = (s + 1) / (n + 2)
        for i, arm in enumerate((p - (middle - half), middle + half - p, z * math.sqrt(q * (1 - q) / n))):
            squares[i] += (weight * arm) ** 2
    down, up, normal = map(math.sqrt, squares)
    score = weighted_score(weight_n, outcomes(successes_n, 8))
    assert score["value"] == pytest.approx(100 * np.average(successes_n / 8, weights=weight_n), abs=1e-4)
    assert score["low"] == pytest.approx(max(score["value"] - 100 * max(down, normal), 0), abs=1e-3)
    assert score["high"] == pytest.approx(min(score["value"] + 100 * max(up, normal), 100), abs=1e-3)


def test_what_scores_are_means_over() -> None:
    weights = score_weights(TaskTable.product(10, 10, exponent=2))
    assert list(weights) == ["zipfian", "uniform", "rare", "rarest_fifth", "head", "middle", "tail"]
    np.testing.assert_array_equal(weights["zipfian"], zipf.law((10, 10), 2.0))
    assert np.flatnonzero(weights["rare"]).tolist() == [88, 89, 98, 99]
    assert [int((w > 0).sum()) for w in weights.values()] == [100, 100, 4, 20, 34, 33, 33]
    assert "tail" not in score_weights(TaskTable.product(2, 1, exponent=0))  # no thirds of two tasks
    reverse = score_weights(TaskTable.product(10, 10, 2, reverse=True))
    assert np.flatnonzero(reverse["rare"]).tolist() == [0, 1, 10, 11]


def test_references() -> None:
    world = WORLDS["gridworld-small"]
    assert isinstance(world, GridworldConfig)
    tasks, reach_n = TaskTable.product(4, 4, world.exponent), cell_facts(world).random_reach
    known = references(world, tasks)
    assert list(known) == ["random walk", "shortest path"]
    assert known["random walk"].keys() == score_weights(tasks).keys()
    assert known["random walk"]["uniform"] == pytest.approx(100 * reach_n.mean(), abs=1e-4)
    assert known["random walk"]["zipfian"] == pytest.approx(100 * tasks.probability @ reach_n, abs=1e-4)
    assert known["random walk"]["rare"] == pytest.approx(100 * reach_n[15], abs=1e-4)
    assert set(known["shortest path"].values()) == {100.0}
    assert references(HostConfig("gym:x"), tasks) == {}


def test_a_shortest_path_beyond_the_time_limit_is_no_success() -> None:
    paths_n = cell_facts(GridworldConfig()).shortest_path
    world = GridworldConfig(max_steps=int(np.median(paths_n)))
    expected = 100 * np.mean((paths_n >= 0) & (paths_n <= world.max_steps))
    assert 0 < expected < 100
    assert references(world, TaskTable.product(10, 10, 2))["shortest path"]["uniform"] == pytest.approx(expected)


Arms = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def mover(weight_n: np.ndarray, successes_n: np.ndarray, episodes_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The control: only the tasks' own intervals."""
    share_n = successes_n / episodes_n
    low_n, high_n = wilson(successes_n, episodes_n)
    down, up = (np.sqrt(np.sum((weight_n * arm_n) ** 2, -1)) for arm_n in (share_n - low_n, high_n - share_n))
    return down, up


def misses(weight_n: np.ndarray, p_n: np.ndarray, episodes: int, formula: Arms) -> float:
    """How often the interval of a simulated evaluation is beside the truth."""
    successes_Rn = np.random.default_rng(0).binomial(episodes, p_n, (4000, len(p_n)))
    down_R, up_R = formula(weight_n, successes_Rn, np.full(len(p_n), episodes))
    error_R = (successes_Rn / episodes - p_n) @ weight_n
    return float(np.mean((error_R - down_R > 1e-9) | (error_R + up_R < -1e-9)))


def uniform(n: int) -> np.ndarray:
    return np.full(n, 1 / n)


SOLVED_OR_NOT = np.where(np.arange(100) < 40, 0.97, 0.01)
# Weights, probabilities of success, episodes of each task, and how often MOVER alone misses at least.
CASES = [
    (uniform(100), np.full(100, 0.01), 50, 0.12),
    (uniform(100), np.full(100, 0.98), 50, 0.12),
    (uniform(100), np.full(100, 0.05), 20, 0.09),
    (uniform(16), np.full(16, 0.99), 5, 0.12),
    (uniform(4), np.full(4, 0.02), 50, 0.08),
    (uniform(100), np.full(100, 0.5), 50, 0),
    (uniform(100), SOLVED_OR_NOT, 50, 0),
    (zipf.law((10, 10), 2.0), SOLVED_OR_NOT, 50, 0),
    (zipf.law((10, 10), 2.0), np.full(100, 0.99), 50, 0.07),
    (zipf.law((10, 10), 1.0), np.linspace(0.995, 0.005, 100), 20, 0),
    (uniform(1), np.array([0.05]), 50, 0),
    (uniform(1), np.array([0.7]), 20, 0),
]


@pytest.mark.parametrize(("weight_n", "p_n", "episodes", "by_mover"), CASES)
def test_intervals_cover(weight_n: np.ndarray, p_n: np.ndarray, episodes: int, by_mover: float) -> None:
    assert misses(weight_n, p_n, episodes, arms) < 0.06
    assert misses(weight_n, p_n, episodes, mover) >= by_mover
