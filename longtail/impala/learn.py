"""Learning: one gradient step from one rollout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from longtail.agents.agent import Agent, AgentWeights
from longtail.agents.lstm import Read
from longtail.agents.precision import products
from longtail.impala.act import Rollout
from longtail.impala.losses import Losses, impala_losses, log_probability
from longtail.impala.vtrace import vtrace


@dataclass(frozen=True)
class ImpalaConfig:
    """IMPALA's hyperparameters."""

    worlds: int = 32
    """Worlds that step together ("actors" in the paper)."""
    unroll: int = 32
    """Steps of each world per iteration."""
    discount: float = 0.99
    """Reward discount gamma."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.003
    """Weight of the entropy bonus."""
    learning_rate: float = 1e-3
    """RMSProp's step size."""
    schedule: Literal["constant", "linear"] = "constant"
    """Learning rate over the run; linear goes to 0 at the last step."""
    rmsprop_decay: float = 0.99
    """RMSProp's decay of the squared gradient's average."""
    rmsprop_eps: float = 0.01
    """Added to the root of that average."""
    grad_clip: float = 40.0
    """Largest norm of the whole gradient."""
    reward_clip: float = 1.0
    """Rewards are clipped to +- this for learning; 0 leaves them as they are."""
    bootstrap_time_limits: bool = False
    """Bootstrap from the last observation where only the time limit ended an episode (the paper does not)."""

    def __post_init__(self) -> None:
        at_least = {"worlds": 1, "unroll": 1, "value_cost": 0, "entropy_cost": 0, "learning_rate": 0}
        at_least |= {"rmsprop_eps": 0, "grad_clip": 0, "reward_clip": 0}
        for name, least in at_least.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"impala.{name} is {getattr(self, name)}: it must be at least {least}")
        for name in ("discount", "rmsprop_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"impala.{name} is {getattr(self, name)}: it must lie between 0 and 1")
        if self.schedule not in ("constant", "linear"):
            raise ValueError(f"impala.schedule is {self.schedule!r}: it must be constant or linear")


PARTS = ("encoder", "lstm", "heads", "method")
# What `learn` reports, in this order, once per gradient step.
LEARN_METRICS = ("loss", "policy_loss", "value_loss", "entropy", "grad_norm", *(f"grad_norm_{part}" for part in PARTS))


def parts(agent: Agent, method: nn.Module | None) -> dict[str, list[nn.Parameter]]:
    """Every parameter that is trained, by PARTS."""
    heads = [*agent.policy.parameters(), *agent.value.parameters()]
    own = [] if method is None else list(method.parameters())
    return dict(zip(PARTS, (list(agent.encoder.parameters()), list(agent.lstm.parameters()), heads, own), strict=True))


def make_optimizer(agent: Agent, config: ImpalaConfig, method: nn.Module | None = None) -> torch.optim.Optimizer:
    """RMSProp with its learning rate in a tensor, so that a schedule can change it inside a captured graph."""
    parameters = [p for part in parts(agent, method).values() for p in part]
    device = parameters[0].device
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.RMSprop(
        parameters,
        lr=torch.tensor(config.learning_rate, device=device),
        alpha=config.rmsprop_decay,
        eps=config.rmsprop_eps,
        foreach=on_gpu,
        capturable=on_gpu,
    )
    for p in parameters:  # made now and not at the first step, so that a checkpoint always has the same tensors
        optimizer.state[p] = {"step": torch.zeros((), device=device if on_gpu else "cpu"), "square_avg": p.detach() * 0}
    return optimizer


def schedule(optimizer: torch.optim.Optimizer, config: ImpalaConfig, iteration: Tensor, iterations: int) -> None:
    """Set the learning rate of an iteration, on the device."""
    if config.schedule == "linear":
        left = 1 - iteration.to(torch.float32) / iterations
        optimizer.param_groups[0]["lr"].copy_(config.learning_rate * left.clamp(min=0))


def compute_losses(agent: Agent, rollout: Rollout, config: ImpalaConfig, read: Read | None = None) -> Losses:
    """IMPALA's losses on a rollout (before their weights)."""
    r, weights = rollout, agent.prepare()
    states = (r.obs[:-1], r.first[:-1], r.last_action[:-1], r.last_reward[:-1])
    h_TBH, c_TBH = agent.unroll(*states, r.h_before, r.c_before, weights, read, r.tape)
    logits_TBA, value_TB = agent.logits(h_TBH), agent.values(h_TBH)
    with torch.no_grad():
        value_T1B = torch.cat([value_TB, _value_after(agent, r, h_TBH[-1], c_TBH[-1], weights, read)[None]])
        reward_TB = r.reward.clamp(-config.reward_clip, config.reward_clip) if config.reward_clip else r.reward
        if r.final_obs is not None:
            value_at_limit_TB = _value_at_time_limit(agent, r, h_TBH, c_TBH, reward_TB, weights, read)
            reward_TB = reward_TB + config.discount * value_at_limit_TB
        log_rho_TB = log_probability(logits_TBA, r.action) - log_probability(r.logits, r.action)
        discount_TB = config.discount * (~r.first[1:]).to(reward_TB.dtype)
        targets = vtrace(log_rho_TB, discount_TB, reward_TB, value_T1B)
    return impala_losses(logits_TBA, r.action, value_TB, targets.target_TB, targets.advantage_TB)


def _value_after(
    agent: Agent, rollout: Rollout, h_BH: Tensor, c_BH: Tensor, weights: AgentWeights, read: Read | None
) -> Tensor:
    """Value [B] of the state after the last step, from which V-trace bootstraps."""
    r = rollout
    state = (r.obs[-1], r.first[-1], r.last_action[-1], r.last_reward[-1])
    _, h_BH, _ = agent.step(*state, h_BH, c_BH, weights, read)
    return agent.values(h_BH)


def _value_at_time_limit(
    agent: Agent,
    rollout: Rollout,
    h_TBH: Tensor,
    c_TBH: Tensor,
    reward_TB: Tensor,
    weights: AgentWeights,
    read: Read | None,
) -> Tensor:
    """Value of each step's last observation where the time limit ended the episode, else 0."""
    assert rollout.final_obs is not None
    embedding_ND = agent.encoder(rollout.final_obs.flatten(0, 1), weights.encoder)
    p_TBP = agent.describe(embedding_ND.unflatten(0, rollout.action.shape), rollout.action, reward_TB)
    p_NP, h_NH, c_NH = (x.flatten(0, 1) for x in (p_TBP, h_TBH, c_TBH))
    never_N1 = torch.zeros_like(p_NP[:, :1], dtype=torch.bool)
    h, _ = agent.lstm.step(p_NP, never_N1, h_NH, c_NH, weights.lstm, read)
    return agent.values(h).view_as(reward_TB) * rollout.truncated


def learn(
    agent: Agent,
    rollout: Rollout,
    optimizer: torch.optim.Optimizer,
    config: ImpalaConfig,
    read: Read | None = None,
    method: nn.Module | None = None,
    extra_loss: Callable[[], Tensor | None] = lambda: None,
) -> Tensor:
    """One gradient step, on a method's parameters and loss as well. Returns LEARN_METRICS as a tensor on the device."""
    losses = compute_losses(agent, rollout, config, read)
    loss = losses.policy + config.value_cost * losses.value + config.entropy_cost * losses.entropy
    extra = extra_loss()
    loss = loss if extra is None else loss + extra
    by_part = list(parts(agent, method).values())
    parameters = [p for part in by_part for p in part]
    with products(agent.encoder.dtype):
        grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
    for p, grad in zip(parameters, grads, strict=True):
        p.grad = grad
    squares_P = torch.stack(torch._foreach_norm(grads)).square()
    norms = torch.stack([part.sum() for part in squares_P.split([len(part) for part in by_part])]).sqrt()
    grad_norm = squares_P.sum().sqrt()
    torch.nn.utils.clip_grads_with_norm_(parameters, config.grad_clip, grad_norm)
    optimizer.step()
    entropy = -losses.entropy / rollout.action.numel()
    return torch.cat([torch.stack([loss, losses.policy, losses.value, entropy, grad_norm]), norms]).detach()
