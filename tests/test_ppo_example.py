"""The PPO example: its memory takes part in learning and is saved with the agent, in few lines that can be left out."""

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from examples.ppo_lstm_memory import Agent, Args, train
from longtail.memory import BoostedMemory, MemoryConfig
from tests.tiny import WORLD

FILE = Path(__file__).parents[1] / "examples" / "ppo_lstm_memory.py"
T, B, HOP = 8, 4, 2
ROLLOUT = T * B
EPOCHS, MINIBATCHES = 2, 2
KEPT = ROLLOUT // HOP  # states of a rollout that go into the familiarity buffer
PARTS = {"num_envs": B, "num_steps": T, "update_epochs": EPOCHS, "num_minibatches": MINIBATCHES}
SIZES = {"embedding": 16, "hidden": 8, "world": WORLD}
MEMORY = MemoryConfig(capacity=12, neighbours=2, key_dim=8, familiarity=2 * KEPT, hop=HOP, transfer=4, transfer_every=1)


def tiny(rollouts: int, **changes: Any) -> Args:
    return replace(Args(total_steps=rollouts * ROLLOUT, memory=MEMORY, **PARTS, **SIZES), **changes)


def weight_gradient(agent: Agent) -> Tensor:
    """Of W, from the last minibatch."""
    gradient = agent.memory.key.weight.grad
    assert gradient is not None
    return gradient


def test_the_memory_fills_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    beginning, agent = train(tiny(0)), train(tiny(4))
    assert agent.memory.mem.filled == 12
    assert weight_gradient(agent).abs().sum() > 0
    for (name, before), after in zip(beginning.named_parameters(), agent.parameters(), strict=True):
        # Keys and queries move along with b: only rounding tells that it is there.
        assert name == "memory.key.bias" or not torch.equal(before, after), name
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("%") and any(line.endswith("states in MEM 12") for line in lines)


def test_an_empty_memory_has_no_gradient() -> None:
    agent = train(tiny(1))
    assert agent.memory.mem.filled == 0
    assert weight_gradient(agent).abs().sum() == 0


def test_each_epoch_has_one_pass_over_the_familiarity_buffer() -> None:
    agent = train(tiny(4))
    assert sorted(agent.memory.familiarity.passes.tolist()) == [EPOCHS] * KEPT + [2 * EPOCHS] * KEPT
    assert agent.memory.epochs == 3, "the buffer was full in three of four rollouts"


def test_episodes_begin_without_the_state_of_the_last() -> None:
    agent = train(tiny(4))
    agent.keys_NC = agent.memory.keys()
    p_BP, h_BH, zero_BH = torch.rand(B, 16), torch.rand(B, 8), torch.zeros(B, 8)
    never_B1, always_B1 = torch.zeros(B, 1, dtype=torch.bool), torch.ones(B, 1, dtype=torch.bool)
    reset, fresh = agent.step(p_BP, always_B1, h_BH, h_BH), agent.step(p_BP, never_B1, zero_BH, zero_BH)
    assert torch.equal(reset[0], fresh[0]) and torch.equal(reset[1], fresh[1])
    assert not torch.allclose(reset[0], agent.step(p_BP, never_B1, h_BH, zero_BH)[0], atol=1e-3)


class Read(NamedTuple):
    p_BP: Tensor
    h_BH: Tensor
    contents_NH: Tensor
    keys_NC: Tensor
    keys_now_NC: Tensor


def spied(monkeypatch: pytest.MonkeyPatch, args: Args) -> tuple[list[Read], list[tuple[Tensor, Tensor, Tensor]]]:
    """Trains; everything that was read, and everything that was observed."""
    reads: list[Read] = []
    observed: list[tuple[Tensor, Tensor, Tensor]] = []
    read: Callable[..., Tensor] = BoostedMemory.read
    observe: Callable[..., None] = BoostedMemory.observe

    def reading(memory: BoostedMemory, p_BP: Tensor, h_BH: Tensor, keys_NC: Tensor) -> Tensor:
        known = (p_BP, h_BH, memory.mem.h, keys_NC, memory.keys())
        reads.append(Read(*(tensor.detach().clone() for tensor in known)))
        return read(memory, p_BP, h_BH, keys_NC)

    def observing(memory: BoostedMemory, images: Tensor, p_TBP: Tensor, h_TBH: Tensor) -> None:
        observed.append((images.clone(), p_TBP.clone(), h_TBH.clone()))
        observe(memory, images, p_TBP, h_TBH)

    monkeypatch.setattr(BoostedMemory, "read", reading)
    monkeypatch.setattr(BoostedMemory, "observe", observing)
    train(args)
    return reads, observed


def test_reads_and_stored_states_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acting and learning read the same contents with present keys, and what was read with is what is observed."""
    rollouts = 5
    reads, observed = spied(monkeypatch, tiny(rollouts))
    per_rollout = T + 1 + EPOCHS * MINIBATCHES * T
    assert len(reads) == rollouts * per_rollout and len(observed) == rollouts
    contents = [reads[i : i + per_rollout] for i in range(0, len(reads), per_rollout)]
    for part, (_, p_TBP, h_TBH) in zip(contents, observed, strict=True):
        assert all(torch.equal(one.contents_NH, part[0].contents_NH) for one in part)
        assert torch.equal(torch.stack([one.p_BP for one in part[:T]]), p_TBP)
        assert torch.equal(torch.stack([one.h_BH for one in part[:T]]), h_TBH)
    for one in reads:
        torch.testing.assert_close(one.keys_NC, one.keys_now_NC)
    first, last = contents[0][0], contents[-1][0]
    assert first.contents_NH.abs().sum() == 0 and last.contents_NH.abs().sum() > 0
    resets_TB = torch.cat([(h_TBH == 0).all(-1) for _, _, h_TBH in observed])
    assert 0 < resets_TB[1:].sum() < resets_TB[1:].numel(), "episodes ended while acting"


def test_saved_and_loaded_with_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    saved = train(tiny(4, save=path))
    loaded = train(tiny(0, seed=2, load=path))
    assert saved.memory.mem.filled == 12
    assert "memory.mem.h" in saved.state_dict()
    for name, tensor in saved.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    gone_on = train(tiny(1, load=path))
    assert gone_on.memory.epochs == saved.memory.epochs + 1
    assert not torch.equal(gone_on.memory.key.weight, saved.memory.key.weight)


def test_a_file_without_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    train(tiny(0, save=path))
    file = torch.load(path, weights_only=True)
    file["agent"] = {name: tensor for name, tensor in file["agent"].items() if not name.startswith("memory.mem")}
    torch.save(file, path)
    with pytest.raises(RuntimeError, match=r"memory\.mem\.h"):
        train(tiny(0, load=path))


def without_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    lines = [line for line in FILE.read_text().splitlines() if not line.endswith("# memory")]
    file = folder / "plain_ppo_lstm.py"
    file.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module


def test_the_memory_is_a_few_lines() -> None:
    marked = [line for line in FILE.read_text().splitlines() if line.endswith("# memory")]
    assert 10 < len(marked) <= 30


def test_without_these_lines_it_is_a_plain_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = without_memory(tmp_path, monkeypatch)
    assert plain.__file__ is not None
    assert not re.search(r"Memory|memory\.|mem\b|\bkeys_", Path(plain.__file__).read_text().split('"""', 2)[2])
    agent = plain.train(plain.Args(total_steps=ROLLOUT, **PARTS, **SIZES))
    assert agent.lstm.input_size == 16
    assert not any("memory" in name for name in agent.state_dict())
