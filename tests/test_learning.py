"""Training to a threshold: the signal world shows a cue, then black frames; 95 % of answers right take a memory."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from examples.signal_world import SignalConfig
from longtail import build as building
from longtail.agents.agent import Agent, AgentConfig
from longtail.config import RunConfig
from longtail.impala.learn import ImpalaConfig
from longtail.train import Trainer

IMPALA = ImpalaConfig(worlds=32, unroll=16, learning_rate=3e-3, entropy_cost=0.003)
RUN = RunConfig(
    world=SignalConfig(),  # type: ignore[arg-type]
    agent=AgentConfig(embedding=32, hidden=32),
    impala=IMPALA,
    device="cpu",
    precision="fp32",
)
MOST, PART = 300, 20  # iterations; in parts, so that training ends as soon as it has learned


class LastActionHidden(Agent):
    """The LSTM is all that connects one step with the next: else the last action could carry the cue."""

    def step(self, obs: Tensor, first_B: Tensor, last_action_B: Tensor, *rest: Tensor, **kept: object) -> Tensor:  # type: ignore[override]
        return super().step(obs, first_B, torch.full_like(last_action_B, self.no_action), *rest, **kept)  # type: ignore[arg-type]

    def unroll(  # type: ignore[override]
        self, obs: Tensor, first_TB: Tensor, last_action_TB: Tensor, *rest: Tensor, **kept: object
    ) -> tuple[Tensor, Tensor]:
        return super().unroll(obs, first_TB, torch.full_like(last_action_TB, self.no_action), *rest, **kept)  # type: ignore[arg-type]


class Forgetful(LastActionHidden):
    """Negative control: besides, the state is zeroed at every step."""

    def step(self, obs: Tensor, first_B: Tensor, *rest: Tensor, **kept: object) -> Tensor:  # type: ignore[override]
        return super().step(obs, torch.ones_like(first_B), *rest, **kept)

    def unroll(self, obs: Tensor, first_TB: Tensor, *rest: Tensor, **kept: object) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().unroll(obs, torch.ones_like(first_TB), *rest, **kept)


def accuracy(run: RunConfig, kind: type[Agent], monkeypatch: pytest.MonkeyPatch, most: int = MOST) -> float:
    """Success among the episodes of the last part of training."""
    monkeypatch.setattr(building, "Agent", kind)
    trainer = Trainer(run)
    assert type(trainer.agent) is kind
    share = 0.0
    for _ in range(most // PART):
        before = trainer.counters.read()
        for _ in range(PART):
            trainer.iterate()
        now = trainer.counters.read()
        share = float((now["successes"] - before["successes"]).sum() / (now["episodes"] - before["episodes"]).sum())
        if share > 0.98:
            break
    return share


@pytest.mark.parametrize("kind", [Agent, LastActionHidden])
def test_an_agent_that_remembers_learns_it(kind: type[Agent], monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    assert accuracy(replace(RUN, device=device), kind, monkeypatch) > 0.95  # type: ignore[arg-type]


def test_an_agent_that_forgets_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(accuracy(RUN, Forgetful, monkeypatch, most=100) - 0.5) < 0.08  # about five standard deviations


@pytest.mark.parametrize(
    "change",
    [{"schedule": "linear"}, {"bootstrap_time_limits": True}, {"reward_clip": 0.0}, {"unroll": 3}],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.slow
def test_it_is_learned_in_other_ways_too(change: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unroll of 3 is shorter than the wait: the cue reaches the answer only by the state that acting stored."""
    run = replace(RUN, impala=replace(IMPALA, **change), steps=10_000_000)
    assert accuracy(run, Agent, monkeypatch, most=2000) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("encoder", ["shallow", "deep"])
def test_both_encoders_and_precisions_learn_it(encoder: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(
        RUN, precision=precision, agent=replace(RUN.agent, encoder=encoder), impala=replace(IMPALA, learning_rate=1e-3)
    )  # type: ignore[arg-type]
    assert accuracy(run, Agent, monkeypatch) > 0.95
