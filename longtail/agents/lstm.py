"""The LSTM: one step for acting, a whole unroll for learning, with resets at episode starts.

Gates are in the order input, forget, candidate, output. Without a memory read the unroll's backward pass is written
out: autograd would sum the recurrent weight's gradient T times, here it is one product at the end.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# A memory read: (p [B, P], h [B, H]) -> m [B, M]; h is the state before the step, after the reset (Eq. 6).
Read = Callable[[Tensor, Tensor], Tensor]


def lstm_cell(x_gates_BG: Tensor, h_gates_BG: Tensor, c_BH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """New h, new c, and the activated gates [B, 4H] that the backward pass needs."""
    if x_gates_BG.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell(x_gates_BG, h_gates_BG, c_BH)  # one kernel
    gates_BG = x_gates_BG + h_gates_BG
    i, f, g, o = gates_BG.chunk(4, -1)
    size = c_BH.shape[-1]
    gates_BG[:, : 2 * size].sigmoid_()
    g.tanh_()
    o.sigmoid_()
    c = torch.addcmul(f * c_BH, i, g)
    return o * c.tanh(), c, gates_BG


def lstm_cell_backward(
    dh_BH: Tensor, dc_BH: Tensor, c_BH: Tensor, new_c_BH: Tensor, gates_BG: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates (before activation) and of c, from those of the cell's two outputs."""
    if dh_BH.is_cuda:
        backward = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
        dgates_BG, dc_before, _ = backward(dh_BH, dc_BH, c_BH, new_c_BH, gates_BG, False)
        return dgates_BG, dc_before
    i, f, g, o = gates_BG.chunk(4, -1)
    tanh_c = new_c_BH.tanh()
    dc = torch.addcmul(dc_BH, dh_BH * o, 1 - tanh_c * tanh_c)
    dgates_BG = torch.empty_like(gates_BG)
    di, df, dg, do = dgates_BG.chunk(4, -1)
    torch.mul(dc * g, i * (1 - i), out=di)
    torch.mul(dc * c_BH, f * (1 - f), out=df)
    torch.mul(dc * i, 1 - g * g, out=dg)
    torch.mul(dh_BH * tanh_c, o * (1 - o), out=do)
    return dgates_BG, dc * f


class _Unroll(torch.autograd.Function):
    """T steps from precomputed input gates; h0 and c0 are constants."""

    @staticmethod
    def forward(
        ctx: Any, x_gates_TBG: Tensor, weight_HG: Tensor, keep_TB1: Tensor, h_BH: Tensor, c_BH: Tensor
    ) -> tuple[Tensor, Tensor]:
        h_in, c_in, c_out, gates, h_out = [], [], [], [], []
        for x_gates_BG, keep_B1 in zip(x_gates_TBG, keep_TB1, strict=True):
            h_in.append(h_BH * keep_B1)
            c_in.append(c_BH * keep_B1)
            h_BH, c_BH, gates_BG = lstm_cell(x_gates_BG, h_in[-1] @ weight_HG, c_in[-1])
            c_out.append(c_BH)
            gates.append(gates_BG)
            h_out.append(h_BH)
        ctx.steps = h_in, c_in, c_out, gates
        ctx.save_for_backward(weight_HG, keep_TB1)
        c_TBH = torch.stack(c_out)
        ctx.mark_non_differentiable(c_TBH)
        return torch.stack(h_out), c_TBH

    @staticmethod
    def backward(ctx: Any, dh_TBH: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight_HG, keep_TB1 = ctx.saved_tensors
        h_in, c_in, c_out, gates = ctx.steps
        weight_GH = weight_HG.t()
        dgates: list[Tensor] = [weight_HG] * len(h_in)
        dh_BH, dc_BH = torch.zeros_like(c_in[0]), torch.zeros_like(c_in[0])
        for t in reversed(range(len(h_in))):
            dgates[t], dc_BH = lstm_cell_backward(dh_TBH[t] + dh_BH, dc_BH, c_in[t], c_out[t], gates[t])
            dh_BH = (dgates[t] @ weight_GH) * keep_TB1[t]
            dc_BH = dc_BH * keep_TB1[t]
        dgates_TBG = torch.stack(dgates)
        dweight_HG = torch.cat(h_in).t() @ dgates_TBG.flatten(0, 1)
        return dgates_TBG, dweight_HG, None, None, None


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
            x_gates_BG = x_gates_BG + read(p_BP, h_BH) @ self.memory
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
