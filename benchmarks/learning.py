"""What the hyperparameters of `--preset default` are chosen by, and what they come to: raw rows of every run.

    python benchmarks/learning.py select     # a grid of two fields, on generated levels: what `default` is chosen by
    python benchmarks/learning.py judge      # `default`, on the public levels, which nothing was chosen on

Writes into results/learning/, for 4 million steps: COMMAND-4M.csv (a row for each run), COMMAND-4M-tasks.csv (a row
for each task of each run) and COMMAND-4M.json (hardware, versions, command). Runs that share a GPU are replayed in
turns, each on a stream of its own; each gives what it gives alone. A few minutes on a large GPU; hours on a CPU.
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
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from longtail.config import RunConfig, resolve_device, resolve_precision
from longtail.evaluate import eval_csv, play_tasks
from longtail.recipes import recipe
from longtail.runfolder import git_commit
from longtail.scores import score_weights, weighted_score
from longtail.train import Trainer
from longtail.trained import TrainedAgent
from longtail.worlds import GridworldConfig

GRID = {"learning_rate": (3e-4, 1e-3, 2e-3), "entropy_cost": (0.001, 0.003, 0.01)}
LEVEL_SEEDS = (1, 2, 3, 4)  # each a set of 10 generated maps with 10 objects, of which none is public
SCORES = ("zipfian", "uniform", "rare", "head", "middle", "tail")
CHOSEN_BY = "uniform"  # the mean over all tasks, over the level sets: the tail is what this library is about
EPISODES = 50  # of each task
AHEAD = 20  # rounds that the host may be ahead of the GPU

Row = dict[str, Any]


def candidates(steps: int) -> list[RunConfig]:
    """Every point of the grid on every set of generated levels."""
    base, runs = recipe("gridworld"), []
    for level_seed in LEVEL_SEEDS:
        world = GridworldConfig(levels="generated", level_seed=level_seed)
        for values in itertools.product(*GRID.values()):
            impala = replace(base.impala, **dict(zip(GRID, values, strict=True)))
            runs.append(replace(base, world=world, impala=impala, steps=steps, seed=level_seed))
    return runs


def judged(steps: int, seeds: int) -> list[RunConfig]:
    """The default recipe on the public levels."""
    return [replace(recipe("gridworld"), steps=steps, seed=seed) for seed in range(1, seeds + 1)]


def train_together(configs: Sequence[RunConfig]) -> list[Trainer]:
    """Train runs of the same length side by side on one device."""
    on_gpu = resolve_device(configs[0].device).type == "cuda"
    streams = [torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext() for _ in configs]
    trainers = []
    for config, stream in zip(configs, streams, strict=True):
        with stream:
            trainers.append(Trainer(config))
    for i in range(max(config.iterations for config in configs)):
        for trainer, stream in zip(trainers, streams, strict=True):
            if i < trainer.config.iterations:
                with stream:
                    trainer.iterate()
        if on_gpu and i % AHEAD == 0:
            torch.cuda.synchronize()
    return trainers


def score(trainer: Trainer) -> tuple[Row, str]:
    """A run's row, and its rows by task."""
    trainer.check_finite()
    config, visits_n = trainer.config, trainer.counters.episodes_n.cpu().numpy()
    generator = torch.Generator(trainer.device).manual_seed(0)
    trained = TrainedAgent(
        config, trainer.agent, trainer.step, visits_n, trainer.device, generator, trainer.world.obs_shape
    )
    tasks, outcomes = play_tasks(trained, EPISODES, greedy=False, seed=0)
    world, weights = config.world, score_weights(tasks)
    assert isinstance(world, GridworldConfig)
    row: Row = {"levels": world.levels, "level_seed": world.level_seed, "seed": config.seed, "step": trainer.step}
    row |= {"worlds": config.impala.worlds} | {name: getattr(config.impala, name) for name in GRID}
    row |= {name: weighted_score(weights[name], outcomes)["value"] for name in SCORES}
    return row, eval_csv(trained, tasks, outcomes, greedy=False)


def measure(configs: Sequence[RunConfig], together: int) -> Iterator[tuple[Row, str]]:
    for start in range(0, len(configs), together):
        group = configs[start : start + together]
        began = time.perf_counter()
        trainers = train_together(group)
        if trainers[0].device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        steps = sum(trainer.step for trainer in trainers)
        print(f"{len(group)} runs, {steps:,} steps in {seconds:.0f} s: {steps / seconds:,.0f} steps/s", flush=True)
        for trainer in trainers:
            yield score(trainer)


def summary(rows: Sequence[Row]) -> list[Row]:
    """Mean and lowest score over the rows of each point of the grid, best first by CHOSEN_BY."""
    lines = []
    for values in sorted({tuple(row[name] for name in GRID) for row in rows}):
        mine = [row for row in rows if tuple(row[name] for name in GRID) == values]
        line: Row = dict(zip(GRID, values, strict=True)) | {"runs": len(mine)}
        line |= {name: float(np.mean([row[name] for row in mine])) for name in SCORES}
        lines.append(line | {"lowest zipfian": min(row["zipfian"] for row in mine)})
    return sorted(lines, key=lambda line: -line[CHOSEN_BY])


def show(lines: Sequence[Row]) -> None:
    table = Table(title=f"success in %, means over runs, best first by {CHOSEN_BY}", title_justify="left")
    for name in lines[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for line in lines:
        table.add_row(
            *(f"{value:.1f}" if name in SCORES or " " in name else f"{value:g}" for name, value in line.items())
        )
    Console(highlight=False).print(table)


def write(out: Path, name: str, rows: Sequence[Row], by_task: Sequence[str], about: Row) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = [text.splitlines() for text in by_task]
    # The fields of the grid are not in a task's row: `run` is the number of the row in the other file.
    numbered = (f"{run},{line}" for run, (_, *body) in enumerate(lines, 1) for line in body)
    (out / f"{name}-tasks.csv").write_text("\n".join([f"run,{lines[0][0]}", *numbered]) + "\n")
    (out / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("select", "judge"))
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
    configs = candidates(args.steps) if args.command == "select" else judged(args.steps, args.seeds)
    device = resolve_device("auto")
    began = time.perf_counter()
    rows, by_task = zip(*measure(configs, args.together), strict=True)
    flags = {"steps": args.steps} | ({"seeds": args.seeds} if args.command == "judge" else {})
    flags |= {"together": args.together}
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
    write(args.out, f"{args.command}-{args.steps / 1e6:.3g}M", rows, by_task, about)
    show(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
