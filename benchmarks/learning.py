"""What the hyperparameters of `--preset default` are chosen by, and what they come to: raw rows of every run.

    python benchmarks/learning.py select --method boosted   # a grid, on generated levels: what `default` is chosen by
    python benchmarks/learning.py judge                     # `default`, on the public levels, nothing was chosen on
    python benchmarks/learning.py judge --methods impala boosted boosted-all-negatives --steps 15_000_000

Writes into results/learning/, for 4 million steps of boosted: select-boosted-4M.csv (a row for each run), -tasks.csv (a
row for each task of each run), -curves.csv (rows along each run, with what goes on inside the method) and .json
(hardware, versions, command). Runs that share a GPU are replayed in turns, each on a stream of its own; each gives what
it gives alone. Minutes on a large GPU; hours on a CPU.
"""

import argparse
import csv
import itertools
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from longtail.config import RunConfig, resolve_device, resolve_precision
from longtail.evaluate import eval_csv, play_tasks
from longtail.methods import METHODS
from longtail.metrics import summarize
from longtail.recipes import recipe
from longtail.runfolder import git_commit
from longtail.scores import score_weights, weighted_score
from longtail.train import Trainer
from longtail.trained import TrainedAgent
from longtail.worlds import GridworldConfig

# Fields by dotted name, and what is tried for each.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "impala": {"impala.learning_rate": (3e-4, 1e-3, 2e-3), "impala.entropy_cost": (0.001, 0.003, 0.01)},
    "boosted": {"memory.transfer": (16, 64, 512)},
    "hcam": {"hcam.chunk": (8, 16)},
    "reconstruction": {"autoencoder.cost": (0.03, 0.3, 3.0)},
    "vae": {"autoencoder.cost": (0.03, 0.3, 3.0)},
}
# What is judged: methods, and methods with other fields.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in METHODS}
VARIANTS |= {"boosted-all-negatives": ("boosted", {"memory.negatives": "all"})}
VARIANTS |= {"boosted-64": ("boosted", {"memory.transfer": 64})}
LEVEL_SEEDS = (1, 2, 3, 4)  # each a set of 10 generated maps with 10 objects, of which none is public
SCORES = ("zipfian", "uniform", "rare", "head", "middle", "tail")
CHOSEN_BY = "uniform"  # the mean over all tasks, over the level sets: the tail is what this library is about
EPISODES = 50  # of each task
AHEAD = 20  # rounds that the host may be ahead of the GPU
POINTS = 30  # of a curve

Row = dict[str, Any]


class Run(NamedTuple):
    config: RunConfig
    point: Row  # what tells it from the others: fields of the grid by dotted name, or the variant


def with_fields(config: RunConfig, values: dict[str, Any]) -> RunConfig:
    """With fields of its sections set, by dotted name."""
    for name, value in values.items():
        section, field = name.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{field: value})})
    return config


def candidates(method: str, steps: int) -> list[Run]:
    """Every point of the method's grid on every set of generated levels."""
    base, grid, runs = recipe("gridworld", method), GRIDS[method], []
    for level_seed in LEVEL_SEEDS:
        world = GridworldConfig(levels="generated", level_seed=level_seed)
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            runs.append(Run(with_fields(replace(base, world=world, steps=steps, seed=level_seed), point), point))
    return runs


def judged(variants: Sequence[str], steps: int, seeds: int) -> list[Run]:
    """Default recipes on the public levels; the seeds of all methods draw the same tasks."""
    runs = []
    for seed in range(1, seeds + 1):
        for variant in variants:
            method, fields = VARIANTS[variant]
            config = replace(recipe("gridworld", method), steps=steps, seed=seed)
            runs.append(Run(with_fields(config, fields), {"variant": variant}))
    return runs


class Curve:
    """What metrics.jsonl has of a run, at a few points along it."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.last = trainer, trainer.counters.read()
        self.rows: list[Row] = []

    def look(self) -> None:
        trainer, now = self.trainer, self.trainer.counters.read()
        row = {"step": trainer.step} | summarize(self.last, now, trainer.world.tasks, trainer.method.metrics)
        self.rows.append(row | trainer.method.inspect(trainer.rollout, trainer.world.tasks))
        self.last = now


def train_together(configs: Sequence[RunConfig]) -> tuple[list[Trainer], list[list[Row]]]:
    """Train runs of the same length side by side on one device; returns their curves as well."""
    on_gpu = resolve_device(configs[0].device).type == "cuda"
    streams = [torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext() for _ in configs]
    trainers = []
    for config, stream in zip(configs, streams, strict=True):
        with stream:
            trainers.append(Trainer(config))
    curves = [Curve(trainer) for trainer in trainers]
    length = max(config.iterations for config in configs)
    for i in range(length):
        for trainer, stream in zip(trainers, streams, strict=True):
            if i < trainer.config.iterations:
                with stream:
                    trainer.iterate()
        if on_gpu and i % AHEAD == 0:
            torch.cuda.synchronize()
        if (i + 1) * POINTS // length != i * POINTS // length:
            for curve, stream in zip(curves, streams, strict=True):
                with stream:
                    curve.look()
    return trainers, [curve.rows for curve in curves]


def score(trainer: Trainer, point: Row) -> tuple[Row, str]:
    """A run's row, and its rows by task."""
    trainer.check_finite()
    config, visits_n = trainer.config, trainer.counters.episodes_n.cpu().numpy()
    generator = torch.Generator(trainer.device).manual_seed(0)
    trained = TrainedAgent(
        config,
        trainer.agent,
        trainer.method,
        trainer.step,
        visits_n,
        trainer.device,
        generator,
        trainer.world.obs_shape,
    )
    tasks, outcomes = play_tasks(trained, EPISODES, greedy=False, seed=0)
    world, weights = config.world, score_weights(tasks)
    assert isinstance(world, GridworldConfig)
    row: Row = {"levels": world.levels, "level_seed": world.level_seed, "seed": config.seed, "step": trainer.step}
    row |= {"method": config.method, "worlds": config.impala.worlds}
    row |= {name.rpartition(".")[2]: value for name, value in point.items()}
    row |= {name: weighted_score(weights[name], outcomes)["value"] for name in SCORES}
    return row, eval_csv(trained, tasks, outcomes, greedy=False)


def measure(runs: Sequence[Run], together: int) -> Iterator[tuple[Row, str, list[Row]]]:
    """Each run's row, its rows by task, and its curve."""
    for start in range(0, len(runs), together):
        group = runs[start : start + together]
        began = time.perf_counter()
        trainers, curves = train_together([run.config for run in group])
        if trainers[0].device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        steps = sum(trainer.step for trainer in trainers)
        print(f"{len(group)} runs, {steps:,} steps in {seconds:.0f} s: {steps / seconds:,.0f} steps/s", flush=True)
        for trainer, run, curve in zip(trainers, group, curves, strict=True):
            yield *score(trainer, run.point), curve


def summary(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Mean and lowest score over the rows of each point of the grid, best first by CHOSEN_BY."""
    lines = []
    for values in sorted({tuple(row[name] for name in names) for row in rows}):
        mine = [row for row in rows if tuple(row[name] for name in names) == values]
        line: Row = dict(zip(names, values, strict=True)) | {"runs": len(mine)}
        line |= {name: float(np.mean([row[name] for row in mine])) for name in SCORES}
        lines.append(line | {"lowest zipfian": min(row["zipfian"] for row in mine)})
    return sorted(lines, key=lambda line: -line[CHOSEN_BY])


def show(lines: Sequence[Row]) -> None:
    table = Table(title=f"success in %, means over runs, best first by {CHOSEN_BY}", title_justify="left")
    for name in lines[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for line in lines:
        table.add_row(
            *(f"{value:.1f}" if name in SCORES or " " in name else str(value) for name, value in line.items())
        )
    Console(highlight=False).print(table)


def write(
    out: Path, name: str, rows: Sequence[Row], by_task: Sequence[str], curves: Sequence[Sequence[Row]], about: Row
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / f"{name}.csv", rows)
    write_csv(out / f"{name}-curves.csv", [{"run": run} | row for run, curve in enumerate(curves, 1) for row in curve])
    lines = [text.splitlines() for text in by_task]
    # The fields of the grid are not in a task's row: `run` is the number of the row in the other file.
    numbered = (f"{run},{line}" for run, (_, *body) in enumerate(lines, 1) for line in body)
    (out / f"{name}-tasks.csv").write_text("\n".join([f"run,{lines[0][0]}", *numbered]) + "\n")
    (out / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Columns of all rows; an empty cell where a row has none, six digits of a number that is not whole."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()})


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("select", "judge"))
    parser.add_argument("--method", choices=tuple(GRIDS), default="impala", help="select: whose grid (default impala)")
    parser.add_argument(
        "--methods", choices=tuple(VARIANTS), nargs="+", default=["impala"], metavar="METHOD",
        help=f"judge: any of {', '.join(VARIANTS)} (default impala)",
    )  # fmt: skip
    parser.add_argument("--name", help="judge: of the files, instead of the methods' names")
    parser.add_argument("--steps", type=int, default=4_000_000, help="of each run (default 4,000,000)")
    parser.add_argument("--seeds", type=int, default=10, help="judge: how many (default 10)")
    parser.add_argument("--together", type=int, default=9, help="runs at a time on one device (default 9)")
    parser.add_argument("--out", type=Path, default=Path("results/learning"), metavar="DIR")
    args = parser.parse_args(argv)
    for name in ("steps", "seeds", "together"):
        if getattr(args, name) < 1:
            parser.error(f"{name} is {getattr(args, name)}: it must be at least 1")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    if args.command == "select":
        runs, flags = candidates(args.method, args.steps), {"method": args.method}
        name = f"select-{args.method}"
    else:
        runs, flags = judged(args.methods, args.steps, args.seeds), {"methods": " ".join(args.methods)}
        name = f"judge-{args.name or '-'.join(args.methods)}"
        flags |= {"name": args.name} if args.name else {}
    flags |= {"steps": args.steps} | ({"seeds": args.seeds} if args.command == "judge" else {})
    flags |= {"together": args.together}
    device = resolve_device("auto")
    began = time.perf_counter()
    rows, by_task, curves = zip(*measure(runs, args.together), strict=True)
    about = {
        "command": " ".join(
            ["python benchmarks/learning.py", args.command, *(f"--{flag} {value}" for flag, value in flags.items())]
        ),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu",
        "precision": str(resolve_precision("auto", device)).removeprefix("torch."),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "seconds": round(time.perf_counter() - began, 1),
        "episodes_per_task": EPISODES,
        "chosen_by": CHOSEN_BY,
    }
    write(args.out, f"{name}-{args.steps / 1e6:.3g}M", rows, by_task, curves, about)
    show(summary(rows, [name.rpartition(".")[2] for name in runs[0].point]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
