"""One wording for one mistake: shape and range checks at the door of the core."""

from torch import Tensor


def need(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(message)


def rows_over_latent(value_B: Tensor, latent: Tensor) -> Tensor:
    """Reshape (B,) to (B, 1, ..., 1) so that it broadcasts over a latent of shape (B, ...)."""
    return value_B.reshape(-1, *[1] * (latent.dim() - 1))


def need_rows(x: Tensor, **rows: Tensor) -> None:
    """Each of ``rows`` must be a vector with one entry per row of ``x``."""
    for name, value in rows.items():
        need(value.shape == x.shape[:1], f"{name} needs shape {tuple(x.shape[:1])}, one value a row; got {tuple(value.shape)}")
