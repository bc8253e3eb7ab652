"""The iteration as one function: repeatable, resumable at any moment, and on a GPU the same as a graph."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import after, differing, resumed, snapshot, trained, with_method

from longtail import checkpoint
from longtail.agents.agent import AgentConfig
from longtail.config import RunConfig
from longtail.engine.graph import Pacer, capture
from longtail.impala.learn import ImpalaConfig
from longtail.methods import METHODS
from longtail.train import Trainer, train
from longtail.worlds import GridworldConfig

IMPALA = ImpalaConfig(worlds=4, unroll=5, learning_rate=2e-3, schedule="linear")
WORLD = GridworldConfig(levels="generated", maps=2, objects=2, rooms=2, resolution=28, max_steps=7)
AGENT = AgentConfig(embedding=16, hidden=8)
TINY = RunConfig(world=WORLD, agent=AGENT, impala=IMPALA, steps=1000, device="cpu", precision="fp32")

VARIANTS = {
    "plain": TINY,
    "bf16": replace(TINY, precision="bf16"),
    "deep": replace(TINY, agent=replace(AGENT, encoder="deep")),
    "time limits": replace(TINY, impala=replace(IMPALA, bootstrap_time_limits=True)),
    **{method: with_method(TINY, method) for method in METHODS if method != "impala"},
    "boosted, bf16": with_method(replace(TINY, precision="bf16"), "boosted"),
    "boosted, deep": with_method(replace(TINY, agent=replace(AGENT, encoder="deep")), "boosted"),
    "hcam, bf16": with_method(replace(TINY, precision="bf16"), "hcam"),
    "boosted, time limits": with_method(replace(TINY, impala=replace(IMPALA, bootstrap_time_limits=True)), "boosted"),
}


def on(config: RunConfig, device: str) -> RunConfig:
    return replace(config, device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_seed_gives_the_same_run(variant: str, device: str) -> None:
    config = on(VARIANTS[variant], device)
    one = after(config, 12)
    assert differing(one, after(config, 12)) == []
    assert int(one["counters.iteration"]) == 12 and int(one["counters.episodes"].sum()) > 0


def test_another_seed_gives_other_weights_worlds_and_actions(device: str) -> None:
    one, other = (on(replace(TINY, seed=seed), device) for seed in (1, 2))
    assert {"agent.policy.weight", "world.queue.seed", "world.time", "generator"} <= set(
        differing(after(one, 0), after(other, 0))
    )
    moved = {"agent.policy.weight", "optimizer.policy.weight.square_avg", "rollout.h", "rollout.last_action"}
    assert moved <= set(differing(after(one, 3), after(other, 3)))


def test_an_iteration_moves_everything(device: str) -> None:
    """What stayed as it was would not be a part of the state, or is not trained."""
    config = on(TINY, device)
    before = after(config, 0)
    still = before.keys() - set(differing(before, after(config, 60)))
    # The gridworld pays at the end of an episode only, so that there is never a last reward; IMPALA reports nothing.
    assert still == {
        "counters.first_bad", "counters.method", "counters.method_count", "rollout.last_reward", "world.queue.seed",
        "world.queue.thresholds",
    }  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("before", [1, 7])
def test_resuming_equals_going_on(before: int, variant: str, device: str) -> None:
    """5 steps an iteration and 7 an episode: always in the middle of some."""
    config = on(VARIANTS[variant], device)
    assert differing(resumed(config, before, 9), after(config, before + 9)) == []


@pytest.mark.parametrize("lost", ["generator", "world.", "agent.", "optimizer.", "rollout.", "counters.iteration"])
def test_resuming_needs_every_part(lost: str, device: str) -> None:
    config = on(TINY, device)
    found = differing(resumed(config, 7, 9, lost), after(config, 16))
    assert "agent.policy.weight" in found


@pytest.mark.parametrize("name", ["h", "c", "last_action", "last_reward"])
def test_resuming_needs_all_of_the_rollout(name: str) -> None:
    """What the next unroll starts from; in the gridworld the last reward is always 0."""
    found = differing(resumed(TINY, 7, 9, f"rollout.{name}"), after(TINY, 16))
    assert ("agent.policy.weight" in found) == (name != "last_reward")


SLOWLY = with_method(TINY, "boosted", familiarity=60, transfer=6, transfer_every=3)

# What a run with a memory goes on from, and what is only looked at: keys are made anew from p and h.
NEEDED = {
    "familiarity": ("image", "p", "h", "hash", "momentum", "passes", "transferred", "next", "filled"),
    "mem": ("p", "h", "next", "filled"),
}
LOOKED_AT = {"familiarity": ("key", "tag"), "mem": ("key", "tag", "score", "stored_at")}


def names(parts: dict[str, tuple[str, ...]]) -> list[str]:
    return [f"method.memory.{part}.{name}" for part, tensors in parts.items() for name in tensors]


@pytest.mark.parametrize("lost", [*names(NEEDED), "method.memory.key.", "method.memory.epochs"])
def test_resuming_needs_all_of_the_memory(lost: str) -> None:
    """Two passes before a transfer, of states that stay for five iterations: what is lost is still of use."""
    found = differing(resumed(SLOWLY, 8, 9, lost), after(SLOWLY, 17))
    assert "agent.policy.weight" in found


@pytest.mark.parametrize("lost", names(LOOKED_AT))
def test_what_is_only_looked_at_changes_no_weights(lost: str) -> None:
    found = differing(resumed(SLOWLY, 8, 1, lost), after(SLOWLY, 9))
    assert lost in found and "agent.policy.weight" not in found


def test_every_tensor_of_the_memory_is_one_or_the_other() -> None:
    state = after(VARIANTS["boosted"], 0)
    known = {*names(NEEDED), *names(LOOKED_AT), "method.memory.epochs"}
    known |= {f"method.memory.key.{name}" for name in ("weight", "bias")}
    assert known == {name for name in state if name.startswith("method.")}


def test_chunks_are_needed_too() -> None:
    for lost in ("method.past_BLS", "method.began_B", "method.heads."):
        assert "agent.policy.weight" in differing(resumed(VARIANTS["hcam"], 7, 9, lost), after(VARIANTS["hcam"], 16))


@pytest.mark.parametrize(
    ("stops", "method"), [((1,), "impala"), ((19, 21), "impala"), *(((50, 51, 130), method) for method in METHODS)]
)
def test_runs_cut_short_equal_one_that_was_not(
    stops: tuple[int, ...], method: str, tmp_path: Path, device: str
) -> None:
    """Through files: `stop_at` ends an iteration that it does not divide, and the same command goes on."""
    config = on(replace(with_method(TINY, method), steps=190, log_every=30, checkpoint_every=70), device)
    for stop_at in stops:
        train(config, tmp_path / "cut", stop_at=stop_at, quiet=True)
    ends = []
    for run in ("cut", "whole"):
        train(config, tmp_path / run, quiet=True)
        newest = checkpoint.list_checkpoints(tmp_path / run)[0]
        assert newest.name == "step-000000200"  # whole iterations of 20 steps
        ends.append(checkpoint.load_checkpoint(newest)[0])
    assert differing(*ends) == []
    assert "generator" in ends[0] and int(ends[0]["counters.iteration"]) == 10


@pytest.mark.parametrize("method", METHODS)
def test_neither_logging_nor_saving_changes_the_run(method: str, tmp_path: Path) -> None:
    busy = replace(with_method(TINY, method), steps=200, log_every=20, checkpoint_every=20)
    train(busy, tmp_path / "run", quiet=True)
    state, _ = checkpoint.load_checkpoint(checkpoint.list_checkpoints(tmp_path / "run")[0])
    assert differing(state, after(busy, 10)) == []


def test_the_callers_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    after(TINY, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_called_iteration_is_the_iteration() -> None:
    called, trainer = after(TINY, 5), Trainer(TINY)
    for _ in range(5):
        trainer.iteration()
    assert differing(called, snapshot(trainer)) == []


def test_a_pacer_waits_for_nothing_on_a_cpu() -> None:
    pacer = Pacer(torch.device("cpu"))
    for _ in range(20):
        pacer()


# What follows needs a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graph_equals_calling(variant: str) -> None:
    config = on(VARIANTS[variant], "cuda")
    replayed, called = trained(config, 100), Trainer(config)
    for _ in range(100):
        called.iteration()
    assert differing(snapshot(called), snapshot(replayed)) == []
    assert "agent.policy.weight" in differing(snapshot(called), after(config, 0))
    rows = [trainer.method.inspect(trainer.rollout, trainer.world.tasks) for trainer in (called, replayed)]
    assert rows[0] == rows[1]  # what the graph has computed can be looked at as well


@pytest.mark.gpu
def test_capturing_changes_nothing_and_replays_draw_on() -> None:
    generator, total = torch.Generator("cuda").manual_seed(3), torch.zeros(64, device="cuda")
    noise = torch.zeros(64, device="cuda")

    def draw() -> None:
        noise.exponential_(generator=generator)
        total.add_(noise)

    before = generator.get_state()
    replay = capture(draw, [total, noise], [generator])
    assert torch.equal(generator.get_state(), before)
    assert not total.any() and not noise.any()
    replayed = []
    for _ in range(3):
        replay()
        replayed.append(noise.clone())
    assert len(torch.stack(replayed).unique()) > 180  # three times different numbers
    assert torch.equal(total, replayed[0] + replayed[1] + replayed[2])
    generator.manual_seed(3)
    for expected in replayed:
        draw()
        assert torch.equal(noise, expected)


@pytest.mark.gpu
def test_capturing_leaves_the_run_where_it_was() -> None:
    trainer = Trainer(on(TINY, "cuda"))
    for _ in range(3):
        trainer.iteration()
    before = snapshot(trainer)
    state = trainer.state_dict()
    del state["generator"]
    capture(trainer.iteration, state.values(), [trainer.generator])
    assert differing(before, snapshot(trainer)) == []


# Memories whose familiarity buffer takes the states of 64 worlds.
ROOM = {"memory": {"familiarity": 256}}


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_two_replays_act_differently(method: str) -> None:
    """The same state twice, but the generator has moved on."""
    config = replace(TINY, impala=replace(IMPALA, worlds=64))
    config = with_method(config, method, **ROOM.get(METHODS[method].section or "", {}))
    trainer, actions = Trainer(on(config, "cuda")), []
    for _ in range(4):
        trainer.iterate()
    state = trainer.state_dict()
    del state["generator"]
    saved = {name: tensor.clone() for name, tensor in state.items()}
    for _ in range(2):
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(saved[name])
        trainer.iterate()
        actions.append(trainer.rollout.action.clone())
    assert not torch.equal(*actions)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_waits_for_the_gpu(variant: str) -> None:
    """Neither while an iteration is called nor while it is replayed."""
    trainer = Trainer(on(VARIANTS[variant], "cuda"))
    trainer.iteration()  # libraries may wait while they load
    called = Trainer(on(VARIANTS[variant], "cuda"))
    called.iterate()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            trainer.iteration()
            called.iterate()
        with pytest.raises(RuntimeError, match="synchroniz"):
            trainer.counters.iteration.item()  # what would be caught
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gpu_starts_from_the_same_weights_and_worlds(variant: str) -> None:
    on_cpu, on_gpu = (snapshot(Trainer(on(VARIANTS[variant], device))) for device in ("cpu", "cuda"))
    assert set(differing(on_cpu | {"generator": on_gpu["generator"]}, on_gpu)) == set()


@pytest.mark.gpu
def test_a_pacer_keeps_the_host_near_the_gpu() -> None:
    pacer, done = Pacer(torch.device("cuda"), ahead=2), [torch.cuda.Event() for _ in range(5)]
    for i, event in enumerate(done):
        torch.cuda._sleep(10_000_000)
        event.record()
        pacer()
        assert all(event.query() for event in done[: max(0, i - 1)])  # at most two are not done yet
    assert not done[-1].query()
