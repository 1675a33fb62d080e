"""Measures from pixels what a picture shows: kind, colour, size, place, background, and whether the shape is whole."""

import math
from collections.abc import Sequence

import torch

from .captions import BACKGROUNDS, COLOURS, KINDS, PLACES, SIDE, SIZES, SLOTS, parse
from .shapes import mask
from .silhouette import FAINT, Silhouette, shrink, silhouette

CELLS = 64  # side of the grid looked at
AREA = {"circle": math.pi, "square": 3.14, "triangle": 2.55, "cross": 3.16}  # of radius 1
NEAR = 8.0  # px, a quarter of the distance between neighbouring places: farther off is the wrong place
WHOLE_OVERLAP = 0.75  # least intersection over union with an ideal shape of the same middle and area
BLUR = 0.25  # largest distance of a shape's colour from the palette's (RGB)


def measure(images: torch.Tensor, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    """What images (N, H, W, 3) in [0, 1] show, measured against their prompts: tensors by name, one row an image.

    The boolean ones are true where right or not asked for: `kind`, `colour`, `size`, `place`, `background`, `whole`
    and `shape_ok`, which means kind, colour and whole. The float ones are `centre` (N, 2) in pixels and `overlap`,
    the agreement with the best fitting ideal shape.
    """
    small = shrink(images, CELLS)
    found = silhouette(small)
    overlaps = torch.stack([overlap(found, kind) for kind in KINDS], 1)  # (N, 4)
    seen = {
        "kind": overlaps.argmax(1),
        "colour": _nearest(_shape_colour(small, found), COLOURS),
        "size": _size(found, overlaps.argmax(1)),
        "background": _nearest(found.background, BACKGROUNDS),
    }
    result = {slot: _agrees(index, slot, prompts) for slot, index in seen.items()}
    result["place"] = _place_right(found.centre, prompts)
    result["whole"] = _whole(found, overlaps.amax(1))
    result["shape_ok"] = result["kind"] & result["colour"] & result["whole"]
    return result | {"centre": found.centre, "overlap": overlaps.amax(1)}


def overlap(found: Silhouette, kind: str) -> torch.Tensor:
    """(N,) intersection over union with the ideal shape of this kind that has the same centroid and area."""
    cells = found.cover.shape[-1]
    radius = (found.area / AREA[kind]).sqrt()
    ideal = mask(kind, found.centre, radius, cells, SIDE / cells)
    shared = torch.minimum(found.cover, ideal).sum((1, 2))
    return shared / torch.maximum(found.cover, ideal).sum((1, 2)).clamp(min=1e-6)


def _shape_colour(small: torch.Tensor, found: Silhouette) -> torch.Tensor:
    """(N, 3) mean colour of the cells that belong fully to the shape."""
    core = (found.cover > 0.95).float()
    return (small * core[:, None]).sum((2, 3)) / core.sum((1, 2)).clamp(min=1)[:, None]


def _nearest(colours: torch.Tensor, palette: dict[str, tuple[float, float, float]]) -> torch.Tensor:
    """(N,) index of the palette's nearest colour, -1 where none is near."""
    distance = torch.cdist(colours, torch.tensor(list(palette.values()), device=colours.device))
    least, index = distance.min(1)
    return torch.where(least < BLUR, index, -1)


def _size(found: Silhouette, kinds: torch.Tensor) -> torch.Tensor:
    """(N,) index of the size whose radius is nearest, judged as the kind it looks like."""
    per_radius = torch.tensor([AREA[kind] for kind in KINDS], device=kinds.device)[kinds]
    radius = (found.area / per_radius).sqrt()
    known = torch.tensor(list(SIZES.values()), device=kinds.device)
    return (radius[:, None].clamp(min=1).log() - known.log()).abs().argmin(1)


def _agrees(index: torch.Tensor, slot: str, prompts: Sequence[str]) -> torch.Tensor:
    """(N,) whether what was seen is what the prompt says, true where it says nothing."""
    names = SLOTS[slot]
    said = [vars(parse(prompt))[slot] for prompt in prompts]
    asked = torch.tensor([-2 if word is None else names.index(word) for word in said], device=index.device)
    return (asked == -2) | (asked == index)


def _place_right(centre: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """(N,) whether the centroid lies within NEAR px of the asked place."""
    said = [parse(prompt).place for prompt in prompts]
    target = torch.tensor([PLACES[place or "centre"] for place in said], device=centre.device)
    unasked = torch.tensor([place is None for place in said], device=centre.device)
    return unasked | ((centre - target).norm(dim=1) < NEAR)


def _whole(found: Silhouette, best: torch.Tensor) -> torch.Tensor:
    """(N,) one visible shape of a plausible size, close to an ideal one."""
    least = 0.7 * min(AREA.values()) * min(SIZES.values()) ** 2
    most = 1.35 * max(AREA.values()) * max(SIZES.values()) ** 2
    plausible = (found.area > least) & (found.area < most) & (found.peak > 2 * FAINT)
    return plausible & (best > WHOLE_OVERLAP)
