"""NT-Xent, the contrastive loss of each sample (Eq. 5), and the images that count as copies of each other."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 2048  # anchors whose logits are held at once


def nt_xent(
    z_ND: Tensor, augmented_ND: Tensor, temperature: float, label_N: Tensor | None = None, chunk: int = CHUNK
) -> Tensor:
    """Loss of each sample [N]: its augmented image is the positive, the other samples are its negatives.

    With labels, samples of the same label are copies and not each other's negatives. Embeddings are normalised, as
    NT-Xent is defined. More samples than a chunk are done in pieces: the same numbers, without N x N logits in memory.
    """
    z_ND, augmented_ND = F.normalize(z_ND, eps=1e-6), F.normalize(augmented_ND, eps=1e-6)
    label_N = torch.arange(len(z_ND), device=z_ND.device) if label_N is None else label_N
    pieces = zip(z_ND.split(chunk), augmented_ND.split(chunk), label_N.split(chunk), strict=True)
    if len(z_ND) <= chunk:
        return _losses(*next(pieces), z_ND, label_N, temperature)
    losses = [
        checkpoint(_losses, *piece, z_ND, label_N, temperature, use_reentrant=False, preserve_rng_state=False)
        for piece in pieces
    ]
    return torch.cat(losses)


def _losses(
    z_SD: Tensor, augmented_SD: Tensor, label_S: Tensor, all_ND: Tensor, label_N: Tensor, temperature: float
) -> Tensor:
    positive_S1 = (z_SD * augmented_SD).sum(-1, keepdim=True) / temperature
    negative_SN = (z_SD @ all_ND.t() / temperature).masked_fill(label_S[:, None] == label_N, -torch.inf)
    return torch.logsumexp(torch.cat([positive_S1, negative_SN], 1), 1) - positive_S1[:, 0]


def nt_xent_shared(z_UD: Tensor, which_N: Tensor, augmented_ND: Tensor, temperature: float, distinct: bool) -> Tensor:
    """The same numbers from the embeddings of U different images, of which sample n has number which_N[n].

    Copies of an image have the same negatives and are the same negative, so that each pair of images is looked at once.
    """
    z_UD, augmented_ND = F.normalize(z_UD, eps=1e-6), F.normalize(augmented_ND, eps=1e-6)
    count_U = torch.bincount(which_N, minlength=len(z_UD))
    # An image is not its own negative; its copies are, unless they are told apart. Finite, for gradients of nothing.
    times_UU = count_U - torch.diag(count_U if distinct else torch.ones_like(count_U))
    logit_UU = z_UD @ z_UD.t() / temperature + times_UU.to(z_UD.dtype).log().clamp(min=-1e9)
    positive_N = (F.embedding(which_N, z_UD) * augmented_ND).sum(-1) / temperature
    negative_N = F.embedding(which_N, torch.logsumexp(logit_UU, 1)[:, None])[:, 0]
    return torch.logaddexp(positive_N, negative_N) - positive_N


def first_of_each(label_N: Tensor) -> tuple[Tensor, Tensor]:
    """The first sample with each label [U], and which of them each sample is like [N]."""
    different_U, which_N = torch.unique(label_N, return_inverse=True)
    order_N = torch.arange(len(label_N), device=label_N.device)
    return torch.empty_like(different_U).scatter_reduce_(0, which_N, order_N, "amin", include_self=False), which_N


def copies(label_N: Tensor) -> Tensor:
    """How many samples have a sample's label, itself included [N]."""
    _, which_N, count_U = torch.unique(label_N, return_inverse=True, return_counts=True)
    return count_U[which_N]


def image_hash(image_NHWC: Tensor) -> Tensor:
    """64 bits of each image [N]: equal images have equal ones, others practically never."""
    bytes_NX = image_NHWC.flatten(1)
    padded_NX = bytes_NX.new_zeros(len(bytes_NX), -(-max(bytes_NX.shape[1], 1) // 8) * 8)
    padded_NX[:, : bytes_NX.shape[1]] = bytes_NX
    word_NW = padded_NX.view(torch.int64)
    place_W = torch.arange(1, word_NW.shape[1] + 1, device=word_NW.device)
    # Each word is mixed together with its place, so that the sum tells images apart that hold the same words elsewhere.
    return _mix(_mix(word_NW + place_W * _ODD) + place_W).sum(1)


_ODD = 0x9E3779B97F4A7C15 - 2**64  # the golden ratio's bits, as a signed number


def _mix(x: Tensor) -> Tensor:
    """A bijection of 64 bits (the finaliser of MurmurHash3); PyTorch's shift copies the sign, so it is masked off."""
    x = (x ^ ((x >> 33) & (2**31 - 1))) * (0xFF51AFD7ED558CCD - 2**64)
    x = (x ^ ((x >> 33) & (2**31 - 1))) * (0xC4CEB9FE1A85EC53 - 2**64)
    return x ^ ((x >> 33) & (2**31 - 1))
