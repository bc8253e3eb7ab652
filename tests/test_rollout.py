"""What acting records equals a plain loop over the public functions, bit for bit; actions are samples of the policy."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from counting import CountingConfig
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor

from longtail import worlds
from longtail.agents.agent import Agent, AgentConfig
from longtail.config import RunConfig
from longtail.evaluate import play_episodes
from longtail.impala.act import Rollout, act
from longtail.impala.learn import ImpalaConfig
from longtail.methods import Method, Sizes
from longtail.trained import TrainedAgent, choose
from longtail.worlds import GridworldConfig, World

T, B, ROLLOUTS = 5, 4, 4
STATE = ("obs", "first", "task", "last_action", "last_reward")  # rows 0..T
STEP = ("action", "logits", "reward", "truncated", "success", "final_obs")  # rows 0..T-1

WORLDS = {
    "gridworld": GridworldConfig(levels="generated", maps=2, objects=2, rooms=2, resolution=28, max_steps=7),
    "counting": CountingConfig(),  # rewards of both signs within an episode
}


def build(name: str, device: str, num_worlds: int = B, encoder: str = "shallow") -> tuple[Agent, World]:
    torch.manual_seed(0)
    world = worlds.make(WORLDS[name], num_worlds, device, final_obs=True)  # type: ignore[arg-type]
    config = AgentConfig(encoder=encoder, embedding=16, hidden=8)  # type: ignore[arg-type]
    return Agent(world.obs_shape, world.num_actions, config).to(device), world


def copy(rollout: Rollout) -> dict[str, Tensor]:
    found = {field.name: getattr(rollout, field.name) for field in fields(rollout)}
    return {name: tensor.clone() for name, tensor in found.items() if tensor is not None}


def record(
    agent: Agent, world: World, count: int = ROLLOUTS, unroll: int = T, clip: float = 0.0, seed: int = 1
) -> list[dict[str, Tensor]]:
    rollout = Rollout.empty(world, agent, unroll, final_obs=True)
    generator = torch.Generator(world.device).manual_seed(seed)
    made = []
    for _ in range(count):
        act(agent, world, rollout, generator, clip)
        made.append(copy(rollout))
    return made


@torch.no_grad()
def replay(agent: Agent, world: World, action_TB: Tensor, clip: float) -> list[dict[str, Tensor]]:
    """Take the given actions one by one, and note everything; the last row has only the state."""
    zeros_BH = torch.zeros(world.num_worlds, agent.hidden_dim, device=world.device)
    h_BH, c_BH = zeros_BH.clone(), zeros_BH.clone()
    last_action_B = torch.full_like(world.task, agent.no_action)
    last_reward_B = torch.zeros_like(world.reward)
    rows = []
    for action_B in [*action_TB, None]:
        row = {"obs": world.observe(), "first": world.first, "task": world.task}
        row |= {"last_action": last_action_B, "last_reward": last_reward_B, "h": h_BH, "c": c_BH}
        row = {name: tensor.clone() for name, tensor in row.items()}
        rows.append(row)
        if action_B is None:
            return rows
        row["logits"], h_BH, c_BH = agent.step(row["obs"], row["first"], last_action_B, last_reward_B, h_BH, c_BH)
        world.prepare(1)
        world.step(action_B)
        row |= {"action": action_B, "reward": world.reward, "truncated": world.truncated, "success": world.success}
        row |= {"final_obs": world.observe_final()}
        last_action_B = torch.where(world.first, agent.no_action, action_B)
        reward_B = world.reward.clamp(-clip, clip) if clip else world.reward
        last_reward_B = torch.where(world.first, 0.0, reward_B)
        rows[-1] = {name: tensor.clone() for name, tensor in row.items()}
    raise AssertionError


@pytest.mark.parametrize("clip", [0.0, 0.25])
@pytest.mark.parametrize("encoder", ["shallow", "deep"])
@pytest.mark.parametrize("name", WORLDS)
def test_equals_a_plain_loop(name: str, encoder: str, clip: float, device: str) -> None:
    agent, world = build(name, device, encoder=encoder)
    world.reset(3, stagger=True)
    made = record(agent, world, clip=clip)
    world.reset(3, stagger=True)
    rows = replay(agent, world, torch.cat([r["action"] for r in made]), clip)
    for i, rollout in enumerate(made):
        own = rows[i * T : i * T + T + 1]
        for field in STATE:
            assert torch.equal(rollout[field], torch.stack([row[field] for row in own])), field
        for field in STEP:
            assert torch.equal(rollout[field], torch.stack([row[field] for row in own[:-1]])), field
        for field, row in (("h_before", 0), ("c_before", 0), ("h", -1), ("c", -1)):
            assert torch.equal(rollout[field], own[row][field[0]]), field
    check_that_things_happened(name, made, clip)


def check_that_things_happened(name: str, made: list[dict[str, Tensor]], clip: float) -> None:
    """Without ends, limits and rewards on the way the test would say little."""
    together = {field: torch.cat([r[field] for r in made]) for field in (*STATE, *STEP)}
    assert together["first"].any() and not together["first"].all()
    assert together["truncated"].any()
    if name == "counting":
        assert set(together["last_reward"].unique().tolist()) == ({-0.25, 0.0, 0.25} if clip else {-0.5, 0.0, 1.0})
        assert set(together["reward"].unique().tolist()) == {-0.5, 1.0}  # as the world gave it


def test_the_last_row_is_the_next_first_row(device: str) -> None:
    agent, world = build("counting", device)
    made = record(agent, world)
    for before, after in zip(made, made[1:], strict=False):
        for field in STATE:
            assert torch.equal(before[field][-1], after[field][0]), field
        assert torch.equal(before["h"], after["h_before"]) and torch.equal(before["c"], after["c_before"])


def test_an_episode_starts_from_nothing(device: str) -> None:
    """No last action, no last reward, and logits that do not know the episode before."""
    agent, world = build("counting", device)
    for rollout in record(agent, world, clip=1.0):
        first = rollout["first"]
        assert (rollout["last_action"][first] == agent.no_action).all()
        assert (rollout["last_reward"][first] == 0).all()
        n = int(first[:-1].sum())
        zeros_NH = torch.zeros(n, agent.hidden_dim, device=device)
        with torch.no_grad():
            logits, _, _ = agent.step(
                rollout["obs"][:-1][first[:-1]],
                torch.zeros(n, dtype=torch.bool, device=device),
                torch.full((n,), agent.no_action, device=device),
                torch.zeros(n, device=device),
                zeros_NH,
                zeros_NH.clone(),
            )
        torch.testing.assert_close(rollout["logits"][first[:-1]], logits, rtol=0, atol=1e-6)


def fixed_policy(device: str, num_worlds: int) -> tuple[Agent, World, np.ndarray]:
    """An agent whose policy is the same in every state, and its probabilities."""
    agent, world = build("counting", device, num_worlds)
    logits_A = torch.linspace(-2, 1.5, world.num_actions, device=device)
    with torch.no_grad():
        agent.policy.weight.zero_()
        agent.policy.bias.copy_(logits_A)
    return agent, world, logits_A.softmax(-1).double().cpu().numpy()


def test_actions_are_samples_of_the_policy(device: str) -> None:
    agent, world, probability_A = fixed_policy(device, 64)
    action = torch.cat([r["action"] for r in record(agent, world, count=10, unroll=16)]).cpu().numpy()
    assert frequencies_fit(action, probability_A)
    assert not frequencies_fit(action, np.full(8, 1 / 8))
    # Neither successive steps, nor neighbouring worlds, nor the same step of successive rollouts know of each other.
    for one, other in ((action[1:], action[:-1]), (action[:, 1:], action[:, :-1]), (action[16:], action[:-16])):
        pairs = np.zeros((8, 8), np.int64)
        np.add.at(pairs, (one.ravel(), other.ravel()), 1)
        assert chi2_contingency(pairs[2:, 2:]).pvalue > 1e-3


def frequencies_fit(action: np.ndarray, probability_A: np.ndarray) -> bool:
    seen = np.bincount(action.ravel(), minlength=len(probability_A))
    return bool(chisquare(seen, probability_A / probability_A.sum() * action.size).pvalue > 1e-3)


def test_a_trained_agent_samples_alike(device: str) -> None:
    agent, _, probability_A = fixed_policy(device, 1)
    generator = torch.Generator(device).manual_seed(0)
    logits_BA = agent.policy.bias.detach().expand(10_000, -1)
    assert frequencies_fit(choose(logits_BA, generator, greedy=False).cpu().numpy(), probability_A)
    assert (choose(logits_BA, generator, greedy=True) == probability_A.argmax()).all()


def decisive(device: str) -> TrainedAgent:
    """Untrained, but with weights so large that what it did and received last changes what it does next."""
    agent, world = build("counting", device)
    with torch.no_grad():
        for p in (agent.lstm.input.weight, agent.policy.weight):
            p *= 10
    run = RunConfig(impala=ImpalaConfig(reward_clip=0.25))
    method = Method(Sizes(world.obs_shape, world.num_actions, 16, 8, B, T), None, None)
    return TrainedAgent(run, agent, method, 0, np.zeros(3), world.device, torch.Generator(device), world.obs_shape)


def test_a_trained_agent_acts_as_it_did_in_training(device: str) -> None:
    """From frames, rewards and starts alone; the best action is that of a plain loop over the same actions."""
    trained, (_, world) = decisive(device), build("counting", device)
    world.reset(0)
    actions, state = [], None
    for _ in range(60):
        obs, reward, first = (x.cpu().numpy() for x in (world.observe(), world.reward, world.first))
        action, state = trained.act(obs, state, reward=reward, first=first, greedy=True)
        actions.append(torch.from_numpy(np.asarray(action)).to(device))
        world.step(actions[-1])
    check_best(trained, world, actions)


def test_a_trained_agent_acts_alike_in_one_world(device: str) -> None:
    """No state starts an episode: whatever reward came last belongs to the episode before."""
    trained, (_, world) = decisive(device), build("counting", device, num_worlds=1)
    world.reset(0)
    actions, state = [], None
    for _ in range(60):
        state = None if bool(world.first) else state
        action, state = trained.act(world.observe()[0].cpu().numpy(), state, reward=float(world.reward), greedy=True)
        actions.append(torch.tensor([action], device=device))
        world.step(actions[-1])
    check_best(trained, world, actions)


def check_best(trained: TrainedAgent, world: World, actions: list[Tensor]) -> None:
    world.reset(0)
    rows = replay(trained.agent, world, torch.stack(actions), clip=0.25)[:-1]
    best = torch.stack([row["logits"].argmax(-1) for row in rows])
    assert torch.equal(torch.stack(actions), best)
    # The test would say nothing of an agent that pays no attention.
    for change in ("last_action", "last_reward"):
        other = {"last_action": 0, "last_reward": 5.0}[change]
        changed = []
        for row in rows:
            given = row | {change: torch.full_like(row[change], other)}
            with torch.no_grad():
                names = ("obs", "first", "last_action", "last_reward", "h", "c")
                logits_BA, _, _ = trained.agent.step(*(given[name] for name in names))
            changed.append(logits_BA.argmax(-1))
        assert not torch.equal(torch.stack(changed), best), change


def test_evaluation_acts_as_in_training(device: str) -> None:
    trained, (_, world) = decisive(device), build("counting", device, num_worlds=40)
    world.reset(0)
    success_B, return_B = play_episodes(trained, world, greedy=True)
    world.reset(0)
    expected_B, alive_B = torch.zeros(40, device=device), torch.ones(40, dtype=torch.bool, device=device)
    state, successes_B = None, torch.zeros_like(alive_B)
    while alive_B.any():
        obs, reward, first = (x.cpu().numpy() for x in (world.observe(), world.reward, world.first))
        action, state = trained.act(obs, state, reward=reward, first=first, greedy=True)
        world.step(torch.from_numpy(np.asarray(action)).to(device))
        expected_B += world.reward * alive_B
        successes_B |= world.success & alive_B
        alive_B &= ~world.first
    np.testing.assert_array_equal(return_B, expected_B.cpu())
    np.testing.assert_array_equal(success_B, successes_B.cpu())
    assert len(np.unique(return_B)) > 3


def test_the_generator_alone_decides_the_actions(device: str) -> None:
    made = []
    for seed in (1, 1, 2):
        agent, world = build("gridworld", device)
        world.reset(0)
        torch.manual_seed(seed + 10)  # the global generator has no say
        made.append(record(agent, world, seed=seed))
    same, differs = ([torch.equal(a["action"], b["action"]) for a, b in zip(made[0], x, strict=True)] for x in made[1:])
    assert all(same) and not all(differs)
    assert not torch.equal(made[0][0]["action"], made[0][1]["action"])


def test_a_memory_read_enters_every_step(device: str) -> None:
    torch.manual_seed(0)
    world = worlds.make(WORLDS["counting"], B, device, final_obs=True)  # type: ignore[arg-type]
    agent = Agent(world.obs_shape, world.num_actions, AgentConfig(embedding=16, hidden=8), memory_dim=3).to(device)
    rollouts, calls = [], 0

    def read(p_BP: Tensor, h_BH: Tensor, first_B1: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        assert p_BP.shape == (B, agent.p_dim) and h_BH.shape == (B, 8)
        return p_BP[:, :3] + h_BH[:, :3]

    def nothing(p_BP: Tensor, h_BH: Tensor, first_B1: Tensor) -> Tensor:
        return torch.zeros(B, 3, device=device)

    for one in (read, nothing):
        world.reset(0)
        rollout = Rollout.empty(world, agent, T)
        act(agent, world, rollout, torch.Generator(device).manual_seed(0), 1.0, one)
        rollouts.append(copy(rollout))
    assert calls == T
    assert not torch.equal(rollouts[0]["logits"][0], rollouts[1]["logits"][0])
