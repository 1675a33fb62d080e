"""ComfyUI's own models as a ``Policy``, the same for graph and trainer. Nothing in training/ outside this folder imports comfy.

The network is called through the same ``sampling_function`` that the stock samplers use, so guidance, dtype casts and
conditioning are those of ComfyUI, in the rollout and in the update.
"""

# ruff: noqa: I001 - loading comes first: it lets ComfyUI read its command line before any other import of comfy

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from .loading import check_flow_matching, load_base

import comfy.lora
import comfy.model_management
import comfy.sampler_helpers
import comfy.samplers
import torch
from torch import Tensor, nn

from .. import lora
from ..capacity import Fit
from ..conditioning import ConditioningBatcher, longest, signature
from ..config import Job
from ..experience import Experience
from .estimate import RowCost, estimate, measure, twin_of
from .gradients import Switch, prepare_gradients
from .room import fit_of
from .stacking import follow_layers

log = logging.getLogger("stepwise_grpo")


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
        parts = [self._part(x, t, rows, chunk) for chunk in torch.arange(len(x)).split(self._limit)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _part(self, x: Tensor, t: Tensor, rows: Tensor, chunk: Tensor) -> Tensor:
        groups = self._batcher.split(rows[chunk])
        parts = [self._call(x[chunk][where], t[chunk][where], conditioning) for where, conditioning in groups]
        if self._tick is not None:
            self._tick(len(chunk))
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts)[torch.cat([where for where, _ in groups]).argsort()]

    def _call(self, x: Tensor, t: Tensor, conditioning: list) -> Tensor:
        patcher, device = self._patcher, self._patcher.load_device
        x, t = x.to(device, torch.float32), t.to(device, torch.float32)
        conds = {name: comfy.sampler_helpers.convert_cond(entries) for name, entries in (("positive", conditioning), ("negative", self._negative))}
        conds = comfy.samplers.process_conds(patcher.model, x, conds, device, torch.zeros_like(x), None, 0)
        x0 = comfy.samplers.sampling_function(patcher.model, x, t, conds["negative"], conds["positive"], self._cfg, model_options=patcher.model_options)
        return (x - x0) / t.reshape(-1, *[1] * (x.dim() - 1))


class ComfyPolicy:
    """A ComfyUI model with one trainable LoRA: a ``training.policy.Policy``.

    It owns its model: the layers of the LoRA go into the module itself, which is shared by every clone of a patcher.
    """

    def __init__(self, patcher: Any, job: Job, checkpoint: bool = False) -> None:
        """``checkpoint``: what the setting auto means, to compute transformer blocks again in backward or to keep their activations."""
        check_flow_matching(patcher)
        self.patcher, self.job = patcher, job
        self._key_map = comfy.lora.model_lora_keys_unet(patcher.model, {})
        self._auto, self._checkpointing = checkpoint, Switch(checkpoint)
        prepare_gradients(self._module, self._checkpointing)
        lora.inject(self._module, job)
        follow_layers(patcher)
        self._parameters = lora.tensors(self._module)
        self._velocity: ModelVelocity | None = None
        self._costs: dict[Any, RowCost] = {}
        self._twin: Any = None

    @property
    def _module(self) -> nn.Module:
        return self.patcher.model.diffusion_model

    @contextmanager
    def prompts(self, prompts: list[list], negative: list, cfg: float, shape: list[int], rows_per_call: int = 1 << 30, memory: int = 0) -> Iterator[None]:
        """The model ready to be called under these prompts. ``memory``: bytes to leave beside its weights."""
        with ready(self.patcher, shape, memory), _kernels_with_backward():
            self._move_lora(self.patcher.load_device)  # ComfyUI moves a model in parts and may leave layers it does not know behind
            self._velocity = ModelVelocity(self.patcher, prompts, negative, cfg, rows_per_call=rows_per_call)
            self._count_from_here()
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

    def set_checkpointing(self, setting: str) -> None:
        """on, off or auto, from the next call on."""
        self._checkpointing.on = self._auto if setting == "auto" else setting == "on"

    def rows_that_fit(self, experience: Experience) -> Fit:
        """How many rows of this experience one call takes on this policy's device. 0 where not even one fits; the message says why."""
        self.set_checkpointing(experience.settings.checkpointing)
        cost = self.row_cost(list(experience.states.shape[2:]), longest(experience.conditioning), experience.negative, experience.cfg)
        return fit_of(self.patcher, self.parameters(), self.job, cost, experience, self._checkpointing.on)

    def row_cost(self, shape: list[int], prompt: list, negative: list, cfg: float) -> RowCost:
        """Memory of a row: estimated, or measured once where the network cannot run without numbers. Remembered."""
        key = (tuple(shape), repr(signature([prompt, negative])), cfg == 1, self._checkpointing.on)
        if key not in self._costs:
            velocity = lambda patcher: ModelVelocity(patcher, [prompt], negative, cfg)
            try:
                self._twin = self._twin or twin_of(self.patcher, self._checkpointing)
                with _kernels_with_backward():
                    self._costs[key] = estimate(self._twin, self.patcher.load_device, velocity(self._twin), shape)
            except Exception as reason:
                log.info("no estimate of the memory for %s (%s); measuring one row", type(self.patcher.model).__name__, reason)
                is_open = self._velocity is not None
                with nullcontext() if is_open else self.prompts([prompt], negative, cfg, [1 if cfg == 1 else 2, *shape]):
                    self._costs[key] = measure(velocity(self.patcher), self.parameters(), shape)
        return self._costs[key]

    def peak_bytes(self) -> int | None:
        """The most memory in use since the last ``prompts`` began, where the device can tell."""
        device = self.patcher.load_device
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None

    def _count_from_here(self) -> None:
        if self.patcher.load_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.patcher.load_device)

    def park(self) -> None:
        """All weights to RAM, so that a graphics card is free for others; the next ``prompts`` brings them back."""
        if self.patcher.load_device != self.patcher.offload_device:
            self.unload()

    def unload(self) -> None:
        """What ``park`` does, on any device."""
        comfy.model_management.unload_all_models()
        self._move_lora(self.patcher.offload_device)
        comfy.model_management.soft_empty_cache()

    @torch.no_grad()
    def _move_lora(self, device: torch.device) -> None:
        for parameter in self.parameters():
            parameter.data = parameter.data.to(device)
            parameter.grad = None if parameter.grad is None else parameter.grad.to(device)

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
    before = getattr(comfy.model_management, "in_training", None)
    if before is None:
        yield
        return
    comfy.model_management.in_training = True
    try:
        yield
    finally:
        comfy.model_management.in_training = before


def open_policy(job: Job, checkpoint: bool | None = None) -> ComfyPolicy:
    """The job's base model with its LoRA. By default the blocks of any but the tiny demo model are computed again in backward.

    Loaded outside inference mode: inference tensors cannot take part in backward."""
    with torch.inference_mode(False):
        patcher = load_base(job.base)
        if patcher is None:
            raise ValueError(f"ComfyUI could not tell what kind of model {job.base.get('name')!r} is")
        return ComfyPolicy(patcher, job, job.base["kind"] != "demo" if checkpoint is None else checkpoint)
