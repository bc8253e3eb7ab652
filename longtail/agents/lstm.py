"""The LSTM: one step for acting, a whole unroll for learning, with resets at episode starts.

Gates are in the order input, forget, candidate, output. Without a memory read the unroll's backward pass is written
out: autograd would sum the recurrent weight's gradient T times, here it is one product at the end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.agents.onednn import linear, pack_linear
from longtail.agents.precision import products

# A memory read: (p [B, P], h [B, H]) -> m [B, M]; h is the state before the step, after the reset (Eq. 6).
Read = Callable[[Tensor, Tensor], Tensor]


def lstm_cell(
    x_gates_BG: Tensor, h_gates_BG: Tensor, c_BH: Tensor, gates_out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """New h, new c, and the activated gates [B, 4H] that the backward pass needs, on a CPU in `gates_out` if given."""
    if x_gates_BG.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell(x_gates_BG, h_gates_BG, c_BH)  # one kernel
    gates_BG, H = torch.add(x_gates_BG.to(c_BH.dtype), h_gates_BG, out=gates_out), c_BH.shape[-1]
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


class LSTMWeights(NamedTuple):
    """In the precision of the products, and perhaps packed; their gradients are those of the parameters."""

    input_GP: Tensor
    bias_G: Tensor
    hidden_GH: Tensor
    memory_GM: Tensor | None


class Moment(NamedTuple):
    """One step: the state that it began with (after the reset), its activated gates, and the state that it left."""

    h_in_BH: Tensor
    c_in_BH: Tensor
    gates_BG: Tensor
    h_BH: Tensor
    c_BH: Tensor


def take_step(
    x_gates_BG: Tensor, hidden_GH: Tensor, h_in_BH: Tensor, c_in_BH: Tensor, gates_out: Tensor | None = None
) -> Moment:
    """One step, from a state after its reset and the input's share of the gates."""
    h_gates_BG = linear(h_in_BH.to(hidden_GH.dtype), hidden_GH)
    h_BH, c_BH, gates_BG = lstm_cell(x_gates_BG, h_gates_BG, c_in_BH, gates_out)
    return Moment(h_in_BH, c_in_BH, gates_BG, h_BH, c_BH)


class LSTMTape:
    """What T steps of acting computed. On a CPU their gates, the most of it, are written into one tensor [T, B, 4H]."""

    def __init__(self, gates_TBG: Tensor | None) -> None:
        self.gates_TBG = gates_TBG
        self.moments: list[Moment] = []

    def gates_out(self) -> Tensor | None:
        return None if self.gates_TBG is None else self.gates_TBG[len(self.moments)]

    def stacked(self) -> tuple[Tensor, ...]:
        """h_in, c_in, gates, h and c of all steps."""
        h_in, c_in, gates, h, c = zip(*self.moments, strict=True)
        gates_TBG = torch.stack(gates) if self.gates_TBG is None else self.gates_TBG
        return torch.stack(h_in), torch.stack(c_in), gates_TBG, torch.stack(h), torch.stack(c)


class _Unroll(torch.autograd.Function):
    """T steps from a constant first state, or those that acting took already with the same parameters."""

    @staticmethod
    def forward(
        ctx: Any, p_TBP: Tensor, input_GP: Tensor, bias_G: Tensor, hidden_GH: Tensor, first_TB1: Tensor,
        h_BH: Tensor, c_BH: Tensor, tape: LSTMTape | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if tape is None:
            tape = LSTMTape(None)
            for x_gates_BG, first_B1 in zip(F.linear(p_TBP, input_GP, bias_G), first_TB1, strict=True):
                h_in_BH, c_in_BH = h_BH.masked_fill(first_B1, 0), c_BH.masked_fill(first_B1, 0)
                moment = take_step(x_gates_BG, hidden_GH, h_in_BH, c_in_BH)
                h_BH, c_BH = moment.h_BH, moment.c_BH
                tape.moments.append(moment)
        h_in_TBH, c_in_TBH, gates_TBG, h_TBH, c_TBH = tape.stacked()
        ctx.save_for_backward(p_TBP, input_GP, hidden_GH, first_TB1, h_in_TBH, c_in_TBH, c_TBH, gates_TBG)
        ctx.mark_non_differentiable(c_TBH)
        return h_TBH, c_TBH

    @staticmethod
    def backward(ctx: Any, dh_TBH: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        p_TBP, input_GP, hidden_GH, first_TB1, h_in_TBH, c_in_TBH, c_TBH, gates_TBG = ctx.saved_tensors
        backward, keep_TB1 = _backward_cuda if dh_TBH.is_cuda else _backward_cpu, (~first_TB1).to(c_TBH.dtype)
        dgates_TBG = backward(dh_TBH, hidden_GH, keep_TB1, c_in_TBH, c_TBH, gates_TBG)
        dbias_G = dgates_TBG.sum((0, 1))
        dgates_NG, h_in_NH = (x.flatten(0, 1).to(hidden_GH.dtype) for x in (dgates_TBG, h_in_TBH))
        dinput_GP, dhidden_GH = dgates_NG.t() @ p_TBP.flatten(0, 1), dgates_NG.t() @ h_in_NH
        return (dgates_NG @ input_GP).view_as(p_TBP), dinput_GP, dbias_G, dhidden_GH, None, None, None, None


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
    dtype, weight_HG = weight_GH.dtype, pack_linear(weight_GH.t(), B)
    dh_BH, dc_BH = torch.zeros_like(c_TBH[0]), torch.zeros_like(c_TBH[0])
    for dh_out, c_of_h, o_of_h, ifg_of_c, before_of_c, keep, dgates, difg, do in reversed(list(steps)):
        dh_BH += dh_out
        dc_BH.addcmul_(dh_BH, c_of_h)
        torch.mul(dh_BH, o_of_h, out=do)
        torch.mul(dc_BH[:, None], ifg_of_c, out=difg)
        dc_BH *= before_of_c
        torch.mul(linear(dgates.to(dtype), weight_HG), keep, out=dh_BH)
    return dgates_TBG


class MemoryLSTM(nn.Module):
    """LSTM over [p, m]: p is the state's description, m what a memory read returns for it (Eq. 7)."""

    def __init__(
        self, input_dim: int, hidden_dim: int, memory_dim: int = 0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.input = nn.Linear(input_dim, 4 * hidden_dim)
        self.hidden = nn.Parameter(torch.empty(hidden_dim, 4 * hidden_dim))
        nn.init.orthogonal_(self.hidden)
        with torch.no_grad():  # remember by default, as is usual since Gers et al. (2000)
            self.input.bias[hidden_dim : 2 * hidden_dim] += 1
        self.memory = nn.Parameter(torch.empty(memory_dim, 4 * hidden_dim)) if memory_dim else None
        if self.memory is not None:
            nn.init.orthogonal_(self.memory)

    def prepare(self, batch: int = 1) -> LSTMWeights:
        """The weights as products take them, differentiably; on a GPU `products` does the rounding."""
        dtype = self.hidden.dtype if self.hidden.is_cuda or self.dtype != torch.bfloat16 else self.dtype
        memory_GM = None if self.memory is None else self.memory.to(dtype).t()
        input_GP, hidden_GH = self.input.weight.to(dtype), self.hidden.to(dtype).t()
        if batch > 1:
            input_GP, hidden_GH = pack_linear(input_GP, batch), pack_linear(hidden_GH, batch)
        return LSTMWeights(input_GP, self.input.bias.to(dtype), hidden_GH, memory_GM)

    def tape(self, num_steps: int, batch: int) -> LSTMTape:
        """For as many steps of acting."""
        shape = (num_steps, batch, self.hidden.shape[1])
        return LSTMTape(None if self.hidden.is_cuda else torch.empty(shape, dtype=self.hidden.dtype))

    def step(
        self,
        p_BP: Tensor,
        first_B1: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        weights: LSTMWeights | None = None,
        read: Read | None = None,
        tape: LSTMTape | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One step; `first` is true where an episode starts."""
        w = self.prepare() if weights is None else weights
        h_in_BH, c_in_BH = h_BH.masked_fill(first_B1, 0), c_BH.masked_fill(first_B1, 0)
        x_gates_BG = linear(p_BP.to(w.input_GP.dtype), w.input_GP, w.bias_G)
        if read is not None:
            with products(torch.float32):  # acting and learning must find the same neighbours
                m_BM = read(p_BP, h_in_BH)
            assert w.memory_GM is not None
            x_gates_BG = x_gates_BG + F.linear(m_BM.to(w.memory_GM.dtype), w.memory_GM)
        moment = take_step(x_gates_BG, w.hidden_GH, h_in_BH, c_in_BH, tape.gates_out() if tape else None)
        if tape is not None:
            tape.moments.append(moment)
        return moment.h_BH, moment.c_BH

    def unroll(
        self,
        p_TBP: Tensor,
        first_TB1: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        weights: LSTMWeights | None = None,
        read: Read | None = None,
        tape: LSTMTape | None = None,
    ) -> tuple[Tensor, Tensor]:
        """h and c after each of T steps [T, B, H], from a constant first state; no gradient flows into c.

        A tape of these steps saves computing them again. With a read they are: its gradient is left to autograd.
        """
        w = self.prepare() if weights is None else weights
        if read is None:
            p_TBP = p_TBP.to(w.input_GP.dtype)
            return _Unroll.apply(p_TBP, w.input_GP, w.bias_G, w.hidden_GH, first_TB1, h_BH, c_BH, tape)
        h_out, c_out = [], []
        for p_BP, first_B1 in zip(p_TBP, first_TB1, strict=True):
            h_BH, c_BH = self.step(p_BP, first_B1, h_BH, c_BH, w, read)
            h_out.append(h_BH)
            c_out.append(c_BH.detach())
        return torch.stack(h_out), torch.stack(c_out)
