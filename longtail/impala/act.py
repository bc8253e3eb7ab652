"""Acting: T steps of B worlds, everything that learning needs written into preallocated tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.agents.agent import Agent, Tape
from longtail.agents.lstm import Read
from longtail.worlds.world import World


@dataclass
class Rollout:
    """One unroll. Row t of the first group is the state before step t; row T is the state after the last one,

    and the next unroll's row 0: the rollout is also what carries on from one iteration to the next.
    """

    obs: Tensor  # uint8 [T+1, B, H, W, C]
    first: Tensor  # bool [T+1, B]
    task: Tensor  # int64 [T+1, B]
    last_action: Tensor  # int64 [T+1, B]; num_actions for none
    last_reward: Tensor  # float32 [T+1, B]

    action: Tensor  # int64 [T, B]
    logits: Tensor  # float32 [T, B, A], of the policy that acted
    reward: Tensor  # float32 [T, B]
    truncated: Tensor  # bool [T, B]
    success: Tensor  # bool [T, B]
    final_obs: Tensor | None  # uint8 [T, B, H, W, C], for bootstrapping at time limits

    h_before: Tensor  # float32 [B, H]: the LSTM state before row 0
    c_before: Tensor
    h: Tensor  # float32 [B, H]: the LSTM state now
    c: Tensor

    tape: Tape | None = None  # of the same steps; None for a learner whose parameters may have moved on

    @property
    def unroll(self) -> int:
        return len(self.action)

    @staticmethod
    def empty(world: World, agent: Agent, unroll: int, final_obs: bool = False, keep_tape: bool = False) -> "Rollout":
        T, B = unroll, world.num_worlds

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=world.device)

        return Rollout(
            obs=new(T + 1, B, *world.obs_shape, dtype=torch.uint8),
            first=new(T + 1, B, dtype=torch.bool),
            task=new(T + 1, B, dtype=torch.int64),
            last_action=new(T + 1, B, dtype=torch.int64).fill_(agent.no_action),
            last_reward=new(T + 1, B),
            action=new(T, B, dtype=torch.int64),
            logits=new(T, B, agent.num_actions),
            reward=new(T, B),
            truncated=new(T, B, dtype=torch.bool),
            success=new(T, B, dtype=torch.bool),
            final_obs=new(T, B, *world.obs_shape, dtype=torch.uint8) if final_obs else None,
            h_before=new(B, agent.hidden_dim),
            c_before=new(B, agent.hidden_dim),
            h=new(B, agent.hidden_dim),
            c=new(B, agent.hidden_dim),
            tape=agent.tape(T, B) if keep_tape else None,
        )

    def carry(self) -> dict[str, Tensor]:
        """What the next unroll starts from, beside the world's own state."""
        return {"last_action": self.last_action[-1], "last_reward": self.last_reward[-1], "h": self.h, "c": self.c}


@torch.no_grad()
def act(
    agent: Agent,
    world: World,
    rollout: Rollout,
    generator: torch.Generator,
    reward_clip: float,
    read: Read | None = None,
) -> None:
    """Fill the rollout with the policy's own steps. Reads nothing back to the host."""
    r = rollout
    weights = agent.prepare(world.num_worlds)
    world.prepare(r.unroll)
    h_BH, c_BH = r.h_before.copy_(r.h), r.c_before.copy_(r.c)
    r.last_action[0].copy_(r.last_action[-1])
    r.last_reward[0].copy_(r.last_reward[-1])
    if r.tape is not None:
        r.tape.clear()
    # The largest of logit + Gumbel noise is a sample of the policy: -log of exponential noise, drawn once for T steps.
    noise_TBA = torch.empty_like(r.logits).exponential_(generator=generator).log_()
    zero = torch.zeros((), device=world.device)
    none = torch.full((), agent.no_action, device=world.device)
    # Rows of all steps are taken at once: on a CPU, taking them one by one costs as much as some of the arithmetic.
    obs, first, task, last_action, last_reward = map(
        torch.unbind, (r.obs, r.first, r.task, r.last_action, r.last_reward)
    )
    action, logits, reward, noise = map(torch.unbind, (r.action, r.logits, r.reward, noise_TBA))
    truncated, success = r.truncated.unbind(), r.success.unbind()
    for t in range(r.unroll + 1):
        world.observe(obs[t])
        first[t].copy_(world.first)
        task[t].copy_(world.task)
        if t == r.unroll:
            break
        logits_BA, h_BH, c_BH = agent.step(
            obs[t], first[t], last_action[t], last_reward[t], h_BH, c_BH, weights, read, r.tape
        )
        logits[t].copy_(logits_BA)
        torch.argmax(logits_BA.sub_(noise[t]), -1, out=action[t])
        world.step(action[t])
        reward[t].copy_(world.reward)
        truncated[t].copy_(world.truncated)
        success[t].copy_(world.success)
        if r.final_obs is not None:
            world.observe_final(r.final_obs[t])
        reward_B = world.reward.clamp(-reward_clip, reward_clip) if reward_clip else world.reward
        torch.where(world.first, none, action[t], out=last_action[t + 1])
        torch.where(world.first, zero, reward_B, out=last_reward[t + 1])
    r.h.copy_(h_BH)
    r.c.copy_(c_BH)
