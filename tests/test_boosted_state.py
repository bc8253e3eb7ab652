"""What a checkpoint of the memory needs, and what it refuses to be built as."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_memory import SMALL, Embedding, build, rollout, step
from torch import Tensor, nn

from longtail.memory import BoostedMemory, MemoryConfig
from longtail.memory.augment import in_pairs, noise_table

# Two states a round: full after 6 rounds, saved one pass after the first transfer and two before the second, which is
# the one that MEM has too little room for.
SAVED = replace(SMALL, capacity=5, transfer_every=3)
ROUNDS_BEFORE, ROUNDS = 9, 13


def trained(config: MemoryConfig) -> tuple[BoostedMemory, Embedding]:
    memory, encoder = build(config), Embedding()
    for number in range(ROUNDS_BEFORE):
        step(memory, encoder, number, T=1)
    return memory, encoder


def go_on(memory: BoostedMemory, encoder: nn.Module) -> list[Tensor]:
    return [x for number in range(ROUNDS_BEFORE, ROUNDS) for x in step(memory, encoder, number, T=1)]


def loaded(config: MemoryConfig, without: str | None = None) -> tuple[BoostedMemory, Embedding]:
    """A new memory from another's `state_dict`, perhaps without one part of it."""
    memory, encoder = trained(config)
    fresh, copy = build(config, seed=5), Embedding()
    saved = {name: x.clone() for name, x in memory.state_dict().items()}
    if without is not None:
        saved[without] = fresh.state_dict()[without].clone()
    fresh.load_state_dict(saved)
    copy.load_state_dict(encoder.state_dict())
    fresh.generator.set_state(memory.generator.get_state())
    return fresh, copy


EVICTIONS = ["fifo", "familiar-first"]
NAMES = sorted(build().state_dict())
# For statistics alone; b moves queries and keys together.
IDLE = {"key.bias", "familiarity.key", "familiarity.tag", "mem.key", "mem.tag", "mem.stored_at"}
IDLE_WITH = {"fifo": IDLE | {"mem.score"}, "familiar-first": IDLE | {"mem.next"}}


def with_eviction(eviction: str) -> MemoryConfig:
    return replace(SAVED, eviction=eviction)  # type: ignore[arg-type]


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_loaded_memory_goes_on_bit_for_bit(eviction: str) -> None:
    memory, encoder = trained(with_eviction(eviction))
    again, copy = loaded(with_eviction(eviction))
    for made, expected in zip(go_on(again, copy), go_on(memory, encoder), strict=True):
        assert torch.equal(made, expected)
    for name, expected in memory.state_dict().items():
        assert torch.equal(again.state_dict()[name], expected), name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_every_part_of_the_state_counts(eviction: str, name: str) -> None:
    """Without any one of them, a loaded memory goes another way; without some, only its statistics are wrong."""
    memory, encoder = trained(with_eviction(eviction))
    lacking, copy = loaded(with_eviction(eviction), name)
    pairs = list(zip(go_on(lacking, copy), go_on(memory, encoder), strict=True))
    is_idle = name in IDLE_WITH[eviction]
    assert all(torch.allclose(made, expected, atol=1e-4) for made, expected in pairs) == is_idle
    assert any(not torch.equal(lacking.state_dict()[n], x) for n, x in memory.state_dict().items())


def test_the_state_is_all_there_is() -> None:
    """No tensor hides outside of `state_dict`, but the noise, which the configuration decides."""
    memory = build()
    assert {name for name, _ in memory.named_buffers()} - set(NAMES) == {"noise"}
    assert {name for name, _ in memory.named_parameters()} == {"key.weight", "key.bias"}
    assert torch.equal(memory.noise, in_pairs(noise_table(25.5)))


# What is refused
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({name: 0}, f"memory.{name} is 0: it must be at least 1") for name in (
        "capacity", "neighbours", "key_dim", "familiarity", "hop", "transfer", "transfer_every",
    )),
    *(({name: -0.5}, f"memory.{name} is -0.5: it must be at least 0") for name in (
        "epsilon", "contrastive_cost", "temperature", "beta", "sigma", "cutout_smallest", "cutout_largest",
    )),
    ({"beta": math.nan}, "memory.beta is nan: it must be at least 0"),
    ({"epsilon": 0.0}, "memory.epsilon is 0.0: it must be above 0"),
    ({"temperature": 0.0}, "memory.temperature is 0.0: it must be above 0"),
    ({"neighbours": 9}, "memory.neighbours is 9: it must be at most memory.capacity, 8"),
    ({"transfer": 13, "capacity": 20}, "memory.transfer is 13: it must be at most memory.familiarity, 12"),
    ({"transfer": 9}, "memory.transfer is 9: it must be at most memory.capacity, 8"),
    ({"beta": 1.0}, "memory.beta is 1.0: it must be below 1"),
    ({"sigma": 1.1}, "memory.sigma is 1.1: it must be at most 1"),
    ({"cutout_largest": 1.1}, "memory.cutout_largest is 1.1: it must be at most 1"),
    ({"cutout_smallest": 0.6}, "memory.cutout_smallest is 0.6: it must be at most memory.cutout_largest, 0.5"),
    ({"selection": "all"}, "memory.selection is 'all': it must be one of rare, uniform, none"),
    ({"eviction": "lru"}, "memory.eviction is 'lru': it must be one of fifo, familiar-first"),
    ({"negatives": "some"}, "memory.negatives is 'some': it must be one of all, distinct"),
    ({"contrastive": False}, "memory.contrastive is False: it must be true"),
    ({"selection": "uniform", "eviction": "familiar-first"}, "memory.eviction is 'familiar-first': it must be fifo"),
    ({"selection": "none", "eviction": "familiar-first"}, "memory.eviction is 'familiar-first': it must be fifo"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message.split(": ")[0] for _, message in REFUSED])
def test_what_cannot_be_is_refused_by_its_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        replace(SMALL, **changes)


def test_bounds_themselves_are_allowed() -> None:
    replace(SMALL, neighbours=8, transfer=8, beta=0.0, sigma=1.0, cutout_smallest=0.5, cutout_largest=0.5)
    replace(SMALL, contrastive_cost=0.0, cutout_smallest=0.0, cutout_largest=1.0, sigma=0.0)
    replace(SMALL, contrastive=False, selection="none")
    replace(SMALL, capacity=1, neighbours=1, familiarity=1, transfer=1, hop=1, key_dim=1, transfer_every=1)


def test_wrong_images_are_refused() -> None:
    images, p_TBP, h_TBH, _ = rollout(0)
    for wrong in (images.float(), images[:, :, :3], images[:4], images.flatten(3)):
        with pytest.raises(ValueError, match=r"images are torch\.\w+ \[.*must be uint8 \[5, 2, 4, 4, 1\]"):
            build().observe(wrong, p_TBP, h_TBH)


def test_too_long_rollouts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"memory\.familiarity is 12: it must be at least 14.*memory\.hop"):
        build().observe(*rollout(0, T=13))
