"""The momentum-boosted episodic memory as one part that any recurrent agent can use (Algorithm 1)."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn

from longtail.memory.augment import augment, in_pairs, noise_levels, noise_table
from longtail.memory.contrastive import first_of_each, nt_xent, nt_xent_shared
from longtail.memory.episodic import EpisodicMemory, Reader
from longtail.memory.familiarity import FamiliarityBuffer, hop_subset
from longtail.memory.momentum import normalized_momentum

Selection = Literal["rare", "uniform", "none"]
Eviction = Literal["fifo", "familiar-first"]
Negatives = Literal["all", "distinct"]


@dataclass(frozen=True)
class MemoryConfig:
    """Episodic memory and familiarity buffer; the paper's symbols are in brackets."""

    capacity: int = 1024
    """Slots of the episodic memory (MEM)."""
    neighbours: int = 16
    """Nearest keys that a read averages over (K)."""
    epsilon: float = 1e-3
    """Added to squared distances before they are inverted."""
    key_dim: int = 128
    """Size of a key; the paper does not say."""
    familiarity: int = 1024
    """Slots of the familiarity buffer."""
    hop: int = 16
    """Every so many steps of a trajectory, one state goes into the familiarity buffer (hp)."""
    selection: Selection = "rare"
    """Which states go on into MEM: those of highest momentum, uniformly drawn ones, or none."""
    transfer: int = 512
    """How many at a time (t_k)."""
    transfer_every: int = 8
    """After how many rollouts with a full buffer, each a training epoch of the contrastive loss (t_f)."""
    transfer_once: bool = True
    """Whether a state goes into MEM once only; else each time that it is selected."""
    eviction: Eviction = "fifo"
    """What MEM overwrites: the oldest states, or those that were least rare when they came."""
    contrastive: bool = True
    """Whether there is a contrastive loss at all; without one, nothing is known about rarity."""
    contrastive_cost: float = 0.5
    """Weight of the contrastive loss (gamma)."""
    temperature: float = 0.2
    """Of the contrastive loss (tau); the paper does not say."""
    negatives: Negatives = "distinct"
    """What a state is told apart from: all other states, or those whose image is not the same."""
    beta: float = 0.97
    """How much of the moving average of losses stays at each pass (beta); 0 takes the last loss alone."""
    bias_correction: bool = False
    """Whether to weigh early losses as in a long average; as written, the first one has most of the weight."""
    sigma: float = 0.05
    """Standard deviation of the noise on pixels between 0 and 1 (sigma); from `temperature` on, all fields are of the
    contrastive loss, and without effect where there is none."""
    amplify: bool = True
    """Whether the noise is multiplied by sigma once more, as the paper says."""
    cutout_smallest: float = 0.05
    """Shortest side of the cutout, as a share of the image's."""
    cutout_largest: float = 0.5
    """Longest side of the cutout, as a share of the image's."""

    def __post_init__(self) -> None:
        def require(name: str, holds: bool, right: str) -> None:
            if not holds:
                raise ValueError(f"memory.{name} is {getattr(self, name)!r}: it must be {right}")

        hints = get_type_hints(type(self))
        for name in (f.name for f in fields(self) if hints[f.name] in (int, float)):
            require(name, hints[name] is float or isinstance(getattr(self, name), int), "a whole number")
            lowest = 0 if hints[name] is float else 1
            require(name, getattr(self, name) >= lowest, f"at least {lowest}")
        require("epsilon", self.epsilon > 0, "above 0")
        require("temperature", self.temperature > 0, "above 0")
        require("neighbours", self.neighbours <= self.capacity, f"at most memory.capacity, {self.capacity}")
        require("transfer", self.transfer <= self.familiarity, f"at most memory.familiarity, {self.familiarity}")
        require("transfer", self.transfer <= self.capacity, f"at most memory.capacity, {self.capacity}")
        require("beta", self.beta < 1, "below 1")
        require("sigma", self.sigma <= 1, "at most 1")
        require("cutout_largest", self.cutout_largest <= 1, "at most 1")
        least = f"at most memory.cutout_largest, {self.cutout_largest}"
        require("cutout_smallest", self.cutout_smallest <= self.cutout_largest, least)
        for name, kind in (("selection", Selection), ("eviction", Eviction), ("negatives", Negatives)):
            require(name, getattr(self, name) in get_args(kind), f"one of {', '.join(get_args(kind))}")
        if self.selection == "rare":
            require("contrastive", self.contrastive, "true: the rare states are known by their contrastive loss")
        elif self.eviction != "fifo":
            require("eviction", False, "fifo unless memory.selection is rare: nothing else knows what is familiar")


class BoostedMemory(nn.Module):
    """Finds rare states by the momentum of their contrastive loss, keeps them, and recalls their LSTM states.

    For an agent that describes its observation by p [B, embedding_dim] and has an LSTM state h [B, hidden_dim], whose
    LSTM then takes [p, m] as its input, m [B, hidden_dim] being what the memory recalls:

        memory = BoostedMemory(p_dim, hidden_dim, (84, 84, 3), MemoryConfig()).to(device)
        optimizer = torch.optim.Adam([*agent.parameters(), *memory.parameters()])

        for each iteration:
            with torch.no_grad():                          # acting: contents and keys stay the same
                keys = memory.keys()
                for each step:
                    h = h * not_first                      # the state after its reset is the one that is read with
                    m = memory.read(p, h, keys)
                    h, c = lstm(cat([p, m]), (h, c))
            memory.observe(images, p, h)                   # once per rollout, [T, B, ...]: h as it was read with
            for each optimiser step:
                keys = memory.keys()                       # W has changed: keys with a gradient
                ... the same reads, now differentiable ... # for many of them, read = memory.reader(); m = read(p, h)
                loss = rl_loss + memory.config.contrastive_cost * memory.loss(encoder)
                loss.backward(); optimizer.step()
            memory.update()                                # once per rollout, after learning: rare states go into MEM

    `encoder` maps uint8 images [N, H, W, C] to embeddings [N, D] and is the agent's own. It is called with any number
    of images, so it may not mix them as batch normalisation does. Each call of `loss` is a pass that momentum counts:
    where a rollout has several optimiser steps, decide which of them have one. Gradients go into W and b through the
    query and through the keys of what it finds, and none into stored states. Reads and losses are fp32, under autocast
    too.

    A tag (an int64 for each state) travels with it into both buffers for your own statistics; nothing here looks at it.
    All is in `state_dict` but the generator's state. On a GPU nothing is read back to the host, so that CUDA graphs can
    hold it.
    """

    noise: Tensor
    epochs: Tensor

    def __init__(
        self,
        embedding_dim: int,
        hidden_dim: int,
        image_shape: tuple[int, ...],
        config: MemoryConfig | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = c = MemoryConfig() if config is None else config
        self.generator = generator
        if c.contrastive and len(image_shape) != 3:
            raise ValueError(f"image_shape is {image_shape}: it must be (height, width, channels)")
        self.key = nn.Linear(embedding_dim + hidden_dim, c.key_dim)  # W and b of Eq. 6
        # Images are kept for the contrastive loss only.
        shape = image_shape if c.contrastive else (0,)
        self.familiarity = FamiliarityBuffer(c.familiarity, shape, embedding_dim, hidden_dim, c.key_dim)
        self.mem = EpisodicMemory(c.capacity, embedding_dim, hidden_dim, c.key_dim)
        self.register_buffer("epochs", torch.zeros((), dtype=torch.int64))  # updates since the buffer is full
        self.register_buffer("noise", in_pairs(noise_table(noise_levels(c.sigma, c.amplify))), persistent=False)

    def keys(self) -> Tensor:
        """Keys of everything in MEM under the present W and b [N, C]; rebuild them after each optimiser step."""
        with _no_autocast(self.mem.p):
            return self.key(torch.cat([self.mem.p, self.mem.h], 1))

    def reader(self, keys_NC: Tensor | None = None) -> Reader:
        """Keys and contents together: call it with (p, h)."""
        c, keys_NC = self.config, self.keys() if keys_NC is None else keys_NC
        return Reader(self.mem, keys_NC, self.key.weight, self.key.bias, c.neighbours, c.epsilon)

    def read(self, p_BP: Tensor, h_BH: Tensor, keys_NC: Tensor) -> Tensor:
        """m [B, H], the weighted mean of the K nearest states' h (Eq. 7); zero as long as MEM is empty."""
        self._check(p_BP, h_BH)
        with _no_autocast(p_BP):
            return self.reader(keys_NC)(p_BP.to(self.mem.p.dtype), h_BH.to(self.mem.h.dtype))

    @torch.no_grad()
    def observe(self, images_TBHWC: Tensor, p_TBP: Tensor, h_TBH: Tensor, tag_TB: Tensor | None = None) -> None:
        """Take in a rollout: of each trajectory every hop-th state, from the first on (Eq. 8)."""
        expected = (*p_TBP.shape[:2], *self.familiarity.image.shape[1:])
        if self.config.contrastive and (images_TBHWC.dtype != torch.uint8 or images_TBHWC.shape != expected):
            raise ValueError(
                f"images are {images_TBHWC.dtype} {[*images_TBHWC.shape]}: they must be uint8 {[*expected]}, as p and "
                f"the memory's image_shape say"
            )
        self._check(p_TBP, h_TBH)
        hop, tag_S = self.config.hop, None if tag_TB is None else hop_subset(tag_TB, self.config.hop)
        self.observe_states(hop_subset(images_TBHWC, hop), hop_subset(p_TBP, hop), hop_subset(h_TBH, hop), tag_S)

    @torch.no_grad()
    def observe_states(self, image_SHWC: Tensor, p_SP: Tensor, h_SH: Tensor, tag_S: Tensor | None = None) -> None:
        """The same for who has made the subset already."""
        if not self.config.contrastive:
            image_SHWC = self.familiarity.image.new_empty(len(p_SP), 0)
        with _no_autocast(p_SP):
            key_SC = self.key(torch.cat([p_SP, h_SH], 1).to(self.key.weight.dtype))
        self.familiarity.add(image_SHWC, p_SP, h_SH, key_SC, tag_S)

    def _check(self, p_XP: Tensor, h_XH: Tensor) -> None:
        for name, given, mine in (("embedding_dim", p_XP, self.mem.p), ("hidden_dim", h_XH, self.mem.h)):
            if given.shape[-1] != mine.shape[1]:
                raise ValueError(
                    f"{name} is {mine.shape[1]}, but what is given has {given.shape[-1]}: they must be equal"
                )

    def loss(self, encoder: Callable[[Tensor], Tensor]) -> Tensor:
        """Contrastive loss over the whole familiarity buffer, and each slot's momentum; 0 until the buffer is full."""
        c, f = self.config, self.familiarity
        if not c.contrastive:
            return torch.zeros((), device=f.p.device)
        augmented = augment(f.image, self.noise, c.cutout_smallest, c.cutout_largest, self.generator)
        augmented_ND, distinct = encoder(augmented).float(), c.negatives == "distinct"
        if f.hash.is_cuda:  # finding equal images would make the host wait
            z_ND = encoder(f.image).float()
            with _no_autocast(z_ND):
                loss_N = nt_xent(z_ND, augmented_ND, c.temperature, f.hash if distinct else None)
        else:
            first_U, which_N = first_of_each(f.hash)
            z_UD = encoder(f.image[first_U]).float()
            with _no_autocast(z_UD):
                loss_N = nt_xent_shared(z_UD, which_N, augmented_ND, c.temperature, distinct)
        f.record(loss_N.detach(), c.beta, c.bias_correction)
        return torch.where(f.is_full, loss_N.mean(), 0)

    @torch.no_grad()
    def update(self) -> None:
        """With every `transfer_every`-th rollout that found the buffer full, states go into MEM."""
        c, f = self.config, self.familiarity
        self.epochs.add_(f.is_full)
        if c.selection == "none":
            return
        if c.selection == "rare":
            rarity_N, score_N = f.momentum, self.rarity()  # losses fall: M can be compared over time
        else:
            rarity_N = torch.rand(c.familiarity, device=f.p.device, generator=self.generator)
            score_N = torch.zeros_like(rarity_N)
        is_due = f.is_full & (self.epochs % c.transfer_every == 0)
        may_go_N = ~f.transferred & is_due if c.transfer_once else is_due.expand(c.familiarity)
        top = torch.topk(rarity_N.masked_fill(~may_go_N, -torch.inf), c.transfer)
        slot_S, goes_S = top.indices, top.values > -torch.inf
        new = {name: getattr(f, name)[slot_S] for name in ("p", "h", "key", "tag")}
        new |= {"score": score_N[slot_S], "stored_at": self.epochs.expand(c.transfer)}
        self.mem.write(new, goes_S, c.eviction == "familiar-first")
        f.transferred.index_copy_(0, slot_S, f.transferred[slot_S] | goes_S)

    def rarity(self) -> Tensor:
        """M of each slot of the familiarity buffer, between 0 and 1 (Eq. 3)."""
        return normalized_momentum(self.familiarity.momentum)


def _no_autocast(like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, enabled=False)
