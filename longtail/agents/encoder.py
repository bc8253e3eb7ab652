"""Encoders: uint8 images [N, H, W, C] to embeddings [N, D]; here what they share, and IMPALA's deep one.

`prepare` brings the fp32 master weights into the layout and precision that the kernels want; it is differentiable
and called once per iteration, not once per step.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.agents.precision import products

Weights = list[Tensor]

# On a CPU, more images at once than this spend their time on memory, fewer on overhead (docs/performance.md).
CPU_CHUNK = 128


class Encoder(nn.Module):
    """What the two encoders share: precision, chunks, and the last layer."""

    smallest: int

    def __init__(self, obs_shape: tuple[int, int, int], embedding_dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        height, width, self.channels = obs_shape
        if min(height, width) < self.smallest:
            raise ValueError(
                f"observations are {height}x{width}: this encoder needs at least {self.smallest}x{self.smallest} "
                f"pixels (resize the environment's images, or take the deep encoder, which needs 8x8)"
            )
        self.dtype, self.embedding_dim = dtype, embedding_dim

    def forward(self, image_NHWC: Tensor, weights: Weights | None = None) -> Tensor:
        weights = self.prepare() if weights is None else weights
        chunks = (image_NHWC,) if image_NHWC.is_cuda else image_NHWC.split(CPU_CHUNK)
        with products(self.dtype):
            embeddings = [self.encode(chunk, weights) for chunk in chunks]
        return (torch.cat(embeddings) if len(embeddings) > 1 else embeddings[0]).float()

    def prepare(self, batch: int = 1) -> Weights:
        raise NotImplementedError

    def encode(self, image_NHWC: Tensor, weights: Weights) -> Tensor:
        raise NotImplementedError

    def _cast(self, weight: Tensor | None) -> Tensor:
        """To the working precision; convolutions also to channels_last, which bf16 kernels want."""
        assert weight is not None  # as PyTorch types a bias
        weight = weight.to(self.dtype)
        return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight


class DeepEncoder(Encoder):
    """Three stages of a 3x3 convolution, a 3x3/2 max-pooling and two residual blocks, then a linear layer."""

    smallest = 8
    stages = (16, 32, 32)

    def __init__(self, obs_shape: tuple[int, int, int], embedding_dim: int, dtype: torch.dtype) -> None:
        super().__init__(obs_shape, embedding_dim, dtype)
        rows, columns, channels = obs_shape
        convolutions = []
        for out in self.stages:
            convolutions += [nn.Conv2d(channels if i == 0 else out, out, 3, padding=1) for i in range(5)]
            channels, rows, columns = out, (rows + 1) // 2, (columns + 1) // 2
        self.convolutions = nn.ModuleList(convolutions)
        self.fc = nn.Linear(channels * rows * columns, embedding_dim)

    def prepare(self, batch: int = 1) -> Weights:
        # Pixels stay 0..255, so 1/255 goes into the first weight.
        first, *rest = cast(list[nn.Conv2d], list(self.convolutions))
        kernels = [first.weight / 255, first.bias, *(w for conv in rest for w in (conv.weight, conv.bias))]
        return [self._cast(w) for w in (*kernels, self.fc.weight, self.fc.bias)]

    def encode(self, image_NHWC: Tensor, weights: Weights) -> Tensor:
        *kernels, fc_weight, fc_bias = weights
        pairs = list(zip(kernels[::2], kernels[1::2], strict=True))
        x = image_NHWC.permute(0, 3, 1, 2).to(self.dtype)
        for stage in range(len(self.stages)):
            (w, b), *block = pairs[5 * stage : 5 * stage + 5]
            x = F.max_pool2d(F.conv2d(x, w, b, padding=1), 3, 2, padding=1)
            for (w1, b1), (w2, b2) in (block[:2], block[2:]):
                x = x + F.conv2d(F.relu(F.conv2d(F.relu(x), w1, b1, padding=1)), w2, b2, padding=1)
        x = F.relu(x).permute(0, 2, 3, 1).reshape(len(x), -1)
        return F.relu(F.linear(x, fc_weight, fc_bias))
