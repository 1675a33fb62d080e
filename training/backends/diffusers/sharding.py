"""The frozen base spread over the processes' devices (FSDP), each holding a part of every layer; the LoRA stays whole in each."""

from typing import Any

import torch
from torch import nn

from ... import lora


def shard(network: nn.Module, plugin: Any, device: torch.device) -> None:
    """Split every tensor of the base among the processes; a block's tensors are gathered when it is called.

    ``network`` has its LoRA and lies in RAM. ``plugin``: accelerate's FSDP settings; of version 2, whose tensors may differ in
    number format and in whether they are trained.
    """
    from torch.distributed.fsdp import fully_shard

    if plugin.fsdp_version != 2:
        raise ValueError("the accelerate configuration must say fsdp_version: 2; version 1 cannot keep the LoRA whole")
    whole = list(lora.tensors(network).values())
    for parameter in whole:
        parameter.data = parameter.data.to(device)
    options = {"ignored_params": set(whole), "reshard_after_forward": plugin.reshard_after_forward}
    if plugin.cpu_offload is not None:
        options["offload_policy"] = plugin.cpu_offload
    for block in _blocks(network):
        fully_shard(block, **options)
    fully_shard(network, **options)
    for buffer in network.buffers():
        buffer.data = buffer.data.to(device)


def _blocks(network: nn.Module) -> list[nn.Module]:
    """The transformer blocks, as diffusers names their classes for splitting."""
    return [module for module in network.modules() if type(module).__name__ in (network._no_split_modules or ())]
