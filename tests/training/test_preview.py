"""Previews: what is looked at, how often, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from stepwise_grpo.tests.analytic import NEGATIVE, PROMPTS, SHAPE, AnalyticPolicy, Brightness, credit_for, decode, plan, trajectory_of
from stepwise_grpo.training.config import PreviewSettings
from stepwise_grpo.training.preview import THUMBNAIL, checked_scores, credit_of, preview, work


class Watching:
    """Brightness that remembers what it was shown."""

    spec = {"reward": "watching"}

    def __init__(self) -> None:
        self.images, self.prompts = [], []

    def score(self, images, prompts):
        self.images.append(images)
        self.prompts += prompts
        return Brightness().score(images, prompts)


def of(scheme: str = "centred", substeps: int = 2, reward=None, **settings):
    policy, the_plan = AnalyticPolicy(), plan(scheme, substeps=substeps)
    the_plan = replace(the_plan, preview=PreviewSettings(scheme=scheme, substeps=substeps, **settings))
    trajectory = trajectory_of(policy, the_plan)
    policy.calls = policy.rows = 0
    return *credit_for(policy, trajectory, the_plan, reward), trajectory, policy


def test_the_shared_start_is_looked_at_once_a_prompt_and_scored_equally():
    reward = Watching()
    credit, _, _, _ = of(reward=reward)
    assert len(reward.prompts) == 2 + 4 * 8 + 8
    assert reward.prompts[:2] == ["mean 0.5", "mean -0.5"]
    assert (credit.rewards[0, :4] == credit.rewards[0, 0]).all() and (credit.rewards[0, 4:] == credit.rewards[0, 4]).all()
    assert credit.rewards[0, 0] != credit.rewards[0, 4]


def test_every_reward_is_shown_its_own_prompt():
    reward = Watching()
    of(reward=reward)
    assert reward.prompts[2:] == (["mean 0.5"] * 4 + ["mean -0.5"] * 4) * 5


def test_the_last_row_is_the_reward_of_the_final_pictures():
    credit, finals, trajectory, _ = of()
    torch.testing.assert_close(finals, decode(trajectory.states[-1]), rtol=0, atol=0)
    torch.testing.assert_close(credit.rewards[-1], Brightness().score(finals, []), rtol=0, atol=1e-6)


def test_gains_telescope_to_final_minus_start():
    credit, _, _, _ = of()
    torch.testing.assert_close(credit.gains.sum(0), credit.rewards[-1] - credit.rewards[0], rtol=0, atol=1e-6)


def test_one_substep_asks_no_network_and_is_tweedie():
    credit, _, trajectory, policy = of(substeps=1)
    assert credit.evaluations == policy.rows == 0
    t = torch.tensor(trajectory.schedule.times[:-1]).reshape(5, 1, 1, 1, 1)
    clean = decode((trajectory.states[:-1] - t * trajectory.velocities).flatten(0, 1))
    torch.testing.assert_close(credit.rewards[:-1], clean.mean((1, 2, 3)).reshape(5, 8), rtol=0, atol=1e-6)


def test_network_rows_are_counted_and_the_start_counts_once_a_prompt():
    credit, _, _, policy = of(substeps=3)
    assert credit.evaluations == policy.rows == 2 * (2 + 4 * 8)


def test_fewer_substeps_by_time_cost_fewer_network_rows():
    """Times 1, .8, .6, .4, .2 with T' = 5: 5, 4, 3, 2, 1 substeps, the first of each free."""
    credit, _, _, policy = of(substeps=5, by_time=True)
    assert credit.evaluations == policy.rows == 4 * 2 + (3 + 2 + 1 + 0) * 8


def test_any_number_of_rows_a_call_gives_the_same_credit():
    whole, finals, _, _ = of(rows_per_call=1000)
    for rows in (1, 7, 8):
        parts, part_finals, _, _ = of(rows_per_call=rows)
        torch.testing.assert_close(parts.rewards, whole.rewards, rtol=0, atol=1e-6)
        torch.testing.assert_close(part_finals, finals, rtol=0, atol=1e-6)
        torch.testing.assert_close(parts.thumbnails, whole.thumbnails, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scheme", ["uniform", "uniform_weighted"])
def test_uniform_schemes_look_at_the_final_pictures_only(scheme):
    reward = Watching()
    credit, finals, _, policy = of(scheme, substeps=5, reward=reward)
    assert len(reward.prompts) == 8 and policy.rows == credit.evaluations == 0
    assert credit.rewards[:-1].isnan().all() and credit.rewards[-1].isfinite().all()
    assert credit.advantages.isfinite().all() and credit.advantages.any()
    assert len(finals) == 8


def test_a_deterministic_step_earns_a_gain_but_no_advantage():
    credit, _, _, _ = of()
    assert credit.gains[-1].any()
    assert not credit.advantages[-1].any() and credit.advantages[:-1].any()


def test_thumbnails_are_the_clean_estimates_of_every_state():
    credit, finals, _, _ = of()
    assert credit.thumbnails.shape == (6, 8, 2, 2, 3)
    torch.testing.assert_close(credit.thumbnails[-1], finals)
    assert torch.equal(credit.thumbnails[0, 0], credit.thumbnails[0, 3])
    assert credit.thumbnails.flatten(2).std(2).min() > 0  # none was left out


def test_large_pictures_get_small_thumbnails_that_keep_their_proportions():
    policy, the_plan = AnalyticPolicy(), plan(substeps=1)
    trajectory = trajectory_of(policy, the_plan)
    large = lambda latents: torch.nn.functional.interpolate(latents, size=(100, 400)).movedim(1, -1) * 0.1 + 0.5
    with policy.prompts([p.conditioning for p in PROMPTS], NEGATIVE, 1.0, [1, *SHAPE]):
        credit, finals = preview(trajectory, policy.velocity, large, Brightness(), the_plan.preview)
    assert credit.thumbnails.shape == (6, 8, 24, THUMBNAIL, 3) and finals.shape == (8, 100, 400, 3)


def test_pictures_are_clamped_to_what_a_picture_can_show():
    reward = Watching()
    policy, the_plan = AnalyticPolicy(), plan(substeps=1)
    trajectory = trajectory_of(policy, the_plan)
    with policy.prompts([p.conditioning for p in PROMPTS], NEGATIVE, 1.0, [1, *SHAPE]):
        preview(trajectory, policy.velocity, lambda x: x.movedim(1, -1) * 5, reward, the_plan.preview)
    shown = torch.cat(reward.images)
    assert shown.min() == 0 and shown.max() == 1


class Fixed:
    spec = {"reward": "my taste"}

    def __init__(self, scores) -> None:
        self.scores = scores

    def score(self, images, prompts):
        return self.scores(images)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_gives_no_number_is_refused_by_name(bad):
    scores = lambda images: torch.where(torch.arange(len(images)) == 1, bad, 0.5)
    with pytest.raises(ValueError, match="reward 'my taste' gave NaN or infinity for 1 of 42 pictures; nothing was trained"):
        of(reward=Fixed(scores))


@pytest.mark.parametrize(
    "scores, shape",
    [
        (lambda images: torch.zeros(len(images), 1), r"\(8, 1\)"),
        (lambda images: torch.zeros(3), r"\(3,\)"),
        (lambda images: torch.tensor(0.0), r"\(\)"),
    ],
)
def test_a_reward_that_gives_another_number_of_scores_is_refused_by_name(scores, shape):
    with pytest.raises(ValueError, match=f"reward 'my taste' gave scores of shape {shape} for 8 pictures"):
        checked_scores(Fixed(scores), torch.zeros(8, 2, 2, 3), ["a"] * 8)


def test_scores_of_any_dtype_that_carry_a_graph_are_taken_as_plain_numbers():
    scores = checked_scores(
        Fixed(lambda images: torch.ones(len(images), dtype=torch.float64, requires_grad=True)), torch.zeros(3, 2, 2, 3), ["a"] * 3
    )
    assert scores.dtype == torch.float32 and not scores.requires_grad


@pytest.mark.parametrize("scheme, by_time", [("centred", False), ("centred", True), ("uniform", False)])
def test_every_batch_is_told_with_its_pictures_and_the_work_is_known_before(scheme, by_time):
    seen, calls = [], []
    policy, the_plan = AnalyticPolicy(), plan(substeps=3)
    trajectory = trajectory_of(policy, the_plan)
    settings = PreviewSettings(scheme=scheme, substeps=3, by_time=by_time, rows_per_call=20)
    counted = lambda x, t, rows: calls.append(len(x)) or policy.velocity(x, t, rows)
    with policy.prompts([p.conditioning for p in PROMPTS], NEGATIVE, 1.0, [1, *SHAPE]):
        credit, _ = preview(trajectory, counted, decode, Brightness(), settings, lambda *told: seen.append(told))
    assert [len(states) for states, _, _ in seen] == ([8] if scheme == "uniform" else [20, 20, 2])
    assert work(trajectory, settings) == (sum(len(states) for states, _, _ in seen), sum(calls))
    for states, rows, thumbnails in seen:
        assert torch.equal(thumbnails, credit.thumbnails[states, rows])


def test_a_group_whose_pictures_are_all_equal_is_counted_and_trains_nothing():
    credit, _, _, _ = of(reward=Fixed(lambda images: torch.full((len(images),), 0.7)))
    assert credit.zero_variance_groups == 2 and not credit.advantages.any()


def test_scores_from_elsewhere_become_credit_without_pictures():
    trajectory = trajectory_of(AnalyticPolicy(), plan())
    rewards = torch.full((6, 8), math.nan)
    rewards[-1] = torch.arange(8.0)
    credit = credit_of(trajectory, rewards, "uniform", {"reward": "scores"}, None, 0, {})
    assert credit.thumbnails is None and credit.advantages[0, :4].tolist() == pytest.approx([-1.342, -0.447, 0.447, 1.342], abs=1e-3)
    with pytest.raises(ValueError, match="NaN or infinity"):
        credit_of(trajectory, rewards, "centred", {"reward": "scores"}, None, 0, {})


def test_the_time_of_each_part_is_told():
    credit, _, _, _ = of()
    assert set(credit.seconds) == {"preview", "decode", "reward"} and all(value >= 0 for value in credit.seconds.values())
