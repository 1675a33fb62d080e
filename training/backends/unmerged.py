"""A LoRA beside the weights instead of in them: right for fp8 weights, into which merging rounds a small LoRA away.

The layers' forwards are replaced by object patches of a clone. ComfyUI sets them when the clone is loaded and takes
them back when another clone of the model is; the module itself, which all clones share, gets no new parts.
"""

# ruff: noqa: I001 - lora_files comes first: it lets ComfyUI read its command line before any other import of comfy

from collections.abc import Callable
from typing import Any

from .lora_files import Factors, factors

import comfy.lora
import comfy.quant_ops
import torch
import torch.nn.functional as F
from comfy.patcher_extension import CallbacksMP
from torch import Tensor

from ..lora import PREFIX, is_linear, linear_shapes

ROUNDS_LITTLE = (torch.float32, torch.float16, torch.bfloat16)


class LoRAForward:
    """The forward of one linear layer with a LoRA: what the layer gives, plus strength B A x in fp32, as the trainer computes it."""

    def __init__(self, forward: Callable[..., Tensor], down: Tensor, up: Tensor, strength: float) -> None:
        """``down`` (rank, in) and ``up`` (out, rank) in fp32."""
        self._forward, self._down, self._up, self._strength = forward, down, up, strength

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self._down.device != x.device:
            self._down, self._up = self._down.to(x.device), self._up.to(x.device)
        out = self._forward(x, *args, **kwargs)
        return (out + F.linear(F.linear(x.float(), self._down), self._up) * self._strength).to(out.dtype)


    def leave(self) -> None:
        """A and B to RAM; ComfyUI does not know of them and could not free their memory."""
        self._down, self._up = self._down.cpu(), self._up.cpu()


def read_factors(patcher: Any, tensors: dict[str, Tensor]) -> Factors:
    """A and B of a LoRA file on this model; ``Unfit`` where it does not fit."""
    return factors(tensors, comfy.lora.model_lora_keys_unet(patcher.model, {}), linear_shapes(patcher.model.diffusion_model))


def with_unmerged_lora(patcher: Any, found: Factors, strength: float) -> Any:
    """A clone on which the LoRA works beside the weights."""
    clone = patcher.clone()
    for layer, (down, up) in found.items():
        name = f"{PREFIX}{layer}.forward"
        forward = LoRAForward(clone.get_model_object(name), down, up, strength)
        clone.add_object_patch(name, forward)
        clone.add_callback(CallbacksMP.ON_DETACH, lambda patcher, whole, forward=forward: forward.leave())
    return clone


def merging_rounds(patcher: Any) -> bool:
    """Whether the model has weights, fp8 or otherwise quantised, into which a LoRA cannot be merged without much rounding."""
    weights = (layer.weight for layer in patcher.model.diffusion_model.modules() if is_linear(layer) and layer.weight is not None)
    return any(isinstance(w, comfy.quant_ops.QuantizedTensor) or w.dtype not in ROUNDS_LITTLE for w in weights)
