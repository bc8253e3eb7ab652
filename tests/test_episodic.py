"""MEM against lists and loops: what it holds, what it finds, Eq. 7 and its written-out gradients."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from naive_memory import NaiveMEM, Stored, naive_neighbours, naive_read, same_as_list
from torch import Tensor

from longtail.memory.episodic import EpisodicMemory, Reader, keys_backward, nearest, squared_norms

P, H, C = 3, 4, 5
EPSILON = 1e-3


def random_states(count: int, seed: int = 0) -> dict[str, Tensor]:
    """What goes into MEM; few different scores, so that some are equal."""
    generator = torch.Generator().manual_seed(seed)
    new = {name: torch.randn(count, size, generator=generator) for name, size in (("p", P), ("h", H), ("key", C))}
    new["tag"] = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    new["score"] = torch.randint(4, (count,), generator=generator) / 4
    new["stored_at"] = torch.full((count,), seed)
    return new


def build(capacity: int, filled: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> EpisodicMemory:
    mem = EpisodicMemory(capacity, P, H, C)
    if filled:
        mem.write(random_states(filled, 7), torch.ones(filled, dtype=torch.bool))
    return mem.to(device, dtype)


def weights(dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """W and b."""
    generator = torch.Generator().manual_seed(3)
    made = torch.randn(C, P + H, generator=generator), torch.randn(C, generator=generator)
    return tuple(x.to(device, dtype).requires_grad_() for x in made)  # type: ignore[return-value]


def questions(B: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """p and h."""
    generator = torch.Generator().manual_seed(5)
    made = torch.randn(B, P, generator=generator), torch.randn(B, H, generator=generator)
    return tuple(x.to(device, dtype).requires_grad_() for x in made)  # type: ignore[return-value]


def reader(mem: EpisodicMemory, weight_CQ: Tensor, bias_C: Tensor, K: int) -> Reader:
    keys_NC = torch.cat([mem.p, mem.h], 1) @ weight_CQ.t() + bias_C
    return Reader(mem, keys_NC, weight_CQ, bias_C, K, EPSILON)


def naive_m(mem: EpisodicMemory, weight_CQ: Tensor, bias_C: Tensor, K: int, p_BP: Tensor, h_BH: Tensor) -> Tensor:
    """Eqs. 6 and 7 from what is stored."""
    query_BC, keys_NC = (torch.cat(x, 1) @ weight_CQ.t() + bias_C for x in ((p_BP, h_BH), (mem.p, mem.h)))
    return naive_read(query_BC, keys_NC, mem.h, int(mem.filled), K, EPSILON)


def found_slots(query_BC: Tensor, keys_NC: Tensor, filled: int, K: int) -> list[set[int]]:
    """Of each query the filled slots that it found; those that are not filled are marked so."""
    norm_N = squared_norms(keys_NC, torch.tensor(filled, device=keys_NC.device))
    index_BK, is_filled_BK = nearest(query_BC, keys_NC, norm_N, K)
    assert torch.equal(is_filled_BK, index_BK < filled)
    assert all(len(set(row)) == K for row in index_BK.tolist())
    pairs = zip(index_BK.tolist(), is_filled_BK.tolist(), strict=True)
    return [{i for i, is_filled in zip(*row, strict=True) if is_filled} for row in pairs]


def sets(query_BC: Tensor, keys_NC: Tensor, filled: int, K: int) -> list[set[int]]:
    return [set(naive_neighbours(query_C, keys_NC, filled, K)) for query_C in query_BC]


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32), st.data())
def test_neighbours_equal_brute_force_with_ties(
    N: int, B: int, C: int, span: int, seed: int, data: st.DataObject
) -> None:
    """Keys and queries on a small grid, where fp32 is exact: many equal keys, more that are equally near."""
    filled, K = data.draw(st.integers(0, N)), data.draw(st.integers(1, N))
    generator = torch.Generator().manual_seed(seed)
    keys_NC, query_BC = (torch.randint(-span, span + 1, (n, C), generator=generator).float() for n in (N, B))
    assert found_slots(query_BC, keys_NC, filled, K) == sets(query_BC, keys_NC, filled, K)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("filled", "K"), [(1024, 16), (1024, 32), (300, 16), (9, 16), (0, 16)])
def test_neighbours_equal_brute_force(filled: int, K: int, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    keys_NC, query_BC = (torch.randn(n, 128, generator=generator).to(device, dtype) for n in (1024, 8))
    assert found_slots(query_BC, keys_NC, filled, K) == sets(query_BC, keys_NC, filled, K)


@pytest.mark.parametrize("N", [64, 1024, 10, 65, 257])
@pytest.mark.parametrize("B", [1, 3, 32])
def test_of_equal_keys_the_lowest_slots_are_found(N: int, B: int, device: str) -> None:
    """Keys of any values, each many times; a product's last columns may not round in another way."""
    generator = torch.Generator().manual_seed(0)
    different, query_BC = (torch.randn(n, 128, generator=generator).to(device) for n in (2, B))
    keys_NC = different[torch.randint(2, (N,), generator=generator)]
    assert found_slots(query_BC, keys_NC, N, 4) == sets(query_BC, keys_NC, N, 4)


def test_a_key_finds_itself_where_rounding_is_coarse(device: str) -> None:
    """Far from the origin a distance of 0 comes out as some hundredths, or below 0."""
    keys_NC = (100 + torch.randn(200, 128, generator=torch.Generator().manual_seed(0))).to(device)
    norm_N = squared_norms(keys_NC, torch.tensor(200, device=device))
    assert (norm_N - 2 * (keys_NC @ keys_NC.t()).diagonal() + norm_N != 0).any()
    assert nearest(keys_NC, keys_NC, norm_N, 1)[0][:, 0].tolist() == list(range(200))
    assert all(nearest(keys_NC, keys_NC, norm_N, 1)[1])


def test_all_slots_can_be_neighbours() -> None:
    """K equal to the capacity: the weighted mean of everything."""
    mem, (weight_CQ, bias_C), (p_BP, h_BH) = build(6, 6), weights(), questions(4)
    m_BH = reader(mem, weight_CQ, bias_C, 6)(p_BP, h_BH)
    keys_NC, query_BC = (torch.cat(x, 1) @ weight_CQ.t() for x in ((mem.p, mem.h), (p_BP, h_BH)))
    w_BN = 1 / (torch.cdist(query_BC, keys_NC) ** 2 + EPSILON)
    torch.testing.assert_close(m_BH, w_BN @ mem.h / w_BN.sum(1, keepdim=True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize(("filled", "K"), [(9, 1), (9, 4), (9, 9), (3, 4), (1, 9)])
def test_read_and_its_gradients_equal_the_formula(filled: int, K: int, dtype: torch.dtype, tolerance: float) -> None:
    """Eqs. 6 and 7, and autograd through them; W and b get theirs through the query and the keys together."""
    mem, given_ = build(9, filled, dtype), [*weights(dtype), *questions(6, dtype)]
    weight_CQ, bias_C, p_BP, h_BH = given_
    made_BH = reader(mem, weight_CQ, bias_C, K)(p_BP, h_BH)
    expected_BH = naive_m(mem, weight_CQ, bias_C, K, p_BP, h_BH)
    torch.testing.assert_close(made_BH, expected_BH, rtol=tolerance, atol=tolerance)
    along_BH = torch.randn(6, H, generator=torch.Generator().manual_seed(8)).to(dtype)
    made = torch.autograd.grad((made_BH * along_BH).sum(), given_)
    expected = torch.autograd.grad((expected_BH * along_BH).sum(), given_, allow_unused=True)
    for ours, right, name in zip(made, expected, ("W", "b", "p", "h"), strict=True):
        right = torch.zeros_like(ours) if right is None else right
        torch.testing.assert_close(ours, right, rtol=tolerance, atol=tolerance, msg=name)
        if name != "b":  # it moves queries and keys together, so distances stay
            assert (ours.abs().max() > 1e-3) == (min(filled, K) > 1), name  # one neighbour alone has all the weight


def test_read_equals_differences() -> None:
    """Also where a query meets a key exactly, the steepest place there is."""
    mem, (p_BP, h_BH) = build(9, 7), questions(5)
    weight_CQ, bias_C = weights()
    query_BC = (torch.cat([p_BP, h_BH], 1) @ weight_CQ.t() + bias_C).detach()
    keys_NC = (torch.cat([mem.p, mem.h], 1) @ weight_CQ.t() + bias_C).detach()

    def read(query_BC: Tensor, keys_NC: Tensor) -> Tensor:
        bare = Reader(mem, keys_NC, torch.eye(C).double(), torch.zeros(C).double(), 4, 0.1)
        return bare(query_BC[:, :2], query_BC[:, 2:])

    query_BC[0] = keys_NC[2]
    assert torch.autograd.gradcheck(read, (query_BC.requires_grad_(), keys_NC.requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_empty_memory_says_and_teaches_nothing(dtype: torch.dtype) -> None:
    mem, given_ = build(9, 0, dtype), [*weights(dtype), *questions(6, dtype)]
    mem.p.normal_()  # what lies in slots that are not filled
    mem.h.normal_()
    m_BH = reader(mem, given_[0], given_[1], 4)(*given_[2:])
    assert torch.equal(m_BH, torch.zeros(6, H, dtype=dtype))
    for gradient in torch.autograd.grad(m_BH.sum(), given_):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("filled", [1, 2, 5])
def test_slots_that_are_not_filled_have_no_share(filled: int) -> None:
    mem, given_ = build(9, filled), [*weights(), *questions(6)]
    results = []
    for _ in range(2):
        m_BH = reader(mem, given_[0], given_[1], 4)(*given_[2:])
        results.append([m_BH, *torch.autograd.grad(m_BH.square().sum(), given_)])
        mem.p[filled:] = 3.0
        mem.h[filled:] = 100.0
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-13)


def test_stored_states_get_no_gradient() -> None:
    mem, (weight_CQ, bias_C), (p_BP, h_BH) = build(9, 9), weights(), questions(6)
    mem.h.requires_grad_()
    keys_NC = (torch.cat([mem.p, mem.h], 1) @ weight_CQ.t() + bias_C).detach().requires_grad_()
    m_BH = Reader(mem, keys_NC, weight_CQ, bias_C, 4, EPSILON)(p_BP, h_BH)
    assert torch.autograd.grad(m_BH.sum(), (keys_NC, mem.h), allow_unused=True)[1] is None


def test_recall_is_the_read_without_gradient() -> None:
    mem, (weight_CQ, bias_C), (p_BP, h_BH) = build(9, 6), weights(), questions(6)
    mem_reader = reader(mem, weight_CQ, bias_C, 4)
    found = mem_reader.recall(p_BP, h_BH)
    assert torch.equal(found.m_BH, mem_reader(p_BP, h_BH)) and not any(x.requires_grad for x in found)
    torch.testing.assert_close(found.share_BK.sum(1), torch.ones(6).double())
    assert torch.equal(found.query_BC, mem_reader.query(p_BP, h_BH))


def test_gradient_of_the_keys_is_a_sum_over_queries() -> None:
    """For each query and neighbour, 2 dd (k - q) goes to the neighbour's slot."""
    generator = torch.Generator().manual_seed(0)
    query_QC, keys_NC = (torch.randn(n, C, generator=generator).double() for n in (20, 7))
    index_QK = torch.stack([torch.randperm(7, generator=generator)[:3] for _ in range(20)])
    ddistance_QK = torch.randn(20, 3, generator=generator).double()
    each_QKC = 2 * ddistance_QK[..., None] * (keys_NC[index_QK] - query_QC[:, None])
    expected_NC = torch.zeros_like(keys_NC).index_add(0, index_QK.flatten(), each_QKC.flatten(0, 1))
    made_NC = keys_backward(query_QC, index_QK, ddistance_QK, keys_NC)
    torch.testing.assert_close(made_NC, expected_NC, rtol=1e-12, atol=1e-12)
    made_NC = keys_backward(query_QC.float(), index_QK, ddistance_QK.float(), keys_NC.float())
    torch.testing.assert_close(made_NC, expected_NC.float(), rtol=1e-4, atol=1e-5)


def test_a_read_has_the_same_bits_each_time(device: str) -> None:
    mem, given_ = build(300, 250, torch.float32, device), [*weights(torch.float32, device)]
    given_ += questions(64, torch.float32, device)
    results = []
    for _ in range(2):
        m_BH = reader(mem, given_[0], given_[1], 16)(*given_[2:])
        results.append([m_BH, *torch.autograd.grad(m_BH.square().sum(), given_)])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


@pytest.mark.gpu
def test_cpu_and_gpu_agree() -> None:
    results = []
    for device in ("cpu", "cuda"):
        mem, given_ = build(300, 250, torch.float32, device), [*weights(torch.float32, device)]
        given_ += questions(16, torch.float32, device)
        mem_reader = reader(mem, given_[0], given_[1], 4)
        m_BH = mem_reader(*given_[2:])
        gradients = torch.autograd.grad(m_BH.square().sum(), given_)
        results.append([mem_reader.recall(*given_[2:]).index_BK.sort(1).values, m_BH, *gradients])
    for expected, made in zip(*results, strict=True):
        torch.testing.assert_close(made.cpu(), expected, rtol=1e-3, atol=1e-3)


writes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=12)


@given(st.integers(5, 9), writes, st.booleans())
@example(5, [(5, 5), (5, 3), (5, 4), (1, 1)], True)
@example(5, [(5, 5), (5, 3), (5, 4), (1, 1)], False)
def test_writing_equals_a_list(capacity: int, todo: list[tuple[int, int]], familiar_first: bool) -> None:
    """Of `size` rows the first `valid` are stored, whether or not there is room."""
    mem, model = EpisodicMemory(capacity, P, H, C), NaiveMEM(capacity)
    for number, (size, valid) in enumerate(todo):
        new = random_states(size, number)
        mem.write(new, torch.arange(size) < valid, familiar_first)
        rows = [{name: x[i] for name, x in new.items()} for i in range(min(size, valid))]
        model.write([Stored(**row) for row in rows], familiar_first)
        same_as_list(mem, model.slots, model.next, ("p", "h", "key", "tag", "score", "stored_at"))


def test_no_valid_row_changes_nothing() -> None:
    mem = build(5, 4)
    before = {name: x.clone() for name, x in mem.state_dict().items()}
    for familiar_first in (False, True):
        mem.float().write(random_states(3, 1), torch.zeros(3, dtype=torch.bool), familiar_first)
        for name, x in mem.state_dict().items():
            assert torch.equal(x.to(before[name].dtype), before[name]), name


def test_familiar_first_keeps_the_rarest() -> None:
    """Stored one by one, the rarest stay; the oldest would go first otherwise."""
    kept = {}
    for familiar_first in (True, False):
        mem = EpisodicMemory(4, P, H, C)
        for number, score in enumerate([0.9, 0.1, 0.5, 0.7, 0.6, 0.8]):
            new = random_states(1, number) | {"score": torch.tensor([score])}
            mem.write(new, torch.ones(1, dtype=torch.bool), familiar_first)
        kept[familiar_first] = sorted(round(x, 1) for x in mem.score.tolist())
    assert kept == {True: [0.6, 0.7, 0.8, 0.9], False: [0.5, 0.6, 0.7, 0.8]}
