"""Every picture of the docs, and the README's table of results, from the worlds themselves and from raw rows.

    python docs/figures.py            (or: make figures)

Draws into docs/img/ and rewrites the lines between the table's marks in README.md. What has no rows under results/
yet is left out, and said. The demo's rows are made by: make demo && cp runs/demo/*.json* runs/demo/*.csv results/demo/
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from longtail import zipf
from longtail.report.heatmap import heatmap_png
from longtail.runfolder import read_config
from longtail.scores import references
from longtail.worlds import WORLDS, make

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "results" / "demo"
SCORES = ("zipfian", "uniform", "rare", "head", "middle", "tail")
Scores = dict[str, dict[str, float]]
TABLE = ("<!-- demo table: make figures -->\n", "<!-- end of demo table -->\n")


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


def demo_table(name: str, summary: Scores, known: Scores, manifest: dict[str, Any]) -> str:
    """The README's table, in Markdown: the agent, those who have not learned, and what the numbers were made by."""
    agent = (f"{s['value']:.1f} ({s['low']:.1f} to {s['high']:.1f})" for s in (summary[score] for score in SCORES))
    rows = [["success in %", *SCORES], ["---"] * (len(SCORES) + 1), [name, *agent]]
    rows += [[who, *(f"{scores[score]:.1f}" for score in SCORES)] for who, scores in known.items()]
    last, minutes = manifest["sessions"][-1], manifest["wall_seconds"] / 60
    hardware = f"{last['hardware']['cpus']} cores ({last['hardware']['cpu']}, {last['precision']})"
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines += ["", f"In brackets 95 % intervals. {last['to_step']:,} steps, {minutes:.1f} minutes on {hardware}."]
    lines += ["", "![Success of every task, and how often training saw it](docs/img/demo.png)"]
    return "\n".join(lines) + "\n"


def with_table(text: str, table: str) -> str:
    """A text with the lines between the table's marks replaced."""
    before, rest = text.split(TABLE[0])
    _, after = rest.split(TABLE[1])
    return before + TABLE[0] + table + TABLE[1] + after


def draw(images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    for name, figure in {"gridworld": worlds_figure, "law": law_figure}.items():
        figure().savefig(images / f"{name}.png", dpi=110)
    if DEMO.is_dir():
        (images / "demo.png").write_bytes(heatmap_png(DEMO / "eval.csv", "gridworld-small"))
    else:
        print("no demo.png and no table: results/demo/ holds no rows yet")


def readme_with_table(text: str) -> str:
    """README.md with the table of results/demo/, unchanged where there are no rows."""
    if not DEMO.is_dir():
        return text
    config = read_config(DEMO)
    summary, manifest = (json.loads((DEMO / name).read_text()) for name in ("summary.json", "manifest.json"))
    known = references(config.world, make(config.world, 1).tasks)
    return with_table(text, demo_table(config.method, summary, known, manifest))


if __name__ == "__main__":
    draw(ROOT / "docs" / "img")
    readme = ROOT / "README.md"
    readme.write_text(readme_with_table(readme.read_text()))
