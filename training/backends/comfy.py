"""ComfyUI's own models as a ``Policy``. Nothing in training/ outside this folder imports comfy."""

# ruff: noqa: I001 - loading comes first: it lets ComfyUI read its command line before any other import of comfy

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from .loading import check_flow_matching, class_of, load_base

import comfy.lora
import comfy.model_management
import comfy.model_patcher
import torch
from torch import Tensor, nn

from .. import lora
from ..capacity import Fit
from ..conditioning import longest, signature
from ..config import Job
from ..experience import Experience
from ..faults import out_of_memory
from .estimate import RowCost, estimate, measure, twin_of
from .gradients import Switch, prepare_gradients
from .lora_files import start_weights
from .room import fit_of
from .stacking import follow_layers
from .velocity import ModelVelocity, kernels_with_backward, ready
from .trainable import TrainableLoRA

log = logging.getLogger("stepwise_grpo")


class ComfyPolicy(TrainableLoRA):
    """A ComfyUI model with one trainable LoRA: a ``training.policy.Policy``.

    It owns its model: the layers of the LoRA go into the module itself, which is shared by every clone of a patcher.
    """

    def __init__(self, patcher: Any, job: Job, checkpoint: bool = False) -> None:
        """``checkpoint``: what the setting auto means, to compute transformer blocks again in backward or to keep their activations."""
        check_flow_matching(patcher)
        self.patcher, self.job, self.model_class = patcher, job, class_of(patcher.model)
        self._key_map = comfy.lora.model_lora_keys_unet(patcher.model, {})
        shapes = lora.linear_shapes(self._module)
        self._auto, self._checkpointing = checkpoint, Switch(checkpoint)
        prepare_gradients(self._module, self._checkpointing)
        lora.inject(self._module, job)
        follow_layers(patcher)
        self._parameters = lora.tensors(self._module)
        self.has_experts = any("moe" in type(module).__name__.lower() for module in self._module.modules())
        self._velocity: ModelVelocity | None = None
        self._costs: dict[Any, RowCost] = {}
        self._start = start_weights(job, self._parameters, self._key_map, shapes) if job.start else None
        self.set_weights(self.first_weights())
        self._twin: Any = None

    @property
    def _module(self) -> nn.Module:
        return self.patcher.model.diffusion_model

    @contextmanager
    def prompts(self, prompts: list[list], negative: list, cfg: float, shape: list[int], rows_per_call: int = 1 << 30, memory: int = 0) -> Iterator[None]:
        """The model ready to be called under these prompts. ``memory``: bytes to leave beside its weights."""
        with ready(self.patcher, shape, memory), kernels_with_backward():
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

    def first_weights(self) -> dict[str, Tensor]:
        """Version 0: a fresh LoRA, or the one the run started from."""
        return lora.first_weights(self._parameters, self.job) if self._start is None else {name: w.clone() for name, w in self._start.items()}

    def set_checkpointing(self, setting: str) -> None:
        """on, off or auto, from the next call on."""
        self._checkpointing.on = self._auto if setting == "auto" else setting == "on"

    def rows_that_fit(self, experience: Experience) -> Fit:
        """How many rows of this experience one call takes on this policy's device. 0 where not even one fits; the message says why."""
        self.set_checkpointing(experience.settings.checkpointing)
        try:
            cost = self.row_cost(list(experience.states.shape[2:]), longest(experience.conditioning), experience.negative, experience.cfg)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            return Fit(0, 0, "one row of this update does not fit into the memory here. Try: make the pictures smaller; take the model in fp8")
        return fit_of(self.patcher, self.parameters(), self.job, cost, experience, self._checkpointing.on)

    def row_cost(self, shape: list[int], prompt: list, negative: list, cfg: float) -> RowCost:
        """Memory of a row: estimated, or measured once where the network cannot run without numbers. Remembered."""
        key = (tuple(shape), repr(signature([prompt, negative])), cfg == 1, self._checkpointing.on)
        if key not in self._costs:
            velocity = lambda patcher: ModelVelocity(patcher, [prompt], negative, cfg)
            try:
                self._twin = self._twin or twin_of(self.patcher, self._checkpointing)
                with kernels_with_backward():
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
        current = self.weights() if self._start is not None else None
        if current is None:
            lora.switch(self._module, on=False)
        else:
            self.set_weights(self._start)
        try:
            yield
        finally:
            if current is None:
                lora.switch(self._module, on=True)
            else:
                self.set_weights(current)

    @contextmanager
    def checkpointed(self, on: bool | None) -> Iterator[None]:
        """Inside it transformer blocks are computed again in backward, or their activations kept; None = as it is."""
        before = self._checkpointing.on
        self._checkpointing.on = before if on is None else on
        try:
            yield
        finally:
            self._checkpointing.on = before

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Inside it the network computes in fp32, whatever the precision of its weights."""
        own = self.patcher
        self.patcher = own.clone()
        self.patcher.set_model_compute_dtype(torch.float32)
        try:
            yield
        finally:
            self.patcher = own
            for module in self._module.modules():  # marks of the cast, which a later load in parts would take for its own
                comfy.model_patcher.wipe_lowvram_weight(module)

    def matched_keys(self, tensors: dict[str, Tensor]) -> tuple[int, int]:
        """How many of a version file's layers ComfyUI's own loader recognises, and of how many."""
        total = sum(name.endswith(".lora_A.weight") for name in tensors)
        return len(comfy.lora.load_lora(dict(tensors), self._key_map, log_missing=False)), total


def open_policy(job: Job, checkpoint: bool | None = None) -> ComfyPolicy:
    """The job's base model with its LoRA. By default the blocks of any but the tiny demo model are computed again in backward.

    Loaded outside inference mode: inference tensors cannot take part in backward."""
    with torch.inference_mode(False):
        return ComfyPolicy(load_base(job.base), job, job.base["kind"] != "demo" if checkpoint is None else checkpoint)
