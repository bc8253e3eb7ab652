"""A task that only MEM can solve: a cue's label was shown in an earlier episode, and is drawn anew for each lesson.

In a lesson every cue is shown a few times after its label: a state of two steps, whose h knows the label and whose p
shows the cue. Then come episodes that show a cue alone, and the answer must be its label. LSTM states are reset in
between, weights cannot hold what changes with every lesson, and p is as much noise as cue: to find the cue's states,
the keys have to learn what to look at. Answers by chance are right half of the time.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.agents.lstm import MemoryLSTM
from longtail.memory import BoostedMemory, MemoryConfig

CUES, LABELS, NOISE, H = 6, 2, 4, 16
P = LABELS + CUES + NOISE
SHOWN, ASKED = 24, 32  # episodes of a lesson, and of its test
LESSONS, LAST = 250, 50
CONFIG = MemoryConfig(
    capacity=SHOWN, neighbours=4, key_dim=8, familiarity=SHOWN, hop=1, transfer=SHOWN, transfer_every=1,
    selection="uniform", contrastive=False,
)  # fmt: skip


def frames(cue_B: Tensor, label_B: Tensor | None, generator: torch.Generator) -> Tensor:
    """p of two steps [2, B, P]: the label if it is told, then the cue; noise in both."""
    p_2BP = torch.zeros(2, len(cue_B), P)
    if label_B is not None:
        p_2BP[0, :, :LABELS] = F.one_hot(label_B, LABELS)
    p_2BP[1, :, LABELS : LABELS + CUES] = F.one_hot(cue_B, CUES)
    p_2BP[..., LABELS + CUES :].normal_(generator=generator)
    return p_2BP


def share_right(
    neighbours: int = 4, reads: bool = True, trains_keys: bool = True, remembers_lessons: bool = True
) -> float:
    """Of the answers in the last lessons; the flags each take away something that it takes."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    config = MemoryConfig(**{**vars(CONFIG), "neighbours": neighbours})
    lstm, memory, head = MemoryLSTM(P, H, H), BoostedMemory(P, H, (1,), config, g), nn.Linear(H, LABELS)
    memory.requires_grad_(trains_keys)
    trained = [p for module in (lstm, memory, head) for p in module.parameters() if p.requires_grad]
    optimizer, right = torch.optim.Adam(trained, lr=1e-2), []
    for lesson in range(LESSONS):
        label_of_cue = torch.randint(LABELS, (CUES,), generator=g)
        if remembers_lessons or lesson == 0:
            cue_B = torch.arange(SHOWN) % CUES
            show(lstm, memory, frames(cue_B, label_of_cue[cue_B], g))
        if not reads and lstm.memory is not None:
            lstm.memory.data.zero_()
        cue_B = torch.randint(CUES, (ASKED,), generator=g)
        first_2B1 = torch.tensor([True, False])[:, None, None].expand(2, ASKED, 1)
        zero_BH = torch.zeros(ASKED, H)
        h_2BH, _ = lstm.unroll(frames(cue_B, None, g), first_2B1, zero_BH, zero_BH, read=memory.reader())
        answer_BA = head(h_2BH[1])
        loss = F.cross_entropy(answer_BA, label_of_cue[cue_B])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right.append((answer_BA.argmax(-1) == label_of_cue[cue_B]).float().mean())
    return float(torch.stack(right[-LAST:]).mean())


@torch.no_grad()
def show(lstm: MemoryLSTM, memory: BoostedMemory, p_2BP: Tensor) -> None:
    """A lesson's episodes; the state in which each cue is met goes through the familiarity buffer into MEM."""
    zero_BH, first_B1 = torch.zeros(SHOWN, H), torch.ones(SHOWN, 1, dtype=torch.bool)
    h_BH, _ = lstm.step(p_2BP[0], first_B1, zero_BH, zero_BH, read=memory.reader())
    memory.observe(torch.zeros(1, SHOWN, 1, dtype=torch.uint8), p_2BP[1:], h_BH[None])
    memory.update()


@pytest.mark.parametrize("neighbours", [2, 4])
def test_a_memory_solves_it(neighbours: int) -> None:
    assert share_right(neighbours) > 0.95


CHANCE = 0.1  # more than three standard deviations: 50 lessons, of six labels each


def test_an_lstm_alone_does_not() -> None:
    """The same with the weights cut through which what is read comes in."""
    assert abs(share_right(reads=False) - 0.5) < CHANCE


def test_the_memory_of_another_lesson_does_not() -> None:
    """It reads, but what it finds is of the first lesson for ever: nothing leaks past MEM."""
    assert abs(share_right(remembers_lessons=False) - 0.5) < CHANCE


def test_keys_have_to_learn_what_to_look_at() -> None:
    """Without gradients for W and b the noise in p finds states of other cues as well.

    One neighbour alone has all the weight, however near it is: so nothing could be learned from it either.
    """
    assert 0.6 < share_right(trains_keys=False) < 0.85
    assert share_right(neighbours=1) < 0.85
