"""The four shapes as signed distances. The recipe draws with them, the measures compare with them."""

import torch

from .captions import KINDS

EDGE = 1.0  # px, width of the anti-aliased edge


def signed_distance(kind: str, dx: torch.Tensor, dy: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Distance in px from the edge of a shape, negative inside.

    dx, dy: offsets from the shape's centroid (y grows downwards); radius broadcasts against them. Radius is that
    of the circle; the other kinds are scaled to about its area.
    """
    if kind == "circle":
        return (dx.square() + dy.square()).sqrt() - radius
    if kind == "square":
        return torch.maximum(dx.abs(), dy.abs()) - 0.886 * radius
    if kind == "triangle":
        inner = 0.7 * radius  # of the inscribed circle; the tip is twice as far
        return torch.maximum(dy, 0.866 * dx.abs() - 0.5 * dy) - inner
    if kind == "cross":
        far, near = torch.maximum(dx.abs(), dy.abs()), torch.minimum(dx.abs(), dy.abs())
        return torch.maximum(far - 1.15 * radius, near - 0.42 * radius)
    raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")


def mask(kind: str, centre: torch.Tensor, radius: torch.Tensor, side: int, pixel: float = 1.0) -> torch.Tensor:
    """(N, side, side) coverage in [0, 1] of shapes at centre (N, 2) (x, y) and radius (N,), both in px.

    pixel is the width of one cell of the mask in px: side 64 with pixel 2 covers the whole 128 px picture.
    """
    middle = (torch.arange(side, device=centre.device) + 0.5) * pixel
    dx = middle[None, None, :] - centre[:, 0, None, None]
    dy = middle[None, :, None] - centre[:, 1, None, None]
    distance = signed_distance(kind, dx, dy, radius[:, None, None])
    return (0.5 - distance / (EDGE * pixel)).clamp(0, 1)
