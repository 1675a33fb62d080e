"""Live LoRA beside the weights: the trainer's velocity on every kind of weights, and nothing left behind on the shared module."""

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.architectures import ARCHITECTURES
from stepwise_grpo.tests.bench import learnt
from stepwise_grpo.training import lora

FP8 = torch.float8_e4m3fn
each = pytest.mark.parametrize("bench", ARCHITECTURES, indirect=True)
precisions = pytest.mark.parametrize(
    "dtype, scaled", [(torch.bfloat16, ""), (FP8, ""), (FP8, "marked"), (FP8, "described")], ids=["bf16", "fp8", "scaled_fp8", "quantised_layers"]
)
sd3_and_flux = pytest.mark.parametrize("bench", ["sd3", "flux"], indirect=True)


def unmerged(patcher, policy, strength: float = 1.0):
    from stepwise_grpo.training.backends.unmerged import read_factors, with_unmerged_lora

    data = lora.save(policy.weights(), policy.job, {"run": "test", "version": 1})
    return with_unmerged_lora(patcher, read_factors(patcher, safetensors.torch.load(data)), strength)


def error(a, b, effect):
    return ((a - b).abs().mean() / effect.abs().mean()).item()


@each
def test_beside_fp32_weights_it_is_what_the_trainer_has(bench, figure):
    policy = bench.policy()
    live = unmerged(bench.patcher(), policy)
    for cfg in (1.0, 4.0):
        trained = bench.velocity(policy, cfg)
        assert figure(f"unmerged at cfg {cfg:g}", (bench.velocity(live, cfg) - trained).abs().max().item()) <= 1e-4
        assert (bench.velocity(unmerged(bench.patcher(), policy, 0.5), cfg) - trained).abs().max() > 1e-3


@each
@precisions
def test_beside_rounded_weights_it_is_what_the_trainer_has_where_merging_is_not(bench, dtype, scaled, figure):
    from stepwise_grpo.training.backends.unmerged import merging_rounds

    policy = learnt(bench.backend.ComfyPolicy(bench.patcher(dtype, scaled), bench.job()))
    trained = bench.velocity(policy)
    with bench.backend.kernels_with_backward():  # the trainer's: in bf16 others round differently, LoRA or not
        base = bench.velocity(bench.patcher(dtype, scaled))
        live = bench.velocity(unmerged(bench.patcher(dtype, scaled), policy))
        merged = bench.velocity(bench.stock(bench.patcher(dtype, scaled), policy))
    assert figure("unmerged", (live - trained).abs().max().item()) <= 1e-5
    assert figure("unmerged / effect", error(live, trained, trained - base)) < 1e-4
    if dtype == FP8:
        assert figure("merged / effect", error(merged, trained, trained - base)) > 0.01
    assert merging_rounds(bench.patcher(dtype, scaled)) == (dtype == FP8)


@sd3_and_flux
def test_clones_with_and_without_it_do_not_mix(bench):
    base = bench.patcher()
    before = set(base.model.state_dict())
    one, other = (unmerged(base, bench.policy(seed=seed)) for seed in (0, 1))
    first = [bench.velocity(model) for model in (base, one, other)]
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    for model, expected in [(base, 0), (one, 1), (base, 0), (other, 2), (one, 1), (one.clone(), 1), (base.clone(), 0)]:
        assert torch.equal(bench.velocity(model), first[expected])
    assert set(base.model.state_dict()) == before and not base.object_patches


@sd3_and_flux
def test_it_is_made_right_while_another_clone_is_loaded(bench):
    """The forward that it extends must be the layer's own, not the one that a loaded clone has put there."""
    base, policy = bench.patcher(), bench.policy()
    alone = bench.velocity(unmerged(bench.patcher(), policy))
    with bench.backend.ready(unmerged(base, bench.policy(seed=1)), list(bench.x.shape)):
        live = unmerged(base, policy)
    assert torch.equal(bench.velocity(live), alone)


@sd3_and_flux
def test_a_merged_clone_beside_an_unmerged_one_stays_right(bench):
    base, policy = bench.patcher(), bench.policy()
    plain = bench.velocity(base)
    live, merged = unmerged(base, policy), bench.stock(base, policy)
    both = [bench.velocity(model) for model in (live, merged, live)]
    assert torch.equal(both[0], both[2]) and (both[0] - both[1]).abs().max() <= 1e-4
    assert torch.equal(bench.velocity(base), plain)


@sd3_and_flux
def test_the_sampler_takes_it_and_nothing_else_on_a_layer(bench):
    from stepwise_grpo.nodes.convert import check_model

    live = unmerged(bench.patcher(), bench.policy())
    check_model(live)
    name = next(iter(live.object_patches))
    live.add_object_patch(name, torch.nn.Identity())
    with pytest.raises(ValueError, match="object_patches.*forward, which the trainer cannot repeat"):
        check_model(live)


@sd3_and_flux
def test_another_lora_below_or_above_it_is_seen_for_itself(bench):
    from stepwise_grpo.nodes.convert import check_model, foreign_patches

    only = foreign_patches(bench.stock(bench.patcher(), bench.policy(seed=1)))
    for stack in (
        lambda base: unmerged(bench.stock(base, bench.policy(seed=1)), bench.policy()),
        lambda base: bench.stock(unmerged(base, bench.policy()), bench.policy(seed=1)),
    ):
        live = stack(bench.patcher())
        check_model(live)
        assert only and foreign_patches(live).keys() == only.keys()
    assert not foreign_patches(unmerged(bench.patcher(), bench.policy()))


@sd3_and_flux
def test_its_tensors_leave_the_graphics_card_with_the_model(bench, monkeypatch):
    from stepwise_grpo.training.backends import unmerged as module

    live, left = unmerged(bench.patcher(), bench.policy()), []
    monkeypatch.setattr(module.LoRAForward, "leave", lambda self: left.append(self))
    with bench.backend.ready(live, list(bench.x.shape)):
        assert not left
    live.detach()
    assert len(left) == bench.architecture.linear


@pytest.mark.parametrize("bench", ["sd3"], indirect=True)
def test_a_version_of_another_model_is_refused(bench):
    from stepwise_grpo.training.backends.unmerged import read_factors

    policy = bench.policy()
    tensors = lora.file_tensors(policy.weights(), 8.0)
    name = next(name for name in tensors if name.endswith("lora_B.weight"))
    with pytest.raises(ValueError, match="made for another model"):
        read_factors(bench.patcher(), tensors | {name: tensors[name][:-1]})
    with pytest.raises(ValueError, match="14 of its tensors belong to no layer of this model.*made for another model"):
        read_factors(bench.patcher(), {"x." + key: w for key, w in tensors.items() if not key.endswith("alpha")})
