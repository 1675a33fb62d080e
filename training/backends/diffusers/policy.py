"""A diffusers transformer with one trainable LoRA: a ``Policy``, with what LiveRun needs besides."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ... import lora
from ...capacity import Fit
from ...conditioning import ConditioningBatcher, stack
from ...config import Job
from ...experience import Experience
from ..trainable import TrainableLoRA
from .architectures import Architecture

FEW_ROWS = 4


class DiffusersPolicy(TrainableLoRA):
    """It owns its network: the layers of the LoRA go into the module itself."""

    def __init__(
        self, network: nn.Module, architecture: Architecture, job: Job, device: torch.device, guidance: float = 3.5, lockstep: bool = False
    ) -> None:
        """``guidance``: what guidance-distilled networks are told.

        ``lockstep``: only rows of one prompt in a call, so that processes with equally many prompts call equally often.
        """
        self.network, self.job, self._architecture, self.model_class = network, job, architecture, architecture.model
        self._guidance, self._lockstep = guidance, lockstep
        self._device, self._dtype = device, network.dtype
        lora.inject(network, job)
        self._parameters = {architecture.file_name(name): parameter for name, parameter in lora.tensors(network).items()}
        self._batcher: ConditioningBatcher | None = None
        self.set_weights(self.first_weights())

    @contextmanager
    def prompts(self, prompts: list[list], negative: list, cfg: float, shape: list[int], rows_per_call: int = 0, memory: int = 0) -> Iterator[None]:
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

    def first_weights(self) -> dict[str, Tensor]:
        return lora.first_weights(self.weights(), self.job)

    @contextmanager
    def base(self) -> Iterator[None]:
        lora.switch(self.network, on=False)
        try:
            yield
        finally:
            lora.switch(self.network, on=True)

    def set_checkpointing(self, setting: str) -> None:
        """on, off or auto, which means on: only the models of tests are small enough for off."""
        if setting == "off":
            self.network.disable_gradient_checkpointing()
        else:
            self.network.enable_gradient_checkpointing()

    @contextmanager
    def checkpointed(self, on: bool | None) -> Iterator[None]:
        """Inside it blocks are computed again in backward, or their activations kept; None = as it is."""
        before = self.network.is_gradient_checkpointing
        self.set_checkpointing("on" if (before if on is None else on) else "off")
        try:
            yield
        finally:
            self.set_checkpointing("on" if before else "off")

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Inside it the network computes in fp32, whatever its precision is."""
        frozen = [(parameter, parameter.dtype) for parameter in self.network.parameters() if not parameter.requires_grad]
        own, self._dtype = self._dtype, torch.float32
        try:
            for parameter, _ in frozen:
                parameter.data = parameter.data.float()
            yield
        finally:
            self._dtype = own
            for parameter, dtype in frozen:
                parameter.data = parameter.data.to(dtype)

    def rows_that_fit(self, experience: Experience) -> Fit:
        """As many rows as the settings ask for; nothing is estimated here, so without a word from them only a few."""
        rows = min(experience.settings.rows_per_call or FEW_ROWS, len(experience.schedule.stochastic) * experience.states.shape[1])
        return Fit(rows, 0, f"{rows} rows a call")

    def park(self) -> None:
        """Nobody waits for the memory of a headless run."""

    def peak_bytes(self) -> int | None:
        """The most memory in use so far, where the device can tell."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None

    def matched_keys(self, tensors: dict[str, Tensor]) -> tuple[int, int]:
        """How many layers of a version file have A, B and alpha under the names of this architecture, and of how many.

        There is no ComfyUI here to ask; that its loaders know these names is tested for every architecture.
        """
        layers = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
        ours = {self._architecture.prefix + name for name in self._parameters}
        whole = [layer for layer in layers if {f"{layer}.lora_A.weight", f"{layer}.lora_B.weight"} <= ours and {f"{layer}.lora_B.weight", f"{layer}.alpha"} <= tensors.keys()]
        return len(whole), len(layers)
