"""Image augmentations of the contrastive loss: Gaussian noise and a random black rectangle, for each image its own.

Images stay uint8, as the buffer holds them and encoders take them. The paper's noise is 0.64 grey levels, so what is
added is a whole number of grey levels with that standard deviation, not a rounded sum: rounding would add its own
noise, cutting off would make every image darker. One random byte a pixel picks from 256 equally likely numbers.
"""

import torch
from torch import Tensor

CPU_CHUNK = 64  # images; more at once are no longer in the cache between two operations


def noise_levels(sigma: float, amplified: bool = True) -> float:
    """Standard deviation in grey levels: N(0, sigma^2) on pixels in [0, 1], multiplied by sigma once more if amplified,

    as the paper says ("this image is added to the original image after amplifying by a factor of sigma").
    """
    return 255 * sigma * (sigma if amplified else 1)


def noise_table(levels: float) -> Tensor:
    """256 whole numbers, symmetric, whose standard deviation is as near to `levels` as it gets: int16 [256]."""
    probability = (torch.arange(128, dtype=torch.float64) + 128.5) / 256
    upper = torch.distributions.Normal(0.0, 1.0).icdf(probability)
    low, high = 0.0, 2 * levels + 1
    for _ in range(60):  # rounding changes the deviation, so look for the one that has the right one after rounding
        middle = (low + high) / 2
        too_wide = (middle * upper).round().square().mean().sqrt() > levels
        low, high = (low, middle) if too_wide else (middle, high)
    half = (low * upper).round()
    missing = 128 * levels**2 - half.square().sum()  # quantiles reach a rounding border together: fill up one by one
    zeros = int((half == 0).sum())
    half[zeros - min(zeros, max(0, round(float(missing)))) : zeros] = 1
    return torch.cat([-half.flip(0), half]).to(torch.int16)


def in_pairs(table: Tensor) -> Tensor:
    """All pairs of the table's numbers, each as one int32 [65536]: looking up two at once takes half the time."""
    first, second = table.repeat(256), table.repeat_interleave(256)
    return torch.stack([first, second], 1).view(torch.int32)[:, 0].contiguous()


def add_noise(
    image_NHWC: Tensor, pairs: Tensor, generator: torch.Generator | None = None, out: Tensor | None = None
) -> Tensor:
    """Add to each value one of the 256 numbers that `pairs` is made of; results stay within 0 and 255."""
    words = torch.empty(-(-image_NHWC.numel() // 8), dtype=torch.int64, device=image_NHWC.device)
    words.random_(-(2**63), None, generator=generator)
    index = words.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    offset = pairs.index_select(0, index).view(torch.int16)[: image_NHWC.numel()]
    noisy_NHWC = offset.view(image_NHWC.shape).add_(image_NHWC).clamp_(0, 255)
    return noisy_NHWC.to(torch.uint8) if out is None else out.copy_(noisy_NHWC)


def cut_out(image_NHWC: Tensor, smallest: float, largest: float, generator: torch.Generator | None = None) -> Tensor:
    """Blacken, in place, one rectangle in each image; its sides are uniform shares of the image's, its place too."""
    N, height, width, channels = image_NHWC.shape
    share_4N1 = torch.rand(4, N, 1, device=image_NHWC.device, generator=generator)
    outside = [
        _outside(size, smallest + (largest - smallest) * side_N1, place_N1, repeat)
        for size, side_N1, place_N1, repeat in (
            (height, share_4N1[0], share_4N1[1], 1),
            (width, share_4N1[2], share_4N1[3], channels),
        )
    ]
    keep_NHX = outside[0][:, :, None] | outside[1][:, None]
    image_NHWC.view(N, height, width * channels).bitwise_and_(keep_NHX)
    return image_NHWC


def _outside(size: int, side_N1: Tensor, place_N1: Tensor, repeat: int) -> Tensor:
    """255 outside of an interval of pixels and 0 within, uint8 [N, size * repeat]."""
    length_N1 = (size * side_N1).round().clamp(1, size)
    begin_N1 = ((size - length_N1 + 1) * place_N1).floor()
    pixel = torch.arange(size, device=side_N1.device).repeat_interleave(repeat)
    outside = (pixel < begin_N1) | (pixel >= begin_N1 + length_N1)
    return outside.to(torch.uint8).mul_(255)


def augment(
    image_NHWC: Tensor,
    pairs: Tensor,
    smallest: float = 0.05,
    largest: float = 0.5,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Noise, then a cutout: a new uint8 tensor of the same shape."""
    augmented_NHWC = torch.empty_like(image_NHWC, memory_format=torch.contiguous_format)
    chunk = len(image_NHWC) if image_NHWC.is_cuda else CPU_CHUNK
    for image_SHWC, out_SHWC in zip(image_NHWC.split(chunk), augmented_NHWC.split(chunk), strict=True):
        cut_out(add_noise(image_SHWC, pairs, generator, out_SHWC), smallest, largest, generator)
    return augmented_NHWC
