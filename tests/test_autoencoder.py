"""Reconstruction: the decoder gives images of every shape, learns to draw them, and its loss is what the fields say."""

from dataclasses import replace

import pytest
import torch
from tiny import tiny, trained, with_method
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from longtail.agents.agent import Agent, AgentConfig
from longtail.impala.act import Rollout
from longtail.methods import Sizes
from longtail.methods.autoencoder import Autoencoder, AutoencoderConfig, Decoder
from longtail.worlds import GridworldConfig, make

SHAPES = [(84, 84, 3), (63, 63, 3), (96, 72, 3), (72, 96, 3), (20, 20, 1), (21, 20, 4), (22, 27, 2), (23, 41, 3)]
VARIANTS = {"plain": AutoencoderConfig(every=2), "variational": AutoencoderConfig(every=2, variational=True, latent=6)}
EACH = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
WORLD = GridworldConfig(levels="generated", maps=2, objects=2, rooms=2, resolution=28)
T, B = 6, 3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_decoder_gives_the_images_shape(shape: tuple[int, int, int], device: str) -> None:
    height, width, channels = shape
    decoder = Decoder(5, shape).to(device)
    made_NCHW = decoder(torch.randn(2, 5, device=device))
    assert made_NCHW.shape == (2, channels, height, width)
    # Each pixel that the encoder's first layer sees is drawn, and is more than a bias.
    with torch.no_grad():
        for p in decoder.parameters():
            p.abs_()
        decoder.conv1.bias.zero_()
    seen_NCHW = decoder(torch.ones(1, 5, device=device)) > 0
    rows, columns = (8 + 4 * ((size - 8) // 4) for size in (height, width))
    assert seen_NCHW[..., :rows, :columns].all()


@pytest.mark.parametrize("shape", [(19, 20, 3), (20, 19, 3), (8, 84, 3)], ids=str)
def test_images_that_are_too_small_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=rf"at least 20x20 pixels: these have {shape[0]}x{shape[1]}"):
        Decoder(5, shape)


def build(config: AutoencoderConfig, seed: int = 0) -> tuple[Autoencoder, Agent, Rollout]:
    """With a rollout of random images."""
    torch.manual_seed(0)
    world = make(WORLD, B)
    agent = Agent(world.obs_shape, world.num_actions, AgentConfig(embedding=64, hidden=8))
    sizes = Sizes(world.obs_shape, world.num_actions, 64, 8, B, T)
    method = Autoencoder(sizes, config, torch.Generator().manual_seed(seed))
    rollout = Rollout.empty(world, agent, T)
    rollout.obs.random_(256, generator=torch.Generator().manual_seed(1))
    return method, agent, rollout


def drawn(method: Autoencoder, embedding_D: Tensor, noise_L: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels of one image, and its divergence, from distributions."""
    if method.latent is None:
        return torch.sigmoid(method.decoder(embedding_D[None])[0]), torch.zeros(())
    mean_L, log_variance_L = method.latent(embedding_D).chunk(2)
    posterior = Independent(Normal(mean_L, log_variance_L.exp().sqrt()), 1)
    prior = Independent(Normal(torch.zeros_like(mean_L), torch.ones_like(mean_L)), 1)
    latent_L = mean_L + noise_L * posterior.base_dist.scale
    return torch.sigmoid(method.decoder(latent_L[None])[0]), kl_divergence(posterior, prior)


@EACH
@pytest.mark.parametrize("fields", [{}, {"cost": 0.3, "kl_cost": 0.7}, {"every": 1}, {"every": 4}], ids=str)
def test_the_loss_by_images(config: AutoencoderConfig, fields: dict[str, float]) -> None:
    """Each step that is drawn stands for `every` of them: T x B times the mean, of the squared error and of the KL."""
    config = replace(config, **fields)  # type: ignore[arg-type]
    method, agent, rollout = build(config, seed=3)
    with torch.no_grad():
        for p in method.parameters():  # far enough from N(0, 1) that the divergence counts
            p *= 4
    loss = method.loss(agent, rollout)
    steps = range(0, T, config.every)  # the row after the last step is not drawn
    noise = torch.empty(len(steps) * B, config.latent).normal_(generator=torch.Generator().manual_seed(3))
    errors, divergences = [], []
    for i, (t, b) in enumerate((t, b) for t in steps for b in range(B)):
        image = rollout.obs[t, b]
        pixels_CHW, divergence = drawn(method, agent.encoder(image[None])[0], noise[i])
        errors.append((pixels_CHW.permute(1, 2, 0) - image / 255).square().mean())
        divergences.append(divergence)
    error, divergence = torch.stack(errors).mean(), torch.stack(divergences).mean()
    torch.testing.assert_close(loss, config.cost * T * B * (error + config.kl_cost * divergence), rtol=1e-5, atol=1e-6)
    values_M, counts_M = method.report()
    torch.testing.assert_close(values_M, torch.stack([error, divergence]).detach(), rtol=1e-5, atol=1e-7)
    assert counts_M.tolist() == [True, config.variational] and (float(divergence.detach()) > 0.1) == config.variational


@EACH
def test_the_error_falls(config: AutoencoderConfig) -> None:
    """Random blocks are drawn again, each image's own; the gradient reaches the encoder as well."""
    method, agent, rollout = build(replace(config, kl_cost=1e-5, every=1))
    blocks = 255 * torch.randint(2, (T, B, 4, 4, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    rollout.obs[:T] = blocks.repeat_interleave(7, 2).repeat_interleave(7, 3)
    optimizer = torch.optim.Adam([*agent.encoder.parameters(), *method.parameters()], lr=3e-3)
    before, errors = agent.encoder.fc.weight.detach().clone(), []
    for _ in range(150):
        optimizer.zero_grad()
        method.loss(agent, rollout).backward()
        optimizer.step()
        errors.append(float(method.report()[0][0]))
    images = rollout.obs[:T].flatten(0, 1) / 255
    spread = float((images - images.mean(0)).square().mean())  # the error of always drawing the mean image
    assert errors[0] > spread and errors[-1] < 0.2 * spread
    assert not torch.equal(agent.encoder.fc.weight, before)


@EACH
def test_only_a_variational_one_draws(config: AutoencoderConfig) -> None:
    """From the run's own generator, which goes on from draw to draw."""
    losses = []
    for _ in range(2):
        method, agent, rollout = build(config)
        losses.append([float(method.loss(agent, rollout).detach()) for _ in range(2)])
    assert losses[0] == losses[1]
    assert (losses[0][0] != losses[0][1]) == config.variational


@pytest.mark.parametrize("method", ["reconstruction", "vae"])
def test_training_lowers_the_error(method: str) -> None:
    run = with_method(tiny(), method, cost=10.0)
    errors = [float(trained(run, iterations).method.report()[0][0]) for iterations in (1, 60)]
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize(
    ("field", "value", "least"), [("cost", -1.0, 0), ("every", 0, 1), ("latent", 0, 1), ("kl_cost", -0.1, 0)]
)
def test_bad_fields_are_named(field: str, value: float, least: int) -> None:
    with pytest.raises(ValueError, match=rf"autoencoder\.{field} is {value}: it must be at least {least}"):
        AutoencoderConfig(**{field: value})  # type: ignore[arg-type]
