"""What people meet who put the memory into an agent of their own."""

import pytest
import torch
from torch import Tensor

from longtail.memory import BoostedMemory, MemoryConfig

T, B, P, H, SHAPE = 4, 6, 10, 8, (8, 8, 3)
SMALL = MemoryConfig(capacity=16, neighbours=3, key_dim=6, familiarity=12, hop=2, transfer=8, transfer_every=1)


def rollout(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (T, B, *SHAPE), dtype=torch.uint8, generator=generator)
    return images, torch.randn(T, B, P, generator=generator), torch.randn(T, B, H, generator=generator)


def filled() -> BoostedMemory:
    torch.manual_seed(0)
    memory = BoostedMemory(P, H, SHAPE, SMALL)
    for i in range(3):
        memory.observe(*rollout(i))
        memory.loss(lambda image_NHWC: image_NHWC.flatten(1).float())
        memory.update()
    assert int(memory.mem.filled) == 16
    return memory


def test_neighbours_are_found_far_from_zero() -> None:
    """What all keys share, b for example, must not cost the precision that tells near ones from each other."""
    memory = filled()
    p_BP, h_BH = torch.randn(B, P), torch.randn(B, H)
    near = memory.reader().recall(p_BP, h_BH).index_BK.sort().values
    with torch.no_grad():
        memory.key.bias += 1000
    assert torch.equal(memory.reader().recall(p_BP, h_BH).index_BK.sort().values, near)


def test_reads_and_losses_are_fp32_under_autocast() -> None:
    memory, (images, p_TBP, h_TBH) = filled(), rollout(5)
    expected = memory.read(p_TBP[0], h_TBH[0], memory.keys())
    state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    losses = []
    for enabled in (False, True):
        memory.load_state_dict(state)
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            m_BH = memory.read(p_TBP[0], h_TBH[0], memory.keys())
            memory.observe(images, p_TBP, h_TBH)
            losses.append(memory.loss(lambda image_NHWC: image_NHWC.flatten(1).float()))
        assert m_BH.dtype == torch.float32 and torch.equal(m_BH, expected)
    assert torch.equal(*losses)


def test_an_agent_in_bf16_can_read() -> None:
    memory, (_, p_TBP, h_TBH) = filled(), rollout(5)
    with torch.autocast("cpu", torch.bfloat16):
        m_BH = memory.read(p_TBP[0].bfloat16(), h_TBH[0].bfloat16(), memory.keys())
    assert m_BH.dtype == torch.float32 and m_BH.any()


@pytest.mark.parametrize(("p_dim", "h_dim", "name"), [(P + 1, H, "embedding_dim is 10"), (P, H - 1, "hidden_dim is 8")])
def test_other_widths_are_named(p_dim: int, h_dim: int, name: str) -> None:
    memory = filled()
    with pytest.raises(ValueError, match=f"{name}, but what is given has"):
        memory.read(torch.zeros(B, p_dim), torch.zeros(B, h_dim), memory.keys())
    with pytest.raises(ValueError, match=f"{name}, but what is given has"):
        memory.observe(rollout()[0], torch.zeros(T, B, p_dim), torch.zeros(T, B, h_dim))


def test_images_have_channels() -> None:
    with pytest.raises(ValueError, match=r"image_shape is \(84, 84\): it must be \(height, width, channels\)"):
        BoostedMemory(P, H, (84, 84), SMALL)


def test_rarity_can_be_compared_over_time() -> None:
    """Losses fall as the encoder learns: with `familiar-first`, early states must not stay for that alone."""
    memory = filled()
    assert float(memory.mem.score.min()) >= 0 and float(memory.mem.score.max()) <= 1
