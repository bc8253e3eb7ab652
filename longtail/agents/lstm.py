"""The LSTM: one step for acting, a whole unroll for learning, with resets at episode starts.

Gates are in the order input, forget, candidate, output. What is recurrent is r: h, and with a memory m as well. The
unroll's backward pass is written out: autograd would sum the weights' gradients T times, here each is one product at
the end. Only a read that is not MEM's is left to autograd.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.agents.precision import products
from longtail.memory.episodic import Found, Reader, keys_backward, recall_backward
from longtail.onednn import linear, pack_linear

# A memory read: (p [B, P], h [B, H], first [B, 1]) -> m [B, M]; h is the state before the step, after the reset.
Read = Callable[[Tensor, Tensor, Tensor], Tensor]
# From dm [B, M] at step t to what the read at t adds to dh [B, H].
ThroughRead = Callable[[int, Tensor], Tensor]


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
    recurrent_GR: Tensor


class Moment(NamedTuple):
    """One step: what it began with (h and c after the reset), its activated gates, and the state that it left."""

    p_BP: Tensor
    r_BR: Tensor  # h, then m if there is a memory
    c_in_BH: Tensor
    gates_BG: Tensor
    h_BH: Tensor
    c_BH: Tensor
    found: Found | None


def take_step(
    p_BP: Tensor, x_gates_BG: Tensor, first_B1: Tensor, h_BH: Tensor, c_BH: Tensor, recurrent_GR: Tensor,
    read: Read | None = None, gates_out: Tensor | None = None,
) -> Moment:  # fmt: skip
    """One step, given the input's share of the gates. Without gradients, what is found in MEM is kept."""
    h_in_BH, c_in_BH = h_BH.masked_fill(first_B1, 0), c_BH.masked_fill(first_B1, 0)
    r_BR, found = h_in_BH, None
    if read is not None:
        with products(torch.float32):  # acting and learning must find the same neighbours
            if isinstance(read, Reader) and not torch.is_grad_enabled():
                found = read.recall(p_BP, h_in_BH)
            m_BM = read(p_BP, h_in_BH, first_B1) if found is None else found.m_BH
        r_BR = torch.cat([h_in_BH, m_BM], -1)
    h_gates_BG = linear(r_BR.to(recurrent_GR.dtype), recurrent_GR)
    h_BH, c_BH, gates_BG = lstm_cell(x_gates_BG, h_gates_BG, c_in_BH, gates_out)
    return Moment(p_BP, r_BR, c_in_BH, gates_BG, h_BH, c_BH, found)


class LSTMTape:
    """What T steps of acting computed. On a CPU their gates, the most of it, are written into one tensor [T, B, 4H]."""

    def __init__(self, gates_TBG: Tensor | None) -> None:
        self.gates_TBG = gates_TBG
        self.moments: list[Moment] = []

    def gates_out(self) -> Tensor | None:
        return None if self.gates_TBG is None else self.gates_TBG[len(self.moments)]

    def stacked(self) -> tuple[Tensor, ...]:
        """r, c_in, gates, h and c of all steps."""
        _, r, c_in, gates, h, c, _ = zip(*self.moments, strict=True)
        gates_TBG = torch.stack(gates) if self.gates_TBG is None else self.gates_TBG
        return torch.stack(r), torch.stack(c_in), gates_TBG, torch.stack(h), torch.stack(c)

    def found(self) -> list[Found]:
        return [moment.found for moment in self.moments if moment.found is not None]


class _Unroll(torch.autograd.Function):
    """T steps from a constant first state, or those that acting took already with the same parameters."""

    @staticmethod
    def forward(
        ctx: Any, p_TBP: Tensor, input_GP: Tensor, bias_G: Tensor, recurrent_GR: Tensor, key_CQ: Tensor | None,
        key_bias_C: Tensor | None, keys_NC: Tensor | None, first_TB1: Tensor, h_BH: Tensor, c_BH: Tensor,
        tape: LSTMTape | None, reader: Reader | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if tape is None:
            tape = LSTMTape(None)
            x_gates_TBG = F.linear(p_TBP.to(input_GP.dtype), input_GP, bias_G)
            for p_BP, x_gates_BG, first_B1 in zip(p_TBP, x_gates_TBG, first_TB1, strict=True):
                moment = take_step(p_BP, x_gates_BG, first_B1, h_BH, c_BH, recurrent_GR, reader)
                h_BH, c_BH = moment.h_BH, moment.c_BH
                tape.moments.append(moment)
        r_TBR, c_in_TBH, gates_TBG, h_TBH, c_TBH = tape.stacked()
        ctx.save_for_backward(
            p_TBP, input_GP, recurrent_GR, key_CQ, keys_NC, None if reader is None else reader.values_NH,
            first_TB1, r_TBR, c_in_TBH, c_TBH, gates_TBG,
        )  # fmt: skip
        ctx.found = tape.found()
        ctx.mark_non_differentiable(c_TBH)
        return h_TBH, c_TBH

    @staticmethod
    def backward(ctx: Any, dh_TBH: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        p_TBP, input_GP, recurrent_GR, key_CQ, keys_NC, values_NH, *states = ctx.saved_tensors
        first_TB1, r_TBR, c_in_TBH, c_TBH, gates_TBG = states
        H, queries, distances = dh_TBH.shape[-1], [], []

        def through_read(t: int, dm_BH: Tensor) -> Tensor:
            dquery_BC, ddistance_BK = recall_backward(ctx.found[t], dm_BH, keys_NC, values_NH)
            queries.append(dquery_BC)
            distances.append(ddistance_BK)
            return dquery_BC @ key_CQ[:, -H:]

        backward = _backward_cuda if dh_TBH.is_cuda else _backward_cpu
        through = through_read if ctx.found else None
        keep_TB1 = (~first_TB1).to(dh_TBH.dtype)
        dgates_TBG = backward(dh_TBH, recurrent_GR, keep_TB1, c_in_TBH, c_TBH, gates_TBG, through)
        dgates_NG, r_NR, p_NP = (x.flatten(0, 1) for x in (dgates_TBG, r_TBR, p_TBP))
        dbias_G, dgates_NG = dgates_NG.sum(0), dgates_NG.to(recurrent_GR.dtype)
        dinput_GP, drecurrent_GR = dgates_NG.t() @ p_NP.to(input_GP.dtype), dgates_NG.t() @ r_NR.to(recurrent_GR.dtype)
        dp_NP = (dgates_NG @ input_GP).to(p_NP.dtype)
        of_keys: tuple[Tensor | None, ...] = (None, None, None)
        if ctx.found:
            dquery_NC, ddistance_NK = (torch.cat(parts[::-1]) for parts in (queries, distances))
            query_NC, index_NK = (torch.cat(parts) for parts in list(zip(*ctx.found, strict=True))[:2])
            dp_NP += dquery_NC @ key_CQ[:, :-H]
            dkey_CQ = torch.cat([dquery_NC.t() @ p_NP, dquery_NC.t() @ r_NR[:, :H]], 1)
            of_keys = dkey_CQ, dquery_NC.sum(0), keys_backward(query_NC, index_NK, ddistance_NK, keys_NC)
        return dp_NP.view_as(p_TBP), dinput_GP, dbias_G, drecurrent_GR, *of_keys, None, None, None, None, None


def _backward_cuda(
    dh_TBH: Tensor, weight_GR: Tensor, keep_TB1: Tensor, c_in_TBH: Tensor, c_TBH: Tensor, gates_TBG: Tensor,
    through_read: ThroughRead | None,
) -> Tensor:  # fmt: skip
    """Gradient of the gates before their activation, step by step with the fused cell."""
    cell_backward = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
    H, dgates = dh_TBH.shape[-1], [gates_TBG[0]] * len(dh_TBH)
    dh_BH, dc_BH = torch.zeros_like(c_TBH[0]), torch.zeros_like(c_TBH[0])
    for t in reversed(range(len(dgates))):
        dgates[t], dc_BH, _ = cell_backward(dh_TBH[t] + dh_BH, dc_BH, c_in_TBH[t], c_TBH[t], gates_TBG[t], False)
        dr_BR = dgates[t] @ weight_GR
        dh_BH = dr_BR if through_read is None else dr_BR[:, :H] + through_read(t, dr_BR[:, H:])
        dh_BH = dh_BH * keep_TB1[t]
        dc_BH = dc_BH * keep_TB1[t]
    return torch.stack(dgates)


def _backward_cpu(
    dh_TBH: Tensor, weight_GR: Tensor, keep_TB1: Tensor, c_in_TBH: Tensor, c_TBH: Tensor, gates_TBG: Tensor,
    through_read: ThroughRead | None,
) -> Tensor:  # fmt: skip
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
    dtype, weight_RG = weight_GR.dtype, pack_linear(weight_GR.t(), B)
    dh_BH, dc_BH = torch.zeros_like(c_TBH[0]), torch.zeros_like(c_TBH[0])
    for t, (dh_out, c_of_h, o_of_h, ifg_of_c, before_of_c, keep, dgates, difg, do) in reversed(list(enumerate(steps))):
        dh_BH += dh_out
        dc_BH.addcmul_(dh_BH, c_of_h)
        torch.mul(dh_BH, o_of_h, out=do)
        torch.mul(dc_BH[:, None], ifg_of_c, out=difg)
        dc_BH *= before_of_c
        dr_BR = linear(dgates.to(dtype), weight_RG)
        if through_read is not None:
            dr_BR = dr_BR[:, :H] + through_read(t, dr_BR[:, H:].to(dh_BH.dtype))
        torch.mul(dr_BR, keep, out=dh_BH)
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
        if self.memory is not None:  # by a generator of its own: whatever is drawn after it is the same without it
            nn.init.orthogonal_(self.memory, generator=torch.Generator().manual_seed(torch.initial_seed() % 2**63))

    def prepare(self, batch: int = 1) -> LSTMWeights:
        """The weights as products take them, differentiably; on a GPU `products` does the rounding."""
        dtype = self.hidden.dtype if self.hidden.is_cuda or self.dtype != torch.bfloat16 else self.dtype
        recurrent_RG = self.hidden if self.memory is None else torch.cat([self.hidden, self.memory])
        input_GP, recurrent_GR = self.input.weight.to(dtype), recurrent_RG.to(dtype).t()
        if batch > 1:
            input_GP, recurrent_GR = pack_linear(input_GP, batch), pack_linear(recurrent_GR, batch)
        return LSTMWeights(input_GP, self.input.bias.to(dtype), recurrent_GR)

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
        x_gates_BG = linear(p_BP.to(w.input_GP.dtype), w.input_GP, w.bias_G)
        gates_out = tape.gates_out() if tape else None
        moment = take_step(p_BP, x_gates_BG, first_B1, h_BH, c_BH, w.recurrent_GR, read, gates_out)
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

        A tape of these steps saves computing them again. A read that is not MEM's is left to autograd, without tape.
        """
        w = self.prepare() if weights is None else weights
        if read is None or isinstance(read, Reader):
            of_keys = (None, None, None) if read is None else (read.weight_CQ, read.bias_C, read.keys_NC)
            return _Unroll.apply(p_TBP, *w, *of_keys, first_TB1, h_BH, c_BH, tape, read)
        h_out, c_out = [], []
        for p_BP, first_B1 in zip(p_TBP, first_TB1, strict=True):
            h_BH, c_BH = self.step(p_BP, first_B1, h_BH, c_BH, w, read)
            h_out.append(h_BH)
            c_out.append(c_BH.detach())
        return torch.stack(h_out), torch.stack(c_out)
