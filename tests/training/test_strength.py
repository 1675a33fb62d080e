"""Strength in every loader is strength in training: at s it gives the trainer's model with s times its B."""

from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
from torch import Tensor

from stepwise_grpo.tests.architectures import ARCHITECTURES
from stepwise_grpo.training import lora

Loader = Callable[[Any, dict[str, Tensor], float], Any]


def merged(patcher: Any, tensors: dict[str, Tensor], strength: float) -> Any:
    """Load LoRA, Load LoRA (Model), and Live LoRA merged."""
    import comfy.sd

    return comfy.sd.load_lora_for_models(patcher, None, tensors, strength, 0)[0]


def bypass(patcher: Any, tensors: dict[str, Tensor], strength: float) -> Any:
    """Load LoRA (Bypass) of newer ComfyUI."""
    import comfy.sd

    if not hasattr(comfy.sd, "load_bypass_lora_for_models"):
        pytest.skip("this ComfyUI has no such loader")
    return comfy.sd.load_bypass_lora_for_models(patcher, None, tensors, strength, 0)[0]


def unmerged(patcher: Any, tensors: dict[str, Tensor], strength: float) -> Any:
    """Live LoRA unmerged."""
    from stepwise_grpo.training.backends.unmerged import read_factors, with_unmerged_lora

    return with_unmerged_lora(patcher, read_factors(patcher, tensors), strength)


@pytest.mark.parametrize("bench", ARCHITECTURES, indirect=True)
@pytest.mark.parametrize("load", [merged, bypass, unmerged])
def test_a_version_at_a_strength_is_the_trainers_lora_at_that_strength(bench, load: Loader, figure):
    policy = bench.policy()
    tensors, trained = safetensors.torch.load(lora.save(policy.weights(), policy.job, {"run": "test", "version": 1})), policy.weights()
    for strength in (1.0, 0.5):
        policy.set_weights({name: w * (strength if "lora_B" in name else 1) for name, w in trained.items()})
        live = bench.velocity(load(bench.patcher(), dict(tensors), strength))
        assert figure(f"strength {strength:g}", (live - bench.velocity(policy)).abs().max().item()) <= 1e-4
    assert (bench.velocity(load(bench.patcher(), dict(tensors), 1.0)) - bench.velocity(policy)).abs().max() > 1e-3  # the two differ
