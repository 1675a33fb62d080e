"""The frozen base spread over the processes' devices (FSDP), each holding a part of every layer; the LoRA stays whole in each."""

from typing import Any

from torch import nn

from ... import lora


def shard(network: nn.Module, offload: bool = False, device_mesh: Any = None) -> None:
    """Split every tensor of the base among the processes; a block's tensors are gathered when it is called.

    ``network`` has its LoRA already, on the device it is trained on. ``offload``: keep the parts in RAM.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    whole = set(lora.tensors(network).values())
    options = {"ignored_params": whole, "mesh": device_mesh, "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy()}
    for block in _blocks(network):
        fully_shard(block, **options)
    fully_shard(network, **options)


def _blocks(network: nn.Module) -> list[nn.Module]:
    """The transformer blocks, as diffusers names their classes for splitting."""
    return [module for module in network.modules() if type(module).__name__ in (network._no_split_modules or ())]
