"""The familiarity buffer against a list, and what Eq. 8 keeps of a trajectory."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from naive_memory import NaiveFamiliarity, State, same_as_list
from torch import Tensor

from longtail.memory.contrastive import image_hash
from longtail.memory.familiarity import FamiliarityBuffer, hop_subset

IMAGE, P, H, C = (3, 5, 1), 4, 3, 2
BETA = 0.9


def build(capacity: int, device: str = "cpu") -> FamiliarityBuffer:
    return FamiliarityBuffer(capacity, IMAGE, P, H, C).to(device)


def random_states(count: int, seed: int = 0, device: str = "cpu") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    new = {"image": torch.randint(256, (count, *IMAGE), dtype=torch.uint8, generator=generator)}
    for name, size in (("p", P), ("h", H), ("key", C)):
        new[name] = torch.randn(count, size, generator=generator)
    new["tag"] = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    return {name: x.to(device) for name, x in new.items()}


def add(buffer: FamiliarityBuffer, new: dict[str, Tensor]) -> None:
    buffer.add(new["image"], new["p"], new["h"], new["key"], new["tag"])


def as_list(new: dict[str, Tensor]) -> list[State]:
    return [State(**{name: x[i] for name, x in new.items()}) for i in range(len(new["p"]))]


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 50))
def test_hop_subset_is_equation_8(T: int, B: int, hop: int) -> None:
    """s_1, s_(1 + hp), ..., s_(1 + floor((k - 1) / hp) hp), counted from 1; of each trajectory the same ones."""
    x_TB2 = torch.arange(T * B * 2).view(T, B, 2)
    kept = [1 + i * hop for i in range((T - 1) // hop + 1)]
    expected = [x_TB2[s - 1, b].tolist() for s in kept for b in range(B)]
    assert hop_subset(x_TB2, hop).tolist() == expected
    assert hop_subset(x_TB2[..., 0], hop).tolist() == [pair[0] for pair in expected]


operations = st.lists(st.integers(1, 7) | st.just("record") | st.just("transfer"), max_size=25)


@given(st.integers(7, 13), operations, st.booleans())
@example(7, [7, "record", 7, "record", "record", "transfer", 3, 5, "record"], False)
def test_buffer_equals_a_list(capacity: int, todo: list, bias_corrected: bool) -> None:
    buffer, model = build(capacity), NaiveFamiliarity(capacity)
    for number, operation in enumerate(todo):
        if operation == "record":
            loss_N = torch.rand(capacity, generator=torch.Generator().manual_seed(number))
            buffer.record(loss_N, BETA, bias_corrected)
            model.record(loss_N.tolist())
        elif operation == "transfer":
            for i in range(0, capacity, 3):
                buffer.transferred[i] = True
                if model.slots[i] is not None:
                    model.slots[i].transferred = True
        else:
            new = random_states(operation, number)
            add(buffer, new)
            model.add(as_list(new))
        same_as_list(buffer, model.slots, model.next, ("image", "p", "h", "key", "tag", "transferred"))
        assert bool(buffer.is_full) == model.is_full
        for i, state in enumerate(model.slots):
            if state is not None:
                momentum = state.momentum(BETA, bias_corrected)
                assert float(buffer.momentum[i]) == pytest.approx(momentum, rel=1e-5, abs=1e-6)
                assert int(buffer.passes[i]) == len(state.losses)
                assert buffer.hash[i] == image_hash(state.image[None])[0]


def test_new_states_start_anew(device: str) -> None:
    buffer = build(6, device)
    add(buffer, random_states(6, 0, device))
    for _ in range(3):
        buffer.record(torch.full((6,), 2.0, device=device), BETA)
    buffer.transferred.fill_(True)
    add(buffer, random_states(2, 1, device))
    assert buffer.passes.tolist() == [0, 0, 3, 3, 3, 3]
    assert buffer.momentum.tolist() == [0, 0, 2, 2, 2, 2]
    assert buffer.transferred.tolist() == [False, False, True, True, True, True]
    buffer.record(torch.full((6,), 5.0, device=device), BETA)
    torch.testing.assert_close(buffer.momentum.cpu(), torch.tensor([5, 5, 2.3, 2.3, 2.3, 2.3]))


def test_nothing_is_recorded_before_the_buffer_is_full(device: str) -> None:
    buffer = build(6, device)
    for count, is_full in ((3, False), (2, False), (1, True)):
        add(buffer, random_states(count, count, device))
        buffer.record(torch.ones(6, device=device), BETA)
        assert bool(buffer.is_full) == is_full
        assert buffer.passes.tolist() == [int(is_full)] * 6 and buffer.momentum.tolist() == [float(is_full)] * 6


def test_as_many_as_there_are_slots_replace_everything() -> None:
    buffer = build(6)
    add(buffer, random_states(2, 0))
    new = random_states(6, 1)
    add(buffer, new)
    for name in new:
        assert torch.equal(getattr(buffer, name).roll(-2, 0), new[name]), name
    assert int(buffer.next) == 2 and int(buffer.filled) == 6


def test_more_than_there_are_slots_are_refused() -> None:
    buffer = build(6)
    before = {name: x.clone() for name, x in buffer.state_dict().items()}
    with pytest.raises(ValueError, match=r"memory\.familiarity is 6: it must be at least 7.*memory\.hop"):
        add(buffer, random_states(7))
    for name, x in buffer.state_dict().items():
        assert torch.equal(x, before[name]), name


def test_states_without_a_tag_have_minus_1() -> None:
    buffer, new = build(4), random_states(3)
    add(buffer, new)
    buffer.add(new["image"][:2], new["p"][:2], new["h"][:2], new["key"][:2])
    assert buffer.tag.tolist() == [-1, *new["tag"][1:].tolist(), -1]


def test_what_is_stored_is_a_copy_without_gradient() -> None:
    buffer, new = build(3), random_states(3)
    p_SP = new["p"].clone().requires_grad_()
    buffer.add(new["image"], p_SP * 1, new["h"].double(), new["key"] * p_SP[:, :C], new["tag"])
    assert not any(x.requires_grad for x in buffer.state_dict().values())
    assert buffer.h.dtype == torch.float32 and torch.equal(buffer.h, new["h"])
    new["image"].zero_()
    assert buffer.image.any()
