"""The law against exact fractions, and the sets of tasks against the paper's words."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longtail import zipf
from longtail.worlds.world import TaskTable

TOTAL = 2**zipf.DRAW_BITS

exponents = st.floats(0, 12, allow_nan=False)
shapes = st.lists(st.integers(1, 20), min_size=1, max_size=3).map(tuple)
# Subnormal sums have no exact quotient; weights of a law are nowhere near them.
weight_lists = st.lists(
    st.just(0.0) | st.floats(1e-12, 1e12) | st.integers(1, 1000).map(float), min_size=1, max_size=60
).filter(any)


def counts(weights: np.ndarray) -> list[int]:
    """How many of the draws 0 .. 2**53 - 1 give each task."""
    edges = [0, *(int(edge) for edge in zipf.thresholds(weights))]
    return [after - before for before, after in zip(edges[:-1], edges[1:], strict=True)]


def lookup(weights: np.ndarray, bits: int) -> int:
    return int(np.searchsorted(zipf.thresholds(weights), bits, side="right"))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 20])
@pytest.mark.parametrize("e", [0, 1, 2])
def test_zp_equals_exact_fractions(n: int, e: int) -> None:
    norm = sum(Fraction(1, k**e) for k in range(1, n + 1))
    for k in range(1, n + 1):
        assert zipf.zp(k, n, e) == pytest.approx(float(Fraction(1, k**e) / norm), rel=1e-15)


def test_zp_of_the_papers_first_map_and_object() -> None:
    assert zipf.law((10, 10), 2.0)[0] == pytest.approx(zipf.zp(1, 10, 2) ** 2)
    assert zipf.law((10, 10), 2.0)[[0, 1, 99]] == pytest.approx([0.4163579, 0.1040895, 0.00004163579], rel=1e-6)


@given(st.integers(1, 50), st.floats(0, 1e6, allow_nan=False), st.booleans())
@example(50, 1e300, False)
def test_axis_law_sums_to_one_and_falls(n: int, e: float, reverse: bool) -> None:
    law = zipf.axis_law(n, e, reverse)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert (np.diff(law) >= 0).all() if reverse else (np.diff(law) <= 0).all()
    assert (law == zipf.axis_law(n, e)[zipf.axis_ranks(n, reverse) - 1]).all()


@given(shapes, exponents)
def test_reversed_is_flipped(shape: tuple[int, ...], e: float) -> None:
    assert (zipf.law(shape, e, reverse=True) == zipf.law(shape, e)[::-1]).all()
    assert (zipf.rare_set(shape, reverse=True) == zipf.rare_set(shape)[::-1]).all()


@given(shapes, exponents, st.booleans())
def test_law_is_the_product_of_its_marginals(shape: tuple[int, ...], e: float, reverse: bool) -> None:
    joint = zipf.law(shape, e, reverse).reshape(shape)
    assert joint.sum() == pytest.approx(1, abs=1e-12)
    for axis, n in enumerate(shape):
        others = tuple(i for i in range(len(shape)) if i != axis)
        assert joint.sum(others) == pytest.approx(zipf.axis_law(n, e, reverse), abs=1e-12)
    axes = [zipf.axis_law(n, e, reverse) for n in shape]
    for index in list(np.ndindex(shape))[:: max(1, joint.size // 50)]:
        product = math.prod(axis[i] for axis, i in zip(axes, index, strict=True))
        assert joint[index] == pytest.approx(product, rel=1e-12)


@given(shapes, st.booleans())
def test_uniform_and_rare_laws(shape: tuple[int, ...], reverse: bool) -> None:
    uniform, rare = (zipf.law(shape, 2.0, reverse, mode) for mode in ("uniform", "rare"))
    inside = zipf.rare_set(shape, reverse)
    assert set(uniform) == {1 / math.prod(shape)}
    assert (rare[inside] == 1 / inside.sum()).all() and (rare[~inside] == 0).all()


@pytest.mark.parametrize(
    ("shape", "cells"), [((10, 10), 4), ((20, 20), 16), ((7, 5), 1), ((6, 1), 1), ((4, 4), 1), ((1, 1), 1), ((57,), 11)]
)
def test_rare_is_the_last_fifth_of_every_axis(shape: tuple[int, ...], cells: int) -> None:
    rare = zipf.rare_set(shape).reshape(shape)
    corner = tuple(slice(n - max(1, n // 5), n) for n in shape)
    assert rare.sum() == cells and rare[corner].all()


@pytest.mark.parametrize(("n", "rarest"), [(100, 20), (35, 7), (6, 1), (4, 1), (1, 1)])
def test_rarest_fifth(n: int, rarest: int) -> None:
    probability = zipf.law((n,), 1.5)
    assert zipf.rarest_fifth(probability).tolist() == [False] * (n - rarest) + [True] * rarest
    assert zipf.rarest_fifth(probability[::-1].copy()).tolist() == [True] * rarest + [False] * (n - rarest)


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=1, max_size=30))
def test_ranks_break_ties_by_task_id(values: list[float]) -> None:
    ranks = zipf.task_ranks(np.array(values))
    order = sorted(range(len(values)), key=lambda task: (-values[task], task))
    assert [int(ranks[task]) for task in order] == list(range(1, len(values) + 1))


@given(st.integers(1, 100), exponents)
def test_groups_are_thirds_by_rank(n: int, e: float) -> None:
    probability = zipf.law((n,), e)
    group, rank = zipf.groups(probability), zipf.task_ranks(probability)
    assert (np.diff(group[np.argsort(rank)]) >= 0).all()
    sizes = np.bincount(group, minlength=3)
    assert len(sizes) == len(zipf.GROUPS) and sizes.sum() == n and sizes.max() - sizes.min() <= 1


@settings(max_examples=100)
@given(weight_lists)
@example([1.0] * 400)
@example([0.1] * 10)
@example([1.0, 1e-12, 1e-12])
def test_thresholds_are_exact(values: list[float]) -> None:
    exact = [Fraction(value) for value in values]
    total, share = sum(exact), counts(np.array(values))
    for value, count in zip(exact, share, strict=True):
        assert count >= 0
        assert value > 0 or count == 0
        assert abs(Fraction(count, TOTAL) - value / total) <= Fraction(1, 2**50)
    assert sum(share) == TOTAL


@pytest.mark.parametrize("shape", [(10, 10), (20, 20), (7, 5), (57,), (1000,)])
@pytest.mark.parametrize("mode", zipf.MODES)
@pytest.mark.parametrize("reverse", [False, True])
def test_thresholds_of_the_laws_in_use(shape: tuple[int, ...], mode: zipf.Mode, reverse: bool) -> None:
    law = zipf.law(shape, 2.0, reverse, mode)
    exact = [Fraction(value) for value in law]
    total = sum(exact)
    for count, p in zip(counts(law), exact, strict=True):
        assert abs(Fraction(count, TOTAL) - p / total) <= Fraction(1, 2**50)


@given(weight_lists)
def test_impossible_tasks_are_never_drawn_even_at_the_extremes(values: list[float]) -> None:
    possible = [task for task, value in enumerate(values) if value > 0]
    assert lookup(np.array(values), 0) in possible
    assert lookup(np.array(values), TOTAL - 1) in possible


def test_extremes_with_impossible_tasks_at_both_ends() -> None:
    weights = np.array([0.0, 0.0, 0.1, 0.2, 0.7, 0.0])
    assert (lookup(weights, 0), lookup(weights, TOTAL - 1)) == (2, 4)
    one_third = np.array([0.0, 1.0, 1.0, 1.0, 0.0])  # its parts sum to a little less than 1
    assert (lookup(one_third, 0), lookup(one_third, TOTAL - 1)) == (1, 3)


def test_thresholds_work_on_the_last_axis() -> None:
    both = np.array([[1.0, 3.0], [0.0, 5.0]])
    assert zipf.thresholds(both).tolist() == [[TOTAL // 4, TOTAL], [0, TOTAL]]


def test_task_table() -> None:
    table = TaskTable.product(7, 5, 2.0, reverse=True)
    assert (len(table), table.maps, table.objects) == (35, 7, 5)
    assert (table.names[7], table.map[7], table.object[7]) == ("map 1, object 2", 1, 2)
    assert (table.map_rank[7], table.object_rank[7]) == (6, 3)
    assert np.flatnonzero(table.rare).tolist() == [0] and table.rarest_fifth.sum() == 7
    assert table.probability[-1] == table.probability.max() and table.group[-1] == 0 and table.group[0] == 2


@pytest.mark.parametrize("exponent", [-0.001, -2.0, math.nan, math.inf, -math.inf])
def test_bad_exponents(exponent: float) -> None:
    with pytest.raises(ValueError, match=f"exponent is {exponent}: it must be a number of at least 0"):
        zipf.law((10, 10), exponent)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="law is 'zipf': it must be one of zipfian, uniform, rare"):
        zipf.law((10, 10), 2.0, mode="zipf")  # type: ignore[arg-type]
    for k in (0, 11):
        with pytest.raises(ValueError, match=rf"k is {k}: it must lie in 1\.\.10"):
            zipf.zp(k, 10, 2.0)
    with pytest.raises(ValueError, match="an axis has 0 entries"):
        zipf.law((10, 0), 2.0)


@pytest.mark.parametrize("weights", [[], [1.0, -1.0], [1.0, math.nan], [math.inf, 1.0], [1e308, 1e308]])
def test_bad_weights(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be finite and at least 0"):
        zipf.thresholds(np.array(weights))


def test_weights_that_allow_no_task() -> None:
    with pytest.raises(ValueError, match="at least one task must be possible"):
        zipf.thresholds(np.array([[1.0, 0.0], [0.0, 0.0]]))
