"""The clipped objective of one update, with what one wants to know about it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import need


@dataclass(frozen=True)
class Surrogate:
    """``loss`` (N,) to minimise, one entry a scored step; ``ratio`` (N,) and ``clipped`` (N,) for the record, detached."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def clipped_surrogate(density: Tensor, old_density: Tensor, advantages: Tensor, kl: Tensor | None, clip: float, beta: float) -> Surrogate:
    """The clipped objective of each scored step, to be minimised; all arguments have shape (N,).

    The ratio compares mean log densities, so the usual clip ranges are very small. ``kl`` may be None when beta = 0.
    """
    # Flow-GRPO, arXiv:2505.05470, eq. 5 and its code; clip ranges of 1e-5 .. 1e-3 are the usual ones:
    # -min(ratio A, clip(ratio, 1 - c, 1 + c) A) + beta KL,  ratio = exp(density - old_density)
    need(density.shape == old_density.shape == advantages.shape, f"densities and advantages differ in shape: {tuple(density.shape)}, {tuple(old_density.shape)}, {tuple(advantages.shape)}")
    need(clip > 0, f"clip must be above 0; got {clip:g}")
    need(beta == 0 or kl is not None, "beta above 0 needs the KL of every scored step")
    ratio = (density - old_density).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    loss = -gain if beta == 0 else -gain + beta * kl
    ratio = ratio.detach()
    clipped = ((ratio > 1 + clip) & (advantages > 0)) | ((ratio < 1 - clip) & (advantages < 0))
    return Surrogate(loss, ratio, clipped)
