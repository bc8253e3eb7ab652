"""Levels of Zipf's Gridworld: the public ones (Chan et al., 2022), our generator of more, and their pictures.

A level is a square grid of rooms with one-square walls between them. The generator follows the rules by which the
public levels were made, but none of its levels is one of theirs.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

ROOM = 3  # squares along a room's side
SPRITE = 9  # pixels along a square's side in the original
VIEW = 7  # squares along the view's side, centred on the agent


@dataclass(frozen=True)
class Object:
    y: int
    x: int
    color: str
    shape: str


@dataclass(frozen=True)
class Level:
    """Walls as rows of text ("#" is wall), the start square, and the objects in order of their Zipf rank."""

    walls: tuple[str, ...]
    start: tuple[int, int]
    objects: tuple[Object, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.walls), len(self.walls[0])

    def is_wall(self, y: int, x: int) -> bool:
        return self.walls[y][x] == "#"


@cache
def _data(name: str) -> Any:
    return json.loads(resources.files("longtail.worlds").joinpath("data", name).read_text())


def public_levels(name: str) -> tuple[Level, ...]:
    """The levels of the public benchmark: "10x10" or "20x20" (maps x objects)."""
    return tuple(_parse(entry) for entry in _data("gridworld_levels.json")[name])


def _parse(entry: dict[str, Any]) -> Level:
    where = {char: (y, x) for y, row in enumerate(entry["layout"]) for x, char in enumerate(row) if char.isalpha()}
    return Level(
        walls=tuple("".join("#" if char == "#" else " " for char in row) for row in entry["layout"]),
        start=where["A"],
        objects=tuple(Object(*where[o["char"]], o["color"], o["shape"]) for o in entry["objects"]),
    )


def generate_levels(seed: int, maps: int, objects: int, rooms: int = 3) -> tuple[Level, ...]:
    """New levels by the public benchmark's rules; level i does not depend on how many are asked for."""
    if rooms < 2:
        raise ValueError(f"rooms is {rooms}: it must be at least 2, because every room has a door to another")
    # A room keeps at least four squares free of doors, one of them is the start; no two objects look the same.
    most = min(rooms * rooms * 4 - 1, len(_looks()))
    if maps < 1 or not 1 <= objects <= most:
        raise ValueError(
            f"{maps} maps with {objects} objects: need at least 1 map and 1 to {most} objects for rooms={rooms}"
        )
    return tuple(_generate(random.Random(f"longtail {seed} {i}"), objects, rooms) for i in range(maps))


def _generate(rng: random.Random, objects: int, rooms: int) -> Level:
    size = rooms * (ROOM + 1) + 1
    grid = [["#" if y % (ROOM + 1) == 0 or x % (ROOM + 1) == 0 else " " for x in range(size)] for y in range(size)]
    doors = set(_doors(rng, rooms))
    for y, x in doors:
        grid[y][x] = " "
    free = [
        (y, x)
        for y in range(size)
        for x in range(size)
        if grid[y][x] == " " and (y, x) not in doors
        and any(grid[j][i] == "#" for j, i in _beside(y, x))
        and not any(square in doors for square in _beside(y, x))
    ]  # fmt: skip
    start, *places = rng.sample(free, objects + 1)
    chosen = rng.sample(_looks(), objects)
    return Level(
        walls=tuple("".join(row) for row in grid),
        start=start,
        objects=tuple(Object(y, x, color, shape) for (y, x), (color, shape) in zip(places, chosen, strict=True)),
    )


def _looks() -> list[tuple[str, str]]:
    """Every color and shape that an object can have."""
    sprites = _data("gridworld_sprites.json")
    return [(color, shape) for color in sorted(sprites["colors"]) for shape in sorted(sprites["shapes_9x9"])]


def _beside(y: int, x: int) -> tuple[tuple[int, int], ...]:
    return (y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)


def _doors(rng: random.Random, rooms: int) -> Iterator[tuple[int, int]]:
    """Doors until every room can be reached: first one for each room without, then between unconnected parts."""
    component = {(r, c): r * rooms + c for r in range(rooms) for c in range(rooms)}
    has_door: set[tuple[int, int]] = set()

    def connect(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        has_door.update((a, b))
        old, new = component[b], component[a]
        for room, part in component.items():
            if part == old:
                component[room] = new
        # The wall between two rooms lies behind the first of them; the door is one square along it.
        (r, c), along = min(a, b), 1 + rng.randrange(ROOM)
        step = ROOM + 1
        return (r * step + along, (c + 1) * step) if a[0] == b[0] else ((r + 1) * step, c * step + along)

    for room in component:
        if room not in has_door:
            yield connect(room, rng.choice([n for n in _beside(*room) if n in component]))
    while len(set(component.values())) > 1:
        pairs = [(a, b) for a in component for b in _beside(*a) if b in component and component[a] != component[b]]
        yield connect(*rng.choice(pairs))


def tile_pixels(resolution: int) -> int:
    """Pixels along a square's side for a view of `resolution` pixels."""
    if resolution <= 0 or resolution % VIEW:
        raise ValueError(f"resolution is {resolution}: it must be a multiple of {VIEW} (63 is the original, 84 ours)")
    return resolution // VIEW


def _enlarge(tile: np.ndarray, pixels: int) -> np.ndarray:
    """Nearest neighbour from 9x9 pixels; at 12 this is index * 3 // 4."""
    index = np.arange(pixels) * SPRITE // pixels
    return np.ascontiguousarray(tile[index][:, index])


def _sprite(color: str, shape: str, background: list[int], pixels: int) -> np.ndarray:
    sprites = _data("gridworld_sprites.json")
    mask = np.array(sprites["shapes_9x9"][shape], bool)[..., None]
    tile = np.where(mask, sprites["colors"][color], background).astype(np.uint8)
    return _enlarge(tile, pixels)


def cue_tile(thing: Object, pixels: int) -> np.ndarray:
    """The target's picture as it is shown to the agent."""
    return _sprite(thing.color, thing.shape, _data("gridworld_sprites.json")["cue_background"], pixels)


def agent_color() -> np.ndarray:
    return np.array(_data("gridworld_sprites.json")["agent"], np.uint8)


def level_tiles(level: Level, pixels: int) -> np.ndarray:
    """The whole level without the agent, uint8 [rows, columns, pixels, pixels, 3]."""
    sprites = _data("gridworld_sprites.json")
    tiles = np.empty((*level.shape, pixels, pixels, 3), np.uint8)
    tiles[:] = sprites["floor"]
    for y, row in enumerate(level.walls):
        for x, char in enumerate(row):
            if char == "#":
                tiles[y, x] = sprites["wall"]
    for thing in level.objects:
        tiles[thing.y, thing.x] = _sprite(thing.color, thing.shape, sprites["floor"], pixels)
    return tiles


def join_tiles(tiles: np.ndarray) -> np.ndarray:
    """[rows, columns, pixels, pixels, 3] to one picture."""
    rows, columns, pixels, _, channels = tiles.shape
    return np.ascontiguousarray(tiles.swapaxes(1, 2)).reshape(rows * pixels, columns * pixels, channels)
