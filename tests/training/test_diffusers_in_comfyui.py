"""The LoRA trained on a diffusers network means the same in ComfyUI: same base, same velocity, every key, same change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepwise_grpo.tests.architectures import Architecture
from stepwise_grpo.tests.twins import SAME, comfy_architecture, in_process, network_of, patcher_of, stock
from stepwise_grpo.training import lora
from stepwise_grpo.training.backends.diffusers.architectures import ARCHITECTURES
from stepwise_grpo.training.backends.diffusers.policy import DiffusersPolicy
from stepwise_grpo.training.config import Job

GUIDANCE, TOKENS = 4.0, 6  # 4: see tests/architectures.py
TIMES, ROWS = torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0, 1, 0])


@pytest.fixture(scope="module")
def backend(comfyui_folder: Path) -> Iterator[Any]:
    """ComfyUI in this process, on the CPU."""
    with in_process(comfyui_folder):
        from stepwise_grpo.training.backends import comfy as backend

        yield backend


@pytest.fixture(scope="module")
def pair(request, backend) -> tuple[str, Architecture, Any, nn.Module]:
    """An architecture: its name, ComfyUI's side of it, a patcher of the stock loader, and the diffusers network with the same weights."""
    network = network_of(request.param)
    return request.param, comfy_architecture(request.param), patcher_of(request.param, network), network


each = pytest.mark.parametrize("pair", SAME, indirect=True)


def prompts(architecture: Architecture, seeds: tuple[int, ...]) -> tuple[list[list], list[list]]:
    """The same prompts as ComfyUI's conditioning and as ours."""
    theirs, ours = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        text = torch.randn(1, TOKENS, architecture.width, generator=generator)
        pooled = torch.randn(1, architecture.pooled, generator=generator) if architecture.pooled else None
        mask = {"attention_mask": torch.ones(1, TOKENS, dtype=torch.long)} if architecture.mask else {}
        guidance = {"guidance": GUIDANCE} if "guidance" in architecture.plain else {}
        theirs.append([[text, {"pooled_output": pooled, **mask, **guidance}]])
        ours.append([[text, {} if pooled is None else {"pooled": pooled}]])
    return theirs, ours


@torch.no_grad()
def comfy_velocity(backend: Any, patcher: Any, architecture: Architecture, x: Tensor, cfg: float) -> Tensor:
    (*positive, negative), _ = prompts(architecture, (1, 2, 3))
    with backend.ready(patcher, list(x.shape)):
        return backend.ModelVelocity(patcher, positive, negative, cfg)(x, TIMES, ROWS)


@torch.no_grad()
def our_velocity(policy: DiffusersPolicy, architecture: Architecture, x: Tensor, cfg: float) -> Tensor:
    _, (*positive, negative) = prompts(architecture, (1, 2, 3))
    with policy.prompts(positive, negative, cfg, list(x.shape)):
        return policy.velocity(x, TIMES, ROWS)


def policy_of(name: str, network: nn.Module, targets: str) -> DiffusersPolicy:
    """On a network of its own, with a LoRA that does something."""
    import copy

    architecture = ARCHITECTURES[name]
    job = Job(base={"kind": "diffusers", "name": name, "prefix": architecture.prefix}, targets=targets, rank=4, alpha=8.0)
    policy = DiffusersPolicy(copy.deepcopy(network), architecture, job, torch.device("cpu"), GUIDANCE)
    generator = torch.Generator().manual_seed(9)
    policy.set_weights({key: torch.randn(w.shape, generator=generator) * (0.02 if "lora_B" in key else 0.25) for key, w in policy.weights().items()})
    return policy


@each
@pytest.mark.parametrize("targets", ["attention", "attention_mlp", "all"])
@pytest.mark.parametrize("cfg", [1.0, 3.0])
def test_a_version_file_loads_whole_in_comfyui_and_changes_the_velocity_alike(pair, backend, targets, cfg, tmp_path, caplog):
    name, architecture, patcher, network = pair
    if name == "qwen_image" and cfg != 1:
        pytest.skip("the pipeline of Qwen-Image keeps the length of the velocity under guidance, ComfyUI's sampler does not")
    x = torch.randn(3, *architecture.latent, generator=torch.Generator().manual_seed(5))
    policy = policy_of(name, network, targets)
    data = lora.save(policy.weights(), policy.job, {"run": "test", "version": 1})
    patched, layers = stock(patcher, data, tmp_path), len(policy.weights()) // 2
    assert "not loaded" not in caplog.text.lower()
    assert policy.matched_keys(lora.file_tensors(policy.weights(), policy.job.alpha, policy.job.base["prefix"])) == (layers, layers)
    with policy.base():
        base = our_velocity(policy, architecture, x, cfg)
    theirs = comfy_velocity(backend, patcher, architecture, x, cfg)
    assert base.std() > 0.1 and (base - theirs).abs().max() <= 1e-4 * max(1.0, base.abs().max().item())
    change = our_velocity(policy, architecture, x, cfg) - base
    assert change.abs().max() > 1e-2
    assert (comfy_velocity(backend, patched, architecture, x, cfg) - theirs - change).abs().max() <= 1e-4 * max(1.0, change.abs().max().item())


@each
def test_every_layer_is_known_to_comfyuis_key_map(pair, backend):
    import comfy.lora

    name, _, patcher, network = pair
    policy, known = policy_of(name, network, "all"), comfy.lora.model_lora_keys_unet(patcher.model, {})
    tensors = lora.file_tensors(policy.weights(), 8.0, ARCHITECTURES[name].prefix)
    layers = {key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")}
    assert layers and not layers - known.keys()
    assert len(comfy.lora.load_lora(dict(tensors), known, log_missing=False)) >= len({str(known[layer]) for layer in layers})


@each
def test_a_spoilt_scale_would_be_noticed(pair, backend, tmp_path):
    name, architecture, patcher, network = pair
    x, policy = torch.randn(3, *architecture.latent, generator=torch.Generator().manual_seed(5)), policy_of(name, network, "attention")
    doubled = {key: w * (2 if "lora_B" in key else 1) for key, w in policy.weights().items()}
    patched = stock(patcher, lora.save(doubled, policy.job, {}), tmp_path)
    assert (comfy_velocity(backend, patched, architecture, x, 1.0) - our_velocity(policy, architecture, x, 1.0)).abs().max() > 1e-3
