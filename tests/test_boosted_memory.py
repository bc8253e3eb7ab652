"""The whole memory against Algorithm 1 on lists: what is learnt, and what is kept and when."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_memory import NaiveBoosted, naive_read, same_as_list
from tiny_memory import SMALL, C, Embedding, H, P, build, fill, grown, questions, rollout, twin
from torch import Tensor

from longtail.memory import BoostedMemory, MemoryConfig
from longtail.memory.augment import augment
from longtail.memory.episodic import Reader
from longtail.memory.momentum import normalized_momentum

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
