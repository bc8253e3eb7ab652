"""How exactly a GPU computes products of fp32 tensors, which hold states, gradients and master weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products(dtype: torch.dtype) -> Iterator[None]:
    """Within, bf16 lets products of fp32 tensors round their factors to TF32 on a GPU; sums stay in fp32.

    fp32 computes them in full, which is what distances between keys need; PyTorch alone would round those of
    convolutions. A backward pass rounds as what is set around it says, not as it was around the forward pass.
    The caller's own setting comes back after.
    """
    before, cudnn_before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    _set("high" if dtype == torch.bfloat16 else "highest", dtype == torch.bfloat16)
    try:
        yield
    finally:
        _set(before, cudnn_before)


def _set(matmul: str, cudnn_tf32: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn_tf32
