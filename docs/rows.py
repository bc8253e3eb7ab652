"""What the docs' tables have in common: reading rows, and writing Markdown."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longtail.scores import references
from longtail.worlds import WORLDS, make

SCORES = ("zipfian", "uniform", "rare", "head", "middle", "tail")
HEAD_CELLS = 8  # that tables of the most frequent tasks show

Row = dict[str, str]


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *rows)]
    return "\n".join(lines) + "\n"


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def walkers() -> list[list[str]]:
    """Rows of those who have not learned, on the public levels."""
    config = WORLDS["gridworld"]
    known = references(config, make(config, 1).tasks)
    return [[who, "", *(f"{scores[score]:.1f}" for score in SCORES)] for who, scores in known.items()]


def source(about: dict[str, Any]) -> str:
    where = about.get("device") or about["hardware"]["cpu"]
    return f"    {about['command']}    # {where}, {about['date'][:10]}, {about['seconds']:.0f} s"


def odds(reach: float) -> str:
    """Of a random walk."""
    return f"1 in {1 / reach:,.{0 if reach < 0.1 else 1}f}"
