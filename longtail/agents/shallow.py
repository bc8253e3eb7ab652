"""IMPALA's shallow encoder (Espeholt et al., 2018), and its second life: what acting computed is learned from as it is.

Both convolutions are computed on joined pixels: neighbours count as one pixel with that many times the channels, so
that an 8x8/4 kernel on 3 channels becomes one of 2x2 with stride 1 on 48. The function is exactly the same, and the
arithmetic far denser. On a CPU only columns are joined: that is a view of the image, where joining rows is a slow copy.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.agents.encoder import CPU_CHUNK, Encoder, Weights
from longtail.onednn import Stride, conv2d, linear, pack_conv, pack_linear

# Both convolutions [B, H, W, C] and the embedding [B, D].
Activations = tuple[Tensor, ...]


class ShallowEncoder(Encoder):
    """8x8/4 and 4x4/2 convolutions and a linear layer."""

    smallest = 20

    def __init__(self, obs_shape: tuple[int, int, int], embedding_dim: int, dtype: torch.dtype) -> None:
        super().__init__(obs_shape, embedding_dim, dtype)
        height, width, channels = obs_shape
        self.conv1 = nn.Conv2d(channels, 16, 8, 4)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        shape1 = (height // 4 - 1, width // 4 - 1, 16)
        shape2 = ((shape1[0] - 4) // 2 + 1, (shape1[1] - 4) // 2 + 1, 32)
        self.fc = nn.Linear(shape2[0] * shape2[1] * shape2[2], embedding_dim)
        self.shapes = (obs_shape, shape1, shape2, (embedding_dim,))

    def prepare(self, batch: int = 1) -> Weights:
        rows = 4 if self.fc.weight.is_cuda else 1
        # Pixels stay 0..255 (exact in bf16), so 1/255 goes into the weight.
        conv1, conv2 = fold_pixels(self.conv1.weight / 255, rows, 4), fold_pixels(self.conv2.weight, 1, 2)
        parameters = (conv1, self.conv1.bias, conv2, self.conv2.bias, self.fc.weight, self.fc.bias)
        w1, b1, w2, b2, w3, b3 = (self._cast(w) for w in parameters)
        if batch > 1:
            (height, width, channels), shape1, *_ = self.shapes
            w1 = pack_conv(w1, (4 // rows, 1), (batch, 4 * channels, height, width // 4))
            w2 = pack_conv(w2, (2, 1), (batch, 32, shape1[0], shape1[1] // 2))
            w3 = pack_linear(w3, batch)
        return [w1, b1, w2, b2, w3, b3]

    def forward(self, image_NHWC: Tensor, weights: Weights | None = None) -> Tensor:
        """On a CPU with gradients by a tape: pixels and layers are not kept a second time in another form."""
        weights = self.prepare() if weights is None else weights
        if image_NHWC.is_cuda or not torch.is_grad_enabled():
            return super().forward(image_NHWC, weights)
        tape = ImageTape(self, len(image_NHWC))
        with torch.no_grad():
            packed = self.prepare(CPU_CHUNK) if len(image_NHWC) >= CPU_CHUNK else weights
            for chunk_SHWC in image_NHWC.split(CPU_CHUNK):
                tape.record(chunk_SHWC, packed if len(chunk_SHWC) == CPU_CHUNK else weights)
        return tape.replay(image_NHWC, weights)

    def encode(self, image_NHWC: Tensor, weights: Weights) -> Tensor:
        return self.layers(image_NHWC, weights)[-1]

    def layers(self, image_NHWC: Tensor, weights: Weights, out: Activations | None = None) -> Activations:
        """Every layer's result, written into `out` if given (on a CPU, without gradients)."""
        w1, b1, w2, b2, w3, b3 = weights
        x1_out, x2_out, x3_out = (None, None, None) if out is None else out
        x1 = _conv_relu(*_pixels(image_NHWC, self.dtype), w1, b1, x1_out)
        x2 = _conv_relu(join_columns(x1, 2), (2, 1), w2, b2, x2_out)
        return x1, x2, _relu(linear(x2.flatten(1), w3, b3), x3_out)


class ImageTape:
    """What several calls computed from N images in all, such as the steps of acting.

    On a CPU each layer is one tensor [N, ...] that calls write into, so that nothing is copied to join them.
    """

    def __init__(self, encoder: ShallowEncoder, num_images: int) -> None:
        self.encoder, self.count = encoder, 0
        self.steps: list[Activations] = []
        self.buffers = None
        if not encoder.fc.weight.is_cuda:
            self.buffers = tuple(torch.empty(num_images, *shape, dtype=encoder.dtype) for shape in encoder.shapes[1:])

    def clear(self) -> None:
        self.steps.clear()
        self.count = 0

    def record(self, image_BHWC: Tensor, weights: Weights) -> Tensor:
        """Embeddings of some more images."""
        end = self.count + len(image_BHWC)
        out = None if self.buffers is None else tuple(buffer[self.count : end] for buffer in self.buffers)
        self.steps.append(self.encoder.layers(image_BHWC, weights, out))
        self.count = end
        return self.steps[-1][-1].float()

    def replay(self, image_NHWC: Tensor, weights: Weights) -> Tensor:
        """Embeddings of all images that were recorded, differentiable, without computing them a second time."""
        return _Replay.apply(self, image_NHWC, *weights)

    def layers(self) -> Activations:
        """Of all images."""
        return self.buffers or tuple(torch.cat(layer) for layer in zip(*self.steps, strict=True))


class _Replay(torch.autograd.Function):
    """The forward pass is on the tape already; the backward pass of the convolutions goes through it in chunks."""

    @staticmethod
    def forward(ctx: Any, tape: ImageTape, image_NHWC: Tensor, *weights: Tensor) -> Tensor:
        ctx.image_NHWC, ctx.layers = image_NHWC, tape.layers()
        ctx.save_for_backward(*weights)
        # A copy in fp32, too: a result that its own node holds would keep the whole graph alive.
        return ctx.layers[-1].to(torch.float32, copy=True)

    @staticmethod
    def backward(ctx: Any, d_ND: Tensor) -> tuple[Tensor | None, ...]:
        w1, _, w2, _, w3, _ = ctx.saved_tensors
        x1, x2, x3 = ctx.layers
        d3 = _relu_backward(d_ND.to(x3.dtype), x3)
        d2 = _relu_backward((d3 @ w3).view_as(x2), x2)
        chunk = len(d3) if d3.is_cuda else CPU_CHUNK
        total: list[Tensor] = []
        for d, x, image_NHWC in zip(d2.split(chunk), x1.split(chunk), ctx.image_NHWC.split(chunk), strict=True):
            d1, dw2, db2 = _conv_backward(d, join_columns(x, 2), (2, 1), w2, wants_input=True)
            d1 = _relu_backward(_split_columns(d1, x), x)
            _, dw1, db1 = _conv_backward(d1, *_pixels(image_NHWC, x.dtype), w1, wants_input=False)
            grads = [dw1, db1, dw2, db2]
            total = [a.add_(b) for a, b in zip(total, grads, strict=True)] if total else [g.float() for g in grads]
        return None, None, *total, d3.t() @ x2.flatten(1), d3.sum(0)


def _pixels(image_NHWC: Tensor, dtype: torch.dtype) -> tuple[Tensor, Stride]:
    """The first convolution's input in the working precision, and its stride."""
    if not image_NHWC.is_cuda:
        return join_columns(image_NHWC.to(dtype), 4), (4, 1)
    n, height, width, channels = image_NHWC.shape
    rows, columns = height // 4, width // 4
    # Pixels beyond a multiple of 4 are never seen by a kernel with that stride.
    split = image_NHWC[:, : 4 * rows, : 4 * columns].reshape(n, rows, 4, columns, 4 * channels).transpose(2, 3)
    return split.to(dtype, memory_format=torch.contiguous_format).flatten(3).permute(0, 3, 1, 2), (1, 1)


def _conv_relu(x_NCHW: Tensor, stride: Stride, weight: Tensor, bias: Tensor, out: Tensor | None) -> Tensor:
    """To [N, H, W, C]."""
    if x_NCHW.is_cuda and not torch.is_grad_enabled():  # one kernel
        return torch.cudnn_convolution_relu(x_NCHW, weight, bias, stride, (0, 0), (1, 1), 1).permute(0, 2, 3, 1)
    return _relu(conv2d(x_NCHW, weight, bias, stride).permute(0, 2, 3, 1), out)


def _relu(x: Tensor, out: Tensor | None) -> Tensor:
    return F.relu(x, inplace=True) if out is None else torch.clamp_min(x, 0, out=out)


def _relu_backward(d: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(d, y, 0)


def _conv_backward(
    d_NHWC: Tensor, x_NCHW: Tensor, stride: Stride, weight: Tensor, wants_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias."""
    wants, d_NCHW, backward = (wants_input, True, True), d_NHWC.permute(0, 3, 1, 2), torch.ops.aten.convolution_backward
    return backward(d_NCHW, x_NCHW, weight, (len(weight),), stride, (0, 0), (1, 1), False, (0, 0), 1, wants)


def fold_pixels(kernel_OCYX: Tensor, rows: int, columns: int) -> Tensor:
    """The kernel that does on joined pixels what this one does on single pixels with stride (rows, columns)."""
    out, channels, height, width = kernel_OCYX.shape
    split = kernel_OCYX.view(out, channels, height // rows, rows, width // columns, columns).permute(0, 3, 5, 1, 2, 4)
    return split.reshape(out, rows * columns * channels, height // rows, width // columns)


def join_columns(image_NHWC: Tensor, columns: int) -> Tensor:
    """Count neighbouring columns as one with that many times the channels: [N, C', H, W'], a view."""
    n, height, width, channels = image_NHWC.shape
    # Columns beyond a multiple are never seen by a kernel with that stride.
    whole = image_NHWC[:, :, : width // columns * columns]
    return whole.reshape(n, height, width // columns, columns * channels).permute(0, 3, 1, 2)


def _split_columns(joined_NCHW: Tensor, like_NHWC: Tensor) -> Tensor:
    """Undo `join_columns`; 0 for a column that it dropped."""
    n, height, width, channels = like_NHWC.shape
    split_NHWC = joined_NCHW.permute(0, 2, 3, 1).reshape(n, height, -1, channels)
    dropped = width - split_NHWC.shape[2]
    return F.pad(split_NHWC, (0, 0, 0, dropped)) if dropped else split_NHWC
