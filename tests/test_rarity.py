"""What metrics.jsonl says of a memory: statistics by counting pairs, and a row by loops over the slots."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tiny import tiny, trained, with_method

from longtail import zipf
from longtail.methods import Row, statistics
from longtail.train import Trainer
from longtail.worlds import GridworldConfig

SAMPLES = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=30)  # few values: many ties
PAIRS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), max_size=30)


def auroc_by_pairs(samples: list[tuple[int, bool]]) -> float | None:
    positives = [score for score, is_positive in samples if is_positive]
    negatives = [score for score, is_positive in samples if not is_positive]
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in positives for b in negatives]
    return sum(wins) / len(wins) if wins else None


@given(SAMPLES)
def test_auroc(samples: list[tuple[int, bool]]) -> None:
    scores, is_positive = (np.array([sample[i] for sample in samples]) for i in (0, 1))
    made, expected = statistics.auroc(scores.astype(np.float32), is_positive.astype(bool)), auroc_by_pairs(samples)
    assert (made is None) == (expected is None)
    assert made is None or made == pytest.approx(expected, abs=1e-12)


def test_auroc_of_known_rankings() -> None:
    positive = np.array([False, False, True, True])
    for scores, expected in (([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], 0.0), ([1, 1, 1, 1], 0.5), ([1, 3, 2, 4], 0.75)):
        assert statistics.auroc(np.array(scores), positive) == expected
    assert statistics.auroc(np.array([1.0, 2.0]), np.array([True, True])) is None
    assert statistics.auroc(np.array([]), np.array([], bool)) is None


@given(PAIRS)
def test_rank_correlation(pairs: list[tuple[int, int]]) -> None:
    """Spearman's, as scipy has it; None where one side does not vary."""
    x_N, y_N = (np.array([pair[i] for pair in pairs]) for i in (0, 1))
    made = statistics.rank_correlation(x_N, y_N)
    if len(set(x_N)) < 2 or len(set(y_N)) < 2:
        assert made is None
    else:
        assert made == pytest.approx(float(spearmanr(x_N, y_N).statistic), abs=1e-12)


def test_rank_correlation_of_known_orders() -> None:
    x_N = np.array([1.0, 5.0, 7.0])
    assert statistics.rank_correlation(x_N, np.array([2, 3, 90])) == pytest.approx(1)
    assert statistics.rank_correlation(x_N, np.array([90, 3, 2])) == pytest.approx(-1)


def test_mean() -> None:
    assert statistics.mean(np.array([True, False, False, True])) == 0.5
    assert statistics.mean(torch.tensor([1, 2, 6])) == 3.0
    assert statistics.mean(torch.zeros(0)) is None and statistics.mean(np.array([])) is None


def test_the_tail_is_the_tail() -> None:
    assert zipf.GROUPS[statistics.TAIL] == "tail"


# A row, by loops.

WORLD = GridworldConfig(levels="generated", maps=3, objects=2, rooms=2, exponent=0.3, max_steps=5, resolution=21)


def looked_into(method: str, iterations: int, **fields: object) -> Trainer:
    """A trainer after its last acting, so that what was read can still be worked out from what is in MEM."""
    trainer = trained(with_method(tiny(world=WORLD), method, **fields), iterations)
    trainer.act()
    return trainer


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


@torch.no_grad()
def row_by_loops(trainer: Trainer) -> Row:
    """Each figure from its meaning."""
    memory, config = trainer.method.memory, trainer.method.memory.config
    f, mem = memory.familiarity, memory.mem
    n, filled = int(f.filled), int(mem.filled)
    group = trainer.world.tasks.group.tolist()
    is_tail = [group[tag] == 2 for tag in f.tag[:n].tolist()]
    momentum, passes = f.momentum[:n].tolist(), f.passes[:n].tolist()
    knows = config.contrastive and n == config.familiarity
    images = [image.numpy().tobytes() for image in f.image[:n]]
    alike = [images.count(image) for image in images]
    others = [n - k if config.negatives == "distinct" else n - 1 for k in alike]
    pair_scores = list(zip(momentum, is_tail, strict=True))
    varies = len(set(momentum)) > 1 and len(set(passes)) > 1
    drift = [float((memory.key(torch.cat([mem.p[i], mem.h[i]])) - mem.key[i]).norm()) for i in range(filled)]
    return (
        {
            "rarity_auroc": auroc_by_pairs(pair_scores) if knows else None,  # type: ignore[arg-type]
            "momentum_age_correlation": float(spearmanr(momentum, passes).statistic) if knows and varies else None,
            "passes_per_slot": mean(passes),
            "familiarity_tail_share": mean(is_tail),
            "duplicate_share": mean([k > 1 for k in alike]) if config.contrastive else None,
            "effective_negatives": mean(others) if knows else None,  # type: ignore[arg-type]
            "memory_occupancy": filled / config.capacity,
            "memory_age": mean([int(memory.epochs) - at for at in mem.stored_at[:filled].tolist()]),
            "memory_tail_share": mean([group[tag] == 2 for tag in mem.tag[:filled].tolist()]),
            "memory_key_drift": mean(drift),
        }
        | reads_by_loops(trainer, filled)
    )


def reads_by_loops(trainer: Trainer, filled: int) -> Row:
    """Each read of the last rollout once more, from its query and the keys of MEM."""
    memory, r = trainer.method.memory, trainer.rollout
    assert r.tape is not None
    keys, K = memory.keys()[:filled], min(memory.config.neighbours, filled)
    entropies, distances = [], []
    for moment in r.tape.lstm.moments if filled else []:
        for p, h in zip(moment.p_BP, moment.r_BR[:, : moment.h_BH.shape[1]], strict=True):
            query = memory.key(torch.cat([p, h]))
            square = sorted(float((query - key).square().sum()) for key in keys)[:K]
            weights = [1 / (d + memory.config.epsilon) for d in square]
            shares = [w / sum(weights) for w in weights]
            entropies.append(-sum(share * math.log(share) for share in shares))
            distances.append(math.sqrt(square[0]))
    return {"read_entropy": mean(entropies), "read_distance": mean(distances)}


@pytest.mark.parametrize("iterations", [0, 1, 2, 3, 4, 13])
@pytest.mark.parametrize(
    ("method", "fields"),
    [("mem", {}), ("mem-contrastive", {}), ("boosted", {"negatives": "all"}), ("boosted", {"familiarity": 40})],
)
def test_a_row_equals_loops(method: str, fields: dict[str, object], iterations: int) -> None:
    trainer = looked_into(method, iterations, **fields)
    made, expected = trainer.method.inspect(trainer.rollout, trainer.world.tasks), row_by_loops(trainer)
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        assert (made[name] is None) == (value is None), name
        assert value is None or made[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    if iterations == 13 and "familiarity" in fields:
        assert None not in made.values() and 0 < made["familiarity_tail_share"] < 1  # type: ignore[operator]


def test_reads_of_an_empty_memory_have_no_distance() -> None:
    """States came into MEM after the rollout: what its reads found was nothing."""
    trainer = trained(with_method(tiny(world=WORLD), "boosted"), 3)
    assert int(trainer.method.memory.mem.filled) == 0
    trainer.iterate()
    assert int(trainer.method.memory.mem.filled) > 0
    row = trainer.method.inspect(trainer.rollout, trainer.world.tasks)
    assert row["read_distance"] is None and row["read_entropy"] is None
