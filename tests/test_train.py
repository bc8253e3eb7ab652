"""Training runs: repeatable to the bit, resumable at any moment, and their figures are those of the rollouts."""

import io
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny import ITERATION, digests, newest_state, steps_saved, tiny

from longtail import checkpoint, metrics, runfolder
from longtail import train as train_module
from longtail.config import RunConfig
from longtail.metrics import ProgressDisplay, Recent, read_rows
from longtail.recipes import hosted, recipe
from longtail.train import Interrupted, NotFiniteError, Trainer, train
from longtail.worlds.vectors import HostError


def run_of(tmp_path: Path, name: str, config: RunConfig, *stops: int) -> Path:
    """Train in as many sittings as there are stops, and one more to the end."""
    for stop in (*stops, None):
        train(config, tmp_path / name, stop, quiet=True)
    return tmp_path / name


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_time(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("time", "steps_per_second")} for row in rows(run)]


def test_the_same_run_twice_is_the_same_to_the_bit(tmp_path: Path, device: str) -> None:
    config = tiny(device=device)
    runs = [run_of(tmp_path, name, config) for name in "ab"]
    assert newest_state(runs[0]) == newest_state(runs[1])
    assert newest_state(run_of(tmp_path, "c", replace(config, seed=2))) != newest_state(runs[0])
    assert without_time(runs[0]) == without_time(runs[1])


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_resumed_runs_equal_uninterrupted_ones(schedule: str, tmp_path: Path, device: str) -> None:
    """Stopped after one step, in the middle of an interval, at its end, and just before the end."""
    config = tiny(impala={"schedule": schedule, "bootstrap_time_limits": True}, device=device)
    straight = run_of(tmp_path, "straight", config)
    for i, stops in enumerate([(60,), (1, 13, 48, 119)]):
        resumed = run_of(tmp_path, str(i), config, *stops)
        assert newest_state(resumed) == newest_state(straight)
        assert steps_saved(resumed)[0] == steps_saved(straight)[0] == 120


PARTS = ("agent.", "optimizer.", "rollout.", "world.", "counters.episodes", "generator")


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_the_state_may_be_missing(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a resume that forgets one part does not pass for an uninterrupted run."""
    straight = run_of(tmp_path, "straight", tiny())
    real = Trainer.load_state_dict

    def forgetful(self: Trainer, state: dict[str, torch.Tensor]) -> None:
        live = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        real(self, {name: live[name] if name.startswith(part) else tensor for name, tensor in state.items()})

    monkeypatch.setattr(Trainer, "load_state_dict", forgetful)
    assert newest_state(run_of(tmp_path, "resumed", tiny(), 60)) != newest_state(straight)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    trainer = Trainer(tiny())
    before = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    good = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in before.items()}
    without = {name: tensor for name, tensor in good.items() if name != "agent.value.bias"}
    for bad, message in (
        (without, "only this run has a tensor agent.value.bias"),
        (good | {"agent.more": torch.ones(1)}, "only the checkpoint has a tensor agent.more"),
        (
            good | {"agent.value.bias": torch.ones(2)},
            r"its agent.value.bias is torch.float32 \[2\], not torch.float32 \[1\]",
        ),
        (good | {"agent.value.bias": torch.ones(1).double()}, "its agent.value.bias is torch.float64"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer.load_state_dict(bad)
        assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.state_dict().items())


def test_counters_equal_a_naive_recount(device: str) -> None:
    trainer = Trainer(tiny(device=device, impala={"worlds": 5}))
    episodes, successes, reward = [0] * 4, [0] * 4, 0.0
    for _ in range(40):
        trainer.iteration()
        r = trainer.rollout
        for t in range(r.unroll):
            for b in range(5):
                task = int(r.task[t, b])
                reward += float(r.reward[t, b])
                if r.first[t + 1, b]:
                    episodes[task] += 1
                    successes[task] += int(r.success[t, b])
                else:
                    assert not r.success[t, b]
    read = trainer.counters.read()
    assert read["episodes"].tolist() == episodes and read["successes"].tolist() == successes
    assert float(read["reward"]) == reward and 0 < sum(successes) < sum(episodes)
    assert int(read["iteration"]) == 40 and trainer.step == 40 * 20


def test_a_methods_figures_are_added_where_they_count() -> None:
    trainer, counters = Trainer(tiny()), metrics.Counters(4, torch.device("cpu"), 2)
    for counts in ([True, False], [True, True]):
        learned_K, values_M = torch.zeros(len(metrics.LEARN_METRICS)), torch.tensor([0.5, 4.0])
        counters.count(trainer.rollout, learned_K, values_M, torch.tensor(counts))
    read = counters.read()
    assert read["method"].tolist() == [1.0, 4.0] and read["method_count"].tolist() == [2, 1]


def test_rows_are_the_difference_of_two_readings() -> None:
    tasks = Trainer(tiny()).world.tasks
    zero = {name: np.zeros(4, np.int64) for name in ("episodes", "successes")}
    K = len(metrics.LEARN_METRICS)
    zero |= {"reward": np.array(0.0), "learn": np.zeros(K), "iteration": np.array(10)}
    zero |= {"method": np.array([1.0, 2.0]), "method_count": np.array([7, 8])}
    now = {"episodes": np.array([6, 2, 0, 0]), "successes": np.array([3, 2, 0, 0]), "reward": np.array(4.0)}
    now |= {"learn": np.arange(float(K)), "iteration": np.array(12)}
    now |= {"method": np.array([4.0, 2.0]), "method_count": np.array([9, 8])}
    row = metrics.summarize(zero, now, tasks, ("often", "never"))
    assert (row["accuracy"], row["episodes"], row["mean_return"]) == (0.625, 8, 0.5)
    by_group = {name: tasks.group == i for i, name in enumerate(("head", "middle", "tail"))}
    for name, members in by_group.items():
        n = now["episodes"][members].sum()
        assert row[f"accuracy_{name}"] == (now["successes"][members].sum() / n if n else None)
        assert row[f"visits_{name}"] == n
    assert (row["loss"], row["grad_norm"], row["grad_norm_method"]) == (0.0, 2.0, 4.0)
    assert (row["often"], row["never"]) == (1.5, None)
    empty = metrics.summarize(now, now, tasks, ("often", "never"))
    assert empty["accuracy"] is None and empty["mean_return"] is None and empty["episodes"] == 0


def test_rows(tmp_path: Path) -> None:
    run = run_of(tmp_path, "run", tiny())
    written = rows(run)
    assert [row["step"] for row in written] == [36, 72, 108, 120]
    for row in written:
        assert {"step", "time", "steps_per_second", "accuracy", "learning_rate"} <= row.keys()
        assert row["learning_rate"] == 0.001 and row["steps_per_second"] > 0
    assert [row["time"] for row in written] == sorted(row["time"] for row in written)
    state, _ = checkpoint.load_checkpoint(checkpoint.list_checkpoints(run)[0])
    assert sum(row["episodes"] for row in written) == int(state["counters.episodes"].sum())
    linear = rows(run_of(tmp_path, "linear", tiny(impala={"schedule": "linear"})))
    assert [row["learning_rate"] for row in linear] == pytest.approx([0.0008, 0.0005, 0.0002, 0.0001])


def test_tensorboard_says_the_same(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = run_of(tmp_path, "run", tiny(), 60)
    events = EventAccumulator(str(run))
    events.Reload()
    for name in ("accuracy", "loss", "steps_per_second"):
        seen = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(row["step"], row[name]) for row in rows(run) if row[name] is not None]
        assert [s for s, _ in seen] == [s for s, _ in expected]
        assert [v for _, v in seen] == pytest.approx([v for _, v in expected], rel=1e-5)


def test_rows_are_not_doubled(tmp_path: Path) -> None:
    """After kill -9 the run goes on from its checkpoint; what was written since is written again, once."""
    straight = run_of(tmp_path, "straight", tiny())
    run = tmp_path / "run"
    train(tiny(), run, 84, quiet=True)
    assert [row["step"] for row in rows(run)] == [36, 72, 84]
    for path in checkpoint.list_checkpoints(run)[:1]:
        (path / checkpoint.META).unlink()  # saved on stopping: a killed run has only that of step 48
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 96, "acc')
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [36, 72, 84]
    train(tiny(), run, quiet=True)
    assert without_time(run) == without_time(straight)
    assert newest_state(run) == newest_state(straight)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, "run", tiny())
    before = digests(run)
    assert train(tiny(), run) == run
    assert digests(run) == before
    assert "is finished: 120 steps" in capsys.readouterr().out


def test_stopping_where_it_is_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train(tiny(), run, 60, quiet=True)
    before = digests(run)
    for stop in (60, 30, 0):
        train(tiny(), run, stop)
        assert f"is past --stop-at {stop}: 60 steps" in capsys.readouterr().out
    assert digests(run) == before
    with pytest.raises(ValueError, match="stop_at is -1"):
        train(tiny(), run, -1)


def test_no_steps_at_all(tmp_path: Path) -> None:
    run = run_of(tmp_path, "run", tiny(iterations=0))
    assert steps_saved(run) == [0] and rows(run) == []


def test_a_run_may_grow(tmp_path: Path) -> None:
    straight = run_of(tmp_path, "straight", tiny(iterations=15))
    grown = run_of(tmp_path, "grown", tiny(iterations=10))
    train(tiny(iterations=15), grown, quiet=True)
    assert newest_state(grown) == newest_state(straight)
    assert runfolder.read_config(grown).steps == 180


def during(monkeypatch: pytest.MonkeyPatch, iteration: int, action: Callable[[Trainer], Any]) -> None:
    """Do something after an iteration of any training that follows."""
    real = Trainer.iterate

    def iterate(self: Trainer) -> None:
        real(self)
        if self.step == iteration * ITERATION:
            action(self)

    monkeypatch.setattr(Trainer, "iterate", iterate)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interruptions_save(
    signum: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, handlers = run_of(tmp_path, "straight", tiny()), [signal.getsignal(s) for s in (2, 15)]
    with monkeypatch.context() as patch:
        during(patch, 5, lambda _: os.kill(os.getpid(), signum))
        with pytest.raises(Interrupted, match="interrupted at step 60 and saved") as interruption:
            train(tiny(), tmp_path / "run")
    said = "interrupted: this iteration is finished and saved; a second time ends at once, without saving"
    assert capsys.readouterr().out.count(f"\n{said}\n") == 1
    assert interruption.value.code == code
    assert steps_saved(tmp_path / "run") == [60, 48]
    assert [signal.getsignal(s) for s in (2, 15)] == handlers
    train(tiny(), tmp_path / "run", quiet=True)
    assert newest_state(tmp_path / "run") == newest_state(straight)


def test_a_second_interruption_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(_: Trainer) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    during(monkeypatch, 5, twice)
    with pytest.raises(KeyboardInterrupt) as interruption:
        train(tiny(), tmp_path / "run", quiet=True)
    assert not isinstance(interruption.value, Interrupted) and steps_saved(tmp_path / "run") == [48]


def test_training_in_a_thread(tmp_path: Path) -> None:
    """Where signals cannot be handled, as in some notebooks."""
    thread = threading.Thread(target=run_of, args=(tmp_path, "run", tiny()))
    thread.start()
    thread.join()
    assert newest_state(tmp_path / "run") == newest_state(run_of(tmp_path, "straight", tiny()))


def poison(name: str) -> Callable[[Trainer], None]:
    def action(trainer: Trainer) -> None:
        with torch.no_grad():
            trainer.state_dict()[name].view(-1)[0] = float("nan")

    return action


@pytest.mark.parametrize(
    ("name", "iteration", "step"),
    [
        ("agent.value.bias", 5, 72),  # seen by the next iteration's loss
        ("agent.value.bias", 10, 120),  # after the last one nothing would ever see it
        ("optimizer.value.bias.square_avg", 10, 120),
    ],
)
def test_not_a_number(name: str, iteration: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        during(patch, iteration, poison(name))
        with pytest.raises(NotFiniteError, match=rf"(agent|optimizer)\.\S+ is not finite, first seen at step {step}:"):
            train(tiny(), run, quiet=True)
    assert steps_saved(run)[0] == step - step % 48 - (48 if step % 48 == 0 else 0)
    assert all(np.isfinite(v) for row in rows(run) for v in row.values() if v is not None)
    train(tiny(), run, quiet=True)  # the last good checkpoint is whole
    assert newest_state(run) == newest_state(run_of(tmp_path, "straight", tiny()))


def test_a_learning_rate_that_explodes_names_a_tensor(tmp_path: Path) -> None:
    with pytest.raises(NotFiniteError, match=r"agent.* is not finite"):
        train(tiny(impala={"learning_rate": 1e38}), tmp_path / "run", quiet=True)
    assert steps_saved(tmp_path / "run") == []


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    real = os.fsync

    def full(descriptor: int) -> None:
        if steps_saved(run):
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match=r"out is '.*run': the disk is full. The checkpoints .* as they were"):
            train(tiny(), run, quiet=True)
    assert steps_saved(run) == [48]
    train(tiny(), run, quiet=True)
    assert newest_state(run) == newest_state(run_of(tmp_path, "straight", tiny()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world": replace(tiny().world, exponent=-1.0)}, "exponent is -1.0: it must be a number of at least 0"),
        ({"world": replace(tiny().world, maps=0)}, "0 maps with 2 objects"),
        ({"world": hosted("gym:Nope-v0").world}, "world is 'gym:Nope-v0'"),
    ],
)
def test_what_cannot_be_trained_leaves_no_folder(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(tiny(**change), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("x"), RuntimeError("[...] can't allocate memory: x")])
def test_too_little_memory(error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(train_module.Rollout, "empty", full)
    with pytest.raises(ValueError, match=r"impala.worlds is 3 and impala.unroll 4: they do not fit into memory"):
        train(tiny(), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_no_cuda(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device is cuda, but PyTorch sees no CUDA GPU: use cpu or auto"):
        train(tiny(device="cuda"), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def change_meta(run: Path, **changes: Any) -> None:
    state, meta = checkpoint.load_checkpoint(checkpoint.list_checkpoints(run)[0])
    checkpoint.save_checkpoint(run, meta["step"], state, meta | changes, keep=1)


@pytest.mark.parametrize(("name", "other", "here"), [("device", "cuda", "cpu"), ("precision", "bf16", "fp32")])
def test_a_run_goes_on_as_it_was_trained(name: str, other: str, here: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, 12, quiet=True)
    assert checkpoint.load_checkpoint(checkpoint.list_checkpoints(run)[0])[1][name] == here
    change_meta(run, **{name: other})
    before = digests(run)
    with pytest.raises(ValueError, match=rf"{name} is {here}, but .* was trained with {other}: go on with --{name} "):
        train(tiny(), run, quiet=True)
    assert digests(run) == before


def test_another_precision_is_refused(tmp_path: Path) -> None:
    train(tiny(precision="bf16"), tmp_path / "run", 12, quiet=True)
    with pytest.raises(ValueError, match=r"precision is fp32, but .* was trained with bf16"):
        train(tiny(precision="fp32"), tmp_path / "run", quiet=True)
    train(tiny(precision="bf16"), tmp_path / "run", 24, quiet=True)


def test_another_number_of_threads_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, warning = tmp_path / "run", "going on with 1 threads, was 2: results will differ in their last bits"
    train(tiny(), run, 12)
    train(tiny(), run, 24)
    assert "results will differ" not in capsys.readouterr().out
    change_meta(run, threads=2)
    train(tiny(), run)
    assert warning in capsys.readouterr().out
    change_meta(run, threads=2)
    train(tiny(), run)  # finished: nothing goes on
    assert warning not in capsys.readouterr().out


def test_what_is_operational_may_change_between_sittings(tmp_path: Path) -> None:
    straight, run = run_of(tmp_path, "straight", tiny()), tmp_path / "run"
    train(tiny(), run, 50, quiet=True)
    device = "cpu" if torch.cuda.is_available() else "auto"
    other = tiny(log_every=24, checkpoint_every=36, keep_checkpoints=2, device=device)
    train(other, run, quiet=True)
    assert runfolder.read_config(run) == other and steps_saved(run) == [120, 108]
    assert [row["step"] for row in rows(run)] == [36, 60, 72, 96, 120]
    assert newest_state(run) == newest_state(straight)


def test_time_is_counted_over_all_sittings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a sitting which was killed, up to its last checkpoint."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(runfolder, "end_session", lambda *_: None)
        train(tiny(), run, 60, quiet=True)
    change_meta(run, seconds=1000.0)
    train(tiny(), run, quiet=True)
    manifest = json.loads((run / runfolder.MANIFEST).read_text())
    assert [session["wall_seconds"] is None for session in manifest["sessions"]] == [True, False]
    assert manifest["wall_seconds"] == pytest.approx(1000 + manifest["sessions"][1]["wall_seconds"], abs=0.01)


def test_a_name_stands_for_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = train("gridworld-small", stop_at=0, quiet=True)
    assert folder == Path("runs/gridworld-small-impala-s1")
    assert runfolder.read_config(folder) == recipe("gridworld-small")
    with pytest.raises(ValueError, match="world is 'gridword': did you mean gridworld"):
        train("gridword")
    with pytest.raises(ValueError, match="config is a GridworldConfig: it must be a RunConfig, or the name of a world"):
        train(tiny().world)  # type: ignore[arg-type]


def test_a_damaged_checkpoint_is_said_and_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train(tiny(), run, 60, quiet=True)
    (checkpoint.folder(run, 60) / checkpoint.STATE).write_bytes(b"")
    train(tiny(), run)
    out = capsys.readouterr().out
    assert "skipping a checkpoint: step-000000060 is damaged" in out and "going on from step 48 of 120" in out
    assert newest_state(run) == newest_state(run_of(tmp_path, "straight", tiny()))


def test_hosted_worlds_train_and_resume(tmp_path: Path) -> None:
    world = replace(hosted("gym:toy_envs:toy/Tasks-v0").world)
    config = tiny(world=world)
    run = run_of(tmp_path, "run", config, 60)
    assert steps_saved(run)[0] == 120 and sum(row["episodes"] for row in rows(run)) > 0
    broken = replace(world, name="gym:toy_envs:toy/Shape-v0", options=("at=30", "wrong=raise"))
    with pytest.raises(HostError, match="of gym:toy_envs:toy/Shape-v0 raised in step: KeyError"):
        train(tiny(world=broken), tmp_path / "broken", quiet=True)
    assert steps_saved(tmp_path / "broken") == [48]


def test_success_in_the_last_episodes() -> None:
    """Of about 200 of each group, however many there are between two looks."""
    tasks = Trainer(tiny()).world.tasks
    group_of = [int(group) for group in tasks.group]
    random, totals = np.random.default_rng(0), {"episodes": np.zeros(4, np.int64), "successes": np.zeros(4, np.int64)}
    recent = Recent(tasks, {name: total.copy() for name, total in totals.items()}, 0)
    assert set(recent.look(totals, 0)[1].values()) == {None}
    history: list[tuple[int, int]] = []  # of the tail
    for i in range(400):
        episodes = random.integers(0, 40, 4) * [group == 0 for group in group_of] + random.integers(0, 3, 4)
        successes = random.binomial(episodes, 0.1 if i < 200 else 0.9)
        totals = {"episodes": totals["episodes"] + episodes, "successes": totals["successes"] + successes}
        shares = recent.look(totals, i)[1]
        tail = [task for task in range(4) if group_of[task] == 2]
        history.append((int(episodes[tail].sum()), int(successes[tail].sum())))
        last = next((k for k in range(len(history)) if sum(n for n, _ in history[-k - 1 :]) >= 200), len(history))
        n, right = (sum(column) for column in zip(*history[-last - 1 :], strict=True))
        assert shares["tail"] == (right / n if n else None)
        assert max(len(parts) for parts in recent.parts.values()) <= 200
    assert shares["head"] == pytest.approx(0.9, abs=0.1) and shares["all"] == pytest.approx(0.9, abs=0.1)


SHARES = {"all": 1.0, "head": 1.0, "middle": 0.25, "tail": None}


def test_lines_of_a_log_fit(capsys: pytest.CaptureFixture[str]) -> None:
    display = ProgressDisplay(Console(soft_wrap=True), "run", 0, 40_000_000)
    with display:
        display.row({"step": 12_345_678, "steps_per_second": 123456.7}, SHARES)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and len(lines[0]) <= 80
    assert lines[0].split() == [
        "step", "12,345,678", "123,457/s", "success", "100%", "head", "100%", "middle", "25%", "tail", "-",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["gridworld-small-impala-s1", "gridworld-levels-generated-level_seed-3-impala-s1"])
def test_the_live_display_fits(name: str) -> None:
    console = Console(width=80, height=20, force_terminal=True, record=True, legacy_windows=False)
    display = ProgressDisplay(console, name, 0, 40_000_000)
    with display:
        display.advance(12_345_678)
        display.show(123456.7, SHARES)
        display.saved(12_000_000)
        lines = ["".join(s.text for s in line) for line in console.render_lines(display.progress.get_renderable())]
    assert len(lines) == 2
    assert "12,345,678 of 40,000,000" in lines[0] and "31%" in lines[0]
    for part in ("123,457/s", "success 100%", "head 100%", "middle  25%", "tail    -", "saved 12,000,000"):
        assert part in lines[1], lines


def test_a_terminal_shows_figures_before_the_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[float, dict[str, float | None]]] = []
    clock = iter(range(10_000))
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: next(clock) / 2)  # a look at it takes half a second
    monkeypatch.setattr(ProgressDisplay, "show", lambda _, rate, shares: shown.append((rate, shares)))
    trainer, console = Trainer(tiny(log_every=10_000)), Console(force_terminal=True, file=io.StringIO())
    train_module.Session(trainer, tmp_path, console).train()
    assert len(shown) > 3 and all(rate > 0 for rate, _ in shown)
    assert [row["step"] for row in rows(tmp_path)] == [120]


def test_the_public_names_are_the_functions() -> None:
    assert callable(train_module) and train_module.train is train
