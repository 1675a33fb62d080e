"""The flow model's network: ComfyUI's own SD3 transformer, small, and its initial weights."""

import comfy.ops
import torch
from comfy.ldm.modules.diffusionmodules.mmdit import OpenAISignatureMMDITWrapper
from torch import nn

from ..codec import CHANNELS
from ..words import WIDTH

DEPTH = 2  # blocks; the hidden size is 64 times that
ZERO = ("adaLN_modulation.1", "final_layer.linear")  # start as the identity


def build(depth: int = DEPTH) -> nn.Module:
    """A network with fresh weights, float32, called as net(x, 1000 * t, context=cond, y=pooled)."""
    context = {"target": "torch.nn.Linear", "params": {"in_features": WIDTH, "out_features": 64 * depth}}
    net = OpenAISignatureMMDITWrapper(
        input_size=None, patch_size=2, in_channels=CHANNELS, depth=depth, adm_in_channels=WIDTH,
        context_embedder_config=context, dtype=torch.float32, operations=comfy.ops.disable_weight_init,
    )  # fmt: skip
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight.flatten(1))
            nn.init.zeros_(module.bias)
            if name.endswith(ZERO):
                nn.init.zeros_(module.weight)
    return net


def velocity(net: nn.Module, x: torch.Tensor, t: torch.Tensor, cond: torch.Tensor, pooled: torch.Tensor):
    """v (B, 16, 16, 16) at states x and times t (B,)."""
    return net(x, t * 1000, context=cond, y=pooled)
