"""The gradient step: losses by plain loops, RMSProp and clipping by hand, the schedule, time limits."""

import gc
from dataclasses import replace

import pytest
import torch
from counting import CountingConfig
from torch import Tensor

from longtail import worlds
from longtail.agents.agent import Agent, AgentConfig
from longtail.agents.lstm import Read
from longtail.agents.precision import products
from longtail.impala.act import Rollout, act
from longtail.impala.learn import LEARN_METRICS, ImpalaConfig, compute_losses, learn, make_optimizer, schedule
from longtail.impala.losses import impala_losses, log_probability
from longtail.impala.vtrace import vtrace
from longtail.worlds import GridworldConfig

T, B = 8, 5
CONFIG = ImpalaConfig(worlds=B, unroll=T, reward_clip=0.0)


def build(encoder: str = "shallow", memory_dim: int = 0, device: str = "cpu") -> Agent:
    torch.manual_seed(0)
    world = worlds.make(CountingConfig(), 1, device)  # type: ignore[arg-type]
    config = AgentConfig(encoder=encoder, embedding=16, hidden=8)  # type: ignore[arg-type]
    return Agent(world.obs_shape, world.num_actions, config, memory_dim=memory_dim).to(device)


def rolled_out(
    agent: Agent, final_obs: bool = False, clip: float = 0.0, read: Read | None = None, other_policy: bool = True
) -> Rollout:
    """A later rollout, of a policy that is not quite the agent's own any more; rewards are 1 and -0.5."""
    device = next(agent.parameters()).device
    world = worlds.make(CountingConfig(), B, device, final_obs)  # type: ignore[arg-type]
    rollout = Rollout.empty(world, agent, T, final_obs)
    for _ in range(3):
        act(agent, world, rollout, torch.Generator(device).manual_seed(1), clip, read)
    if other_policy:
        rollout.logits += 0.5 * torch.randn(rollout.logits.shape, generator=torch.Generator().manual_seed(2)).to(device)
    assert rollout.first[1:].any() and rollout.truncated.any()
    return rollout


@torch.no_grad()
def losses_by_steps(agent: Agent, r: Rollout, config: ImpalaConfig) -> tuple[Tensor, ...]:
    """One step of the agent after the other, as in acting; values at time limits from a look at the final frame."""
    h_BH, c_BH = r.h_before, r.c_before
    clip = config.reward_clip or float("inf")
    logits, value, bonus = [], [], []
    for t in range(T + 1):
        logits_BA, h_BH, c_BH = agent.step(r.obs[t], r.first[t], r.last_action[t], r.last_reward[t], h_BH, c_BH)
        logits.append(logits_BA)
        value.append(agent.value(h_BH)[:, 0])
        if t < T and r.final_obs is not None:
            never, reward_B = torch.zeros_like(r.first[t]), r.reward[t].clamp(-clip, clip)
            _, look_BH, _ = agent.step(r.final_obs[t], never, r.action[t], reward_B, h_BH, c_BH)
            bonus.append(torch.where(r.truncated[t], config.discount * agent.value(look_BH)[:, 0], 0.0))
    logits_TBA, value_T1B = torch.stack(logits[:-1]), torch.stack(value)
    reward_TB = r.reward.clamp(-clip, clip) + (torch.stack(bonus) if bonus else 0)
    discount_TB = torch.where(r.first[1:], 0.0, config.discount)
    log_rho_TB = log_probability(logits_TBA, r.action) - log_probability(r.logits, r.action)
    targets = vtrace(log_rho_TB, discount_TB, reward_TB, value_T1B)
    return impala_losses(logits_TBA, r.action, value_T1B[:-1], *targets)


@pytest.mark.parametrize("clip", [0.0, 0.25])
@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("encoder", ["shallow", "deep"])
def test_losses_equal_steps(encoder: str, bootstrap: bool, clip: float, device: str) -> None:
    agent, config = build(encoder, device=device), replace(CONFIG, reward_clip=clip, bootstrap_time_limits=bootstrap)
    rollout = rolled_out(agent, final_obs=bootstrap, clip=clip)
    for made, expected in zip(
        compute_losses(agent, rollout, config), losses_by_steps(agent, rollout, config), strict=True
    ):
        torch.testing.assert_close(made.detach(), expected, rtol=1e-4, atol=1e-4)


def losses(agent: Agent, rollout: Rollout, config: ImpalaConfig) -> list[float]:
    return [float(loss.detach()) for loss in compute_losses(agent, rollout, config)]


def test_rewards_are_clipped_for_learning_only() -> None:
    agent = build()
    rollout = rolled_out(agent)
    clipped = losses(agent, rollout, replace(CONFIG, reward_clip=0.25))
    assert clipped != losses(agent, rollout, CONFIG)
    assert set(rollout.reward.unique().tolist()) == {-0.5, 1.0}
    rollout.reward.clamp_(-0.25, 0.25)
    assert losses(agent, rollout, CONFIG) == clipped


def test_time_limits_are_bootstrapped_where_asked() -> None:
    """Only the time limit's value counts: not what a step that ends by itself, or goes on, looks like at last."""
    agent = build()
    rollout = rolled_out(agent, final_obs=True)
    assert rollout.final_obs is not None
    with_limits = losses(agent, rollout, CONFIG)
    rollout.final_obs[~rollout.truncated] += 100
    assert losses(agent, rollout, CONFIG) == with_limits
    rollout.final_obs[rollout.truncated] += 100
    assert losses(agent, rollout, CONFIG) != with_limits
    rollout.final_obs = None
    without = losses(agent, rollout, CONFIG)
    assert without[1] != with_limits[1] and without[2] == with_limits[2]


def test_no_gradient_flows_through_the_value_at_a_time_limit() -> None:
    """It is a target, like all that V-trace makes."""
    agent = build()
    rollout = rolled_out(agent, final_obs=True)
    before = rollout.reward.clone()
    made = torch.autograd.grad(sum(compute_losses(agent, rollout, CONFIG)), list(agent.parameters()))
    # The same numbers as plain rewards give the same gradients.
    with torch.no_grad():
        h_TBH, c_TBH = agent.unroll(
            rollout.obs, rollout.first, rollout.last_action, rollout.last_reward, rollout.h_before, rollout.c_before
        )
        for t in range(T):
            never = torch.zeros_like(rollout.first[t])
            _, h_BH, _ = agent.step(
                rollout.final_obs[t],
                never,
                rollout.action[t],
                before[t],
                h_TBH[t],
                c_TBH[t],  # type: ignore[index]
            )
            rollout.reward[t] += CONFIG.discount * agent.value(h_BH)[:, 0] * rollout.truncated[t]
    rollout.final_obs = None
    expected = torch.autograd.grad(sum(compute_losses(agent, rollout, CONFIG)), list(agent.parameters()))
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def fake_read(p_BP: Tensor, h_BH: Tensor, first_B1: Tensor) -> Tensor:
    return torch.tanh(p_BP[:, :3] + h_BH[:, :3])


@pytest.mark.parametrize(("encoder", "memory_dim"), [("shallow", 0), ("deep", 0), ("shallow", 3)])
def test_every_parameter_gets_a_gradient(encoder: str, memory_dim: int, device: str) -> None:
    agent, read = build(encoder, memory_dim, device), fake_read if memory_dim else None
    rollout = rolled_out(agent, read=read)
    before = {name: p.detach().clone() for name, p in agent.named_parameters()}
    learn(agent, rollout, make_optimizer(agent, CONFIG), CONFIG, read)
    for name, p in agent.named_parameters():
        assert (p != before[name]).any(), name
        assert torch.isfinite(p).all(), name


def total_gradients(agent: Agent, rollout: Rollout, config: ImpalaConfig) -> tuple[float, list[Tensor]]:
    made = compute_losses(agent, rollout, config)
    loss = made.policy + config.value_cost * made.value + config.entropy_cost * made.entropy
    return float(loss.detach()), list(torch.autograd.grad(loss, list(agent.parameters())))


@pytest.mark.parametrize("grad_clip", [1e6, 0.5])
def test_three_steps_of_rmsprop_by_hand(grad_clip: float, device: str) -> None:
    """g is scaled to the clip's norm; s = decay s + (1 - decay) g^2; w -= rate g / (sqrt(s) + eps): eps outside."""
    agent, decay, eps, rate = build(device=device), 0.9, 0.05, 0.01
    config = replace(
        CONFIG, rmsprop_decay=decay, rmsprop_eps=eps, learning_rate=rate, grad_clip=grad_clip, entropy_cost=0.1
    )
    rollout, optimizer = rolled_out(agent), make_optimizer(agent, config)
    square = [torch.zeros_like(p) for p in agent.parameters()]
    for _ in range(3):
        expected = []
        _, gradients = total_gradients(agent, rollout, config)
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))  # type: ignore[arg-type]
        scale = min(1.0, grad_clip / float(norm))
        for i, (p, gradient) in enumerate(zip(agent.parameters(), gradients, strict=True)):
            g = gradient * scale
            square[i] = decay * square[i] + (1 - decay) * g**2
            expected.append((p.detach() - rate * g / (square[i].sqrt() + eps)).clone())
        learn(agent, rollout, optimizer, config)
        for (name, p), wanted in zip(agent.named_parameters(), expected, strict=True):
            torch.testing.assert_close(p.detach(), wanted, rtol=1e-4, atol=2e-6, msg=name)
        assert (norm > grad_clip) == (grad_clip < 1)


@pytest.mark.parametrize("steps", [1, 3, 40])  # on a CPU, 40 x 9 images go back in chunks
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("encoder", "shape"), [("shallow", (24, 24, 3)), ("shallow", (23, 30, 1)), ("deep", (24, 24, 3))]
)
def test_what_acting_computed_is_as_good_as_computing_it_again(
    encoder: str, shape: tuple[int, int, int], dtype: torch.dtype, steps: int, device: str
) -> None:
    torch.manual_seed(0)
    agent = Agent(shape, 4, AgentConfig(encoder=encoder, embedding=16, hidden=8), dtype).to(device)  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(1)
    obs = torch.randint(256, (steps, 9, *shape), dtype=torch.uint8, generator=g).to(device)
    first = (torch.rand(steps, 9, generator=g) < 0.2).to(device)
    action = torch.randint(4, (steps, 9), generator=g).to(device)
    reward, h, c = (torch.randn(n, 9, *size, generator=g).to(device) for n, size in ((steps, ()), (1, (8,)), (1, (8,))))
    tape = agent.tape(steps, 9)
    with torch.no_grad():
        h_now, c_now, weights = h[0], c[0], agent.prepare(9)
        for t in range(steps):
            state = (obs[t], first[t], action[t], reward[t], h_now, c_now)
            _, h_now, c_now = agent.step(*state, weights, tape=tape)
    assert len(tape.lstm.moments) == steps and (tape.images is None) == (encoder == "deep")
    weight = torch.randn(steps, 9, 8, generator=g).to(device)
    results = []
    for kept in (tape, None):
        h_TBH, c_TBH = agent.unroll(obs, first, action, reward, h[0], c[0], tape=kept)
        parameters = [*agent.encoder.parameters(), *agent.lstm.parameters()]
        with products(dtype):
            made = torch.autograd.grad((h_TBH * weight).sum(), parameters)
        results.append([h_TBH.detach(), c_TBH, *made])
    # On a GPU acting has kernels of its own: in bf16 they are as far from the others as both are from fp32.
    tolerance = 1e-5 if dtype == torch.float32 else 0.05 if device == "cpu" else 0.3
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() <= tolerance * other.norm()


@pytest.mark.parametrize("encoder", ["shallow", "deep"])
def test_a_rollout_with_a_tape_teaches_the_same(encoder: str, device: str) -> None:
    found = []
    for keep_tape in (False, True):
        agent = build(encoder, device=device)
        world = worlds.make(CountingConfig(), B, device)  # type: ignore[arg-type]
        rollout, generator = Rollout.empty(world, agent, T, keep_tape=keep_tape), torch.Generator(device).manual_seed(1)
        optimizer = make_optimizer(agent, CONFIG)
        for _ in range(4):  # each tape is of the parameters that it is used with
            act(agent, world, rollout, generator, 0.0)
            metrics = learn(agent, rollout, optimizer, CONFIG)
        found.append([metrics, *(p.detach() for p in agent.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_metrics_in_order(device: str) -> None:
    assert LEARN_METRICS == (
        "loss", "policy_loss", "value_loss", "entropy", "grad_norm", "grad_norm_encoder", "grad_norm_lstm",
        "grad_norm_heads", "grad_norm_method",
    )  # fmt: skip
    agent, config = build(device=device), replace(CONFIG, value_cost=0.7, entropy_cost=0.2, grad_clip=0.01)
    rollout = rolled_out(agent, other_policy=False)
    policy, value, entropy = losses(agent, rollout, config)
    loss, gradients = total_gradients(agent, rollout, config)
    metrics = learn(agent, rollout, make_optimizer(agent, config), config)
    named = dict(zip(dict(agent.named_parameters()), gradients, strict=True))

    def norm(*modules: str) -> float:  # before it is clipped
        return float(torch.cat([g.flatten() for name, g in named.items() if name.split(".")[0] in modules]).norm())

    norms = [norm("encoder", "lstm", "policy", "value"), norm("encoder"), norm("lstm"), norm("policy", "value"), 0.0]
    mean_entropy = float(torch.distributions.Categorical(logits=rollout.logits).entropy().mean())
    assert not metrics.requires_grad and metrics.device.type == device
    assert loss == pytest.approx(policy + 0.7 * value + 0.2 * entropy, rel=1e-5)
    assert metrics.tolist() == pytest.approx([loss, policy, value, mean_entropy, *norms], rel=1e-4)
    assert min(norms[:4]) > 0.1


def test_a_method_is_trained_as_well(device: str) -> None:
    """Its loss is added, its parameters move, and the clip is that of all gradients together."""
    agent, config = build(device=device), replace(CONFIG, grad_clip=0.01)
    rollout = rolled_out(agent)
    policy, value, entropy = losses(agent, rollout, config)
    own = torch.nn.Linear(3, 1).to(device)
    x_N3 = torch.linspace(-2, 3, 15, device=device).view(5, 3)

    def own_loss() -> Tensor:
        return 7 * own(x_N3).square().sum()

    gradient, _ = torch.autograd.grad(own_loss(), list(own.parameters()))
    expected, before = float(own_loss().detach()), own.weight.detach().clone()
    learned_K = learn(agent, rollout, make_optimizer(agent, config, own), config, method=own, extra_loss=own_loss)
    row = dict(zip(LEARN_METRICS, learned_K.tolist(), strict=True))
    assert row["loss"] == pytest.approx(policy + 0.5 * value + 0.003 * entropy + expected, rel=1e-4)
    parts = [row[f"grad_norm_{part}"] for part in ("encoder", "lstm", "heads", "method")]
    assert row["grad_norm"] == pytest.approx(sum(norm**2 for norm in parts) ** 0.5, rel=1e-5) and min(parts) > 0
    clipped = gradient * config.grad_clip / row["grad_norm"]
    torch.testing.assert_close(own.weight.grad, clipped, rtol=1e-4, atol=1e-7)
    rate, decay, eps = config.learning_rate, config.rmsprop_decay, config.rmsprop_eps
    step = rate * clipped / ((1 - decay) ** 0.5 * clipped.abs() + eps)
    torch.testing.assert_close(before - own.weight.detach(), step, rtol=1e-3, atol=1e-7)


def test_learning_on_the_same_rollout_lowers_the_value_loss(device: str) -> None:
    agent, config = build(device=device), replace(CONFIG, learning_rate=1e-3)
    rollout, optimizer = rolled_out(agent), make_optimizer(agent, config)
    found = [learn(agent, rollout, optimizer, config).tolist()[2] for _ in range(60)]
    assert found[-1] < 0.5 * found[0]


def test_the_rollout_is_only_read() -> None:
    agent = build()
    rollout = rolled_out(agent, final_obs=True)
    tensors = {name: tensor for name, tensor in vars(rollout).items() if isinstance(tensor, Tensor)}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    learn(agent, rollout, make_optimizer(agent, CONFIG), CONFIG)
    assert "obs" in before and all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


def rates(config: ImpalaConfig, iterations: int, device: str) -> list[float]:
    optimizer = make_optimizer(build(device=device), config)
    rate = optimizer.param_groups[0]["lr"]
    assert isinstance(rate, Tensor) and rate.device.type == device
    made = []
    for i in range(iterations + 2):
        schedule(optimizer, config, torch.tensor(i, device=device), iterations)
        assert optimizer.param_groups[0]["lr"] is rate  # a graph knows the tensor, not its name
        made.append(float(rate))
    return made


def test_schedules(device: str) -> None:
    config = replace(CONFIG, learning_rate=0.8)
    assert rates(config, 4, device) == pytest.approx([0.8] * 6)
    assert rates(replace(config, schedule="linear"), 4, device) == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


def test_the_rate_of_the_schedule_is_the_one_used(device: str) -> None:
    config = replace(CONFIG, schedule="linear")
    changes = []
    for iteration in (0, 5, 10):
        agent = build(device=device)
        rollout, optimizer = rolled_out(agent), make_optimizer(agent, config)
        before = agent.policy.weight.detach().clone()
        schedule(optimizer, config, torch.tensor(iteration, device=device), 10)
        learn(agent, rollout, optimizer, config)
        changes.append((agent.policy.weight.detach() - before).norm())
    assert changes[2] == 0
    torch.testing.assert_close(changes[1], changes[0] / 2, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worlds", 0), ("unroll", 0), ("value_cost", -1.0), ("entropy_cost", -0.1), ("learning_rate", -1e-3),
        ("rmsprop_eps", -1.0), ("grad_clip", -1.0), ("reward_clip", -1.0), ("discount", 1.1), ("rmsprop_decay", -0.1),
        ("learning_rate", float("nan")), ("schedule", "cosine"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"impala\.{field} is {value!r}: it must"):
        ImpalaConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_step_leaves_nothing_behind(dtype: torch.dtype) -> None:
    """No cycle holds the graph: it would stay, with all that acting kept, until Python looks for cycles."""
    torch.manual_seed(0)
    world = worlds.make(GridworldConfig(levels="generated", maps=2, objects=2, rooms=2, resolution=28), B)
    agent = Agent(world.obs_shape, world.num_actions, AgentConfig(embedding=16, hidden=8), dtype)
    rollout, optimizer = Rollout.empty(world, agent, T, keep_tape=True), make_optimizer(agent, CONFIG)
    counts = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            act(agent, world, rollout, torch.Generator().manual_seed(1), 1.0)
            learn(agent, rollout, optimizer, CONFIG)
            counts.append(sum(type(thing) is Tensor for thing in gc.get_objects()))
    finally:
        gc.enable()
    assert counts[1] == counts[2] == counts[3]
