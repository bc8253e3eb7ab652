"""Products by oneDNN on a CPU, where PyTorch would do them slower by itself; without gradients.

Weights in bf16 are packed once for many steps of acting, where it would be done at every step; elsewhere `pack` returns
the weight as it is and PyTorch's own products run. In fp32 oneDNN has the faster product on processors that are not
Intel's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

Stride = tuple[int, int]


def _is_for_us(weight: Tensor, dtype: torch.dtype) -> bool:
    is_plain = weight.dtype == dtype and not weight.is_cuda and not torch.is_grad_enabled()
    return is_plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _can_pack(weight: Tensor) -> bool:
    return _is_for_us(weight, torch.bfloat16)


def pack_linear(weight_OI: Tensor, batch: int) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), batch) if _can_pack(weight_OI) else weight_OI


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    if weight_OI.is_mkldnn or _is_for_us(weight_OI, torch.float32):
        return torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return F.linear(x_NI, weight_OI, bias_O)


def pack_conv(weight: Tensor, stride: Stride, x_shape: tuple[int, ...]) -> Tensor:
    if not _can_pack(weight):
        return weight
    pack = torch.ops.aten.mkldnn_reorder_conv2d_weight
    return pack(weight.to_mkldnn(), (0, 0), stride, (1, 1), 1, x_shape)


def conv2d(x: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
    if weight.is_mkldnn:
        return torch.ops.mkldnn._convolution_pointwise(x, weight, bias, (0, 0), stride, (1, 1), 1, "none", [], "")
    return F.conv2d(x, weight, bias, stride)
