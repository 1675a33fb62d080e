"""The five laws: identities with the ODE, with point-mass data, and with torch.distributions."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.core.transitions import LAWS, Transition, draw, mean_kl, mean_log_density, mean_slope, ode, resolve_eta

UNIFORM = tuple(1 - k / 10 for k in range(11))
KEEPING = [name for name, law in LAWS.items() if law.keeps_noise_level]
DRIFTING = [name for name, law in LAWS.items() if not law.keeps_noise_level]


def shifted(shift: float, steps: int = 10, start: float = 1.0) -> tuple[float, ...]:
    u = [start * (1 - k / steps) for k in range(steps + 1)]
    return tuple(shift * value / (1 + (shift - 1) * value) for value in u)


GRIDS = {"uniform": UNIFORM, "shift 3": shifted(3.0), "shift 6": shifted(6.0), "short": (1.0, 0.4, 0.0), "starts low": shifted(3.0, start=0.9999)}


def some_state(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(rows, 3, 2, 2, generator=generator, dtype=torch.float64) for _ in range(2))


def times(*values: float) -> list[torch.Tensor]:
    return [torch.full((4,), value, dtype=torch.float64) for value in values]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("t, t_next", [(0.9, 0.8), (0.5, 0.1), (0.01, 0.0)])
def test_eta_0_is_the_euler_step_of_the_ode(law, t, t_next):
    x, v = some_state()
    t, t_next = times(t, t_next)
    step = LAWS[law].step(x, v, t, t_next, 0.0, t)
    torch.testing.assert_close(step.mean, ode(x, v, t, t_next), rtol=0, atol=1e-14)
    assert (step.std == 0).all()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("grid", GRIDS)
def test_the_mean_with_noise_0_tends_to_the_ode_as_eta_falls(law, grid):
    x, v = some_state()
    schedule = Schedule(GRIDS[grid], law, 1e-5)
    for k in schedule.stochastic:
        if law == "precise" and schedule.times[k] == 1:
            continue  # rho is 0 there: this law re-draws all of the first noise for any eta above 0
        mean = schedule.transition(x, v, torch.full((4,), k)).mean
        assert (mean - schedule.ode_step(x, v, k)).abs().max() < 1e-5


def walk_point_mass(schedule: Schedule, picture: float) -> list[tuple[float, float]]:
    """(mean, std) of x at every time of the grid for data that are one picture: exact, because every law is linear in x there.

    The velocity is that of point-mass data, v = x1 - x0 with x1 = (x - (1 - t) x0) / t.
    """
    start = schedule.times[0]
    mean, std = (1 - start) * picture, start
    path = [(mean, std)]
    for k in range(schedule.steps):
        x = torch.tensor([[mean], [mean + 1]], dtype=torch.float64)
        t = schedule.times[k]
        v = (x - (1 - t) * picture) / t - picture
        rows = torch.full((2,), k)
        law = schedule.transition(x, v, rows) if k in schedule.stochastic else Transition(schedule.ode_step(x, v, k), torch.zeros(2))
        slope = (law.mean[1] - law.mean[0]).item()
        mean, std = law.mean[0].item(), math.hypot(slope * std, law.std[0].item())
        path.append((mean, std))
    return path


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("law, eta", [(law, eta) for law in KEEPING for eta in (0.3, LAWS[law].default_eta, LAWS[law].max_eta)])
def test_point_mass_data_keep_std_t_at_every_time(law, eta, grid):
    schedule = Schedule(GRIDS[grid], law, eta)
    for (mean, std), t in zip(walk_point_mass(schedule, picture=0.7), schedule.times):
        assert abs(std - t) < 1e-6
        assert abs(mean - (1 - t) * 0.7) < 1e-6


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("law, eta", [(law, eta) for law in DRIFTING for eta in (0.3, LAWS[law].default_eta, LAWS[law].max_eta)])
def test_flow_and_dance_leave_more_noise_than_t(law, eta, grid):
    schedule = Schedule(GRIDS[grid], law, eta)
    path = walk_point_mass(schedule, picture=0.7)
    for (_, std), t in list(zip(path, schedule.times))[1:-1]:
        assert std > t + 1e-6
    assert path[-1][1] < 1e-12  # the last step is the ODE's, and leaves no noise


@pytest.mark.parametrize("law", DRIFTING)
def test_flow_and_dance_would_leave_noise_in_the_picture_without_a_deterministic_last_step(law):
    x, v = some_state()
    t, t_next = times(0.1, 0.0)
    assert (LAWS[law].step(x, v, t, t_next, LAWS[law].default_eta, t).std > 0.05).all()


@pytest.mark.parametrize("law", DRIFTING)
def test_flow_and_dance_add_half_the_variance_times_the_score(law):
    """mean = ODE + S^2 / 2 * score, with score = -x1_hat / t: what makes an SDE keep the ODE's marginals."""
    x, v = some_state()
    t, t_next = times(0.6, 0.5)
    step = LAWS[law].step(x, v, t, t_next, 0.5, t)
    score = -(x + 0.4 * v) / 0.6
    torch.testing.assert_close(step.mean, ode(x, v, t, t_next) + step.std[0] ** 2 / 2 * score, rtol=0, atol=1e-13)


def test_dance_adds_the_same_variance_whatever_the_grid():
    for grid in GRIDS.values():
        x, v = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
        row = lambda value: torch.tensor([value], dtype=torch.float64)
        total = sum(LAWS["dance"].step(x, v, row(a), row(b), 0.4, row(a)).std.item() ** 2 for a, b in zip(grid, grid[1:]))
        assert total == pytest.approx(0.4**2 * grid[0], abs=1e-12)


def kept_noise(law: str, t: float, t_next: float, eta: float) -> float:
    """Correlation of the noise before and after a step: sqrt(t_next^2 - S^2) / t_next."""
    row = lambda value: torch.tensor([value], dtype=torch.float64)
    std = LAWS[law].step(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64), row(t), row(t_next), eta, row(t)).std.item()
    return math.sqrt(t_next**2 - std**2) / t_next


@pytest.mark.parametrize("eta", [0.5, 1.0, math.sqrt(2), 2.0])
def test_precise_keeps_as_much_noise_over_two_half_steps_as_over_one(eta):
    assert kept_noise("precise", 0.8, 0.5, eta) * kept_noise("precise", 0.5, 0.2, eta) == pytest.approx(
        kept_noise("precise", 0.8, 0.2, eta), abs=1e-12
    )


def test_precise_with_eta_root_2_is_the_posterior_of_the_noising_process():
    """q(x_next | x, x0) of the Markov process with x_t = (1 - t) x0 + t x1: variance t_next^2 (1 - rho^2)."""
    t, t_next = 0.7, 0.4
    ratio = (1 - t) / (1 - t_next)
    added = t**2 - ratio**2 * t_next**2  # variance that the process adds from t_next to t
    posterior = t_next**2 * added / t**2
    row = lambda value: torch.tensor([value], dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    assert LAWS["precise"].step(zero, zero, row(t), row(t_next), math.sqrt(2), row(t)).std.item() ** 2 == pytest.approx(posterior, abs=1e-14)


def test_cps_keeps_the_same_share_of_noise_in_every_step():
    assert kept_noise("cps", 0.9, 0.7, 0.6) == pytest.approx(math.cos(0.3 * math.pi), abs=1e-12)
    assert kept_noise("cps", 0.2, 0.1, 0.6) == pytest.approx(math.cos(0.3 * math.pi), abs=1e-12)


def test_ddim_has_the_std_of_the_paper():
    x, v = some_state()
    t, t_next = times(0.75, 0.5)
    assert LAWS["ddim"].step(x, v, t, t_next, 0.8, t).std.tolist() == pytest.approx([0.8 * 0.5 * 0.5] * 4)


@pytest.mark.parametrize("law", LAWS)
def test_rows_have_times_of_their_own(law):
    x, v = some_state()
    t, t_next = torch.tensor([0.9, 0.7, 0.4, 0.2], dtype=torch.float64), torch.tensor([0.8, 0.4, 0.3, 0.05], dtype=torch.float64)
    together = LAWS[law].step(x, v, t, t_next, 0.5, t)
    for i in range(4):
        row = slice(i, i + 1)
        alone = LAWS[law].step(x[row], v[row], t[row], t_next[row], 0.5, t[row])
        torch.testing.assert_close(together.mean[row], alone.mean, rtol=0, atol=0)
        torch.testing.assert_close(together.std[row], alone.std, rtol=0, atol=0)


def test_draw_adds_the_noise_it_is_given_and_nothing_else():
    x, noise = some_state()
    std = torch.tensor([0.1, 0.2, 0.3, 0.0], dtype=torch.float64)
    drawn = draw(Transition(x, std), noise)
    torch.testing.assert_close(drawn, x + std.reshape(4, 1, 1, 1) * noise, rtol=0, atol=0)


def test_mean_log_density_is_the_mean_of_torch_distributions():
    x, mean = some_state()
    std = torch.tensor([0.1, 0.5, 1.0, 3.0], dtype=torch.float64)
    expected = Normal(mean, std.reshape(4, 1, 1, 1)).log_prob(x).flatten(1).mean(1)
    torch.testing.assert_close(mean_log_density(Transition(mean, std), x), expected, rtol=1e-13, atol=0)


def test_mean_kl_is_the_mean_of_torch_distributions():
    mean, other = some_state()
    std = torch.tensor([0.1, 0.5, 1.0, 3.0], dtype=torch.float64)
    spread = std.reshape(4, 1, 1, 1)
    expected = kl_divergence(Normal(mean, spread), Normal(other, spread)).flatten(1).mean(1)
    torch.testing.assert_close(mean_kl(Transition(mean, std), Transition(other, std)), expected, rtol=1e-13, atol=0)


def test_a_law_without_spread_has_no_density_and_no_kl():
    x, mean = some_state()
    law = Transition(mean, torch.tensor([0.1, 0.0, 0.1, 0.1], dtype=torch.float64))
    with pytest.raises(ValueError, match="no density"):
        mean_log_density(law, x)
    with pytest.raises(ValueError, match="no KL"):
        mean_kl(law, law)


def test_a_density_needs_one_std_a_row():
    x, mean = some_state()
    with pytest.raises(ValueError, match=r"std needs shape \(4,\)"):
        mean_log_density(Transition(mean, torch.ones(1, dtype=torch.float64)), x)


@pytest.mark.parametrize("law", LAWS)
def test_mean_slope_is_the_derivative_of_the_mean_by_the_velocity(law):
    x, v = some_state()
    v.requires_grad_()
    schedule = Schedule(shifted(2.0), law, -1)
    for k in schedule.stochastic:
        step = schedule.transition(x, v, torch.full((4,), k))
        (slope,) = torch.autograd.grad(step.mean.sum(), v)
        t, t_next = times(schedule.times[k], schedule.times[k + 1])
        expected = mean_slope(law, t, t_next, step.std.detach()).reshape(4, 1, 1, 1).expand_as(slope)
        torch.testing.assert_close(slope.abs(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("law, default, limit", [("ddim", 0.7, 1), ("cps", 0.8, 1), ("precise", 1.5, 4), ("flow", 0.7, 2), ("dance", 0.3, 1)])
def test_each_law_has_its_default_and_its_range_of_eta(law, default, limit):
    assert resolve_eta(law, -1) == default
    assert resolve_eta(law, 0) == 0 and resolve_eta(law, limit) == limit
    for eta in (-0.5, limit + 0.01, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"eta of the law '{law}' must lie between 0 and {limit}"):
            resolve_eta(law, eta)


def test_an_unknown_law_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="law must be one of ddim, cps, precise, flow, dance; got 'euler'"):
        resolve_eta("euler", 0.5)


def test_precise_draws_all_of_the_noise_anew_in_a_step_from_t_1():
    assert kept_noise("precise", 1.0, 0.5, 0.01) == 0
    assert kept_noise("precise", 1.0, 0.5, 0.0) == 1
