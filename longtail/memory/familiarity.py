"""The familiarity buffer: a ring of recent states, with the momentum of each one's contrastive loss (Fig. 4)."""

import torch
from torch import Tensor, nn

from longtail.memory.contrastive import image_hash
from longtail.memory.momentum import momentum_loss


def hop_subset(x_TB: Tensor, hop: int) -> Tensor:
    """States 1, 1 + hop, 1 + 2 hop, ... of each trajectory (Eq. 8), [S, ...]."""
    return x_TB[::hop].flatten(0, 1)


class FamiliarityBuffer(nn.Module):
    """The newest N states: image, p, h, the key that they were stored with, and whatever tag came with them.

    Everything is a buffer of the module, so `state_dict` is complete. Nothing here waits for the device.
    """

    image: Tensor
    p: Tensor
    h: Tensor
    key: Tensor
    tag: Tensor
    hash: Tensor
    momentum: Tensor
    passes: Tensor
    transferred: Tensor
    next: Tensor
    filled: Tensor

    def __init__(
        self, capacity: int, image_shape: tuple[int, ...], embedding_dim: int, hidden_dim: int, key_dim: int
    ) -> None:
        super().__init__()
        self.capacity, N = capacity, capacity
        self.register_buffer("image", torch.zeros(N, *image_shape, dtype=torch.uint8))
        self.register_buffer("p", torch.zeros(N, embedding_dim))
        self.register_buffer("h", torch.zeros(N, hidden_dim))
        self.register_buffer("key", torch.zeros(N, key_dim))
        self.register_buffer("tag", torch.full((N,), -1))
        self.register_buffer("hash", torch.zeros(N, dtype=torch.int64))
        self.register_buffer("momentum", torch.zeros(N))
        self.register_buffer("passes", torch.zeros(N, dtype=torch.int64))
        self.register_buffer("transferred", torch.zeros(N, dtype=torch.bool))
        self.register_buffer("next", torch.zeros((), dtype=torch.int64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    @property
    def is_full(self) -> Tensor:
        return self.filled == self.capacity

    @torch.no_grad()
    def add(self, image_SHWC: Tensor, p_SP: Tensor, h_SH: Tensor, key_SC: Tensor, tag_S: Tensor | None = None) -> None:
        """Overwrite the oldest slots; what was known about them is forgotten."""
        S = len(p_SP)
        if self.capacity < S:
            raise ValueError(
                f"memory.familiarity is {self.capacity}: it must be at least {S}, the states of one rollout that are "
                f"kept (or raise memory.hop)"
            )
        slot_S = (self.next + torch.arange(S, device=self.next.device)) % self.capacity
        self.image.index_copy_(0, slot_S, image_SHWC)
        for mine, new in ((self.p, p_SP), (self.h, h_SH), (self.key, key_SC)):
            mine.index_copy_(0, slot_S, new.detach().to(mine.dtype))
        self.tag.index_copy_(0, slot_S, torch.full_like(slot_S, -1) if tag_S is None else tag_S)
        self.hash.index_copy_(0, slot_S, image_hash(image_SHWC))
        self.momentum.index_fill_(0, slot_S, 0)
        self.passes.index_fill_(0, slot_S, 0)
        self.transferred.index_fill_(0, slot_S, False)
        self.next.add_(S).remainder_(self.capacity)
        self.filled.add_(S).clamp_(max=self.capacity)

    @torch.no_grad()
    def record(self, loss_N: Tensor, beta: float, bias_corrected: bool = False) -> None:
        """One contrastive pass over all slots; without effect until the buffer is full."""
        momentum_N = momentum_loss(self.momentum, loss_N, self.passes, beta, bias_corrected)
        self.momentum.copy_(torch.where(self.is_full, momentum_N, self.momentum))
        self.passes.add_(self.is_full)
