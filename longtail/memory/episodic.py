"""MEM, the episodic memory: a ring of (p, h) of rare states, read by the K nearest keys (Eqs. 6 and 7).

A read is a pure function with a written-out backward pass, in which no two threads add to one number: the same bits
each time. Distances are IEEE fp32 (set around the call), and equally near keys are taken from the lowest slot on. On a
GPU each pass is one kernel (kernels.py), of which the functions here are the oracle.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.memory import kernels
from longtail.onednn import linear

INFINITY = 0x7F800000  # the bits of an fp32 infinity


class Found(NamedTuple):
    """What one read found. A slot that is not filled has no share; without any filled slot, m is zero."""

    query_BC: Tensor
    index_BK: Tensor
    share_BK: Tensor  # w_i / sum of w
    weight_B1: Tensor  # sum of w, at least a little
    m_BH: Tensor


def squared_norms(keys_NC: Tensor, filled: Tensor) -> Tensor:
    """Of each key [N]; infinite where its slot is not filled, so that it is further than any that is."""
    empty_N = torch.arange(len(keys_NC), device=keys_NC.device) >= filled
    return keys_NC.detach().square().sum(-1).masked_fill(empty_N, torch.inf)


def nearest(query_BC: Tensor, keys_NC: Tensor, norm_N: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Slots of the K nearest keys [B, K], and which of them are filled. The lowest slot wins where keys are as near."""
    # The same key is as near in every slot only where a product of matrices rounds all its columns alike: where there
    # is no narrower last block of them.
    if rest := -len(keys_NC) % 64:
        keys_NC, norm_N = F.pad(keys_NC, (0, 0, 0, rest)), F.pad(norm_N, (0, rest), value=torch.inf)
    N = len(keys_NC)
    distance_BN = linear(-2 * query_BC, keys_NC, norm_N)
    distance_BN += query_BC.square().sum(-1, keepdim=True)
    # Bits of numbers that are not negative order as the numbers do, and the slot breaks ties. Rounding can make the
    # distance of the same key a little negative; then it still comes first.
    bits_BN = distance_BN.to(torch.float32).view(torch.int32)
    rank_BN = torch.add(torch.arange(N, device=keys_NC.device), bits_BN, alpha=N)
    rank_BK = torch.topk(rank_BN, K, largest=False, sorted=False).values
    return rank_BK % N, rank_BK < INFINITY * N


def recall(query_BC: Tensor, keys_NC: Tensor, values_NH: Tensor, norm_N: Tensor, K: int, epsilon: float) -> Found:
    """Mean of the K nearest keys' values, weighted by inverse squared distance (Eq. 7); no gradient."""
    if kernels.fits(query_BC, values_NH, K):
        return Found(query_BC, *kernels.recall(query_BC, keys_NC, values_NH, norm_N, K, epsilon))
    return recall_torch(query_BC, keys_NC, values_NH, norm_N, K, epsilon)


def recall_torch(query_BC: Tensor, keys_NC: Tensor, values_NH: Tensor, norm_N: Tensor, K: int, epsilon: float) -> Found:
    index_BK, is_filled_BK = nearest(query_BC, keys_NC, norm_N, K)
    difference_BKC = F.embedding(index_BK, keys_NC).sub_(query_BC[:, None])
    w_BK = is_filled_BK / difference_BKC.square_().sum(-1).add_(epsilon)
    weight_B1 = w_BK.sum(-1, keepdim=True).clamp_(min=1e-30)
    share_BK = w_BK.div_(weight_B1)
    return Found(query_BC, index_BK, share_BK, weight_B1, weighted_sum(values_NH, index_BK, share_BK))


def weighted_sum(rows_NX: Tensor, index_BK: Tensor, weight_BK: Tensor) -> Tensor:
    return F.embedding_bag(index_BK, rows_NX, per_sample_weights=weight_BK, mode="sum")


def recall_backward(found: Found, dm_BH: Tensor, keys_NC: Tensor, values_NH: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the query [B, C] and of the squared distances [B, K]; none goes into the values."""
    if kernels.fits(found.query_BC, values_NH, found.index_BK.shape[1]):
        return kernels.recall_backward(*found, dm_BH, keys_NC, values_NH)
    return recall_backward_torch(found, dm_BH, keys_NC, values_NH)


def recall_backward_torch(found: Found, dm_BH: Tensor, keys_NC: Tensor, values_NH: Tensor) -> tuple[Tensor, Tensor]:
    # m = sum share_i h_i, so dm/dw_i = (h_i - m) / sum of w; w_i = 1 / (d_i + eps), so dw_i/dd_i = -w_i^2.
    along_BK = torch.bmm(F.embedding(found.index_BK, values_NH), dm_BH[..., None])[..., 0]
    along_BK -= (dm_BH * found.m_BH).sum(-1, keepdim=True)
    ddistance_BK = along_BK.mul_(found.share_BK.square()).mul_(found.weight_B1).neg_()
    nearby_BC = weighted_sum(keys_NC, found.index_BK, ddistance_BK)
    dquery_BC = (found.query_BC * ddistance_BK.sum(-1, keepdim=True) - nearby_BC).mul_(2)
    return dquery_BC, ddistance_BK


def keys_backward(query_QC: Tensor, index_QK: Tensor, ddistance_QK: Tensor, keys_NC: Tensor) -> Tensor:
    """Gradient of the keys [N, C], from all queries at once: products of matrices, where scattered sums would race."""
    spread_QN = keys_NC.new_zeros(len(query_QC), len(keys_NC))
    spread_QN.scatter_(1, index_QK, ddistance_QK)  # a query's neighbours are all different
    return (spread_QN.sum(0)[:, None] * keys_NC - spread_QN.t() @ query_QC).mul_(2)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_BC: Tensor, keys_NC: Tensor, values_NH: Tensor, norm_N: Tensor, K: int, epsilon: float
    ) -> Tensor:
        found = recall(query_BC, keys_NC, values_NH, norm_N, K, epsilon)
        ctx.save_for_backward(*found, keys_NC, values_NH)
        return found.m_BH

    @staticmethod
    def backward(ctx: Any, dm_BH: Tensor) -> tuple[Tensor | None, ...]:
        *parts, keys_NC, values_NH = ctx.saved_tensors
        found = Found(*parts)
        dquery_BC, ddistance_BK = recall_backward(found, dm_BH, keys_NC, values_NH)
        dkeys_NC = keys_backward(found.query_BC, found.index_BK, ddistance_BK, keys_NC)
        return dquery_BC, dkeys_NC, None, None, None, None


class Reader:
    """MEM as an agent sees it until its next change: contents, their keys, and W and b of the queries.

    Calling it is Eqs. 6 and 7, differentiably; what it holds is the same in all episodes, so it matters not where one
    begins. `recall` is the same without gradients, for who keeps what was found.
    """

    def __init__(
        self, memory: "EpisodicMemory", keys_NC: Tensor, weight_CQ: Tensor, bias_C: Tensor, K: int, epsilon: float
    ) -> None:
        # Seen from the middle of the keys, numbers are small: |q|^2 - 2qk + |k|^2 loses what all of them share.
        is_filled_N = torch.arange(len(keys_NC), device=keys_NC.device) < memory.filled
        middle_C = (keys_NC.detach() * is_filled_N[:, None]).sum(0) / memory.filled.clamp(min=1)
        self.keys_NC, self.weight_CQ, self.bias_C = keys_NC - middle_C, weight_CQ, bias_C - middle_C
        self.values_NH, self.norm_N = memory.h, squared_norms(self.keys_NC, memory.filled)
        self.K, self.epsilon = K, epsilon

    def query(self, p_BP: Tensor, h_BH: Tensor) -> Tensor:
        return F.linear(torch.cat([p_BP, h_BH], -1), self.weight_CQ, self.bias_C)

    def __call__(self, p_BP: Tensor, h_BH: Tensor, first_B1: Tensor | None = None) -> Tensor:
        query_BC = self.query(p_BP, h_BH)
        return _Read.apply(query_BC, self.keys_NC, self.values_NH, self.norm_N, self.K, self.epsilon)

    def recall(self, p_BP: Tensor, h_BH: Tensor) -> Found:
        with torch.no_grad():
            query_BC = self.query(p_BP, h_BH)
            return recall(query_BC, self.keys_NC, self.values_NH, self.norm_N, self.K, self.epsilon)


class EpisodicMemory(nn.Module):
    """A ring of N rare states. Everything is a buffer of the module, so `state_dict` is complete."""

    p: Tensor
    h: Tensor
    key: Tensor
    tag: Tensor
    score: Tensor
    stored_at: Tensor
    next: Tensor
    filled: Tensor

    def __init__(self, capacity: int, embedding_dim: int, hidden_dim: int, key_dim: int) -> None:
        super().__init__()
        self.capacity, N = capacity, capacity
        self.register_buffer("p", torch.zeros(N, embedding_dim))
        self.register_buffer("h", torch.zeros(N, hidden_dim))
        self.register_buffer("key", torch.zeros(N, key_dim))  # as it was when the state was met
        self.register_buffer("tag", torch.full((N,), -1))
        self.register_buffer("score", torch.zeros(N))  # how rare the state was when it came here
        self.register_buffer("stored_at", torch.zeros(N, dtype=torch.int64))
        self.register_buffer("next", torch.zeros((), dtype=torch.int64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def write(self, new: dict[str, Tensor], valid_S: Tensor, familiar_first: bool = False) -> None:
        """Store the valid rows of `new` (a tensor for each of p, h, key, tag, score, stored_at); valid rows come first.

        They replace the oldest, or the ones that were the least rare when they were stored.
        """
        offset_S = torch.arange(len(valid_S), device=valid_S.device)
        if familiar_first:
            is_filled_N = torch.arange(self.capacity, device=valid_S.device) < self.filled
            order_N = torch.sort(self.score.masked_fill(~is_filled_N, -torch.inf), stable=True).indices
            slot_S = order_N[: len(valid_S)]
        else:
            slot_S = (self.next + offset_S) % self.capacity
        for name, rows in new.items():
            mine = getattr(self, name)
            keep = valid_S.view(-1, *[1] * (rows.ndim - 1))
            mine.index_copy_(0, slot_S, torch.where(keep, rows, mine[slot_S]))
        count = valid_S.sum()
        self.next.add_(count).remainder_(self.capacity)
        self.filled.add_(count).clamp_(max=self.capacity)
