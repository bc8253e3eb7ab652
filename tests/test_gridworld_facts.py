"""Gridworld's tables and facts on any levels, the levels of `gridworld-small`, and bad input."""

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from naive_gridworld import DIRECTIONS, as_entry, find, move, object_at, paint, shortest_path
from scipy.stats import spearmanr

from longtail import zipf
from longtail.worlds import WORLDS, world_config
from longtail.worlds import levels as lv
from longtail.worlds.gridworld import CellFacts, GridworldConfig, build_tables, cell_facts
from longtail.worlds.world import TaskTable

PUBLIC = GridworldConfig()
PUBLIC_20 = GridworldConfig(levels="20x20", maps=20, objects=20)
GENERATED = GridworldConfig(levels="generated", level_seed=5, maps=3, objects=12, rooms=3)


def small() -> GridworldConfig:
    config = WORLDS["gridworld-small"]
    assert isinstance(config, GridworldConfig)
    return config


def entries_of(config: GridworldConfig) -> list[dict[str, Any]]:
    return [as_entry(level) for level in config.build_levels()]


# Tables.

shapes = st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 15), st.integers(2, 4))


@settings(max_examples=20)
@given(shapes, st.data())
def test_tables_of_generated_levels(shape: tuple[int, int, int, int], data: st.DataObject) -> None:
    seed, maps, objects, rooms = shape
    world = GridworldConfig("any", "generated", seed, maps, objects, rooms, resolution=63).make(1)
    tables, entries = world.tables, [as_entry(level) for level in world.levels]
    number = {(m, y, x): state for state, (m, y, x) in enumerate(tables.square_S.tolist())}
    for (m, y, x), state in number.items():
        for action in DIRECTIONS:
            after = number[m, *move(entries[m], y, x, action)]
            assert tables.next_SA[state, action] == after
            # What is not blocked can be undone by the opposite move.
            assert after == state or tables.next_SA[after, (action + 4) % 8] == state
        touched = object_at(entries[m], y, x)
        assert tables.object_S[state] == (-1 if touched is None else touched)
    for m, entry in enumerate(entries):
        assert tables.start_m[m] == number[m, *find(entry, "A")]
    for (m, y, x), target in itertools.product(data.draw(st.lists(st.sampled_from(list(number)), max_size=5)), [0, -1]):
        world.state.fill_(number[m, y, x])
        world.task.fill_(m * objects + target % objects)
        assert world.observe().numpy().tobytes() == paint(entries[m], y, x, target)


@st.composite
def any_walls(draw: st.DrawFn) -> lv.Level:
    """Walls anywhere inside the border: the rooms of the generator never have two that meet at a corner only."""
    size = draw(st.integers(3, 7))
    inner = draw(st.lists(st.text("# ", min_size=size - 2, max_size=size - 2), min_size=size - 2, max_size=size - 2))
    walls = ("#" * size, *(f"#{row}#" for row in inner), "#" * size)
    free = [(y, x) for y in range(size) for x in range(size) if walls[y][x] == " "]
    assume(len(free) >= 2)
    start, thing = draw(st.permutations(free))[:2]
    return lv.Level(walls, start, (lv.Object(*thing, "teal", "ex"),))


@given(st.lists(any_walls(), min_size=1, max_size=2))
@example([lv.Level(("####", "# ##", "## #", "####"), (1, 1), (lv.Object(2, 2, "teal", "ex"),))])
def test_tables_of_any_walls(level_set: list[lv.Level]) -> None:
    tables = build_tables(tuple(level_set), resolution=7)
    number = {(m, y, x): state for state, (m, y, x) in enumerate(tables.square_S.tolist())}
    for (m, y, x), state in number.items():
        entry = as_entry(level_set[m])
        assert tables.next_SA[state].tolist() == [number[m, *move(entry, y, x, action)] for action in DIRECTIONS]


@settings(max_examples=15)
@given(shapes)
def test_every_square_of_generated_levels_can_be_reached(shape: tuple[int, int, int, int]) -> None:
    """All squares are connected; an object may still be shut in by others, and then the facts say so."""
    seed, maps, objects, rooms = shape
    config = GridworldConfig("any", "generated", seed, maps, objects, rooms, resolution=7)
    tables = config.make(1).tables
    for m, start in enumerate(tables.start_m):
        reached, frontier = {int(start)}, [int(start)]
        while frontier:
            frontier = [s for s in set(tables.next_SA[frontier].ravel().tolist()) if s not in reached]
            reached.update(frontier)
        assert len(reached) == (tables.square_S[:, 0] == m).sum()
    facts = cell_facts(config)
    assert ((facts.shortest_path > 0) | (facts.shortest_path == -1)).all()
    assert ((facts.random_reach > 0) == ((facts.shortest_path > 0) & (facts.shortest_path <= config.max_steps))).all()


# Facts.


@pytest.mark.parametrize("config", [PUBLIC, PUBLIC_20, GENERATED, small()])
def test_shortest_paths_equal_naive_search(config: GridworldConfig) -> None:
    expected = [
        len(shortest_path(entry, target)) for entry in entries_of(config) for target in range(len(entry["objects"]))
    ]
    assert cell_facts(config).shortest_path.tolist() == expected


def naive_reach(entry: dict[str, Any], max_steps: int) -> list[float]:
    """Probability that a random walk touches each object first, one square and one move at a time."""
    here, touched = {find(entry, "A"): 1.0}, [0.0] * len(entry["objects"])
    for _ in range(max_steps):
        there: dict[tuple[int, int], float] = {}
        for (y, x), p in here.items():
            for action in DIRECTIONS:
                after = move(entry, y, x, action)
                thing = object_at(entry, *after)
                if thing is None:
                    there[after] = there.get(after, 0.0) + p / 8
                else:
                    touched[thing] += p / 8
        here = there
    return touched


@pytest.mark.parametrize("config", [PUBLIC, replace(GENERATED, max_steps=7), small()])
def test_random_reach_equals_the_naive_distribution(config: GridworldConfig) -> None:
    expected = [p for entry in entries_of(config) for p in naive_reach(entry, config.max_steps)]
    np.testing.assert_allclose(cell_facts(config).random_reach, expected, rtol=1e-9, atol=1e-15)


def test_random_reach_equals_random_walks() -> None:
    config, walks, rng = small(), 2_000, random.Random(0)
    seen = np.zeros(16)
    for m, entry in enumerate(entries_of(config)):
        for _ in range(walks):
            y, x = find(entry, "A")
            for _ in range(config.max_steps):
                y, x = move(entry, y, x, rng.randrange(8))
                if (touched := object_at(entry, y, x)) is not None:
                    seen[m * 4 + touched] += 1
                    break
    p = cell_facts(config).random_reach
    assert (np.abs(seen / walks - p) < 4 * np.sqrt(p * (1 - p) / walks)).all()


def scores(facts: CellFacts, config: GridworldConfig) -> dict[str, float]:
    """What a random walk scores under each law, in percent."""
    shape = (config.maps, config.objects)
    return {
        mode: 100 * float(zipf.law(shape, 2.0, mode=mode) @ facts.random_reach)
        for mode in ("zipfian", "uniform", "rare")
    }


def test_a_random_walk_on_the_public_levels() -> None:
    expected = {"zipfian": 11.8, "uniform": 8.2, "rare": 19.3}
    assert scores(cell_facts(PUBLIC), PUBLIC) == pytest.approx(expected, abs=0.05)
    facts = cell_facts(PUBLIC)
    assert facts.shortest_path[89] == 1  # why the rare score of a random walk is so high
    assert facts.random_reach[1] < 1e-5  # the second most frequent task


def keeps_the_rule(facts: CellFacts) -> bool:
    return bool(facts.random_reach.min() >= 0.02 and facts.random_reach.max() <= 0.5)


def test_levels_of_gridworld_small() -> None:
    """The first level seed whose tasks are all neither out of a random walk's reach nor given to it."""
    config = small()
    facts = cell_facts(config)
    assert (config.maps, config.objects) == (4, 4) and keeps_the_rule(facts)
    assert not any(keeps_the_rule(cell_facts(replace(config, level_seed=s))) for s in range(config.level_seed))
    # So what is left to explain a difference between tasks is how rare they are.
    table = TaskTable.product(4, 4, config.exponent)
    assert abs(spearmanr(zipf.task_ranks(table.probability), facts.random_reach).statistic) < 0.25
    assert facts.random_reach[table.rare].max() < 0.05
    assert facts.shortest_path.min() >= 2 and facts.shortest_path.max() <= 9


# Bad input.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exponent": -1.0}, r"exponent is -1\.0: it must be a number of at least 0"),
        ({"levels": "10x20"}, "levels is '10x20': it must be 10x10, 20x20 or generated"),
        ({"levels": "20x20"}, "levels is '20x20', which has 20 maps x 20 objects, not 10 x 10: set maps to 20"),
        ({"maps": 11}, "levels is '10x10', which has 10 maps x 10 objects, not 11 x 10"),
        ({"objects": -3}, "levels is '10x10', which has 10 maps x 10 objects, not 10 x -3"),
        ({"levels": "generated", "objects": -3}, "10 maps with -3 objects: need at least 1 map and 1 to 35 objects"),
        ({"levels": "generated", "maps": 0}, "0 maps with 10 objects: need at least 1 map"),
        ({"levels": "generated", "rooms": 1}, "rooms is 1: it must be at least 2"),
        ({"resolution": 64}, "resolution is 64: it must be a multiple of 7"),
        ({"resolution": 0}, "resolution is 0: it must be a multiple of 7"),
        ({"max_steps": 0}, "max_steps is 0: it must be at least 1"),
        ({"law": "zipf"}, "law is 'zipf': it must be one of zipfian, uniform, rare"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PUBLIC, **changes).make(2)


def test_bad_weights_and_tasks() -> None:
    world = small().make(3)
    for weights, message in (
        (np.ones(15), r"weights have shape \(15,\): it must be \(16,\) for one law or \(3, 16\) for one per world"),
        (np.ones((2, 16)), r"weights have shape \(2, 16\)"),
        (-np.ones(16), "weights must be finite and at least 0"),
        (np.zeros(16), "weights sum to 0: at least one task must be possible"),
    ):
        with pytest.raises(ValueError, match=message):
            world.set_weights(weights)
    with pytest.raises(ValueError, match=r"task is \[ 0  1 16\]: it must be 3 task ids of 0\.\.15, one per world"):
        world.pin(np.array([0, 1, 16]))


def test_unknown_worlds_suggest_the_nearest() -> None:
    with pytest.raises(ValueError, match="world is 'gridwold': did you mean gridworld"):
        world_config("gridwold")


def test_steps_without_draws_say_what_is_missing() -> None:
    world = small().make(3)
    with pytest.raises(RuntimeError, match="call prepare"):
        world.step(world.task)
