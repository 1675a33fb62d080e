"""Rollouts: what a group shares, the ODE, Gaussian data, and the same pictures under any split."""

import math

import pytest
import torch

from stepwise_grpo.tests.analytic import NEGATIVE, PROMPTS, SHAPE, SPREAD, AnalyticPolicy, exact_velocity, plan, prompt, trajectory_of
from stepwise_grpo.training.core.noise import initial_noise
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.core.transitions import LAWS, Transition
from stepwise_grpo.training.rollout import rollout, walk

GRID = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)


def of(schedule: Schedule, group_size: int = 4, seed: int = 0, prompts=PROMPTS):
    policy = AnalyticPolicy()
    return trajectory_of(policy, plan(schedule=schedule, group_size=group_size), seed, prompts), policy


def test_a_group_shares_its_first_state_and_velocity_and_parts_after_the_first_step():
    trajectory, _ = of(Schedule(GRID, "ddim", 0.7))
    states = trajectory.states.unflatten(1, (2, 4))
    assert (states[0] == states[0][:, :1]).all()
    assert (trajectory.velocities.unflatten(1, (2, 4))[0] == trajectory.velocities[0][[0, 4]][:, None]).all()
    assert torch.unique(states[1].flatten(0, 1).flatten(1), dim=0).shape[0] == 8
    assert not torch.equal(states[0, 0], states[0, 1])  # but groups differ


def test_the_first_state_is_the_prompts_own_noise():
    trajectory, _ = of(Schedule(GRID, "ddim", 0.7), seed=5, prompts=[prompt(0.5, index=9), prompt(-0.5, index=2)])
    assert torch.equal(trajectory.states[0, 0], initial_noise(5, 9, SHAPE))
    assert torch.equal(trajectory.states[0, 4], initial_noise(5, 2, SHAPE))


def test_the_path_has_k_plus_1_states_and_k_velocities_in_fp32():
    trajectory, _ = of(Schedule(GRID, "ddim", 0.7))
    assert trajectory.states.shape == (6, 8, *SHAPE) and trajectory.velocities.shape == (5, 8, *SHAPE)
    assert trajectory.states.dtype == trajectory.velocities.dtype == torch.float32


def test_the_recorded_velocities_are_the_networks_at_the_recorded_states():
    trajectory, policy = of(Schedule(GRID, "flow", 0.7))
    with torch.no_grad(), policy.prompts([p.conditioning for p in PROMPTS], NEGATIVE, 1.0, [1, *SHAPE]):
        for k in range(5):
            v = policy.velocity(trajectory.states[k], torch.full((8,), GRID[k]), torch.arange(8) // 4)
            torch.testing.assert_close(trajectory.velocities[k], v, rtol=0, atol=1e-6)


def test_the_first_velocity_is_computed_once_a_prompt_and_all_are_counted():
    trajectory, policy = of(Schedule(GRID, "ddim", 0.7))
    assert trajectory.evaluations == 2 + 4 * 8 == policy.rows
    assert policy.calls == 5


@pytest.mark.parametrize("law", LAWS)
def test_eta_0_walks_the_ode_and_every_member_ends_alike(law):
    trajectory, policy = of(Schedule(GRID, law, 0.0))
    x = trajectory.states[0]
    mu = torch.tensor([0.5, -0.5]).repeat_interleave(4)
    for k in range(5):
        t = torch.full((8,), GRID[k])
        x = x - (GRID[k] - GRID[k + 1]) * exact_velocity(x, t, mu)
    torch.testing.assert_close(trajectory.states[-1], x, rtol=0, atol=1e-5)
    assert torch.equal(trajectory.states[-1, :4], trajectory.states[-1, :1].expand(4, *SHAPE))


def marginals(schedule: Schedule, mu: float) -> list[tuple[float, float]]:
    """Exact (mean, std) of x at every time: the exact velocity is linear in x, so each step is linear."""
    mean, std = 0.0, 1.0
    path = [(mean, std)]
    for k in range(schedule.steps):
        x = torch.tensor([[mean], [mean + 1.0]], dtype=torch.float64)
        t = torch.full((2,), schedule.times[k], dtype=torch.float64)
        v = exact_velocity(x, t, torch.full((2,), mu, dtype=torch.float64))
        law = schedule.transition(x, v, torch.full((2,), k)) if k in schedule.stochastic else Transition(schedule.ode_step(x, v, k), torch.zeros(2))
        mean, std = law.mean[0].item(), math.hypot((law.mean[1] - law.mean[0]).item() * std, law.std[0].item())
        path.append((mean, std))
    return path


@pytest.mark.parametrize("law", LAWS)
def test_samples_of_gaussian_data_have_the_marginals_the_laws_imply(law):
    """600 prompts of one member: 7,200 independent numbers at every time."""
    schedule = Schedule(tuple(1 - k / 8 for k in range(9)), law, -1)
    many = [prompt(0.5, index) for index in range(600)]
    trajectory, _ = of(schedule, group_size=1, prompts=many)
    for k, (mean, std) in enumerate(marginals(schedule, 0.5)):
        x, error = trajectory.states[k], 4 / math.sqrt(600 * 12)
        assert abs(x.mean().item() - mean) < error * std
        assert abs(x.std().item() / std - 1) < error


@pytest.mark.parametrize("law", LAWS)
def test_fine_grids_reach_the_data_themselves_but_for_laws_whose_noise_does_not_shrink_with_the_step(law):
    """precise, flow and dance are SDEs in the limit. ddim and cps renew a share of the noise in every step however short
    it is, and each time put the posterior mean for the picture: they lose spread on any grid."""
    schedule = Schedule(tuple(1 - k / 400 for k in range(401)), law, -1)
    mean, std = marginals(schedule, 0.5)[-1]
    assert abs(mean - 0.5) < 1e-3
    if law in ("ddim", "cps"):
        assert 0.3 * SPREAD < std < 0.98 * SPREAD
    else:
        assert abs(std - SPREAD) < 0.01


def test_the_same_split_gives_the_same_bits():
    (one, _), (two, _) = of(Schedule(GRID, "ddim", 0.7)), of(Schedule(GRID, "ddim", 0.7))
    assert torch.equal(one.states, two.states) and torch.equal(one.velocities, two.velocities)


def test_another_split_gives_the_same_states_to_1e_4():
    whole, _ = of(Schedule(GRID, "ddim", 0.7))
    parts = [of(Schedule(GRID, "ddim", 0.7), prompts=[p])[0] for p in PROMPTS]
    torch.testing.assert_close(torch.cat([part.states for part in parts], 1), whole.states, rtol=0, atol=1e-4)
    fewer, _ = of(Schedule(GRID, "ddim", 0.7), group_size=2)
    torch.testing.assert_close(fewer.states.unflatten(1, (2, 2)), whole.states.unflatten(1, (2, 4))[:, :, :2], rtol=0, atol=1e-4)


def test_another_seed_gives_other_pictures():
    (one, _), (two, _) = of(Schedule(GRID, "ddim", 0.7), seed=0), of(Schedule(GRID, "ddim", 0.7), seed=1)
    assert (one.states[0] != two.states[0]).all() and not torch.equal(one.states[-1], two.states[-1])


def test_on_step_sees_every_state_before_its_step():
    seen = []
    velocity = lambda x, t, rows: exact_velocity(x, t, torch.zeros(len(x)))
    path = rollout(velocity, Schedule(GRID, "ddim", 0.7), [0], 2, SHAPE, 0, on_step=lambda k, x, v: seen.append((k, x, v)))
    assert [k for k, _, _ in seen] == [0, 1, 2, 3, 4]
    for k, x, v in seen:
        assert torch.equal(x, path.states[k]) and torch.equal(v, path.velocities[k])


def test_a_network_in_half_precision_still_leaves_fp32_states():
    velocity = lambda x, t, rows: exact_velocity(x, t, torch.zeros(len(x))).to(torch.bfloat16)
    path = rollout(velocity, Schedule(GRID, "ddim", 0.7), [0], 2, SHAPE, 0)
    assert path.states.dtype == path.velocities.dtype == torch.float32


def test_a_grid_that_starts_just_below_1_is_as_stochastic_as_one_that_starts_at_1():
    low = (0.99999, *GRID[1:])
    (one, _), (two, _) = of(Schedule(GRID, "ddim", 0.7)), of(Schedule(low, "ddim", 0.7))
    torch.testing.assert_close(one.states, two.states, rtol=0, atol=1e-3)


def test_the_stock_samplers_walk_takes_the_same_steps_as_a_rollout_from_the_same_noise():
    trajectory, _ = of(Schedule(GRID, "ddim", 0.7), prompts=[prompt(0.5, index=0)])
    velocity = lambda x, t, rows: exact_velocity(x, t, torch.full((len(x),), 0.5))
    seen = []
    last = walk(velocity, Schedule(GRID, "ddim", 0.7), trajectory.states[0], 0, lambda k, x, clean: seen.append((x, clean)))
    torch.testing.assert_close(last, trajectory.states[-1], rtol=0, atol=1e-5)
    for k, (x, clean) in enumerate(seen):
        torch.testing.assert_close(x, trajectory.states[k], rtol=0, atol=1e-5)
        torch.testing.assert_close(clean, x - GRID[k] * trajectory.velocities[k], rtol=0, atol=1e-5)
