"""The public levels as their file says, and the generator against the rules by which the public ones were made."""

import hashlib
import json

import numpy as np
import pytest
from naive_gridworld import SPRITES, as_entry, load

from longtail.worlds import levels as lv

GENERATED = [
    *((seed, 10, 10, 3) for seed in range(10)),
    (0, 4, 4, 2),
    (0, 5, 15, 2),
    (0, 5, 35, 3),
    (1, 2, 225, 8),
    (2, 3, 1, 5),
]
Square = tuple[int, int]


def beside(y: int, x: int) -> list[Square]:
    return [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]


def rooms_of(level: lv.Level) -> int:
    return (len(level.walls) - 1) // 4


def doors_of(level: lv.Level) -> list[Square]:
    size = len(level.walls)
    return [(y, x) for y in range(size) for x in range(size) if (y % 4 == 0 or x % 4 == 0) and not level.is_wall(y, x)]


def test_public_levels_are_exactly_what_the_file_says() -> None:
    data = load("gridworld_levels.json")
    assert set(data) == {"10x10", "20x20"}
    for name, n in (("10x10", 10), ("20x20", 20)):
        level_set = lv.public_levels(name)
        assert len(level_set) == len(data[name]) == n
        for level, entry in zip(level_set, data[name], strict=True):
            assert as_entry(level) == {"layout": entry["layout"], "objects": entry["objects"]}
            assert len(level.objects) == n and level.shape == (13, 13)


@pytest.mark.parametrize("level", [*lv.public_levels("10x10"), *lv.public_levels("20x20")])
def test_public_levels_keep_the_rules(level: lv.Level) -> None:
    check_rules(level)


@pytest.mark.parametrize("arguments", GENERATED)
def test_generated_levels_keep_the_rules(arguments: tuple[int, int, int, int]) -> None:
    _, maps, objects, rooms = arguments
    level_set = lv.generate_levels(*arguments)
    assert len(level_set) == maps and len(set(level_set)) == maps
    for level in level_set:
        assert len(level.objects) == objects and rooms_of(level) == rooms
        check_rules(level)


def check_rules(level: lv.Level) -> None:
    rooms, doors = rooms_of(level), doors_of(level)
    size = 4 * rooms + 1
    assert level.shape == (size, size) and {len(row) for row in level.walls} == {size}
    assert set("".join(level.walls)) == {"#", " "}
    # Rooms are 3 x 3 squares of floor; doors are single squares between two of them, at most one for each two.
    joined = []
    for y in range(size):
        for x in range(size):
            if y % 4 and x % 4:
                assert not level.is_wall(y, x)
            elif y % 4 == 0 and x % 4 == 0:
                assert level.is_wall(y, x)
    for y, x in doors:
        assert 0 < y < size - 1 and 0 < x < size - 1
        sides = [(y, x - 1), (y, x + 1)] if x % 4 == 0 else [(y - 1, x), (y + 1, x)]
        joined.append(frozenset((j // 4, i // 4) for j, i in sides))
    assert len(set(joined)) == len(joined)
    # Every room has a door, and all are connected.
    reached, last = {(0, 0)}, 0
    while last < len(reached):
        last = len(reached)
        reached |= {room for pair in joined if pair & reached for room in pair}
    assert len(reached) == rooms * rooms
    assert {room for pair in joined for room in pair} == reached
    # Start and objects lie on different room squares that touch a wall and no door.
    places = [level.start, *((thing.y, thing.x) for thing in level.objects)]
    assert len(set(places)) == len(places)
    for y, x in places:
        assert y % 4 and x % 4
        assert any(level.is_wall(j, i) for j, i in beside(y, x))
        assert not set(beside(y, x)) & set(doors)
    looks = [(thing.color, thing.shape) for thing in level.objects]
    assert len(set(looks)) == len(looks)
    assert all(color in SPRITES["colors"] and shape in SPRITES["shapes_9x9"] for color, shape in looks)


def test_generator_golden_hash() -> None:
    """Results on generated levels are comparable only while the levels stay as they are."""
    text = json.dumps([as_entry(level) for level in lv.generate_levels(0, 10, 10)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "297ab46292f824fd"


def test_generator_is_deterministic_and_levels_are_independent_of_their_number() -> None:
    five = lv.generate_levels(7, 5, 8)
    assert lv.generate_levels(7, 5, 8) == five
    assert lv.generate_levels(7, 2, 8) == five[:2]
    assert not set(lv.generate_levels(8, 5, 8)) & set(five)


def test_doors_and_places_are_spread() -> None:
    """The generator draws uniformly: no direction, position along a wall, or room square is preferred or missing."""
    level_set = [level for seed in range(40) for level in lv.generate_levels(seed, 5, 10)]
    doors = [door for level in level_set for door in doors_of(level)]
    upright = sum(x % 4 == 0 for _, x in doors)
    along = np.bincount([(y if x % 4 == 0 else x) % 4 for y, x in doors], minlength=4)
    assert abs(upright / len(doors) - 0.5) < 0.05
    assert along[0] == 0 and np.abs(along[1:] / len(doors) - 1 / 3).max() < 0.05
    starts = np.bincount([level.start[0] // 4 * 3 + level.start[1] // 4 for level in level_set], minlength=9)
    assert starts.min() > len(level_set) / 9 / 2


def test_generated_levels_are_never_public_ones() -> None:
    public = {level.walls for name in ("10x10", "20x20") for level in lv.public_levels(name)}
    whole = {level for name in ("10x10", "20x20") for level in lv.public_levels(name)}
    made = [level for seed in range(100) for objects in (10, 20) for level in lv.generate_levels(seed, 3, objects)]
    assert not set(made) & whole
    assert not {level.walls for level in made} & public


@pytest.mark.parametrize(
    ("maps", "objects", "rooms"), [(0, 4, 3), (-1, 4, 3), (1, 0, 3), (1, 36, 3), (1, 16, 2), (1, 226, 8)]
)
def test_sizes_that_do_not_fit(maps: int, objects: int, rooms: int) -> None:
    with pytest.raises(ValueError, match=f"{maps} maps with {objects} objects: need at least 1 map and 1 to "):
        lv.generate_levels(0, maps, objects, rooms)


@pytest.mark.parametrize("rooms", [1, 0, -3])
def test_too_few_rooms(rooms: int) -> None:
    with pytest.raises(ValueError, match=f"rooms is {rooms}: it must be at least 2"):
        lv.generate_levels(0, 1, 1, rooms)


@pytest.mark.parametrize("resolution", [0, -7, 64, 100])
def test_resolutions_that_do_not_fit(resolution: int) -> None:
    with pytest.raises(ValueError, match=f"resolution is {resolution}: it must be a multiple of 7"):
        lv.tile_pixels(resolution)
