"""The picture of an evaluation: success for every map and object. Reads files only."""

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from longtail import zipf

SINGLE_ROW = 10  # tasks without objects are laid out in rows of so many


def heatmap_png(eval_csv: Path, title: str = "") -> bytes:
    """eval.csv as a map x object heatmap of success, beside the training visits; the rare set is outlined."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with eval_csv.open() as file:
        rows = list(csv.DictReader(file))
    success, visits, rare = cells(rows)
    height, width = success.shape
    side = min(0.5, 9 / max(height, width))  # inches of one cell
    size = (2 * max(side * width, 2.2) + 1.6, max(side * height, 1.6) + 1.3)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    font = min(9.0, 21 * side)
    _panel(left, success, "success in %", "YlGnBu", (0, 100), font, lambda v: f"{v:.0f}")
    log_visits = np.log10(visits + 1)
    _panel(right, log_visits, "episodes in training", "Oranges", (0, np.nanmax(log_visits)), font, _power)
    axis = "map" if _has_objects(rows) else f"task, {SINGLE_ROW} in a row" if height > 1 else ""
    for axes in (left, right):
        axes.set(ylabel=axis, xlabel="object" if _has_objects(rows) else "")
        if not rare.all():
            _outline(axes, rare)
    # As large as fits: a character is about 0.6 of the font's size wide.
    figure.suptitle(title, fontsize=min(12.0, size[0] * 72 / (0.6 * max(len(title), 1))), fontweight="bold")
    if not rare.all():
        figure.supxlabel("outlined: the rare set", fontsize=8, color="crimson")
    data = io.BytesIO()
    figure.savefig(data, dpi=150, format="png")
    return data.getvalue()


def cells(rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Success in percent, training visits and the rare set, by [map, object] (or in rows if there are no objects)."""
    table = {name: np.array([int(row[name]) for row in rows]) for name in ("map", "object", "map_rank", "object_rank")}
    y, x = table["map"], table["object"]
    is_rare = np.ones(len(rows), bool)
    for ranks in (table["map_rank"], table["object_rank"]):
        is_rare &= zipf.rare_set((int(ranks.max()),))[ranks - 1]
    if not _has_objects(rows):
        y, x = np.divmod(y, SINGLE_ROW)
    shape = (int(y.max()) + 1, int(x.max()) + 1)
    success, visits, rare = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape, bool)
    success[y, x] = [100 * int(row["successes"]) / int(row["episodes"]) for row in rows]
    visits[y, x] = [int(row["visits_in_training"]) for row in rows]
    rare[y, x] = is_rare
    return success, visits, rare


def _has_objects(rows: list[dict[str, str]]) -> bool:
    return any(int(row["object"]) for row in rows)


def _power(log_count: float) -> str:
    """A count from its logarithm, in at most four characters."""
    count = round(10**log_count - 1)
    for unit, size in (("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.0f}{unit}" if count >= 10 * size else f"{count / size:.1f}{unit}"
    return str(count)


def _panel(
    axes: Any, values: np.ndarray, title: str, colors: str, limits: tuple[float, float], font: float,
    text: Callable[[float], str],
) -> None:  # fmt: skip
    low, high = limits[0], max(limits[1], 1e-9)
    axes.imshow(values, cmap=colors, vmin=low, vmax=high)
    axes.set_title(title, fontsize=10)
    step = math.ceil(max(values.shape) / 20)
    axes.set_xticks(range(0, values.shape[1], step))
    axes.set_yticks(range(0, values.shape[0], step))
    axes.set_xticks(np.arange(values.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(values.shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0, labelsize=min(8, font + 1))
    axes.spines[:].set_visible(False)
    for (y, x), value in np.ndenumerate(values):
        if math.isfinite(value):
            color = "white" if (value - low) / (high - low) > 0.6 else "#333333"
            axes.text(x, y, text(value), ha="center", va="center", color=color, fontsize=font)


def _outline(axes: Any, rare: np.ndarray) -> None:
    """A line around the rare set: along every border between a cell inside and one outside."""
    inside = np.pad(rare, 1)
    for y, x in np.argwhere(rare):
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            if not inside[y + 1 + dy, x + 1 + dx]:
                center, along = np.array([x + dx / 2, y + dy / 2]), np.array([dy, dx]) / 2
                ends = np.stack([center - along, center + along])
                axes.plot(*ends.T, color="crimson", linewidth=1.5, solid_capstyle="round", clip_on=False)
