"""V-trace against the paper's sum, written as a loop, and against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longtail.impala.vtrace import vtrace


def double(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def random_inputs(T: int, B: int, seed: int = 0, gamma: float = 0.9, ends: float = 0.2) -> Inputs:
    """log rho, discount, reward, value."""
    g = torch.Generator().manual_seed(seed)
    discount_TB = gamma * (torch.rand(T, B, generator=g) >= ends).double()
    log_rho_TB, reward_TB = torch.randn(2, T, B, generator=g).double()
    return log_rho_TB, discount_TB, reward_TB, torch.randn(T + 1, B, generator=g).double()


def by_the_sum(inputs: Inputs, rho_max: float = 1.0, c_max: float = 1.0) -> tuple[Tensor, Tensor]:
    """Eq. 1: v_s = V(x_s) + sum over t >= s of gamma^(t-s) c_s ... c_(t-1) delta_t; quadratic, term by term."""
    log_rho, discount, reward, value = (x.tolist() for x in inputs)
    T, B = len(reward), len(reward[0])
    target = [[value[s][b] for b in range(B)] for s in range(T + 1)]
    advantage = [[0.0] * B for _ in range(T)]
    for b in range(B):
        for s in range(T):
            for t in range(s, T):
                rho = min(rho_max, math.exp(log_rho[t][b]))
                term = rho * (reward[t][b] + discount[t][b] * value[t + 1][b] - value[t][b])
                for i in range(s, t):
                    term *= discount[i][b] * min(c_max, math.exp(log_rho[i][b]))
                target[s][b] += term
        for s in range(T):
            rho = min(rho_max, math.exp(log_rho[s][b]))
            advantage[s][b] = rho * (reward[s][b] + discount[s][b] * target[s + 1][b] - value[s][b])
    return double(target[:-1]), double(advantage)


def close(made: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(made, expected, rtol=1e-10, atol=1e-10)


def close_to_the_sum(inputs: Inputs, rho_max: float = 1.0, c_max: float = 1.0) -> None:
    for made, expected in zip(vtrace(*inputs, rho_max, c_max), by_the_sum(inputs, rho_max, c_max), strict=True):
        close(made, expected)


def test_three_steps_by_hand() -> None:
    """gamma 0.9; ratios 0.5, 2 (clipped to 1), 1; rewards 1, 2, 3; values 0.5, 1, 1.5 and 2 after the last step.

    delta = 0.5 (1 + 0.9 - 0.5), 2 + 1.35 - 1, 3 + 1.8 - 1.5 = 0.7, 2.35, 3.3
    v_2 = 1.5 + 3.3 = 4.8;  v_1 = 1 + 2.35 + 0.9 * 3.3 = 6.32;  v_0 = 0.5 + 0.7 + 0.9 * 0.5 * (6.32 - 1) = 3.594
    advantage = 0.5 (1 + 0.9 * 6.32 - 0.5), 2 + 0.9 * 4.8 - 1, 3 + 0.9 * 2 - 1.5 = 3.094, 5.32, 3.3
    """
    ratio, discount = double([[0.5], [2.0], [1.0]]), double([[0.9]] * 3)
    reward, value = double([[1.0], [2.0], [3.0]]), double([[0.5], [1.0], [1.5], [2.0]])
    target_TB, advantage_TB = vtrace(ratio.log(), discount, reward, value)
    close(target_TB[:, 0], double([3.594, 6.32, 4.8]))
    close(advantage_TB[:, 0], double([3.094, 5.32, 3.3]))


def test_three_steps_by_hand_with_an_end() -> None:
    """The same, but the second step ends an episode: nothing after it counts before it.

    v_1 = 1 + (2 - 1) = 2;  v_0 = 0.5 + 0.7 + 0.9 * 0.5 * (2 - 1) = 1.65;  advantage = 0.5 (1 + 1.8 - 0.5), 1, 3.3
    """
    ratio, discount = double([[0.5], [2.0], [1.0]]), double([[0.9], [0.0], [0.9]])
    reward, value = double([[1.0], [2.0], [3.0]]), double([[0.5], [1.0], [1.5], [2.0]])
    target_TB, advantage_TB = vtrace(ratio.log(), discount, reward, value)
    close(target_TB[:, 0], double([1.65, 2.0, 4.8]))
    close(advantage_TB[:, 0], double([1.15, 1.0, 3.3]))


@pytest.mark.parametrize(("rho_max", "c_max"), [(1.0, 1.0), (0.7, 1.3), (2.0, 0.5), (math.inf, math.inf)])
def test_equals_the_sum(rho_max: float, c_max: float) -> None:
    close_to_the_sum(random_inputs(12, 5), rho_max, c_max)


@settings(max_examples=25)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
def test_equals_the_sum_for_all_sizes(T: int, B: int, seed: int, gamma: float, ends: float) -> None:
    close_to_the_sum(random_inputs(T, B, seed, gamma, ends))


def test_on_the_policy_itself_it_is_the_n_step_return() -> None:
    _, discount_TB, reward_TB, value_T1B = random_inputs(10, 6)
    target_TB, advantage_TB = vtrace(torch.zeros(10, 6).double(), discount_TB, reward_TB, value_T1B)
    return_B = value_T1B[-1]
    for t in reversed(range(10)):
        return_B = reward_TB[t] + discount_TB[t] * return_B
        close(target_TB[t], return_B)
        close(advantage_TB[t], return_B - value_T1B[t])


def test_an_end_cuts_everything_behind_it() -> None:
    log_rho_TB, discount_TB, reward_TB, value_T1B = random_inputs(10, 6, ends=0)
    discount_TB[4, :3] = 0
    before = vtrace(log_rho_TB, discount_TB, reward_TB, value_T1B)
    reward_TB[5:] += 100
    value_T1B[5:] -= 7
    log_rho_TB[5:] -= 1
    after = vtrace(log_rho_TB, discount_TB, reward_TB, value_T1B)
    for one, other in zip(before, after, strict=True):
        close(one[:5, :3], other[:5, :3])
        assert ((one[:5, 3:] - other[:5, 3:]).abs() > 1e-6).all()


def test_ratios_above_the_limits_count_as_the_limits() -> None:
    log_rho_TB, *rest = random_inputs(10, 6)
    for one, other in zip(vtrace(log_rho_TB, *rest), vtrace(log_rho_TB.clamp(max=0), *rest), strict=True):
        close(one, other)
    unlimited, limited = (vtrace(log_rho_TB, *rest, limit, limit).target_TB for limit in (math.inf, 1.0))
    assert (unlimited - limited).abs().max() > 0.1


def test_impossible_actions_teach_nothing() -> None:
    """A policy that would never act so (ratio 0) has its values as targets and no advantage."""
    _, discount_TB, reward_TB, value_T1B = random_inputs(10, 6)
    target_TB, advantage_TB = vtrace(torch.full((10, 6), -math.inf).double(), discount_TB, reward_TB, value_T1B)
    assert torch.equal(target_TB, value_T1B[:-1]) and (advantage_TB == 0).all()


def test_no_gradient_and_no_input_is_changed() -> None:
    inputs = random_inputs(5, 3)
    before = [x.clone() for x in inputs]
    for x in inputs:
        x.requires_grad_()
    assert not any(out.requires_grad for out in vtrace(*inputs))
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


def test_single_precision_on_every_device(device: str) -> None:
    inputs = random_inputs(32, 16)
    made = vtrace(*(x.float().to(device) for x in inputs))
    for out, expected in zip(made, vtrace(*inputs), strict=True):
        assert out.device.type == device
        torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-4, atol=1e-4)
