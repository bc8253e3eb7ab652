"""Encoders: uint8 images [N, H, W, C] to embeddings [N, D]; shallow and deep are IMPALA's (Espeholt et al., 2018).

`prepare` brings the fp32 master weights into the layout and precision that the kernels want; it is differentiable
and called once per iteration, not once per step.
"""

from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["shallow", "deep"]
Weights = list[Tensor]
# What acting keeps of a batch of images, so that the learner need not encode them again; the last is the embedding.
Activations = tuple[Tensor, ...]

# On a CPU, more images at once than this spend their time on memory, fewer on overhead (docs/performance.md).
CPU_CHUNK = 256


class Encoder(nn.Module):
    """What the two encoders share: precision, chunks, and the last layer."""

    smallest: int
    can_replay = False  # whether there are `layers` and `replay`

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

    def layers(self, image_NHWC: Tensor, weights: Weights) -> Activations:
        """`encode`, with what `replay` needs besides the embedding."""
        raise NotImplementedError

    def replay(self, image_NHWC: Tensor, tape: list[Activations], weights: Weights) -> Tensor:
        """Embeddings [N, D] of all images on the tape, differentiable, without computing them a second time."""
        raise NotImplementedError

    def _cast(self, weight: Tensor | None) -> Tensor:
        """To the working precision; convolutions also to channels_last, which bf16 kernels want."""
        assert weight is not None  # as PyTorch types a bias
        weight = weight.to(self.dtype)
        return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight


class ShallowEncoder(Encoder):
    """8x8/4 and 4x4/2 convolutions and a linear layer.

    Both convolutions are computed on joined pixels: 4x4 neighbours count as one pixel with 16 times the channels, so
    the 8x8/4 kernel becomes 2x2 with stride 1. The function is exactly the same, and the arithmetic far denser than
    with 3 channels. On a CPU only columns are joined: that is a view of the image, where joining rows is a slow copy.
    """

    smallest = 20
    can_replay = True

    def __init__(self, obs_shape: tuple[int, int, int], embedding_dim: int, dtype: torch.dtype) -> None:
        super().__init__(obs_shape, embedding_dim, dtype)
        height, width, channels = obs_shape
        self.conv1 = nn.Conv2d(channels, 16, 8, 4)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        rows, columns = ((side // 4 - 1 - 4) // 2 + 1 for side in (height, width))
        self.fc = nn.Linear(32 * rows * columns, embedding_dim)

    def prepare(self) -> Weights:
        rows = 4 if self.fc.weight.is_cuda else 1
        # Pixels stay 0..255 (exact in bf16), so 1/255 goes into the weight.
        conv1, conv2 = fold_pixels(self.conv1.weight / 255, rows, 4), fold_pixels(self.conv2.weight, 1, 2)
        return [self._cast(w) for w in (conv1, self.conv1.bias, conv2, self.conv2.bias, self.fc.weight, self.fc.bias)]

    def encode(self, image_NHWC: Tensor, weights: Weights) -> Tensor:
        return self.layers(image_NHWC, weights)[-1]

    def layers(self, image_NHWC: Tensor, weights: Weights) -> Activations:
        w1, b1, w2, b2, w3, b3 = weights
        joined, stride = self._join(image_NHWC)
        x1 = _conv_relu(joined, w1, b1, stride)
        x2 = _conv_relu(join_pixels(x1.permute(0, 2, 3, 1), 1, 2), w2, b2, (2, 1))
        return x1, x2, F.relu(F.linear(_flat(x2), w3, b3), inplace=True)

    def _join(self, image_NHWC: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The first convolution's input in the working precision, and its stride."""
        rows = 4 if image_NHWC.is_cuda else 1
        return join_pixels(image_NHWC, rows, 4, self.dtype), (4 // rows, 1)

    def replay(self, image_NHWC: Tensor, tape: list[Activations], weights: Weights) -> Tensor:
        return _Replay.apply(self, image_NHWC, tape, *weights)


class _Replay(torch.autograd.Function):
    """The forward pass is on the tape already; the backward pass goes through it in chunks."""

    @staticmethod
    def forward(
        ctx: Any, encoder: ShallowEncoder, image_NHWC: Tensor, tape: list[Activations], *weights: Tensor
    ) -> Tensor:
        ctx.encoder, ctx.image_NHWC, ctx.tape = encoder, image_NHWC, tape
        ctx.save_for_backward(*weights)
        return torch.cat([embedding for _, _, embedding in tape]).float()

    @staticmethod
    def backward(ctx: Any, d_ND: Tensor) -> tuple[Tensor | None, ...]:
        w1, _, w2, _, w3, _ = ctx.saved_tensors
        batch = len(ctx.tape[0][0])
        steps = len(ctx.tape) if d_ND.is_cuda else max(1, CPU_CHUNK // batch)
        total: list[Tensor] = []
        for start in range(0, len(ctx.tape), steps):
            x1, x2, x3 = (torch.cat(layer) for layer in zip(*ctx.tape[start : start + steps], strict=True))
            rows = slice(start * batch, start * batch + len(x3))
            d3 = _relu_backward(d_ND[rows].to(x3.dtype), x3)
            d2 = _relu_backward((d3 @ w3).view(len(x2), *x2.shape[2:], x2.shape[1]).permute(0, 3, 1, 2), x2)
            joined = join_pixels(x1.permute(0, 2, 3, 1), 1, 2)
            d_joined, dw2, db2 = _conv_backward(d2, joined, w2, (2, 1), wants_input=True)
            d1 = _relu_backward(_split_pixels(d_joined, x1), x1)
            image, stride = ctx.encoder._join(ctx.image_NHWC[rows])
            _, dw1, db1 = _conv_backward(d1, image, w1, stride, wants_input=False)
            chunk = [dw1, db1, dw2, db2, d3.t() @ _flat(x2), d3.sum(0)]
            total = [a + b for a, b in zip(total, chunk, strict=True)] if total else [g.float() for g in chunk]
        return None, None, None, *total


def _split_pixels(joined_NCHW: Tensor, like_NCHW: Tensor) -> Tensor:
    """Undo `join_pixels` of columns; 0 for a column that it dropped."""
    n, channels, height, width = like_NCHW.shape
    split_NHWC = joined_NCHW.permute(0, 2, 3, 1).reshape(n, height, -1, channels)
    dropped = width - split_NHWC.shape[2]
    return (F.pad(split_NHWC, (0, 0, 0, dropped)) if dropped else split_NHWC).permute(0, 3, 1, 2)


def _conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, int]) -> Tensor:
    if x.is_cuda and not torch.is_grad_enabled():  # one kernel
        return torch.cudnn_convolution_relu(x, weight, bias, stride, (0, 0), (1, 1), 1)
    return F.relu(F.conv2d(x, weight, bias, stride), inplace=True)


def _conv_backward(
    d: Tensor, x: Tensor, weight: Tensor, stride: tuple[int, int], wants_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias."""
    wants, backward = (wants_input, True, True), torch.ops.aten.convolution_backward
    return backward(d, x, weight, (len(weight),), stride, (0, 0), (1, 1), False, (0, 0), 1, wants)


def _relu_backward(d: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(d, y, 0)


def _flat(x_NCHW: Tensor) -> Tensor:
    return x_NCHW.permute(0, 2, 3, 1).reshape(len(x_NCHW), -1)


def fold_pixels(kernel_OCYX: Tensor, rows: int, columns: int) -> Tensor:
    """The kernel that does on `join_pixels` what this one does on single pixels with stride (rows, columns)."""
    out, channels, height, width = kernel_OCYX.shape
    split = kernel_OCYX.view(out, channels, height // rows, rows, width // columns, columns).permute(0, 3, 5, 1, 2, 4)
    return split.reshape(out, rows * columns * channels, height // rows, width // columns)


def join_pixels(image_NHWC: Tensor, rows: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
    """Count rows x columns neighbouring pixels as one with that many times the channels: [N, C', H', W']."""
    n, height, width, channels = image_NHWC.shape
    height, width = height // rows * rows if rows > 1 else height, width // columns * columns
    # Pixels beyond a multiple are never seen by a kernel with that stride.
    image_NHWC = image_NHWC[:, :height, :width]
    if rows > 1:
        image_NHWC = image_NHWC.reshape(n, height // rows, rows, width // columns, columns, channels).transpose(2, 3)
    if dtype is not None:
        image_NHWC = image_NHWC.to(dtype, memory_format=torch.contiguous_format)
    return image_NHWC.reshape(n, height // rows, width // columns, rows * columns * channels).permute(0, 3, 1, 2)


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


ENCODERS: dict[str, type[Encoder]] = {"shallow": ShallowEncoder, "deep": DeepEncoder}
