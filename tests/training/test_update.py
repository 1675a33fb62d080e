"""The update: its gradient against a plain objective, what it refuses, and that reward rises."""

import json
import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal

from stepwise_grpo.tests.analytic import NEGATIVE, PROMPTS, SHAPE, AnalyticPolicy, Brightness, decode, experience, plan
from stepwise_grpo.training.config import UpdateSettings
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.iterate import iterate
from stepwise_grpo.training.optimiser import make_optimiser
from stepwise_grpo.training.update import RefusedExperience, update


class Recorder:
    """An optimiser that keeps the gradients of every step; ``rate`` 0 changes no weight."""

    def __init__(self, policy, rate: float = 0.0) -> None:
        self.param_groups = [{"params": policy.parameters(), "lr": rate, "weight_decay": 0.0}]
        self.rate, self.gradients = rate, []

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.gradients.append([parameter.grad.clone() for parameter in self.param_groups[0]["params"]])
        for parameter in self.param_groups[0]["params"]:
            parameter -= self.rate * parameter.grad


def moved(policy: AnalyticPolicy, scale: float = 0.05, seed: int = 0) -> AnalyticPolicy:
    """The policy with a LoRA that does something."""
    generator = torch.Generator().manual_seed(seed)
    policy.set_weights({name: w + scale * torch.randn(w.shape, generator=generator) for name, w in policy.weights().items()})
    return policy


def run(policy, e, optimiser=None, seed: int = 0, behaviour=None, **settings):
    """One update under the experience's prompts; returns metrics and the optimiser."""
    if settings:
        e = replace(e, settings=replace(e.settings, **settings))
    optimiser = optimiser or Recorder(policy)
    with policy.prompts(e.conditioning, e.negative, e.cfg, [1, *SHAPE]):
        return update(policy, optimiser, e, seed, behaviour), optimiser


@pytest.fixture
def policy():
    return moved(AnalyticPolicy())


@pytest.fixture
def e(policy, tmp_path):
    return experience(policy, plan(updates=1, max_grad_norm=1e9, clip=0.01), tmp_path)


def plain_objective(policy, e, old: torch.Tensor | None = None):
    """The whole method in one line: mean of min(ratio A, clip(ratio) A) over members and stochastic steps. Also the densities."""
    S, times = list(e.schedule.stochastic), torch.tensor(e.schedule.times)
    densities = []
    with policy.prompts(e.conditioning, e.negative, e.cfg, [1, *SHAPE]):
        for k in S:
            x = e.states[k]
            rows = torch.full((len(x),), k)
            law = e.schedule.transition(x, policy.velocity(x, times[rows], torch.arange(len(x)) // e.group_size), rows)
            densities.append(Normal(law.mean, law.std.reshape(-1, 1, 1, 1)).log_prob(e.states[k + 1]).flatten(1).mean(1))
    new, A, c = torch.stack(densities), e.advantages[S], e.settings.clip
    old = new.detach() if old is None else old
    return torch.minimum((new - old).exp() * A, (new - old).exp().clamp(1 - c, 1 + c) * A).mean(), new.detach()


def gradient_of(value, policy):
    return [g.clone() for g in torch.autograd.grad(value, policy.parameters())]


def assert_same(one, two, tolerance=1e-5):
    size = max(g.abs().max() for g in two)
    assert size > 1e-3
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() <= tolerance * size


def test_the_gradient_is_that_of_the_plain_objective(policy, e):
    metrics, optimiser = run(policy, e)
    value, _ = plain_objective(policy, e)
    assert_same(optimiser.gradients[0], [-g for g in gradient_of(value, policy)])
    assert metrics["loss"] == pytest.approx(-value.item(), abs=1e-6)


def test_away_from_the_behaviour_the_gradient_is_still_that_of_the_plain_objective(policy, e):
    behaviour = policy.weights()
    with torch.no_grad():
        _, old = plain_objective(policy, e)
    moved(policy, 0.02, seed=1)
    now = policy.weights()
    metrics, optimiser = run(policy, e, behaviour=behaviour)
    value, new = plain_objective(policy, e, old)
    assert_same(optimiser.gradients[0], [-g for g in gradient_of(value, policy)])
    ratio, A, c = (new - old).exp(), e.advantages[list(e.schedule.stochastic)], e.settings.clip
    beyond = ((ratio > 1 + c) & (A > 0)) | ((ratio < 1 - c) & (A < 0))
    assert 0 < metrics["clip_fraction"] < 1
    assert metrics["clip_fraction"] == pytest.approx(beyond.float().mean().item())
    assert metrics["ratio_max"] == pytest.approx((ratio - 1).abs().max().item(), rel=1e-3)
    assert "ratio_error_max" not in metrics  # there is no first pass at ratio 1 to check
    assert all(torch.equal(now[name], w) for name, w in policy.weights().items())


@pytest.mark.parametrize("rows", [1, 3, 8, 31, 1000])
def test_micro_batches_of_any_size_give_the_same_gradient(policy, e, rows):
    _, whole = run(policy, e)
    metrics, parts = run(policy, e, rows_per_call=rows)
    assert_same(parts.gradients[0], whole.gradients[0])
    assert metrics["ratio_error_max"] == 0


def test_the_ratio_starts_at_exactly_1(policy, e):
    metrics, _ = run(policy, e, updates=2)
    assert metrics["ratio_error_max"] == 0
    assert metrics["clip_fraction"] == 0 and metrics["graph_velocity_error"] < 1e-6 and metrics["graph_density_error"] < 1e-6


class Watching(AnalyticPolicy):
    """Remembers the rows that were asked for with gradients, by optimiser step."""

    def velocity(self, x, t, rows):
        if torch.is_grad_enabled():
            self.seen.append((x.clone(), t.clone(), rows.clone()))
        return super().velocity(x, t, rows)


@pytest.mark.parametrize("updates", [1, 2, 3, 4, 64])
def test_every_member_and_stochastic_step_is_trained_on_exactly_once(updates, tmp_path):
    policy = moved(Watching())
    policy.seen = []
    e = experience(policy, plan(updates=updates), tmp_path)
    run(policy, e, rows_per_call=5)
    seen = torch.cat([torch.cat([x.flatten(1), t[:, None]], 1) for x, t, _ in policy.seen])
    wanted = torch.cat([torch.cat([e.states[k].flatten(1), torch.full((8, 1), e.schedule.times[k])], 1) for k in e.schedule.stochastic])
    as_rows = lambda tensor: sorted(tuple(row) for row in tensor.tolist())
    assert as_rows(seen) == as_rows(wanted)


def test_each_optimiser_step_sees_every_group_alike_and_the_seed_decides_who(tmp_path):
    policy = moved(Watching())
    policy.seen = []
    e = experience(policy, plan(updates=2), tmp_path)
    run(policy, e, rows_per_call=1000, seed=0)
    assert [rows.bincount().tolist() for _, _, rows in policy.seen] == [[8, 8], [8, 8]]
    first = policy.seen[0][0].clone()
    policy.seen = []
    run(policy, e, rows_per_call=1000, seed=0)
    assert torch.equal(policy.seen[0][0], first)
    orders = []
    for seed in range(6):
        policy.seen = []
        run(policy, e, rows_per_call=1000, seed=seed)
        orders.append(tuple(policy.seen[0][0].flatten().tolist()))
    assert len(set(orders)) > 1


def test_a_second_step_starts_where_the_first_one_ended(policy, e):
    _, optimiser = run(policy, e, updates=2, optimiser=Recorder(policy, rate=0.1))
    assert len(optimiser.gradients) == 2
    metrics, _ = run(policy, e, updates=2, optimiser=Recorder(policy, rate=0.1))
    assert metrics["ratio_max"] > 0


def test_a_deterministic_step_never_enters(policy, e):
    _, before = run(policy, e)
    loud = e.advantages.clone()
    loud[-1] = 1000.0
    _, after = run(policy, replace(e, advantages=loud))
    assert all(torch.equal(a, b) for a, b in zip(before.gradients[0], after.gradients[0]))


@pytest.mark.parametrize("law", ["ddim", "flow", "cps", "precise", "dance"])
@pytest.mark.parametrize("floor_first", [True, False])
def test_gradients_are_finite_for_every_law_and_schedule(law, floor_first, tmp_path):
    policy = moved(AnalyticPolicy())
    schedule = Schedule((0.99999, 0.8, 0.6, 0.4, 0.2, 0.0), law, -1, floor_first)
    metrics, optimiser = run(policy, experience(policy, plan(schedule=schedule, beta=0.1, updates=1), tmp_path))
    assert all(g.isfinite().all() for g in optimiser.gradients[0]) and metrics["grad_norm"] > 0


def test_every_metric_is_a_finite_number(policy, e):
    metrics, _ = run(policy, e, beta=0.1)
    assert all(math.isfinite(value) for value in metrics.values())
    json.dumps(metrics, allow_nan=False)


def unchanged(policy, before) -> bool:
    return all(torch.equal(before[name], w) for name, w in policy.weights().items())


def test_a_recording_of_another_model_is_refused_and_no_weight_changes(policy, e):
    before = policy.weights()
    with pytest.raises(RefusedExperience, match=r"differs from the recorded one by 2\d%: the graph used another model, prompt, cfg or patch"):
        run(policy, replace(e, velocities=e.velocities * 1.3), make_optimiser(policy, e.settings))
    assert unchanged(policy, before)


def test_one_foreign_row_is_enough_to_be_refused(policy, e):
    foreign = e.velocities.clone()
    foreign[2, 3] *= 1.3
    with pytest.raises(RefusedExperience, match="another model"):
        run(policy, replace(e, velocities=foreign))


def test_a_recording_that_differs_a_little_is_trained_on_and_the_difference_is_told(policy, e):
    metrics, optimiser = run(policy, replace(e, velocities=e.velocities * 1.1))
    assert metrics["graph_velocity_error"] == pytest.approx(0.1 / 1.1, rel=1e-3)
    assert metrics["graph_velocity_error_mean"] == pytest.approx(0.1 / 1.1, rel=1e-3)
    assert metrics["graph_density_error"] > e.settings.clip / 10
    assert len(optimiser.gradients) == 1 and metrics["ratio_error_max"] == 0  # the trainer's own density counts


def test_another_prompt_or_cfg_is_noticed(tmp_path):
    policy = moved(AnalyticPolicy())
    e = experience(policy, plan(), tmp_path)
    with pytest.raises(RefusedExperience, match="another model, prompt, cfg"):
        run(policy, replace(e, cfg=8.0))
    with pytest.raises(RefusedExperience, match="another model, prompt, cfg"):
        run(policy, replace(e, conditioning=e.conditioning[::-1]))


class Dropout(AnalyticPolicy):
    """Computes a little differently with gradients than without."""

    @contextmanager
    def training(self):
        self.noise = 1e-3
        with super().training():
            yield
        self.noise = 0.0

    def velocity(self, x, t, rows):
        return super().velocity(x, t, rows) + getattr(self, "noise", 0.0)


def test_a_model_that_computes_differently_with_gradients_is_refused_and_no_weight_changes(tmp_path):
    policy = Dropout()
    e = experience(policy, plan(clip=1e-3), tmp_path)
    before = policy.weights()
    with pytest.raises(RefusedExperience, match=r"ratio starts at 1 \+- .*above clip / 100 = 1.00e-05"):
        run(policy, e, make_optimiser(policy, e.settings))
    assert unchanged(policy, before)


@pytest.mark.parametrize("where", ["always", "with gradients", "backward"])
def test_nan_from_the_model_is_refused_and_no_weight_changes(where, tmp_path):
    class Broken(AnalyticPolicy):
        def velocity(self, x, t, rows):
            v = super().velocity(x, t, rows)
            if where == "always" or (where == "with gradients" and torch.is_grad_enabled()):
                return v * math.nan
            # a correct value with a gradient of 0 / 0
            return v + torch.where(v > 1e9, v, (v * 0).sqrt() * 0) if torch.is_grad_enabled() and where == "backward" else v

    whole = AnalyticPolicy()
    e = experience(whole, plan(), tmp_path)
    policy = Broken()
    before = policy.weights()
    with pytest.raises(RefusedExperience):
        run(policy, e, make_optimiser(policy, e.settings))
    assert unchanged(policy, before)


def test_zero_advantages_change_nothing_not_even_by_weight_decay(policy, e):
    before = policy.weights()
    metrics, _ = run(policy, replace(e, advantages=torch.zeros_like(e.advantages)), make_optimiser(policy, e.settings), weight_decay=0.5, updates=2)
    assert unchanged(policy, before) and metrics["grad_norm"] == 0


def test_learning_rate_and_decay_come_with_the_experience(policy, e):
    optimiser = make_optimiser(policy, e.settings)
    run(policy, e, optimiser, learning_rate=3e-4, weight_decay=0.25)
    assert (optimiser.param_groups[0]["lr"], optimiser.param_groups[0]["weight_decay"]) == (3e-4, 0.25)


def test_large_gradients_are_scaled_down(policy, e):
    metrics, optimiser = run(policy, e, max_grad_norm=1e-3)
    assert metrics["grad_norm"] > 1e-3  # the norm before scaling
    assert torch.stack([g.norm() for g in optimiser.gradients[0]]).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_the_kl_is_that_of_the_laws_with_and_without_the_lora(policy, e):
    metrics, _ = run(policy, e, beta=0.1)
    S, times, total = list(e.schedule.stochastic), torch.tensor(e.schedule.times), []
    with torch.no_grad(), policy.prompts(e.conditioning, e.negative, e.cfg, [1, *SHAPE]):
        for k in S:
            rows = torch.full((8,), k)
            ask = lambda k=k, rows=rows: policy.velocity(e.states[k], times[rows], torch.arange(8) // 4)
            law = e.schedule.transition(e.states[k], ask(), rows)
            with policy.base():
                base = e.schedule.transition(e.states[k], ask(), rows)
            std = law.std.reshape(-1, 1, 1, 1)
            total.append(torch.distributions.kl_divergence(Normal(law.mean, std), Normal(base.mean, std)).mean())
    assert metrics["kl"] == pytest.approx(torch.stack(total).mean().item(), rel=1e-4) and metrics["kl"] > 0


def test_the_kl_alone_pulls_the_lora_back_to_the_base(policy, e):
    still = replace(e, advantages=torch.zeros_like(e.advantages))
    optimiser, behaviour = make_optimiser(policy, e.settings), policy.weights()
    kl = [run(policy, still, optimiser, behaviour=behaviour, beta=1.0, learning_rate=1e-2, updates=2)[0]["kl"] for _ in range(30)]
    assert kl[-1] < 0.1 * kl[0]


def climb(reward, scheme: str = "centred", iterations: int = 30, **more) -> tuple[float, float]:
    """Mean reward of the first three and the last three iterations of a run."""
    policy, the_plan = AnalyticPolicy(), plan(scheme, group_size=8, updates=2, **more)
    optimiser = make_optimiser(policy, the_plan.update)
    curve = []
    for seed in range(iterations):
        credit, metrics = iterate(policy, optimiser, the_plan, PROMPTS, NEGATIVE, decode, reward, seed)
        curve.append(credit.rewards[-1].mean().item())
        assert metrics["ratio_error_max"] == 0
    return sum(curve[:3]) / 3, sum(curve[-3:]) / 3


class Darkness(Brightness):
    def score(self, images, prompts):
        return 1 - super().score(images, prompts)


@pytest.mark.parametrize("scheme", ["centred", "paper", "to_go", "uniform"])
def test_reward_rises_over_30_iterations(scheme):
    """Brightness starts at 0.5 with a spread of about 0.01 between pictures."""
    start, end = climb(Brightness(), scheme)
    assert start == pytest.approx(0.5, abs=0.02)
    assert end > start + 0.05


def test_a_reward_for_the_opposite_moves_the_other_way():
    start, end = climb(Darkness())
    assert end > start + 0.05


def test_the_kl_holds_a_run_near_the_base():
    (_, free), (_, held) = climb(Brightness(), iterations=15), climb(Brightness(), iterations=15, beta=5.0)
    assert held < 0.5 + (free - 0.5) / 2


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_iterate_counts_every_row_that_went_through_the_network_and_a_backward_as_two(beta):
    policy, the_plan = AnalyticPolicy(), plan(substeps=2, beta=beta)
    _, metrics = iterate(policy, make_optimiser(policy, the_plan.update), the_plan, PROMPTS, NEGATIVE, decode, Brightness(), 0)
    backward = 2 * 4 * 8
    assert metrics["evaluations"] == policy.rows + backward
    assert metrics["update_evaluations"] == metrics["evaluations"] - (2 + 4 * 8) - (2 + 4 * 8)


def test_settings_refuse_what_makes_no_sense():
    for bad in ({"learning_rate": 0}, {"clip": 0}, {"clip": 1}, {"beta": -1}, {"updates": 0}, {"rows_per_call": -1}, {"ema": 1}, {"max_grad_norm": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            UpdateSettings(**bad)
