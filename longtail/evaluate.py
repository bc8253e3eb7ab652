"""Evaluation: every task pinned, frozen parameters, fresh worlds and generators. The training state is not touched."""

import csv
import inspect
import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from longtail.checkpoint import write_durably
from longtail.recipes import command, preset_label
from longtail.report.heatmap import heatmap_png
from longtail.runfolder import command_line, read_manifest, write_manifest
from longtail.scores import Outcomes, references, score_weights, weighted_score
from longtail.trained import TrainedAgent, choose, load
from longtail.worlds import HostConfig, TaskTable, World, make
from longtail.worlds.vectors import HostError

COLUMNS = (
    "world", "backend", "method", "preset", "seed", "exponent", "step", "task", "map", "object", "map_rank",
    "object_rank", "probability", "visits_in_training", "episodes", "successes", "mean_return", "greedy",
)  # fmt: skip
DEVICE_WORLDS = {"cpu": 256, "cuda": 8192}  # evaluated together; more need more memory and are no faster
HOST_WORLDS = 16
LONGEST = 100_000  # steps; an episode that is not over by then is taken for one that never ends
EXACT = "greedy: one episode of each task, which is all there is"


@torch.no_grad()
def play_episodes(trained: TrainedAgent, world: World, greedy: bool) -> tuple[np.ndarray, np.ndarray]:
    """One whole episode of each world: success [B] and return [B]. Worlds that are done are no longer looked at."""
    agent, B = trained.agent, world.num_worlds
    weights = agent.prepare()
    state = trained.initial_state(B)
    h_BH, c_BH, last_action_B = state.h_BH, state.c_BH, state.last_action_B
    clip = trained.config.impala.reward_clip
    alive_B = torch.ones(B, dtype=torch.bool, device=world.device)
    first_B, last_reward_B = alive_B.clone(), torch.zeros(B, device=world.device)
    action_B = torch.zeros(B, dtype=torch.int64, device=world.device)
    success_B, return_B = torch.zeros_like(alive_B), torch.zeros(B, dtype=torch.float64, device=world.device)
    obs_BHWC = torch.empty(B, *world.obs_shape, dtype=torch.uint8, device=world.device)
    steps = 0
    every_B = torch.arange(B, device=world.device)
    while len(index_N := alive_B.nonzero()[:, 0]):
        if trained.method.per_episode:  # what is read belongs to all worlds of the batch
            index_N = every_B
        if steps == LONGEST:
            raise HostError(
                f"world is {trained.config.world.name!r}: an episode has not ended after {LONGEST:,} steps; give it a "
                f"time limit (max_episode_steps, where the environment is registered)"
            )
        world.prepare(1)
        world.observe(obs_BHWC)
        h_NH, c_NH = h_BH[index_N], c_BH[index_N]
        logits_NA, h_BH[index_N], c_BH[index_N] = agent.step(
            obs_BHWC[index_N], first_B[index_N], last_action_B[index_N], last_reward_B[index_N], h_NH, c_NH, weights,
            state.read,
        )  # fmt: skip
        action_B[index_N] = choose(logits_NA, trained.generator, greedy)
        world.step(action_B)
        return_B += world.reward * alive_B
        success_B |= world.success & alive_B
        alive_B &= ~world.first
        last_action_B.copy_(action_B)
        last_reward_B.copy_(world.reward.clamp(-clip, clip) if clip else world.reward)
        first_B.fill_(False)
        steps += 1
    return success_B.cpu().numpy(), return_B.cpu().numpy()


def play_tasks(
    trained: TrainedAgent, episodes: int, greedy: bool, seed: int, console: Console | None = None
) -> tuple[TaskTable, Outcomes]:
    """`episodes` whole episodes of every task, each pinned in a world of its own."""
    config, console = trained.config.world, console or Console(quiet=True)
    probe = make(config, 1, trained.device)
    tasks, on_device = probe.tasks, probe.on_device
    probe.close()
    total = episodes * len(tasks)
    num_worlds = min(DEVICE_WORLDS[trained.device.type] if on_device else HOST_WORLDS, total)
    # The worlds of a round play consecutive tasks; the last round's spare worlds play some again, uncounted.
    task_N = np.repeat(np.arange(len(tasks)), episodes)
    successes_n, return_n = np.zeros(len(tasks), np.int64), np.zeros(len(tasks))
    starts = range(0, total, num_worlds)
    text = f"playing {total:,} episodes"
    world = make(config, num_worlds, trained.device)
    try:
        for start in track(starts, text, console=console, transient=True, disable=not console.is_terminal):
            task_B = np.resize(task_N[start : start + num_worlds], num_worlds)
            counted = min(num_worlds, total - start)
            world.pin(task_B)
            world.reset(seed * 1_000_003 + start)
            success_B, return_B = play_episodes(trained, world, greedy)
            np.add.at(successes_n, task_B[:counted], success_B[:counted])
            np.add.at(return_n, task_B[:counted], return_B[:counted] / episodes)
    finally:
        world.close()
    return tasks, Outcomes(np.full(len(tasks), episodes), successes_n, return_n)


def evaluate(
    run: Path | str,
    episodes: int = 50,
    greedy: bool = False,
    device: str = "auto",
    seed: int = 0,
    quiet: bool = False,
) -> dict[str, dict[str, Any]]:
    """Play `episodes` of every task; writes eval.csv, summary.json and heatmap.png into the run's folder.

    Our own worlds leave nothing to chance but the policy: a greedy one plays each task once, and scores are exact.
    Returns the summary: for each score its value and 95 % interval in percent, episodes and cells.
    """
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}: it must be at least {least}")
    run, console = Path(run), Console(quiet=quiet, highlight=False, soft_wrap=True)
    trained = load(run, device, seed)
    exact = greedy and not isinstance(trained.config.world, HostConfig)
    episodes = 1 if exact else episodes
    tasks, outcomes = play_tasks(trained, episodes, greedy, seed, console)
    summary = {name: weighted_score(weight_n, outcomes, exact) for name, weight_n in score_weights(tasks).items()}
    scores = ", ".join(f"{name} {summary[name]['value']:.1f}" for name in ("zipfian", "uniform", "rare"))
    write_durably(run / "eval.csv", eval_csv(trained, tasks, outcomes, greedy).encode())
    write_durably(run / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    write_durably(run / "heatmap.png", heatmap_png(run / "eval.csv", f"{run.name}, step {trained.step:,}: {scores}"))
    note_evaluation(run, trained, episodes, greedy, seed)
    console.print(score_table(summary, references(trained.config.world, tasks), exact))
    console.print(what_next(run, trained, greedy))
    return summary


def eval_csv(trained: TrainedAgent, tasks: TaskTable, outcomes: Outcomes, greedy: bool) -> str:
    """A row for each task; the columns are a contract (docs/design.md)."""
    c, t, text = trained.config, tasks, io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    backend = "gymnasium" if isinstance(c.world, HostConfig) else "embedded"
    exponent = getattr(c.world, "exponent", "")
    run = (c.world_label, backend, c.method, preset_label(c), c.seed, exponent, trained.step)
    for i in range(len(t)):
        task = (i, t.map[i], t.object[i], t.map_rank[i], t.object_rank[i], repr(float(t.probability[i])))
        result = (trained.visits_n[i], outcomes.episodes_n[i], outcomes.successes_n[i], round(outcomes.return_n[i], 6))
        writer.writerow((*run, *task, *result, int(greedy)))
    return text.getvalue()


def note_evaluation(run: Path, trained: TrainedAgent, episodes: int, greedy: bool, seed: int) -> None:
    """What the files were made by, as the last of the manifest's `evaluations`."""
    manifest = read_manifest(run)
    entry = {
        "step": trained.step,
        "episodes": episodes,
        "greedy": greedy,
        "seed": seed,
        "device": trained.device.type,
        "precision": str(trained.agent.encoder.dtype).removeprefix("torch."),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
    }
    manifest.setdefault("evaluations", []).append(entry)
    write_manifest(run, manifest)


def score_table(summary: dict[str, dict[str, Any]], known: dict[str, dict[str, float]], exact: bool = False) -> Table:
    """Success in percent, a row for each score."""
    note = f"[dim]{EXACT}[/]" if exact else None
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), caption=note)
    table.caption_justify = "left"
    table.add_column("success in %", no_wrap=True)
    for column in ("agent", "95 % interval", *known, "tasks x times"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, score in summary.items():
        interval = "exact" if exact else f"{score['low']:.1f} to {score['high']:.1f}"
        sizes = f"{score['cells']} x {score['episodes'] // score['cells']}"
        others = (f"[dim]{scores[name]:.1f}[/]" for scores in known.values())
        agent = f"[bold cyan]{score['value']:.1f}[/]"
        table.add_row(name.replace("_", " "), agent, interval, *others, f"[dim]{sizes}[/]")
    return table


def what_next(run: Path, trained: TrainedAgent, greedy: bool) -> str:
    """Where the results are, and commands to go on with."""
    config, is_done = trained.config, trained.step >= trained.config.steps
    steps = 2 * config.steps if is_done and config.impala.schedule == "constant" else config.steps
    lines = [("every task", f"{run / 'heatmap.png'}, numbers in eval.csv and summary.json")]
    if trained.step < steps:
        lines.append(("train on" if is_done else "finish it", command(config, steps, run)))
    lines.append(("same, sampled" if greedy else "same, greedy", f"longtail eval {run}{'' if greedy else ' --greedy'}"))
    lines.append(("in Python", f"agent = longtail.load({str(run)!r})"))
    return "\n" + "\n".join(f"[dim]{what:<15}[/]{escape(text)}" for what, text in lines)


class _Callable(ModuleType):
    """`longtail.evaluate` is this file, and has to be the function as well."""

    __signature__ = inspect.signature(evaluate)
    __call__ = staticmethod(evaluate)


sys.modules[__name__].__class__ = _Callable
