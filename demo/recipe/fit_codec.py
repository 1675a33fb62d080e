"""Fits the codec: the encoder in closed form, the decoder by gradient descent."""

import time

import torch

from ..captions import SIDE
from ..codec import CHANNELS, PATCH, Codec
from .pictures import REACH, codes, draw

INNER_STD = 0.3  # model-space std of the inner patterns; the three mean-colour channels have 1
BATCH = 32


def random_pictures(count: int, rows: torch.Tensor) -> torch.Tensor:
    """(count, 128, 128, 3) shapes of the trained captions anywhere they fit."""
    chosen = rows[torch.randint(len(rows), (count,))]
    return draw(chosen, SIDE / 2 + (torch.rand(count, 2) * 2 - 1) * REACH)


def fit_encoder(codec: Codec, pictures: torch.Tensor) -> None:
    """Set the linear encoder: whitened mean colour, then the principal inner patterns of the patches."""
    cells = pictures.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).reshape(-1, 3, PATCH * PATCH)
    means = cells.mean(2)
    colour_basis = _whitened(means)  # (3, 3)
    inner = (cells - means[..., None]).flatten(1)
    _, vectors = torch.linalg.eigh(inner.T @ inner)
    patterns = vectors.T.flip(0)[: CHANNELS - 3]
    patterns = patterns * (INNER_STD / (inner @ patterns.T).std(0))[:, None]
    weight = torch.cat([colour_basis[:, :, None].expand(-1, -1, PATCH * PATCH) / PATCH**2,
                        patterns.unflatten(1, (3, -1))])  # fmt: skip
    with torch.no_grad():
        codec.to_latent.weight.copy_(weight.unflatten(2, (PATCH, PATCH)))
        codec.to_latent.bias.zero_()
        codec.to_latent.bias[:3] = -colour_basis @ means.mean(0)


def _whitened(means: torch.Tensor) -> torch.Tensor:
    """Rows that map mean colours (N, 3) to three uncorrelated values of std 1, strongest first."""
    values, vectors = torch.linalg.eigh(torch.cov(means.T))
    return (vectors / values.sqrt()).T.flip(0)


def fit_decoder(codec: Codec, seconds: float, log=print) -> None:
    """Train the decoder on noisy latents of random pictures."""
    rows = codes()
    parts = [p for name, p in codec.named_parameters() if not name.startswith("to_latent")]
    optimiser = torch.optim.AdamW(parts, lr=2e-3, weight_decay=0.0)
    start, step = time.monotonic(), 0
    while (spent := (time.monotonic() - start) / seconds) < 1:
        optimiser.param_groups[0]["lr"] = 2e-3 * min(1, step / 50) * (1 - spent)
        target = random_pictures(BATCH, rows).movedim(-1, 1)
        with torch.no_grad():
            latent = codec.to_latent(target)
        latent = latent + torch.rand(BATCH, 1, 1, 1) * INNER_STD * torch.randn_like(latent)
        error = codec.decode_raw(latent) - target
        loss = error.square().mean() + 0.05 * error.abs().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        if step % 200 == 0:
            log(f"codec {spent:4.0%} step {step} psnr {-10 * error.square().mean().log10():.1f} dB")


def fit_codec(seconds: float, log=print) -> Codec:
    """The finished codec; its seed is fixed."""
    torch.manual_seed(0)
    codec = Codec()
    fit_encoder(codec, random_pictures(2000, codes()))
    codec.to_latent.requires_grad_(False)
    fit_decoder(codec, seconds, log)
    return codec.train(False).requires_grad_(False)
