"""Networks of a given size with random weights or none, behind ComfyUI's patcher, without a file."""

import math
from typing import Any

import torch

from .sizes import Size

FP8 = torch.float8_e4m3fn


def patcher_of(size: Size, dtype: torch.dtype, device: torch.device, load_device: torch.device | None = None, seed: int = 0) -> Any:
    """``size`` with weights of ``dtype`` on ``device``; random ones, unless the device is meta. fp8 computes in bf16."""
    import comfy.model_patcher
    import comfy.supported_models
    from comfyui_version import __version__

    newer = [int(number) for number in __version__.split(".")[:2]] > [0, 3]
    config = getattr(comfy.supported_models, size.model)(size.config | (size.newer if newer else {}))
    config.set_inference_dtype(dtype, torch.bfloat16 if dtype == FP8 else None)
    with torch.inference_mode(False):
        model = config.get_model({}, "", device=device)
        if device.type != "meta":
            fill(model.diffusion_model, seed)
    return comfy.model_patcher.ModelPatcher(model, load_device=load_device or device, offload_device=torch.device("cpu"))


@torch.no_grad()
def fill(network: torch.nn.Module, seed: int) -> None:
    """Random weights of a size that gives outputs of order 1, one tensor at a time where it lies."""
    generators: dict[torch.device, torch.Generator] = {}
    for name, tensor in network.state_dict().items():
        generator = generators.setdefault(tensor.device, torch.Generator(tensor.device).manual_seed(seed))
        noise = torch.randn(tensor.shape, generator=generator, device=tensor.device)
        if tensor.dim() == 2:
            tensor.copy_(noise.mul_(0.7 / math.sqrt(tensor.shape[1])))
        else:
            tensor.copy_(noise.mul_(0.08).add_(1 if "norm" in name and name.endswith((".weight", ".scale")) else 0))


def parameters_of(patcher: Any) -> int:
    return sum(parameter.numel() for parameter in patcher.model.diffusion_model.parameters())
