"""What ComfyUI's devices have and what a model wants of them, in the terms of ``training.capacity``."""

from typing import Any

import comfy.model_management as devices
import torch

from ..capacity import Demand, Fit, Room, fit, rows_wanted
from ..config import Job
from ..experience import Experience
from .estimate import RowCost
from .gradients import transformer_blocks

AVERAGES = {"adamw": 8, "adamw8bit": 3}  # bytes of the optimiser for each number of the LoRA
UNSEEN = 0.05  # share of a graphics card for what no estimate sees: kernels' own buffers, gaps between blocks
RAM_LEFT = 0.5  # share of the RAM for the system and for the graph, which holds the model as well


def room_of(patcher: Any, checkpointing: bool) -> Room:
    """The memory of the device that the model computes on."""
    device, total = patcher.load_device, int(devices.get_total_memory(patcher.load_device))
    if device.type in ("cpu", "mps"):
        return Room(total=total, reserve=int(total * RAM_LEFT))
    streaming = (devices.VRAMState.LOW_VRAM, devices.VRAMState.NORMAL_VRAM, devices.VRAMState.NO_VRAM)
    return Room(
        total=total,
        reserve=int(devices.minimum_inference_memory() + total * UNSEEN),
        # Without checkpointing backward would keep the copy of every weight that came from RAM.
        streams=checkpointing and devices.vram_state in streaming,
        kept=float(getattr(devices, "MIN_WEIGHT_MEMORY_RATIO", 0.4)),
    )


def demand_of(patcher: Any, cost: RowCost, parameters: list[torch.Tensor], optimiser: str) -> Demand:
    """What the model's update keeps in memory."""
    numbers = sum(parameter.numel() for parameter in parameters)
    lora = 4 * numbers
    model = patcher.model
    compute = model.manual_cast_dtype or model.get_dtype()
    blocks = [sum(p.numel() for p in block.parameters()) for block in transformer_blocks(model.diffusion_model)]
    return Demand(
        weights=devices.module_size(model) - lora,
        lora=(4 + 4 + AVERAGES[optimiser]) * numbers,
        fixed=cost.fixed,
        row=cost.row,
        block=max(blocks, default=0) * torch.empty(0, dtype=compute).element_size(),
        measured=cost.measured,
    )


def fit_of(patcher: Any, parameters: list[torch.Tensor], job: Job, cost: RowCost, e: Experience, checkpointing: bool) -> Fit:
    """How many rows of the experience fit."""
    demand = demand_of(patcher, cost, parameters, job.optimiser)
    wanted = rows_wanted(len(e.schedule.stochastic), e.states.shape[1], e.group_size, e.settings.updates)
    return fit(demand, room_of(patcher, checkpointing), wanted, e.settings.rows_per_call, advice(patcher, demand, e.cfg, checkpointing))


def rows_of_rollout(patcher: Any, shape: list[int], cfg: float, most: int = 64) -> int:
    """How many latents of ``shape`` (of one) go through the network at once without gradients, by ComfyUI's own measure; at least 1."""
    row = int(patcher.memory_required([1 if cfg == 1 else 2, *shape]))
    demand = Demand(weights=patcher.model_size(), lora=0, fixed=0, row=max(row, 1), block=0)
    return max(1, fit(demand, room_of(patcher, checkpointing=True), wanted=most).rows)


def advice(patcher: Any, demand: Demand, cfg: float, checkpointing: bool) -> list[str]:
    """What would make it smaller, the most effective first."""
    numbers = sum(p.numel() for p in patcher.model.diffusion_model.parameters())
    found = {
        "set checkpointing to on in GRPO LoRA Trainer": not checkpointing,
        "take the model in fp8": demand.weights > 1.5 * numbers,
        "set cfg to 1 in Stepwise SDE Sampler": cfg != 1,
        "make the pictures smaller": True,
        "start a run with a smaller rank": demand.lora > demand.row,
    }
    return [hint for hint, helps in found.items() if helps]
