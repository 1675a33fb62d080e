"""The picture that lies beside a version for LoRA managers: the best of the iteration that it was trained on."""

import io

import torch
import torch.nn.functional as F
from torch import Tensor

LONGER_SIDE = 512  # pixels, at most


def small_picture(image: Tensor) -> Tensor:
    """The picture ``image`` (H, W, 3) in [0, 1] made small: (h, w, 3), uint8."""
    scale = min(1.0, LONGER_SIDE / max(image.shape[:2]))
    size = [max(1, round(side * scale)) for side in image.shape[:2]]
    smaller = F.interpolate(image.float().movedim(-1, 0)[None], size=size, mode="area")[0].movedim(0, -1)
    return (smaller.clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def check_picture(picture: Tensor) -> None:
    """``ValueError`` unless it is a picture as ``small_picture`` makes it."""
    if picture.dtype != torch.uint8 or picture.dim() != 3 or picture.shape[2] != 3 or not 1 <= min(picture.shape[:2]) <= max(picture.shape[:2]) <= LONGER_SIDE:
        raise ValueError(f"the picture has shape {tuple(picture.shape)} and type {picture.dtype}")


def png(picture: Tensor) -> bytes:
    """A picture (h, w, 3), uint8, as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture.contiguous().numpy()).save(buffer, "PNG")
    return buffer.getvalue()
