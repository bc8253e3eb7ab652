"""Evaluation: every task pinned, frozen parameters, fresh worlds and generators. It never touches the training state."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import norm
from torch import Tensor

from longtail import zipf
from longtail.checkpoint import write_durably
from longtail.config import RunConfig
from longtail.report.heatmap import save_heatmap
from longtail.trained import TrainedAgent, choose, initial_state, load, policy_step
from longtail.worlds import GridworldConfig, TaskTable, World, make
from longtail.worlds.gridworld import cell_facts

COLUMNS = (
    "world", "backend", "method", "preset", "seed", "exponent", "step", "task", "map", "object", "map_rank",
    "object_rank", "probability", "visits_in_training", "episodes", "successes", "mean_return", "greedy",
)  # fmt: skip
DEVICE_WORLDS = {"cpu": 1024, "cuda": 8192}  # evaluated together; more need more memory and are no faster
HOST_WORLDS = 16
Z95 = float(norm.ppf(0.975))


@dataclass(frozen=True)
class Outcomes:
    """What the episodes of each task came to."""

    episodes_n: np.ndarray
    successes_n: np.ndarray
    return_n: np.ndarray  # mean over the task's episodes


@torch.no_grad()
def play_episodes(trained: TrainedAgent, world: World, greedy: bool) -> tuple[np.ndarray, np.ndarray]:
    """One whole episode of each world: success [B] and return [B]. Worlds that are done are no longer looked at."""
    agent, B = trained.agent, world.num_worlds
    weights = agent.encoder.prepare()
    state = initial_state(agent, B, world.device)
    h_BH, c_BH, last_action_B = state.h_BH, state.c_BH, state.last_action_B
    clip = trained.config.impala.reward_clip
    alive_B = torch.ones(B, dtype=torch.bool, device=world.device)
    first_B, last_reward_B = alive_B.clone(), torch.zeros(B, device=world.device)
    action_B = torch.zeros(B, dtype=torch.int64, device=world.device)
    success_B, return_B = torch.zeros_like(alive_B), torch.zeros(B, dtype=torch.float64, device=world.device)
    obs_BHWC = torch.empty(B, *world.obs_shape, dtype=torch.uint8, device=world.device)
    while len(index_N := alive_B.nonzero()[:, 0]):
        world.prepare(1)
        world.observe(obs_BHWC)
        h_NH, c_NH = h_BH[index_N], c_BH[index_N]
        logits_NA = agent.step(
            obs_BHWC[index_N], first_B[index_N], last_action_B[index_N], last_reward_B[index_N], h_NH, c_NH, weights
        )
        h_BH[index_N], c_BH[index_N] = h_NH, c_NH
        action_B[index_N] = choose(logits_NA, trained.generator, greedy)
        world.step(action_B)
        return_B += world.reward * alive_B
        success_B |= world.success & alive_B
        alive_B &= ~world.first
        last_action_B.copy_(action_B)
        last_reward_B.copy_(world.reward.clamp(-clip, clip) if clip else world.reward)
        first_B.fill_(False)
    return success_B.cpu().numpy(), return_B.cpu().numpy()


def play_tasks(trained: TrainedAgent, episodes: int, greedy: bool, seed: int) -> tuple[TaskTable, Outcomes]:
    """`episodes` whole episodes of every task, each pinned in a world of its own."""
    config = trained.config.world
    is_device_world = isinstance(config, GridworldConfig)
    probe = make(config, 1, trained.device)
    tasks = probe.tasks
    total = episodes * len(tasks)
    most = DEVICE_WORLDS[trained.device.type] if is_device_world else HOST_WORLDS
    probe.close()
    num_worlds = min(most, total)
    world = make(config, num_worlds, trained.device)
    # The worlds of a round play consecutive tasks; the last round's spare worlds play some again, uncounted.
    task_N = np.repeat(np.arange(len(tasks)), episodes)
    successes_n, return_n = np.zeros(len(tasks), np.int64), np.zeros(len(tasks))
    try:
        for round_, start in enumerate(range(0, total, num_worlds)):
            task_B = np.resize(task_N[start : start + num_worlds], num_worlds)
            counted = min(num_worlds, total - start)
            world.pin(task_B)
            world.reset(seed * 1_000_003 + round_)
            success_B, return_B = play_episodes(trained, world, greedy)
            np.add.at(successes_n, task_B[:counted], success_B[:counted])
            np.add.at(return_n, task_B[:counted], return_B[:counted] / episodes)
    finally:
        world.close()
    return tasks, Outcomes(np.full(len(tasks), episodes), successes_n, return_n)


def wilson(successes_n: np.ndarray, episodes_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of each share (Wilson, 1927)."""
    share, z2 = successes_n / episodes_n, Z95**2 / episodes_n
    middle = (share + z2 / 2) / (1 + z2)
    half = np.sqrt(z2 * share * (1 - share) + z2 * z2 / 4) / (1 + z2)
    return np.minimum(np.maximum(middle - half, 0), share), np.maximum(np.minimum(middle + half, 1), share)


def weighted_score(weight_n: np.ndarray, outcomes: Outcomes) -> dict[str, Any]:
    """Weighted mean of success in percent with its 95 % interval, from the tasks' own intervals (MOVER; Zou and

    Donner, 2008): unlike a normal interval it does not shrink to nothing where every trial came out the same.
    """
    used = weight_n > 0
    weight, episodes, successes = weight_n[used] / weight_n.sum(), outcomes.episodes_n[used], outcomes.successes_n[used]
    share, (low, high) = successes / episodes, wilson(successes, episodes)
    value = float(weight @ share)
    down, up = (float(np.sqrt(np.sum((weight * (share - edge)) ** 2))) for edge in (low, high))
    return {
        "value": round(100 * value, 4),
        "low": round(100 * max(value - down, 0.0), 4),
        "high": round(100 * min(value + up, 1.0), 4),
        "episodes": int(episodes.sum()),
        "cells": int(used.sum()),
    }


def score_weights(tasks: TaskTable) -> dict[str, np.ndarray]:
    """What each score is a mean over. zipfian: by probability; the others: every task of a set alike."""
    n = len(tasks)
    sets = {name: (tasks.group == i).astype(float) for i, name in enumerate(zipf.GROUPS)}
    return {
        "zipfian": tasks.probability,
        "uniform": np.full(n, 1 / n),
        "rare": tasks.rare.astype(float),
        "rarest_fifth": tasks.rarest_fifth.astype(float),
    } | {name: members for name, members in sets.items() if members.any()}


def references(config: RunConfig, tasks: TaskTable) -> dict[str, dict[str, float]]:
    """What a random walk and a shortest-path walker score, in percent, where that is known."""
    if not isinstance(config.world, GridworldConfig):
        return {}
    facts = cell_facts(config.world)
    per_task = {
        "random walk": facts.random_reach,
        "shortest path": (facts.shortest_path >= 0) & (facts.shortest_path <= config.world.max_steps),
    }
    weights = score_weights(tasks)
    return {
        who: {name: round(100 * float(w @ share_n / w.sum()), 4) for name, w in weights.items()}
        for who, share_n in per_task.items()
    }


def evaluate(
    run: Path | str,
    episodes: int = 50,
    greedy: bool = False,
    device: str = "auto",
    seed: int = 0,
    quiet: bool = False,
) -> dict[str, dict[str, Any]]:
    """Play `episodes` of every task; writes eval.csv, summary.json and heatmap.png into the run's folder."""
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}: it must be at least 1")
    run = Path(run)
    trained = load(run, device, seed)
    tasks, outcomes = play_tasks(trained, episodes, greedy, seed)
    summary = {name: weighted_score(weight_n, outcomes) for name, weight_n in score_weights(tasks).items()}
    write_durably(run / "eval.csv", eval_csv(trained, tasks, outcomes, greedy).encode())
    write_durably(run / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    save_heatmap(run / "eval.csv", run / "heatmap.png", title=f"{run.name}, step {trained.step:,}")
    console = Console(quiet=quiet, highlight=False)
    console.print(score_table(run.name, summary, references(trained.config, tasks)))
    console.print(f"{run / 'eval.csv'}, summary.json, heatmap.png", soft_wrap=True)
    return summary


def eval_csv(trained: TrainedAgent, tasks: TaskTable, outcomes: Outcomes, greedy: bool) -> str:
    """A row for each task; the columns are a contract (docs/design.md)."""
    c, text = trained.config, io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    backend = "embedded" if isinstance(c.world, GridworldConfig) else "gymnasium"
    exponent = c.world.exponent if isinstance(c.world, GridworldConfig) else ""
    for i in range(len(tasks)):
        task = (i, tasks.map[i], tasks.object[i], tasks.map_rank[i], tasks.object_rank[i], repr(float(tasks.probability[i])))
        result = (trained.visits_n[i], outcomes.episodes_n[i], outcomes.successes_n[i], round(outcomes.return_n[i], 6))
        run = (c.world.name, backend, c.method, c.preset, c.seed, exponent, trained.step)
        writer.writerow((*run, *task, *result, int(greedy)))
    return text.getvalue()


def score_table(name: str, summary: dict[str, dict[str, Any]], known: dict[str, dict[str, float]]) -> Table:
    table = Table(title="success in percent, with 95 % intervals", title_justify="left")
    table.add_column("")
    for score in summary:
        table.add_column(score.replace("_", " "), justify="right")
    cells = (f"{s['value']:.1f} [dim]{s['low']:.1f}-{s['high']:.1f}[/]" for s in summary.values())
    table.add_row(name, *cells)
    for who, scores in known.items():
        table.add_row(f"[dim]{who}", *(f"[dim]{scores[score]:.1f}" for score in summary))
    sizes = (f"[dim]{s['cells']} x {s['episodes'] // s['cells']}" for s in summary.values())
    table.add_row("[dim]tasks x episodes", *sizes)
    return table
