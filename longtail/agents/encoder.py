"""Encoders: uint8 images [N, H, W, C] to embeddings [N, D]. Shallow and deep are those of IMPALA (Espeholt et al., 2018).

`prepare` brings the fp32 master weights into the layout and precision that the kernels want; it is differentiable
and called once per iteration, not once per step.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["shallow", "deep"]
Weights = list[Tensor]

# On a CPU, more images at once than this spend their time on memory, fewer on overhead (docs/performance.md).
CPU_CHUNK = 256


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
        if image_NHWC.device.type == "cuda" or len(image_NHWC) <= CPU_CHUNK:
            return self.encode(image_NHWC, weights).float()
        return torch.cat([self.encode(chunk, weights) for chunk in image_NHWC.split(CPU_CHUNK)]).float()

    def prepare(self) -> Weights:
        raise NotImplementedError

    def encode(self, image_NHWC: Tensor, weights: Weights) -> Tensor:
        raise NotImplementedError

    def _cast(self, weight: Tensor) -> Tensor:
        """To the working precision; convolutions also to channels_last, which bf16 kernels want."""
        weight = weight.to(self.dtype)
        return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight


class ShallowEncoder(Encoder):
    """8x8/4 and 4x4/2 convolutions and a linear layer.

    The first convolution is computed on a view: four neighbouring pixels of a row count as one pixel with 4 C
    channels, so the 8x8/4 kernel becomes an 8x2 kernel with stride (4, 1). The function is exactly the same, without
    a copy of the images, and the arithmetic is far denser than with 3 channels.
    """

    smallest = 20

    def __init__(self, obs_shape: tuple[int, int, int], embedding_dim: int, dtype: torch.dtype) -> None:
        super().__init__(obs_shape, embedding_dim, dtype)
        height, width, channels = obs_shape
        self.conv1 = nn.Conv2d(channels, 16, 8, 4)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        rows, columns = ((side // 4 - 1 - 4) // 2 + 1 for side in (height, width))
        self.fc = nn.Linear(32 * rows * columns, embedding_dim)

    def prepare(self) -> Weights:
        # Pixels stay 0..255 (exact in bf16), so 1/255 goes into the weight.
        folded = [_fold_columns(self.conv1.weight / 255, 4), self.conv1.bias]
        folded += [_fold_columns(self.conv2.weight, 2), self.conv2.bias, self.fc.weight, self.fc.bias]
        return [self._cast(w) for w in folded]

    def encode(self, image_NHWC: Tensor, weights: Weights) -> Tensor:
        w1, b1, w2, b2, w3, b3 = weights
        x = F.relu(F.conv2d(_join_columns(image_NHWC, 4).to(self.dtype), w1, b1, stride=(4, 1)), inplace=True)
        x = F.relu(F.conv2d(_join_columns(x.permute(0, 2, 3, 1), 2), w2, b2, stride=(2, 1)), inplace=True)
        return F.relu(F.linear(x.permute(0, 2, 3, 1).reshape(len(x), -1), w3, b3), inplace=True)


def _fold_columns(kernel_OCYX: Tensor, group: int) -> Tensor:
    """The kernel that does on joined columns what this one does: column `group * b + d` is column b, channels d."""
    out, channels, rows, columns = kernel_OCYX.shape
    split = kernel_OCYX.view(out, channels, rows, columns // group, group).permute(0, 4, 1, 2, 3)
    return split.reshape(out, group * channels, rows, columns // group)


def _join_columns(image_NHWC: Tensor, group: int) -> Tensor:
    """Count `group` neighbouring pixels of a row as one with that many channels more, [N, group C, H, W / group]."""
    n, height, width, channels = image_NHWC.shape
    # Columns beyond a multiple of the group are never seen by a kernel with that stride.
    even = image_NHWC[:, :, : width // group * group]
    return even.reshape(n, height, width // group, group * channels).permute(0, 3, 1, 2)


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

    def prepare(self) -> Weights:
        # Pixels stay 0..255, so 1/255 goes into the first weight.
        first = self.convolutions[0].weight / 255
        rest = [w for conv in list(self.convolutions)[1:] for w in (conv.weight, conv.bias)]
        return [self._cast(w) for w in (first, self.convolutions[0].bias, *rest, self.fc.weight, self.fc.bias)]

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


ENCODERS: dict[str, type[Encoder]] = {"shallow": ShallowEncoder, "deep": DeepEncoder}
