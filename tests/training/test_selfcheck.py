"""The self-check passes every architecture the trainer serves, notices what is wrong, and leaves the model as it was."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from stepwise_grpo.tests.architectures import ARCHITECTURES
from stepwise_grpo.tests.bench import Bench
from stepwise_grpo.training.selfcheck import Probe, distance, examine, gradients, refusal, stirred

FP8 = torch.float8_e4m3fn
each = pytest.mark.parametrize("bench", ARCHITECTURES, indirect=True)
in_place = pytest.mark.parametrize("bench", [name for name, a in ARCHITECTURES.items() if a.in_place], indirect=True)


def probe(bench: Bench, cfg: float = 1.0) -> Probe:
    return Probe([bench.prompts[0]], bench.negative, cfg, bench.x[:2], torch.tensor([0.9, 0.4]))


def failures(findings: list) -> set[str]:
    return {finding.name for finding in findings if finding.passed is False}


@each
@pytest.mark.parametrize("cfg", [1.0, 4.0])
@pytest.mark.parametrize("targets", ["attention", "all"])
def test_every_architecture_passes(bench, cfg, targets):
    policy = bench.policy(checkpoint=True, targets=targets)
    before = bench.velocity(policy)
    findings = examine(policy, probe(bench, cfg))
    for finding in findings:
        print(finding)
    assert len(findings) == 6
    assert [finding.name for finding in findings if not finding.passed] == (["finite difference"] if bench.architecture.jumps else [])
    assert refusal(findings) is None
    assert torch.equal(bench.velocity(policy), before)


@each
@pytest.mark.parametrize("dtype, scaled", [(torch.bfloat16, ""), (FP8, ""), (FP8, "marked"), (FP8, "described")], ids=["bf16", "fp8", "scaled", "quantised"])
def test_other_precisions_pass_too_and_keep_their_own(bench, dtype, scaled):
    policy = bench.backend.ComfyPolicy(bench.patcher(dtype, scaled), bench.job(), checkpoint=True)
    before = bench.velocity(policy)
    findings = examine(policy, probe(bench))
    print(findings)
    assert refusal(findings) is None
    assert torch.equal(bench.velocity(policy), before)


@in_place
def test_blocks_that_overwrite_what_autograd_saved_are_refused_without_the_copies(bench, monkeypatch):
    import comfy.ldm.common_dit
    import comfy.rmsnorm

    from stepwise_grpo.training.backends import gradients

    monkeypatch.setattr(gradients, "_copy_inputs", lambda module: None)
    monkeypatch.setattr(comfy.ldm.common_dit, "rms_norm", comfy.rmsnorm.rms_norm)
    findings = examine(bench.policy(checkpoint=True), probe(bench))
    assert "checkpointing" in failures(findings) and "without it backward fails" in refusal(findings)
    if bench.name not in ("flux", "hunyuan_image"):  # a few tensors wrong by less than 1 in 30: too little of the whole
        assert "finite difference" in failures(findings)


@in_place
def test_the_copies_of_layers_alone_are_not_enough_with_checkpointing(bench, monkeypatch):
    from torch.utils.checkpoint import checkpoint as recompute

    from stepwise_grpo.training.backends import gradients

    careless = lambda forward, switch: lambda *a, **k: recompute(forward, *a, use_reentrant=False, **k) if switch.on else forward(*a, **k)
    monkeypatch.setattr(gradients, "_checkpointed", careless)
    assert failures(examine(bench.policy(checkpoint=True), probe(bench))) == {"gradients"}  # autograd itself refuses


def lora_layer(policy: Any, index: int) -> Any:
    return [layer for name, layer in policy.patcher.model.diffusion_model.named_modules() if name.endswith("lora_A.default")][index]


def test_a_gradient_lost_on_the_way_is_noticed(bench):
    policy = bench.policy(checkpoint=True)
    layer = lora_layer(policy, 2)
    whole = layer.forward
    layer.forward = lambda x: whole(x).detach()
    assert failures(examine(policy, probe(bench))) == {"tensors without gradient"}


@pytest.mark.parametrize("spoil", [lambda g: 1.2 * g, lambda g: -g, torch.zeros_like], ids=["too large", "turned round", "zero"])
def test_one_wrong_gradient_among_many_is_noticed(bench, spoil):
    policy = bench.policy(checkpoint=True)
    lora_layer(policy, 2).weight.register_hook(spoil)
    assert failures(examine(policy, probe(bench))) & {"tensors without gradient", "finite difference"}


def test_nan_is_refused_and_nothing_else_is_measured(bench):
    policy = bench.policy(checkpoint=True)
    lora_layer(policy, 0).weight.register_hook(lambda g: g * float("nan"))
    findings = examine(policy, probe(bench))
    assert failures(findings) == {"gradients"} and len(findings) == 1
    assert "NaN or infinite in 1 of 14 LoRA tensors" in refusal(findings)


def test_keys_the_stock_loader_does_not_know_are_refused(bench):
    policy = bench.policy(checkpoint=True)
    policy._key_map = {key: value for key, value in policy._key_map.items() if "joint_blocks.0.x_block.attn.qkv" not in key}
    assert failures(examine(policy, probe(bench))) == {"keys"}


def test_too_little_memory_is_no_verdict(bench, monkeypatch):
    policy = bench.policy(checkpoint=True)
    whole = policy.checkpointed

    def small(on: bool | None) -> Any:
        if on is False:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(on)

    monkeypatch.setattr(policy, "checkpointed", small)
    (finding,) = [f for f in examine(policy, probe(bench)) if f.passed is None]
    assert finding.name == "checkpointing" and "memory does not suffice" in finding.figure

    @contextmanager
    def full() -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    monkeypatch.setattr(policy, "exact", full)
    (finding,) = examine(policy, probe(bench))
    assert (finding.name, finding.passed) == ("gradients", None) and refusal([finding]) is None


def test_the_policy_keeps_its_weights_even_when_the_check_fails_midway(bench, monkeypatch):
    policy = bench.policy(checkpoint=True)
    before = policy.weights()
    monkeypatch.setattr(policy, "matched_keys", lambda tensors: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        examine(policy, probe(bench))
    assert all(torch.equal(weight, before[name]) for name, weight in policy.weights().items())


def test_computing_in_fp32_leaves_no_marks_on_the_layers(bench):
    policy = bench.backend.ComfyPolicy(bench.patcher(torch.bfloat16), bench.job(), checkpoint=True)
    marked = lambda: [name for name, layer in policy.patcher.model.diffusion_model.named_modules() if hasattr(layer, "prev_comfy_cast_weights")]
    with policy.exact(), bench.open(policy):
        assert marked()
    assert not marked()


def test_stirring_makes_the_lora_felt_whatever_its_scale(bench):
    policy = bench.policy()
    bench_gradients = gradients(policy, probe(bench))
    assert distance(bench_gradients, bench_gradients) == 0
    moved = stirred(policy.weights())
    for name, a in moved.items():
        if "lora_A" in name:
            product = moved[name.replace("lora_A", "lora_B")].double() @ a.double()
            assert product.std() * a.shape[1] ** 0.5 == pytest.approx(0.1, rel=0.4)


# the whole way, as from the command line


def whole(bench: Bench, dtype: torch.dtype = torch.float32, scaled: str = "", cfg: float = 1.0) -> list:
    from stepwise_grpo.training.backends.whole_check import Setting, check_model

    return list(check_model(lambda: bench.patcher(dtype, scaled), Setting(bench.job(), size=64, cfg=cfg)))


@each
@pytest.mark.parametrize("cfg", [1.0, 4.0])
def test_the_whole_check_passes_with_a_made_up_prompt(bench, cfg):
    findings = whole(bench, cfg=cfg)
    print(findings)
    assert [finding.name for finding in findings][0] == "flow matching" and findings[-1].name == "stock loader"
    assert len(findings) == 12 and refusal(findings) is None


@each
@pytest.mark.parametrize("dtype, scaled", [(torch.bfloat16, ""), (FP8, ""), (FP8, "described")], ids=["bf16", "fp8", "quantised"])
def test_the_whole_check_passes_in_other_precisions(bench, dtype, scaled):
    findings = whole(bench, dtype, scaled)
    print(findings)
    assert refusal(findings) is None


@each
def test_a_file_that_means_another_lora_is_refused(bench, monkeypatch):
    from stepwise_grpo.training import lora

    save = lora.save
    twice = lambda weights, *rest: save({name: w * (2 if "lora_B" in name else 1) for name, w in weights.items()}, *rest)
    monkeypatch.setattr(lora, "save", twice)
    assert failures(whole(bench)) == {"stock loader"}
