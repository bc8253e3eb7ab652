"""What a run counts on its device, and where it is written: metrics.jsonl, TensorBoard, the terminal."""

import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor

from longtail import zipf
from longtail.checkpoint import write_durably
from longtail.impala.act import Rollout
from longtail.impala.learn import LEARN_METRICS
from longtail.worlds import TaskTable

Row = dict[str, Any]


class Counters:
    """Totals since the run's first step, kept on the device so that counting never waits for the host."""

    def __init__(self, num_tasks: int, device: torch.device, num_metrics: int = 0) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.iteration = zeros()
        self.first_bad = zeros() - 1  # the first iteration with a loss or gradient that is not finite
        self.episodes_n, self.successes_n = zeros(num_tasks), zeros(num_tasks)
        self.reward = zeros(dtype=torch.float64)
        self.learn_K = zeros(len(LEARN_METRICS), dtype=torch.float64)
        # What a method reports: sums, and how many iterations each is the sum of.
        self.method_M, self.method_count_M = zeros(num_metrics, dtype=torch.float64), zeros(num_metrics)

    def count(self, rollout: Rollout, learn_K: Tensor, method_M: Tensor, counts_M: Tensor) -> None:
        task_N, ended_N = rollout.task[:-1].flatten(), rollout.first[1:].flatten().to(torch.int64)
        # Integer sums, so the order in which a GPU adds them does not matter.
        self.episodes_n.index_add_(0, task_N, ended_N)
        self.successes_n.index_add_(0, task_N, rollout.success.flatten().to(torch.int64))
        self.reward += rollout.reward.sum()
        self.learn_K += learn_K
        if len(self.method_M):
            self.method_M += method_M * counts_M
            self.method_count_M += counts_M
        newly_bad = ~torch.isfinite(learn_K).all() & (self.first_bad < 0)
        self.first_bad.copy_(torch.where(newly_bad, self.iteration, self.first_bad))
        self.iteration += 1

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "iteration": self.iteration,
            "first_bad": self.first_bad,
            "episodes": self.episodes_n,
            "successes": self.successes_n,
            "reward": self.reward,
            "learn": self.learn_K,
            "method": self.method_M,
            "method_count": self.method_count_M,
        }

    def read(self) -> dict[str, np.ndarray]:
        return {name: tensor.cpu().numpy().copy() for name, tensor in self.state_dict().items()}


def summarize(
    before: dict[str, np.ndarray], now: dict[str, np.ndarray], tasks: TaskTable, method_metrics: Sequence[str] = ()
) -> Row:
    """What happened between two readings of the counters. A mean of nothing at all is null."""
    episodes_n, successes_n = now["episodes"] - before["episodes"], now["successes"] - before["successes"]
    iterations = max(int(now["iteration"] - before["iteration"]), 1)

    def accuracy(members_n: np.ndarray) -> float | None:
        n = int(episodes_n[members_n].sum())
        return round(float(successes_n[members_n].sum()) / n, 6) if n else None

    episodes = int(episodes_n.sum())
    row: Row = {"accuracy": accuracy(np.ones(len(tasks), bool))}
    row |= {f"accuracy_{name}": accuracy(tasks.group == i) for i, name in enumerate(zipf.GROUPS)}
    row |= {"episodes": episodes}
    row |= {f"visits_{name}": int(now["episodes"][tasks.group == i].sum()) for i, name in enumerate(zipf.GROUPS)}
    row["mean_return"] = float(now["reward"] - before["reward"]) / episodes if episodes else None
    means_K = (now["learn"] - before["learn"]) / iterations
    row |= dict(zip(LEARN_METRICS, map(float, means_K), strict=True))
    sums_M, counts_M = (now[name] - before[name] for name in ("method", "method_count"))
    means_M = (float(total / n) if n else None for total, n in zip(sums_M, counts_M, strict=True))
    return row | dict(zip(method_metrics, means_M, strict=True))


def read_rows(path: Path) -> list[Row]:
    """Rows of a metrics.jsonl; a last line that a crash cut short is dropped."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class MetricsWriter:
    """Appends rows to metrics.jsonl and TensorBoard; rows past the step that a run resumes from are taken back."""

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only training needs it

        path = run / "metrics.jsonl"
        rows = [row for row in read_rows(path) if row["step"] <= step]
        write_durably(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        self.file = path.open("a", buffering=1)
        self.board = SummaryWriter(str(run), purge_step=step + 1)

    def write(self, row: Row) -> None:
        self.file.write(json.dumps(row, allow_nan=False) + "\n")
        for name, value in row.items():
            if name != "step" and value is not None:
                self.board.add_scalar(name, value, row["step"])

    def close(self) -> None:
        try:
            self.file.close()
        finally:
            self.board.close()


@dataclass
class Speed:
    """Steps per second since this session began, and since the last row."""

    step: int

    def __post_init__(self) -> None:
        self.began, self.marked = time.perf_counter(), (time.perf_counter(), self.step)

    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def lap(self, step: int) -> float:
        (then, before), now = self.marked, time.perf_counter()
        self.marked = (now, step)
        return (step - before) / max(now - then, 1e-9)


class Recent:
    """How things stand: the speed of the last looks, and success over about the last `window` episodes of each group.

    The tail has few episodes between two rows, so its share of these would jump.
    """

    def __init__(self, tasks: TaskTable, now: dict[str, np.ndarray], step: int, window: int = 200) -> None:
        self.window, self.last, self.members = window, now, {"all": np.ones(len(tasks), bool)}
        self.members |= {name: tasks.group == i for i, name in enumerate(zipf.GROUPS)}
        # Episodes and successes between two looks, where there were any.
        self.parts: dict[str, deque[tuple[int, int]]] = {name: deque() for name in self.members}
        self.looks = deque([(time.perf_counter(), step)], maxlen=10)

    def is_due(self) -> bool:
        """About once a second: reading the counters waits for the device."""
        return time.perf_counter() - self.looks[-1][0] >= 1

    def look(self, now: dict[str, np.ndarray], step: int) -> tuple[float, dict[str, float | None]]:
        """Steps per second, and the share of successes of all and of each group."""
        (then, before), at = self.looks[0], time.perf_counter()
        self.looks.append((at, step))
        for name, parts in self.parts.items():
            n, successes = (int((now[k] - self.last[k])[self.members[name]].sum()) for k in ("episodes", "successes"))
            if n:
                parts.append((n, successes))
            while parts and sum(n for n, _ in parts) - parts[0][0] >= self.window:
                parts.popleft()
        self.last = now
        totals = {name: [sum(column) for column in zip(*parts, strict=True)] for name, parts in self.parts.items()}
        return (step - before) / max(at - then, 1e-9), {k: v[1] / v[0] if v else None for k, v in totals.items()}


COLORS = dict(zip(zipf.GROUPS, ("green", "yellow", "magenta"), strict=True))


def percent(value: float | None) -> str:
    return "   -" if value is None else f"{100 * value:3.0f}%"


class TwoLines(Progress):
    """A progress bar with a line of figures below it; together they fit into 80 columns."""

    figures = Text()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self.figures


class ProgressDisplay:
    """A live display on a terminal, a line for each row elsewhere."""

    def __init__(self, console: Console, name: str, step: int, steps: int) -> None:
        self.console, self.steps = console, steps
        self.last, self.last_saved = "[dim]warming up[/]", ""
        self.progress = TwoLines(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.completed:,} of {task.total:,}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
            expand=True,
        )
        self.bar = self.progress.add_task(escape(name), total=steps, completed=step)
        self._refresh()

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def advance(self, step: int) -> None:
        self.progress.update(self.bar, completed=min(step, self.steps))

    def show(self, rate: float, shares: dict[str, float | None]) -> None:
        """Steps per second now, and success in the last episodes."""
        groups = "  ".join(f"{name} [{COLORS[name]}]{percent(shares[name])}[/]" for name in zipf.GROUPS)
        self.last = f"[cyan]{rate:,.0f}/s[/]  success {percent(shares['all'])}  {groups}"
        self._refresh()

    def row(self, row: Row, shares: dict[str, float | None]) -> None:
        """Where nothing is live, a line for each row, with the success in the last episodes."""
        if not self.console.is_terminal:
            groups = "  ".join(f"{name} {percent(shares[name])}" for name in zipf.GROUPS)
            speed = f"step {row['step']:>10,}  {row['steps_per_second']:>7,.0f}/s"
            self.console.print(f"{speed}  success {percent(shares['all'])}  {groups}", highlight=False)

    def saved(self, step: int) -> None:
        self.last_saved = f"  [dim]saved {step:,}[/]"
        self._refresh()

    def _refresh(self) -> None:
        self.progress.figures = Text.from_markup(self.last + self.last_saved)
        self.progress.figures.no_wrap, self.progress.figures.overflow = True, "ellipsis"
