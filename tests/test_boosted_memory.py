"""The whole memory against Algorithm 1 on lists: what is learnt, what is kept and when, and what a checkpoint needs."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_memory import NaiveBoosted, naive_read, same_as_list
from torch import Tensor, nn

from longtail.memory import BoostedMemory, MemoryConfig
from longtail.memory.augment import augment, in_pairs, noise_table
from longtail.memory.episodic import Reader
from longtail.memory.momentum import normalized_momentum

IMAGE, P, H, C, D = (4, 4, 1), 3, 4, 5, 6
# Noise of 25 grey levels: no two augmented images are the same, so no two losses are.
SMALL = MemoryConfig(
    capacity=8, neighbours=3, key_dim=C, familiarity=12, hop=2, transfer=3, transfer_every=2, beta=0.8, sigma=0.1,
    amplify=False,
)  # fmt: skip


def build(config: MemoryConfig = SMALL, seed: int = 0, device: str = "cpu") -> BoostedMemory:
    torch.manual_seed(seed)
    generator = torch.Generator(device).manual_seed(seed)
    return BoostedMemory(P, H, IMAGE, config, generator).to(device)


class Embedding(nn.Module):
    """A tiny encoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(math.prod(IMAGE), D)

    def forward(self, image_NHWC: Tensor) -> Tensor:
        return self.linear(image_NHWC.flatten(1) / 255 - 0.5)


def rollout(seed: int, T: int = 5, B: int = 2, device: str = "cpu") -> list[Tensor]:
    """images, p, h, tag; of six different images, the first more often than the last."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randint(256, (6, *IMAGE), dtype=torch.uint8, generator=torch.Generator().manual_seed(99))
    which_TB = (6 * torch.rand(T, B, generator=generator) ** 2).long()
    p_TBP, h_TBH = (torch.randn(T, B, size, generator=generator) for size in (P, H))
    tag_TB = torch.randint(-(2**62), 2**62, (T, B), generator=generator)
    return [x.to(device) for x in (pictures[which_TB], p_TBP, h_TBH, tag_TB)]


def fill(memory: BoostedMemory, seed: int = 0) -> None:
    """Exactly as many states as there are slots, one trajectory."""
    memory.observe(*rollout(seed, T=1 + (memory.config.familiarity - 1) * memory.config.hop, B=1))


def questions(seed: int = 7, B: int = 6, device: str = "cpu") -> list[Tensor]:
    """p and h of B worlds."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, size, generator=generator).to(device) for size in (P, H)]


def twin(generator: torch.Generator) -> torch.Generator:
    """Draws what the other will draw, without drawing from it."""
    return torch.Generator().set_state(generator.get_state())


# Algorithm 1


configs = st.builds(
    MemoryConfig,
    capacity=st.integers(5, 9), neighbours=st.integers(1, 5), key_dim=st.just(C), familiarity=st.integers(6, 13),
    hop=st.integers(1, 3), selection=st.sampled_from(["rare", "rare", "uniform", "none"]), transfer=st.integers(1, 5),
    transfer_every=st.integers(1, 3), transfer_once=st.booleans(), negatives=st.sampled_from(["all", "distinct"]),
    beta=st.sampled_from([0.0, 0.5, 0.97]), bias_correction=st.booleans(), sigma=st.just(0.1), amplify=st.just(False),
)  # fmt: skip


@settings(max_examples=25)
@given(configs, st.booleans(), st.integers(0, 2**32))
def test_memory_equals_algorithm_1_on_lists(config: MemoryConfig, familiar_first: bool, seed: int) -> None:
    if config.selection == "rare" and familiar_first:
        config = replace(config, eviction="familiar-first")
    memory, model, encoder = build(config), NaiveBoosted(config), Embedding()
    for number in range(10):
        new = rollout(seed + number, T=1 + (seed + number) % 3)
        memory.observe(*new)
        model.observe(*new, memory.key.weight.detach(), memory.key.bias.detach())
        # What augmentation will draw, and then a uniform selection.
        generator, image = twin(memory.generator), memory.familiarity.image
        augmented = augment(image, memory.noise, config.cutout_smallest, config.cutout_largest, generator)
        loss = memory.loss(encoder)
        if model.familiarity.is_full:
            losses = model.losses(encoder(image).detach(), encoder(augmented).detach())
            model.familiarity.record(losses)
            assert float(loss.detach()) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        else:
            assert loss == 0
        memory.update()
        model.update(torch.rand(config.familiarity, generator=generator).tolist())
        same(memory, model)


def same(memory: BoostedMemory, model: NaiveBoosted) -> None:
    c, f = memory.config, model.familiarity
    assert int(memory.epochs) == model.epochs
    same_as_list(memory.familiarity, f.slots, f.next, ("image", "p", "h", "key", "tag", "transferred"))
    for i, state in enumerate(f.slots):
        if state is not None:
            momentum = state.momentum(c.beta, c.bias_correction)
            assert float(memory.familiarity.momentum[i]) == pytest.approx(momentum, rel=1e-4, abs=1e-6)
            assert int(memory.familiarity.passes[i]) == len(state.losses)
    same_as_list(memory.mem, model.mem.slots, model.mem.next, ("p", "h", "key", "tag", "score", "stored_at"))
    p_BP, h_BH = questions()
    query_BC, keys_NC = memory.key(torch.cat([p_BP, h_BH], 1)), memory.keys()
    expected = naive_read(query_BC, keys_NC, memory.mem.h, int(memory.mem.filled), c.neighbours, c.epsilon)
    torch.testing.assert_close(memory.read(p_BP, h_BH, keys_NC), expected, rtol=1e-4, atol=1e-5)


# Reading


def grown(config: MemoryConfig = SMALL) -> BoostedMemory:
    """With something in MEM."""
    memory, encoder = build(config), Embedding()
    for number in range(8):
        step(memory, encoder, number)
    assert memory.mem.filled > 3
    return memory


def step(memory: BoostedMemory, encoder: nn.Module, number: int, T: int = 5) -> list[Tensor]:
    """A round as an agent does it, with a step of gradient descent; what the agent sees of it."""
    reader = memory.reader()
    with torch.no_grad():
        acted = reader(*questions(number))
    memory.observe(*rollout(number, T))
    loss = memory.loss(encoder)
    learnt = memory.read(*questions(number), memory.keys())
    parameters = [*memory.parameters(), *encoder.parameters()]
    gradients = torch.autograd.grad(loss + learnt.square().sum(), parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= 0.05 * gradient
    memory.update()
    return [acted, loss.detach(), learnt.detach()]


def test_keys_are_equation_6() -> None:
    memory = grown()
    for key, p, h in zip(memory.keys(), memory.mem.p, memory.mem.h, strict=True):
        torch.testing.assert_close(key, memory.key.weight @ torch.cat([p, h]) + memory.key.bias)


def test_w_learns_through_the_query_and_through_the_keys() -> None:
    memory, (weight_CQ, bias_C) = grown(), build().key.parameters()
    weight_CQ, bias_C = memory.key.weight, memory.key.bias
    keys_NC, along_BH = memory.keys(), questions(3)[1]

    def gradient(keys_NC: Tensor, weight_CQ: Tensor, bias_C: Tensor) -> Tensor:
        m_BH = Reader(memory.mem, keys_NC, weight_CQ, bias_C, 3, 1e-3)(*questions())
        return torch.autograd.grad((m_BH * along_BH).sum(), memory.key.weight, retain_graph=True)[0]

    whole = gradient(keys_NC, weight_CQ, bias_C)
    of_query = gradient(keys_NC.detach(), weight_CQ, bias_C)
    of_keys = gradient(keys_NC, weight_CQ.detach(), bias_C.detach())
    for part in (of_query, of_keys):
        assert part.abs().max() > 0.01 and not torch.allclose(part, whole, rtol=0.1)
    torch.testing.assert_close(of_query + of_keys, whole, rtol=1e-4, atol=1e-5)
    m_BH = memory.read(*questions(), keys_NC)
    assert torch.equal(m_BH, memory.reader()(*questions()))
    torch.testing.assert_close(torch.autograd.grad((m_BH * along_BH).sum(), weight_CQ)[0], whole)


def test_stored_states_are_constants() -> None:
    """Nothing learnt later reaches the agent through what it stored, whatever the agent hands in."""
    memory, encoder = build(), Embedding()
    images, p_TBP, h_TBH, _ = rollout(0, T=23, B=1)
    p_TBP.requires_grad_()
    memory.observe(images, p_TBP * 2, h_TBH * p_TBP.sum())
    for _ in range(2):
        memory.loss(encoder)
        memory.update()
    m_BH = memory.read(*questions(), memory.keys())
    assert m_BH.any() and m_BH.requires_grad
    assert torch.autograd.grad(m_BH.sum() + memory.loss(encoder), p_TBP, allow_unused=True)[0] is None
    assert not any(x.requires_grad for x in memory.buffers())
    p_TBP.detach().zero_()
    assert memory.mem.p.any()


def test_nothing_is_recalled_before_the_first_transfer() -> None:
    memory = build()
    keys_NC = memory.keys()
    m_BH = memory.read(*questions(), keys_NC)
    assert torch.equal(m_BH, torch.zeros(6, H))
    for gradient in torch.autograd.grad(m_BH.sum(), [*memory.parameters()]):
        assert torch.equal(gradient, torch.zeros_like(gradient))


# The contrastive loss


def test_loss_by_hand() -> None:
    """Two pixels, embeddings (1 + left, right) / length, an augmented image that is all black, temperature 1.

    z = (1, 0), (1, 1) / sqrt 2, (2, 1) / sqrt 5 and z' = (1, 0): cosines with z' are 1, 1 / sqrt 2, 2 / sqrt 5.
    """
    config = replace(
        SMALL, familiarity=3, transfer=3, hop=1, temperature=1.0, sigma=0.0, cutout_smallest=1.0, cutout_largest=1.0
    )
    memory = BoostedMemory(P, H, (1, 2, 1), config)
    images = torch.tensor([[0, 0], [0, 255], [255, 255]], dtype=torch.uint8).view(3, 1, 1, 2, 1)
    memory.observe(images, torch.zeros(3, 1, P), torch.zeros(3, 1, H))
    loss = memory.loss(lambda image: torch.tensor([1.0, 0.0]) + image.view(-1, 2) / 255)
    a, b, c = 1 / math.sqrt(2), 2 / math.sqrt(5), 3 / math.sqrt(10)  # cosines of 0 with 1, 0 with 2, 1 with 2
    losses = [
        math.log(math.exp(1) + math.exp(a) + math.exp(b)) - 1,
        math.log(math.exp(a) + math.exp(a) + math.exp(c)) - a,
        math.log(math.exp(b) + math.exp(b) + math.exp(c)) - b,
    ]
    assert float(loss.detach()) == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert memory.familiarity.momentum.tolist() == pytest.approx(losses, rel=1e-6)
    mean = sum(losses) / 3
    expected = [((x - mean) / max(abs(y - mean) for y in losses) + 1) / 2 for x in losses]
    assert memory.rarity().tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_loss_and_its_gradient_are_zero_until_the_buffer_is_full() -> None:
    memory, encoder = build(), Embedding()
    for number in range(2):  # 6 states of 12, then all
        loss = memory.loss(encoder)
        assert loss == 0
        for gradient in torch.autograd.grad(loss, [*encoder.parameters()]):
            assert torch.equal(gradient, torch.zeros_like(gradient))
        assert not memory.familiarity.momentum.any() and not memory.familiarity.passes.any()
        memory.observe(*rollout(number))
    loss = memory.loss(encoder)
    assert loss > 0.1 and torch.autograd.grad(loss, encoder.linear.weight)[0].abs().max() > 1e-3
    assert memory.familiarity.passes.tolist() == [1] * 12


def test_loss_teaches_the_encoder_alone() -> None:
    memory, encoder = grown(), Embedding()
    loss = memory.loss(encoder)
    assert all(x is None for x in torch.autograd.grad(loss, [*memory.parameters()], allow_unused=True))


def test_loss_falls_as_the_encoder_learns_it() -> None:
    memory, encoder = build(), Embedding()
    fill(memory)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        losses.append(memory.loss(encoder))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert torch.stack(losses[-10:]).mean() < 0.7 * torch.stack(losses[:10]).mean()


@pytest.mark.parametrize("negatives", ["all", "distinct"])
def test_distinct_goes_by_the_image(negatives: str) -> None:
    """Ten copies and two images met once, each kind with an embedding of its own, which a black pixel cannot change.

    Nothing is like the two: among all negatives they look familiar, and without copies they are the rare ones.
    """
    config = replace(SMALL, hop=1, sigma=0.0, cutout_smallest=0.0, cutout_largest=0.0)
    memory = build(replace(config, negatives=negatives))  # type: ignore[arg-type]
    images, p_TBP, h_TBH, _ = rollout(0, T=12, B=1)
    images[:10], images[10], images[11] = 50, 100, 200
    memory.observe(images, p_TBP, h_TBH)
    memory.loss(lambda image: torch.eye(5)[image.flatten(1).amax(1).long() // 50])
    negatives_N = torch.tensor([2.0] * 10 + [11.0] * 2)
    similar_N = torch.tensor([9.0] * 10 + [0.0] * 2) if negatives == "all" else torch.zeros(12)
    expected_N = torch.log(math.exp(5) * (1 + similar_N) + negatives_N) - 5
    torch.testing.assert_close(memory.familiarity.momentum, expected_N, rtol=1e-4, atol=1e-5)
    assert (expected_N[10:].min() > expected_N[:10].max()) == (negatives == "distinct")


# What goes into MEM, and when


def transfer(memory: BoostedMemory, loss_N: Tensor) -> list[int]:
    """A pass with these losses and the update after it: the tags of what lies in MEM."""
    memory.familiarity.record(loss_N, memory.config.beta)
    memory.update()
    return memory.mem.tag[: int(memory.mem.filled)].tolist()


def numbered(memory: BoostedMemory) -> None:
    """A full buffer whose tags are the slots' numbers."""
    fill(memory)
    memory.familiarity.tag.copy_(torch.arange(memory.config.familiarity))


LOSSES = torch.tensor([3.0, 11, 0, 7, 5, 1, 10, 2, 8, 4, 6, 9])
BY_LOSS = [1, 6, 11, 8, 3, 10, 4, 9, 0, 7, 5, 2]  # slots, the highest loss first


def test_rare_states_go_once_every_few_passes() -> None:
    """Three of the highest momentum after every second pass, the oldest make room: 12 states go in four transfers."""
    memory = build(replace(SMALL, beta=0.0))
    numbered(memory)
    expected: list[int] = []
    for epoch in range(1, 13):
        found = transfer(memory, LOSSES)
        if epoch % 2 == 0 and epoch <= 8:
            expected += BY_LOSS[3 * (epoch // 2 - 1) : 3 * (epoch // 2)]
        assert sorted(found) == sorted(expected[-8:])
        assert int(memory.familiarity.transferred.sum()) == min(12, len(expected))
    assert sorted(set(memory.mem.stored_at.tolist())) == [4, 6, 8]
    torch.testing.assert_close(memory.mem.score, normalized_momentum(LOSSES)[memory.mem.tag])


def test_rare_states_go_as_often_as_they_rank() -> None:
    memory = build(replace(SMALL, beta=0.0, transfer_once=False))
    numbered(memory)
    for epoch in range(1, 5):
        assert sorted(transfer(memory, LOSSES)) == sorted(BY_LOSS[:3] * (epoch // 2))


def test_the_momentum_decides_not_the_last_loss() -> None:
    memory = build(replace(SMALL, beta=0.9))
    numbered(memory)
    transfer(memory, LOSSES)
    assert sorted(transfer(memory, -LOSSES)) == sorted(BY_LOSS[:3])
    memory = build(replace(SMALL, beta=0.0))
    numbered(memory)
    transfer(memory, LOSSES)
    assert sorted(transfer(memory, -LOSSES)) == sorted(BY_LOSS[-3:])


def test_passes_count_from_when_the_buffer_is_full() -> None:
    memory = build()
    memory.observe(*rollout(0))
    for _ in range(5):
        assert transfer(memory, LOSSES) == []
    assert int(memory.epochs) == 0
    memory.observe(*rollout(1))
    assert transfer(memory, LOSSES) == [] and len(transfer(memory, LOSSES)) == 3 and int(memory.epochs) == 2


def test_a_state_that_comes_again_may_go_again() -> None:
    """`once` is about a slot's content: what replaces it is new."""
    memory = build(replace(SMALL, beta=0.0, transfer=8, transfer_every=1))
    numbered(memory)
    assert sorted(transfer(memory, LOSSES)) == sorted(BY_LOSS[:8])
    memory.observe(*rollout(1))  # slots 0 to 5
    memory.familiarity.tag[:6] += torch.arange(100, 106) - memory.familiarity.tag[:6]
    transfer(memory, LOSSES)
    assert not {7, 9} - set(memory.mem.tag.tolist()) and set(range(100, 106)) <= set(memory.mem.tag.tolist())


def test_familiar_first_keeps_the_rarest() -> None:
    """After all 12 have gone by, the 8 rarest are left; first in, first out leaves the last 8."""
    for eviction, kept in (("familiar-first", BY_LOSS[:6]), ("fifo", BY_LOSS[-6:])):
        config = replace(SMALL, capacity=6, transfer_every=1, beta=0.0, eviction=eviction)  # type: ignore[arg-type]
        memory = build(config)
        numbered(memory)
        transfer(memory, LOSSES)
        transfer(memory, LOSSES)
        # The same states with low losses: they are familiar when they come.
        memory.familiarity.transferred[torch.tensor(BY_LOSS[:6])] = True
        transfer(memory, LOSSES)
        found = transfer(memory, LOSSES)
        assert set(found) == (set(BY_LOSS[:3]) | set(BY_LOSS[9:]) if eviction == "familiar-first" else set(kept))


def test_uniform_draws_anything() -> None:
    """Each state as often as any other, whatever its loss; different ones each time."""
    memory = build(replace(SMALL, selection="uniform", transfer_every=1, transfer_once=False))
    numbered(memory)
    count_N, previous = torch.zeros(12), []
    for _ in range(800):
        transfer(memory, LOSSES)
        newest = memory.mem.tag[(memory.mem.next - 1 - torch.arange(3)) % 8]
        assert len(set(newest.tolist())) == 3
        count_N[newest] += 1
        previous.append(tuple(newest.tolist()))
    assert len(set(previous)) > 300 and not memory.mem.score.any()
    assert (count_N - 200).abs().max() < 5 * math.sqrt(200 * 0.75)


def test_uniform_goes_once_if_it_shall() -> None:
    memory = build(replace(SMALL, capacity=12, selection="uniform", transfer_every=1))
    numbered(memory)
    for epoch in range(1, 7):
        found = transfer(memory, LOSSES)
        assert len(found) == len(set(found)) == min(12, 3 * epoch)


def test_none_keeps_mem_empty() -> None:
    memory = build(replace(SMALL, selection="none"))
    numbered(memory)
    assert [transfer(memory, LOSSES) for _ in range(4)] == [[]] * 4 and int(memory.epochs) == 4


def test_tags_travel_with_their_states() -> None:
    """A tag that repeats what p says still does so in both buffers."""
    memory, encoder = build(), Embedding()
    for number in range(9):
        images, p_TBP, h_TBH, tag_TB = rollout(number)
        p_TBP[..., 0] = tag_TB % 1000
        h_TBH[..., 0] = images.flatten(2).float().mean(-1)
        memory.observe(images, p_TBP, h_TBH, tag_TB)
        memory.loss(encoder)
        memory.update()
    for buffer in (memory.familiarity, memory.mem):
        filled = int(buffer.filled)
        assert filled > 3 and torch.equal(buffer.p[:filled, 0], (buffer.tag[:filled] % 1000).float())
    torch.testing.assert_close(memory.familiarity.h[:, 0], memory.familiarity.image.flatten(1).float().mean(-1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_without_a_contrastive_loss_no_image_is_kept(dtype: torch.dtype) -> None:
    memory = build(replace(SMALL, contrastive=False, selection="uniform"))
    for number in range(8):
        images, *rest = rollout(number)
        memory.observe(images.to(dtype), *rest)
        assert memory.loss(Embedding()) == 0
        memory.update()
    assert memory.familiarity.image.numel() == 0 and memory.mem.filled == 8
    assert memory.read(*questions(), memory.keys()).any()


# Checkpoints

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


@pytest.mark.gpu
def test_cpu_and_gpu_agree() -> None:
    """Without random numbers: no noise, all black."""
    config, results = replace(SMALL, sigma=0.0, cutout_smallest=1.0, cutout_largest=1.0, negatives="all"), []
    for device in ("cpu", "cuda"):
        memory, encoder, losses = build(config, device=device), Embedding().to(device), []
        for number in range(10):
            images, *rest = rollout(number, device=device)
            images[..., 0, 0] += torch.arange(10, device=device).view(5, 2, 1) * 7 + number  # no two are the same
            memory.observe(images, *rest)
            losses.append(memory.loss(encoder))
            memory.update()
        m_BH = memory.read(*questions(device=device), memory.keys())
        results.append([torch.stack(losses), m_BH, memory.rarity(), memory.mem.tag.double(), memory.mem.score])
    for expected, made in zip(*results, strict=True):
        torch.testing.assert_close(made.cpu(), expected, rtol=1e-3, atol=1e-4)
