"""Which steps are stochastic, which grids are refused, and the weights of steps."""

import math

import pytest
import torch

from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.core.transitions import LAWS

GRID = (1.0, 0.75, 0.5, 0.25, 0.0)
SHIFTED = (0.99999, 0.9, 0.75, 0.5, 0.0)  # equality with 1 decides nothing


@pytest.mark.parametrize("grid", [GRID, SHIFTED])
@pytest.mark.parametrize("law", LAWS)
def test_all_steps_but_the_last_are_stochastic_with_the_first_one_floored(law, grid):
    schedule = Schedule(grid, law, -1)
    assert schedule.stochastic == (0, 1, 2)
    x = v = torch.ones(4, 2)
    std = schedule.transition(x[:3], v[:3], torch.arange(3)).std
    assert std.isfinite().all() and (std > 1e-3).all() and (std < 2).all()


@pytest.mark.parametrize("grid", [GRID, SHIFTED])
@pytest.mark.parametrize("law", LAWS)
def test_the_literal_formula_makes_the_first_step_of_singular_laws_deterministic(law, grid):
    schedule = Schedule(grid, law, -1, floor_first=False)
    assert schedule.stochastic == ((1, 2) if law in ("ddim", "flow") else (0, 1, 2))


@pytest.mark.parametrize("law", LAWS)
def test_only_the_first_step_of_singular_laws_is_floored(law):
    schedule = Schedule(GRID, law, -1)
    assert [schedule.guard(k) for k in range(4)] == [0.75 if law in ("ddim", "flow") else 1.0, 0.75, 0.5, 0.25]
    assert [Schedule(GRID, law, -1, floor_first=False).guard(k) for k in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_the_floored_first_step_of_ddim_has_the_std_of_the_next_time():
    schedule = Schedule(GRID, "ddim", 0.8)
    x = torch.zeros(1, 1, dtype=torch.float64)
    assert schedule.transition(x, x, torch.tensor([0])).std.item() == pytest.approx(0.8 * 0.75 * math.sqrt(1 - 0.75))


def test_the_last_step_is_always_the_ode():
    x, v = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    for law in LAWS:
        schedule = Schedule(GRID, law, -1)
        torch.testing.assert_close(schedule.ode_step(x, v, 3), x - 0.25 * v)
        with pytest.raises(ValueError, match="no law with a density"):
            schedule.transition(x, v, torch.tensor([1, 3]))


@pytest.mark.parametrize("law", LAWS)
def test_eta_0_has_no_stochastic_step(law):
    schedule = Schedule(GRID, law, 0.0)
    assert schedule.stochastic == ()
    assert schedule.weights().tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="no law with a density"):
        schedule.transition(torch.zeros(1, 1), torch.zeros(1, 1), torch.tensor([1]))


@pytest.mark.parametrize(
    "sigmas, words",
    [
        ((), "at least 2 steps; the sigmas give 0"),
        ((1.0,), "at least 2 steps; the sigmas give 0"),
        ((1.0, 0.0), "at least 2 steps; the sigmas give 1"),
        ((0.9, 0.5, 0.0), "must start at 1"),
        ((14.6, 5.0, 0.0), "must start at 1"),
        ((1.0, 0.5, 0.1), "must end at 0"),
        ((1.0, 0.5, 0.5, 0.0), "must fall"),
        ((1.0, 0.4, 0.5, 0.0), "must fall"),
        ((1.0, 0.5, -0.1, 0.0), "must fall"),
        ((1.0, math.nan, 0.0), "NaN or infinity"),
        ((math.inf, 0.5, 0.0), "NaN or infinity"),
        ((1.0005, 1.0, 0.5, 0.0), "second sigma must be below 1"),
    ],
)
def test_grids_the_method_does_not_cover_are_refused_in_words(sigmas, words):
    with pytest.raises(ValueError, match=words):
        Schedule.of(sigmas, "ddim", 0.7)


def test_a_schedule_takes_comfyuis_sigmas_as_they_are():
    sigmas = torch.tensor([1.0, 0.6, 0.2, 0.0])
    schedule = Schedule.of(sigmas, "cps", -1)
    assert schedule.times == tuple(sigmas.tolist()) and schedule.eta == 0.8 and schedule.steps == 3


def test_eta_outside_the_laws_range_is_refused_by_name():
    with pytest.raises(ValueError, match="eta of the law 'ddim' must lie between 0 and 1"):
        Schedule(GRID, "ddim", 1.5)


def by_hand(law: str, t: float, t_next: float, guard: float, eta: float) -> float:
    """w = S / |J| with the formulas of NOTATION.md."""
    d = t - t_next
    std = {
        "ddim": lambda: eta * t_next * math.sqrt(1 - guard),
        "cps": lambda: t_next * math.sin(eta * math.pi / 2),
        "precise": lambda: t_next * math.sqrt(1 - (t_next * (1 - t) / (t * (1 - t_next))) ** (eta**2)),
        "flow": lambda: eta * math.sqrt(t / (1 - guard)) * math.sqrt(d),
        "dance": lambda: eta * math.sqrt(d),
    }[law]()
    if law in ("flow", "dance"):
        return std / abs(d + std**2 * (1 - t) / (2 * t))
    return std / abs(t * (1 - t_next) - (1 - t) * math.sqrt(t_next**2 - std**2))


@pytest.mark.parametrize("law, eta", [("ddim", 0.7), ("cps", 0.8), ("precise", 1.5), ("flow", 0.7), ("dance", 0.3)])
def test_weights_are_std_over_slope_and_zero_where_a_step_is_deterministic(law, eta):
    weights = Schedule(GRID, law, eta).weights()
    expected = [by_hand(law, 1.0, 0.75, 0.75, eta), by_hand(law, 0.75, 0.5, 0.75, eta), by_hand(law, 0.5, 0.25, 0.5, eta), 0.0]
    assert weights.tolist() == pytest.approx(expected, rel=1e-5)


def test_weights_of_the_literal_ddim_leave_the_first_step_out():
    weights = Schedule(GRID, "ddim", 0.7, floor_first=False).weights()
    assert weights[0] == 0 and weights[3] == 0 and (weights[1:3] > 0).all()


def test_a_mixed_batch_of_steps_gives_each_row_its_own_law():
    schedule = Schedule(SHIFTED, "flow", 0.7)
    x, v = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    mixed = schedule.transition(x, v, torch.tensor([2, 0, 1]))
    for row, k in enumerate((2, 0, 1)):
        alone = schedule.transition(x[row : row + 1], v[row : row + 1], torch.tensor([k]))
        torch.testing.assert_close(mixed.mean[row], alone.mean[0])
        torch.testing.assert_close(mixed.std[row], alone.std[0])
