"""Gains telescope; every scheme on numbers worked out by hand; groups whose members do not differ earn nothing."""

import math

import pytest
import torch

from stepwise_grpo.training.core.advantages import NEED_NO_PREVIEWS, SCHEMES, advantages
from stepwise_grpo.training.core.gains import gains

PREVIEWED = [scheme for scheme in SCHEMES if scheme not in NEED_NO_PREVIEWS]
WEIGHTS = torch.tensor([3.0, 1.0, 0.0])

# One group of two members, three steps, the last of them deterministic. Rewards of the states t_0 .. t_3:
#   member A: 0  4  5  7      gains  4  1  2
#   member B: 0  0  3  9      gains  0  3  6
REWARDS = torch.tensor([[0.0, 0.0], [4.0, 0.0], [5.0, 3.0], [7.0, 9.0]])
GAINS, FINAL, STOCHASTIC = REWARDS[1:] - REWARDS[:-1], REWARDS[-1], (0, 1)


def of(scheme: str, g: torch.Tensor = GAINS, final: torch.Tensor = FINAL, stochastic: tuple[int, ...] = STOCHASTIC, weights=WEIGHTS, size: int = 2):
    return advantages(scheme, g, final, stochastic, weights, size)


def test_gains_are_differences_and_telescope_to_final_minus_start():
    rewards = torch.randn(11, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    g = gains(rewards)
    assert g.shape == (10, 6)
    torch.testing.assert_close(g.sum(0), rewards[-1] - rewards[0], rtol=0, atol=1e-14)
    torch.testing.assert_close(gains(REWARDS), GAINS)


@pytest.mark.parametrize("shape", [(5,), (1, 4)])
def test_gains_need_rewards_of_every_state(shape):
    with pytest.raises(ValueError, match=r"rewards need shape \(K \+ 1, B\)"):
        gains(torch.zeros(shape))


E4 = 1e-4
# Worked out by hand from GAINS: over S = {0, 1} the gains are A 4 1, B 0 3.
BY_HAND = {
    # mean 2, deviations 2 -1 / -2 1, std sqrt(10 / 4)
    "paper": [[2 / (math.sqrt(2.5) + E4), -2 / (math.sqrt(2.5) + E4)], [-1 / (math.sqrt(2.5) + E4), 1 / (math.sqrt(2.5) + E4)]],
    # all steps: A 4 1 2, B 0 3 6; mean 16 / 6, mean square 66 / 6, variance 11 - 64 / 9 = 35 / 9
    "paper_all_steps": [
        [(4 - 8 / 3) / (math.sqrt(35) / 3 + E4), (0 - 8 / 3) / (math.sqrt(35) / 3 + E4)],
        [(1 - 8 / 3) / (math.sqrt(35) / 3 + E4), (3 - 8 / 3) / (math.sqrt(35) / 3 + E4)],
    ],
    # step means 2 and 2: deviations 2 -2 / -1 1, root mean square sqrt(10 / 4)
    "centred": [[2 / (math.sqrt(2.5) + E4), -2 / (math.sqrt(2.5) + E4)], [-1 / (math.sqrt(2.5) + E4), 1 / (math.sqrt(2.5) + E4)]],
    "per_step": [[2 / (2 + E4), -2 / (2 + E4)], [-1 / (1 + E4), 1 / (1 + E4)]],
    # to go: A 7 3 (2), B 9 9 (6); deviations -1 1 / -3 3, root mean square sqrt(20 / 4)
    "to_go": [[-1 / (math.sqrt(5) + E4), 1 / (math.sqrt(5) + E4)], [-3 / (math.sqrt(5) + E4), 3 / (math.sqrt(5) + E4)]],
    # final 7 and 9: deviations -1 1, std 1
    "uniform": [[-1 / (1 + E4), 1 / (1 + E4)], [-1 / (1 + E4), 1 / (1 + E4)]],
    # weights 3 and 1 over their mean 2
    "uniform_weighted": [[-1.5 / (1 + E4), 1.5 / (1 + E4)], [-0.5 / (1 + E4), 0.5 / (1 + E4)]],
}


def test_every_scheme_has_numbers_worked_out_by_hand():
    assert set(BY_HAND) == set(SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_gives_the_numbers_worked_out_by_hand_and_zero_where_a_step_is_deterministic(scheme):
    result = of(scheme)
    torch.testing.assert_close(result.values, torch.tensor([*BY_HAND[scheme], [0.0, 0.0]]), rtol=1e-6, atol=1e-6)
    assert result.zero_variance_groups == 0


def test_centred_differs_from_paper_by_what_all_members_share():
    """Step means 5 and 1: `paper` takes off 3 everywhere and credits step 0 with what everybody earned."""
    g = torch.tensor([[6.0, 4.0], [1.0, 1.0]])
    final = g.sum(0)
    paper, centred = (of(scheme, g, final, (0, 1), torch.ones(2)).values for scheme in ("paper", "centred"))
    assert (paper[0] > 0).all() and (paper[1] < 0).all()
    torch.testing.assert_close(centred, torch.tensor([[math.sqrt(2), -math.sqrt(2)], [0.0, 0.0]]), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_groups_are_normalised_on_their_own(scheme):
    g = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    final = torch.randn(12, generator=torch.Generator().manual_seed(2))
    weights = torch.tensor([1.0, 2.0, 3.0, 0.0])
    together = advantages(scheme, g, final, (0, 1, 2), weights, 4).values
    for start in (0, 4, 8):
        members = slice(start, start + 4)
        alone = advantages(scheme, g[:, members] * 7, final[members] * 7, (0, 1, 2), weights, 4).values
        torch.testing.assert_close(together[:, members], alone, rtol=2e-3, atol=2e-3)  # 7 times louder, but for eps


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_credit_of_a_step_over_a_group_sums_to_zero_in_schemes_that_compare_members_only(scheme):
    values = of(scheme, torch.randn(3, 2, dtype=torch.float64)).values
    if scheme not in ("paper", "paper_all_steps"):
        torch.testing.assert_close(values.sum(1), torch.zeros(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_deterministic_step_changes_no_other_steps_credit_but_where_the_scheme_counts_all_steps(scheme):
    g = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    final, weights, stochastic = torch.randn(4, generator=torch.Generator().manual_seed(2)), torch.tensor([0.0, 2.0, 1.0, 1.0, 0.0]), (1, 2, 3)
    before = advantages(scheme, g, final, stochastic, weights, 4).values
    for step in (0, 4):
        perturbed = g.clone()
        perturbed[step, 0] += 10
        after = advantages(scheme, perturbed, final, stochastic, weights, 4).values
        counts_it = scheme == "paper_all_steps" or (scheme == "to_go" and step == 4)
        assert torch.equal(before, after) != counts_it
        assert (after[[0, 4]] == 0).all()


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_equal_rewards_give_exact_zeros_and_are_counted_whatever_float_rounding_does(scheme, value):
    rewards = torch.full((4, 8), value)
    rewards[1:] += torch.arange(1, 4)[:, None] * 0.1  # equal members, but steps that differ: `paper` must give nothing either
    result = of(scheme, gains(rewards), rewards[-1], size=8)
    assert torch.equal(result.values, torch.zeros(3, 8))
    assert result.zero_variance_groups == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_differences_below_the_threshold_are_rounding_and_earn_nothing(scheme):
    rounding = 1e-5 * torch.randn(4, 8, generator=torch.Generator().manual_seed(5))
    result = of(scheme, gains(0.5 + rounding), 0.5 + rounding[-1], size=8)
    assert torch.equal(result.values, torch.zeros(3, 8))


def test_a_group_without_differences_leaves_the_others_alone():
    g = torch.cat([torch.zeros(3, 2), GAINS], 1)
    final = torch.cat([torch.full((2,), 0.3), FINAL])
    result = of("paper", g, final)
    assert result.zero_variance_groups == 1
    assert (result.values[:, :2] == 0).all()
    torch.testing.assert_close(result.values[:, 2:], of("paper").values)


@pytest.mark.parametrize("scheme", PREVIEWED)
def test_equal_final_rewards_still_earn_credit_where_the_steps_differ(scheme):
    g = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    result = of(scheme, g, torch.tensor([1.0, 1.0]))
    assert result.zero_variance_groups == 0 and (result.values[1] != 0).all()


@pytest.mark.parametrize("scheme", NEED_NO_PREVIEWS)
def test_uniform_schemes_look_at_final_rewards_only(scheme):
    unseen = torch.full((3, 2), math.nan)
    result = of(scheme, unseen, FINAL)
    assert torch.equal(result.values, of(scheme).values)
    assert of(scheme, unseen, torch.tensor([0.3, 0.3])).zero_variance_groups == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_credit_is_clipped_at_5(scheme):
    g = torch.zeros(3, 64)
    g[0, 0] = 1.0  # one member against 63: about 8 standard deviations
    values = of(scheme, g, g.sum(0), weights=torch.ones(3), size=64).values
    assert values.max() == 5 and values.min() > -5
    assert of(scheme, -g, -g.sum(0), weights=torch.ones(3), size=64).values.min() == -5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_group_of_one_is_refused(scheme):
    with pytest.raises(ValueError, match="at least 2 members to compare; got 1"):
        of(scheme, size=1)


def test_rewards_that_form_no_groups_are_refused():
    with pytest.raises(ValueError, match="do not form groups of 3"):
        of("paper", size=3)
    with pytest.raises(ValueError, match="do not form groups of 2"):
        of("paper", GAINS, torch.zeros(4))


def test_a_rollout_without_stochastic_steps_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="raise eta above 0"):
        of("paper", stochastic=())


def test_an_unknown_scheme_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="credit must be one of centred, paper, .*; got 'mean'"):
        of("mean")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nan_and_infinity_are_refused_and_never_pass_for_a_group_without_differences(scheme, bad):
    final = FINAL.clone()
    final[0] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        of(scheme, final=final)
    if scheme in PREVIEWED:
        g = GAINS.clone()
        g[1, 0] = bad
        with pytest.raises(ValueError, match="NaN or infinity"):
            of(scheme, g)


def test_float_rewards_are_compared_in_double_precision():
    """A large offset that all members share must not eat their differences."""
    final = torch.tensor([1000.0, 1000.5], dtype=torch.float32)
    assert of("uniform", final=final).values[0].tolist() == pytest.approx([-1, 1], rel=1e-3)
