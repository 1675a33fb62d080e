"""The velocity of a ComfyUI model, the same for graph and trainer.

The network is called through the same ``sampling_function`` that the stock samplers use, so guidance, dtype casts and
conditioning are those of ComfyUI, in the rollout and in the update.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import comfy.model_management
import comfy.sampler_helpers
import comfy.samplers
import torch
from torch import Tensor

from ..conditioning import ConditioningBatcher


@contextmanager
def ready(patcher: Any, shape: list[int], memory: int = 0) -> Iterator[None]:
    """The model on its device with its patches, for direct calls; cleaned up afterwards.

    ``shape``: of one batch of latents. ``memory``: bytes to leave beside the weights, where more is known than the shape.
    """
    with torch.no_grad():  # ComfyUI patches scaled fp8 weights with out= kernels, which refuse gradients
        comfy.model_management.load_models_gpu([patcher], memory_required=max(memory, patcher.memory_required(shape)))
    patcher.pre_run()
    try:
        yield
    finally:
        patcher.cleanup()


class ModelVelocity:
    """The velocity of a ComfyUI model at states x (N, ...) and times t (N,) under the prompts rows (N,).

    Call it inside ``ready``. ``tick`` is called with the number of rows after every network call.
    """

    # v = (x - x0_hat) / t

    def __init__(self, patcher: Any, prompts: list[list], negative: list, cfg: float, tick: Callable[[int], None] | None = None, rows_per_call: int = 1 << 30) -> None:
        self._patcher, self._negative, self._cfg, self._tick, self._limit = patcher, negative, cfg, tick, rows_per_call
        self._batcher = ConditioningBatcher(prompts)

    def __call__(self, x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
        return self._batcher.each(rows, self._limit, lambda where, conditioning: self._call(x[where], t[where], conditioning))

    def _call(self, x: Tensor, t: Tensor, conditioning: list) -> Tensor:
        patcher, device = self._patcher, self._patcher.load_device
        x, t = x.to(device, torch.float32), t.to(device, torch.float32)
        conds = {name: comfy.sampler_helpers.convert_cond(entries) for name, entries in (("positive", conditioning), ("negative", self._negative))}
        conds = comfy.samplers.process_conds(patcher.model, x, conds, device, torch.zeros_like(x), None, 0)
        x0 = comfy.samplers.sampling_function(patcher.model, x, t, conds["negative"], conds["positive"], self._cfg, model_options=patcher.model_options)
        if self._tick is not None:
            self._tick(len(x))
        return (x - x0) / t.reshape(-1, *[1] * (x.dim() - 1))


@contextmanager
def kernels_with_backward() -> Iterator[None]:
    """Newer ComfyUI has kernels without a backward and a flag that avoids them; older ones have neither.

    Old densities are computed under the flag as well: with other kernels the ratio would not start at 1.
    """
    before = getattr(comfy.model_management, "in_training", None)
    if before is None:
        yield
        return
    comfy.model_management.in_training = True
    try:
        yield
    finally:
        comfy.model_management.in_training = before
