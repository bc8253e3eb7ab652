"""Tables of the docs about methods: what they are, what their fields were chosen by, and what they came to."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean, stdev

from rows import SCORES, Row, discovered, markdown, read_rows, source, spread, walkers
from scipy.stats import t

from longtail.methods import METHODS
from longtail.recipes import recipe

ORDER = (*METHODS, "boosted-all-negatives", "boosted-64")  # of rows
FIRST_LOOK = "judge-*-15M"  # under results/learning/
LOOKS = (1, 5, 10, 15)  # million steps, at which is shown what goes on inside
NOT_CHOSEN = {*SCORES, "levels", "level_seed", "seed", "step", "method", "worlds"}


def first_look_runs(results: Path) -> dict[str, dict[str, Row]]:
    """Rows of every run by variant and by its number, which is unique over files."""
    by_variant: dict[str, dict[str, Row]] = {}
    for path in sorted((results / "learning").glob(f"{FIRST_LOOK}.csv")):
        for number, row in enumerate(read_rows(path), 1):
            by_variant.setdefault(row["variant"], {})[f"{path.stem} {number}"] = row
    if not by_variant:
        raise FileNotFoundError(FIRST_LOOK)
    return {name: by_variant[name] for name in sorted(by_variant, key=ORDER.index)}


def first_look_rows(results: Path, kind: str) -> dict[str, list[Row]]:
    """Rows of the files of one kind (tasks or curves) by run, numbered as above."""
    by_run: dict[str, list[Row]] = {}
    for path in sorted((results / "learning").glob(f"{FIRST_LOOK}-{kind}.csv")):
        stem = path.stem.removesuffix(f"-{kind}")
        for row in read_rows(path):
            by_run.setdefault(f"{stem} {row['run']}", []).append(row)
    return by_run


def interval(values: Sequence[float]) -> str:
    """Mean with a 95 % interval of it, by Student's t over seeds."""
    middle, n = fmean(values), len(values)
    if n < 2:
        return f"{middle:.1f}"
    half = float(t.ppf(0.975, n - 1)) * stdev(values) / n**0.5
    return f"{middle:.1f} ({max(middle - half, 0):.1f} to {min(middle + half, 100):.1f})"


def first_look(results: Path) -> str:
    """Scores of every method with intervals over seeds, beside a random walk and shortest paths."""
    lines = []
    for variant, runs in first_look_runs(results).items():
        cells = (interval([float(row[score]) for row in runs.values()]) for score in SCORES)
        lines.append([variant, str(len(runs)), *cells])
    paths = sorted((results / "learning").glob(f"{FIRST_LOOK}.json"))
    titles = ("success in %, mean (95 % interval)", "seeds", *SCORES)
    abouts = "\n".join(source(json.loads(path.read_text())) for path in paths)
    return f"{markdown(titles, [*lines, *walkers()])}\n{abouts}\n"


def first_look_found(results: Path) -> str:
    """How many seeds of every method solve each of the most frequent tasks more often than not."""
    runs, tasks = first_look_runs(results), first_look_rows(results, "tasks")
    return discovered({name: [row for number in numbers for row in tasks[number]] for name, numbers in runs.items()})


def first_look_inside(results: Path) -> str:
    """What the momentum knows and what the buffers hold, along the runs that have a contrastive loss."""
    curves, lines = first_look_rows(results, "curves"), []
    columns = {"rarity AUROC": "rarity_auroc", "tail in the buffer": "familiarity_tail_share"}
    columns |= {"tail in MEM": "memory_tail_share", "copies": "duplicate_share", "negatives": "effective_negatives"}
    columns |= {"M with age": "momentum_age_correlation", "passes per slot": "passes_per_slot"}
    for variant, runs in first_look_runs(results).items():
        for million in LOOKS:
            rows = [min(curves[n], key=lambda row: abs(int(row["step"]) - million * 1e6)) for n in runs]
            values = [[float(row[c]) for row in rows if row.get(c)] for c in columns.values()]
            if values[0]:
                cells = (in_words(name, fmean(v)) for name, v in zip(columns, values, strict=True))
                lines.append([variant, f"{million} million", *cells])
    return markdown(("", "steps", *columns), lines)


def in_words(name: str, value: float) -> str:
    if name.startswith(("tail", "copies")):
        return f"{100 * value:.1f} %"
    return f"{value:.4g}" if value > 1 else f"{value:.2f}"


def methods(results: Path) -> str:
    """Every method by name."""
    lines = []
    for name, entry in METHODS.items():
        usual = type(entry.config)() if entry.config else None
        changed = (
            f"`{entry.section}.{f.name}` {getattr(entry.config, f.name)}"
            for f in (fields(entry.config) if entry.config else ())
            if getattr(entry.config, f.name) != getattr(usual, f.name)
        )
        lines.append([f"`{name}`", entry.summary, ", ".join(changed)])
    return markdown(("method", "", "fields that differ from its section's defaults"), lines)


def presets(results: Path) -> str:
    """Fields of the memory by preset, for the method `boosted`."""
    ours, paper = (recipe("gridworld", "boosted", name).memory for name in ("default", "paper"))
    lines = [[f"`memory.{f.name}`", str(getattr(ours, f.name)), str(getattr(paper, f.name))] for f in fields(ours)]
    return markdown(("field", "`default`", "`paper`"), lines)


def chosen(results: Path) -> str:
    """What the fields of methods were chosen by, on generated levels."""
    lines, abouts = [], []
    for path in sorted((results / "learning").glob("select-*.json")):
        about, rows = json.loads(path.read_text()), read_rows(path.with_suffix(".csv"))
        if rows[0].get("method", "impala") == "impala":
            continue
        (field,) = (name for name in rows[0] if name not in NOT_CHOSEN)
        points: dict[str, list[Row]] = {}
        for row in rows:
            points.setdefault(row[field], []).append(row)
        for value, mine in sorted(points.items(), key=lambda point: -fmean(float(row["uniform"]) for row in point[1])):
            cells = (f"{fmean(float(row[score]) for row in mine):.1f}" for score in SCORES)
            lines.append([rows[0]["method"], f"`{field}` {value}", f"{int(mine[0]['step']):,}", str(len(mine)), *cells])
        abouts.append(source(about))
    titles = ("method", "field", "steps", "runs", *SCORES)
    return f"{markdown(titles, lines)}\n" + "\n".join(abouts) + "\n"


def noisy_tv(results: Path) -> str:
    """The share of noise in MEM at the end of each run, beside its share in the stream that MEM was filled from."""
    lines, abouts = [], []
    for path in sorted((results / "noisy_tv").glob("*.csv")):
        by_point: dict[tuple[str, ...], list[Row]] = {}
        rows = read_rows(path)
        last = max(int(row["step"]) for row in rows)
        for row in rows:
            if int(row["step"]) == last:
                by_point.setdefault((row["noise"], row["transfer"], row["selection"]), []).append(row)
        for point, mine in by_point.items():
            shares = (spread([100 * float(row[name]) for row in mine]) for name in ("stream_noise", "memory_noise"))
            auroc = [float(row["auroc"]) for row in mine if row["auroc"]]
            lines.append([*point, str(len(mine)), *shares, f"{fmean(auroc):.2f}" if auroc else ""])
        abouts.append(source(json.loads(path.with_suffix(".json").read_text())))
    if not lines:
        raise FileNotFoundError("noisy_tv")
    titles = ("noise of", "`transfer`", "selection", "seeds", "% noise in stream", "% noise in MEM", "AUROC of noise")
    return f"{markdown(titles, lines)}\n" + "\n".join(abouts) + "\n"


def memory_speed(results: Path) -> str:
    """Tables of benchmarks/memory.py, one for each device."""
    found = sorted((results / "bench").glob("memory-*.md"))
    if not found:
        raise FileNotFoundError("memory-*.md")
    return "\n".join(path.read_text() for path in found)


TABLES = (first_look, first_look_found, first_look_inside, methods, presets, chosen, noisy_tv, memory_speed)
