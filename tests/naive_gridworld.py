"""A second Gridworld, slow and plain: it walks the level's text and paints square by square. No tables, no tensors.

It shares nothing with `longtail` but the data files, so that the two can only agree by both being right.
"""

import json
from collections import deque
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

DIRECTIONS = {0: (-1, 0), 1: (-1, 1), 2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (1, -1), 6: (0, -1), 7: (-1, -1)}
WORD = 2**64


def load(name: str) -> Any:
    return json.loads(resources.files("longtail.worlds").joinpath("data", name).read_text())


SPRITES = load("gridworld_sprites.json")


def as_entry(level: Any) -> dict[str, Any]:
    """A level in the form of the public data file: text with letters, and the letters' pictures."""
    rows = [list(row) for row in level.walls]
    rows[level.start[0]][level.start[1]] = "A"
    objects = []
    for i, thing in enumerate(level.objects):
        char = chr(ord("B") + i)
        rows[thing.y][thing.x] = char
        objects.append({"char": char, "color": thing.color, "shape": thing.shape})
    return {"layout": ["".join(row) for row in rows], "objects": objects}


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    return z ^ (z >> 31)


def draw(seed: int, world: int, episode: int, purpose: int) -> int:
    golden = 0x9E3779B97F4A7C15
    h = mix((seed + golden) % WORD)
    h = mix((h + (world + 1) * golden) % WORD)
    h = mix((h + (episode + 1) * golden) % WORD)
    return mix((h + (purpose + 1) * golden) % WORD) >> 11


def zipf_task(bits: int, maps: int, objects: int) -> tuple[int, int]:
    """The (map, object) that 53 bits stand for under the Zipf law with exponent 2, by exact fractions."""
    weights = [Fraction(1, (m + 1) ** 2 * (o + 1) ** 2) for m in range(maps) for o in range(objects)]
    left = Fraction(bits, 2**53) * sum(weights)
    for task, weight in enumerate(weights):
        if left < weight:
            return divmod(task, objects)
        left -= weight
    raise AssertionError("unreachable")


def find(entry: dict[str, Any], char: str) -> tuple[int, int]:
    return next((y, row.index(char)) for y, row in enumerate(entry["layout"]) if char in row)


def object_at(entry: dict[str, Any], y: int, x: int) -> int | None:
    char = entry["layout"][y][x]
    if char in "# A":
        return None
    return [thing["char"] for thing in entry["objects"]].index(char)


def move(entry: dict[str, Any], y: int, x: int, action: int) -> tuple[int, int]:
    rows = entry["layout"]
    dy, dx = DIRECTIONS[action]
    if rows[y + dy][x + dx] == "#":
        return y, x
    if dy and dx and rows[y + dy][x] == "#" and rows[y][x + dx] == "#":
        return y, x
    return y + dy, x + dx


@cache
def tile(back: tuple[int, int, int], color: str | None, shape: str | None, pixels: int) -> list[bytes]:
    """One square, row by row; with a shape, the sprite of that color lies over the background."""
    rows = []
    for v in range(pixels):
        row = b""
        for u in range(pixels):
            painted = shape is not None and SPRITES["shapes_9x9"][shape][v * 9 // pixels][u * 9 // pixels]
            row += bytes(SPRITES["colors"][color] if painted else back)
        rows.append(row)
    return rows


def paint(entry: dict[str, Any], y: int, x: int, target: int, resolution: int = 63) -> bytes:
    """The frame of an agent at (y, x) that looks for `target`, row by row, as bytes."""
    rows, picture = entry["layout"], b""
    for row in range(7):
        tiles = []
        for column in range(7):
            j, i = y + row - 3, x + column - 3
            inside = 0 <= j < len(rows) and 0 <= i < len(rows[0])
            thing = object_at(entry, j, i) if inside else None
            back, look = SPRITES["floor"], {"color": None, "shape": None}
            if (row, column) == (0, 0):
                back, look = SPRITES["cue_background"], entry["objects"][target]
            elif thing is not None:
                look = entry["objects"][thing]
            elif (row, column) == (3, 3):
                back = SPRITES["agent"]
            elif inside and rows[j][i] == "#":
                back = SPRITES["wall"]
            tiles.append(tile(tuple(back), look["color"], look["shape"], resolution // 7))
        for parts in zip(*tiles, strict=True):
            picture += b"".join(parts)
    return picture


class NaiveGridworld:
    """One world that plays the episodes of the law with exponent 2, as (seed, world) draw them."""

    def __init__(self, entries: list[dict[str, Any]], seed: int, world: int, max_steps: int) -> None:
        self.entries, self.seed, self.world, self.max_steps = entries, seed, world, max_steps
        self.episode = -1
        self.begin()

    def begin(self) -> None:
        self.episode += 1
        bits = draw(self.seed, self.world, self.episode, 0)
        self.map, self.target = zipf_task(bits, len(self.entries), len(self.entries[0]["objects"]))
        self.y, self.x = find(self.entries[self.map], "A")
        self.time = 0

    @property
    def task(self) -> int:
        return self.map * len(self.entries[0]["objects"]) + self.target

    def frame(self, resolution: int = 63) -> bytes:
        return paint(self.entries[self.map], self.y, self.x, self.target, resolution)

    def step(self, action: int, resolution: int = 63) -> dict[str, Any]:
        """Move, and begin the next episode in the same step if this one is over."""
        entry = self.entries[self.map]
        self.y, self.x = move(entry, self.y, self.x, action)
        self.time += 1
        touched = object_at(entry, self.y, self.x)
        over = touched is not None or self.time == self.max_steps
        result = {
            "ended_task": self.task,
            "success": touched == self.target,
            "reward": 1.0 if touched == self.target else 0.0,
            "terminated": touched is not None,
            "truncated": over and touched is None,
            "first": over,
            "final_frame": self.frame(resolution),
        }
        if over:
            self.begin()
        return result | {"task": self.task}


def shortest_path(entry: dict[str, Any], target: int) -> list[int]:
    """Fewest actions that lead from the start to the target without touching another object."""
    start = find(entry, "A")
    actions: dict[tuple[int, int], list[int]] = {start: []}
    queue = deque([start])
    while queue:
        y, x = queue.popleft()
        touched = object_at(entry, y, x)
        if touched == target:
            return actions[y, x]
        if touched is not None:
            continue
        for action in DIRECTIONS:
            after = move(entry, y, x, action)
            if after not in actions:
                actions[after] = [*actions[y, x], action]
                queue.append(after)
    raise AssertionError(f"object {target} cannot be reached")
