"""The noisy TV of benchmarks/noisy_tv.py: the gridworld but for one task, and a campaign that counts right."""

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

# Where Python looks when it is run as a script.
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import noisy_tv
from noisy_tv import NoisyTVConfig

from longtail.train import Trainer
from longtail.worlds import World
from longtail.worlds.levels import VIEW

TASK, WORLD_COUNT, STEPS = 1, 8, 250  # long enough for episodes of every kind to end
OUTCOME = ("first", "task", "reward", "terminated", "truncated", "success", "ended_task")
PINNED = np.array([TASK] * 4 + [0, 5, 10, 15])

Frames = list[dict[str, Tensor]]


def noisy(noise: str = "pixels", final_obs: bool = False) -> Any:
    return NoisyTVConfig(task=TASK, noise=noise).make(WORLD_COUNT, final_obs=final_obs)  # type: ignore[arg-type]


def actions() -> Tensor:
    return torch.randint(8, (STEPS, WORLD_COUNT), generator=torch.Generator().manual_seed(5))


def situation(world: World) -> dict[str, Tensor]:
    return {name: getattr(world, name).clone() for name in OUTCOME} | {"obs": world.observe()}


def play(world: World, action_TB: Tensor) -> Iterator[dict[str, Tensor]]:
    world.prepare(STEPS)
    for action_B in action_TB:
        world.step(action_B)
        yield situation(world)


def history(world: World, action_TB: Tensor | None = None, seed: int = 3) -> Frames:
    world.reset(seed, stagger=True)
    return [situation(world), *play(world, actions() if action_TB is None else action_TB)]


def same(one: Frames, other: Frames) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def noise_frames(noise: str) -> np.ndarray:
    """Of the worlds that play nothing else, uint8 [steps, worlds, H, W, C]."""
    world = noisy(noise)
    world.pin(PINNED)
    return torch.stack([row["obs"][:4] for row in history(world)]).numpy()


# The world.


@pytest.mark.parametrize("noise", ["pixels", "tiles"])
def test_all_but_one_task_is_the_gridworld(noise: str) -> None:
    """Bit for bit, and in the noisy task all but what is seen and gained."""
    world, plain = noisy(noise), NoisyTVConfig().world.make(WORLD_COUNT)
    gained = 0
    for row, expected in zip(history(world), history(plain), strict=True):
        is_noise_B, was_noise_B = row["task"] == TASK, row["ended_task"] == TASK
        for name in ("first", "task", "terminated", "truncated", "ended_task"):
            assert torch.equal(row[name], expected[name])
        for name in ("reward", "success"):
            assert torch.equal(row[name], expected[name].masked_fill(was_noise_B, 0))
        assert torch.equal(row["obs"][~is_noise_B], expected["obs"][~is_noise_B])
        assert not (row["obs"][is_noise_B] == expected["obs"][is_noise_B]).flatten(1).all(1).any()
        gained += int(expected["success"][was_noise_B].sum())
    assert gained > 0, "the gridworld rewards the task, or this test says little"


@pytest.mark.parametrize("noise", ["pixels", "tiles"])
def test_each_frame_of_noise_is_another(noise: str) -> None:
    frames = noise_frames(noise).reshape(4 * (STEPS + 1), -1)
    assert len(np.unique(frames, axis=0)) == len(frames)


def test_noise_of_pixels_is_uniform() -> None:
    byte_TX = noise_frames("pixels")[:30].reshape(30, -1)
    count = np.bincount(byte_TX.ravel(), minlength=256)
    expected = byte_TX.size / 256
    # Chi-squared of 255 degrees of freedom: 255 is its mean, 22.6 its standard deviation.
    assert abs(((count - expected) ** 2 / expected).sum() - 255) < 5 * 22.6
    # Neither of two bytes beside each other, nor of one byte in two steps, says anything of the other.
    for one, other in ((byte_TX[:, :-1], byte_TX[:, 1:]), (byte_TX[:-1], byte_TX[1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(one.size)


def test_noise_of_tiles_is_made_of_what_the_gridworld_shows() -> None:
    world = NoisyTVConfig().world.make(1)
    shown = {tile.tobytes() for frame in world.tables.frame_S for tile in squares(frame)}
    noise = [tile.tobytes() for frame in noise_frames("tiles")[:20, 0] for tile in squares(frame)]
    assert set(noise) <= shown
    assert len(set(noise)) > 10


def squares(frame: np.ndarray) -> list[np.ndarray]:
    size = len(frame) // VIEW
    return [frame[y : y + size, x : x + size] for y in range(0, len(frame), size) for x in range(0, len(frame), size)]


def test_the_seed_decides_and_the_policy_does_not() -> None:
    world = noisy()
    world.pin(PINNED)
    expected = history(world)
    assert same(history(world), expected)
    assert not same(history(world, seed=4), expected)
    others = history(world, actions().flip(0))
    assert not same(others, expected)
    assert all(torch.equal(a["obs"][:4], b["obs"][:4]) for a, b in zip(others, expected, strict=True))


def test_saved_state_goes_on_alike() -> None:
    world, other, action_TB = noisy(), noisy(), actions()
    world.reset(3, stagger=True)
    for _ in play(world, action_TB[:40]):
        pass
    other.load_state_dict({name: tensor.clone() for name, tensor in world.state_dict().items()})
    assert same(list(play(other, action_TB[40:90])), list(play(world, action_TB[40:90])))


def test_final_observations_of_the_noisy_task_are_noise() -> None:
    world = noisy(final_obs=True)
    plain = world.config.world.make(WORLD_COUNT, final_obs=True)
    for one in (world, plain):
        one.reset(3, stagger=True)
    for row, _ in zip(play(world, actions()), play(plain, actions()), strict=True):
        final_B, noise_B = world.observe_final(), row["ended_task"] == TASK
        assert torch.equal(final_B[~noise_B], plain.observe_final()[~noise_B])
        assert torch.equal(final_B[~row["first"]], row["obs"][~row["first"]])
        assert (final_B[noise_B].float().mean((1, 2, 3)) - 127.5).abs().max() < 5 if noise_B.any() else True


@pytest.mark.parametrize(("field", "value"), [("task", 16), ("task", -1), ("noise", "snow")])
def test_bad_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value!r}"):
        NoisyTVConfig(**{field: value})  # type: ignore[arg-type]


# The campaign.

PLAYED = 0  # half of all episodes, so that some noise is in the smallest of buffers
TINY = f"--worlds 3 --familiarity 24 --capacity 16 --transfers 8 --task {PLAYED} --seeds 1 --steps 2000"


class Counted(Trainer):
    """Notes after each iteration what is in the buffer and how episodes have ended, by loops."""

    made: list["Counted"] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.made.append(self)
        self.buffers: dict[int, float] = {}
        self.ends: dict[int, tuple[int, int]] = {0: (0, 0)}

    def iterate(self) -> None:
        super().iterate()
        tags, counts = self.method.memory.familiarity.tag.tolist(), self.counters.read()
        if -1 not in tags:
            self.buffers[int(self.method.memory.epochs)] = tags.count(PLAYED) / len(tags)
        others = [task for task in range(len(self.world.tasks)) if task != PLAYED]
        episodes, successes = (sum(int(counts[name][n]) for n in others) for name in ("episodes", "successes"))
        self.ends[self.step] = (episodes, successes)


def campaign(argv: str, out: Path) -> tuple[list[dict[str, str]], list[Counted]]:
    """Rows that a campaign wrote, and its trainers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noisy_tv, "Trainer", Counted)
        patch.setattr(Counted, "made", [])
        assert noisy_tv.main([*argv.split(), "--out", str(out)]) == 0
        with (out / "noisy_tv.csv").open() as file:
            return list(csv.DictReader(file)), Counted.made


Runs = list[tuple[list[dict[str, str]], Counted]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Each run's rows and its trainer."""
    rows, trainers = campaign(f"--selections boosted-all uniform {TINY}", tmp_path_factory.mktemp("noisy"))
    half = noisy_tv.POINTS
    assert [row["selection"] for row in rows] == ["boosted-all"] * half + ["uniform"] * half
    return list(zip((rows[:half], rows[half:]), trainers, strict=True))


def test_rows_have_the_right_shares(runs: Runs) -> None:
    shares: set[float] = set()
    for rows, trainer in runs:
        row, memory = rows[-1], trainer.method.memory
        tags = memory.mem.tag.tolist()
        stream = [trainer.buffers[epoch] for epoch in memory.mem.stored_at.tolist()]
        assert int(row["step"]) == trainer.step and int(row["stored"]) == len(tags) == 16
        shares |= set(stream)
        assert float(row["buffer_noise"]) == pytest.approx(trainer.buffers[int(memory.epochs)], rel=1e-5)
        assert float(row["stream_noise"]) == pytest.approx(sum(stream) / 16, rel=1e-5)
        assert float(row["memory_noise"]) == pytest.approx(tags.count(PLAYED) / 16, rel=1e-5)
        assert float(row["ratio"]) == pytest.approx(tags.count(PLAYED) / sum(stream), rel=1e-5)
    assert len(shares) > 1 and 0 < tags.count(PLAYED) < 16, "of the uniform draw, or this test says little"


def test_nothing_is_told_of_an_empty_memory(runs: Runs) -> None:
    for rows, _ in runs:
        assert rows[0]["stored"] == "0"
        assert {rows[0][name] for name in ("stream_noise", "memory_noise", "ratio", "auroc", "M_noise")} == {""}


def test_rarity_of_noise_by_pairs(runs: Runs) -> None:
    (rows, trainer), (uniform, _) = runs
    f = trainer.method.memory.familiarity
    rarity = list(zip(trainer.method.memory.rarity().tolist(), f.tag.tolist(), strict=True))
    noise, others = ([M for M, tag in rarity if (tag == PLAYED) == wanted] for wanted in (True, False))
    assert noise and others, "both are in the buffer, or this test says little"
    wins = [float(a > b) + 0.5 * (a == b) for a in noise for b in others]
    assert float(rows[-1]["auroc"]) == pytest.approx(sum(wins) / len(wins), rel=1e-5)
    assert float(rows[-1]["M_noise"]) == pytest.approx(sum(noise) / len(noise), rel=1e-4)
    assert float(rows[-1]["M_others"]) == pytest.approx(sum(others) / len(others), rel=1e-4)
    assert uniform[-1]["auroc"] == uniform[-1]["M_noise"] == ""  # without a contrastive loss, nobody knows


def test_success_is_that_of_the_other_tasks_since_the_row_before(runs: Runs) -> None:
    seen = 0
    for rows, trainer in runs:
        assert trainer.counters.read()["successes"][PLAYED] == 0 < trainer.counters.read()["episodes"][PLAYED]
        before = (0, 0)
        for row in rows:
            now = trainer.ends[int(row["step"])]
            episodes, successes = now[0] - before[0], now[1] - before[1]
            made = row["success_others"]
            assert (float(made) if made else None) == (pytest.approx(successes / episodes) if episodes else None)
            before, seen = now, seen + successes
    assert seen > 0


def test_the_same_campaign_gives_the_same_rows(runs: Runs, tmp_path: Path) -> None:
    rows, _ = campaign(f"--selections boosted-all {TINY}", tmp_path)
    assert rows == runs[0][0]
    about = json.loads((tmp_path / "noisy_tv.json").read_text())
    assert about["command"].startswith("python benchmarks/noisy_tv.py --selections boosted-all --transfers 8 --task 0")
    assert about["hardware"]["threads"] == 1 and str(tmp_path) not in json.dumps(about)


def test_all_selections_of_a_seed_begin_alike() -> None:
    """Weights, tasks and noise: before anything is learned, all do the same."""
    one, *others = (Trainer(run.config) for run in noisy_tv.campaign(noisy_tv.parse(TINY.split())))
    assert len(others) == len(noisy_tv.SELECTIONS) - 1
    for trainer in (one, *others):
        trainer.act()
    for other in others:
        assert torch.equal(one.rollout.obs, other.rollout.obs) and torch.equal(one.rollout.task, other.rollout.task)


# What comes out, on a quarter of the default sizes.

SHORT = "--worlds 8 --familiarity 256 --capacity 64 --transfers 16 --seeds 3 --steps 25_600"


def ends_of(selection: str) -> tuple[list[float], list[float]]:
    """Shares of noise in MEM, and in the stream it came from, at the ends of three runs."""
    runs = noisy_tv.campaign(noisy_tv.parse(["--selections", selection, *SHORT.split()]))
    ends = [noisy_tv.train(run._replace(config=replace(run.config, precision="fp32")))[-1] for run in runs]
    return [row["memory_noise"] for row in ends], [row["stream_noise"] for row in ends]


@pytest.mark.slow
def test_uniform_selection_takes_noise_as_it_comes() -> None:
    """Within 0.15 of the stream: almost four standard deviations of 64 independent draws at a share of 0.11."""
    for stored, stream in zip(*ends_of("uniform"), strict=True):
        assert abs(stored - stream) < 0.15


@pytest.mark.slow
def test_selection_by_momentum_prefers_noise() -> None:
    """Measured: 3.4 times the stream's share of it here, 3.3 times at full size (results/noisy_tv/noisy_tv.csv)."""
    stored, stream = ends_of("boosted-distinct")
    assert sum(stored) > 1.5 * sum(stream)


@pytest.mark.parametrize("flag", ["seeds", "steps", "worlds", "processes"])
def test_bad_arguments_are_named(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        noisy_tv.parse([f"--{flag}", "0"])
    assert f"{flag} is 0: it must be at least 1" in capsys.readouterr().err
