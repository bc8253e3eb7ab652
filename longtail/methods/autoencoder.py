"""IMPALA with visual reconstruction: the embedding has to hold what it takes to draw the image again.

Either a plain autoencoder, or a variational one whose latents are drawn around what the embedding says.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.agents.agent import Agent
from longtail.agents.precision import products
from longtail.impala.act import Rollout
from longtail.methods.method import Method, Sizes

SMALLEST = 20  # pixels a side, for the decoder mirrors the shallow encoder


@dataclass(frozen=True)
class AutoencoderConfig:
    """Reconstruction of images from their embeddings."""

    cost: float = 0.03
    """Weight of the squared error of pixels between 0 and 1: mean over an image, sum over time and worlds."""
    every: int = 4
    """One step of so many is reconstructed, and counts for all of them."""
    variational: bool = False
    """Whether it is a variational autoencoder."""
    latent: int = 64
    """Size of the variational autoencoder's latents."""
    kl_cost: float = 1e-3
    """Weight of their distance from N(0, 1), on top of `cost`."""

    def __post_init__(self) -> None:
        for name, least in {"cost": 0, "every": 1, "latent": 1, "kl_cost": 0}.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"autoencoder.{name} is {getattr(self, name)}: it must be at least {least}")


class Decoder(nn.Module):
    """The shallow encoder backwards: a linear layer, 4x4/2 and 8x8/4 transposed convolutions."""

    def __init__(self, input_dim: int, obs_shape: tuple[int, int, int]) -> None:
        super().__init__()
        height, width, channels = obs_shape
        if min(height, width) < SMALLEST:
            raise ValueError(
                f"method reconstructs images of at least {SMALLEST}x{SMALLEST} pixels: these have {height}x{width}"
            )
        middle = [size // 4 - 1 for size in (height, width)]
        self.small = [(size - 4) // 2 + 1 for size in middle]
        self.fc = nn.Linear(input_dim, 32 * self.small[0] * self.small[1])
        self.conv2 = nn.ConvTranspose2d(32, 16, 4, 2, output_padding=_rest(middle, self.small, 4, 2))
        self.conv1 = nn.ConvTranspose2d(16, channels, 8, 4, output_padding=_rest([height, width], middle, 8, 4))

    def forward(self, x_ND: Tensor) -> Tensor:
        """Logits of pixels [N, C, H, W]."""
        x = F.relu(self.fc(x_ND)).unflatten(1, (32, *self.small))
        return self.conv1(F.relu(self.conv2(x)))


def _rest(sizes: list[int], smaller: list[int], kernel: int, stride: int) -> tuple[int, int]:
    """Pixels at the far edges that the convolution does not see, height and width."""
    rows, columns = (size - (small - 1) * stride - kernel for size, small in zip(sizes, smaller, strict=True))
    return rows, columns


class Autoencoder(Method):
    """Reconstruction as an auxiliary loss; the agent itself is IMPALA's."""

    metrics = ("reconstruction_error", "kl")
    values_M: Tensor
    counts_M: Tensor

    def __init__(self, sizes: Sizes, config: AutoencoderConfig, generator: torch.Generator | None) -> None:
        super().__init__(sizes, config, generator)
        self.config, self.generator = config, generator
        self.latent = nn.Linear(sizes.embedding, 2 * config.latent) if config.variational else None
        self.decoder = Decoder(config.latent if config.variational else sizes.embedding, sizes.obs_shape)
        self.register_buffer("counts_M", torch.tensor([True, config.variational]), persistent=False)

    def loss(self, agent: Agent, rollout: Rollout) -> Tensor:
        image_NHWC = rollout.obs[: rollout.unroll : self.config.every].flatten(0, 1)
        embedding_ND = agent.encoder(image_NHWC)
        with products(agent.encoder.dtype):
            x_ND, kl_N = self._draw(embedding_ND)
            pixels_NCHW = torch.sigmoid(self.decoder(x_ND))
        error_N = (pixels_NCHW - image_NHWC.permute(0, 3, 1, 2) / 255).square().flatten(1).mean(1)
        self.values_M = torch.stack([error_N.mean(), kl_N.mean()]).detach()
        return self.config.cost * rollout.action.numel() * (error_N + self.config.kl_cost * kl_N).mean()

    def _draw(self, embedding_ND: Tensor) -> tuple[Tensor, Tensor]:
        """What is decoded, and how far it is from N(0, 1)."""
        if self.latent is None:
            return embedding_ND, embedding_ND.new_zeros(len(embedding_ND))
        mean_NL, log_variance_NL = self.latent(embedding_ND).chunk(2, -1)
        noise_NL = torch.empty_like(mean_NL).normal_(generator=self.generator)
        kl_N = 0.5 * (mean_NL.square() + log_variance_NL.exp() - 1 - log_variance_NL).sum(-1)
        return mean_NL + noise_NL * (0.5 * log_variance_NL).exp(), kl_N

    def report(self) -> tuple[Tensor, Tensor]:
        return self.values_M, self.counts_M
