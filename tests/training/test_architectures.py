"""Every architecture through the whole way: rollout as in the graph, update, gradients, the version file in ComfyUI's stock loader.

Figures that a test compares with a bound are recorded as its properties; ``pytest -rP`` prints them.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from stepwise_grpo.tests.architectures import ARCHITECTURES, build, detection_of
from stepwise_grpo.tests.bench import ROWS, TIMES, Bench, distance, learnt, random_direction
from stepwise_grpo.training import lora
from stepwise_grpo.training.conditioning import flatten, unflatten
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.experience import Experience
from stepwise_grpo.training.optimiser import make_optimiser
from stepwise_grpo.training.update import RefusedExperience, update

FP8 = torch.float8_e4m3fn
each = pytest.mark.parametrize("bench", ARCHITECTURES, indirect=True)
a_few = pytest.mark.parametrize("bench", ["sd3", "flux", "wan21", "ltxv", "qwen_image"], indirect=True)
precisions = pytest.mark.parametrize(
    "dtype, scaled", [(torch.bfloat16, ""), (FP8, ""), (FP8, "marked"), (FP8, "described")], ids=["bf16", "fp8", "scaled_fp8", "quantised_layers"]
)


@each
@pytest.mark.parametrize("cfg", [1.0, 4.0])
def test_rows_with_their_own_times_and_prompts_equal_separate_calls(bench, cfg, figure):
    patcher = bench.patcher()
    together = bench.velocity(patcher, cfg)
    with torch.no_grad(), bench.backend.ready(patcher, list(bench.x.shape)):
        velocity = bench.backend.ModelVelocity(patcher, bench.prompts, bench.negative, cfg)
        apart = torch.cat([velocity(bench.x[[i]], TIMES[[i]], ROWS[[i]]) for i in range(3)])
    assert together.isfinite().all() and together.std() > 0.1
    assert figure("rows", (together - apart).abs().max().item()) <= 1e-4


@each
@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpointed"])
def test_the_graphs_rollout_is_trained_on_from_a_ratio_of_1(bench, checkpoint, figure):
    experience = bench.experience()
    with detection_of(bench.architecture):
        policy = bench.backend.open_policy(bench.job(), checkpoint)
    before = policy.weights()
    with policy.prompts(experience.conditioning, experience.negative, experience.cfg, list(experience.states[0].shape)):
        metrics = update(policy, make_optimiser(policy, experience.settings), experience, seed=0)
    assert figure("ratio_error_max", metrics["ratio_error_max"]) <= 1e-6
    assert figure("graph_velocity_error", metrics["graph_velocity_error"]) <= 1e-5
    assert 0 < metrics["grad_norm"] < float("inf")
    moved = {name for name, weight in policy.weights().items() if not torch.equal(weight, before[name])}
    assert moved >= {name for name in before if "lora_B" in name and not bench.architecture.is_dead(name)}


def trained(bench: Bench, experience: Experience) -> dict[str, Any]:
    """The metrics of an update with the experience, its conditioning as it comes out of a file."""
    tensors: dict[str, Any] = {}
    trees = [flatten(entries, f"prompt/{i}", tensors) for i, entries in enumerate(experience.conditioning)]
    experience = replace(experience, conditioning=[unflatten(tree, tensors) for tree in trees])
    with detection_of(bench.architecture):
        policy = bench.backend.open_policy(bench.job(), False)
    with policy.prompts(experience.conditioning, experience.negative, experience.cfg, list(experience.states[0].shape)):
        return update(policy, make_optimiser(policy, experience.settings), experience, seed=0)


@pytest.mark.parametrize(
    "bench, steps, cfg, guidance, law",
    [("sd3", 10, 4.0, None, "ddim"), ("flux", 6, 1.0, 3.5, "flow"), ("flux2", 10, 1.0, 4.0, "ddim"), ("z_image", 8, 1.0, None, "ddim"), ("sd3", 4, 1.0, None, "ddim")],
    ids=["true cfg", "guidance 3.5", "guidance 4", "8 steps", "4 steps"],
    indirect=["bench"],
)  # fmt: skip
def test_true_cfg_guidance_distilled_and_few_step_models_are_trained_as_they_were_sampled(bench, steps, cfg, guidance, law, figure):
    bench.prompts = [[[text, options | {"guidance": guidance}] for text, options in entries] for entries in bench.prompts]  # None: no Flux Guidance
    shifted = [3 * t / (1 + 2 * t) for t in torch.linspace(1, 0, steps + 1).tolist()]
    experience = bench.experience(cfg, Schedule.of(shifted, law, -1))
    assert experience.schedule.stochastic == tuple(range(steps - 1))  # all but the last
    metrics = trained(bench, experience)
    assert figure("ratio_error_max", metrics["ratio_error_max"]) <= 1e-6
    assert figure("graph_velocity_error", metrics["graph_velocity_error"]) <= 1e-5
    assert 0 < metrics["grad_norm"] < float("inf")
    other_cfg = replace(experience, cfg=cfg + 3)
    other_guidance = replace(experience, conditioning=[[[text, options | {"guidance": 1.0}] for text, options in entries] for entries in experience.conditioning])
    for other in (other_cfg, *([] if guidance is None else [other_guidance])):
        try:
            assert figure("velocity of another guidance", trained(bench, other)["graph_velocity_error"]) > 1e-3
        except RefusedExperience as refusal:
            assert "another model, prompt, cfg or patch" in str(refusal)


@each
@pytest.mark.parametrize("targets, cfg, step", [("attention", 1.0, 0.05), ("attention", 4.0, 0.05), ("all", 1.0, 0.0125)])
def test_every_gradient_is_there_and_agrees_with_a_finite_difference(bench, targets, cfg, step, figure):
    policy = bench.policy(targets=targets)
    found = bench.gradients(policy, cfg)
    for name, gradient in found.items():
        if bench.architecture.is_dead(name):
            assert gradient is None or not gradient.any(), name
        else:
            assert gradient.isfinite().all() and gradient.any(), name
    direction = random_direction(policy)
    exact = sum((found[name].double() * direction[name]).sum().item() for name in found if found[name] is not None)
    step *= 0.05 if bench.architecture.jumps else 1  # short enough for no token to change its expert
    assert figure("finite difference", abs(bench.slope(policy, direction, step, cfg) / exact - 1)) <= 1e-2


@each
@pytest.mark.parametrize("targets", ["attention", "all"])
def test_checkpointing_changes_no_gradient(bench, targets, figure):
    plain, checkpointed = (bench.gradients(bench.policy(checkpoint, targets)) for checkpoint in (False, True))
    assert figure("checkpointing", distance(checkpointed, plain)) <= 1e-6


def damage(bench: Bench, policy: Any, right: dict[str, Any]) -> float:
    """How wrong the policy's gradients are; infinite where autograd refuses to give any."""
    try:
        return distance(bench.gradients(policy), right)
    except RuntimeError as refusal:
        assert "modified by an inplace operation" in str(refusal)
        return float("inf")


@each
def test_without_the_copies_gradients_are_refused_or_wrong_where_blocks_work_in_place(bench, monkeypatch, figure):
    import comfy.ldm.common_dit
    import comfy.rmsnorm

    from stepwise_grpo.training.backends import gradients

    right = bench.gradients(bench.policy())
    with monkeypatch.context() as patch:
        patch.setattr(
            gradients, "_checkpointed", lambda forward, switch: lambda *args, **kwargs: recompute_in_backward(forward, *args, use_reentrant=False, **kwargs)
        )
        kept_as_they_are = damage(bench, bench.policy(checkpoint=True), right)
    monkeypatch.setattr(gradients, "_copy_inputs", lambda module: None)
    monkeypatch.setattr(comfy.ldm.common_dit, "rms_norm", comfy.rmsnorm.rms_norm)
    plain, checkpointed = (damage(bench, bench.policy(checkpoint), right) for checkpoint in (False, True))
    if bench.architecture.in_place:
        assert plain == float("inf")
        assert 1e-3 < figure("checkpointed, layers without copies", checkpointed) < float("inf")  # wrong without an error
        assert figure("checkpointed, blocks without copies", kept_as_they_are) > 1e-3
    else:
        assert plain == 0 and max(checkpointed, kept_as_they_are) <= 1e-6


@each
def test_a_version_file_means_the_same_in_the_stock_loader(bench, figure, caplog):
    policy, other, base = bench.policy(), bench.policy(seed=1), bench.patcher()
    layers = bench.architecture.linear
    patched = bench.stock(base, policy)
    assert len(patched.patches) == layers == len(policy.weights()) // 2
    assert policy.matched_keys(lora.file_tensors(policy.weights(), policy.job.alpha)) == (layers, layers)
    assert "NOT LOADED" not in caplog.text and "lora key not loaded" not in caplog.text
    for cfg in (1.0, 4.0):
        assert figure(f"parity at cfg {cfg:g}", (bench.velocity(patched, cfg) - bench.velocity(policy, cfg)).abs().max().item()) <= 1e-4
    for spoilt in (bench.stock(base, policy, scale=2), bench.stock(base, other)):
        assert (bench.velocity(spoilt) - bench.velocity(policy)).abs().max() > 1e-3


@each
@precisions
def test_other_precisions_train_an_fp32_lora(bench, dtype, scaled, figure):
    """The distance to the stock loader is stated, not held to fp32's: it merges in the base's precision, fp8 even at random."""
    policy = learnt(bench.backend.ComfyPolicy(bench.patcher(dtype, scaled), bench.job()))
    assert {weight.dtype for weight in policy.parameters()} == {torch.float32}
    found = bench.gradients(policy)
    assert all(found[name].isfinite().all() and found[name].any() for name in found if not bench.architecture.is_dead(name))
    for cfg in (1.0, 4.0) if bench.name in ("sd3", "flux", "wan21") else (1.0,):
        trained, base = bench.velocity(policy, cfg), bench.velocity(bench.patcher(dtype, scaled), cfg)
        stock = bench.velocity(bench.stock(bench.patcher(dtype, scaled), policy), cfg)
        effect = figure(f"effect at cfg {cfg:g}", (trained - base).abs().mean().item())
        assert figure(f"parity / effect at cfg {cfg:g}", (stock - trained).abs().mean().item() / effect) < 0.5


@a_few
def test_a_lora_below_the_trained_one_stays(bench, monkeypatch, figure):
    below = bench.policy(seed=1)
    both = bench.velocity(bench.stock(bench.stock(bench.patcher(), below), learnt(bench.policy())))
    policy = learnt(bench.backend.ComfyPolicy(bench.stock(bench.patcher(), below), bench.job()))
    assert figure("stacked", (bench.velocity(policy) - both).abs().max().item()) <= 1e-4
    with policy.base():
        assert figure("below alone", (bench.velocity(policy) - bench.velocity(bench.stock(bench.patcher(), below))).abs().max().item()) <= 1e-4
    monkeypatch.setattr(bench.backend, "follow_layers", lambda patcher: None)
    dropped = learnt(bench.backend.ComfyPolicy(bench.stock(bench.patcher(), below), bench.job()))
    assert (bench.velocity(dropped) - both).abs().max() > 1e-3


@a_few
@pytest.mark.parametrize("scaled", ["", "marked", "described"])
def test_a_lora_below_the_trained_one_is_rounded_into_fp8_weights_as_in_the_graph(bench, scaled, figure):
    below = bench.policy(seed=1)
    policy = bench.backend.ComfyPolicy(bench.stock(bench.patcher(FP8, scaled), below), bench.job())
    stock = bench.velocity(bench.stock(bench.patcher(FP8, scaled), below))
    assert figure("below, fp8", (bench.velocity(policy) - stock).abs().max().item()) <= 1e-5


@each
def test_presets_mean_attention_then_mlp_inside_the_blocks(bench):
    from stepwise_grpo.training.backends.gradients import transformer_blocks

    network = build(bench.architecture)
    attention, with_mlp, everything = (set(lora.target_layers(network, preset)) for preset in ("attention", "attention_mlp", "all"))
    assert len(attention) == bench.architecture.linear
    assert attention < with_mlp < everything
    inside = {layer for block in transformer_blocks(network) for layer in block.modules()}
    assert all(network.get_submodule(name) in inside for name in with_mlp)
    assert not [name for name in with_mlp if "mod" in name.lower().replace("model", "")]
