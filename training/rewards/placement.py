"""The demo's reward: is the shape where the prompt says? Measured from pixels, smooth in the distance.

Every picture of a shape scores between 0 and 1: 1 on the asked place, about 0.75 when it is 9 px off, near 0 from 28 px on (the next
place is 32 px away). The distance is that of all the shape's pixels, not of their middle, so two halves on both sides of
the place do not pass for one shape on it.
"""

from collections.abc import Sequence

import torch

from ...demo.captions import PLACES, parse
from ...demo.silhouette import FAINT, shrink, silhouette

LENGTH = 9.0  # px, distance at which the score has fallen to exp(-1/2)
CELLS = 32  # side of the grid looked at
OWN_SPREAD = 0.2  # mean squared distance of a whole shape's pixels from its centroid, in areas
LEAST_AREA = 250.0  # px^2; smaller things score in proportion


class Placement:
    """Reward protocol: `score(images, prompts)` and a JSON `spec` that rebuilds it."""

    spec = {"reward": "placement"}

    def score(self, images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """(N,) float32 in [0, 1] of images (N, H, W, 3) in [0, 1]. A prompt that names no place is met anywhere."""
        found = silhouette(shrink(images, CELLS))
        asked = [parse(prompt).place for prompt in prompts]
        target = torch.tensor([PLACES[place or "centre"] for place in asked], device=images.device)
        named = torch.tensor([place is not None for place in asked], device=images.device)
        away = (found.centre - target).square().sum(1)
        off = ((away + found.spread - OWN_SPREAD * found.area).clamp(min=0)) / LENGTH**2
        near = torch.where(named, torch.exp(-0.5 * off), torch.ones_like(off))
        return near * visibility(found.peak, found.area)


def visibility(peak: torch.Tensor, area: torch.Tensor) -> torch.Tensor:
    """(N,) 0 when nothing stands out from the background, 1 for a shape of normal contrast and size."""
    return (peak / FAINT - 1).clamp(0, 1) * (area / LEAST_AREA).clamp(0, 1)
