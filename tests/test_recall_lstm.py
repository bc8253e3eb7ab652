"""The LSTM with MEM's read inside: acting, its tape, autograd and the textbook agree in states and all gradients."""

from typing import Any

import pytest
import torch
from naive_memory import naive_neighbours, naive_read
from torch import Tensor

from longtail.agents.lstm import LSTMTape, MemoryLSTM, Read
from longtail.memory.episodic import EpisodicMemory, Reader

T, B, P, H, C, N, FILLED, K = 9, 4, 5, 6, 3, 12, 10, 4
EPSILON = 0.1
RESETS = [(0, 0), (4, 1), (5, 1), (8, 2), (0, 3), (3, 3)]  # (time, world): the first, two in a row, the last step


class Setting:
    """An LSTM, MEM with its W and b, and a rollout."""

    def __init__(self, dtype: torch.dtype = torch.float64, device: str = "cpu", filled: int = FILLED) -> None:
        torch.manual_seed(0)
        self.lstm = MemoryLSTM(P, H, H).to(device, dtype)
        self.mem = EpisodicMemory(N, P, H, C).to(device, dtype)
        generator = torch.Generator().manual_seed(1)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        self.weight_CQ, self.bias_C = draw(C, P + H).requires_grad_(), draw(C).requires_grad_()
        self.p_TBP, self.h_BH, self.c_BH = draw(T, B, P).requires_grad_(), draw(B, H), draw(B, H)
        self.along_TBH = draw(T, B, H)
        self.store(draw(N, P), draw(N, H), filled)
        self.first_TB1 = torch.zeros(T, B, 1, dtype=torch.bool, device=device)
        for t, b in RESETS:
            self.first_TB1[t, b] = True

    def store(self, p_SP: Tensor, h_SH: Tensor, valid: int) -> None:
        new = {"p": p_SP, "h": h_SH}
        self.mem.write(new, torch.arange(len(p_SP), device=p_SP.device) < valid)

    def reader(self) -> Reader:
        keys_NC = torch.cat([self.mem.p, self.mem.h], 1) @ self.weight_CQ.t() + self.bias_C
        return Reader(self.mem, keys_NC, self.weight_CQ, self.bias_C, K, EPSILON)

    @property
    def given(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.p_TBP, self.first_TB1, self.h_BH, self.c_BH

    def gradients(self, h_TBH: Tensor) -> dict[str, Tensor]:
        """Of a projection of h, by everything that learns."""
        wanted = {"p": self.p_TBP, "W": self.weight_CQ, "b": self.bias_C} | dict(self.lstm.named_parameters())
        made = torch.autograd.grad((h_TBH * self.along_TBH).sum(), list(wanted.values()), allow_unused=True)
        pairs = zip(wanted.items(), made, strict=True)
        return {name: torch.zeros_like(x) if gradient is None else gradient for (name, x), gradient in pairs}


def act(s: Setting, read: Read | None = None) -> tuple[Tensor, Tensor, LSTMTape]:
    """h and c of every step as a worker takes them, and the tape of it."""
    h_BH, c_BH, states = s.h_BH, s.c_BH, []
    with torch.no_grad():
        tape, weights, read = s.lstm.tape(T, B), s.lstm.prepare(B), s.reader() if read is None else read
        for p_BP, first_B1 in zip(s.p_TBP, s.first_TB1, strict=True):
            h_BH, c_BH = s.lstm.step(p_BP, first_B1, h_BH, c_BH, weights, read, tape)
            states.append((h_BH, c_BH))
    return torch.stack([h for h, _ in states]), torch.stack([c for _, c in states]), tape


def by_tape(s: Setting) -> tuple[Tensor, Tensor]:
    return s.lstm.unroll(*s.given, read=s.reader(), tape=act(s)[2])


def without_tape(s: Setting) -> tuple[Tensor, Tensor]:
    return s.lstm.unroll(*s.given, read=s.reader())


def by_autograd(s: Setting) -> tuple[Tensor, Tensor]:
    reader = s.reader()
    return s.lstm.unroll(*s.given, read=lambda p_BP, h_BH, _: reader(p_BP, h_BH))


def by_steps(s: Setting) -> tuple[Tensor, Tensor]:
    """Single steps whose gradient is autograd's, the read's excepted."""
    h_BH, c_BH, states, reader = s.h_BH, s.c_BH, [], s.reader()
    for p_BP, first_B1 in zip(s.p_TBP, s.first_TB1, strict=True):
        h_BH, c_BH = s.lstm.step(p_BP, first_B1, h_BH, c_BH, read=reader)
        states.append((h_BH, c_BH))
    return torch.stack([h for h, _ in states]), torch.stack([c for _, c in states])


def by_formula(s: Setting) -> tuple[Tensor, Tensor]:
    """The textbook's LSTM over [p, m] with Eqs. 6 and 7, all of it left to autograd."""
    h_BH, c_BH, states = s.h_BH, s.c_BH, []
    keys_NC = torch.cat([s.mem.p, s.mem.h], 1) @ s.weight_CQ.t() + s.bias_C
    for p_BP, first_B1 in zip(s.p_TBP, s.first_TB1, strict=True):
        h_BH, c_BH = torch.where(first_B1, 0, h_BH), torch.where(first_B1, 0, c_BH)
        query_BC = torch.cat([p_BP, h_BH], 1) @ s.weight_CQ.t() + s.bias_C
        m_BH = naive_read(query_BC, keys_NC, s.mem.h, int(s.mem.filled), K, EPSILON)
        gates_BG = p_BP @ s.lstm.input.weight.t() + s.lstm.input.bias + h_BH @ s.lstm.hidden + m_BH @ s.lstm.memory
        i, f, g, o = gates_BG.chunk(4, 1)
        c_BH = torch.sigmoid(f) * c_BH + torch.sigmoid(i) * torch.tanh(g)
        h_BH = torch.sigmoid(o) * torch.tanh(c_BH)
        states.append((h_BH, c_BH))
    return torch.stack([h for h, _ in states]), torch.stack([c for _, c in states])


WAYS = pytest.mark.parametrize("way", [by_tape, without_tape, by_autograd, by_steps])
PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-4)])


@WAYS
@PRECISIONS
@pytest.mark.parametrize("filled", [FILLED, 2])
def test_states_and_gradients_equal_the_formula(way: Any, dtype: torch.dtype, tolerance: float, filled: int) -> None:
    s = Setting(dtype, filled=filled)
    (h_TBH, c_TBH), (expected_h, expected_c) = way(s), by_formula(s)
    torch.testing.assert_close(h_TBH, expected_h, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(c_TBH, expected_c, rtol=tolerance, atol=tolerance)
    made, expected = s.gradients(h_TBH), s.gradients(expected_h)
    for name in expected:
        torch.testing.assert_close(made[name], expected[name], rtol=tolerance, atol=tolerance, msg=name)
        if name != "b":  # it moves queries and keys together
            assert expected[name].abs().max() > 0.01, name


def test_acting_equals_the_formula() -> None:
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        s = Setting(dtype)
        for made, expected in zip(act(s), by_formula(s), strict=False):
            torch.testing.assert_close(made, expected, rtol=tolerance, atol=tolerance)


def test_all_ways_act_alike() -> None:
    """The tape is what acting did, to the bit; computing it again is, too."""
    s = Setting(torch.float32)
    h_TBH, c_TBH, _ = act(s)
    for way in (by_tape, without_tape):
        made_h, made_c = way(s)
        assert torch.equal(made_h, h_TBH) and torch.equal(made_c, c_TBH)
        with torch.no_grad():
            assert torch.equal(way(s)[0], h_TBH)


def test_the_unroll_equals_differences() -> None:
    """Neighbours stay the same within the small differences."""
    s = Setting()

    def unrolled(p_TBP: Tensor, weight_CQ: Tensor, *parameters: Tensor) -> Tensor:
        s.p_TBP, s.weight_CQ = p_TBP, weight_CQ
        return without_tape(s)[0]

    assert torch.autograd.gradcheck(unrolled, (s.p_TBP, s.weight_CQ, *s.lstm.parameters()), fast_mode=True)


def test_the_tape_holds_the_neighbours_found_while_acting() -> None:
    """MEM may change between acting and learning: the tape still has what was done, a new unroll has not."""
    s = Setting()
    h_TBH, _, tape = act(s)
    expected, keys_NC = [], torch.cat([s.mem.p, s.mem.h], 1) @ s.weight_CQ.t() + s.bias_C
    before_TBH = torch.cat([s.h_BH[None], h_TBH[:-1]]).masked_fill(s.first_TB1, 0)
    for p_BP, h_BH in zip(s.p_TBP, before_TBH, strict=True):
        query_BC = torch.cat([p_BP, h_BH], 1) @ s.weight_CQ.t() + s.bias_C
        expected.append([sorted(naive_neighbours(query_C, keys_NC, FILLED, K)) for query_C in query_BC])
    assert [found.index_BK.sort(1).values.tolist() for found in tape.found()] == expected

    s.store(torch.randn(N, P).double(), torch.randn(N, H).double(), N)
    assert torch.equal(s.lstm.unroll(*s.given, read=s.reader(), tape=tape)[0], h_TBH)
    assert (without_tape(s)[0] - h_TBH).abs().max() > 0.01


def test_an_empty_memory_is_no_memory() -> None:
    """Nothing is recalled, and nothing is learnt about recalling."""
    s = Setting(filled=0)
    plain = MemoryLSTM(P, H).double()
    plain.load_state_dict({name: x for name, x in s.lstm.state_dict().items() if name != "memory"})
    expected = plain.unroll(*s.given)[0]
    expected_p = torch.autograd.grad((expected * s.along_TBH).sum(), s.p_TBP)[0]
    for way in (by_tape, without_tape, by_autograd):
        h_TBH, _ = way(s)
        torch.testing.assert_close(h_TBH, expected, rtol=0, atol=1e-14)
        made = s.gradients(h_TBH)
        assert not any(made[name].any() for name in ("memory", "W", "b"))
        torch.testing.assert_close(made["p"], expected_p, rtol=0, atol=1e-13)


@WAYS
def test_a_reset_cuts_state_and_gradient(way: Any) -> None:
    """What is read after it is read with h = 0, so nothing from before comes through the memory either."""
    s = Setting()
    s.first_TB1.zero_()
    s.first_TB1[4, :2] = True  # worlds 0 and 1 start anew at step 4
    h_TBH, _ = way(s)
    size_TB = torch.autograd.grad(h_TBH[4:].sum(), s.p_TBP)[0].abs().sum(-1)
    assert (size_TB[:4, :2] == 0).all()
    assert (size_TB[:4, 2:] > 0).all() and (size_TB[4:] > 0).all()
    s.h_BH, s.c_BH = s.h_BH + 1, s.c_BH - 1
    changed_TBH, _ = way(s)
    assert torch.equal(changed_TBH[4:, :2], h_TBH[4:, :2]) and (changed_TBH[4:, 2:] != h_TBH[4:, 2:]).any()


def test_the_first_state_is_a_constant_and_c_only_a_value() -> None:
    s = Setting()
    s.h_BH.requires_grad_()
    for way in (by_tape, without_tape):
        h_TBH, c_TBH = way(s)
        assert not c_TBH.requires_grad
        assert torch.autograd.grad(h_TBH.sum(), s.h_BH, allow_unused=True)[0] is None


def relative(made: Tensor, expected: Tensor) -> float:
    made, expected = made.detach().double(), expected.detach().double()
    return float((made - expected).norm() / expected.norm())


def test_bf16_is_close() -> None:
    """Products alone are rounded: the state, the read and the gradients stay in fp32."""
    exact, rounded = Setting(torch.float32), Setting(torch.float32)
    rounded.lstm.dtype = torch.bfloat16
    expected_h = without_tape(exact)[0]
    expected = exact.gradients(expected_h)
    for way in (by_tape, without_tape, by_autograd):
        h_TBH, c_TBH = way(rounded)
        assert h_TBH.dtype == c_TBH.dtype == torch.float32
        assert 0 < relative(h_TBH, expected_h) < 0.02
        for name, made in rounded.gradients(h_TBH).items():
            assert made.dtype == torch.float32
            if name != "b":
                assert relative(made, expected[name]) < 0.05, name
    torch.testing.assert_close(by_tape(rounded)[0], act(rounded)[0], rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("way", [by_tape, without_tape, by_autograd])
def test_cpu_and_gpu_agree(way: Any) -> None:
    results = []
    for device in ("cpu", "cuda"):
        s = Setting(torch.float32, device)
        h_TBH, c_TBH = way(s)
        results.append({"h": h_TBH, "c": c_TBH} | s.gradients(h_TBH))
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name].cpu(), expected, rtol=1e-3, atol=1e-4, msg=name)
