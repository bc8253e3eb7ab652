"""A memory small enough to be followed by hand, and rollouts for it."""

import math

import torch
from torch import Tensor, nn

from longtail.memory import BoostedMemory, MemoryConfig

IMAGE, P, H, C, D = (4, 4, 1), 3, 4, 5, 6
# Noise of 25 grey levels: no two augmented images are the same, so no two losses are.
SMALL = MemoryConfig(
    capacity=8, neighbours=3, key_dim=C, familiarity=12, hop=2, transfer=3, transfer_every=2, beta=0.8, sigma=0.1,
    amplify=False,
)  # fmt: skip


def build(config: MemoryConfig = SMALL, seed: int = 0, device: str = "cpu") -> BoostedMemory:
    torch.manual_seed(seed)
    generator = torch.Generator(device).manual_seed(seed)
    return BoostedMemory(P, H, IMAGE, config, generator).to(device)


class Embedding(nn.Module):
    """A tiny encoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(math.prod(IMAGE), D)

    def forward(self, image_NHWC: Tensor) -> Tensor:
        return self.linear(image_NHWC.flatten(1) / 255 - 0.5)


def rollout(seed: int, T: int = 5, B: int = 2, device: str = "cpu") -> list[Tensor]:
    """images, p, h, tag; of six different images, the first more often than the last."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randint(256, (6, *IMAGE), dtype=torch.uint8, generator=torch.Generator().manual_seed(99))
    which_TB = (6 * torch.rand(T, B, generator=generator) ** 2).long()
    p_TBP, h_TBH = (torch.randn(T, B, size, generator=generator) for size in (P, H))
    tag_TB = torch.randint(-(2**62), 2**62, (T, B), generator=generator)
    return [x.to(device) for x in (pictures[which_TB], p_TBP, h_TBH, tag_TB)]


def fill(memory: BoostedMemory, seed: int = 0) -> None:
    """Exactly as many states as there are slots, one trajectory."""
    memory.observe(*rollout(seed, T=1 + (memory.config.familiarity - 1) * memory.config.hop, B=1))


def questions(seed: int = 7, B: int = 6, device: str = "cpu") -> list[Tensor]:
    """p and h of B worlds."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, size, generator=generator).to(device) for size in (P, H)]


def twin(generator: torch.Generator) -> torch.Generator:
    """Draws what the other will draw, without drawing from it."""
    return torch.Generator().set_state(generator.get_state())


# Algorithm 1


def grown(config: MemoryConfig = SMALL) -> BoostedMemory:
    """With something in MEM."""
    memory, encoder = build(config), Embedding()
    for number in range(8):
        step(memory, encoder, number)
    assert memory.mem.filled > 3
    return memory


def step(memory: BoostedMemory, encoder: nn.Module, number: int, T: int = 5) -> list[Tensor]:
    """A round as an agent does it, with a step of gradient descent; what the agent sees of it."""
    reader = memory.reader()
    with torch.no_grad():
        acted = reader(*questions(number))
    memory.observe(*rollout(number, T))
    loss = memory.loss(encoder)
    learnt = memory.read(*questions(number), memory.keys())
    parameters = [*memory.parameters(), *encoder.parameters()]
    gradients = torch.autograd.grad(loss + learnt.square().sum(), parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= 0.05 * gradient
    memory.update()
    return [acted, loss.detach(), learnt.detach()]
