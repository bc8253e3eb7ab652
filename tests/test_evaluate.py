"""Evaluation: what it writes, that it repeats, and that training does not notice it."""

import csv
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import digests, newest_state, tiny
from torch import Tensor

from longtail import checkpoint, load, runfolder, train
from longtail import evaluate as evaluation
from longtail.agents.agent import AgentConfig
from longtail.cli import main
from longtail.evaluate import EXACT, evaluate, play_episodes, play_tasks
from longtail.impala.learn import ImpalaConfig
from longtail.recipes import recipe
from longtail.scores import Outcomes, score_weights, weighted_score
from longtail.train import Trainer
from longtail.trained import TrainedAgent
from longtail.worlds import TaskTable, World, make
from longtail.worlds.vectors import HostError

WRITTEN = ("eval.csv", "summary.json", "heatmap.png")
HEADER = (
    "world,backend,method,preset,seed,exponent,step,task,map,object,map_rank,object_rank,probability,"
    "visits_in_training,episodes,successes,mean_return,greedy"
)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny(), tmp_path_factory.mktemp("runs") / "run", quiet=True)


@pytest.fixture
def run(trained_once: Path, tmp_path: Path) -> Path:
    """A trained run of this test's own."""
    return Path(shutil.copytree(trained_once, tmp_path / "run"))


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(recipe("gym:toy_envs:toy/Tasks-v0"), steps=1, device="cpu", precision="fp32")
    config = replace(config, agent=AgentConfig(embedding=8, hidden=8), impala=ImpalaConfig(worlds=2, unroll=4))
    return train(config, tmp_path_factory.mktemp("runs") / "hosted", quiet=True)


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "eval.csv").open() as file:
        return list(csv.DictReader(file))


def column(run: Path, name: str) -> list[float]:
    return [float(row[name]) for row in rows_of(run)]


def evaluated(run: Path, seed: int = 0, episodes: int = 20, greedy: bool = False) -> dict[str, str]:
    """Evaluate; the digests of what was written."""
    evaluate(run, episodes, greedy, "cpu", seed, quiet=True)
    files = digests(run)
    return {name: files[name] for name in WRITTEN}


def test_eval_csv(run: Path) -> None:
    evaluated(run, episodes=7)
    assert (run / "eval.csv").read_text().splitlines()[0] == HEADER
    rows, config = rows_of(run), tiny()
    same = {"world": config.world_label, "backend": "embedded", "method": "impala", "preset": "custom", "seed": "1"}
    same |= {"exponent": "1.0", "step": "120", "episodes": "7", "greedy": "0"}
    assert all({name: row[name] for name in same} == same for row in rows)
    ids = [[int(row[name]) for name in ("task", "map", "object", "map_rank", "object_rank")] for row in rows]
    assert ids == [[0, 0, 0, 1, 1], [1, 0, 1, 1, 2], [2, 1, 0, 2, 1], [3, 1, 1, 2, 2]]
    assert column(run, "probability") == pytest.approx([4 / 9, 2 / 9, 2 / 9, 1 / 9])
    assert sum(column(run, "probability")) == pytest.approx(1, abs=1e-12)
    state, _ = checkpoint.load_checkpoint(checkpoint.list_checkpoints(run)[0])
    assert column(run, "visits_in_training") == state["counters.episodes"].tolist()
    assert 0 < sum(column(run, "successes")) < 28
    assert column(run, "mean_return") == pytest.approx(np.array(column(run, "successes")) / 7, abs=1e-6)


def test_summary_and_heatmap(run: Path) -> None:
    returned = evaluate(run, episodes=20, device="cpu", quiet=True)
    assert json.loads((run / "summary.json").read_text()) == returned
    weights = score_weights(TaskTable.product(2, 2, exponent=1))
    assert list(returned) == list(weights)
    successes_n = np.array(column(run, "successes"), int)
    outcomes = Outcomes(np.full(4, 20), successes_n, successes_n / 20)
    assert returned == {name: weighted_score(weight_n, outcomes) for name, weight_n in weights.items()}
    assert (run / "heatmap.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_bytes(run: Path) -> None:
    first = evaluated(run, seed=3)
    assert evaluated(run, seed=3) == first
    assert all(evaluated(run, seed=4)[name] != first[name] for name in WRITTEN)


def test_a_larger_evaluation_needs_no_more_worlds(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is played exactly as often as asked for, whatever the rounds are; spare worlds are not counted.

    Every round has draws of its own.
    """
    asked: list[int] = []
    seeds: list[int] = []

    def play(trained: TrainedAgent, world: World, greedy: bool) -> tuple[np.ndarray, np.ndarray]:
        asked.append(world.num_worlds)
        seeds.append(int(world.state_dict()["queue.seed"]))
        return np.ones(world.num_worlds, bool), world.task.numpy().astype(float)

    monkeypatch.setattr(evaluation, "play_episodes", play)
    for num_worlds, rounds in ((5, 6), (7, 4), (256, 1)):
        asked.clear()
        monkeypatch.setitem(evaluation.DEVICE_WORLDS, "cpu", num_worlds)
        _, outcomes = play_tasks(load(run, "cpu"), episodes=7, greedy=False, seed=0)
        assert asked == [min(num_worlds, 28)] * rounds
        assert outcomes.episodes_n.tolist() == outcomes.successes_n.tolist() == [7, 7, 7, 7]
        np.testing.assert_allclose(outcomes.return_n, [0, 1, 2, 3])  # each of them that task, in the world itself
    seeds.clear()
    monkeypatch.setitem(evaluation.DEVICE_WORLDS, "cpu", 5)
    for seed in (0, 1):
        play_tasks(load(run, "cpu"), episodes=7, greedy=False, seed=seed)
    assert len(set(seeds)) == 12


# Training does not notice.


def test_files_of_training_stay_as_they_are(run: Path) -> None:
    before, generators = digests(run), (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    evaluated(run)
    evaluated(run, greedy=True)
    after = digests(run)
    assert {name: after[name] for name in before if name != "manifest.json"} == {
        name: digest for name, digest in before.items() if name != "manifest.json"
    }
    assert any(name.startswith("checkpoints/") for name in before) and {"config.json", "metrics.jsonl"} <= before.keys()
    assert after.keys() - before.keys() == set(WRITTEN)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (np.random.get_state()[1] == generators[1]).all()  # noqa: NPY002


def test_an_evaluation_in_between_changes_nothing(trained_once: Path, tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run", stop_at=60, quiet=True)
    evaluated(run)
    train(tiny(), run, quiet=True)
    assert newest_state(run) == newest_state(trained_once)


def live_agent(trainer: Trainer, generator: torch.Generator) -> TrainedAgent:
    visits_n = trainer.counters.episodes_n.numpy()
    agent, method, obs_shape = trainer.agent, trainer.method, trainer.world.obs_shape
    return TrainedAgent(trainer.config, agent, method, trainer.step, visits_n, trainer.device, generator, obs_shape)


def of_its_own(trainer: Trainer) -> None:
    play_tasks(live_agent(trainer, torch.Generator().manual_seed(0)), episodes=3, greedy=False, seed=0)


def with_its_generator(trainer: Trainer) -> None:
    play_tasks(live_agent(trainer, trainer.generator), episodes=3, greedy=False, seed=0)


def in_its_worlds(trainer: Trainer) -> None:
    play_episodes(live_agent(trainer, torch.Generator().manual_seed(0)), trainer.world, greedy=False)


@pytest.mark.parametrize(("look", "changes"), [(of_its_own, False), (with_its_generator, True), (in_its_worlds, True)])
def test_evaluating_a_trainer_at_work(look: Callable[[Trainer], None], changes: bool) -> None:
    """The same in memory, where the controls take the trainer's own generator, or its own worlds."""

    def end(between: Callable[[Trainer], None] | None) -> dict[str, Tensor]:
        trainer = Trainer(tiny())
        for i in range(10):
            if i == 5 and between:
                between(trainer)
            trainer.iterate()
        return trainer.state_dict()

    straight, other = end(None), end(look)
    assert any(not torch.equal(straight[name], other[name]) for name in straight) == changes


# Greedy.


def test_greedy_is_exact(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"eval {run} --greedy --episodes 30 --device cpu")) == 0
    text = capsys.readouterr().out
    assert EXACT in text and "exact" in text and " to " not in text.split(EXACT)[0]
    assert set(column(run, "episodes")) == set(column(run, "greedy")) == {1.0}
    summary = json.loads((run / "summary.json").read_text())
    assert all(score["low"] == score["value"] == score["high"] for score in summary.values())
    assert summary["uniform"]["episodes"] == summary["uniform"]["cells"] == 4
    manifest = json.loads((run / runfolder.MANIFEST).read_text())
    assert (manifest["evaluations"][-1]["episodes"], manifest["evaluations"][-1]["greedy"]) == (1, True)
    assert main(shlex.split(f"eval {run} --episodes 5 --device cpu")) == 0
    text = capsys.readouterr().out
    assert EXACT not in text and " to " in text


def test_one_greedy_episode_is_all_there_is(run: Path) -> None:
    """What exactness rests on; the control: sampled episodes are not all alike."""
    results = {}
    for greedy in (True, False):
        played = [play_tasks(load(run, "cpu", seed), 20, greedy, seed)[1].successes_n for seed in (0, 1)]
        results[greedy] = np.stack(played)
    assert np.isin(results[True], (0, 20)).all() and (results[True][0] == results[True][1]).all()
    assert not np.isin(results[False], (0, 20)).all()


def test_greedy_on_the_host_keeps_its_episodes(hosted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"eval {hosted} --greedy --episodes 6 --device cpu")) == 0
    assert EXACT not in capsys.readouterr().out
    assert set(column(hosted, "episodes")) == {6.0} and set(column(hosted, "greedy")) == {1.0}
    summary = json.loads((hosted / "summary.json").read_text())
    assert all(score["low"] < score["high"] for score in summary.values())


# What it was made by.


def test_the_manifest_lists_evaluations(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run / runfolder.MANIFEST
    before = json.loads(path.read_text())
    monkeypatch.setattr(sys, "argv", ["/usr/bin/longtail", "eval", "a run"])
    evaluated(run, seed=3, episodes=2)
    evaluated(run, greedy=True)
    manifest = json.loads(path.read_text())
    assert {name: manifest[name] for name in before} == before
    first, _ = manifest["evaluations"]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(first["date"])).total_seconds()) < 3600
    assert datetime.fromisoformat(first.pop("date")).microsecond == 0
    assert first == {
        "step": 120, "episodes": 2, "greedy": False, "seed": 3, "device": "cpu", "precision": "float32",
        "command": "longtail eval 'a run'",
    }  # fmt: skip
    train(tiny(iterations=12), run, quiet=True)  # growing it rewrites the manifest
    assert [entry["greedy"] for entry in json.loads(path.read_text())["evaluations"]] == [False, True]
    evaluated(run)
    manifest = json.loads(path.read_text())
    assert [entry["step"] for entry in manifest["evaluations"]] == [120, 120, 144] and len(manifest["sessions"]) == 2


def test_a_manifest_that_is_gone_or_broken(run: Path) -> None:
    path = run / runfolder.MANIFEST
    path.write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read: .*move it away"):
        evaluated(run)
    path.unlink()
    evaluated(run)
    assert len(json.loads(path.read_text())["evaluations"]) == 1
    train(tiny(iterations=11), run, quiet=True)
    assert len(json.loads(path.read_text())["sessions"]) == 1


# Bad input.


def test_nothing_to_evaluate(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run is there"):
        evaluate(tmp_path / "nowhere", quiet=True)
    assert not (tmp_path / "nowhere").exists()
    shutil.rmtree(run / "checkpoints")
    before = digests(run)
    with pytest.raises(ValueError, match="it has no checkpoint yet; longtail train makes one"):
        evaluate(run, quiet=True)
    assert digests(run) == before


@pytest.mark.parametrize(("name", "value"), [("episodes", 0), ("seed", -1)])
def test_numbers_that_are_too_small(name: str, value: int, run: Path) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}: it must be at least"):
        evaluate(run, quiet=True, **{name: value})  # type: ignore[arg-type]


def test_an_episode_that_never_ends(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit itself is allowed: with it, these episodes of 9 steps at most all end."""
    trained = load(run, "cpu")
    for longest in (9, 8):
        monkeypatch.setattr(evaluation, "LONGEST", longest)
        world = make(trained.config.world, 50)
        if longest == 9:
            play_episodes(trained, world, greedy=False)
        else:
            with pytest.raises(HostError, match="world is 'gridworld': an episode has not ended after 8 steps; give"):
                play_episodes(trained, world, greedy=False)


def test_a_host_that_never_ends_is_one_line(
    hosted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "LONGEST", 1)
    assert main(shlex.split(f"eval {hosted} --device cpu")) == 2
    text = capsys.readouterr().err
    assert "'gym:toy_envs:toy/Tasks-v0'" in text and "max_episode_steps" in text and text.count("\n") == 1
