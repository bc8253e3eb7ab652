"""PPO with an LSTM in one file, from the worlds to the gradient, and the episodic memory in it.

    python examples/ppo_lstm_memory.py --save small.pt
    python examples/ppo_lstm_memory.py --load small.pt --total-steps 100_000
    python examples/ppo_lstm_memory.py --world.levels 10x10 --world.maps 10 --world.objects 10

Every line that the memory needs ends in `# memory`. Without these lines the file is a plain PPO-LSTM that runs.
"""

import time
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical

import longtail  # noqa: F401  registers the worlds
from longtail.memory import BoostedMemory, MemoryConfig  # memory
from longtail.worlds import GridworldConfig


@dataclass
class Args:
    seed: int = 1
    """Of the worlds, the network and the sampling."""
    device: str = "cpu"
    """cuda is faster, where there is one."""
    save: Path | None = None
    """File to write the agent to, its memory included, after the last step."""
    load: Path | None = None
    """File to begin from; steps are counted from 0 again."""
    total_steps: int = 300_000
    """Steps of all worlds together."""
    num_envs: int = 32
    """Worlds that step together."""
    num_steps: int = 64
    """Steps of each world between two updates."""
    learning_rate: float = 7e-4
    """Of Adam."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Share of the next step's advantage estimate (Schulman et al., 2016)."""
    update_epochs: int = 4
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Minibatches of a pass; each has whole worlds, so that the LSTM sees whole sequences."""
    clip: float = 0.2
    """How far the policy's ratio may go before its gradient ends."""
    entropy_cost: float = 0.01
    """Weight of the policy's entropy."""
    value_cost: float = 0.5
    """Weight of the value's squared error."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    embedding: int = 256
    """Size of p, the description of an image."""
    hidden: int = 256
    """Size of the LSTM's state."""
    world: GridworldConfig = field(
        default_factory=lambda: GridworldConfig(levels="generated", level_seed=73, maps=4, objects=4, rooms=2)
    )
    memory: MemoryConfig = field(default_factory=lambda: MemoryConfig(familiarity=512, transfer=128))  # memory


class Agent(nn.Module):
    keys_NC: Tensor  # memory

    def __init__(self, args: Args, image_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        convolutions = nn.Sequential(
            nn.Conv2d(image_shape[-1], 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()
        )
        flat = convolutions(torch.zeros(image_shape).movedim(-1, 0)[None]).shape[1]
        self.encoder = nn.Sequential(convolutions, nn.Linear(flat, args.embedding), nn.ReLU())
        lstm_input = args.embedding
        lstm_input += args.hidden  # memory
        self.lstm = nn.LSTMCell(lstm_input, args.hidden)
        self.policy = nn.Linear(args.hidden, num_actions)
        self.value = nn.Linear(args.hidden, 1)
        nn.init.orthogonal_(self.policy.weight, 0.01)
        # As a part of the agent its parameters are trained, and its contents are saved, with the agent's.  # memory
        self.memory = BoostedMemory(args.embedding, args.hidden, image_shape, args.memory)  # memory

    def encode(self, image_NHWC: Tensor) -> Tensor:
        return self.encoder(image_NHWC.movedim(-1, 1) / 255)

    def step(self, p_BP: Tensor, first_B1: Tensor, h_BH: Tensor, c_BH: Tensor) -> tuple[Tensor, Tensor]:
        h_BH, c_BH = h_BH.masked_fill(first_B1, 0), c_BH.masked_fill(first_B1, 0)
        x_BX = p_BP
        # The state after its reset: an episode is not to recall what only the one before it has seen.  # memory
        x_BX = torch.cat([p_BP, self.memory.read(p_BP, h_BH, self.keys_NC)], -1)  # memory
        return self.lstm(x_BX, (h_BH, c_BH))

    def unroll(self, obs_TBHWC: Tensor, first_TB1: Tensor, h_BH: Tensor, c_BH: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [T, B, A] and values [T, B] of whole sequences, from the state that acting began them with."""
        p_TBP = self.encode(obs_TBHWC.flatten(0, 1)).unflatten(0, first_TB1.shape[:2])
        states = []
        for p_BP, first_B1 in zip(p_TBP, first_TB1, strict=True):
            h_BH, c_BH = self.step(p_BP, first_B1, h_BH, c_BH)
            states.append(h_BH)
        h_TBH = torch.stack(states)
        return self.policy(h_TBH), self.value(h_TBH).squeeze(-1)


def train(args: Args) -> Agent:
    torch.manual_seed(args.seed)
    T, B, device = args.num_steps, args.num_envs, torch.device(args.device)
    keywords = {name: value for name, value in asdict(args.world).items() if name != "name"}
    envs = gym.make_vec("longtail/Gridworld-v0", num_envs=B, **keywords)
    image_shape, num_actions = envs.single_observation_space.shape, envs.single_action_space.n  # type: ignore[attr-defined]
    assert image_shape is not None

    agent = Agent(args, image_shape, num_actions).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    if args.load is not None:
        saved = torch.load(args.load, map_location=device, weights_only=True)
        agent.load_state_dict(saved["agent"])
        optimizer.load_state_dict(saved["optimizer"])

    obs_TBHWC = torch.zeros(T, B, *image_shape, dtype=torch.uint8, device=device)
    action_TB = torch.zeros(T, B, dtype=torch.int64, device=device)
    log_prob_TB, reward_TB = torch.zeros(T, B, device=device), torch.zeros(T, B, device=device)
    # One step more: what comes after a rollout is needed for its last advantage.
    value_TB = torch.zeros(T + 1, B, device=device)
    first_TB1 = torch.ones(T + 1, B, 1, dtype=torch.bool, device=device)
    p_TBP = torch.zeros(T, B, args.embedding, device=device)  # memory
    h_TBH = torch.zeros(T, B, args.hidden, device=device)  # memory

    obs, _ = envs.reset(seed=args.seed)
    h_BH, c_BH = torch.zeros(B, args.hidden, device=device), torch.zeros(B, args.hidden, device=device)
    return_B, returns = np.zeros(B), deque[float](maxlen=100)
    outcomes: dict[tuple[int, int], list[bool]] = defaultdict(list)
    start = time.perf_counter()

    for step in range(T * B, args.total_steps + 1, T * B):
        first_h_BH, first_c_BH = h_BH, c_BH
        first_TB1[0] = first_TB1[T]
        with torch.no_grad():
            # Contents stay as they are until update(), W until the optimiser's step: keys are made once.  # memory
            agent.keys_NC = agent.memory.keys()  # memory
            for t in range(T):
                obs_TBHWC[t] = torch.from_numpy(obs)
                p_BP = agent.encode(obs_TBHWC[t])
                p_TBP[t], h_TBH[t] = p_BP, h_BH.masked_fill(first_TB1[t], 0)  # memory
                h_BH, c_BH = agent.step(p_BP, first_TB1[t], h_BH, c_BH)
                policy = Categorical(logits=agent.policy(h_BH))
                action_TB[t] = policy.sample()
                log_prob_TB[t], value_TB[t] = policy.log_prob(action_TB[t]), agent.value(h_BH).squeeze(-1)

                obs, reward_B, terminated_B, truncated_B, info = envs.step(action_TB[t].cpu().numpy())
                reward_TB[t] = torch.from_numpy(reward_B)
                ended_B = terminated_B | truncated_B  # a time limit ends an episode, too, and pays nothing
                first_TB1[t + 1, :, 0] = torch.from_numpy(ended_B)
                return_B += reward_B
                for i in np.flatnonzero(ended_B):
                    final = info["final_info"]  # `obs` and `info` themselves are the next episode's already
                    outcomes[int(final["map"][i]), int(final["object"][i])].append(bool(final["success"][i]))
                    returns.append(return_B[i])
                    return_B[i] = 0
            p_BP = agent.encode(torch.from_numpy(obs).to(device))
            value_TB[T] = agent.value(agent.step(p_BP, first_TB1[T], h_BH, c_BH)[0]).squeeze(-1)
            agent.memory.observe(obs_TBHWC, p_TBP, h_TBH)  # memory

            advantage_TB, advantage_B = torch.zeros_like(reward_TB), torch.zeros(B, device=device)
            for t in reversed(range(T)):
                discount_B = args.gamma * ~first_TB1[t + 1, :, 0]
                error_B = reward_TB[t] + discount_B * value_TB[t + 1] - value_TB[t]
                advantage_TB[t] = advantage_B = error_B + discount_B * args.gae_lambda * advantage_B
            target_TB = advantage_TB + value_TB[:T]

        for _ in range(args.update_epochs):
            minibatches = torch.randperm(B, device=device).chunk(args.num_minibatches)
            for number, b in enumerate(minibatches):  # numbers of worlds
                agent.keys_NC = agent.memory.keys()  # memory
                logits, value = agent.unroll(obs_TBHWC[:, b], first_TB1[:T, b], first_h_BH[b], first_c_BH[b])
                policy = Categorical(logits=logits)
                ratio = (policy.log_prob(action_TB[:, b]) - log_prob_TB[:, b]).exp()
                advantage = advantage_TB[:, b]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
                policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
                value_loss = 0.5 * F.mse_loss(value, target_TB[:, b])
                loss = policy_loss + args.value_cost * value_loss - args.entropy_cost * policy.entropy().mean()
                # A pass over the familiarity buffer for each pass over the rollout: in every minibatch it  # memory
                # would cost more than all the rest. Momentum counts these passes, `transfer_every` rollouts,  # memory
                # because MEM may not change as long as its rollout is learned from.  # memory
                if number == 0:  # memory
                    loss = loss + args.memory.contrastive_cost * agent.memory.loss(agent.encode)  # memory
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        agent.memory.update()  # memory

        speed, mean_return = step / (time.perf_counter() - start), np.mean(returns) if returns else np.nan
        line = f"step {step:,}  {speed:,.0f} steps/s  return of the last {len(returns)} episodes {mean_return:.2f}"
        line += f"  states in MEM {int(agent.memory.mem.filled)}"  # memory
        print(line, flush=True)

    print("map  object  episodes  success while training, last 100")
    for (map_id, object_id), successes in sorted(outcomes.items(), key=lambda item: -len(item[1])):
        print(f"{map_id:3}  {object_id:6}  {len(successes):8}  {100 * np.mean(successes[-100:]):5.1f} %")
    if args.save is not None:
        torch.save({"agent": agent.state_dict(), "optimizer": optimizer.state_dict()}, args.save)
    envs.close()
    return agent


if __name__ == "__main__":
    train(tyro.cli(Args))
