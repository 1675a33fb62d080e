"""One network twice, as diffusers and as ComfyUI have it, with the same weights. Imports either only when asked."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepwise_grpo.tests import pipelines
from stepwise_grpo.tests.architectures import ARCHITECTURES as COMFY
from stepwise_grpo.tests.architectures import Architecture, detection_of
from stepwise_grpo.training.backends.diffusers.architectures import ARCHITECTURES
from stepwise_grpo.training.comfyui import prepare

SAME = {"sd3": "sd35", "flux": "flux", "qwen_image": "qwen_image", "z_image": "z_image", "wan": "wan21"}  # names of tests/architectures.py


def comfy_architecture(name: str) -> Architecture:
    """As in tests/architectures.py, with the sizes of tests/pipelines.py where these differ.

    Qwen-Image counts places from the middle, and with an odd number of patches ComfyUI's middle is another than diffusers'.
    """
    found = COMFY[SAME[name]]
    if name == "flux":
        return replace(found, pooled=16, config=found.config | {"vec_in_dim": 16})
    return replace(found, latent=(16, 1, 4, 8)) if name == "qwen_image" else found


def network_of(name: str) -> nn.Module:
    network = pipelines.make(name).transformer
    if name == "z_image":
        # Two widths that diffusers and ComfyUI agree on for the released model only: ComfyUI rounds up to 256s, diffusers does not.
        from diffusers.models.transformers.transformer_z_image import FeedForward, TimestepEmbedder

        network.t_embedder = TimestepEmbedder(256, mid_size=256)
        for block in (*network.layers, *network.noise_refiner, *network.context_refiner):
            block.feed_forward = FeedForward(256, 768)
    return network


def checkpoint_of(name: str, network: nn.Module, config: dict[str, Any]) -> dict[str, Tensor]:
    """The network's weights under ComfyUI's names, by ComfyUI's own maps; they fuse q, k and v and swap scale and shift."""
    import comfy.utils

    given, found = dict(network.state_dict()), {}
    if name == "qwen_image":
        return given
    if name == "wan":
        return {wan_name(key): weight for key, weight in given.items()}
    maps = {"sd3": comfy.utils.mmdit_to_diffusers, "flux": comfy.utils.flux_to_diffusers, "z_image": comfy.utils.z_image_to_diffusers}
    for key, target in maps[name](config).items():
        if key not in given:
            continue
        to, where, change = (target, None, None) if isinstance(target, str) else (*target, None)[:3]
        weight = given.pop(key) if change is None else change(given.pop(key))
        found.setdefault(to, []).append((where[1] if where else 0, weight))
    assert not given
    return {to: torch.cat([weight for _, weight in sorted(parts, key=lambda part: part[0])]) for to, parts in found.items()}


def wan_name(key: str) -> str:
    """As the released checkpoints are named. Norms 2 and 3 of a block have each other's names."""
    key = ARCHITECTURES["wan"].file_name(key)
    key = {"scale_shift_table": "head.modulation"}.get(key, key.replace("scale_shift_table", "modulation"))
    return key.replace("attn1.", "self_attn.").replace("attn2.", "cross_attn.").replace(".norm2.", ".norm3.")


def patcher_of(name: str, network: nn.Module) -> Any:
    """What ComfyUI's stock loader makes of the network's weights."""
    import comfy.sd

    architecture = comfy_architecture(name)
    with detection_of(architecture), torch.no_grad():
        return comfy.sd.load_diffusion_model_state_dict({key: weight.clone() for key, weight in checkpoint_of(name, network, architecture.config).items()})


def stock(patcher: Any, data: bytes, folder: Path) -> Any:
    import comfy.sd
    import comfy.utils

    path = folder / "version.safetensors"
    path.write_bytes(data)
    return comfy.sd.load_lora_for_models(patcher, None, comfy.utils.load_torch_file(str(path), safe_load=True), 1.0, 0)[0]


def layers_loaded(name: str, comfyui: Path, tensors: dict[str, Tensor]) -> int:
    """How many layers of a version file ComfyUI's own loader recognises. Imports ComfyUI into this process."""
    with in_process(comfyui):
        import comfy.lora

        known = comfy.lora.model_lora_keys_unet(patcher_of(name, pipelines.make(name).transformer).model, {})
        return len(comfy.lora.load_lora(dict(tensors), known, log_missing=False))


@contextmanager
def in_process(comfyui: Path) -> Iterator[None]:
    """Inside it ``import comfy`` means that ComfyUI, on the CPU."""
    argv = sys.argv
    prepare({"root": str(comfyui), "argv": ["--cpu"]}, None)
    try:
        from stepwise_grpo.training.backends import comfy  # noqa: F401 - tells ComfyUI to read this command line

        yield
    finally:
        sys.argv = argv
