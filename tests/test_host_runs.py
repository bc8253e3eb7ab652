"""Somebody else's environment through the whole program: train, stop, resume, evaluate, act; and it is learned."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tiny import steps_saved

import longtail
from examples.any_gymnasium_env import Catch
from longtail import evaluate, train
from longtail.agents.agent import AgentConfig
from longtail.cli import main
from longtail.evaluate import COLUMNS
from longtail.impala.learn import ImpalaConfig
from longtail.recipes import recipe
from longtail.runfolder import read_config
from longtail.train import Trainer

SMALL = "--impala.worlds 4 --impala.unroll 8 --agent.embedding 8 --agent.hidden 8 --device cpu --precision fp32"
TESTS = Path(__file__).parent


def command(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code of a command line, and all that it printed."""
    code = main(shlex.split(line))
    return code, "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("name", "tasks", "flags"),
    [
        ("toy/Tasks-v0", 4, "--world.options tasks=4 start=3 --world.vectorization sync"),
        ("toy/Tasks-v0", 4, "--world.options tasks=4 counts= --world.num-tasks 4 --world.vectorization async"),
        ("toy/Own-v0", 3, "--impala.bootstrap-time-limits"),
        ("toy/Shape-v0", 1, "--world.options shape=(4,84,84) --world.success-return 10"),
    ],
)
def test_train_stop_resume_evaluate(
    name: str, tasks: int, flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    line = f"train gym:toy_envs:{name} {SMALL} {flags} --steps 640 --out {run}"
    line += " --log-every 160 --checkpoint-every 320"
    code, text = command(f"{line} --stop-at 300", capsys)
    assert code == 0 and steps_saved(run) == [320]
    code, text = command(line, capsys)
    assert code == 0 and "going on from step 320 of 640" in text and steps_saved(run) == [640, 320]
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [160, 320, 480, 640]
    assert all(row["episodes"] > 0 for row in rows)
    before = (run / "metrics.jsonl").read_bytes()
    code, text = command(line, capsys)
    assert code == 0 and "is finished: 640 steps" in text and (run / "metrics.jsonl").read_bytes() == before

    code, text = command(f"eval {run} --episodes 7 --device cpu", capsys)
    assert code == 0
    with (run / "eval.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == tasks and tuple(found[0]) == COLUMNS
    for i, row in enumerate(found):
        expected = {"world": read_config(run).world_label, "backend": "gymnasium", "exponent": "", "step": "640"}
        expected |= {"task": str(i), "map": str(i), "object": "0", "episodes": "7", "method": "impala"}
        assert {key: row[key] for key in expected} == expected
        assert float(row["probability"]) == pytest.approx(1 / tasks)
    visits = sum(row["episodes"] for row in rows)
    assert sum(int(row["visits_in_training"]) for row in found) == visits
    if name == "toy/Shape-v0":
        assert found[0]["successes"] == "7" and float(found[0]["mean_return"]) == 10.5
    summary = json.loads((run / "summary.json").read_text())
    assert summary["uniform"]["episodes"] == 7 * tasks
    assert (run / "heatmap.png").stat().st_size > 0


def test_the_same_from_python(tmp_path: Path) -> None:
    config = recipe("gym:toy_envs:toy/Tasks-v0")
    config = replace(config, steps=256, device="cpu", impala=replace(config.impala, worlds=4, unroll=8))
    run = train(config, tmp_path / "run", quiet=True)
    agent = longtail.load(run, device="cpu")
    assert agent.config == config
    env = gym.make("toy/Tasks-v0", disable_env_checker=True)
    obs, _ = env.reset(seed=0)
    state = None
    for _ in range(4):
        action, state = agent.act(obs, state)
        obs = env.step(action)[0]
    assert evaluate(run, episodes=2, device="cpu", quiet=True)["uniform"]["cells"] == 3


def test_another_environment_does_not_go_on_with_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{SMALL} --steps 32 --out {tmp_path / 'run'}"
    assert command(f"train gym:toy_envs:toy/Tasks-v0 {line}", capsys)[0] == 0
    for name, flags, field in (
        ("Own", "", "world.name"),
        ("Tasks", "--world.options tasks=4", "world.options"),
        ("Tasks", "--world.success-return 3", "world.success_return"),
    ):
        code, text = command(f"train gym:toy_envs:toy/{name}-v0 {line} {flags}", capsys)
        assert code == 2 and field in text and text.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gym:toy/Task-v0", "did you mean toy/Tasks-v0?"),
        ("gym:no_such_package:A-v0", "module 'no_such_package' cannot be imported"),
        ("gym:CartPole-v1", "must be images"),
        ("gym:toy/Tasks-v0 --world.options tasks", "option is 'tasks': it must be key=value, such as size=9"),
        ("gym:toy/Tasks-v0 --world.options colour=3", "unexpected keyword argument 'colour'"),
        ("gym:toy/Tasks-v0 --world.vectorization threads", "must be one of 'auto', 'own', 'sync', 'async'"),
        ("gym:toy/Missing-v0", "No module named 'toy_arcade'"),
        ("gym:toy/Shape-v0 --world.options shape=(9,9)", "observations are 9x9"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = command(f"train {line} --device cpu --out {tmp_path / 'run'}", capsys)
    assert code == 2 and message in text and text.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_hanging_environment_ends_the_run_but_not_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    line = f"train gym:toy_envs:toy/Shape-v0 {SMALL} --steps 640 --checkpoint-every 32 --out {run}"
    line += " --world.options wrong=hang at=20 --world.vectorization async --world.patience 0.5"
    for saved in ([64, 32], [128, 96, 64]):  # the second time it goes on from the checkpoint, and hangs again
        code, text = command(line, capsys)
        assert code == 2 and "Traceback" not in text
        last = text.strip().splitlines()[-1]
        assert re.fullmatch(r"longtail: world (0, 2|1, 3) of gym:toy_envs:toy/Shape-v0 did not answer to step .*", last)
        assert steps_saved(run) == saved and active_children() == []
        assert {path.name for path in (run / "checkpoints").iterdir()} == {f"step-{step:09d}" for step in saved}
    assert "going on from step 64 of 640" in text


def test_an_environment_that_hangs_from_the_start_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"train gym:toy_envs:toy/Shape-v0 {SMALL} --world.options wrong=hang_reset --world.vectorization async"
    code, text = command(f"{line} --world.patience 0.5 --out {tmp_path / 'run'}", capsys)
    assert code == 2 and "world 1, 3 of " in text and "did not answer to reset within 0.5 seconds" in text
    assert text.count("\n") == 1 and not (tmp_path / "run").exists() and active_children() == []


def test_help_says_how_options_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "gym:toy/Tasks-v0", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "--world.options [STR [STR ...]] Arguments of the environment as key=value" in text


def test_an_episode_that_a_resume_begins_knows_nothing_of_the_one_before() -> None:
    config = recipe("gym:toy_envs:toy/Shape-v0")  # episodes of 6 steps, so 8 steps end within one
    config = replace(config, device="cpu", impala=replace(config.impala, worlds=3, unroll=8))
    trainer = Trainer(config)
    trainer.iteration()
    assert trainer.rollout.last_reward[-1].all() and (trainer.rollout.last_action[-1] < 2).all()
    saved = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    trainer.load_state_dict(saved)
    assert trainer.world.first.all()
    assert not trainer.rollout.last_reward[-1].any()
    assert (trainer.rollout.last_action[-1] == trainer.agent.no_action).all()
    trainer.world.close()


def small_agent(name: str, options: tuple[str, ...] = (), **fields: Any) -> Any:
    config = recipe(name)
    return replace(
        config,
        world=replace(config.world, options=options),
        agent=AgentConfig(embedding=32, hidden=32),
        impala=ImpalaConfig(worlds=16, unroll=8, learning_rate=2e-3, entropy_cost=0.01),
        device="cpu",
        precision="fp32",
        **fields,
    )


def test_an_environment_on_the_host_is_learned(tmp_path: Path) -> None:
    """Press the button that the grey level shows; guessing is right within the two tries that count half the time."""
    config = small_agent("gym:toy_envs:toy/Tasks-v0", steps=16_000)
    before = train(config, tmp_path / "run", stop_at=1, quiet=True)
    guessing = evaluate(before, episodes=40, device="cpu", quiet=True)["uniform"]["value"]
    summary = evaluate(train(config, tmp_path / "run", quiet=True), episodes=40, device="cpu", quiet=True)
    assert guessing < 75
    assert summary["uniform"]["value"] > 95


class TestExample:
    """examples/any_gymnasium_env.py, by the command in its first lines."""

    def test_it_is_an_environment(self) -> None:
        env = gym.make("Catch-v0", columns=6)
        check_env(env.unwrapped, skip_render_check=True)
        _, info = env.reset(seed=0, options={"map": 0, "object": 4})
        assert info["task"] == 4
        drawn = np.bincount([env.reset()[1]["task"] for _ in range(2000)], minlength=6)
        np.testing.assert_allclose(drawn / 2000, Catch(columns=6).tasks.probability, atol=0.04)

    def test_train_and_evaluate(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = tmp_path / "run"
        flags = f"{SMALL} --steps 640 --world.options columns=6 exponent=1 --out {run}"
        assert command(f"train gym:examples.any_gymnasium_env:Catch-v0 {flags}", capsys)[0] == 0
        assert command(f"eval {run} --episodes 4 --device cpu", capsys)[0] == 0
        with (run / "eval.csv").open() as file:
            found = list(csv.DictReader(file))
        assert [row["object_rank"] for row in found] == ["1", "2", "3", "4", "5", "6"]
        np.testing.assert_allclose([float(row["probability"]) for row in found], Catch(6, 1.0).tasks.probability)

    @pytest.mark.slow
    def test_it_is_learned(self, tmp_path: Path) -> None:
        config = small_agent("gym:examples.any_gymnasium_env:Catch-v0", ("columns=5", "exponent=1"), steps=100_000)
        summary = evaluate(train(config, tmp_path / "run", quiet=True), episodes=40, device="cpu", quiet=True)
        assert summary["zipfian"]["value"] > 90


MODULE = """
import toy_envs

class Mine(toy_envs.ToyTasks):
    pass

toy_envs.gym.register("Mine-v0", Mine)
"""


def start(folder: Path, flags: str) -> subprocess.Popen[str]:
    """A training run in a process and a session of its own, as from a terminal, beside a module of the user's own."""
    (folder / "my_envs.py").write_text(MODULE)
    script = "import sys; from longtail.cli import main; sys.exit(main(sys.argv[1:]))"
    line = f"train gym:my_envs:Mine-v0 {SMALL} --steps 100_000_000 --log-every 32 --out run {flags}"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", script, *shlex.split(line)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def session(sid: int) -> list[int]:
    """All processes of a session that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(owner) == sid and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are listed from /proc")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
    ],
)
def test_signals_end_a_run_and_all_of_its_processes(number: int, code: int, tmp_path: Path) -> None:
    """Sent to the whole group of the run, as terminals and `timeout` do."""
    process = start(tmp_path, "--world.vectorization async")
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count("\n") > 2):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.05)
        assert len(session(process.pid)) >= 5  # the run and its four worlds
        os.killpg(process.pid, number)
        text, _ = process.communicate(timeout=30)
    finally:
        for pid in [] if process.poll() is not None else session(process.pid):
            os.kill(pid, signal.SIGKILL)
    assert process.returncode == code, text
    deadline = time.monotonic() + 10
    while session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session(process.pid) == []
    if code > 0:
        assert "interrupted at step" in text and "Traceback" not in text
        assert steps_saved(tmp_path / "run")[0] > 0
