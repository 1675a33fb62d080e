"""Finds the shape in a picture without being told its colour: whatever differs from the colour at the border."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from .captions import SIDE

FAINT = 0.12  # colour distance below which nothing is a shape (RGB, 0..sqrt(3))


@dataclass(frozen=True)
class Silhouette:
    """All per picture. Lengths are px of a 128 px picture, whatever the resolution looked at."""

    cover: torch.Tensor  # (N, h, w) 0..1, how much of a cell belongs to the shape
    peak: torch.Tensor  # (N,) colour distance of the shape from the background
    background: torch.Tensor  # (N, 3)
    centre: torch.Tensor  # (N, 2) x, y of the centroid; the picture's middle when there is nothing
    area: torch.Tensor  # (N,) px^2
    spread: torch.Tensor  # (N,) px^2, mean squared distance of the shape's cells from its centroid


def shrink(images: torch.Tensor, cells: int) -> torch.Tensor:
    """(N, H, W, 3) -> (N, 3, cells, cells) by area averaging."""
    return functional.adaptive_avg_pool2d(images.movedim(-1, 1).float(), cells)


def silhouette(small: torch.Tensor) -> Silhouette:
    """Look at pictures (N, 3, h, h) in [0, 1]."""
    background = _border_colour(small)
    distance = (small - background[:, :, None, None]).square().sum(1).sqrt()  # (N, h, w)
    smooth = functional.avg_pool2d(distance[:, None], 3, stride=1)[:, 0]
    peak = smooth.flatten(1).amax(1)
    scale = peak.clamp(min=FAINT)[:, None, None]
    # The lowest fifth is codec ripple, the highest fifth is full colour; between them lies the soft edge.
    cover = ((distance / scale - 0.2) / 0.6).clamp(0, 1)
    return Silhouette(cover, peak, background, *_moments(cover))


def _border_colour(small: torch.Tensor) -> torch.Tensor:
    """(N, 3) median colour of the outermost ring of cells."""
    edge = torch.cat([small[:, :, 0], small[:, :, -1], small[:, :, 1:-1, 0], small[:, :, 1:-1, -1]], 2)
    return edge.median(2).values


def _moments(cover: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centroid (N, 2), area (N,) and spread (N,) of soft masks."""
    pixel = SIDE / cover.shape[-1]
    axis = (torch.arange(cover.shape[-1], device=cover.device) + 0.5) * pixel
    mass = cover.sum((1, 2))
    share = cover / mass.clamp(min=1e-6)[:, None, None]
    columns, rows = share.sum(1), share.sum(2)
    seen = mass > 1e-3
    centre = torch.stack([columns @ axis, rows @ axis], 1)
    centre = torch.where(seen[:, None], centre, torch.full_like(centre, SIDE / 2))
    second = columns @ axis.square() + rows @ axis.square()
    return centre, mass * pixel**2, (second - centre.square().sum(1)).clamp(min=0) * seen
