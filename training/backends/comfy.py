"""ComfyUI's own models as a ``Policy``, the same for graph and trainer. Nothing in training/ outside this folder imports comfy.

The network is called through the same ``sampling_function`` that the stock samplers use, so guidance, dtype casts and
conditioning are those of ComfyUI, in the rollout and in the update.
"""

# ruff: noqa: I001 - loading comes first: it lets ComfyUI read its command line before any other import of comfy

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .loading import check_flow_matching, load_base

import comfy.lora
import comfy.model_management
import comfy.sampler_helpers
import comfy.samplers
import torch
from torch import Tensor, nn

from .. import lora
from ..conditioning import ConditioningBatcher
from ..config import Job
from .gradients import prepare_gradients
from .stacking import follow_layers


@contextmanager
def ready(patcher: Any, shape: list[int]) -> Iterator[None]:
    """The model on its device with its patches, for direct calls; cleaned up afterwards. ``shape``: of one batch of latents."""
    with torch.no_grad():  # ComfyUI patches scaled fp8 weights with out= kernels, which refuse gradients
        comfy.model_management.load_models_gpu([patcher], memory_required=patcher.memory_required(shape))
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


class ComfyPolicy:
    """A ComfyUI model with one trainable LoRA: a ``training.policy.Policy``.

    It owns its model: the layers of the LoRA go into the module itself, which is shared by every clone of a patcher.
    """

    def __init__(self, patcher: Any, job: Job, checkpoint: bool = False) -> None:
        """``checkpoint``: compute transformer blocks again in backward instead of keeping their activations."""
        check_flow_matching(patcher)
        self.patcher, self.job = patcher, job
        self._key_map = comfy.lora.model_lora_keys_unet(patcher.model, {})
        prepare_gradients(self._module, checkpoint)
        lora.inject(self._module, job)
        follow_layers(patcher)
        self._parameters = lora.tensors(self._module)
        self._velocity: ModelVelocity | None = None

    @property
    def _module(self) -> nn.Module:
        return self.patcher.model.diffusion_model

    @contextmanager
    def prompts(self, prompts: list[list], negative: list, cfg: float, shape: list[int], rows_per_call: int = 1 << 30) -> Iterator[None]:
        """The model ready to be called under these prompts."""
        with ready(self.patcher, shape), _kernels_with_backward():
            self._velocity = ModelVelocity(self.patcher, prompts, negative, cfg, rows_per_call=rows_per_call)
            try:
                yield
            finally:
                self._velocity = None

    def velocity(self, x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
        if self._velocity is None:
            raise RuntimeError("velocity is only defined inside prompts(...)")
        return self._velocity(x, t, rows)

    def parameters(self) -> list[Tensor]:
        return list(self._parameters.values())

    def weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().cpu().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def set_weights(self, weights: dict[str, Tensor]) -> None:
        if weights.keys() != self._parameters.keys():
            raise ValueError(f"this LoRA has {len(weights)} tensors, the model takes {len(self._parameters)}: it was made for another model, targets or pack version")
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])

    @contextmanager
    def base(self) -> Iterator[None]:
        lora.switch(self._module, on=False)
        try:
            yield
        finally:
            lora.switch(self._module, on=True)

    @contextmanager
    def training(self) -> Iterator[None]:
        with torch.enable_grad():
            yield

    def matched_keys(self, tensors: dict[str, Tensor]) -> tuple[int, int]:
        """How many of a version file's layers ComfyUI's own loader recognises, and of how many."""
        total = sum(name.endswith(".lora_A.weight") for name in tensors)
        return len(comfy.lora.load_lora(dict(tensors), self._key_map, log_missing=False)), total


@contextmanager
def _kernels_with_backward() -> Iterator[None]:
    """Newer ComfyUI has kernels without a backward and a flag that avoids them; older ones have neither.

    Old densities are computed under the flag as well: with other kernels the ratio would not start at 1.
    """
    flag = hasattr(comfy.model_management, "in_training")
    if flag:
        comfy.model_management.in_training = True
    try:
        yield
    finally:
        if flag:
            comfy.model_management.in_training = False


def open_policy(job: Job, checkpoint: bool | None = None) -> ComfyPolicy:
    """The job's base model with its LoRA. By default the blocks of any but the tiny demo model are computed again in backward.

    Loaded outside inference mode: inference tensors cannot take part in backward."""
    with torch.inference_mode(False):
        patcher = load_base(job.base)
        if patcher is None:
            raise ValueError(f"ComfyUI could not tell what kind of model {job.base.get('name')!r} is")
        return ComfyPolicy(patcher, job, job.base["kind"] != "demo" if checkpoint is None else checkpoint)
