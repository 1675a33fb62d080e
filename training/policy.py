"""What the loop needs from a model, a decoder and a reward. Backends and nodes provide them; nothing here is concrete."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from .capacity import Fit
from .experience import Experience

# decode(latents (N, ...) in model space) -> pictures (N, H, W, 3) in [0, 1]
Decoder = Callable[[Tensor], Tensor]


class Reward(Protocol):
    """Scores finished pictures. ``spec`` is JSON from which training/rewards rebuilds the same reward."""

    spec: dict[str, Any]

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """(N,) float scores of ``images`` (N, H, W, 3) in [0, 1], one prompt each; higher is better."""
        ...


class Policy(Protocol):
    """A trainable velocity model with one LoRA: current weights, any version's weights, and version 0."""

    findings: Any
    """Of the self-check since the model was loaded; None before it."""
    has_experts: bool
    """Whether the network sends tokens to experts, so that its velocity jumps."""
    model_class: str
    """What kind of model it is, for the metadata of its versions."""

    def prompts(self, prompts: list[list], negative: list, cfg: float, shape: list[int], rows_per_call: int = 0, memory: int = 0) -> Any:
        """A context manager inside which ``velocity`` is defined. ``shape``: of the largest batch; ``memory``: bytes to leave beside the weights."""
        ...

    def velocity(self, x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
        """v (N, ...) at states x (N, ...) and times t (N,) under the prompts of ``rows`` (N,): indices of prompts."""
        ...

    def parameters(self) -> list[Tensor]:
        """The LoRA's tensors, fp32, in a fixed order."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """A detached copy of the LoRA's tensors by name."""
        ...

    def first_weights(self) -> dict[str, Tensor]:
        """The LoRA's tensors of version 0, which every run of this job begins with."""
        ...

    def set_weights(self, weights: dict[str, Tensor]) -> None:
        """Put these LoRA tensors in place. Never between a forward and its backward."""
        ...

    def base(self) -> Any:
        """A context manager inside which this is the model that the run began with: the LoRA off, or the LoRA it started from."""
        ...

    def set_checkpointing(self, setting: str) -> None:
        """Compute blocks again in backward: "on", "off", or "auto" as suits the model; from the next call on."""
        ...

    def rows_that_fit(self, experience: Experience) -> Fit:
        """How many of its rows go through the network at once: as many as it asks for, or as many as fit into memory."""
        ...

    def checkpointed(self, on: bool | None) -> Any:
        """A context manager inside which blocks are computed again in backward, or not; None = as it is."""
        ...

    def exact(self) -> Any:
        """A context manager inside which the network computes in fp32, whatever its precision is. No prompts are open."""
        ...

    def park(self) -> None:
        """Leave the graphics card to others; the next ``prompts`` comes back."""
        ...

    def peak_bytes(self) -> int | None:
        """The most memory in use since the last ``prompts`` began, where the device can tell."""
        ...

    def matched_keys(self, tensors: dict[str, Tensor]) -> tuple[int, int]:
        """How many layers of a version file its loaders know, and of how many."""
        ...

    def training(self) -> Any:
        """A context manager around forward and backward with gradients."""
        ...
