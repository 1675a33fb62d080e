"""The clipped objective on numbers worked out by hand, and the trap of masks."""

import math

import pytest
import torch

from stepwise_grpo.training.core.loss import clipped_surrogate
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.core.transitions import LAWS, draw, mean_kl, mean_log_density

CLIP = 0.1


def of(ratio: list[float], advantages: list[float], kl: list[float] | None = None, beta: float = 0.0):
    """The surrogate at given ratios; returns it with the density that carries gradients."""
    density = torch.tensor(ratio, dtype=torch.float64).log().requires_grad_()
    kl_ = None if kl is None else torch.tensor(kl, dtype=torch.float64)
    return clipped_surrogate(density, torch.zeros_like(density), torch.tensor(advantages, dtype=torch.float64), kl_, CLIP, beta), density


def test_good_steps_gain_up_to_the_clip_and_bad_ones_are_punished_beyond_it():
    """Columns: ratio inside, above and below the range, for A = 2 and A = -2."""
    surrogate, density = of([1.05, 1.5, 0.5, 1.05, 1.5, 0.5], [2, 2, 2, -2, -2, -2])
    assert surrogate.loss.tolist() == pytest.approx([-2.1, -2.2, -1.0, 2.1, 3.0, 1.8])
    assert surrogate.ratio.tolist() == pytest.approx([1.05, 1.5, 0.5, 1.05, 1.5, 0.5])
    assert surrogate.clipped.tolist() == [False, True, False, False, False, True]
    (gradient,) = torch.autograd.grad(surrogate.loss.sum(), density)
    # d loss / d density = -A * ratio where not clipped, 0 where clipped
    assert gradient.tolist() == pytest.approx([-2.1, 0, -1.0, 2.1, 3.0, 0])


def test_at_ratio_1_the_gradient_is_minus_the_advantage():
    surrogate, density = of([1, 1, 1], [3, -1, 0])
    assert surrogate.loss.tolist() == [-3, 1, 0]
    (gradient,) = torch.autograd.grad(surrogate.loss.sum(), density)
    assert gradient.tolist() == [-3, 1, 0]
    assert not surrogate.clipped.any()


def test_the_kl_is_added_beta_times():
    surrogate, _ = of([1, 1], [1, -1], kl=[0.5, 2.0], beta=0.1)
    assert surrogate.loss.tolist() == pytest.approx([-1 + 0.05, 1 + 0.2])


def test_without_beta_the_kl_is_not_looked_at():
    surrogate, _ = of([1, 1], [1, -1], kl=[math.nan, math.inf])
    assert surrogate.loss.tolist() == [-1, 1]


def test_the_record_carries_no_gradient():
    surrogate, _ = of([1.05], [1])
    assert surrogate.loss.requires_grad and not surrogate.ratio.requires_grad and not surrogate.clipped.requires_grad


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((torch.zeros(3), torch.zeros(3), torch.zeros(1), None, 0.1, 0.0), "differ in shape"),
        ((torch.zeros(3), torch.zeros(3), torch.zeros(3), None, 0.0, 0.0), "clip must be above 0"),
        ((torch.zeros(3), torch.zeros(3), torch.zeros(3), None, 0.1, 0.5), "needs the KL"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        clipped_surrogate(*arguments)


@pytest.mark.parametrize("floor_first", [True, False])
@pytest.mark.parametrize("law", LAWS)
def test_gradients_are_finite_because_deterministic_steps_are_left_out_before_any_division(law, floor_first):
    """torch.where after 0 / 0 still gives NaN gradients: the stochastic steps are indexed first."""
    schedule = Schedule((1.0, 0.75, 0.5, 0.25, 0.0), law, -1, floor_first)
    steps = torch.tensor(schedule.stochastic)
    x = torch.randn(len(steps), 6, generator=torch.Generator().manual_seed(0))
    weight = torch.zeros(6, 6, requires_grad=True)
    now = schedule.transition(x, x + x @ weight, steps)
    old = schedule.transition(x, x, steps)
    x_next = draw(old, torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    surrogate = clipped_surrogate(mean_log_density(now, x_next), mean_log_density(old, x_next), torch.ones(len(steps)), mean_kl(now, old), 1e-3, 0.1)
    surrogate.loss.sum().backward()
    assert weight.grad.isfinite().all() and weight.grad.abs().max() > 0


def test_a_deterministic_step_cannot_enter_the_ratio():
    schedule = Schedule((1.0, 0.75, 0.5, 0.25, 0.0), "ddim", 0.7, floor_first=False)
    x = torch.zeros(1, 2)
    for step in (0, 3):
        with pytest.raises(ValueError, match="no law with a density"):
            schedule.transition(x, x, torch.tensor([step]))
