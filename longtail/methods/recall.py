"""IMPALA with an episodic memory: mem, mem-contrastive, boosted and boosted-single-loss differ in fields only."""

import torch
from torch import Tensor

from longtail.agents.agent import Agent
from longtail.agents.lstm import Read
from longtail.impala.act import Rollout
from longtail.memory import BoostedMemory, MemoryConfig
from longtail.memory.contrastive import copies
from longtail.memory.familiarity import hop_subset
from longtail.methods import statistics
from longtail.methods.method import Method, Row, Sizes
from longtail.worlds import TaskTable


class Recall(Method):
    """Reads MEM; finds out by the momentum of a contrastive loss which states belong there."""

    contrastive_loss: Tensor

    def __init__(self, sizes: Sizes, config: MemoryConfig, generator: torch.Generator | None) -> None:
        super().__init__(sizes, config, generator)
        kept = sizes.worlds * -(-sizes.unroll // config.hop)
        if kept > config.familiarity:
            raise ValueError(
                f"memory.familiarity is {config.familiarity}: it must be at least {kept}, the states of one rollout "
                f"that go into it (impala.worlds x impala.unroll / memory.hop)"
            )
        self.memory_dim = sizes.hidden
        self.memory = BoostedMemory(sizes.p_dim, sizes.hidden, sizes.obs_shape, config, generator)
        self.metrics = ("contrastive_loss",) if config.contrastive else ()

    def acting(self) -> Read:
        return self.memory.reader()

    learning = acting

    @torch.no_grad()
    def observe(self, rollout: Rollout) -> None:
        assert rollout.tape is not None  # what Algorithm 1 stores is what acting computed
        hop = self.memory.config.hop
        moments = rollout.tape.lstm.moments[::hop]
        p_SP = torch.cat([moment.p_BP for moment in moments])
        h_SH = torch.cat([moment.r_BR[:, : moment.h_BH.shape[1]] for moment in moments])
        image_SHWC, task_S = (hop_subset(x_TB[:-1], hop) for x_TB in (rollout.obs, rollout.task))
        self.memory.observe_states(image_SHWC, p_SP, h_SH, task_S)

    def loss(self, agent: Agent, rollout: Rollout) -> Tensor | None:
        config = self.memory.config
        if not config.contrastive:
            return None
        weights = agent.encoder.prepare()
        loss = self.memory.loss(lambda image_NHWC: agent.encoder(image_NHWC, weights))
        self.contrastive_loss = loss.detach()
        return config.contrastive_cost * loss

    def update(self) -> None:
        self.memory.update()

    def report(self) -> tuple[Tensor, Tensor]:
        if not self.metrics:
            return super().report()
        return self.contrastive_loss[None], self.memory.familiarity.is_full[None]

    @torch.no_grad()
    def inspect(self, rollout: Rollout, tasks: TaskTable) -> Row:
        """Whether the momentum finds the tail, what is in both buffers, and what reads found in the last rollout."""
        config, f, mem = self.memory.config, self.memory.familiarity, self.memory.mem
        n, filled = int(f.filled), int(mem.filled)
        group_N, group_M = tasks.group[f.tag[:n].cpu()], tasks.group[mem.tag[:filled].cpu()]
        M_N, passes_N = self.memory.rarity()[:n].cpu().numpy(), f.passes[:n].cpu().numpy()
        copies_N = copies(f.hash[:n])
        knows = config.contrastive and n == config.familiarity
        negatives = statistics.mean(n - copies_N) if config.negatives == "distinct" else float(n - 1)
        row: Row = {
            "rarity_auroc": statistics.auroc(M_N, group_N == statistics.TAIL) if knows else None,
            "momentum_age_correlation": statistics.rank_correlation(M_N, passes_N) if knows else None,
            "passes_per_slot": statistics.mean(passes_N),
            "familiarity_tail_share": statistics.mean(group_N == statistics.TAIL),
            "duplicate_share": statistics.mean(copies_N > 1) if config.contrastive else None,
            "effective_negatives": negatives if knows else None,
            "memory_occupancy": filled / config.capacity,
            "memory_age": statistics.mean(self.memory.epochs - mem.stored_at[:filled]),
            "memory_tail_share": statistics.mean(group_M == statistics.TAIL),
            "memory_key_drift": statistics.mean((self.memory.keys() - mem.key)[:filled].norm(dim=1)),
        }
        return row | self._reads(rollout)

    def _reads(self, rollout: Rollout) -> Row:
        found = rollout.tape.lstm.found() if rollout.tape else []
        if not any(one.share_BK.any() for one in found):  # MEM was still empty when they were made
            return {"read_entropy": None, "read_distance": None}
        share_NK, weight_N1 = (torch.cat(parts) for parts in list(zip(*found, strict=True))[2:4])
        entropy_N = torch.special.entr(share_NK).sum(-1)
        distance_N = 1 / (share_NK * weight_N1).amax(-1) - self.memory.config.epsilon  # of the nearest key, squared
        return {
            "read_entropy": statistics.mean(entropy_N),
            "read_distance": statistics.mean(distance_N.clamp(min=0).sqrt()),
        }
