"""Every method of the registry: all of it is trained, learning repeats acting, evaluation leaves it alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import ITERATION, differing, newest_state, snapshot, tiny, trained, with_method
from torch import Tensor

from longtail import evaluate as evaluation
from longtail import load, train
from longtail.agents.agent import Agent
from longtail.agents.lstm import Reader
from longtail.config import RunConfig
from longtail.evaluate import evaluate, play_tasks
from longtail.impala import learn as learning
from longtail.impala.act import Rollout
from longtail.impala.learn import LEARN_METRICS
from longtail.impala.losses import log_probability
from longtail.methods import METHODS, Method
from longtail.train import Trainer
from longtail.trained import AgentState, TrainedAgent, policy_step

ALL = pytest.mark.parametrize("method", METHODS)
WITH_MEM = [name for name, entry in METHODS.items() if entry.section == "memory"]
PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "bf16"])

# What a row says beside what every run's does.
INSPECTED = {
    "memory": {
        "rarity_auroc", "momentum_age_correlation", "passes_per_slot", "familiarity_tail_share", "duplicate_share",
        "effective_negatives", "memory_occupancy", "memory_age", "memory_tail_share", "memory_key_drift",
        "read_entropy", "read_distance",
    },
    "autoencoder": {"reconstruction_error", "kl"},
}  # fmt: skip
CONTRASTIVE = {"mem-contrastive", "boosted", "boosted-single-loss"}


def run_of(method: str, **changes: Any) -> RunConfig:
    return with_method(tiny(**changes), method)


# Training.


@ALL
@PRECISIONS
@pytest.mark.parametrize("encoder", ["shallow", "deep"])
def test_every_parameter_is_trained(method: str, precision: str, encoder: str, device: str) -> None:
    """Within so many iterations buffers are full and reads find something; not all inputs are there before."""
    run = run_of(method, precision=precision, device=device)
    trainer = Trainer(replace(run, agent=replace(run.agent, encoder=encoder)))  # type: ignore[arg-type]
    parameters = dict([*trainer.agent.named_parameters(), *trainer.method.named_parameters("method")])
    largest = dict.fromkeys(parameters, 0.0)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    for _ in range(12):
        trainer.iteration()
        for name, p in parameters.items():
            assert p.grad is not None and torch.isfinite(p.grad).all(), name
            largest[name] = max(largest[name], float(p.grad.abs().max()))
    for name, size in largest.items():
        if name == "method.memory.key.bias":  # it moves keys and queries alike, so no distance knows of it
            assert size < 1e-3 * largest["method.memory.key.weight"]
        else:
            assert size > 1e-7 and not torch.equal(parameters[name], before[name]), name


# Without a contrastive loss there are no images, and without rarity there is no score.
STILL = {
    "mem": {"mem.score", "familiarity.image", "familiarity.momentum", "familiarity.passes"},
    "mem-contrastive": {"mem.score"},
}


@ALL
def test_an_iteration_moves_all_of_a_method(method: str, device: str) -> None:
    """A tensor that stays as it was would not be a part of the state."""
    trainer = Trainer(run_of(method, device=device))
    before = snapshot(trainer)
    for _ in range(13):
        trainer.iterate()
    still = set(before) - set(differing(before, snapshot(trainer)))
    own = {name for name in still if name.startswith(("method.", "optimizer.method.")) and "key.bias" not in name}
    assert own == {f"method.memory.{name}" for name in STILL.get(method, set())}


@ALL
def test_rows(method: str, tmp_path: Path) -> None:
    train(replace(run_of(method, iterations=12), log_every=3 * ITERATION), tmp_path / "run", quiet=True)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    rows = [json.loads(line) for line in text.splitlines()]
    usual = {"step", "time", "steps_per_second", "accuracy", "episodes", "mean_return", "learning_rate", *LEARN_METRICS}
    usual |= {f"{name}_{group}" for name in ("accuracy", "visits") for group in ("head", "middle", "tail")}
    own = INSPECTED.get(METHODS[method].section or "", set())
    own |= {"contrastive_loss"} if method in CONTRASTIVE else set()
    assert all(set(row) == usual | own for row in rows) and len(rows) == 4
    # At first there is neither a full buffer nor a memory to read; at last nothing is unknown but what has no class.
    unknown = {name for name in own if rows[-1][name] is None}
    no_contrast = {"rarity_auroc", "momentum_age_correlation", "duplicate_share", "effective_negatives"}
    assert unknown - {"rarity_auroc"} == {"reconstruction": {"kl"}, "mem": no_contrast - {"rarity_auroc"}}.get(
        method, set()
    )
    if METHODS[method].section == "memory":
        assert rows[0]["memory_occupancy"] == 0 and rows[0]["read_distance"] is rows[0]["read_entropy"] is None
        assert rows[-1]["memory_occupancy"] == 1 and rows[-1]["read_distance"] > 0


@pytest.mark.parametrize("method", sorted(CONTRASTIVE))
def test_the_contrastive_loss_is_the_mean_of_what_counted(method: str) -> None:
    """Until the buffer is full there is none, and it does not count as 0."""
    trainer, seen = Trainer(run_of(method)), []
    for _ in range(9):
        trainer.iterate()
        values_M, counts_M = trainer.method.report()
        seen.append((float(values_M), bool(counts_M)))
    read = trainer.counters.read()
    assert [counts for _, counts in seen] == [False, False, *[True] * 7]  # 6 states a rollout, room for 16
    assert [value > 0 for value, _ in seen] == [counts for _, counts in seen]
    assert int(read["method_count"][0]) == 7
    assert float(read["method"][0]) == pytest.approx(sum(value for value, _ in seen), rel=1e-6)


# Learning repeats acting.


@ALL
@PRECISIONS
def test_ratios_are_one(method: str, precision: str, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """The policy that learns is the one that acted: to the last bit where what acting computed is used."""
    trainer, seen, real = Trainer(run_of(method, precision=precision, device=device)), [], learning.vtrace

    def spy(log_rho_TB: Tensor, *rest: Tensor) -> Any:
        seen.append(log_rho_TB.clone())
        return real(log_rho_TB, *rest)

    monkeypatch.setattr(learning, "vtrace", spy)
    for _ in range(12):
        trainer.iteration()
    tolerance = 1e-4 if trainer.method.per_episode else 0
    tolerance = tolerance if device == "cpu" else 1e-4 if precision == "fp32" else 1e-2
    assert len(seen) == 12 and max(float(log_rho.abs().max()) for log_rho in seen) <= tolerance


def unrolled(trainer: Trainer, tape: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """h and logits as the learner has them, and which slots its reads found; from the tape, or all anew."""
    r, agent, read, found = trainer.rollout, trainer.agent, trainer.method.learning(), []
    if isinstance(read, Reader):
        real = read.recall
        read.recall = lambda *given: found.append(real(*given)) or found[-1]  # type: ignore[method-assign,func-returns-value]
    given = (r.obs[:-1], r.first[:-1], r.last_action[:-1], r.last_reward[:-1], r.h_before, r.c_before)
    h_TBH, _ = agent.unroll(*given, agent.prepare(), read, r.tape if tape else None)
    return h_TBH.detach(), agent.logits(h_TBH).detach(), [one.index_BK for one in found]


@ALL
@PRECISIONS
def test_learning_has_the_states_of_acting(method: str, precision: str) -> None:
    trainer = trained(run_of(method, precision=precision), 12)
    trainer.act()
    r = trainer.rollout
    assert r.tape is not None
    exact = not trainer.method.per_episode
    for tape in (True, False):
        h_TBH, logits_TBA, index = unrolled(trainer, tape)
        tolerance = 0 if tape and exact else 1e-6 if precision == "fp32" else 1e-2
        torch.testing.assert_close(logits_TBA, r.logits, rtol=0, atol=tolerance)
        torch.testing.assert_close(h_TBH[-1], r.h, rtol=0, atol=tolerance)
        if method in WITH_MEM and not tape:  # the same neighbours once more
            acted = [found.index_BK for found in r.tape.lstm.found()]
            assert len(index) == len(acted) == r.unroll
            for one, other in zip(index, acted, strict=True):
                assert torch.equal(one.sort(-1).values, other.sort(-1).values)


@pytest.mark.parametrize("method", WITH_MEM)
def test_what_is_read_stays_until_the_gradient_step(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Act, learn, transfer: in another order the ratios would measure the memory and not the policy."""
    trainer, contents, real = Trainer(run_of(method)), [], Trainer.act
    own = trainer.method

    def note() -> None:
        contents.append([tensor.clone() for tensor in (*own.memory.mem.state_dict().values(), own.memory.keys())])

    def loss(agent: Agent, rollout: Rollout) -> Tensor | None:
        note()
        return kind.loss(own, agent, rollout)

    kind = type(own)
    monkeypatch.setattr(own, "loss", loss)
    monkeypatch.setattr(trainer, "act", lambda: (note(), real(trainer)))
    for _ in range(12):
        trainer.iteration()
    changes = [
        [not torch.equal(a, b) for a, b in zip(one, other, strict=True)]
        for one, other in zip(contents, contents[1:], strict=False)
    ]
    assert not any(any(change) for change in changes[::2])  # from acting to the loss
    assert sum(change[0] for change in changes[1::2]) >= 4  # from there to the next acting: p of what came in


# Evaluation.


@ALL
def test_evaluating_a_trainer_at_work_changes_nothing(method: str) -> None:
    def end(look: bool) -> dict[str, Tensor]:
        trainer = Trainer(run_of(method))
        for i in range(10):
            if i == 6 and look:
                agent, obs_shape, generator = trainer.agent, trainer.world.obs_shape, torch.Generator().manual_seed(0)
                visits_n = trainer.counters.episodes_n.numpy()
                given = (agent, trainer.method, trainer.step, visits_n, trainer.device, generator, obs_shape)
                play_tasks(TrainedAgent(trainer.config, *given), episodes=3, greedy=False, seed=0)
            trainer.iterate()
        return snapshot(trainer)

    assert differing(end(look=False), end(look=True)) == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {method: train(run_of(method), folder / method, quiet=True) for method in METHODS}


@ALL
def test_evaluating_a_run_repeats_and_leaves_it(method: str, runs: dict[str, Path]) -> None:
    before, written = newest_state(runs[method]), []
    for _ in range(2):
        evaluate(runs[method], 5, device="cpu", seed=3, quiet=True)
        written.append((runs[method] / "eval.csv").read_bytes())
    assert written[0] == written[1] and newest_state(runs[method]) == before
    assert f",{method}," in written[0].decode()


def of_training(run: Path) -> tuple[Trainer, TrainedAgent]:
    """A trainer that has come as far as the run, in worlds that begin anew, and the agent from its folder."""
    loaded = load(run, "cpu")
    trainer = trained(loaded.config, 10)
    trainer.world.reset(7)
    trainer.rollout = Rollout.empty(trainer.world, trainer.agent, trainer.rollout.unroll, keep_tape=True)
    return trainer, loaded


@ALL
def test_a_loaded_agent_acts_as_in_training(method: str, runs: dict[str, Path]) -> None:
    """Frozen: over more steps than a memory of the episode holds, resets included."""
    trainer, loaded = of_training(runs[method])
    r, state, firsts = trainer.rollout, None, 0
    for _ in range(6):
        trainer.act()
        for t in range(r.unroll):
            state = loaded.initial_state(3) if state is None else state
            logits_BA, state = policy_step(loaded.agent, r.obs[t], r.first[t], r.last_reward[t], state)
            torch.testing.assert_close(logits_BA, r.logits[t], rtol=0, atol=1e-6)
            state.last_action_B = r.action[t].clone()
            firsts += int(r.first[t].sum())
        if trainer.method.per_episode:
            trainer.method.update()  # what was met becomes past, as after learning
    assert firsts > 3
    if method in WITH_MEM:
        assert loaded.method.memory.mem.filled == 8


def logits_of(loaded: TrainedAgent, images: Tensor, first: Tensor, reward: Tensor) -> Tensor:
    """Of T steps of B episodes; the first action is always the last one."""
    state, logits = loaded.initial_state(images.shape[1]), []
    for t in range(len(images)):
        with torch.no_grad():
            logits_BA, state = policy_step(loaded.agent, images[t], first[t], reward[t], state)
        logits.append(logits_BA)
        state.last_action_B = torch.zeros_like(state.last_action_B)
    return torch.stack(logits)


@ALL
def test_a_batch_equals_one_episode_at_a_time(method: str, runs: dict[str, Path]) -> None:
    loaded, g = load(runs[method], "cpu"), torch.Generator().manual_seed(0)
    images = torch.randint(256, (24, 3, 21, 21, 3), dtype=torch.uint8, generator=g)
    first, reward = torch.rand(24, 3, generator=g) < 0.15, torch.rand(24, 3, generator=g)
    together = logits_of(loaded, images, first, reward)
    for b in range(3):
        one = slice(b, b + 1)
        alone = logits_of(loaded, images[:, one], first[:, one], reward[:, one])
        torch.testing.assert_close(together[:, one], alone, rtol=0, atol=1e-6)
    assert (together[:, 0] - together[:, 1]).abs().max() > 1e-4


@ALL
def test_evaluating_worlds_together_equals_one_by_one(
    method: str, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedily, by a policy that is sure enough of itself to find something."""
    found = []
    for num_worlds in (256, 3, 1):
        monkeypatch.setitem(evaluation.DEVICE_WORLDS, "cpu", num_worlds)
        loaded = load(runs[method], "cpu")
        with torch.no_grad():
            loaded.agent.lstm.input.weight *= 10
        _, outcomes = play_tasks(loaded, 2, greedy=True, seed=0)
        found.append((outcomes.successes_n.tolist(), outcomes.return_n.tolist()))
    assert found[0] == found[1] == found[2]


def parts(state: AgentState) -> list[Tensor]:
    tensors = [state.h_BH, state.c_BH, state.last_action_B]
    return tensors + [x for x in vars(state.read or 0).values() if isinstance(x, Tensor)] if state.read else tensors


@ALL
def test_a_kept_state_is_not_changed_by_acting(method: str, runs: dict[str, Path]) -> None:
    """One can act twice from the same state, to look ahead."""
    loaded, random = load(runs[method], "cpu"), np.random.default_rng(0)
    images, state = random.integers(256, size=(9, 21, 21, 3), dtype=np.uint8), None
    for image in images[:6]:
        _, state = loaded.act(image, state, greedy=True)
    assert state is not None
    before, ahead = [tensor.clone() for tensor in parts(state)], []
    for _ in range(2):
        on = state
        for image in images[6:]:
            _, on = loaded.act(image, on, reward=0.5, greedy=True)
        ahead.append(parts(on))
        assert all(torch.equal(a, b) for a, b in zip(parts(state), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*ahead, strict=True)) and not torch.equal(ahead[0][0], before[0])


# What methods share.


def tasks_met(method: str) -> list[list[int]]:
    """Of each world, from episode to episode."""
    trainer = Trainer(run_of(method))
    met: list[list[int]] = [[], [], []]
    for _ in range(20):
        trainer.iterate()
        r = trainer.rollout
        for t, b in r.first[:-1].nonzero().tolist():
            met[b].append(int(r.task[t, b]))
    return met


@ALL
def test_all_methods_meet_the_same_tasks(method: str) -> None:
    """However well they do: the seed alone says which task comes next."""
    for own, usual in zip(tasks_met(method), tasks_met("impala"), strict=True):
        shared = min(len(own), len(usual))
        assert shared >= 5 and own[:shared] == usual[:shared]


@ALL
def test_all_methods_begin_with_the_same_weights(method: str) -> None:
    own, usual = (dict(Trainer(run_of(name)).agent.named_parameters()) for name in (method, "impala"))
    assert set(own) - set(usual) == ({"lstm.memory"} if METHODS[method].section in ("memory", "hcam") else set())
    for name in usual:
        if name.startswith(("encoder.", "lstm.")):
            assert torch.equal(own[name], usual[name]), name


def test_a_method_that_overrides_nothing_is_impala() -> None:
    assert type(Trainer(tiny()).method) is Method and not Trainer(tiny()).method.state_dict()


def test_ratios_would_show_another_memory() -> None:
    """The control of learning's repetition: another h in MEM, or another key, gives other logits."""
    for name in ("mem.h", "mem.p"):
        trainer = trained(run_of("boosted"), 12)
        trainer.act()
        trainer.method.memory.get_buffer(name).add_(torch.randn(8, 1, generator=torch.Generator().manual_seed(0)))
        _, logits_TBA, _ = unrolled(trainer, tape=False)
        r = trainer.rollout
        assert (log_probability(logits_TBA, r.action) - log_probability(r.logits, r.action)).abs().max() > 1e-4
