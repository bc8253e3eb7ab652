"""RecurrentPPO of sb3-contrib with the memory: acting and learning read alike, MEM fills, and files have all of it."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor

import longtail  # noqa: F401  registers the worlds
from examples import sb3_memory
from longtail.integrations.sb3 import MemoryCallback, MemoryLstmPolicy
from longtail.memory import BoostedMemory, MemoryConfig

T, B, HOP, EPOCHS, FEATURES, HIDDEN = 8, 3, 2, 2, 16, 8
ROLLOUT = T * B
KEPT = ROLLOUT // HOP
# The familiarity buffer is full after each rollout, and new after each.
MEMORY = MemoryConfig(capacity=10, neighbours=2, key_dim=8, familiarity=KEPT, hop=HOP, transfer=4, transfer_every=1)
LEVELS = {"levels": "generated", "maps": 2, "objects": 2, "rooms": 2, "max_steps": 5, "resolution": 42}


def build(memory: MemoryConfig = MEMORY, policy: Any = MemoryLstmPolicy, **keywords: Any) -> RecurrentPPO:
    """Batches of 7 begin and end anywhere, and episodes of up to 5 steps make sequences that need padding."""
    settings = {"lstm_hidden_size": HIDDEN, "features_extractor_kwargs": {"features_dim": FEATURES}, **keywords}
    if policy is MemoryLstmPolicy:
        settings["memory"] = memory
    env = make_vec_env("longtail/Gridworld-v0", B, seed=1, env_kwargs=LEVELS)
    return RecurrentPPO(
        policy, env, n_steps=T, batch_size=7, n_epochs=EPOCHS, seed=1, device="cpu", policy_kwargs=settings
    )


def learned(rollouts: int, callback: BaseCallback | None = None, **keywords: Any) -> RecurrentPPO:
    model = build(**keywords)
    callbacks: list[BaseCallback] = [MemoryCallback()]
    return model.learn(rollouts * ROLLOUT, callback=callbacks if callback is None else [*callbacks, callback])


def memory_of(model: RecurrentPPO) -> BoostedMemory:
    memory = model.policy.memory
    assert isinstance(memory, BoostedMemory)
    return memory


@pytest.fixture(scope="module")
def model() -> RecurrentPPO:
    """Not to be changed by tests."""
    return learned(4)


def test_the_memory_fills_and_learns(model: RecurrentPPO) -> None:
    beginning = build()
    assert memory_of(model).mem.filled == 10
    gradient = memory_of(model).key.weight.grad
    assert gradient is not None and gradient.abs().sum() > 0
    after = dict(model.policy.named_parameters())
    assert "memory.key.weight" in after
    for name, before in beginning.policy.named_parameters():
        # Keys and queries move along with b: only rounding tells that it is there.
        assert name == "memory.key.bias" or not torch.equal(before, after[name]), name


def test_an_empty_memory_has_no_gradient() -> None:
    model = learned(1)
    assert memory_of(model).mem.filled == 4, "what was learned from goes in after learning"
    gradient = memory_of(model).key.weight.grad
    assert gradient is not None and gradient.abs().sum() == 0


class Compare(BaseCallback):
    """After each rollout: how far learning's first look at it is from what acting saw."""

    def __init__(self) -> None:
        super().__init__()
        self.differences: list[float] = []
        self.filled: list[int] = []

    def _on_step(self) -> bool:
        return True

    @torch.no_grad()
    def _on_rollout_end(self) -> None:
        assert isinstance(self.model, RecurrentPPO)
        memory = memory_of(self.model)
        # The buffer holds this rollout and no other: images and what was acted on belong together.
        torch.testing.assert_close(self.model.policy.encode(memory.familiarity.image), memory.familiarity.p)
        self.filled.append(int(memory.mem.filled))
        for batch in self.model.rollout_buffer.get(7):
            value, log_prob, _ = self.model.policy.evaluate_actions(
                batch.observations, batch.actions.long().flatten(), batch.lstm_states, batch.episode_starts
            )
            errors = (value.flatten() - batch.old_values, log_prob - batch.old_log_prob)
            self.differences += [float((error * batch.mask).abs().max()) for error in errors]


@pytest.mark.parametrize("enable_critic_lstm", [False, True])
def test_learning_sees_what_acting_saw(enable_critic_lstm: bool) -> None:
    compare = Compare()
    learned(4, compare, shared_lstm=not enable_critic_lstm, enable_critic_lstm=enable_critic_lstm)
    assert compare.filled == [0, 4, 8, 10]
    assert max(compare.differences) < 1e-5


def test_observed_states_are_those_that_were_read_with(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[Tensor, Tensor]] = []
    rollouts: list[tuple[Tensor, Tensor]] = []
    read, observe = BoostedMemory.read, BoostedMemory.observe

    def reading(memory: BoostedMemory, p_BP: Tensor, h_BH: Tensor, keys_NC: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            reads.append((p_BP, h_BH))
        return read(memory, p_BP, h_BH, keys_NC)

    def observing(memory: BoostedMemory, images_TBHWC: Tensor, p_TBP: Tensor, h_TBH: Tensor) -> None:
        assert images_TBHWC.shape == (T, B, 42, 42, 3)
        # The last reads are those of the steps and one for the value after them; time limits add some of one world.
        acting = [one for one in reads if len(one[0]) == B][-T - 1 : -1]
        rollouts.append((torch.stack([h for _, h in acting]), h_TBH))
        for t in range(0, T, HOP):
            torch.testing.assert_close(p_TBP[t], acting[t][0])
        observe(memory, images_TBHWC, p_TBP, h_TBH)

    monkeypatch.setattr(BoostedMemory, "read", reading)
    monkeypatch.setattr(BoostedMemory, "observe", observing)
    learned(3)
    assert len(rollouts) == 3
    for read_TBH, observed_TBH in rollouts:
        assert torch.equal(read_TBH, observed_TBH)
        assert 0 < (observed_TBH[1:] == 0).all(-1).sum() < B * (T - 1), "some episodes began"


def test_episodes_begin_without_the_state_of_the_last(model: RecurrentPPO) -> None:
    obs = torch.randint(256, (B, 3, 42, 42), dtype=torch.uint8)
    state = tuple(torch.rand(1, B, HIDDEN) for _ in range(2))
    fresh = tuple(torch.zeros(1, B, HIDDEN) for _ in range(2))

    def probabilities(state: Any, first: float) -> Tensor:
        with torch.no_grad():
            return model.policy.get_distribution(obs, state, torch.full((B,), first))[0].distribution.probs

    assert torch.equal(probabilities(state, 1.0), probabilities(fresh, 0.0))
    assert not torch.allclose(probabilities(state, 0.0), probabilities(fresh, 0.0), atol=1e-4)


def test_each_epoch_has_one_pass_over_the_familiarity_buffer(model: RecurrentPPO) -> None:
    assert memory_of(model).familiarity.passes.tolist() == [EPOCHS] * KEPT
    assert memory_of(model).epochs == 4
    assert memory_of(model).familiarity.momentum.min() > 0


class Interrupt(BaseCallback):
    def _on_step(self) -> bool:
        if self.n_calls == T + 2:
            raise KeyboardInterrupt
        return True


def test_interrupted_learning_goes_on() -> None:
    model = build()
    with pytest.raises(KeyboardInterrupt):
        model.learn(4 * ROLLOUT, callback=[MemoryCallback(), Interrupt()])
    model.learn(2 * ROLLOUT, callback=MemoryCallback())
    assert memory_of(model).familiarity.passes.tolist() == [EPOCHS] * KEPT
    assert memory_of(model).epochs == 3


def test_the_contrastive_loss_adds_its_gradient(model: RecurrentPPO, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, callback = memory_of(model), MemoryCallback()
    parameter = next(model.policy.pi_features_extractor.parameters())
    state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    torch.manual_seed(3)
    (expected,) = torch.autograd.grad(0.5 * memory.loss(model.policy.encode), parameter)
    monkeypatch.setattr(parameter, "grad", torch.ones_like(parameter))
    callback.init_callback(model)
    callback.policy, callback.minibatches, callback.optimizer_steps = model.policy, 4, 0
    for _ in range(4):  # an epoch of minibatches: the first has it
        torch.manual_seed(3)
        callback._before_optimizer_step()
    torch.testing.assert_close(parameter.grad, expected + 1)
    assert expected.abs().max() > 0
    memory.load_state_dict(state)
    model.policy.zero_grad()


def test_saved_and_loaded_with_its_memory(model: RecurrentPPO, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    loaded = RecurrentPPO.load(tmp_path / "model", device="cpu")
    assert memory_of(loaded).config == MEMORY and memory_of(loaded).mem.filled == 10
    saved = model.policy.state_dict()
    assert {"memory.mem.h", "memory.familiarity.image", "memory.key.weight"} <= saved.keys()
    assert loaded.policy.state_dict().keys() == saved.keys()
    for name, tensor in loaded.policy.state_dict().items():
        assert torch.equal(tensor, saved[name]), name
    obs, state = np.full((B, 3, 42, 42), 7, np.uint8), (np.ones((1, B, HIDDEN)), np.ones((1, B, HIDDEN)))
    for one, other in zip(model.predict(obs, state, deterministic=True)[1], loaded.predict(obs, state)[1], strict=True):
        assert np.array_equal(one, other)
    loaded.set_env(make_vec_env("longtail/Gridworld-v0", B, env_kwargs=LEVELS))
    loaded.learn(ROLLOUT, callback=MemoryCallback())
    assert memory_of(loaded).epochs == memory_of(model).epochs + 1


def test_parameters_without_the_memory_are_refused(model: RecurrentPPO) -> None:
    parameters = model.get_parameters()
    parameters["policy"] = {k: v for k, v in parameters["policy"].items() if not k.startswith("memory.mem")}
    with pytest.raises(RuntimeError, match=r"memory\.mem\.h"):
        build().set_parameters(parameters)


def test_predict(model: RecurrentPPO) -> None:
    """With and without a state, at an episode's start, of one image as the environment gives it; MEM has a say."""
    obs_BHWC = np.random.default_rng(0).integers(256, size=(B, 42, 42, 3), dtype=np.uint8)
    actions, state = model.predict(obs_BHWC, deterministic=True)
    assert actions.shape == (B,) and [part.shape for part in state] == [(1, B, HIDDEN)] * 2
    start = np.ones(B, bool)
    for part, again in zip(state, model.predict(obs_BHWC, state, start)[1], strict=True):
        assert np.array_equal(part, again)
    assert not np.allclose(state[0], model.predict(obs_BHWC, state)[1][0])
    action, _ = model.predict(obs_BHWC[0], deterministic=True)
    assert action == actions[0]
    memory, filled = memory_of(model).mem, memory_of(model).mem.filled.clone()
    memory.filled.zero_()
    assert not np.allclose(state[0], model.predict(obs_BHWC)[1][0])
    memory.filled.copy_(filled)


@pytest.mark.parametrize("enable_critic_lstm", [False, True])
def test_only_a_shared_lstm_lets_the_critic_read(enable_critic_lstm: bool) -> None:
    policy = build(shared_lstm=False, enable_critic_lstm=enable_critic_lstm).policy
    assert policy.lstm_actor.input_size == FEATURES + HIDDEN
    critic = policy.lstm_critic.input_size if enable_critic_lstm else policy.critic.in_features
    assert critic == FEATURES
    shared = build().policy
    assert shared.lstm_critic is None and shared.critic is None


@pytest.mark.parametrize("shape", [(3, 42, 40), (42, 40, 3)])
def test_channels_first_and_last(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    policy = MemoryLstmPolicy(
        space, spaces.Discrete(4), lambda _: 1e-3, features_extractor_class=FlattenExtractor, memory=MEMORY
    )
    assert policy.memory.familiarity.image.shape == (KEPT, 42, 40, 3)
    obs = torch.randint(256, (5, *shape), dtype=torch.uint8)
    assert policy.images(obs).shape == (5, 42, 40, 3)
    assert torch.equal(policy.encode(policy.images(obs)), obs.flatten(1) / 255)


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="n_lstm_layers is 2"):
        build(n_lstm_layers=2)
    with pytest.raises(ValueError, match="must be images"):
        MemoryLstmPolicy(spaces.Box(0, 1, (4,)), spaces.Discrete(2), lambda _: 1e-3)
    with pytest.raises(TypeError, match="MemoryLstmPolicy"):
        build(policy="CnnLstmPolicy").learn(ROLLOUT, callback=MemoryCallback())
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    monkeypatch.delitem(sys.modules, "longtail.integrations.sb3")
    with pytest.raises(ImportError, match=r'pip install "longtail\[sb3\]"'):
        importlib.import_module("longtail.integrations.sb3")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sb3_memory, "SMALL", LEVELS)
    monkeypatch.setattr(sb3_memory, "evaluate_policy", lambda *_, **__: (0.5, 0.0))
    sb3_memory.main(steps=1, num_envs=2, save=tmp_path / "model.zip")
    assert "mean return of 100 episodes: 0.5" in capsys.readouterr().out and (tmp_path / "model.zip").exists()
