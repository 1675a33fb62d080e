"""What one row of an update costs in memory, computed before the run on a twin of the network that has no weights.

A row is one state under its prompt with forward and backward; with guidance it is two, because the network also sees
the negative prompt. Where a network's course depends on its numbers (experts, masks), one real row is measured instead.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import comfy.model_management
import torch
from torch import Tensor, nn

from .gradients import Switch, checkpoint_blocks, transformer_blocks
from .memory import peak_of, replaced

META = torch.device("meta")


@dataclass(frozen=True)
class RowCost:
    """Bytes on top of weights, LoRA, its gradients and optimiser: ``fixed`` once a call, ``row`` for each of its rows.

    A first row that is cheaper than the others makes ``fixed`` negative.
    """

    fixed: int
    row: int
    measured: bool = False
    """Whether one real row was measured, because the network cannot run without numbers."""

    def of(self, rows: int) -> int:
        return self.fixed + rows * self.row


def estimate(twin: Any, device: torch.device, velocity: Any, shape: list[int]) -> RowCost:
    """The cost of latents of ``shape`` (of one) on ``device``. ``velocity`` is the twin under its prompts; raises where it cannot run without numbers."""
    parameters = [parameter for parameter in twin.model.diffusion_model.parameters() if parameter.requires_grad]
    memory = comfy.model_management.get_total_memory(device)
    with replaced(comfy.model_management, "get_free_memory", _free_memory(memory)):
        one, two = (_peak(velocity, parameters, shape, rows) for rows in (1, 2))
    row = max(1, two - one)
    return RowCost(one - row, row)


def measure(velocity: Any, parameters: list[Tensor], shape: list[int]) -> RowCost:
    """The cost by one real row; all of it counts for every row."""
    return RowCost(0, _peak(velocity, parameters, shape, 1), measured=True)


def _peak(velocity: Any, parameters: list[Tensor], shape: list[int], rows: int) -> int:
    return peak_of(velocity, parameters, torch.ones(rows, *shape), torch.full((rows,), 0.5), torch.zeros(rows, dtype=torch.long))


def _free_memory(memory: int) -> Callable[..., Any]:
    """ComfyUI asks it to choose batches and slices. It knows no device without memory, and what is free at the moment must not count."""
    return lambda dev=None, torch_free_too=False: (memory, memory) if torch_free_too else memory


def twin_of(patcher: Any, switch: Switch) -> Any:
    """What ``ModelVelocity`` needs of a patcher, with a copy of the network on the device meta: same layers, same LoRA, no memory.

    Made before the model is loaded: afterwards ComfyUI's own functions on weights would be copied with what they hold.
    """
    model = copy.copy(patcher.model)
    model._modules = {**model._modules, "diffusion_model": _without_content(patcher.model.diffusion_model, switch)}
    model.device, model.current_patcher = META, patcher
    return SimpleNamespace(model=model, load_device=META, model_options=patcher.model_options)


def _without_content(network: nn.Module, switch: Switch) -> nn.Module:
    memo: dict[int, Any] = {id(p): nn.Parameter(_empty(p), requires_grad=p.requires_grad) for p in network.parameters()}
    memo.update({id(buffer): _empty(buffer) for buffer in network.buffers()})
    twin = copy.deepcopy(network, memo)
    for block in transformer_blocks(twin):
        vars(block).pop("forward", None)  # it belongs to the original block
    checkpoint_blocks(twin, switch)
    return twin


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor.detach(), device=META)
