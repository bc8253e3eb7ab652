"""A read of MEM as one Triton kernel, and its backward pass as another: what takes PyTorch some forty launches a step.

One program reads for one query. Its distances are sums of squared differences, so that the same key is as near in every
slot; a code of a distance's bits and its slot orders as both do, and the K smallest codes are taken one by one.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None

if TYPE_CHECKING or HAS_TRITON:
    import triton
    import triton.language as tl
    from triton import jit
else:  # a PyTorch without CUDA comes without Triton; nothing below is called

    def jit(function: Any) -> Any:
        return function


BLOCK = 32  # keys whose differences are held at once
LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF) if HAS_TRITON else 0


def fits(query_BC: Tensor, values_NH: Tensor, K: int) -> bool:
    """Whether there is a kernel for it: a program holds the codes of all slots, and the rows of all neighbours."""
    is_small = len(values_NH) <= 2**15 and K * max(query_BC.shape[1], values_NH.shape[1]) <= 2**16
    return is_small and query_BC.is_cuda and query_BC.dtype == torch.float32 and HAS_TRITON


@jit
def _recall(  # type: ignore[no-untyped-def]
    query, keys, values, norm, distance, index, share, weight, m, epsilon,
    N: "tl.constexpr", C: "tl.constexpr", H: "tl.constexpr", K: "tl.constexpr",
    N2: "tl.constexpr", C2: "tl.constexpr", H2: "tl.constexpr", K2: "tl.constexpr", BLOCK: "tl.constexpr",
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    c, slot, k, hidden = tl.arange(0, C2), tl.arange(0, N2), tl.arange(0, K2), tl.arange(0, H2)
    q = tl.load(query + b * C + c, mask=c < C, other=0.0)
    for start in range(0, N2, BLOCK):
        row = start + tl.arange(0, BLOCK)
        mask = (row < N)[:, None] & (c < C)[None, :]
        difference = tl.load(keys + row[:, None] * C + c[None, :], mask=mask, other=0.0) - q[None, :]
        # Where nothing is stored yet, the norm is infinite.
        empty = tl.load(norm + row, mask=row < N, other=float("inf")) == float("inf")
        d = tl.where(empty, float("inf"), tl.sum(tl.where(mask, difference * difference, 0.0), 1))
        tl.store(distance + b * N2 + row, d)
    tl.debug_barrier()  # what other threads have stored is read next
    d = tl.load(distance + b * N2 + slot)
    code = tl.where(slot < N, (d.to(tl.int32, bitcast=True).to(tl.int64) << 32) | slot.to(tl.int64), LAST)
    nearest = tl.zeros([K2], tl.int64)
    w = tl.zeros([K2], tl.float32)
    for i in range(K):
        smallest = tl.min(code, 0)
        code = tl.where(code == smallest, LAST, code)
        near = (smallest >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        nearest = tl.where(k == i, smallest & 0xFFFFFFFF, nearest)
        w = tl.where(k == i, 1.0 / (near + epsilon), w)  # zero where nothing is stored
    total = tl.maximum(tl.sum(w, 0), 1e-30)
    part = w / total
    rows = tl.load(
        values + nearest[:, None] * H + hidden[None, :], mask=(k < K)[:, None] & (hidden < H)[None, :], other=0.0
    )
    tl.store(m + b * H + hidden, tl.sum(rows * part[:, None], 0), mask=hidden < H)
    tl.store(index + b * K + k, nearest, mask=k < K)
    tl.store(share + b * K + k, part, mask=k < K)
    tl.store(weight + b, total)


@jit
def _recall_backward(  # type: ignore[no-untyped-def]
    query, index, share, weight, m, dm, dm_stride, keys, values, dquery, ddistance,
    C: "tl.constexpr", H: "tl.constexpr", K: "tl.constexpr",
    C2: "tl.constexpr", H2: "tl.constexpr", K2: "tl.constexpr",
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    c, k, hidden = tl.arange(0, C2), tl.arange(0, K2), tl.arange(0, H2)
    slot = tl.load(index + b * K + k, mask=k < K, other=0)
    part = tl.load(share + b * K + k, mask=k < K, other=0.0)
    g = tl.load(dm + b * dm_stride + hidden, mask=hidden < H, other=0.0)
    mean = tl.load(m + b * H + hidden, mask=hidden < H, other=0.0)
    rows = tl.load(values + slot[:, None] * H + hidden[None, :], mask=(hidden < H)[None, :], other=0.0)
    along = tl.sum((rows - mean[None, :]) * g[None, :], 1)
    dd = -along * part * part * tl.load(weight + b)
    q = tl.load(query + b * C + c, mask=c < C, other=0.0)
    near = tl.load(keys + slot[:, None] * C + c[None, :], mask=(c < C)[None, :], other=0.0)
    tl.store(dquery + b * C + c, 2 * tl.sum((q[None, :] - near) * dd[:, None], 0), mask=c < C)
    tl.store(ddistance + b * K + k, dd, mask=k < K)


def recall(
    query_BC: Tensor, keys_NC: Tensor, values_NH: Tensor, norm_N: Tensor, K: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slots, shares, sum of weights and m, as in `episodic.Found`."""
    (B, C), (N, H) = query_BC.shape, values_NH.shape
    N2, C2, H2, K2 = (triton.next_power_of_2(n) for n in (max(N, BLOCK), C, H, K))
    new = query_BC.new_empty
    index_BK = torch.empty(B, K, dtype=torch.int64, device=query_BC.device)
    share_BK, weight_B1, m_BH = new(B, K), new(B, 1), new(B, H)
    _recall[(B,)](
        query_BC.contiguous(), keys_NC.contiguous(), values_NH, norm_N, new(B, N2), index_BK, share_BK, weight_B1,
        m_BH, epsilon, N, C, H, K, N2, C2, H2, K2, BLOCK, num_warps=8,
    )  # fmt: skip
    return index_BK, share_BK, weight_B1, m_BH


def recall_backward(
    query_BC: Tensor, index_BK: Tensor, share_BK: Tensor, weight_B1: Tensor, m_BH: Tensor, dm_BH: Tensor,
    keys_NC: Tensor, values_NH: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of the query [B, C] and of the squared distances [B, K]."""
    (B, C), H, K = query_BC.shape, values_NH.shape[1], index_BK.shape[1]
    C2, H2, K2 = (triton.next_power_of_2(n) for n in (C, H, K))
    dquery_BC, ddistance_BK = torch.empty_like(query_BC), torch.empty_like(share_BK)
    dm_BH = dm_BH if dm_BH.stride(1) == 1 else dm_BH.contiguous()
    _recall_backward[(B,)](
        query_BC.contiguous(), index_BK, share_BK, weight_B1, m_BH, dm_BH, dm_BH.stride(0), keys_NC.contiguous(),
        values_NH, dquery_BC, ddistance_BK, C, H, K, C2, H2, K2, num_warps=4,
    )  # fmt: skip
    return dquery_BC, ddistance_BK
