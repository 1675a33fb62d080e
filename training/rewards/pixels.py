"""Rewards measured from pixels: no model, no download."""

import io
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class PixelReward:
    """A measure of pictures, as it is or negated. It ignores the prompt."""

    def __init__(self, name: str, measure: Callable[[Tensor], Tensor], choices: tuple[str, str], toward: str) -> None:
        if toward not in choices:
            raise ValueError(f"{name}: toward must be {choices[0]!r} or {choices[1]!r}; got {toward!r}")
        self.spec = {"reward": name, "toward": toward}
        self._measure, self._sign = measure, 1.0 if toward == choices[0] else -1.0

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """(N,) scores of ``images`` (N, H, W, 3) in [0, 1]."""
        return self._sign * self._measure(images)


def warmth(toward: str = "warm") -> PixelReward:
    """Mean red minus mean blue, -1 .. 1; toward "warm" or "cool"."""
    return PixelReward("warmth", lambda images: images[..., 0].mean((1, 2)) - images[..., 2].mean((1, 2)), ("warm", "cool"), toward)


def contrast(toward: str = "more") -> PixelReward:
    """Standard deviation of the luminance, from 0 to 0.5; toward "more" or "less"."""
    return PixelReward("contrast", _luminance_spread, ("more", "less"), toward)


def compressibility(toward: str = "more") -> PixelReward:
    """Minus the bits per pixel of the picture as a JPEG file; toward "more" or "less"."""
    # At quality 90, as in DDPO, arXiv:2305.13301.
    return PixelReward("compressibility", lambda images: torch.tensor([-_bits_per_pixel(image) for image in images]), ("more", "less"), toward)


def _luminance_spread(images: Tensor) -> Tensor:
    weights = torch.tensor([0.2126, 0.7152, 0.0722], dtype=images.dtype, device=images.device)  # Rec. 709
    return (images @ weights).flatten(1).std(1, correction=0)


def _bits_per_pixel(image: Tensor) -> float:
    from PIL import Image

    buffer = io.BytesIO()
    array = (image.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    Image.fromarray(array).save(buffer, "JPEG", quality=90)
    return 8 * buffer.tell() / (image.shape[0] * image.shape[1])
