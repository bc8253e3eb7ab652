"""The contrastive loss against a double loop and another library; the image hash against all that could fool it."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive_memory import naive_nt_xent
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.reducers import DoNothingReducer
from torch import Tensor

from longtail.memory.contrastive import copies, image_hash, nt_xent

D = 6


def embeddings(N: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Of images and of their augmented copies, which are somewhat like them; float64, not normalised."""
    z_ND, noise_ND = torch.randn(2, N, D, generator=torch.Generator().manual_seed(seed)).double()
    return 3 * z_ND, z_ND + noise_ND


def labels(N: int, kinds: int = 4) -> Tensor:
    return torch.randint(kinds, (N,), generator=torch.Generator().manual_seed(1)) * 2**60 - 2**61


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("N", [1, 2, 17])
def test_loss_equals_the_double_loop(N: int, temperature: float) -> None:
    z_ND, augmented_ND = embeddings(N)
    for label_N in (None, labels(N), labels(N, 1)):
        label = None if label_N is None else label_N.tolist()
        expected_N = naive_nt_xent(z_ND, augmented_ND, temperature, label)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
            made_N = nt_xent(z_ND.to(dtype), augmented_ND.to(dtype), temperature, label_N)
            assert made_N.shape == (N,) and made_N.dtype == dtype
            torch.testing.assert_close(made_N.double(), expected_N, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
def test_loss_equals_pytorch_metric_learning(temperature: float) -> None:
    """Its pairs are given: the augmented sample is the positive, the other samples as they are the negatives."""
    z_ND, augmented_ND = embeddings(12)
    N = torch.arange(12)
    anchor, negative = torch.nonzero(~torch.eye(12, dtype=torch.bool), as_tuple=True)
    theirs = NTXentLoss(temperature, reducer=DoNothingReducer())
    expected = theirs(torch.cat([z_ND, augmented_ND]), indices_tuple=(N, 12 + N, anchor, negative))["loss"]
    assert torch.equal(expected["indices"][0], N)
    torch.testing.assert_close(nt_xent(z_ND, augmented_ND, temperature), expected["losses"], rtol=1e-12, atol=1e-12)


def test_labels_equal_pytorch_metric_learning() -> None:
    z_ND, augmented_ND = embeddings(12)
    N, label_N = torch.arange(12), labels(12)
    anchor, negative = torch.nonzero(label_N[:, None] != label_N, as_tuple=True)
    theirs = NTXentLoss(0.2, reducer=DoNothingReducer())
    expected = theirs(torch.cat([z_ND, augmented_ND]), indices_tuple=(N, 12 + N, anchor, negative))["loss"]
    torch.testing.assert_close(nt_xent(z_ND, augmented_ND, 0.2, label_N), expected["losses"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("with_labels", [False, True])
def test_gradients_are_those_of_the_double_loop(with_labels: bool) -> None:
    given_ = [x.requires_grad_() for x in embeddings(9)]
    label_N = labels(9) if with_labels else None
    weight_N = torch.linspace(-1, 2, 9).double()
    expected = naive_nt_xent(*given_, 0.2, None if label_N is None else label_N.tolist())
    for made, right in zip(
        torch.autograd.grad(nt_xent(*given_, 0.2, label_N) @ weight_N, given_),
        torch.autograd.grad(expected @ weight_N, given_),
        strict=True,
    ):
        torch.testing.assert_close(made, right, rtol=1e-10, atol=1e-12)
        assert right.abs().max() > 0.1


@pytest.mark.parametrize("with_labels", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 10, 19])
def test_chunks_equal_one_piece(chunk: int, with_labels: bool) -> None:
    """20 samples, of which the last chunk may hold fewer."""
    given_, label_N = [x.requires_grad_() for x in embeddings(20)], labels(20) if with_labels else None
    whole_N, pieces_N = (nt_xent(*given_, 0.2, label_N, size) for size in (20, chunk))
    torch.testing.assert_close(pieces_N, whole_N, rtol=1e-13, atol=1e-13)
    weight_N = torch.linspace(-1, 2, 20).double()
    made, expected = (torch.autograd.grad(x_N @ weight_N, given_) for x_N in (pieces_N, whole_N))
    for ours, right in zip(made, expected, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-13)
    with torch.no_grad():
        assert torch.equal(nt_xent(*given_, 0.2, label_N, chunk), pieces_N)


def test_length_of_an_embedding_says_nothing() -> None:
    z_ND, augmented_ND = embeddings(8)
    scale_N1 = torch.logspace(-3, 3, 8).double()[:, None]
    torch.testing.assert_close(nt_xent(z_ND * scale_N1, augmented_ND / scale_N1, 0.2), nt_xent(z_ND, augmented_ND, 0.2))


def test_embeddings_that_are_zero_stay_finite() -> None:
    """An encoder's last layer can be dead for an image: no NaN, in the loss or in the gradient."""
    given_ = [torch.zeros(4, D, requires_grad=True) for _ in range(2)]
    loss_N = nt_xent(*given_, 0.2)
    torch.testing.assert_close(loss_N, torch.full((4,), math.log(4)))
    for gradient in torch.autograd.grad(loss_N.sum(), given_):
        assert torch.isfinite(gradient).all()


def test_copies_are_no_negatives() -> None:
    """All negatives make frequent states look hard: each copy adds to the loss. With labels it does not."""
    z_ND, augmented_ND = embeddings(4)
    frequent = torch.cat([torch.zeros(20, dtype=torch.int64), torch.arange(1, 4)])
    z_ND, augmented_ND = z_ND[frequent], augmented_ND[frequent]
    plain_N, distinct_N = nt_xent(z_ND, augmented_ND, 0.2), nt_xent(z_ND, augmented_ND, 0.2, frequent)
    assert plain_N[0] > distinct_N[0] + 1
    torch.testing.assert_close(distinct_N[0], nt_xent(*embeddings(4), 0.2)[0])
    assert torch.equal(nt_xent(z_ND[:20], augmented_ND[:20], 0.2, frequent[:20]), torch.zeros(20).double())


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2), min_size=1, max_size=30))
def test_copies_are_counted(label: list[int]) -> None:
    assert copies(torch.tensor(label)).tolist() == [label.count(x) for x in label]


def random_images(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def collisions(image_NHWC: Tensor) -> int:
    """How many images share a hash with an earlier one; all images must differ."""
    return len(image_NHWC) - len(image_hash(image_NHWC).unique())


SHAPES = [(84, 84, 3), (84, 84, 1), (96, 72, 3), (5, 7, 3), (3, 3, 1), (1, 1, 1), (2, 4, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_images_have_equal_hashes(shape: tuple[int, int, int]) -> None:
    """Wherever they lie: elsewhere in the batch, alone, at any address, in any order of memory."""
    images = random_images(6, shape)
    hash_N = image_hash(images)
    assert hash_N.dtype == torch.int64 and hash_N.shape == (6,)
    assert torch.equal(image_hash(images.flip(0)), hash_N.flip(0))
    for i in range(6):
        assert torch.equal(image_hash(images[i : i + 1].clone()), hash_N[i : i + 1])
    assert torch.equal(image_hash(images[1:]), hash_N[1:])
    shifted = torch.cat([images.new_zeros(1), images.flatten()])[1:].view_as(images)
    assert torch.equal(image_hash(shifted), hash_N)
    assert torch.equal(image_hash(images.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)), hash_N)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_byte_counts(shape: tuple[int, int, int]) -> None:
    """Of large images every 61st up to the last; each changed by one level and in its highest bit."""
    image_X = random_images(1, shape)[0].flatten()
    size = len(image_X)
    places = torch.arange(size) if size < 200 else torch.arange(size - 1, -1, -61).flip(0)
    for change in (1, 128):
        changed = image_X.repeat(len(places), 1)
        changed[torch.arange(len(places)), places] ^= change
        assert collisions(torch.cat([image_X[None], changed]).view(-1, *shape)) == 0


def test_every_change_of_a_single_value_is_seen() -> None:
    """All 255 others of each of 432 values: 110,161 images that are almost the same."""
    image_X = random_images(1, (12, 12, 3))[0].flatten()
    place, change = torch.cartesian_prod(torch.arange(432), torch.arange(1, 256)).unbind(1)
    images = image_X.repeat(len(place) + 1, 1)
    images[torch.arange(len(place)), place] ^= change.to(torch.uint8)
    assert collisions(images.view(-1, 12, 12, 3)) == 0


def swapped(parts: Callable[[Tensor], Tensor], image_X: Tensor) -> Tensor:
    """The image, and with each two of its parts swapped."""
    images = [image_X]
    number = len(parts(image_X))
    for i in range(number):
        for j in range(i):
            images.append(image_X.clone())
            parts(images[-1])[[i, j]] = parts(image_X)[[j, i]]
    return torch.stack(images)


def test_order_counts() -> None:
    """Words of 8 bytes, rows, columns, bytes and channels that change places."""
    image_X = random_images(1, (16, 16, 3))[0].flatten()
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.view(-1, 8),
        lambda x: x.view(16, -1),
        lambda x: x.view(16, 16, 3).transpose(0, 1),
        lambda x: x.view(-1, 3).t(),
        lambda x: x[:64],
    ]
    for parts in ways:
        images = swapped(parts, image_X)
        assert collisions(images.unique(dim=0)) == 0
    flips = [image_X.view(16, 16, 3).flip(axes) for axes in ((), (0,), (1,), (0, 1), (2,), (0, 1, 2))]
    assert collisions(torch.stack(flips)) == 0


@pytest.mark.parametrize("shape", [(4, 4, 3), (5, 5, 3), (2, 4, 1)])
def test_random_images_do_not_collide(shape: tuple[int, int, int]) -> None:
    images = random_images(100_000, shape)
    assert collisions(images.unique(dim=0) if shape == (2, 4, 1) else images) == 0


def test_structured_images_do_not_collide() -> None:
    """A block of one of 8 colours and another one, on one of two grounds, in 11 x 11 places: 116,160 images."""
    where = torch.cartesian_prod(torch.arange(121), torch.arange(121), torch.arange(8), torch.arange(2))
    where = where[where[:, 0] < where[:, 1]]
    index_N = torch.arange(len(where))
    images = (where[:, 3] * 60).to(torch.uint8)[:, None].repeat(1, 121)
    images[index_N, where[:, 0]] = (where[:, 2] * 32 + 31).to(torch.uint8)
    images[index_N, where[:, 1]] = 200
    assert len(images) == 116_160
    assert collisions(images.view(-1, 11, 11, 1)) == 0


def test_plain_images_do_not_collide() -> None:
    """One value everywhere; one white pixel anywhere; black from some pixel on."""
    one_value = torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, 768)
    one_pixel, prefix = torch.eye(768, dtype=torch.uint8) * 255, torch.tril(torch.ones(768, 768, dtype=torch.uint8))
    assert collisions(torch.cat([one_value, one_pixel, prefix * 255]).unique(dim=0).view(-1, 16, 16, 3)) == 0


def test_bits_of_the_hash_are_even() -> None:
    """Each bit is set in half of the images, and a changed pixel flips half of the bits."""
    images = random_images(4000, (6, 6, 3))
    changed = images.clone()
    changed[:, 3, 3, 1] += 1
    bits_N64, changed_N64 = ((image_hash(x)[:, None] >> torch.arange(64)) & 1 for x in (images, changed))
    for share in (bits_N64.double().mean(0), (bits_N64 ^ changed_N64).double().mean(0)):
        assert (share - 0.5).abs().max() < 6 * 0.5 / math.sqrt(4000)


@pytest.mark.gpu
def test_cpu_and_gpu_agree() -> None:
    images = random_images(50, (9, 7, 3))
    assert torch.equal(image_hash(images.cuda()).cpu(), image_hash(images))
    given_, label_N = [x.float() for x in embeddings(50)], labels(50)
    for chunk in (50, 16):
        made_N = nt_xent(*(x.cuda() for x in given_), 0.2, label_N.cuda(), chunk)
        torch.testing.assert_close(made_N.cpu(), nt_xent(*given_, 0.2, label_N, chunk), rtol=1e-4, atol=1e-5)
