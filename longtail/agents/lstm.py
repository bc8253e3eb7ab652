"""The LSTM: one step for acting, a whole unroll for learning, with resets at episode starts.

Gates are in the order input, forget, candidate, output. Without a memory read the unroll's backward pass is written
out: autograd would sum the recurrent weight's gradient T times, here it is one product at the end.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from longtail.agents.precision import products

# A memory read: (p [B, P], h [B, H]) -> m [B, M]; h is the state before the step, after the reset (Eq. 6).
Read = Callable[[Tensor, Tensor], Tensor]


def lstm_cell(x_gates_BG: Tensor, h_gates_BG: Tensor, c_BH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """New h, new c, and the activated gates [B, 4H] that the backward pass needs."""
    if x_gates_BG.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell(x_gates_BG, h_gates_BG, c_BH)  # one kernel
    gates_BG, H = x_gates_BG + h_gates_BG, c_BH.shape[-1]
    i_f, g, o = gates_BG.split((2 * H, H, H), -1)
    if torch.is_grad_enabled():  # autograd does not let parts of a tensor be overwritten
        gates_BG = torch.cat([i_f.sigmoid(), g.tanh(), o.sigmoid()], -1)
    else:
        i_f.sigmoid_()
        g.tanh_()
        o.sigmoid_()
    i, f, g, o = gates_BG.chunk(4, -1)
    c = torch.addcmul(f * c_BH, i, g)
    return o * c.tanh(), c, gates_BG


class _Unroll(torch.autograd.Function):
    """T steps from precomputed input gates; h0 and c0 are constants."""

    @staticmethod
    def forward(
        ctx: Any, x_gates_TBG: Tensor, weight_HG: Tensor, keep_TB1: Tensor, h_BH: Tensor, c_BH: Tensor
    ) -> tuple[Tensor, Tensor]:
        h_in, c_in, c_out, gates, h_out = [], [], [], [], []
        for x_gates_BG, keep_B1 in zip(x_gates_TBG.unbind(), keep_TB1.unbind(), strict=True):
            h_in.append(h_BH * keep_B1)
            c_in.append(c_BH * keep_B1)
            h_BH, c_BH, gates_BG = lstm_cell(x_gates_BG, h_in[-1] @ weight_HG, c_in[-1])
            c_out.append(c_BH)
            gates.append(gates_BG)
            h_out.append(h_BH)
        c_TBH = torch.stack(c_out)
        ctx.save_for_backward(weight_HG, keep_TB1, torch.stack(h_in), torch.stack(c_in), c_TBH, torch.stack(gates))
        ctx.mark_non_differentiable(c_TBH)
        return torch.stack(h_out), c_TBH

    @staticmethod
    def backward(ctx: Any, dh_TBH: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight_HG, keep_TB1, h_in_TBH, c_in_TBH, c_TBH, gates_TBG = ctx.saved_tensors
        backward = _backward_cuda if dh_TBH.is_cuda else _backward_cpu
        dgates_TBG = backward(dh_TBH, weight_HG.t(), keep_TB1, c_in_TBH, c_TBH, gates_TBG)
        dweight_HG = h_in_TBH.flatten(0, 1).t() @ dgates_TBG.flatten(0, 1)
        return dgates_TBG, dweight_HG, None, None, None


def _backward_cuda(
    dh_TBH: Tensor, weight_GH: Tensor, keep_TB1: Tensor, c_in_TBH: Tensor, c_TBH: Tensor, gates_TBG: Tensor
) -> Tensor:
    """Gradient of the gates before their activation, step by step with the fused cell."""
    cell_backward = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
    dgates: list[Tensor] = [gates_TBG[0]] * len(dh_TBH)
    dh_BH, dc_BH = torch.zeros_like(c_TBH[0]), torch.zeros_like(c_TBH[0])
    for t in reversed(range(len(dgates))):
        dgates[t], dc_BH, _ = cell_backward(dh_TBH[t] + dh_BH, dc_BH, c_in_TBH[t], c_TBH[t], gates_TBG[t], False)
        dh_BH = (dgates[t] @ weight_GH) * keep_TB1[t]
        dc_BH = dc_BH * keep_TB1[t]
    return torch.stack(dgates)


def _backward_cpu(
    dh_TBH: Tensor, weight_GH: Tensor, keep_TB1: Tensor, c_in_TBH: Tensor, c_TBH: Tensor, gates_TBG: Tensor
) -> Tensor:
    """The same, with everything that is not recurrent computed for all steps at once: few small operations a step."""
    T, B, H = c_TBH.shape
    i, f, g, o = gates_TBG.view(T, B, 4, H).unbind(2)
    tanh_c_TBH = c_TBH.tanh()
    c_of_h_TBH = o * (1 - tanh_c_TBH * tanh_c_TBH)  # dc / dh through the output
    o_of_h_TBH = tanh_c_TBH * o * (1 - o)
    ifg_of_c_TB3H = torch.stack([g * i * (1 - i), c_in_TBH * f * (1 - f), i * (1 - g * g)], 2)
    before_of_c_TBH = f * keep_TB1
    dgates_TBG = torch.empty_like(gates_TBG)
    dgates_TB4H = dgates_TBG.view(T, B, 4, H)
    steps = zip(
        dh_TBH.unbind(), c_of_h_TBH.unbind(), o_of_h_TBH.unbind(), ifg_of_c_TB3H.unbind(), before_of_c_TBH.unbind(),
        keep_TB1.unbind(), dgates_TBG.unbind(), dgates_TB4H[:, :, :3].unbind(), dgates_TB4H[:, :, 3].unbind(),
        strict=True,
    )  # fmt: skip
    dh_BH, dc_BH = torch.zeros_like(c_TBH[0]), torch.zeros_like(c_TBH[0])
    for dh_out, c_of_h, o_of_h, ifg_of_c, before_of_c, keep, dgates, difg, do in reversed(list(steps)):
        dh_BH += dh_out
        dc_BH.addcmul_(dh_BH, c_of_h)
        torch.mul(dh_BH, o_of_h, out=do)
        torch.mul(dc_BH[:, None], ifg_of_c, out=difg)
        dc_BH *= before_of_c
        torch.mm(dgates, weight_GH, out=dh_BH)
        dh_BH *= keep
    return dgates_TBG


class MemoryLSTM(nn.Module):
    """LSTM over [p, m]: p is the state's description, m what a memory read returns for it (Eq. 7)."""

    def __init__(self, input_dim: int, hidden_dim: int, memory_dim: int = 0) -> None:
        super().__init__()
        self.input = nn.Linear(input_dim, 4 * hidden_dim)
        self.hidden = nn.Parameter(torch.empty(hidden_dim, 4 * hidden_dim))
        nn.init.orthogonal_(self.hidden)
        with torch.no_grad():  # remember by default, as is usual since Gers et al. (2000)
            self.input.bias[hidden_dim : 2 * hidden_dim] += 1
        self.memory = nn.Parameter(torch.empty(memory_dim, 4 * hidden_dim)) if memory_dim else None
        if self.memory is not None:
            nn.init.orthogonal_(self.memory)

    def step(
        self, p_BP: Tensor, keep_B1: Tensor, h_BH: Tensor, c_BH: Tensor, read: Read | None = None
    ) -> tuple[Tensor, Tensor]:
        """One step; `keep` is 0 where an episode starts."""
        h_BH, c_BH = h_BH * keep_B1, c_BH * keep_B1
        x_gates_BG = self.input(p_BP)
        if read is not None:
            with products(torch.float32):  # acting and learning must find the same neighbours
                m_BM = read(p_BP, h_BH)
            assert self.memory is not None
            x_gates_BG = x_gates_BG + m_BM @ self.memory
        h_BH, c_BH, _ = lstm_cell(x_gates_BG, h_BH @ self.hidden, c_BH)
        return h_BH, c_BH

    def unroll(
        self, p_TBP: Tensor, keep_TB1: Tensor, h_BH: Tensor, c_BH: Tensor, read: Read | None = None
    ) -> tuple[Tensor, Tensor]:
        """h and c after each of T steps [T, B, H], from a constant first state; no gradient flows into c."""
        if read is None:
            return _Unroll.apply(self.input(p_TBP), self.hidden, keep_TB1, h_BH, c_BH)
        h_out, c_out = [], []
        for p_BP, keep_B1 in zip(p_TBP, keep_TB1, strict=True):
            h_BH, c_BH = self.step(p_BP, keep_B1, h_BH, c_BH, read)
            h_out.append(h_BH)
            c_out.append(c_BH.detach())
        return torch.stack(h_out), torch.stack(c_out)
