"""The demo's picture codec: 128 x 128 pictures <-> latents of 16 channels at an eighth of the side.

The encoder is one linear map of 8 x 8 px patches: channels 0-2 hold the patch's mean colour, 3-15 its strongest
inner patterns. The decoder is a small convolution net trained with noise on the latents, so that it also repairs what
the flow model leaves rough. Latents handed in and out are in ComfyUI's VAE space of SD3.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

CHANNELS = 16
PATCH = 8  # px a latent cell covers
SCALE, SHIFT = 1.5305, 0.0609  # SD3's latent format: model space = (vae - SHIFT) * SCALE


class Codec(nn.Module):
    """encode and decode are inverse up to about 31 dB; all tensors float32 unless the module is cast."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.to_latent = nn.Conv2d(3, CHANNELS, PATCH, stride=PATCH)
        self.enter = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.spread = nn.Conv2d(width, 12 * 16, 1)
        self.refine = nn.Conv2d(12, 12, 3, padding=1)

    def encode(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures (B, 8h, 8w, 3) in [0, 1] -> VAE-space latents (B, 16, h, w)."""
        return self.to_latent(pictures.movedim(-1, 1)) / SCALE + SHIFT

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """VAE-space latents (B, 16, h, w) -> pictures (B, 8h, 8w, 3) in [0, 1]."""
        return self.decode_raw((latents - SHIFT) * SCALE).clamp(0, 1).movedim(1, -1)

    def decode_raw(self, latents: torch.Tensor) -> torch.Tensor:
        """Model-space latents (B, 16, h, w) -> unclamped pictures (B, 3, 8h, 8w)."""
        hidden = functional.silu(self.enter(latents))
        for block in self.blocks:
            hidden = hidden + functional.silu(block(hidden))
        coarse = functional.pixel_shuffle(self.spread(hidden), 4)
        return functional.pixel_shuffle(coarse + self.refine(functional.silu(coarse)), 2)


def load_codec(path: Path) -> Codec:
    """Codec from a safetensors file, float32, no gradients."""
    codec = Codec()
    codec.load_state_dict({key: value.float() for key, value in load_file(path).items()})
    return codec.train(False).requires_grad_(False)
