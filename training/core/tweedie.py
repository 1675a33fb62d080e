"""Estimates of the clean picture from a noisy state: Tweedie's formula, or a few Euler steps of the ODE to t = 0.

The states of all steps can go through the network in one batch, because every row has a time of its own. The velocity the
sampler already computed is the first substep, so one substep costs no network call.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .checks import need, need_rows, rows_over_latent

# velocity(x, t, rows): the network at states x (N, ...) and times t (N,), for the rows (N,) of the caller's batch.
Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]


def clean_estimate(x: Tensor, v: Tensor, t: Tensor) -> Tensor:
    """x0_hat = x - t v (one-step Tweedie)."""
    return x - rows_over_latent(t, x) * v


def noise_estimate(x: Tensor, v: Tensor, t: Tensor) -> Tensor:
    """x1_hat = x + (1 - t) v."""
    return x + rows_over_latent(1 - t, x) * v


def substep_counts(t: Tensor, substeps: int, by_time: bool) -> Tensor:
    """Substeps of each row (B,): ``substeps`` everywhere, or ceil(substeps * t), fewer where little noise is left."""
    need(substeps >= 1, f"substeps must be at least 1; got {substeps}")
    if not by_time:
        return torch.full(t.shape, substeps, dtype=torch.long, device=t.device)
    return (substeps * t).ceil().long().clamp(1, substeps)


def _substep_time(t: Tensor, j: int, counts: Tensor, spacing: float) -> Tensor:
    """Time after j of ``counts`` substeps from t down to 0; spacing > 1 (a shift) takes more of them at high noise."""
    u = 1 - j / counts.to(t.dtype)
    return t * spacing * u / (1 + (spacing - 1) * u)


def clean_picture(velocity: Velocity, x: Tensor, v: Tensor, t: Tensor, counts: Tensor, spacing: float = 1.0) -> Tensor:
    """The ODE's endpoint from states ``x`` (B, ...) at times ``t`` (B,), by ``counts`` (B,) Euler substeps.

    ``v`` (B, ...) is the velocity at (x, t), used for the first substep. counts = 1 is one-step Tweedie exactly.
    """
    need_rows(x, t=t, counts=counts)
    x = x - rows_over_latent(t - _substep_time(t, 1, counts, spacing), x) * v
    for j in range(1, int(counts.max())):
        rows = (counts > j).nonzero().flatten()
        now, then = (_substep_time(t[rows], i, counts[rows], spacing) for i in (j, j + 1))
        x = x.clone()
        x[rows] = x[rows] - rows_over_latent(now - then, x) * velocity(x[rows], now, rows)
    return x
