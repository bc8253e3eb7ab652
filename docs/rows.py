"""What the docs' tables have in common: reading rows, and writing Markdown."""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from longtail.scores import references
from longtail.worlds import WORLDS, GridworldConfig, make
from longtail.worlds.gridworld import cell_facts

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


def spread(values: Sequence[float]) -> str:
    """Mean, and lowest to highest."""
    return f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def discovered(columns: dict[str, list[Row]]) -> str:
    """How many runs solve each of the most frequent tasks more often than not; a column has the rows of its runs."""
    config = WORLDS["gridworld"]
    assert isinstance(config, GridworldConfig)
    facts, lines = cell_facts(config), []
    by_task = {row["task"]: row for rows in columns.values() for row in rows}
    for row in sorted(by_task.values(), key=lambda row: (-float(row["probability"]), int(row["task"])))[:HEAD_CELLS]:
        task, share = int(row["task"]), 100 * float(row["probability"])
        reach, counts = facts.random_reach[task], []
        for rows in columns.values():
            mine = [2 * int(r["successes"]) > int(r["episodes"]) for r in rows if r["task"] == row["task"]]
            counts.append(f"{sum(mine)} of {len(mine)}")
        where, path = f"map {row['map']}, object {row['object']}", str(facts.shortest_path[task])
        walk = f"1 in {1 / reach:,.{0 if reach < 0.1 else 1}f}"
        lines.append([where, f"{share:.1f} %", path, walk, *counts])
    return markdown(("task", "of all episodes", "shortest path", "a random walk finds it", *columns), lines)
