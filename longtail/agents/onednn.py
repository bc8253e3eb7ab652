"""Weights as oneDNN keeps them: packed once for many steps of acting on a CPU, where it would do so at every step.

Only without gradients and in bf16; everywhere else `pack` returns the weight as it is and PyTorch's own products run.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

Stride = tuple[int, int]


def _can_pack(weight: Tensor) -> bool:
    is_plain = weight.dtype == torch.bfloat16 and not weight.is_cuda and not torch.is_grad_enabled()
    return is_plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack_linear(weight_OI: Tensor, batch: int) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), batch) if _can_pack(weight_OI) else weight_OI


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    if weight_OI.is_mkldnn:
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
