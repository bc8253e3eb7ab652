"""The encoders equal plain convolutions on pixels / 255, in their results and in every gradient."""

from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longtail.agents.agent import ENCODERS
from longtail.agents.encoder import DeepEncoder, Encoder
from longtail.agents.precision import products
from longtail.agents.shallow import ShallowEncoder

SHAPES = [(84, 84, 3), (84, 84, 1), (96, 72, 3), (85, 90, 3), (20, 23, 4)]


def build(kind: str, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32, device: str = "cpu") -> Encoder:
    torch.manual_seed(0)
    return ENCODERS[kind](shape, 32, dtype).to(device)


def random_images(count: int, shape: tuple[int, int, int], device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator).to(device)


def plain(encoder: Encoder, image_NHWC: Tensor) -> Tensor:
    """What the encoder means, in double precision; the last layer reads rows, then columns, then channels."""
    x = image_NHWC.permute(0, 3, 1, 2).double() / 255
    if isinstance(encoder, ShallowEncoder):
        x = F.relu(F.conv2d(x, encoder.conv1.weight.double(), encoder.conv1.bias.double(), stride=4))
        x = F.relu(F.conv2d(x, encoder.conv2.weight.double(), encoder.conv2.bias.double(), stride=2))
    else:
        x = F.relu(plain_stages(encoder, x))
    x = x.permute(0, 2, 3, 1).flatten(1)
    return F.relu(F.linear(x, encoder.fc.weight.double(), encoder.fc.bias.double()))


def plain_stages(encoder: DeepEncoder, x: Tensor) -> Tensor:
    def convolve(x: Tensor) -> Tensor:
        conv = next(convolutions)
        return F.conv2d(x, conv.weight.double(), conv.bias.double(), padding=1)

    convolutions = iter(encoder.convolutions)
    for _ in range(3):
        x = F.max_pool2d(convolve(x), kernel_size=3, stride=2, padding=1)
        for _ in range(2):
            x = x + convolve(F.relu(convolve(F.relu(x))))
    return x


def difference(made: Tensor, expected: Tensor) -> float:
    """Norm of the difference, relative to what it should be."""
    made, expected = made.detach().double(), expected.detach().double()
    return float((made - expected).norm() / expected.norm())


def gradients(encoder: Encoder, embedding_ND: Tensor) -> dict[str, Tensor]:
    """Of a random projection, so that errors cannot cancel."""
    weight_ND = torch.randn(embedding_ND.shape, generator=torch.Generator().manual_seed(2)).to(embedding_ND)
    names, parameters = zip(*encoder.named_parameters(), strict=True)
    with products(encoder.dtype):  # as the learner does it
        return dict(zip(names, torch.autograd.grad((embedding_ND * weight_ND).sum(), parameters), strict=True))


def check(encoder: Encoder, images: Tensor, tolerance: float, gradient_tolerance: float) -> None:
    made, expected = encoder(images), plain(encoder, images)
    assert made.dtype == torch.float32 and made.shape == (len(images), 32)
    assert difference(made, expected) < tolerance
    made_gradients, expected_gradients = gradients(encoder, made), gradients(encoder, expected)
    for name, gradient in made_gradients.items():
        assert difference(gradient, expected_gradients[name]) < gradient_tolerance, name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ENCODERS)
def test_equals_plain_convolutions(kind: str, shape: tuple[int, int, int], device: str) -> None:
    check(build(kind, shape, device=device), random_images(3, shape, device), 1e-6, 1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ENCODERS)
def test_equals_plain_convolutions_roughly_in_bf16(kind: str, shape: tuple[int, int, int], device: str) -> None:
    check(build(kind, shape, torch.bfloat16, device), random_images(3, shape, device), 0.02, 0.3)


@settings(max_examples=25)
@given(st.integers(20, 50), st.integers(20, 50), st.integers(1, 4), st.integers(1, 3), st.sampled_from([*ENCODERS]))
def test_every_shape_equals_plain_convolutions(height: int, width: int, channels: int, count: int, kind: str) -> None:
    shape = (height, width, channels)
    check(build(kind, shape), random_images(count, shape), 1e-6, 1e-5)


@given(st.integers(8, 20), st.integers(8, 20))
def test_the_deep_encoder_takes_small_images(height: int, width: int) -> None:
    check(build("deep", (height, width, 3)), random_images(2, (height, width, 3)), 1e-6, 1e-5)


@pytest.mark.parametrize("kind", ENCODERS)
def test_many_images_at_once_give_what_they_give_alone(kind: str, device: str) -> None:
    """On a CPU, large batches go through in chunks; 600 is several of them and a part."""
    encoder, images = build(kind, (20, 21, 3), device=device), random_images(600, (20, 21, 3), device)
    check(encoder, images, 1e-6, 1e-2)  # a few of so many units are so near 0 that rounding switches them
    with torch.no_grad():
        assert difference(encoder(images), torch.cat([encoder(part) for part in images.split(7)])) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ENCODERS)
def test_prepared_weights_change_nothing(kind: str, dtype: torch.dtype, device: str) -> None:
    encoder, images = build(kind, (24, 24, 3), dtype, device), random_images(4, (24, 24, 3), device)
    weights = encoder.prepare()
    assert torch.equal(encoder(images, weights), encoder(images))
    one, other = gradients(encoder, encoder(images, weights)), gradients(encoder, encoder(images))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ENCODERS)
def test_images_may_be_a_part_of_something_larger(kind: str) -> None:
    """Rows of a rollout, or of somebody else's array, need not be contiguous."""
    encoder, images = build(kind, (24, 24, 3)), random_images(6, (28, 24, 3))
    for part in (images[::2, 2:26], images[:, :24].transpose(1, 2), images[:1, :24].expand(5, 24, 24, 3)):
        with torch.no_grad():
            assert difference(encoder(part), encoder(part.contiguous())) < 1e-6


@pytest.mark.parametrize("kind", ENCODERS)
def test_black_and_white_are_told_apart(kind: str) -> None:
    """255 is 1.0 and not -1: pixels are unsigned."""
    encoder, white = build(kind, (24, 24, 3)), torch.full((1, 24, 24, 3), 255, dtype=torch.uint8)
    with torch.no_grad():
        assert difference(encoder(white), plain(encoder, white)) < 1e-6
        assert difference(encoder(white * 0), encoder(white)) > 0.01


@pytest.mark.parametrize(("kind", "smallest"), [("shallow", 20), ("deep", 8)])
def test_images_that_are_too_small_are_refused(kind: str, smallest: int) -> None:
    assert build(kind, (smallest, smallest, 1))(random_images(1, (smallest, smallest, 1))).shape == (1, 32)
    for shape in ((smallest - 1, 84, 3), (84, smallest - 1, 3)):
        wanted = f"observations are {shape[0]}x{shape[1]}: this encoder needs at least {smallest}x{smallest} pixels"
        with pytest.raises(ValueError, match=wanted):
            build(kind, shape)


def test_precision_holds_within_and_no_longer() -> None:
    """Whatever the caller has set comes back, after an error too."""

    def current() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = current()
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = False
        with suppress(KeyError), products(torch.bfloat16):
            assert current() == ("high", True)
            with products(torch.float32):
                assert current() == ("highest", False)
            assert current() == ("high", True)
            raise KeyError
        assert current() == ("high", False)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
