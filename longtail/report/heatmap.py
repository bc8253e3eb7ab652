"""The picture of an evaluation: success for every map and object. Reads files only."""

import csv
from pathlib import Path

import numpy as np


def save_heatmap(eval_csv: Path, out: Path, title: str = "") -> None:
    """Draw eval.csv as a map x object heatmap of success, beside the training visits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with eval_csv.open() as file:
        rows = list(csv.DictReader(file))
    shape = (max(int(row["map"]) for row in rows) + 1, max(int(row["object"]) for row in rows) + 1)
    success, visits = np.full(shape, np.nan), np.zeros(shape)
    for row in rows:
        cell = int(row["map"]), int(row["object"])
        success[cell] = 100 * int(row["successes"]) / int(row["episodes"])
        visits[cell] = int(row["visits_in_training"])
    size = max(3.2, 0.42 * max(shape))
    figure = Figure(figsize=(2 * size + 1.6, size + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _panel(left, success, "success (%)", "viridis", (0, 100), lambda v: f"{v:.0f}")
    _panel(right, np.log10(visits + 1), "training episodes", "cividis", None, lambda v: _short(10**v - 1))
    figure.suptitle(title)
    partial = out.with_name(f".{out.name}.partial")
    figure.savefig(partial, dpi=150, format="png")
    partial.replace(out)


def _short(count: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.0f}{unit}" if count >= 10 * size else f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


def _panel(axes, values, title, colors, limits, text) -> None:  # type: ignore[no-untyped-def]
    low, high = limits or (float(np.nanmin(values)), max(float(np.nanmax(values)), 1e-9))
    axes.imshow(values, cmap=colors, vmin=low, vmax=high)
    axes.set(title=title, xlabel="object", ylabel="map")
    axes.set_xticks(range(values.shape[1]))
    axes.set_yticks(range(values.shape[0]))
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    for (m, o), value in np.ndenumerate(values):
        color = "black" if (value - low) / max(high - low, 1e-9) > 0.6 else "white"
        axes.text(o, m, text(value), ha="center", va="center", color=color, fontsize=7)
