"""What every backend's policy does alike: hold the tensors of its LoRA, give them out and take them in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..selfcheck import Finding


class TrainableLoRA:
    """``_parameters``: the LoRA's tensors by their names in a version file, without prefix, in a fixed order."""

    _parameters: dict[str, Tensor]
    findings: list[Finding] | None = None
    """Of the self-check, once it was made."""
    has_experts = False
    """Whether the network sends tokens to experts, so that its velocity jumps where a token changes its expert."""

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
    def training(self) -> Iterator[None]:
        with torch.enable_grad():
            yield
