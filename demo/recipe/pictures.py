"""Draws the training pictures, and their latents without drawing them.

A picture is background + mask * (colour - background) and the encoder is linear, so the latent of a picture needs
only the encoded mask: the training loop draws masks, never pictures.
"""

import torch

from ..captions import BACKGROUNDS, COLOURS, KINDS, PLACES, SIDE, SIZES, Caption, all_captions, held_out
from ..codec import PATCH, Codec
from ..shapes import mask

REACH = 32.0  # px from the picture's middle: no shape's centroid lies farther out, so that every shape stays whole
LATTICE = 16.0  # px; centroids lie on the corners of the transformer's patches: every shape looks the same to it anywhere


def rgb(table: dict[str, tuple[float, float, float]]) -> torch.Tensor:
    """(names, 3) colours of a palette in its order."""
    return torch.tensor(list(table.values()))


def codes(trained: bool = True) -> torch.Tensor:
    """(M, 5) int64 rows of (kind, colour, size, place, background) indices: the trained or the held-out captions."""
    rows = [slot_indices(caption) for caption in all_captions() if held_out(caption) != trained]
    return torch.tensor(rows)


def slot_indices(caption: Caption) -> list[int]:
    """Index of each slot's word among the words of its slot."""
    pairs = zip((KINDS, tuple(COLOURS), tuple(SIZES), tuple(PLACES), tuple(BACKGROUNDS)), vars(caption).values())
    return [names.index(word) for names, word in pairs]


def asked_places(rows: torch.Tensor) -> torch.Tensor:
    """(B, 2) px (x, y) named by the captions."""
    return torch.tensor(list(PLACES.values()))[rows[:, 3]]


def settle(centre: torch.Tensor) -> torch.Tensor:
    """Move centroids (B, 2) px to the nearest lattice point at which every shape is whole."""
    return SIDE / 2 + ((centre - SIDE / 2) / LATTICE).round().mul(LATTICE).clamp(-REACH, REACH)


def draw_masks(rows: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """(B, 128, 128) coverage of the captions' shapes at centre (B, 2) px."""
    radius = torch.tensor(list(SIZES.values()))[rows[:, 2]]
    masks = torch.empty(len(rows), SIDE, SIDE)
    for index, kind in enumerate(KINDS):
        of_kind = rows[:, 0] == index
        if of_kind.any():
            masks[of_kind] = mask(kind, centre[of_kind], radius[of_kind], SIDE)
    return masks


def draw(rows: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """(B, 128, 128, 3) pictures in [0, 1]."""
    front, back = rgb(COLOURS)[rows[:, 1]], rgb(BACKGROUNDS)[rows[:, 4]]
    masks = draw_masks(rows, centre)[..., None]
    return back[:, None, None] + masks * (front - back)[:, None, None]


def latents(codec: Codec, rows: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """(B, 16, 16, 16) model-space latents of the pictures that have these masks (B, 128, 128)."""
    front, back = rgb(COLOURS)[rows[:, 1]], rgb(BACKGROUNDS)[rows[:, 4]]
    weight = codec.to_latent.weight.flatten(2)  # (16, 3, 64)
    cells = masks.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3)  # (B, 16, 16, 64)
    shape = torch.einsum("byxp,bcp->bcyx", cells, torch.einsum("ckp,bk->bcp", weight, front - back))
    flat = back @ weight.sum(2).T + codec.to_latent.bias
    return flat[:, :, None, None] + shape
