"""The LSTM: an unroll equals single steps and torch's own cell, and its written-out backward equals autograd."""

import pytest
import torch
from torch import Tensor, nn

from longtail.agents.lstm import MemoryLSTM, Read

T, B, P, H, M = 9, 4, 5, 6, 3
RESETS = [(0, 0), (4, 1), (5, 1), (8, 2), (0, 3), (3, 3)]  # (time, world): the first, two in a row, the last step


def build(memory_dim: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu") -> MemoryLSTM:
    torch.manual_seed(0)
    return MemoryLSTM(P, H, memory_dim).to(device, dtype)


def inputs(dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """p, first, h, c."""
    generator = torch.Generator().manual_seed(1)
    p, h, c = (torch.randn(*shape, generator=generator).to(device, dtype) for shape in ((T, B, P), (B, H), (B, H)))
    first_TB1 = torch.zeros(T, B, 1, dtype=torch.bool, device=device)
    for t, b in RESETS:
        first_TB1[t, b] = True
    return p, first_TB1, h, c


def memory_read(dtype: torch.dtype = torch.float64, device: str = "cpu") -> Read:
    """Something that depends on p and on h, as the memory does."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(P + H, M, generator=generator).to(device, dtype)
    return lambda p_BP, h_BH, _: torch.tanh(torch.cat([p_BP, h_BH], -1) @ weight)


def by_steps(lstm: MemoryLSTM, inputs: tuple[Tensor, ...], read: Read | None = None) -> tuple[Tensor, Tensor]:
    p_TBP, first_TB1, h_BH, c_BH = inputs
    states = []
    for p_BP, first_B1 in zip(p_TBP, first_TB1, strict=True):
        h_BH, c_BH = lstm.step(p_BP, first_B1, h_BH, c_BH, read=read)
        states.append((h_BH, c_BH))
    return torch.stack([h for h, _ in states]), torch.stack([c for _, c in states])


def by_formula(lstm: MemoryLSTM, inputs: tuple[Tensor, ...], read: Read | None = None) -> tuple[Tensor, Tensor]:
    """The textbook, one world at a time; autograd does the rest."""
    p_TBP, first_TB1, first_h_BH, first_c_BH = inputs
    h_TBH, c_TBH = [], []
    for b in range(B):
        h, c = first_h_BH[b : b + 1], first_c_BH[b : b + 1]
        for t in range(T):
            if first_TB1[t, b]:
                h, c = torch.zeros_like(h), torch.zeros_like(c)
            p = p_TBP[t, b : b + 1]
            gates = p @ lstm.input.weight.t() + lstm.input.bias + h @ lstm.hidden
            if read is not None:
                first_11 = torch.tensor([[bool(first_TB1[t, b])]])
                gates = gates + read(p, h, first_11) @ lstm.memory
            i, f, g, o = gates.split(H, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            h_TBH.append(h[0])
            c_TBH.append(c[0])
    return tuple(torch.stack(x).view(B, T, H).transpose(0, 1) for x in (h_TBH, c_TBH))  # type: ignore[return-value]


def gradients(lstm: MemoryLSTM, p_TBP: Tensor, h_TBH: Tensor) -> dict[str, Tensor]:
    """Of a random projection of h, by p and by every parameter."""
    weight_TBH = torch.randn(h_TBH.shape, generator=torch.Generator().manual_seed(2)).to(h_TBH)
    wanted = {"p": p_TBP} | dict(lstm.named_parameters())
    made = torch.autograd.grad((h_TBH * weight_TBH).sum(), list(wanted.values()))
    return dict(zip(wanted, made, strict=True))


READS = pytest.mark.parametrize("with_read", [False, True], ids=["plain", "memory"])


@READS
def test_unroll_equals_steps_and_the_formula(with_read: bool) -> None:
    lstm, given, read = build(M * with_read), inputs(), memory_read() if with_read else None
    unrolled = lstm.unroll(*given, read=read)
    for made, stepped, expected in zip(
        unrolled, by_steps(lstm, given, read), by_formula(lstm, given, read), strict=True
    ):
        assert made.shape == (T, B, H)
        torch.testing.assert_close(made, stepped, rtol=0, atol=1e-14)
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-14)


def test_a_step_equals_the_cell_of_torch() -> None:
    lstm, (p_TBP, _, h_BH, c_BH) = build(), inputs()
    cell = nn.LSTMCell(P, H).double()
    with torch.no_grad():
        cell.weight_ih.copy_(lstm.input.weight)
        cell.weight_hh.copy_(lstm.hidden.t())
        cell.bias_ih.copy_(lstm.input.bias)
        cell.bias_hh.zero_()
    first_B1 = torch.tensor([False, True, False, True])[:, None]
    made = lstm.step(p_TBP[0], first_B1, h_BH, c_BH)
    for ours, expected in zip(made, cell(p_TBP[0], (h_BH * ~first_B1, c_BH * ~first_B1)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-14)


@READS
def test_backward_equals_autograd(with_read: bool) -> None:
    lstm, given, read = build(M * with_read), inputs(), memory_read() if with_read else None
    given[0].requires_grad_()
    made = gradients(lstm, given[0], lstm.unroll(*given, read=read)[0])
    expected = gradients(lstm, given[0], by_formula(lstm, given, read)[0])
    assert made.keys() == {"p", "input.weight", "input.bias", "hidden"} | ({"memory"} if with_read else set())
    for name in expected:
        torch.testing.assert_close(made[name], expected[name], rtol=0, atol=1e-12, msg=name)
        assert expected[name].abs().max() > 0.1, name


@READS
def test_backward_equals_differences(with_read: bool) -> None:
    lstm, (p_TBP, first_TB1, h_BH, c_BH) = build(M * with_read), inputs()
    read = memory_read() if with_read else None

    def unrolled(p_TBP: Tensor, *_: Tensor) -> Tensor:
        return lstm.unroll(p_TBP, first_TB1, h_BH, c_BH, read=read)[0]

    assert torch.autograd.gradcheck(unrolled, (p_TBP.requires_grad_(), *lstm.parameters()), fast_mode=True)


@READS
def test_a_reset_cuts_state_and_gradient(with_read: bool) -> None:
    lstm, (p_TBP, _, h_BH, c_BH) = build(M * with_read), inputs()
    read = memory_read() if with_read else None
    first_TB1 = torch.zeros(T, B, 1, dtype=torch.bool)
    first_TB1[4, :2] = True  # worlds 0 and 1 start anew at step 4
    p_TBP.requires_grad_()
    h_TBH, c_TBH = lstm.unroll(p_TBP, first_TB1, h_BH, c_BH, read=read)
    fresh_h, fresh_c = lstm.unroll(p_TBP[4:], torch.zeros(T - 4, B, 1, dtype=torch.bool), h_BH * 0, c_BH * 0, read=read)
    for made, fresh in ((h_TBH[4:], fresh_h), (c_TBH[4:], fresh_c)):
        torch.testing.assert_close(made[:, :2], fresh[:, :2], rtol=0, atol=1e-14)
        assert ((made[:, 2:] - fresh[:, 2:]).abs() > 1e-4).any()
    size_TB = torch.autograd.grad(h_TBH[4:].sum(), p_TBP)[0].abs().sum(-1)
    assert (size_TB[:4, :2] == 0).all()
    assert (size_TB[:4, 2:] > 0).all() and (size_TB[4:] > 0).all()


@READS
def test_the_first_state_is_a_constant_and_c_only_a_value(with_read: bool) -> None:
    """Both come out of acting: learning sends no gradient into them, nor into c."""
    lstm, (p_TBP, first_TB1, h_BH, c_BH) = build(M * with_read), inputs()
    before = h_BH.clone(), c_BH.clone()
    h_TBH, c_TBH = lstm.unroll(p_TBP, first_TB1, h_BH, c_BH, read=memory_read() if with_read else None)
    assert h_TBH.requires_grad and not c_TBH.requires_grad
    assert torch.equal(h_BH, before[0]) and torch.equal(c_BH, before[1])


@READS
def test_unroll_without_gradients_and_twice_gives_the_same_bits(with_read: bool) -> None:
    lstm, given, read = build(M * with_read), inputs(), memory_read() if with_read else None
    with torch.no_grad():
        quick = lstm.unroll(*given, read=read)
    for made, again in zip(quick, lstm.unroll(*given, read=read), strict=True):
        assert torch.equal(made, again)


def test_the_read_sees_the_state_after_the_reset() -> None:
    """The key of a state is made from the h that its own episode left (Eq. 6): zero at the start."""
    lstm, (p_TBP, _, h_BH, c_BH) = build(M), inputs()
    seen = []

    def read(p_BP: Tensor, h_BH: Tensor, first_B1: Tensor) -> Tensor:
        seen.append((p_BP.clone(), h_BH.clone()))
        return torch.zeros(B, M).double()

    lstm.step(p_TBP[0], torch.tensor([[False], [True], [False], [True]]), h_BH, c_BH, read=read)
    (p_BP, seen_h), h_BH[1], h_BH[3] = seen[0], 0, 0
    assert torch.equal(p_BP, p_TBP[0]) and torch.equal(seen_h, h_BH)


def test_new_lstms_remember() -> None:
    """The forget gate starts open: its bias is one higher than that of the other gates."""
    bias_4H = build().input.bias.detach().view(4, H)
    assert bias_4H[1].mean() > 0.7 and bias_4H[[0, 2, 3]].abs().max() < P**-0.5 + 1e-6


@pytest.mark.gpu
@READS
def test_cpu_and_gpu_agree(with_read: bool) -> None:
    results = []
    for device in ("cpu", "cuda"):
        lstm, given = build(M * with_read, torch.float32, device), inputs(torch.float32, device)
        given[0].requires_grad_()
        h_TBH, c_TBH = lstm.unroll(*given, read=memory_read(torch.float32, device) if with_read else None)
        results.append({"h": h_TBH, "c": c_TBH} | gradients(lstm, given[0], h_TBH))
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name].cpu(), expected, rtol=1e-4, atol=1e-5, msg=name)
