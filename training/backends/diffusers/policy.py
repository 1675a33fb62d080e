"""A diffusers transformer with one trainable LoRA: a ``Policy``, with what LiveRun needs besides."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ... import lora
from ...conditioning import ConditioningBatcher, stack
from ...config import Job
from .architectures import Architecture


class DiffusersPolicy:
    """It owns its network: the layers of the LoRA go into the module itself."""

    def __init__(
        self, network: nn.Module, architecture: Architecture, job: Job, device: torch.device, guidance: float = 3.5, checkpoint: bool = False, lockstep: bool = False
    ) -> None:
        """``guidance``: what guidance-distilled networks are told. ``checkpoint``: compute blocks again in backward.

        ``lockstep``: only rows of one prompt in a call, so that processes with equally many prompts call equally often.
        """
        self.network, self.job, self._architecture = network, job, architecture
        self._guidance, self._lockstep = guidance, lockstep
        self._device, self._dtype = device, network.dtype
        if checkpoint:
            network.enable_gradient_checkpointing()
        lora.inject(network, job)
        self._parameters = {architecture.file_name(name): parameter for name, parameter in lora.tensors(network).items()}
        self._batcher: ConditioningBatcher | None = None

    @contextmanager
    def prompts(self, prompts: list[list], negative: list, cfg: float, shape: list[int], rows_per_call: int = 0) -> Iterator[None]:
        """The network ready to be called under these prompts; ``rows_per_call`` 0 = all rows at once."""
        self._batcher, self._negative = ConditioningBatcher(prompts, apart=self._lockstep), negative
        self._cfg, self._limit = cfg, rows_per_call or 1 << 30
        try:
            yield
        finally:
            self._batcher = None

    def velocity(self, x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
        if self._batcher is None:
            raise RuntimeError("velocity is only defined inside prompts(...)")
        x, t = x.to(self._device), t.to(self._device, torch.float32)
        return self._batcher.each(rows, self._limit, lambda where, conditioning: self._guided(x[where], t[where], conditioning))

    def _guided(self, x: Tensor, t: Tensor, conditioning: list) -> Tensor:
        positive = self._predict(x, t, conditioning)
        if self._cfg == 1:
            return positive
        return self._architecture.guide(positive, self._predict(x, t, stack([self._negative] * len(x))), self._cfg)

    def _predict(self, x: Tensor, t: Tensor, conditioning: list) -> Tensor:
        ((text, options),) = conditioning
        options = {name: self._ready(value) for name, value in options.items()}
        return self._architecture.predict(self.network, self._ready(x), t, self._ready(text), options, self._guidance).float()

    def _ready(self, values: Tensor) -> Tensor:
        return values.to(self._device, self._dtype)

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
        lora.switch(self.network, on=False)
        try:
            yield
        finally:
            lora.switch(self.network, on=True)

    @contextmanager
    def training(self) -> Iterator[None]:
        with torch.enable_grad():
            yield

    def matched_keys(self, tensors: dict[str, Tensor]) -> tuple[int, int]:
        """How many layers of a version file have A, B and alpha under the names of this architecture, and of how many.

        There is no ComfyUI here to ask; that its loaders know these names is tested for every architecture.
        """
        layers = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
        ours = {self._architecture.prefix + name for name in self._parameters}
        whole = [layer for layer in layers if {f"{layer}.lora_A.weight", f"{layer}.lora_B.weight"} <= ours and {f"{layer}.lora_B.weight", f"{layer}.alpha"} <= tensors.keys()]
        return len(whole), len(layers)
