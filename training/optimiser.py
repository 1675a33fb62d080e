"""The optimiser of a LoRA: made by name, moved with its weights, and its state as tensors for a file.

AdamW8bit is that of the package bitsandbytes, which is used where the artist has it and never installed by this pack.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .base import Unfit
from .config import UpdateSettings
from .policy import Policy


def make_optimiser(policy: Policy, settings: UpdateSettings | None = None, kind: str = "adamw") -> torch.optim.Optimizer:
    """``kind`` over the LoRA; learning rate and decay come with each experience (``tune``)."""
    optimiser = class_of(kind)(policy.parameters())
    if settings is not None:
        tune(optimiser, settings)
    return optimiser


def class_of(kind: str) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    """The optimiser's class; ``Unfit`` with the remedy where its package is missing."""
    if kind == "adamw":
        return torch.optim.AdamW
    try:
        from bitsandbytes.optim import AdamW8bit
    except Exception as error:  # a package built for another graphics card fails in its own ways
        raise Unfit(
            f"the optimiser {kind!r} needs the package bitsandbytes, which does not load here ({error}). Install it with the Python that runs the trainer "
            "(pip install bitsandbytes) and start the trainer again, or set optimiser to adamw"
        ) from error
    return AdamW8bit


def tune(optimiser: torch.optim.Optimizer, settings: UpdateSettings) -> None:
    """Take the step size and decay of this experience."""
    for group in optimiser.param_groups:
        group["lr"], group["weight_decay"] = settings.learning_rate, settings.weight_decay


def follow_weights(optimiser: torch.optim.Optimizer) -> None:
    """Bring the averages to where their weights are. Single numbers, such as the step count, stay."""
    for parameter, state in optimiser.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dim():
                state[key] = value.to(parameter.device)


def state_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything an optimiser remembers, as {index of the parameter/name: tensor}; a plain number becomes a tensor without dimensions."""
    state = [optimiser.state.get(parameter, {}) for parameter in _parameters(optimiser)]
    return {f"{i}/{key}": torch.as_tensor(value).detach().cpu().clone().contiguous() for i, entry in enumerate(state) for key, value in entry.items()}


def set_state(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """What ``state_tensors`` gave, to the bit."""
    parameters = _parameters(optimiser)
    for name, tensor in tensors.items():
        index, key = name.split("/")
        whole = not tensor.dim() and not tensor.is_floating_point()  # a step count that was a plain number
        value: Any = tensor.item() if whole else tensor.clone()
        optimiser.state[parameters[int(index)]][key] = value
    follow_weights(optimiser)


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
