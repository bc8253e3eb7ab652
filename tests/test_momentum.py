"""The momentum against the paper's recursion (Eq. 2) and its normalisation (Eq. 3), written as loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longtail.memory.momentum import momentum_loss, normalized_momentum

betas = st.sampled_from([0.0, 0.1, 0.5, 0.97, 0.999])
histories = st.lists(st.floats(0, 20), min_size=1, max_size=30)
losses = st.lists(st.integers(0, 1000).map(lambda x: x / 50), min_size=1, max_size=30)


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def after(history: list[float], beta: float, bias_corrected: bool = False) -> float:
    """What the functions make of one slot's losses; its momentum before the first is whatever was there."""
    momentum_1 = double([0.0])
    for t, loss in enumerate(history):
        momentum_1 = momentum_loss(momentum_1, double([loss]), torch.tensor([t]), beta, bias_corrected)
    return float(momentum_1)


@given(histories, betas)
def test_momentum_is_equation_2(history: list[float], beta: float) -> None:
    expected = history[0]
    for loss in history[1:]:
        expected = beta * expected + (1 - beta) * loss
    assert after(history, beta) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(histories, betas)
def test_bias_corrected_is_the_weighted_mean(history: list[float], beta: float) -> None:
    """Of t losses the i-th has the weight beta^(t-i), and the weights add up to 1; they are computed in fp32."""
    weights = [beta ** (len(history) - i) for i in range(1, len(history) + 1)]
    expected = sum(w * x for w, x in zip(weights, history, strict=True)) / sum(weights)
    assert after(history, beta, bias_corrected=True) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(histories, st.booleans())
def test_beta_0_is_the_last_loss(history: list[float], bias_corrected: bool) -> None:
    assert after(history, 0.0, bias_corrected) == pytest.approx(history[-1], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("bias_corrected", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.97])
def test_slots_are_apart_and_a_new_one_forgets(beta: float, bias_corrected: bool) -> None:
    previous_N, loss_N, passes_N = double([7, 7, 2]), double([1, 5, 3]), torch.tensor([0, 3, 9])
    made_N = momentum_loss(previous_N, loss_N, passes_N, beta, bias_corrected)
    assert float(made_N[0]) == pytest.approx(1, abs=1e-5)  # whatever was there before
    for i in (1, 2):
        alone = momentum_loss(previous_N[i : i + 1], loss_N[i : i + 1], passes_N[i : i + 1], beta, bias_corrected)
        assert made_N[i] == alone[0] and min(previous_N[i], loss_N[i]) <= made_N[i] <= max(previous_N[i], loss_N[i])
    assert previous_N.tolist() == [7, 7, 2]


def test_the_first_loss_weighs_as_the_comment_says() -> None:
    """81 % after 8 passes at beta 0.97; an eighth or so with bias correction."""
    history = [1.0] + [0.0] * 7
    assert after(history, 0.97) == pytest.approx(0.97**7) == pytest.approx(0.81, abs=0.003)
    assert after(history, 0.97, bias_corrected=True) == pytest.approx(0.97**7 * 0.03 / (1 - 0.97**8), rel=1e-5)
    assert 0.1 < after(history, 0.97, bias_corrected=True) < 0.125


@given(losses)
def test_normalized_is_equation_3(values: list[float]) -> None:
    mean = sum(values) / len(values)
    furthest = max(abs(value - mean) for value in values)
    made_N = normalized_momentum(double(values))
    if max(values) == min(values):
        assert ((made_N >= 0) & (made_N <= 1)).all()  # what is left of rounding says nothing
        return
    for made, value in zip(made_N.tolist(), values, strict=True):
        assert made == pytest.approx(((value - mean) / furthest + 1) / 2, abs=1e-12)


@given(losses)
def test_normalized_lies_between_0_and_1_around_a_half_in_the_same_order(values: list[float]) -> None:
    value_N = double(values)
    made_N = normalized_momentum(value_N)
    assert ((made_N >= 0) & (made_N <= 1)).all()
    if max(values) > min(values):
        assert float(made_N.mean()) == pytest.approx(0.5, abs=1e-9)
        assert made_N.min() == 0 or made_N.max() == 1  # the furthest from the mean
        assert torch.equal(value_N[:, None] < value_N, made_N[:, None] < made_N)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_equal_momenta_are_all_in_the_middle(value: float) -> None:
    assert normalized_momentum(torch.full((8,), value)).tolist() == [0.5] * 8


@pytest.mark.gpu
def test_cpu_and_gpu_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    previous_N, loss_N = torch.rand(2, 100, generator=generator)
    passes_N = torch.randint(3, (100,), generator=generator)
    for bias_corrected in (False, True):
        made_N = momentum_loss(previous_N, loss_N, passes_N, 0.97, bias_corrected)
        on_gpu_N = momentum_loss(previous_N.cuda(), loss_N.cuda(), passes_N.cuda(), 0.97, bias_corrected)
        torch.testing.assert_close(on_gpu_N.cpu(), made_N, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(normalized_momentum(on_gpu_N).cpu(), normalized_momentum(made_N))
