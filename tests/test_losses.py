"""IMPALA's losses against plain loops, and which way each of them pushes."""

import math

import torch
from torch import Tensor

from longtail.impala.losses import impala_losses, log_probability

T, B, A = 5, 3, 4


def example() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """logits, action, value, target, advantage."""
    g = torch.Generator().manual_seed(0)
    logits_TBA = 2 * torch.randn(T, B, A, generator=g).double()
    value_TB, target_TB, advantage_TB = torch.randn(3, T, B, generator=g).double()
    return logits_TBA, torch.randint(A, (T, B), generator=g), value_TB, target_TB, advantage_TB


def naive_log_probabilities(logits: list[float]) -> list[float]:
    total = sum(math.exp(x) for x in logits)
    return [math.log(math.exp(x) / total) for x in logits]


def test_losses_are_the_formulas_summed_over_time_and_worlds() -> None:
    logits, action, value, target, advantage = example()
    policy = squares = entropy = 0.0
    for t in range(T):
        for b in range(B):
            log_pi = naive_log_probabilities(logits[t, b].tolist())
            policy -= log_pi[int(action[t, b])] * float(advantage[t, b])
            squares += float(target[t, b] - value[t, b]) ** 2 / 2
            entropy += sum(math.exp(x) * x for x in log_pi)
            assert math.isclose(float(log_probability(logits, action)[t, b]), log_pi[int(action[t, b])])
    made = impala_losses(logits, action, value, target, advantage)
    torch.testing.assert_close(
        torch.stack(made), torch.tensor([policy, squares, entropy], dtype=torch.float64), rtol=1e-10, atol=0
    )


def test_lower_policy_loss_makes_good_actions_likelier() -> None:
    logits, action, value, target, advantage = example()
    logits.requires_grad_()
    loss = impala_losses(logits, action, value, target, advantage).policy
    stepped = logits.detach() - 1e-3 * torch.autograd.grad(loss, logits)[0]
    change_TB = log_probability(stepped, action) - log_probability(logits.detach(), action)
    assert torch.equal(change_TB > 0, advantage > 0)


def test_lower_value_loss_brings_values_to_their_targets() -> None:
    logits, action, value, target, advantage = example()
    value.requires_grad_()
    gradient_TB = torch.autograd.grad(impala_losses(logits, action, value, target, advantage).value, value)[0]
    torch.testing.assert_close(gradient_TB, value.detach() - target)


def test_lower_entropy_loss_makes_the_policy_more_random() -> None:
    logits, action, value, target, advantage = example()
    logits.requires_grad_()
    loss = impala_losses(logits, action, value, target, advantage).entropy
    stepped = logits.detach() - 1e-2 * torch.autograd.grad(loss, logits)[0]
    assert (entropy_of(stepped) > entropy_of(logits.detach())).all()
    flat = impala_losses(torch.zeros(T, B, A), action, value, target, advantage).entropy
    assert math.isclose(float(flat), -T * B * math.log(A), rel_tol=1e-6)  # nothing is more random


def entropy_of(logits_TBA: Tensor) -> Tensor:
    return torch.distributions.Categorical(logits=logits_TBA).entropy()


def test_each_loss_reaches_only_its_own_output() -> None:
    """Targets and advantages are given numbers, and the value has no say in the policy's loss."""
    logits, action, value, target, advantage = example()
    logits.requires_grad_()
    value.requires_grad_()
    losses = impala_losses(logits, action, value, target, advantage)
    for loss, input_ in ((losses.policy, value), (losses.entropy, value), (losses.value, logits)):
        assert torch.autograd.grad(loss, input_, retain_graph=True, allow_unused=True)[0] is None


def test_extreme_logits_stay_finite() -> None:
    """A certain policy has no entropy; log of its zero probabilities does not appear."""
    logits_TBA = torch.tensor([[[1000.0, 0.0, -1000.0]]], requires_grad=True)
    one = torch.ones(1, 1)
    losses = impala_losses(logits_TBA, torch.zeros(1, 1, dtype=torch.int64), one, one, one)
    assert losses.entropy == 0 and losses.policy == 0
    assert torch.isfinite(torch.autograd.grad(sum(losses), logits_TBA)[0]).all()
