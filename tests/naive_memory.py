"""The memory as lists and loops, for tests: what the paper says, one state at a time."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from longtail.memory import MemoryConfig


@dataclass
class State:
    """One slot of the familiarity buffer."""

    image: Tensor
    p: Tensor
    h: Tensor
    key: Tensor
    tag: int = -1
    losses: list[float] = field(default_factory=list)  # since it came
    transferred: bool = False

    def momentum(self, beta: float, bias_corrected: bool = False) -> float:
        """Eq. 2, or the mean with weights beta^age; 0 before the first pass."""
        if bias_corrected:
            weights = [beta**age for age in reversed(range(len(self.losses)))]
            return sum(w * x for w, x in zip(weights, self.losses, strict=True)) / (sum(weights) or 1)
        momentum = self.losses[0] if self.losses else 0.0
        for loss in self.losses[1:]:
            momentum = beta * momentum + (1 - beta) * loss
        return momentum


class NaiveFamiliarity:
    def __init__(self, capacity: int) -> None:
        self.slots: list[State | None] = [None] * capacity
        self.next = 0

    def add(self, states: list[State]) -> None:
        for state in states:
            self.slots[self.next] = state
            self.next = (self.next + 1) % len(self.slots)

    @property
    def is_full(self) -> bool:
        return None not in self.slots

    def record(self, losses: list[float]) -> None:
        for state, loss in zip(self.slots, losses, strict=True):
            if self.is_full and state is not None:
                state.losses.append(loss)


@dataclass
class Stored:
    """One slot of MEM."""

    p: Tensor
    h: Tensor
    key: Tensor
    tag: int
    score: float
    stored_at: int


class NaiveMEM:
    def __init__(self, capacity: int) -> None:
        self.slots: list[Stored | None] = [None] * capacity
        self.next = 0

    def write(self, new: list[Stored], familiar_first: bool = False) -> None:
        """Familiar-first looks at the scores from before: empty slots, then the least rare, the lower slot first."""
        scores = [-torch.inf if slot is None else slot.score for slot in self.slots]
        slots = sorted(range(len(scores)), key=lambda i: (scores[i], i))
        for i, state in enumerate(new):
            self.slots[slots[i] if familiar_first else self.next] = state
            self.next = (self.next + 1) % len(self.slots)


def same_as_list(module: torch.nn.Module, slots: list, next_slot: int, names: tuple[str, ...]) -> None:
    """A ring of tensors holds what the list does, in the same slots."""
    assert int(module.next) == next_slot and int(module.filled) == sum(slot is not None for slot in slots)
    for i, slot in enumerate(slots):
        for name in names if slot is not None else ():
            made = getattr(module, name)[i]
            torch.testing.assert_close(made, torch.as_tensor(getattr(slot, name), dtype=made.dtype), msg=f"{name} {i}")


def naive_neighbours(query_C: Tensor, keys_NC: Tensor, filled: int, K: int) -> list[int]:
    """Slots of the nearest keys, the lowest of those that are equally near, by float64 distances."""
    query_C, keys_NC = query_C.detach().double(), keys_NC.detach().double()
    distance = [float((query_C - keys_NC[i]).square().sum()) for i in range(filled)]
    return sorted(range(filled), key=lambda i: (distance[i], i))[:K]


def naive_read(query_BC: Tensor, keys_NC: Tensor, values_NH: Tensor, filled: int, K: int, epsilon: float) -> Tensor:
    """m (Eq. 7), differentiable; the choice of neighbours is not."""
    m = []
    for query_C in query_BC:
        chosen = naive_neighbours(query_C, keys_NC, filled, K)
        w = [1 / ((query_C - keys_NC[i]).square().sum() + epsilon) for i in chosen]
        total = sum((w_i * values_NH[i] for w_i, i in zip(w, chosen, strict=True)), 0 * values_NH[0])
        m.append(total / sum(w) if w else total)
    return torch.stack(m)


def naive_nt_xent(z_ND: Tensor, augmented_ND: Tensor, temperature: float, label: list | None = None) -> Tensor:
    """Eq. 5 for each sample: X' is the augmented sample and all samples but the sample and its copies."""
    z, augmented = (x / x.norm(dim=1, keepdim=True) for x in (z_ND.double(), augmented_ND.double()))
    losses = []
    for i in range(len(z)):
        positive = torch.exp(z[i] @ augmented[i] / temperature)
        total = positive
        for j in range(len(z)):
            if j != i and (label is None or label[j] != label[i]):
                total = total + torch.exp(z[i] @ z[j] / temperature)
        losses.append(-torch.log(positive / total))
    return torch.stack(losses)


class NaiveBoosted:
    """Algorithm 1; the losses, W and b, and numbers drawn at random are given."""

    def __init__(self, config: MemoryConfig) -> None:
        self.config, self.epochs = config, 0
        self.familiarity, self.mem = NaiveFamiliarity(config.familiarity), NaiveMEM(config.capacity)

    def observe(self, images: Tensor, p: Tensor, h: Tensor, tag: Tensor, weight_CQ: Tensor, bias_C: Tensor) -> None:
        for t in range(0, len(p), self.config.hop):
            for b in range(p.shape[1]):
                key = weight_CQ @ torch.cat([p[t, b], h[t, b]]) + bias_C
                self.familiarity.add([State(images[t, b], p[t, b], h[t, b], key, int(tag[t, b]))])

    def losses(self, z_ND: Tensor, augmented_ND: Tensor) -> list[float]:
        label = [slot.image.tolist() for slot in self.familiarity.slots if slot is not None]
        distinct = label if self.config.negatives == "distinct" else None
        return naive_nt_xent(z_ND, augmented_ND, self.config.temperature, distinct).tolist()

    def update(self, drawn: list[float]) -> None:
        c = self.config
        if not self.familiarity.is_full:
            return
        self.epochs += 1
        if c.selection == "none" or self.epochs % c.transfer_every > 0:
            return
        states = [state for state in self.familiarity.slots if state is not None]
        momentum = [state.momentum(c.beta, c.bias_correction) for state in states]
        rarity = momentum if c.selection == "rare" else drawn
        may_go = [i for i, state in enumerate(states) if not (c.transfer_once and state.transferred)]
        new = []
        for i in sorted(may_go, key=lambda i: -rarity[i])[: c.transfer]:
            states[i].transferred = True
            score = normalized(momentum)[i] if c.selection == "rare" else 0.0
            new.append(Stored(states[i].p, states[i].h, states[i].key, states[i].tag, score, self.epochs))
        self.mem.write(new, c.eviction == "familiar-first")


def normalized(momentum: list[float]) -> list[float]:
    """Eq. 3."""
    middle = sum(momentum) / len(momentum)
    furthest = max(abs(value - middle) for value in momentum) or 1.0
    return [0.5 * ((value - middle) / furthest + 1) for value in momentum]
