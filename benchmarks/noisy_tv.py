"""Whether the memory is filled by what is merely novel: the share of a noisy task's states in MEM and in the stream.

    python benchmarks/noisy_tv.py                        # every selection, 64 states at a time, noise of pixels
    python benchmarks/noisy_tv.py --name noisy_tv-tiles --noises tiles --selections boosted-distinct uniform

In one task of gridworld-small every frame is fresh noise and nothing is ever rewarded: always new, of no use (the
"noisy TV"). All else is the gridworld's. Noise of pixels looks like nothing else there is; noise of tiles is made of
the gridworld's own squares. Writes into results/noisy_tv/: NAME.csv (rows along each run) and NAME.json (hardware,
versions, and the command, which says all settings). On a CPU, a minute for each run; OMP_NUM_THREADS=1 with as many
--processes as there are cores takes the least time.
"""

import argparse
import itertools
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from learning import write_csv
from measure import hardware
from rich.console import Console
from rich.table import Table
from torch import Tensor

from longtail.config import RunConfig, resolve_device, resolve_precision
from longtail.methods.statistics import auroc, mean
from longtail.recipes import recipe
from longtail.runfolder import git_commit
from longtail.train import Trainer
from longtail.worlds import WORLDS, GridworldConfig
from longtail.worlds.gridworld import Gridworld
from longtail.worlds.levels import VIEW
from longtail.worlds.random import draw
from longtail.worlds.world import restore

NOISE = 1000  # what the noise's draws are for: a purpose that no world of the library has
BYTES = 6  # of noise in the 53 bits of a draw

Noise = Literal["pixels", "tiles"]

# What decides which states go into MEM: a method, and fields of its section.
SELECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "boosted-distinct": ("boosted", {"negatives": "distinct"}),
    "boosted-all": ("boosted", {"negatives": "all"}),
    "boosted-as-written": ("boosted", {"negatives": "all", "transfer_once": False}),  # Algorithm 1 to the letter
    "boosted-familiar-first": ("boosted", {"eviction": "familiar-first"}),
    "uniform-contrastive": ("mem-contrastive", {}),
    "uniform": ("mem", {}),
}
POINT = ("noise", "transfer", "selection")  # what a line of the table is of
# Its other columns, and what they are called there.
SHOWN = {
    "stream_noise": "in stream", "memory_noise": "in MEM", "ratio": "ratio", "auroc": "AUROC",
    "M_noise": "M of noise", "M_others": "M of others", "success_others": "success",
}  # fmt: skip
WIDTH = 250  # of the table, wherever it is printed
POINTS = 10  # rows of a run

Row = dict[str, Any]


@dataclass(frozen=True)
class NoisyTVConfig:
    """A gridworld with one task in which there is nothing but noise to see and nothing to gain."""

    name: str = "noisy-tv"
    task: int = 1
    """Which task."""
    noise: Noise = "pixels"
    """Uniform noise, or squares taken at random from all views of the gridworld: as new, but not as strange."""
    world: GridworldConfig = WORLDS["gridworld-small"]  # type: ignore[assignment]
    """What all other tasks are of."""

    def __post_init__(self) -> None:
        tasks = self.world.maps * self.world.objects
        if not 0 <= self.task < tasks:
            raise ValueError(f"task is {self.task}: it must be one of 0..{tasks - 1}")
        if self.noise not in get_args(Noise):
            raise ValueError(f"noise is {self.noise!r}: it must be one of {', '.join(get_args(Noise))}")

    def make(self, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False) -> "NoisyTV":
        return NoisyTV(self, self.world.make(num_worlds, device, final_obs))


class NoisyTV:
    """What is not written here is the gridworld's own.

    A frame is a hash of (seed, world, steps since the reset): the same one for every method, whatever it did before.
    """

    on_device = False  # only worlds that show noise have it made, and which those are is read on the host

    def __init__(self, config: NoisyTVConfig, inner: Gridworld) -> None:
        self.config, self.inner, self.noisy_task = config, inner, config.task
        self.clock = torch.zeros((), dtype=torch.int64, device=inner.device)
        frame_S = torch.from_numpy(inner.tables.frame_S).to(inner.device)
        self._tile_X = _tiles(frame_S).flatten(0, 2)  # every square of every view, each as often as it is there

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def reset(self, seed: int, stagger: bool = False) -> None:
        self.inner.reset(seed, stagger)
        self.clock.zero_()

    def step(self, action_B: Tensor) -> None:
        self.inner.step(action_B)
        self.clock += 1
        is_noise_B = self.inner.ended_task == self.noisy_task
        self.inner.reward.masked_fill_(is_noise_B, 0)
        self.inner.success.masked_fill_(is_noise_B, False)

    def observe(self, out: Tensor | None = None) -> Tensor:
        return self._cover(self.inner.observe(out), self.inner.task)

    def observe_final(self, out: Tensor | None = None) -> Tensor:
        return self._cover(self.inner.observe_final(out), self.inner.ended_task)

    def _cover(self, obs_BHWC: Tensor, task_B: Tensor) -> Tensor:
        world_N = torch.nonzero(task_B == self.noisy_task)[:, 0]
        noise = self._pixels if self.config.noise == "pixels" else self._squares
        return obs_BHWC.index_copy_(0, world_N, noise(world_N))

    def _pixels(self, world_N: Tensor) -> Tensor:
        height, width, channels = self.inner.obs_shape
        size = height * width * channels
        bits_ND = self._draw(world_N, -(-size // BYTES))
        byte_NX = bits_ND.view(torch.uint8).unflatten(1, (-1, 8))[..., :BYTES].flatten(1)[:, :size]
        return byte_NX.unflatten(1, (height, width, channels))

    def _squares(self, world_N: Tensor) -> Tensor:
        index_NV = self._draw(world_N, VIEW * VIEW) % len(self._tile_X)
        return self._tile_X[index_NV].unflatten(1, (VIEW, VIEW)).swapaxes(2, 3).reshape(-1, *self.inner.obs_shape)

    def _draw(self, world_N: Tensor, count: int) -> Tensor:
        place_D = self.clock * count + torch.arange(count, device=self.clock.device)
        return draw(self.inner.queue.seed, world_N[:, None], place_D, NOISE)

    def state_dict(self) -> dict[str, Tensor]:
        return self.inner.state_dict() | {"clock": self.clock}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        restore({"clock": self.clock}, state)
        self.inner.load_state_dict(state)


def _tiles(image_NHWC: Tensor) -> Tensor:
    """The squares of views [N, rows, columns, pixels, pixels, C]."""
    pixels = image_NHWC.shape[1] // VIEW
    return image_NHWC.unflatten(2, (VIEW, pixels)).unflatten(1, (VIEW, pixels)).swapaxes(2, 3)


class Run(NamedTuple):
    config: RunConfig
    selection: str


def campaign(args: argparse.Namespace) -> list[Run]:
    """All selections of a seed begin with the same weights and draw the same tasks and noise."""
    runs = []
    for noise, transfer, seed in itertools.product(args.noises, args.transfers, range(1, args.seeds + 1)):
        for selection in args.selections:
            method, fields = SELECTIONS[selection]
            usual = recipe("gridworld-small", method)
            capacity = max(args.capacity, transfer)
            sizes = {"capacity": capacity, "familiarity": args.familiarity, "transfer": transfer}
            config = replace(
                usual,
                world=NoisyTVConfig(task=args.task, noise=noise),  # type: ignore[arg-type]
                impala=replace(usual.impala, worlds=args.worlds),
                memory=replace(usual.memory, **fields, **sizes),
                seed=seed,
                steps=args.steps,
                device="cpu",
            )
            runs.append(Run(config, selection))
    return runs


class Watch:
    """What is in the buffers of a run, and where it came from."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.noisy_task = trainer, trainer.config.world.task  # type: ignore[union-attr]
        self.share_at: dict[int, float] = {}  # of noise in the full familiarity buffer, by the memory's epoch
        self.last = trainer.counters.read()

    def after_iteration(self) -> None:
        memory = self.trainer.method.memory
        if memory.familiarity.is_full:
            self.share_at[int(memory.epochs)] = float(self._is_noise(memory.familiarity.tag).mean())

    def look(self) -> Row:
        """The stream's share is that of the buffers that MEM's states were chosen from: what a fair draw would give."""
        memory = self.trainer.method.memory
        f, filled = memory.familiarity, int(memory.mem.filled)
        is_noise_N, is_noise_M = self._is_noise(f.tag[: int(f.filled)]), self._is_noise(memory.mem.tag[:filled])
        stream = mean(np.array([self.share_at[epoch] for epoch in memory.mem.stored_at[:filled].tolist()]))
        stored = mean(is_noise_M)
        M_N = memory.rarity().numpy() if memory.config.contrastive and f.is_full else None
        return {
            "step": self.trainer.step,
            "buffer_noise": mean(is_noise_N),
            "stored": filled,
            "stream_noise": stream,
            "memory_noise": stored,
            "ratio": stored / stream if stream and stored is not None else None,
            "auroc": auroc(M_N, is_noise_N) if M_N is not None else None,
            "M_noise": mean(M_N[is_noise_N]) if M_N is not None else None,
            "M_others": mean(M_N[~is_noise_N]) if M_N is not None else None,
            "success_others": self._success(),
        }

    def _is_noise(self, tag_N: Tensor) -> np.ndarray:
        return (tag_N == self.noisy_task).numpy()

    def _success(self) -> float | None:
        """Share of the other tasks' episodes that succeeded since it was last asked."""
        now = self.trainer.counters.read()
        episodes_n, successes_n = (now[name] - self.last[name] for name in ("episodes", "successes"))
        self.last = now
        episodes = int(np.delete(episodes_n, self.noisy_task).sum())
        return float(np.delete(successes_n, self.noisy_task).sum()) / episodes if episodes else None


def train(run: Run) -> list[Row]:
    """Rows along a run, the last one at its end."""
    config, length, rows = run.config, run.config.iterations, []
    about = {"noise": config.world.noise, "transfer": config.memory.transfer, "selection": run.selection}
    trainer = Trainer(config)
    watch = Watch(trainer)
    for i in range(length):
        trainer.iterate()
        watch.after_iteration()
        if (i + 1) * POINTS // length != i * POINTS // length:
            rows.append(about | {"seed": config.seed} | watch.look())
    trainer.check_finite()
    return rows


def measure(runs: Sequence[Run], processes: int) -> Iterator[list[Row]]:
    """The same rows from any number of processes that have as many threads."""
    if processes == 1:
        yield from map(train, runs)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(train, runs)


def told(rows_of_runs: Iterable[list[Row]], count: int) -> Iterator[list[Row]]:
    began = time.perf_counter()
    for number, rows in enumerate(rows_of_runs, 1):
        last, seconds = rows[-1], time.perf_counter() - began
        what = ", ".join(str(last[name]) for name in (*POINT, "seed"))
        print(f"{number} of {count}, {seconds:.0f} s: {what}: {range_of([last['ratio']])}", flush=True)
        yield rows


def summary(rows: Sequence[Row]) -> list[Row]:
    """Of each selection, over its seeds, all that their last rows say."""
    last = {tuple(row[name] for name in (*POINT, "seed")): row for row in rows}
    lines = []
    for point in dict.fromkeys(key[:-1] for key in last):
        mine = [row for key, row in last.items() if key[:-1] == point]
        line: Row = dict(zip(POINT, point, strict=True)) | {"runs": len(mine)}
        lines.append(line | {name: [row[name] for row in mine] for name in SHOWN})
    return lines


def range_of(values: Sequence[float | None]) -> str:
    """Mean, and lowest to highest."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    average, low, high = (f"{value:.2f}" for value in (np.mean(known), min(known), max(known)))
    return average if len(known) == 1 else f"{average} ({low} to {high})"


def show(lines: Sequence[Row]) -> None:
    table = Table(title="ends of runs: mean over seeds (lowest to highest)", title_justify="left")
    for name in (*POINT, "runs", *SHOWN.values()):
        table.add_column(name, justify="left" if name in POINT else "right")
    for line in lines:
        about = (str(line[name]) for name in (*POINT, "runs"))
        table.add_row(*about, *(range_of(line[name]) for name in SHOWN))
    Console(highlight=False, width=WIDTH).print(table)


def write(out: Path, name: str, rows: Sequence[Row], about: Row) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / f"{name}.csv", rows)
    (out / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--selections", choices=tuple(SELECTIONS), nargs="+", default=list(SELECTIONS), metavar="SELECTION",
        help=f"any of {', '.join(SELECTIONS)} (default all)",
    )  # fmt: skip
    parser.add_argument("--transfers", type=int, nargs="+", default=[64], help="states at a time (default 64)")
    about_task = "which shows noise (default 1: the first map's second object, 12 %% of the episodes)"
    parser.add_argument("--task", type=int, default=1, help=about_task)
    parser.add_argument(
        "--noises", choices=get_args(Noise), nargs="+", default=["pixels"], metavar="NOISE",
        help="pixels, tiles or both (default pixels)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, help="how many (default 3)")
    parser.add_argument("--steps", type=int, default=200_000, help="of each run (default 200,000)")
    parser.add_argument("--worlds", type=int, default=32, help="default 32")
    parser.add_argument("--familiarity", type=int, default=1024, help="slots of the familiarity buffer (default 1,024)")
    about_capacity = "slots of MEM, or a transfer if that is more (default 256: full before the end)"
    parser.add_argument("--capacity", type=int, default=256, help=about_capacity)
    parser.add_argument("--processes", type=int, default=1, help="runs at a time (default 1)")
    parser.add_argument("--name", default="noisy_tv", help="of the files (default noisy_tv)")
    parser.add_argument("--out", type=Path, default=Path("results/noisy_tv"), metavar="DIR")
    args = parser.parse_args(argv)
    for name in ("seeds", "steps", "worlds", "processes"):
        if getattr(args, name) < 1:
            parser.error(f"{name} is {getattr(args, name)}: it must be at least 1")
    return args


def command_line(args: argparse.Namespace) -> str:
    """With every setting, its default too: defaults may change."""
    flags = {name: value for name, value in vars(args).items() if name != "out"}
    words = {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in flags.items()}
    return " ".join(["python benchmarks/noisy_tv.py", *(f"--{name} {value}" for name, value in words.items())])


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    began, commit, runs = time.perf_counter(), git_commit(), campaign(args)
    rows = [row for rows in told(measure(runs, args.processes), len(runs)) for row in rows]
    about = {
        "command": command_line(args),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": commit,
        "hardware": hardware() | {"threads": torch.get_num_threads()},
        "precision": str(resolve_precision("auto", resolve_device("cpu"))).removeprefix("torch."),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "seconds": round(time.perf_counter() - began, 1),
    }
    write(args.out, args.name, rows, about)
    show(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
