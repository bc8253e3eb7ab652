"""Packed weights give what plain ones give, for any batch, and only where they may."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.onednn import conv2d, linear, pack_conv, pack_linear

BF16 = torch.bfloat16
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN: nothing is packed")


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(made: Tensor, expected: Tensor) -> bool:
    """Both round products of bf16 factors to bf16, after sums in another order."""
    return made.shape == expected.shape and float((made.float() - expected).norm() / expected.norm()) < 0.01


@needs_onednn
@pytest.mark.parametrize("batch", [1, 9, 32])  # packed for 9: others are allowed, too
@torch.no_grad()
def test_linear(batch: int) -> None:
    weight, bias, x = random(24, 40), random(24), random(batch, 40)
    packed = pack_linear(weight.to(BF16), 9)
    assert packed.is_mkldnn
    made = linear(x.to(BF16), packed, bias.to(BF16))
    assert made.dtype == BF16 and close(made, F.linear(x, weight, bias))
    assert close(linear(x.to(BF16), packed), F.linear(x, weight))
    turned = pack_linear(weight.t().to(BF16), batch)  # not contiguous
    assert close(linear(made, turned), F.linear(made.float(), weight.t()))


@needs_onednn
@pytest.mark.parametrize("stride", [(1, 1), (4, 1)])
@pytest.mark.parametrize("batch", [1, 9])
@torch.no_grad()
def test_conv2d(batch: int, stride: tuple[int, int]) -> None:
    x = random(batch, 12, 21, 13).contiguous(memory_format=torch.channels_last)
    weight, bias = random(16, 12, 8, 2).contiguous(memory_format=torch.channels_last), random(16)
    packed = pack_conv(weight.to(BF16), stride, tuple(x.shape))
    made = conv2d(x.to(BF16), packed, bias.to(BF16), stride)
    assert packed.is_mkldnn and close(made, F.conv2d(x, weight, bias, stride))
    assert made.is_contiguous(memory_format=torch.channels_last)  # or rows of pixels would not lie together


def test_nothing_is_packed_in_fp32_or_with_gradients() -> None:
    weight, kernel = random(8, 6), random(4, 3, 2, 2)
    with torch.no_grad():
        assert pack_linear(weight, 4) is weight and pack_conv(kernel, (1, 1), (4, 3, 8, 8)) is kernel
    assert not pack_linear(weight.to(BF16), 4).is_mkldnn
    assert not pack_conv(kernel.to(BF16), (1, 1), (4, 3, 8, 8)).is_mkldnn
    x = random(5, 6)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
