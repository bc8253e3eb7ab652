"""The augmentations: the noise's moments and independence, and the cutout's rectangles."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longtail.memory.augment import CPU_CHUNK, add_noise, augment, cut_out, in_pairs, noise_levels, noise_table

SHAPES = [(84, 84, 3), (84, 84, 1), (96, 72, 3), (5, 7, 3), (1, 1, 1)]
BYTES = torch.arange(256, dtype=torch.int16)  # as a table, it shows the random bytes themselves


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def random_images(count: int, shape: tuple[int, ...] = (84, 84, 3), device: str = "cpu") -> Tensor:
    return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=seeded(9)).to(device)


def white(count: int, shape: tuple[int, ...] = (84, 84, 3), device: str = "cpu") -> Tensor:
    return torch.full((count, *shape), 255, dtype=torch.uint8, device=device)


def rectangle(image_HWC: Tensor) -> tuple[int, int, int, int]:
    """Top, left, height and width of the black part of a white image, which must be a rectangle."""
    black_HW = (image_HWC == 0).all(-1)
    assert torch.equal((image_HWC == 255).all(-1), ~black_HW)  # each pixel wholly black or untouched, in all channels
    rows, columns = (black_HW.any(axis).nonzero()[:, 0].tolist() for axis in (1, 0))
    top, left, height, width = rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    assert black_HW[top : top + height, left : left + width].all() and int(black_HW.sum()) == height * width
    return top, left, height, width


def test_the_papers_noise_is_two_thirds_of_a_grey_level() -> None:
    """N(0, 0.05^2), times 0.05 once more, on pixels of which 1 is 255 grey levels."""
    assert noise_levels(0.05) == pytest.approx(0.6375, rel=1e-12)
    assert noise_levels(0.05, amplified=False) == pytest.approx(12.75, rel=1e-12)
    drawn = 255 * 0.05 * torch.normal(0.0, 0.05, (1_000_000,), generator=seeded())
    assert noise_levels(0.05) == pytest.approx(float(drawn.std()), rel=5e-3)


@pytest.mark.parametrize("amplified", [True, False], ids=["amplified", "plain"])
@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0])
def test_table_has_the_moments_of_the_noise(sigma: float, amplified: bool) -> None:
    levels = noise_levels(sigma, amplified)
    table = noise_table(levels)
    assert table.dtype == torch.int16 and table.shape == (256,) and torch.equal(table, -table.flip(0))
    squares = float(table.double().square().sum())
    # A pair of +-1 is the smallest change in a narrow table; wide ones meet rounding borders in groups.
    assert squares == pytest.approx(256 * levels**2, abs=1.0, rel=3e-3)


@pytest.mark.parametrize("levels", [0.6375, 2.55, 12.75, 51.0])
def test_table_is_bell_shaped(levels: float) -> None:
    normal = torch.distributions.Normal(0.0, levels)
    quantile = normal.icdf((torch.arange(256, dtype=torch.float64) + 0.5) / 256)
    assert (noise_table(levels) - quantile).abs().max() < 1


def test_every_byte_picks_evenly(device: str) -> None:
    """No bit of the random words is stuck or left out: each of the 8 places in a word has all 256 numbers alike."""
    black = torch.zeros(64, 64, 64, 8, dtype=torch.uint8, device=device)
    count = black.numel() // 8
    byte_N8 = add_noise(black, in_pairs(BYTES).to(device), seeded(1, device)).view(-1, 8)
    for place in range(8):
        found = torch.bincount(byte_N8[:, place].long(), minlength=256).double()
        chi_square = float(((found - count / 256) ** 2 / (count / 256)).sum())
        assert abs(chi_square - 255) < 6 * math.sqrt(2 * 255)


@pytest.mark.parametrize("amplified", [True, False], ids=["amplified", "plain"])
def test_noise_on_images_has_the_tables_moments(amplified: bool, device: str) -> None:
    levels = noise_levels(0.05, amplified)
    grey = torch.full((32, 84, 84, 3), 128, dtype=torch.uint8, device=device)
    offset = add_noise(grey, in_pairs(noise_table(levels)).to(device), seeded(2, device)).double() - 128
    deviations = math.sqrt(offset.numel())
    assert abs(float(offset.mean())) < 6 * levels / deviations
    assert float(offset.std()) == pytest.approx(levels, rel=6 / deviations + 1e-3)


def test_noise_is_drawn_for_each_value_of_each_image(device: str) -> None:
    """Not correlated with its neighbours: in a row, a column, the channels, the next image."""
    grey = torch.full((32, 84, 84, 3), 128, dtype=torch.uint8, device=device)
    offset_NHWC = add_noise(grey, in_pairs(noise_table(12.75)).to(device), seeded(3, device)).double() - 128
    for axis in range(4):
        shifted = offset_NHWC.roll(1, axis)
        correlation = float((offset_NHWC * shifted).mean() / offset_NHWC.square().mean())
        assert abs(correlation) < 6 / math.sqrt(grey.numel()), axis


def test_noise_stays_within_0_and_255(device: str) -> None:
    """Nothing wraps around: black gets no darker and white no brighter."""
    table = noise_table(50.0).to(device)
    images = torch.tensor([0, 3, 252, 255], dtype=torch.uint8, device=device).repeat_interleave(10_000)[:, None]
    noisy_4N = add_noise(images, in_pairs(table), seeded(4, device)).view(4, -1).long()
    for made, value in zip(noisy_4N, (0, 3, 252, 255), strict=True):
        possible = (table.long() + value).clamp(0, 255).unique()
        assert torch.equal(made.unique(), possible)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 3, CPU_CHUNK, 2 * CPU_CHUNK + 2])
def test_uint8_in_and_out_and_the_input_stays(shape: tuple[int, int, int], count: int, device: str) -> None:
    images, table = random_images(count, shape, device), in_pairs(noise_table(3.0)).to(device)
    before = images.clone()
    made = augment(images, table, generator=seeded(0, device))
    assert made.dtype == torch.uint8 and made.shape == images.shape and made.is_contiguous()
    assert torch.equal(images, before) and made.data_ptr() != images.data_ptr()


def test_the_seed_decides(device: str) -> None:
    images, table, generator = (
        random_images(70, device=device),
        in_pairs(noise_table(1.0)).to(device),
        seeded(5, device),
    )
    first, second = augment(images, table, generator=generator), augment(images, table, generator=generator)
    again, other = (augment(images, table, generator=seeded(s, device)) for s in (5, 6))
    assert torch.equal(first, again)
    for made in (second, other):
        assert ((made != first).flatten(1).any(1)).all()


def test_chunks_have_noise_and_rectangles_of_their_own(device: str) -> None:
    same = random_images(1, device=device).expand(2 * CPU_CHUNK + 2, -1, -1, -1).contiguous()
    made = augment(same, in_pairs(noise_table(1.0)).to(device), generator=seeded(7, device))
    assert len(made.flatten(1).unique(dim=0)) == len(same)


def test_the_rectangle_covers_the_noise() -> None:
    """Noise first: the rectangle is black, what is around it is noisy, and without noise it is the image itself."""
    grey = torch.full((20, 40, 40, 3), 100, dtype=torch.uint8)
    for image_HWC in augment(grey, in_pairs(noise_table(2.0)), generator=seeded(8)):
        rectangle(torch.where(image_HWC == 0, 0, 255))
        assert image_HWC[image_HWC > 0].double().std() == pytest.approx(2, rel=0.15)
    for image_HWC in augment(grey, in_pairs(noise_table(0.0)), generator=seeded(8)):
        assert set(image_HWC.unique().tolist()) == {0, 100}


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 4)),
    st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    st.integers(0, 2**32),
)
def test_each_image_has_one_black_rectangle(shape: tuple[int, int, int], shares: list[float], seed: int) -> None:
    """Its sides are within the stated shares, rounded to pixels, and at least one pixel."""
    smallest, largest = shares
    for image_HWC in cut_out(white(3, shape), smallest, largest, seeded(seed)):
        for size, side in zip(shape[:2], rectangle(image_HWC)[2:], strict=True):
            assert max(1, size * smallest - 0.501) <= side <= max(1, size * largest + 0.501)


def test_cutout_is_in_place_and_changes_nothing_else() -> None:
    images = random_images(8).clamp_(min=1)
    before = images.clone()
    made = cut_out(images, 0.1, 0.5, seeded(1))
    assert made.data_ptr() == images.data_ptr()
    assert ((made == before) | (made == 0)).all() and ((made == 0).flatten(1).any(1)).all()


def test_sides_and_places_are_uniform_and_independent(device: str) -> None:
    """84 x 84: sides from 4.2 to 42 pixels have a mean of 23.1; each image has its own."""
    count = 1500
    found = [rectangle(image) for image in cut_out(white(count, (84, 84, 1), device), 0.05, 0.5, seeded(2, device))]
    top_N, left_N, height_N, width_N = torch.tensor(found).double().t()
    for side_N in (height_N, width_N):
        assert side_N.min() == 4 and side_N.max() == 42
        assert float(side_N.mean()) == pytest.approx(23.1, abs=6 * 37.8 / math.sqrt(12 * count))
    down_N, right_N = top_N / (84 - height_N), left_N / (84 - width_N)
    for place_N in (down_N, right_N):
        assert place_N.min() == 0 and place_N.max() == 1
        assert float(place_N.mean()) == pytest.approx(0.5, abs=6 / math.sqrt(12 * count))
    correlation_44 = torch.corrcoef(torch.stack([height_N, width_N, down_N, right_N])) - torch.eye(4)
    assert correlation_44.abs().max() < 6 / math.sqrt(count)


def test_every_place_is_reached_equally_often(device: str) -> None:
    """Half of 6 x 8 pixels: 4 x 5 places, corners like the others."""
    count = 4000
    found = [rectangle(image) for image in cut_out(white(count, (6, 8, 1), device), 0.5, 0.5, seeded(3, device))]
    assert {place[2:] for place in found} == {(3, 4)}
    places = torch.zeros(4, 5)
    for top, left, *_ in found:
        places[top, left] += 1
    expected = count / 20
    assert (places - expected).abs().max() < 5 * math.sqrt(expected)


def test_whole_images_and_single_pixels() -> None:
    assert (cut_out(white(4), 1.0, 1.0, seeded()) == 0).all()
    assert {rectangle(image)[2:] for image in cut_out(white(4), 0.0, 0.0, seeded())} == {(1, 1)}
