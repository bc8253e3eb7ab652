"""The heatmap: what is where, read back before it is drawn."""

import csv
import struct
from pathlib import Path

import numpy as np
import pytest

from longtail.report.heatmap import cells, heatmap_png
from longtail.worlds import TaskTable

NAN = float("nan")


def rows_of(tasks: TaskTable, visits: int = 7) -> list[dict[str, str]]:
    """Task i succeeds i times out of 20, and was visited `visits` times i in training."""
    return [
        {
            "map": str(tasks.map[i]), "object": str(tasks.object[i]), "map_rank": str(tasks.map_rank[i]),
            "object_rank": str(tasks.object_rank[i]), "visits_in_training": str(visits * i),
            "episodes": "20", "successes": str(i),
        }
        for i in range(len(tasks))
    ]  # fmt: skip


def test_maps_by_objects() -> None:
    rows = rows_of(TaskTable.product(2, 3, exponent=2))
    for some_order in (rows, rows[::-1]):
        success, visits, rare = cells(some_order)
        assert success.tolist() == [[0, 5, 10], [15, 20, 25]]
        assert visits.tolist() == [[0, 7, 14], [21, 28, 35]]
        assert rare.tolist() == [[False, False, False], [False, False, True]]


@pytest.mark.parametrize(("shape", "reverse"), [((2, 3), True), ((10, 10), False), ((5, 12), True)])
def test_the_rare_set_is_the_one_of_the_scores(shape: tuple[int, int], reverse: bool) -> None:
    tasks = TaskTable.product(*shape, exponent=2, reverse=reverse)
    np.testing.assert_array_equal(cells(rows_of(tasks))[2], tasks.rare.reshape(shape))
    if shape == (2, 3):
        assert np.argwhere(tasks.rare.reshape(shape)).tolist() == [[0, 0]]


def test_tasks_without_objects_lie_in_rows_of_ten() -> None:
    tasks = TaskTable.product(12, 1, exponent=1)
    success, visits, rare = cells(rows_of(tasks))
    np.testing.assert_array_equal(success, [5.0 * np.arange(10), [50.0, 55.0] + [NAN] * 8])
    np.testing.assert_array_equal(visits, [7.0 * np.arange(10), [70.0, 77.0] + [NAN] * 8])
    assert np.argwhere(rare).tolist() == [[1, 0], [1, 1]]


def size(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize("shape", [(2, 3), (12, 1), (1, 1), (10, 10)])
@pytest.mark.parametrize("visits", [0, 9999])
def test_the_picture(shape: tuple[int, int], visits: int, tmp_path: Path) -> None:
    """A PNG with two panels side by side, for one task as well, and for a run that has not ended any episode."""
    rows = rows_of(TaskTable.product(*shape, exponent=1), visits)
    with (tmp_path / "eval.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    png = heatmap_png(tmp_path / "eval.csv", "a [title]")
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = size(png)
    assert 3000 > width > height > 300
    assert heatmap_png(tmp_path / "eval.csv", "another title") != png
