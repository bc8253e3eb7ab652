"""Every picture of the docs, from the worlds themselves and from raw rows.

    python docs/figures.py            (or: make figures)

Draws into docs/img/. A picture whose rows under results/ do not exist yet is left out, and named.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import method_tables
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from rows import read_rows

from longtail import zipf
from longtail.report.heatmap import heatmap_png
from longtail.scores import references
from longtail.worlds import WORLDS, make

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def worlds_figure() -> Figure:
    """Whole maps above, what an agent sees at their start below."""
    shown = (
        ("gridworld", 0, 0),
        ("gridworld", 3, 2),
        ("gridworld", 9, 9),
        ("gridworld-20", 12, 3),
        ("gridworld-small", 1, 0),
    )
    figure = Figure(figsize=(2.1 * len(shown), 4.6), layout="constrained")
    for column, (name, map_id, object_id) in zip(figure.subplots(2, len(shown)).T, shown, strict=True):
        whole, view, chance = _picture(name, map_id, object_id)
        column[0].set_title(f"{name}\nmap {map_id}", fontsize=9)
        column[1].set_title(f"object {object_id}: 1 in {1 / chance:,.0f}", fontsize=9)
        for axes, image in zip(column, (whole, view), strict=True):
            _show(axes, image)
    return figure


def _picture(name: str, map_id: int, object_id: int) -> tuple[np.ndarray, np.ndarray, float]:
    world = make(WORLDS[name], 1)
    task = map_id * world.tasks.objects + object_id
    world.pin(np.array([task]))
    world.reset(0)
    return world.whole_map(0), world.observe()[0].numpy(), float(world.tasks.probability[task])  # type: ignore[attr-defined]


def _show(axes: Axes, image: np.ndarray) -> None:
    axes.imshow(image)
    axes.set_xticks([])
    axes.set_yticks([])


def law_figure() -> Figure:
    """How often each task of the public levels comes up: the object's law within a map, and maps x objects."""
    shape, exponent = (10, 10), 2.0
    probability = zipf.law(shape, exponent).reshape(shape)
    rare = zipf.rare_set(shape).reshape(shape)
    figure = Figure(figsize=(9.4, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    bars = left.bar(range(10), 100 * zipf.axis_law(10, exponent), color="#3b6ea5")
    left.bar_label(bars, fmt="%.1f", fontsize=8)
    left.set(
        title="objects within a map, and maps", xlabel="object, or map", ylabel="probability (%)", xticks=range(10)
    )
    left.spines[["top", "right"]].set_visible(False)
    right.imshow(np.log10(probability), cmap="viridis")
    right.set(title="a task comes up once in ... episodes", xlabel="object", ylabel="map")
    right.set(xticks=range(10), yticks=range(10))
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    for (m, o), p in np.ndenumerate(probability):
        text = f"{1 / p:.2g}" if p > 0.05 else f"{1 / p:.0f}" if p > 1e-3 else f"{1 / p / 1000:.1f}k"
        right.text(o, m, text, ha="center", va="center", fontsize=7.5, color="black" if p > 0.01 else "white")
    first = np.argwhere(rare).min(0) - 0.5
    right.add_patch(Rectangle((first[1], first[0]), 2, 2, fill=False, edgecolor="white", linewidth=2))
    return figure


def learning_figure() -> Figure:
    """Every seed's scores on the public levels, beside a random walk."""
    figure = Figure(figsize=(9.4, 3.4), layout="constrained")
    known = references(WORLDS["gridworld"], make(WORLDS["gridworld"], 1).tasks)["random walk"]
    for axes, score in zip(figure.subplots(1, 3), ("zipfian", "uniform", "rare"), strict=True):
        for x, (name, steps) in enumerate((("judge-impala-4M", "4M steps"), ("judge-impala-12.5M", "12.5M steps"))):
            values = sorted(float(row[score]) for row in read_rows(RESULTS / "learning" / f"{name}.csv"))
            spread = x + np.linspace(-0.18, 0.18, len(values))
            axes.scatter(spread, values, s=26, color=("#8fb3d9", "#3b6ea5")[x], label=steps, zorder=3)
            axes.hlines(np.mean(values), x - 0.3, x + 0.3, color="#333333", linewidth=1.5, zorder=2)
        axes.axhline(known[score], color="crimson", linewidth=1, linestyle="--", label="random walk")
        axes.set(title=f"{score}: success in %", xticks=(0, 1), xticklabels=("4M steps", "12.5M steps"))
        axes.set(xlim=(-0.5, 1.5), ylim=(0, 100 if score == "zipfian" else 60))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


COLORS = {"impala": "#8a8a8a", "mem": "#3b6ea5", "mem-contrastive": "#5aa469", "boosted": "#c0504d"}
COLORS |= {"boosted-all-negatives": "#e39a54", "boosted-64": "#7b3f9e"}


def first_look_figure() -> Figure:
    """Every seed's uniform score by method; and how well the momentum finds the tail, along each run."""
    figure = Figure(figsize=(10.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    runs = method_tables.first_look_runs(RESULTS)
    curves = method_tables.first_look_rows(RESULTS, "curves")
    for y, (variant, rows) in enumerate(runs.items()):
        values, color = sorted(float(row["uniform"]) for row in rows.values()), COLORS[variant]
        left.scatter(values, y + np.linspace(-0.2, 0.2, len(values)), s=26, color=color, zorder=3)
        left.vlines(np.mean(values), y - 0.35, y + 0.35, color="#333333", linewidth=1.5, zorder=2)
        lines = [[(int(r["step"]) / 1e6, r.get("rarity_auroc")) for r in curves[number]] for number in rows]
        for line in lines:
            points = [(x, float(value)) for x, value in line if value]
            if points:
                right.plot(*zip(*points, strict=True), color=color, linewidth=1, alpha=0.75)
    left.set(title="uniform: success in %, a dot for each seed", yticks=range(len(runs)), yticklabels=runs)
    left.invert_yaxis()
    right.axhline(0.5, color="#333333", linewidth=1, linestyle="--")
    right.annotate("chance", (0.1, 0.505), fontsize=8)
    right.set(title="rarity AUROC of the momentum, a line a seed", xlabel="million steps", ylim=(0, 1))
    names = [name for name in runs if name.startswith("boosted") or name == "mem-contrastive"]
    right.legend([Line2D([], [], color=COLORS[name]) for name in names], names, frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "gridworld": worlds_figure,
    "law": law_figure,
    "learning": learning_figure,
    "first-look": first_look_figure,
}


def draw(images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        figure().savefig(images / f"{name}.png", dpi=110)
    rows = RESULTS / "demo" / "eval.csv"
    if rows.exists():
        (images / "demo.png").write_bytes(heatmap_png(rows, "gridworld-small"))
    else:
        print("no demo.png: results/demo/ holds no rows yet", file=sys.stderr)


if __name__ == "__main__":
    draw(ROOT / "docs" / "img")
