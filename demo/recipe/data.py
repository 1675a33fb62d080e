"""One training batch: captions, noise, and where the noise puts the shape.

The demo is made for reinforcement learning of placement, so its base model must place shapes wrongly about half the
time, and yet draw them cleanly. Each picture's shape is moved away from the asked place by

    SWAY * (<x1, a>, <x1, b>)    px, plus a little that is independent of the noise,

where a and b are horizontal and vertical ramps over the latent in the colour that leads from the background to the
shape: noise that happens to be redder on the right moves a red shape to the right. x1 itself stays N(0, I). Because
the noise decides, the model has one clear picture in mind at every t (independent moves leave it torn between many
places near t = 1 and ruin the shapes), and the noise of a stochastic sampler moves the shape.
"""

from dataclasses import dataclass

import torch

from ..captions import BACKGROUNDS, COLOURS, KINDS, SLOTS
from ..codec import Codec
from ..words import TOKENS, UNSAID, pool, word_vectors
from .pictures import asked_places, codes, draw_masks, latents, rgb, settle

SWAY = 9.0  # px, std of the noise-bound move along each axis
LOOSE = 0.5  # px, std of the independent move
DROP_WORD, DROP_ALL = 0.03, 0.10
SHIFT = 3.0  # of the time grid, as in the stock SD3 sampler


@dataclass(frozen=True)
class Batch:
    """x0, x1 (B, 16, 16, 16) model space; t (B,); cond (B, L, C); pooled (B, C)."""

    x0: torch.Tensor
    x1: torch.Tensor
    t: torch.Tensor
    cond: torch.Tensor
    pooled: torch.Tensor


class Batches:
    """Draws batches of the trained captions; every kind equally often in each."""

    def __init__(self, codec: Codec, size: int, drop: bool = True):
        self.codec, self.size, self.drop = codec, size, drop
        rows = codes()
        self.by_kind = [rows[rows[:, 0] == kind] for kind in range(len(KINDS))]
        self.vectors = word_vectors()
        self.offsets = torch.tensor([0, *[len(words) for words in SLOTS.values()]]).cumsum(0)[:-1]

    def draw(self) -> Batch:
        """A fresh batch from torch's global random stream."""
        share = self.size // len(KINDS)
        rows = torch.cat([kind[torch.randint(len(kind), (share,))] for kind in self.by_kind])
        x1 = torch.randn(len(rows), 16, 16, 16)
        centre = settle(asked_places(rows) + moves(self.codec, rows, x1))
        x0 = latents(self.codec, rows, draw_masks(rows, centre))
        ids = rows + self.offsets
        if self.drop:
            ids = torch.where(torch.rand(len(rows), TOKENS) < DROP_WORD, UNSAID, ids)
            ids = torch.where(torch.rand(len(rows), 1) < DROP_ALL, UNSAID, ids)
        cond = self.vectors[ids]
        return Batch(x0, x1, times(len(rows)), cond, pool(cond))


def moves(codec: Codec, rows: torch.Tensor, x1: torch.Tensor) -> torch.Tensor:
    """(B, 2) px, how far the shapes are drawn from the asked places."""
    return SWAY * sway(codec, rows, x1) + LOOSE * torch.randn(len(rows), 2)


def sway(codec: Codec, rows: torch.Tensor, x1: torch.Tensor) -> torch.Tensor:
    """(B, 2) standard normal: the noise's tilt along x and y in the colour from background to shape."""
    colour = (rgb(COLOURS)[rows[:, 1]] - rgb(BACKGROUNDS)[rows[:, 4]]) @ codec.to_latent.weight[:3].sum((2, 3)).T
    colour = colour / colour.norm(dim=1, keepdim=True)
    side = x1.shape[-1]
    ramp = torch.arange(side) - (side - 1) / 2
    ramp = ramp / (ramp.norm() * side**0.5)
    plane = torch.einsum("bcyx,bc->byx", x1[:, :3], colour)
    return torch.stack([plane.sum(1) @ ramp, plane.sum(2) @ ramp], 1)


def times(count: int) -> torch.Tensor:
    """(count,) stratified t: four of five shifted as in sampling, the fifth uniform."""
    u = (torch.randperm(count) + torch.rand(count)) / count
    shifted = SHIFT * u / (1 + (SHIFT - 1) * u)
    return torch.where(torch.rand(count) < 0.8, shifted, u)
