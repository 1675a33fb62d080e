"""Right gradients inside ComfyUI's own networks, which are written for inference.

Several of them (Flux, Flux.2, Chroma, Hunyuan, LTX) overwrite the residual stream in place although autograd still
needs it. Plain autograd then refuses. Checkpointing does not: it recomputes from the overwritten tensor, or saves one
that is overwritten before its backward, and the gradients are wrong without an error. So what autograd saves, and what
checkpointing keeps, is never the residual stream itself but a copy of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import comfy.ldm.common_dit
import comfy.ldm.lightricks.model
import comfy.rmsnorm
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from ..lora import is_linear


@dataclass
class Switch:
    """Something that can be turned on and off while it is in use."""

    on: bool


def prepare_gradients(module: nn.Module, checkpointing: Switch) -> None:
    """Make the gradients of LoRA layers in ``module`` right, once and for its whole life. No output changes."""
    _copy_inputs(module)
    checkpoint_blocks(module, checkpointing)


def checkpoint_blocks(module: nn.Module, checkpointing: Switch) -> None:
    """Where ``checkpointing`` is on at a call, keep only the inputs of transformer blocks and compute the blocks again in backward.

    Gradients stay the same, forward and backward take about a third longer, and of each block only its inputs remain in
    memory. Where ComfyUI casts weights for every call (fp8, weights in RAM), autograd would otherwise keep all the casts.
    """
    for block in transformer_blocks(module):
        block.forward = _checkpointed(block.forward, checkpointing)


def transformer_blocks(module: nn.Module) -> list[nn.Module]:
    """The network's blocks by structure: the outermost elements of module lists that hold several linear layers."""
    blocks = []
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            blocks += [element for element in child if sum(map(is_linear, element.modules())) > 1]
        else:
            blocks += transformer_blocks(child)
    return blocks


def _copy_inputs(module: nn.Module) -> None:
    """Layers that save their input for backward get a copy wherever that input may be the residual stream."""
    cross_attention = comfy.ldm.lightricks.model.CrossAttention  # its LoRA layers save the residual stream, without a norm between
    for layer in module.modules():
        if isinstance(layer, (nn.LayerNorm, cross_attention)):
            layer.register_forward_pre_hook(_copy_first)
        if isinstance(layer, cross_attention):
            comfy.ldm.common_dit.rms_norm = _rms_norm  # LTX calls it as a function: there is no layer to hook


def _copy_first(layer: nn.Module, args: tuple) -> tuple:
    return (args[0].clone(), *args[1:]) if torch.is_grad_enabled() else args


def _rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """ComfyUI's, on a copy where it normalises the residual stream: there it has no weight, on queries and keys it has."""
    saves_residual = weight is None and torch.is_grad_enabled()
    return comfy.rmsnorm.rms_norm(x.clone() if saves_residual else x, weight, eps)


def _checkpointed(forward: Callable[..., Any], checkpointing: Switch) -> Callable[..., Any]:
    """``forward``, computed again in backward from its inputs as they were."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not (checkpointing.on and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        # The network goes on writing into transformer_options (block_index); backward must see what this block saw.
        kept = [dict(value) if isinstance(value, dict) else value for value in (*args, *kwargs.values())]

        def run(*values: Any) -> Any:
            copies = [value.clone() if isinstance(value, Tensor) else value for value in values]
            return forward(*copies[: len(args)], **dict(zip(kwargs, copies[len(args) :], strict=True)))

        # All inputs go by position: only these are checked for having been overwritten meanwhile. Nothing in a block is random.
        return recompute_in_backward(run, *kept, use_reentrant=False, preserve_rng_state=False)

    return call
