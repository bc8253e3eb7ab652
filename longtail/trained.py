"""A trained agent, for use anywhere: a notebook, a robot, somebody else's evaluation."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longtail import checkpoint, runfolder
from longtail.agents.agent import Agent
from longtail.agents.lstm import Read
from longtail.build import build
from longtail.config import RunConfig, fingerprint, resolve_device, resolve_precision
from longtail.methods import Method


@dataclass
class AgentState:
    """What an agent remembers of B episodes under way: the LSTM state, what it did last, and what it reads from."""

    h_BH: Tensor
    c_BH: Tensor
    last_action_B: Tensor
    read: Read | None


@dataclass
class TrainedAgent:
    """The frozen policy of a run. Start each episode with `state=None`; one state serves a batch of episodes."""

    config: RunConfig
    agent: Agent
    method: Method
    step: int
    visits_n: np.ndarray  # episodes of each task in training
    device: torch.device
    generator: torch.Generator
    obs_shape: tuple[int, int, int]

    @torch.no_grad()
    def act(
        self,
        obs: np.ndarray | Tensor,
        state: AgentState | None = None,
        *,
        reward: float | np.ndarray = 0.0,
        first: bool | np.ndarray = False,
        greedy: bool = False,
    ) -> tuple[int | np.ndarray, AgentState]:
        """Actions for uint8 images [H, W, C] or [B, H, W, C], and the state to pass in at the next step.

        `reward` is what the last action earned. `first` marks episodes that begin with this observation.
        """
        images = obs.to(self.device) if isinstance(obs, Tensor) else torch.from_numpy(np.array(obs)).to(self.device)
        if images.dtype != torch.uint8 or images.ndim not in (3, 4) or images.shape[-3:] != self.obs_shape:
            raise ValueError(
                f"obs is {images.dtype} {[*images.shape]}: it must be uint8 {[*self.obs_shape]}, or a batch of these"
            )
        single = images.ndim == 3
        images = images[None] if single else images
        B = len(images)
        is_start = state is None
        state = self.initial_state(B) if state is None else state
        if len(state.last_action_B) != B:
            raise ValueError(f"obs has {B} images, but state has {len(state.last_action_B)} episodes")
        first_B = torch.as_tensor(first, dtype=torch.bool, device=self.device).expand(B) | is_start
        reward_B = torch.as_tensor(reward, dtype=torch.float32, device=self.device).expand(B)
        clip = self.config.impala.reward_clip
        reward_B = reward_B.clamp(-clip, clip) if clip else reward_B
        logits_BA, state = policy_step(self.agent, images, first_B, reward_B, state)
        action_B = choose(logits_BA, self.generator, greedy)
        state.last_action_B = action_B
        return (int(action_B[0]) if single else action_B.cpu().numpy()), state

    def initial_state(self, num_episodes: int) -> AgentState:
        zeros = torch.zeros(num_episodes, self.agent.hidden_dim, device=self.device)
        none = torch.full((num_episodes,), self.agent.no_action, device=self.device)
        with torch.no_grad():
            return AgentState(zeros, zeros.clone(), none, self.method.playing(num_episodes))


def policy_step(
    agent: Agent, obs_BHWC: Tensor, first_B: Tensor, reward_B: Tensor, state: AgentState
) -> tuple[Tensor, AgentState]:
    """Logits, and a new state that does not yet know the action."""
    last_action_B = state.last_action_B.masked_fill(first_B, agent.no_action)
    # A state that was passed in stays as it is; a memory of the episode is written to as it is read.
    read = getattr(state.read, "copy", lambda: state.read)()
    logits_BA, h_BH, c_BH = agent.step(
        obs_BHWC, first_B, last_action_B, reward_B * ~first_B, state.h_BH, state.c_BH, read=read
    )
    return logits_BA, AgentState(h_BH, c_BH, last_action_B, read)


def choose(logits_BA: Tensor, generator: torch.Generator, greedy: bool) -> Tensor:
    """The likeliest action, or a sample of the policy."""
    if greedy:
        return logits_BA.argmax(-1)
    return torch.argmax(logits_BA - torch.empty_like(logits_BA).exponential_(generator=generator).log_(), -1)


def load(run: Path | str, device: str = "auto", seed: int = 0) -> TrainedAgent:
    """The agent of a run's newest checkpoint that can be read."""
    run = Path(run)
    config = runfolder.read_config(run)
    where = resolve_device(device)
    found = checkpoint.load_own(run, fingerprint(config), lambda message: print(message, file=sys.stderr))
    if found is None:
        raise ValueError(f"run is {str(run)!r}: it has no checkpoint yet; longtail train makes one")
    state, meta = found
    obs_shape = tuple(meta["obs_shape"])
    agent, method = build(config, obs_shape, meta["num_actions"], resolve_precision(config.precision, where))
    for prefix, module in (("agent.", agent), ("method.", method)):
        module.load_state_dict({name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)})
        module.to(where).eval().requires_grad_(False)
    generator = torch.Generator(where).manual_seed(seed)
    return TrainedAgent(
        config, agent, method, meta["step"], state["counters.episodes"].numpy(), where, generator, obs_shape
    )
