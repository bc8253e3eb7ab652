"""How exactly matrix products of fp32 tensors are computed: fp32 tensors hold states, gradients and master weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products(dtype: torch.dtype) -> Iterator[None]:
    """Within, bf16 lets products round their factors to bf16 on a CPU and to TF32 on a GPU; sums stay in fp32.

    fp32 computes them in full, which is what distances between keys need. The caller's own setting comes back after.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if dtype == torch.bfloat16 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
