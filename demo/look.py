"""What the demo's latents look like at a glance, for the small pictures ComfyUI shows while sampling."""

from typing import Any

import torch

from .codec import Codec


def colour_factors(codec: Codec) -> tuple[list[list[float]], list[float]]:
    """(16 x 3, 3): a cell's mean colour, -1..1, is latent @ factors + bias. The encoder's linear map of a plain patch, inverted."""
    mix = codec.to_latent.weight.detach().float().sum((2, 3))  # (16, 3)
    back = 2 * torch.linalg.pinv(mix)  # colours 0..1 become -1..1
    bias = -1 - back @ codec.to_latent.bias.detach().float()
    return back.T.tolist(), bias.tolist()


def teach_latent_preview(latent_format: Any, codec: Codec) -> None:
    """Give a model's own latent format the demo's colours instead of SD3's."""
    latent_format.latent_rgb_factors, latent_format.latent_rgb_factors_bias = colour_factors(codec)
